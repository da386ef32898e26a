"""What a statement's options ask for: a config, the parts that columns play, and how rows are read.

Names are the CorgiPile paper's and our own; after ``OPTIONS`` the warehouses' names are known too. A value of the wrong
kind is refused with the option's name as it was written, its place in the script, and what to write. A column is found
whatever the case of its letters, as SQL's users expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pyarrow as pa

from penstock.budget import Budget, parse_size
from penstock.columns.base import is_number
from penstock.columns.hashing import Hashed
from penstock.columns.pairs import PAIRS
from penstock.columns.schema_notes import index_columns
from penstock.config import Config
from penstock.errors import ColumnError, UnknownOptionError, UsageError, nearest, some_of
from penstock.messages import Given, Location, Text, TextPart, joined
from penstock.options import Option, default, options_of
from penstock.sgd.loop import EarlyStopping
from penstock.sql import warehouse
from penstock.sql.model_types import LINEAR, ModelType, QueryLearner, type_of
from penstock.sql.model_versions import split_version
from penstock.sql.prediction_query import holds_lists
from penstock.sql.query_copy import PLACE, Reading
from penstock.sql.statements import (
    ConfusionMatrix,
    Evaluate,
    Explain,
    ExplainPredict,
    OptionValue,
    Pack,
    Predict,
    Statement,
    StatementOption,
    StatementOptions,
    Train,
)
from penstock.sql.wording import StatementWording, in_words_of
from penstock.training import Columns

_KEYS, _VALUES = PAIRS[1]
_PACKED = "features"


def _names(door: str) -> dict[str, str]:
    """Return the names that the options of a statement may have, each with the name in the table."""
    options = options_of(door)
    return {name: name for name in options} | {alias: name for name in options for alias in options[name].aliases}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A model per group, settled: the columns to group by, what rows of other groups get, and how many processes train.

    Without columns it is one model, chosen among those that are tried.
    """

    by: tuple[str, ...]
    unseen: str = default("unseen", "query")
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A training, settled.

    Attributes
    ----------
    config : Config
        Hyper-parameters; where there is a learner, which has its own, those that are common: memory, seed and validation.
    columns : Columns
        Which columns play which part. Excluded ones are not among them: they are not asked of the engine.
    reading : Reading
        How rows are fetched.
    wanted : tuple of str
        The columns to ask of the engine, in the query's order.
    replace : bool
        Whether a model of the same name may be replaced.
    learner : QueryLearner or None
        What learns the model; None of linear models in memory without GROUP BY.
    auto_split : bool
        Whether rows to measure on are set aside as the warehouses do it by default; see `for_rows`.
    extension : bool
        Whether a server that has the extension may do the training itself.
    search : mapping
        The values to try, of options that were given several.
    halving : bool
        Whether these are tried in rounds.
    groups : GroupSettings or None
        Of GROUP BY, or of a model that worker processes learn, such as by a search.
    init : str or None
        The model that training goes on from.
    """

    config: Config
    columns: Columns
    reading: Reading
    wanted: tuple[str, ...]
    replace: bool = False
    auto_split: bool = False
    extension: bool = True
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    halving: bool = False
    groups: GroupSettings | None = None
    init: str | None = None
    learner: QueryLearner | None = None

    def for_rows(self, rows: int) -> Settings:
        """Return the settings once the number of rows is known; only an automatic split hangs on it."""
        if not self.auto_split:
            return self
        return replace(self, config=replace(self.config, validation=warehouse.share(rows)), auto_split=False)


@dataclass(frozen=True, slots=True)
class EvaluateSettings:
    """An evaluation, settled: the label, or None for the model's own, how rows are fetched, and the threshold of a class."""

    label: str | None
    memory: str | int
    reading: Reading
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """What stood in STRUCT(…), settled."""

    threshold: float | None = None
    top_k_features: int = default("top_k_features")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """A packing, settled: the columns to pack into one, those to keep beside it, and what the new one is to be."""

    features: tuple[str, ...]
    kept: tuple[str, ...]
    label: str | None = None
    to: str = "bytea"
    replace: bool = False


