"""Rows that stand for those of a query, made up by the engine: for EXPLAIN, which runs nothing of the query itself.

They have the query's columns and types, so that fetching, copying and encoding them costs what it will cost. What they hold
tells nothing of the query's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.columns.base import is_list, is_number, is_text
from penstock.sql.engines.base import Engine, estimated_bytes
from penstock.sql.statements import Query

FEW = 40
"""Rows that are copied to see what copying any takes."""
_MOST, _BYTES = 20_000, 1_000_000
_LEVELS = 20
_LENGTH = 32
"""Values of a list whose length the engine does not say."""
_TYPES = {
    pa.int8(): "int2",
    pa.int16(): "int2",
    pa.int32(): "int4",
    pa.int64(): "int8",
    pa.float32(): "float4",
    pa.float64(): "float8",
}


def enough_rows(schema: pa.Schema, columns: Sequence[str]) -> int:
    """Return how many rows to copy to see what each adds: about a megabyte."""
    row_bytes = sum(estimated_bytes(schema.field(name).type) for name in columns)
    return max(10 * FEW, min(_MOST, _BYTES // max(row_bytes, 1)))


def stand_in_query(schema: pa.Schema, columns: Sequence[str], label: str, engine: Engine, *, rows: int) -> Query:
    """Return a query for so many rows of some columns of a schema, in SQL that all engines share.

    Examples
    --------
    >>> from penstock.sql.engines.duckdb.engine import DuckDBEngine
    >>> schema = pa.schema({"age": pa.int32(), "city": pa.string(), "y": pa.bool_()})
    >>> with DuckDBEngine() as engine:
    ...     query = stand_in_query(schema, ["city", "y"], "y", engine, rows=400)
    ...     found = engine.run(query.text).rows
    >>> len(found), len(set(found))
    (400, 40)
    """
    own = engine.dialect.own
    listed = [f"{own(_value(schema.field(name).type, name == label))} AS {engine.quote(name)}" for name in columns]
    ends = {"k": (0, 1), "j": (1, _LEVELS), "i": (1, max(1, rows // (2 * _LEVELS)))}
    # SQLite, too, knows these series, but no function that makes them.
    series = ", ".join(
        f"{n}({n}) AS (SELECT {low} UNION ALL SELECT {own(f'{n} + 1')} FROM {n} WHERE {own(f'{n} < {high}')})"
        for n, (low, high) in ends.items()
    )
    return Query(f"WITH RECURSIVE {series} SELECT {', '.join(listed)} FROM k, j, i")


def _value(kind: pa.DataType, label: bool) -> str:
    """Write a value of a type: a label has one of two. Of types that are no features there are nulls."""
    number = "k" if label else "j"
    if is_number(kind):
        return f"CAST({number} AS {_TYPES.get(kind, 'float8')})"
    if is_text(kind):
        return f"CAST({number} AS text)"
    if pa.types.is_boolean(kind):
        return "k::int4::bool"
    if pa.types.is_date(kind):
        return "make_date(2024, 1, j::int4)"
    if pa.types.is_timestamp(kind):
        return "make_timestamp(2024, 1, j::int4, 0, 0, 0)"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"'{_LENGTH * '?abc'}'::bytea"
    fixed = pa.types.is_fixed_size_list(kind)
    if (fixed or is_list(kind)) and is_number(kind.value_type):
        values = map(str, range(_LEVELS + 1, _LEVELS + (kind.list_size if fixed else _LENGTH)))
        return f"ARRAY[{', '.join(['j', *values])}]::{_TYPES.get(kind.value_type, 'float8')}[]"
    return "NULL"
