"""What a statement's options ask for: a config, the parts that columns play, and how rows are read.

Names are the CorgiPile paper's and our own; after ``OPTIONS`` the warehouses' names are known too. What was asked for
comes back in the words that were written, with the place in the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.blocks.hashing import Hashed
from penstock.blocks.parts import PAIRS, is_number
from penstock.config import Config
from penstock.errors import ColumnError, UsageError, some_of
from penstock.sql import warehouse
from penstock.sql.asked import PLACE, READ, Asked
from penstock.sql.engines.base import Reading
from penstock.sql.expressions.pieces import holds_lists
from penstock.sql.statements import Evaluate, Pack, Train
from penstock.training import Columns

_KEYS, _VALUES = PAIRS[1]
_PACKED = "features"
_TRAINING = {name: name for name in READ if name not in ("to", "validation")} | {
    "max_epoch_num": "epochs",
    "buffer_size": "memory",
    "test_fraction": "validation",
}


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
    >>> from penstock.sql.statements import Option, Query
    >>> asked = {"max_epoch_num": Option(5), "label": Option("Clicked"), "block_size": Option("10MB")}
    >>> schema = pa.schema([("id", pa.int64()), ("age", pa.int32()), ("clicked", pa.bool_())])
    >>> found = settings(Train(Query("TABLE t"), "svm", options=asked), schema)
    >>> found.config.epochs, found.columns.label, found.wanted, found.reading.block_size
    (5, 'clicked', ('id', 'age', 'clicked'), 10000000)
    """
    known = dict(_TRAINING)
    given, split = train.options, False
    if train.dialect == "warehouse":
        known |= warehouse.NAMES | {name: name for name in warehouse.SPECIAL}
        given, split = warehouse.plain(train.options)
    asked = Asked.of(given, known, schema)
    config = asked.config(train.model)
    columns, wanted = _columns(asked, schema, train.dialect)
    replaced = train.exists == "replace" or bool(asked.values.get("replace"))
    extension = bool(asked.values.get("extension", True))
    return Settings(config, columns, asked.reading(config.memory), wanted, replaced, split, extension)


def evaluate_settings(evaluate: Evaluate, schema: pa.Schema | None = None) -> EvaluateSettings:
    """Settle the options of EVALUATE for the columns of its query; without them the label is taken as written."""
    names = ("label", "memory", "buffer_size", "block_size", "nulls", "connections", "folder")
    asked = Asked.of(evaluate.options, {name: _TRAINING[name] for name in names}, schema)
    memory = asked.values.get("memory", Config().memory)
    return EvaluateSettings(asked.values.get("label"), memory, asked.reading(memory))


def pack_settings(pack: Pack, schema: pa.Schema, *, keys: Sequence[str] = ()) -> PackSettings:
    """Settle the options of PACK for the columns of its table; without ``features`` all numbers but ``keys`` are packed."""
    names = ("features", "label", "exclude", "replace")
    asked = Asked.of(pack.options, {**{name: _TRAINING[name] for name in names}, "to": "to"}, schema)
    label = asked.values.get("label", _default_label(schema))
    features = asked.values.get("features")
    if features is None:
        left_out = {label, *asked.values.get("exclude", ()), *keys}
        numbers = [field.name for field in schema if _is_numeric(field.type)]
        features = [_VALUES] if _VALUES in schema.names else [name for name in numbers if name not in left_out]
    if _KEYS in schema.names and _VALUES in features:
        raise UsageError(f"{pack.table} has sparse features ({_KEYS}, {_VALUES}); only dense ones can be packed")
    if not features:
        raise ColumnError(f"{pack.table} has no numbers to pack; it has: {some_of(schema.names)}")
    if label in features:
        asked.fail("features", f"{label!r} is the label; leave it out of the features")
    kept = tuple(name for name in schema.names if name not in features)
    to = asked.values.get("to", "bytea")
    return PackSettings(tuple(features), kept, label, to, bool(asked.values.get("replace")))


def names(dialect: str = "penstock") -> tuple[str, ...]:
    """Return the options that a training takes, for completion.

    Examples
    --------
    >>> names()[:4]
    ('batch_size', 'block_size', 'buffer_size', 'cache')
    """
    more = (*warehouse.NAMES, *warehouse.SPECIAL) if dialect == "warehouse" else ()
    return tuple(sorted({*_TRAINING, *more}))


def _columns(asked: Asked, schema: pa.Schema, dialect: str) -> tuple[Columns, tuple[str, ...]]:
    """Return the parts that columns play, and those to ask of the engine."""
    present, values = schema.names, asked.values
    label = values.get("label", _default_label(schema))
    if label is None:
        how = "OPTIONS(input_label_cols=['clicked'])" if dialect == "warehouse" else "WITH (label = 'clicked')"
        raise UsageError(f"say which column is the label: {how}; {PLACE} has: {some_of(present)}")
    excluded = set(values.get("exclude", ()))
    if label in excluded:
        asked.fail("exclude", f"{label!r} is the label and cannot be left out")
    features = values.get("features")
    if features is None and _VALUES in present and not {_VALUES, _KEYS} & excluded:
        features = [name for name in (_KEYS, _VALUES) if name in present]
    elif features is None and "hash" not in values and _is_vector(schema, _PACKED) and _PACKED not in excluded:
        features = [_PACKED]  # as PACK makes them, with keys and the like beside them
    hashed = values.get("hash", ())
    used = set(features or present) - excluded | {Hashed.parse(spec).column for spec in hashed}
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