def settings(train: Train, schema: pa.Schema) -> Settings:
    """Settle a training's options for the columns of its query.

    Examples
    --------
    >>> from penstock.sql.statements import StatementOption, Query
    >>> asked = {"max_epoch_num": StatementOption(5), "label": StatementOption("Clicked"), "block_size": StatementOption("10MB")}
    >>> schema = pa.schema([("id", pa.int64()), ("age", pa.int32()), ("clicked", pa.bool_())])
    >>> found = settings(Train(Query("TABLE t"), "svm", options=asked), schema)
    >>> found.config.epochs, found.columns.label, found.wanted, found.reading.block_size
    (5, 'clicked', ('id', 'age', 'clicked'), 10000000)
    """
    with in_words_of(wording_of(train)):
        kind = type_of(train)
        preset = {name: StatementOption(value) for name, value in kind.preset.items()}
        given, split = train.options, False
        if train.warehouse:
            given, split = warehouse.plain_options(train.options, name=train.name or "")
        known = option_names(kind, of_warehouse=train.warehouse)
        options = OptionValues.of({**preset, **given}, known, schema, kind.options, searched=kind.searched)
        groups = options.groups(train)
        learner = kind.make_learner(options, train)
        config = options.config(train.model) if learner is None else options.common_config()
        if kind.label == "label":
            columns, wanted = _columns(options, schema, train.warehouse, by=() if groups is None else groups.by)
        else:
            columns, wanted = _named_columns(options, schema, kind)
        halving = options.values.get("search") == "halving"
        init = options.values.get("init")
        if init is not None and groups is not None:
            options.fail(
                options.written["init"], "training goes on from one model, and without a search", "leave init out"
            )
        # What goes on under the name that it had is its next version.
        again = init is not None and split_version(init)[0] == train.name
        replaced = again or train.exists == "replace" or bool(options.values.get("replace"))
        extension = bool(options.values.get("extension", True))
        reading = options.reading(config.memory)
        return Settings(
            config,
            columns,
            reading,
            wanted,
            replaced,
            split,
            extension,
            options.search,
            halving,
            groups=groups,
            init=init,
            learner=learner,
        )


def wording_of(statement: Statement) -> StatementWording:
    """Return how messages about a statement name its options."""
    statement = statement.train if isinstance(statement, Explain) else statement
    of_warehouse = isinstance(statement, Train) and statement.warehouse
    options = statement.options if isinstance(statement, Train | Evaluate | Pack) else {}
    known = option_names(type_of(statement) if isinstance(statement, Train) else LINEAR, of_warehouse=of_warehouse)
    if isinstance(statement, Pack):
        known |= _names("query-pack")
    return StatementWording.of(options, known, warehouse=of_warehouse)


def option_names(kind: ModelType = LINEAR, *, of_warehouse: bool = False) -> dict[str, str]:
    """Return the names that options of a training may have, each with the name in the option table.

    Examples
    --------
    >>> option_names()["buffer_size"], option_names(of_warehouse=True)["learn_rate"]
    ('memory', 'learning_rate')
    """
    return kind.names(of_warehouse=of_warehouse) | ({name: name for name in warehouse.SPECIAL} if of_warehouse else {})


def evaluate_settings(evaluate: Evaluate, schema: pa.Schema | None = None) -> EvaluateSettings:
    """Settle the options of EVALUATE for the columns of its query; without them the label is taken as written."""
    with in_words_of(wording_of(evaluate)):
        options = OptionValues.at("query-evaluate", evaluate.options, schema)
        memory = options.values.get("memory", default("memory"))
        threshold = options.values.get("threshold")
        return EvaluateSettings(options.values.get("label"), memory, options.reading(memory), threshold)


def function_settings(call: Predict | ConfusionMatrix | ExplainPredict) -> FunctionSettings:
    """Settle the settings of a function.

    Examples
    --------
    >>> from penstock.sql.statements import StatementOption, Query
    >>> function_settings(ExplainPredict("m", Query("TABLE t"), {"top_k_features": StatementOption(3)}))
    FunctionSettings(threshold=None, top_k_features=3)
    """
    known = _names("query-function")
    with in_words_of(StatementWording.of(call.options, known)):
        return FunctionSettings(**OptionValues.at("query-function", call.options, None).values)


def pack_settings(pack: Pack, schema: pa.Schema, *, keys: Sequence[str] = ()) -> PackSettings:
    """Settle the options of PACK for the columns of its table; without ``features`` all numbers but ``keys`` are packed."""
    with in_words_of(wording_of(pack)):
        options = OptionValues.at("query-pack", pack.options, schema)
        label = options.values.get("label", _default_label(schema))
        features = options.values.get("features")
        if features is None:
            left_out = {label, *options.values.get("exclude", ()), *keys, *index_columns(schema)}
            numbers = [field.name for field in schema if _is_numeric(field.type)]
            features = [_VALUES] if _VALUES in schema.names else [name for name in numbers if name not in left_out]
        if _KEYS in schema.names and _VALUES in features:
            raise UsageError(f"{pack.table} has sparse features ({_KEYS}, {_VALUES}); only dense ones can be packed")
        if not features:
            raise ColumnError(f"{pack.table} has no numbers to pack; it has: {some_of(schema.names)}")
        if label in features:
            options.fail("features", f"{label!r} is the label", "leave it out of the features")
        kept = tuple(name for name in schema.names if name not in features)
        to = options.values.get("to", "bytea")
        return PackSettings(tuple(features), kept, label, to, bool(options.values.get("replace")))


