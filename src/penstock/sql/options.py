"""What a statement's options ask for: a config, the parts that columns play, and how rows are read.

Names are the CorgiPile paper's and our own; after ``OPTIONS`` the warehouses' names are known too. What was asked for
comes back in the words that were written, with the place in the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.blocks.arrow import index_columns
from penstock.blocks.feature_columns import PAIRS, is_number
from penstock.blocks.hashing import Hashed
from penstock.config import Config
from penstock.errors import ColumnError, UsageError, some_of
from penstock.options import default, options_of
from penstock.sql import warehouse
from penstock.sql.engines.base import Reading
from penstock.sql.expressions.formula import holds_lists
from penstock.sql.option_values import PLACE, OptionValues
from penstock.sql.statements import Evaluate, Explain, Pack, Statement, Train
from penstock.sql.wording import StatementWording, in_words_of
from penstock.training import Columns

_KEYS, _VALUES = PAIRS[1]
_PACKED = "features"


def _names(door: str) -> dict[str, str]:
    """Return the names that the options of a statement may have, each with the name in the table."""
    options = options_of(door)
    return {name: name for name in options} | {alias: name for name in options for alias in options[name].aliases}


@dataclass(frozen=True, slots=True)
class Settings:
    """A training, settled.

    Attributes
    ----------
    config : Config
        Hyper-parameters.
    columns : Columns
        Which columns play which part. Excluded ones are not among them: they are not asked of the engine.
    reading : Reading
        How rows are fetched.
    wanted : tuple of str
        The columns to ask of the engine, in the query's order.
    replace : bool
        Whether a model of the same name may be replaced.
    auto_split : bool
        Whether rows to measure on are set aside as the warehouses do it by default; see `for_rows`.
    extension : bool
        Whether a server that has the extension may do the training itself.
    """

    config: Config
    columns: Columns
    reading: Reading
    wanted: tuple[str, ...]
    replace: bool = False
    auto_split: bool = False
    extension: bool = True

    def for_rows(self, rows: int) -> Settings:
        """Return the settings once the number of rows is known; only an automatic split hangs on it."""
        if not self.auto_split:
            return self
        return replace(self, config=replace(self.config, validation=warehouse.share(rows)), auto_split=False)


@dataclass(frozen=True, slots=True)
class EvaluateSettings:
    """An evaluation, settled: the label, or None for the model's own, and how rows are fetched."""

    label: str | None
    memory: str | int
    reading: Reading


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
        given, split = warehouse.plain_options(train.options) if train.warehouse else (train.options, False)
        options = OptionValues.of(given, option_names(of_warehouse=train.warehouse), schema)
        config = options.config(train.model)
        columns, wanted = _columns(options, schema, train.warehouse)
        replaced = train.exists == "replace" or bool(options.values.get("replace"))
        extension = bool(options.values.get("extension", True))
        return Settings(config, columns, options.reading(config.memory), wanted, replaced, split, extension)


def wording_of(statement: Statement) -> StatementWording:
    """Return how messages about a statement name its options."""
    statement = statement.train if isinstance(statement, Explain) else statement
    of_warehouse = isinstance(statement, Train) and statement.warehouse
    options = statement.options if isinstance(statement, Train | Evaluate | Pack) else {}
    known = option_names(of_warehouse=of_warehouse)
    if isinstance(statement, Pack):
        known |= _names("query-pack")
    return StatementWording.of(options, known, warehouse=of_warehouse)


def option_names(*, of_warehouse: bool = False) -> dict[str, str]:
    """Return the names that options of a training may have, each with the name in the option table.

    Examples
    --------
    >>> option_names()["buffer_size"], option_names(of_warehouse=True)["learn_rate"]
    ('memory', 'learning_rate')
    """
    if not of_warehouse:
        return _names("query")
    return _names("query") | warehouse.NAMES | {name: name for name in warehouse.SPECIAL}


def evaluate_settings(evaluate: Evaluate, schema: pa.Schema | None = None) -> EvaluateSettings:
    """Settle the options of EVALUATE for the columns of its query; without them the label is taken as written."""
    with in_words_of(wording_of(evaluate)):
        options = OptionValues.of(evaluate.options, _names("query-evaluate"), schema)
        memory = options.values.get("memory", default("memory"))
        return EvaluateSettings(options.values.get("label"), memory, options.reading(memory))


def pack_settings(pack: Pack, schema: pa.Schema, *, keys: Sequence[str] = ()) -> PackSettings:
    """Settle the options of PACK for the columns of its table; without ``features`` all numbers but ``keys`` are packed."""
    with in_words_of(wording_of(pack)):
        return _pack_settings(pack, schema, keys)


def _pack_settings(pack: Pack, schema: pa.Schema, keys: Sequence[str]) -> PackSettings:
    options = OptionValues.of(pack.options, _names("query-pack"), schema)
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


def _columns(options: OptionValues, schema: pa.Schema, of_warehouse: bool) -> tuple[Columns, tuple[str, ...]]:
    """Return the parts that columns play, and those to ask of the engine."""
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
    used = set(features or present) - excluded - index | {Hashed.parse(spec).column for spec in hashed}
    used |= {name for name in (label, values.get("weight")) if name is not None}
    wanted = tuple(name for name in present if name in used)
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    if twice is not None:
        raise ColumnError(
            f"{PLACE} has the column {twice!r} more than once; name them apart: SELECT a.x AS x, b.x AS x2"
        )
    chosen = None if features is None else tuple(name for name in features if name not in excluded)
    return Columns(label=label, features=chosen, weight=values.get("weight"), hash=tuple(hashed)), wanted


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
