"""PostgreSQL's types: what they are as Arrow, how the values of a query travel, and what a table of Arrow's rows has.

Numbers travel in their binary forms, several columns side by side; arrays in their own; all that has no place among
Arrow's plain types as text. Numerics are doubles, pgvector's vectors arrays of float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.blocks.postgres.qualify import qualified
from penstock.sql.expressions.formula import VECTOR
from penstock.sql.expressions.literals import quote_identifier

Kind = Literal["number", "array", "bytes", "text"]


@dataclass(frozen=True, slots=True)
class NumberType:
    """A type whose values are all of one size: as Arrow, as it is sent, and what stands in for a null."""

    arrow: pa.DataType
    sent: np.dtype[Any]
    send: str
    filler: str = "0"
    cast: str = ""


_NUMBERS = {
    "bool": NumberType(pa.bool_(), np.dtype("?"), "boolsend", "false"),
    "int2": NumberType(pa.int16(), np.dtype(">i2"), "int2send", "0::pg_catalog.int2"),
    "int4": NumberType(pa.int32(), np.dtype(">i4"), "int4send"),
    "int8": NumberType(pa.int64(), np.dtype(">i8"), "int8send", "0::pg_catalog.int8"),
    "oid": NumberType(pa.int64(), np.dtype(">i8"), "int8send", "0::pg_catalog.int8", "int8"),
    "float4": NumberType(pa.float32(), np.dtype(">f4"), "float4send", "0::pg_catalog.float4"),
    "float8": NumberType(pa.float64(), np.dtype(">f8"), "float8send", "0::pg_catalog.float8"),
    "numeric": NumberType(pa.float64(), np.dtype(">f8"), "float8send", "0::pg_catalog.float8", "float8"),
    "date": NumberType(pa.date32(), np.dtype(">i4"), "date_send", "'2000-01-01'::pg_catalog.date"),
    "timestamp": NumberType(
        pa.timestamp("us"), np.dtype(">i8"), "timestamp_send", "'2000-01-01'::pg_catalog.timestamp"
    ),
    "timestamptz": NumberType(
        pa.timestamp("us", "UTC"), np.dtype(">i8"), "timestamptz_send", "'2000-01-01'::pg_catalog.timestamptz"
    ),
}
_ELEMENTS = {
    "bool": ("bool", pa.bool_(), "?"),
    "int2": ("int2", pa.int16(), ">i2"),
    "int4": ("int4", pa.int32(), ">i4"),
    "int8": ("int8", pa.int64(), ">i8"),
    "float4": ("float4", pa.float32(), ">f4"),
    "float8": ("float8", pa.float64(), ">f8"),
    "numeric": ("float8", pa.float64(), ">f8"),
}
LOOK_UP = qualified("""
    WITH RECURSIVE base (asked, type) AS (
        SELECT oid, oid FROM unnest($1::oid[]) AS oid
        UNION ALL
        SELECT asked, t.typbasetype FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
    ), element (asked, type) AS (
        SELECT asked, t.typelem FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typcategory = 'A'
        UNION ALL
        SELECT asked, t.typbasetype FROM element JOIN pg_catalog.pg_type t ON t.oid = element.type WHERE t.typtype = 'd'
    )
    SELECT base.asked::int8, t.typname, n.nspname, e.typname, m.nspname, EXISTS (
        SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
        WHERE d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e' AND x.extname = 'vector')
    FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype <> 'd'
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN element ON element.asked = base.asked
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_type d WHERE d.oid = element.type AND d.typtype = 'd')
    LEFT JOIN pg_catalog.pg_type e ON e.oid = element.type
    LEFT JOIN pg_catalog.pg_namespace m ON m.oid = e.typnamespace
""")
_STORED = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of a query: its name, its type as Arrow, and how its values travel.

    Attributes
    ----------
    kind : str
        ``number``, ``array`` (of numbers), ``bytes``, or ``text`` for all else.
    number : Number or None
        How a number travels.
    element : NumPy type or None
        That of an array's values as they are sent.
    cast : str
        What a value is cast to before it is sent.
    vector : str or None
        The schema of pgvector's type, where the column is of that.
    """

    name: str
    type: pa.DataType
    kind: Kind
    number: NumberType | None = None
    element: np.dtype[Any] | None = None
    cast: str = ""
    vector: str | None = None

    @property
    def field(self) -> pa.Field:
        """The column as Arrow."""
        return pa.field(self.name, self.type, metadata=None if self.vector is None else {VECTOR: self.vector.encode()})


def query_columns(
    described: Sequence[tuple[str, int, int]], found: Mapping[int, tuple[str, str, str | None, str | None, bool]]
) -> list[QueryColumn]:
    """Return a query's columns, told by name, type's number and modifier, and what `LOOK_UP` found of the types."""
    return [_column(name, modifier, *found[number]) for name, number, modifier in described]


def _column(
    name: str, modifier: int, kind: str, schema: str, element: str | None, element_schema: str | None, vector: bool
) -> QueryColumn:
    builtin = schema == "pg_catalog"
    if builtin and kind in _NUMBERS:
        number = _NUMBERS[kind]
        return QueryColumn(name, number.arrow, "number", number, cast=number.cast)
    if element_schema == "pg_catalog" and element in _ELEMENTS:
        sent, arrow, dtype = _ELEMENTS[element]
        return QueryColumn(name, pa.list_(arrow), "array", element=np.dtype(dtype), cast=f"{sent}[]")
    if vector and kind == "vector":
        arrow = pa.list_(pa.float32(), modifier) if modifier > 0 else pa.list_(pa.float32())
        return QueryColumn(name, arrow, "array", element=np.dtype(">f4"), cast="float4[]", vector=schema)
    if builtin and kind == "bytea":
        return QueryColumn(name, pa.binary(), "bytes", cast="bytea")
    return QueryColumn(name, pa.string(), "text", cast="text")


def column_definitions(schema: pa.Schema) -> str:
    """Write the columns of a table that Arrow's rows can go into."""
    return ", ".join(f"{quote_identifier(field.name)} {_stored(field.type)}" for field in schema)


def _stored(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"{_stored(kind.value_type)}[]"
    return _STORED.get(kind, "text")