def _columns(
    options: OptionValues, schema: pa.Schema, of_warehouse: bool, *, by: Sequence[str] = ()
) -> tuple[Columns, tuple[str, ...]]:
    """Return the parts that columns play, and those to ask of the engine, with those to group by among them."""
    present, values = schema.names, options.values
    label = values.get("label", _default_label(schema))
    if label is None:
        how = "OPTIONS(input_label_cols=['clicked'])" if of_warehouse else "WITH (label = 'clicked')"
        raise UsageError(f"say which column is the label: {how}; {PLACE} has: {some_of(present)}")
    excluded = set(values.get("exclude", ()))
    if label in excluded:
        options.fail("exclude", f"{label!r} is the label and cannot be left out")
    features = values.get("features")
    if features is None and _VALUES in present and not {_VALUES, _KEYS} & excluded:
        features = [name for name in (_KEYS, _VALUES) if name in present]
    elif features is None and "hash" not in values and _is_vector(schema, _PACKED) and _PACKED not in excluded:
        features = [_PACKED]  # as PACK makes them, with keys and the like beside them
    hashed = values.get("hash", ())
    index = set() if features is not None else set(index_columns(schema))
    kinds: dict[str, Any] = {
        name: tuple(values.get(name, ())) for name in ("category", "number", "date", "null_values")
    }
    used = set(features or present) - excluded - index | {Hashed.parse(spec).column for spec in hashed}
    used |= {name for kind in ("category", "number", "date") for name in kinds[kind]}
    used |= {name for name in (label, values.get("weight"), *by) if name is not None}
    wanted = tuple(name for name in present if name in used)
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise ColumnError(
            f"{PLACE} has the column {twice!r} more than once; name them apart: SELECT a.x AS x, b.x AS x2"
        )
    chosen = None if features is None else tuple(name for name in features if name not in excluded)
    roles: dict[str, Any] = {"label": label, "features": chosen, "weight": values.get("weight"), "hash": tuple(hashed)}
    return Columns(**roles, **kinds, missing=values.get("missing")), wanted


