"""What a statement's options ask for: a config, the parts that columns play, and how rows are read.

Names are the CorgiPile paper's and our own; after ``OPTIONS`` the warehouses' names are known too. A value of the wrong
kind is refused with the option's name as it was written, its place in the script, and what to write. A column is found
whatever the case of its letters, as SQL's users expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.columns.base import is_number
from penstock.columns.choose import require_not_excluded
from penstock.columns.hashing import Hashed
from penstock.columns.pairs import PAIRS
from penstock.columns.schema_notes import index_columns
from penstock.config import Config
from penstock.errors import ColumnError, UsageError, some_of
from penstock.options import default
from penstock.sql import warehouse
from penstock.sql.model_types import LINEAR, ModelType, QueryLearner, type_of
from penstock.sql.model_versions import split_version
from penstock.sql.option_values import GroupSettings, OptionValues, label_by_name, names_at
from penstock.sql.prediction_query import holds_lists
from penstock.sql.query_copy import PLACE, Reading
from penstock.sql.statements import (
    ConfusionMatrix,
    Evaluate,
    Explain,
    ExplainPredict,
    Pack,
    Predict,
    Statement,
    StatementOption,
    Train,
)
from penstock.sql.wording import StatementWording, in_words_of
from penstock.training import Columns

_KEYS, _VALUES = PAIRS[1]
_PACKED = "features"


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
        known |= names_at("query-pack")
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
    known = names_at("query-function")
    with in_words_of(StatementWording.of(call.options, known)):
        return FunctionSettings(**OptionValues.at("query-function", call.options, None).values)


def pack_settings(pack: Pack, schema: pa.Schema, *, keys: Sequence[str] = ()) -> PackSettings:
    """Settle the options of PACK for the columns of its table; without ``features`` all numbers but ``keys`` are packed."""
    with in_words_of(wording_of(pack)):
        options = OptionValues.at("query-pack", pack.options, schema)
        label = options.values.get("label", label_by_name(schema))
        features = options.values.get("features")
        _require_consistent(options)
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
    label = values.get("label", label_by_name(schema))
    if label is None:
        how = "OPTIONS(input_label_cols=['clicked'])" if of_warehouse else "WITH (label = 'clicked')"
        raise UsageError(f"say which column is the label: {how}; {PLACE} has: {some_of(present)}")
    excluded = set(values.get("exclude", ()))
    if label in excluded:
        options.fail("exclude", f"{label!r} is the label and cannot be left out")
    _require_consistent(options)
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
    chosen = None if features is None else tuple(features)
    roles: dict[str, Any] = {"label": label, "features": chosen, "weight": values.get("weight"), "hash": tuple(hashed)}
    return Columns(**roles, **kinds, missing=values.get("missing")), wanted


def _require_consistent(options: OptionValues) -> None:
    """Raise for a column that one option names and ``exclude`` leaves out."""
    kinds = ("features", "category", "number", "date")
    named = [(name, option) for option in kinds for name in options.values.get(option, ())]
    hashed = [(Hashed.parse(spec).column, "hash") for spec in options.values.get("hash", ()) if spec != "*"]
    require_not_excluded([*named, *hashed], options.values.get("exclude", ()), place=PLACE)


def _named_columns(options: OptionValues, schema: pa.Schema, kind: ModelType) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns that options name one by one, as for a model that has no features."""
    named = [
        options.values[name]
        for name, option in kind.options.items()
        if option.kind == "column" and name in options.values
    ]
    wanted = tuple(name for name in schema.names if name in named)
    return Columns(label=options.values.get(kind.label)), wanted


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