def _named_columns(options: OptionValues, schema: pa.Schema, kind: ModelType) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns that options name one by one, as for a model that has no features."""
    named = [
        options.values[name]
        for name, option in kind.options.items()
        if option.kind == "column" and name in options.values
    ]
    wanted = tuple(name for name in schema.names if name in named)
    return Columns(label=options.values.get(kind.label)), wanted


def _default_label(schema: pa.Schema) -> str | None:
    return next((name for name in schema.names if name.lower() == "label"), None)


def _is_vector(schema: pa.Schema, name: str) -> bool:
    """Whether a column of that name holds many numbers a row: a list, or packed bytes."""
    if schema.names.count(name) != 1:
        return False
    kind = schema.field(name).type
    return holds_lists(kind) or bool(pa.types.is_binary(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    if holds_lists(kind):
        kind = kind.value_type
    return is_number(kind) or bool(pa.types.is_boolean(kind))


_READING = ("block_size", "nulls", "cache", "connections")


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Options by what they mean, each of the type wanted, and the names they were written under.

    ``declared`` has the options that the statement takes, ``search`` the values of those that were given several to try.
    """

    values: dict[str, Any]
    written: dict[str, str]
    options: StatementOptions
    known: Mapping[str, str]
    schema: pa.Schema | None
    declared: Mapping[str, Option]
    search: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def at(cls, door: str, options: StatementOptions, schema: pa.Schema | None) -> OptionValues:
        """Read the options of a statement that has a door of its own."""
        return cls.of(options, _names(door), schema, options_of(door))

    @classmethod
    def of(
        cls,
        options: StatementOptions,
        known: Mapping[str, str],
        schema: pa.Schema | None,
        declared: Mapping[str, Option],
        *,
        searched: Sequence[str] = (),
    ) -> OptionValues:
        """Read options; ``known`` has for each name the option that it stands for, ``searched`` those to try several values of."""
        found = cls({}, {}, options, known, schema, declared)
        for name, option in options.items():
            if name not in known:
                raise UnknownOptionError(
                    f"there is no option {name!r}",
                    place=option.place,
                    fixes=[f"choose from: {', '.join(sorted(known))}{nearest(name, known)}"],
                )
            meaning = known[name]
            if meaning in found.written:
                found.fail(name, f"{name} and {found.written[meaning]} mean the same", "give one of them")
            found.written[meaning] = name
            if option.value is not None:  # null leaves what there is without the option
                kind, several = declared[meaning], isinstance(option.value, list) and meaning in searched
                values = option.value if several and isinstance(option.value, list) else [option.value]
                read = [kind.check(_READERS[kind.kind](found, name, value)) for value in values]
                if several:
                    found.search[meaning] = read
                else:
                    found.values[meaning] = read[0]
        return found

    def groups(self, train: Train) -> GroupSettings | None:
        """Return what GROUP BY, values to try or worker processes ask for; raise for an option of these where there are none."""
        kind = type_of(train)
        if not train.by:
            if "unseen" in self.written:
                self.fail(self.written["unseen"], "unseen is for models per group", "write GROUP BY, or leave it out")
            for meaning in () if self.search or kind.processes else ("workers", "search"):
                if meaning in self.written:
                    values = Text("give an option several values: ", self.write("l2", [1, 0.1]))
                    self.fail(self.written[meaning], f"{meaning} is for several values to try", values, "leave it out")
            settled = GroupSettings((), "null", self.values.get("workers"))
            return settled if self.search or kind.processes else None
        if not kind.grouped:
            raise UsageError(f"a {train.model} model is not learned for each group", fixes=["leave out GROUP BY"])
        by = tuple(str(self.column("GROUP BY", name)) for name in train.by)
        twice = next((name for name in by if by.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"GROUP BY names the column {twice!r} twice; name each once")
        if train.transform:
            raise UsageError("TRANSFORM and GROUP BY do not go together; write the expressions into the query")
        unseen = self.values.get("unseen", default("unseen", "query"))
        if "unseen" in self.written and self.options[self.written["unseen"]].value is None:  # as the word null is read
            unseen = "null"
        return GroupSettings(by, unseen, self.values.get("workers"))

    def config(self, model: str) -> Config:
        """Return the hyper-parameters."""
        config = Config(
            model=model, **{name: self.values[name] for name in Config.__dataclass_fields__ if name in self.values}
        )
        if config.epochs == 0:  # a model that has learnt nothing may be wanted elsewhere; here it would be saved
            raise UsageError("is not a number of epochs", option="epochs", value=0, fixes=["choose 1 or more"])
        if config.patience:
            EarlyStopping(config.patience, config.tolerance)
        return config

    def floating_label(self) -> bool:
        """Whether the label is of a floating-point type, or a decimal with digits behind the point."""
        label = self.values.get("label") or (None if self.schema is None else _default_label(self.schema))
        if self.schema is None or label not in self.schema.names:
            return False
        kind = self.schema.field(label).type
        return bool(pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.scale > 0))

    def common_config(self) -> Config:
        """Return the hyper-parameters that every model has."""
        names = ("memory", "seed", "validation")
        return Config(**{name: self.values[name] for name in names if name in self.values})

    def reading(self, memory: str | int) -> Reading:
        """Return how rows are fetched."""
        values = {name: self.values[name] for name in _READING if name in self.values}
        most, usual = Budget.parse(memory).bytes, Reading(folder=self.values.get("scratch"))
        return replace(usual, memory=usual.memory if most is None else min(most, usual.memory), **values)

    def column(self, name: str, wanted: str, *, fails: bool = True) -> str | None:
        """Return the query's column that an option names, whatever the case of its letters."""
        if self.schema is None:
            return wanted
        present = self.schema.names
        if wanted in present:
            return wanted
        alike = [each for each in present if each.lower() == wanted.lower()]
        if len(alike) == 1:
            return str(alike[0])
        if fails:
            missing = ColumnError.missing(wanted, present, place=PLACE, role=f"{name} column")
            raise missing.replace(place=self.place(name) or missing.place)
        return None

    def fail(self, name: str, reason: str, *fixes: TextPart) -> NoReturn:
        """Raise, with the place of an option."""
        raise UsageError(reason, place=self.place(name), fixes=fixes)

    def refuse(self, name: str, value: OptionValue, expected: str, *fixes: TextPart) -> NoReturn:
        """Raise for a value of the wrong kind."""
        raise UsageError(f"is not {expected}", option=self.known[name], value=value, fixes=fixes)

    def place(self, name: str) -> Location | None:
        """Return where an option stands."""
        return self.options[name].place if name in self.options else None

    def write(self, name: str, *values: OptionValue) -> Text:
        """Return the advice to write an option with one of these values."""
        return Text("write ", joined((Given(self.known[name], value) for value in values), last=" or "))


def _number(options: OptionValues, name: str, value: OptionValue) -> float | None:
    if options.declared[options.known[name]].auto and isinstance(value, str) and value.lower() == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        options.refuse(name, value, "a number", Text(options.write(name, 0.1), ", without quotes"))
    return float(value)


def _whole(options: OptionValues, name: str, value: OptionValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        options.refuse(name, value, "a whole number", Text(options.write(name, 10), ", without quotes"))
    return int(value)


def _flag(options: OptionValues, name: str, value: OptionValue) -> bool:
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        options.refuse(name, value, "true or false")
    return found


def _text(options: OptionValues, name: str, value: OptionValue) -> str:
    if not isinstance(value, str) or not value:
        options.refuse(name, value, "a word or a string", options.write(name, "…"))
    return value


def _word(options: OptionValues, name: str, value: OptionValue) -> str:
    return _text(options, name, value).lower().replace("_", "-")


def _choice(options: OptionValues, name: str, value: OptionValue) -> str:
    option = options.declared[options.known[name]]
    word = _text(options, name, value).lower()
    if word not in option.words:
        raise UnknownOptionError.of(option.name, value, option.words)
    return word


def _column(options: OptionValues, name: str, value: OptionValue) -> str:
    return str(options.column(name, _text(options, name, value)))


def _several(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    """Read names in a list, or in one string with commas; a column with a comma in its own name goes first."""
    if isinstance(value, str):
        commas = options.column(name, value, fails=False) is None
        value = [part.strip() for part in value.split(",")] if commas else [value]
    if not isinstance(value, list) or not value:
        options.refuse(name, value, "a list of columns", options.write(name, ["a", "b"]))
    return [_text(options, name, each) for each in value]


def _column_list(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    return list(dict.fromkeys(str(options.column(name, each)) for each in _several(options, name, value)))


def _hash(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    specs = []
    for each in _several(options, name, value):
        column = Hashed.parse(each).column
        specs.append(each if each == "*" else f"{options.column(name, column)}{each[len(column) :]}")
    return specs


def _text_list(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    """Read texts and numbers in a list, or in one string with commas."""
    found: Any = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(each, str | int | float) for each in found):
        options.refuse(name, value, "a list of values", options.write(name, ["?", "NA"]))
    return [str(each) for each in found]


def _memory(options: OptionValues, name: str, value: OptionValue) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        options.refuse(name, value, "an amount of memory", options.write(name, "512MB", "10%"))
    return value


def _size(options: OptionValues, name: str, value: OptionValue) -> int:
    return parse_size(_memory(options, name, value), option=options.known[name])


def _class_weight(options: OptionValues, name: str, value: OptionValue) -> str | dict[Any, Any]:
    """Read ``'balanced'``, ``'yes=5,no=1'``, or a list of pairs ``[('yes', 5), ('no', 1)]``."""
    if isinstance(value, str):
        return value
    pairs = value if isinstance(value, list) else []
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        example = Given(options.known[name], {"yes": 5, "no": 1})
        options.refuse(name, value, "a choice of class weights", Text(options.write(name, "balanced"), " or ", example))
    found: dict[Any, Any] = {}
    for label, weight in (pair for pair in pairs if isinstance(pair, list)):
        if isinstance(label, list | None) or label in found:
            options.refuse(name, value, "a weight for each label, each given once")
        found[label] = weight
    return found


def _cache(options: OptionValues, name: str, value: OptionValue) -> bool | int:
    if isinstance(value, bool) or str(value).lower() in ("on", "off"):
        return _flag(options, name, value)
    return _size(options, name, value)


_READERS: dict[str, Callable[[OptionValues, str, OptionValue], Any]] = {
    "number": _number,
    "whole": _whole,
    "flag": _flag,
    "word": _word,
    "text": _text,
    "memory": _memory,
    "size": _size,
    "column": _column,
    "columns": _column_list,
    "hash": _hash,
    "texts": _text_list,
    "class_weight": _class_weight,
    "cache": _cache,
    "choice": _choice,
}
