"""Streams a query's rows as Arrow batches, fetched through a cursor of the session.

So they are the rows that this session sees, temporary tables and an open transaction among them, all of one moment.
Numbers travel in their binary forms, several columns packed in one value: a call for every value of every row would take
ten times as long. Arrays travel in their own form, and as text all that has no place among Arrow's plain types.
Numerics are doubles, pgvector's vectors arrays of float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.postgres.qualify import qualified
from penstock.blocks.postgres.wire import SENT_INTERVAL, WireError, intervals
from penstock.errors import DataError
from penstock.sql.dialect import quote_identifier
from penstock.sql.prediction_query import VECTOR

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
    "time": NumberType(pa.time64("us"), np.dtype(">i8"), "time_send", "'00:00'::pg_catalog.time"),
    "timestamp": NumberType(
        pa.timestamp("us"), np.dtype(">i8"), "timestamp_send", "'2000-01-01'::pg_catalog.timestamp"
    ),
    "timestamptz": NumberType(
        pa.timestamp("us", "UTC"), np.dtype(">i8"), "timestamptz_send", "'2000-01-01'::pg_catalog.timestamptz"
    ),
    "interval": NumberType(pa.month_day_nano_interval(), SENT_INTERVAL, "interval_send", "'0'::pg_catalog.interval"),
}
_ELEMENTS = ("bool", "int2", "int4", "int8", "float4", "float8", "numeric")
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
    pa.uint64(): "numeric",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.month_day_nano_interval(): "interval",
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
        return QueryColumn(name, number.arrow, "number", number)
    if element_schema == "pg_catalog" and element in _ELEMENTS:
        number = _NUMBERS[element]
        return QueryColumn(
            name, pa.list_(number.arrow), "array", element=number.sent, cast=f"{number.cast or element}[]"
        )
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
    if types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return "interval" if types.is_duration(kind) else _STORED.get(kind, "text")


def copied_values(array: pa.Array) -> list[Any]:
    """Return values as psycopg writes them in a COPY."""
    values: list[Any] = array.to_pylist()
    if array.type != pa.month_day_nano_interval():
        return values
    parts = ((each.months, each.days, each.nanoseconds // 1000) if each is not None else None for each in values)
    return [None if each is None else "{} months {} days {} microseconds".format(*each) for each in parts]


_STRIP = 8
"""Numbers sent side by side: more would be copied too often while the server puts them together."""
_FIRST, _MOST = 64, 100_000
_PIECE = 4 << 20
"""Bytes fetched at once, about."""
_NAME = "penstock_rows"
_EPOCH_DAYS, _EPOCH = 10_957, 946_684_800_000_000
"""From 1970, where Arrow's dates begin, to 2000, where the server's do."""
_IDLE, _INSIDE = 0, 2
"""Of a connection: without a transaction, or in one that has not failed."""
_HEAD = struct.Struct(">iiI")
_JOINED = " OPERATOR(pg_catalog.||) "


@contextmanager
def stream_query(
    connection: Any, query: str, columns: Sequence[QueryColumn], kept: Sequence[int]
) -> Iterator[pa.RecordBatchReader]:
    """Give a query's rows, those of its columns that are ``kept``; good inside the ``with``.

    A transaction is opened for it if there is none, and ended with it.
    """
    chosen = [columns[place] for place in kept]
    schema = pa.schema([column.field for column in chosen])
    text, places = _asked(query, columns, kept)
    alone = connection.info.transaction_status == _IDLE
    cursor = connection.cursor(binary=True)
    if alone:
        cursor.execute(b"BEGIN")
    try:
        # The whole result is wanted, not its first rows soon.
        before = cursor.execute(b"SELECT pg_catalog.current_setting('cursor_tuple_fraction')").fetchone()[0]
        cursor.execute(b"SET LOCAL cursor_tuple_fraction = 1")
        cursor.execute(f"DECLARE {_NAME} NO SCROLL CURSOR FOR {text}".encode())
        cursor.execute(f"SET LOCAL cursor_tuple_fraction = {float(before)!r}".encode())
        yield pa.RecordBatchReader.from_batches(schema, _batches(connection, chosen, schema, places))
        connection.execute(f"CLOSE {_NAME}".encode())
        if alone:
            connection.execute(b"COMMIT")
    except BaseException:
        if alone and not connection.closed:
            connection.execute(b"ROLLBACK")
        elif connection.info.transaction_status == _INSIDE:  # the fault was found here: the transaction goes on
            connection.execute(f"CLOSE {_NAME}".encode())
        raise


def _asked(query: str, columns: Sequence[QueryColumn], kept: Sequence[int]) -> tuple[str, list[list[int]]]:
    """Return the query for the values, and which columns each strip of numbers holds.

    First come the strips, then which of the numbers are null where one is, then every other column. The user's query is run by
    the session's search path; all that is put around it is qualified.
    """
    numbers = [place for place, at in enumerate(kept) if columns[at].kind == "number"]
    strips = [numbers[at : at + _STRIP] for at in range(0, len(numbers), _STRIP)]
    wanted = [_JOINED.join(_sent(columns[kept[place]], kept[place]) for place in strip) for strip in strips]
    if numbers:
        none = " AND ".join(f"c{kept[place]} IS NOT NULL" for place in numbers)
        flags = _JOINED.join(f"pg_catalog.boolsend(c{kept[place]} IS NULL)" for place in numbers)
        wanted.append(f"CASE WHEN {none} THEN ''::pg_catalog.bytea ELSE {flags} END")
    wanted += [f"c{at}::pg_catalog.{columns[at].cast}" for at in kept if columns[at].kind != "number"]
    names = ", ".join(f"c{place}" for place in range(len(columns)))
    return f"SELECT {', '.join(wanted)} FROM (\n{query}\n) AS q({names})", strips


def _sent(column: QueryColumn, place: int) -> str:
    number = column.number
    assert number is not None  # of a column that is a number
    value = f"c{place}::pg_catalog.{number.cast}" if number.cast else f"c{place}"
    return f"pg_catalog.{number.send}(coalesce({value}, {number.filler}))"


def _batches(
    connection: Any, columns: Sequence[QueryColumn], schema: pa.Schema, strips: list[list[int]]
) -> Iterator[pa.RecordBatch]:
    size = _FIRST
    with connection.cursor(binary=True) as cursor:
        while True:
            cursor.execute(f"FETCH FORWARD {size} FROM {_NAME}".encode())
            result, rows = cursor.pgresult, cursor.pgresult.ntuples
            if not rows:
                return
            values = [[result.get_value(row, place) for row in range(rows)] for place in range(result.nfields)]
            nbytes = sum(len(value) for column in values for value in column if value is not None)
            size = int(min(max(rows * _PIECE / max(nbytes, 1), 1), _MOST))
            yield pa.RecordBatch.from_arrays(_decoded(values, columns, strips, rows), schema=schema)


def _decoded(
    values: list[list[bytes | None]], columns: Sequence[QueryColumn], strips: list[list[int]], rows: int
) -> list[pa.Array]:
    found: dict[int, pa.Array] = {}
    missing = _missing(values[len(strips)], sum(map(len, strips))) if strips else None
    at = 0
    for strip, sent in zip(strips, values):
        kinds = [(f"f{place}", columns[place].number.sent) for place in strip]  # type: ignore[union-attr]  # numbers all
        table = np.frombuffer(b"".join(sent), np.dtype(kinds))  # type: ignore[arg-type]  # nulls were filled
        for place in strip:
            nulls = None if missing is None else missing[:, at]
            found[place] = _number(columns[place], table[f"f{place}"], nulls)
            at += 1
    others = [place for place, column in enumerate(columns) if column.kind != "number"]
    for place, sent in zip(others, values[len(strips) + bool(strips) :], strict=True):
        found[place] = _other(columns[place], sent)
    return [found[place] for place in range(len(columns))]


def _missing(flags: list[bytes | None], numbers: int) -> NDArray[np.bool_] | None:
    """Return which numbers are null; None where none is."""
    if not any(flags):
        return None
    nothing = bytes(numbers)
    return np.frombuffer(b"".join(each or nothing for each in flags), np.bool_).reshape(len(flags), numbers)


def _number(column: QueryColumn, values: NDArray[Any], nulls: NDArray[np.bool_] | None) -> pa.Array:
    kind = column.type
    if kind == pa.month_day_nano_interval():
        try:
            return intervals(values, nulls)
        except WireError as error:
            raise DataError(f"column {column.name!r}: {error}") from None
    numbers = values.astype(values.dtype.newbyteorder("="))
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        limits = np.iinfo(numbers.dtype)
        if ((numbers == limits.min) | (numbers == limits.max)).any():
            raise DataError(f"column {column.name!r} holds infinity, which is no date; leave such rows out")
        numbers += numbers.dtype.type(_EPOCH_DAYS if pa.types.is_date32(kind) else _EPOCH)
    array = pa.array(numbers, mask=nulls)
    return array if array.type == kind else array.view(kind)


def _other(column: QueryColumn, values: list[bytes | None]) -> pa.Array:
    if column.kind == "bytes":
        return pa.array(values, pa.binary())
    if column.kind == "text":
        return pa.array(values, pa.binary()).cast(pa.string())
    array = _lists(column, values)
    return array if array.type == column.type else array.cast(column.type)


def _lists(column: QueryColumn, values: list[bytes | None]) -> pa.Array:
    """Return arrays as lists: all at once where they are plain, one by one where some hold nulls."""
    element = column.element
    assert element is not None  # of a column of arrays
    lengths = np.array([12 if value is None else len(value) for value in values])
    data = b"".join(bytes(12) if value is None else value for value in values)
    step = 4 + element.itemsize
    counts = np.where(lengths > 12, (lengths - 20) // step, 0)
    starts = np.cumsum(lengths) - lengths
    raw = np.frombuffer(data, np.uint8)
    heads = (
        np.lib.stride_tricks.sliding_window_view(raw, 8)[starts].reshape(-1, 8).copy().view(">i4") if len(raw) else raw
    )
    plain = (heads[:, 0] <= 1) & (heads[:, 1] == 0) & (lengths == np.where(lengths > 12, 20 + step * counts, 12))
    nulls = np.array([value is None for value in values])
    if not plain.all():
        told = [None if value is None else _unpacked(value, element, column.name) for value in values]
        return pa.array(told, pa.list_(pa.from_numpy_dtype(element.newbyteorder("="))))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if len(counts) and (lengths == lengths[0]).all() and counts[0]:
        row = np.dtype([("head", "V20"), ("items", [("length", ">i4"), ("value", element)], (int(counts[0]),))])
        flat = np.frombuffer(data, row)["items"]["value"].reshape(-1)
    else:
        places = np.repeat(starts + 24 - step * offsets[:-1], counts) + step * np.arange(offsets[-1])
        windows = np.lib.stride_tricks.sliding_window_view(raw, element.itemsize) if len(places) else raw
        flat = windows[places].copy().view(element).reshape(-1) if len(places) else np.empty(0, element)
    items = pa.array(flat.astype(element.newbyteorder("=")))
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), items, mask=pa.array(nulls) if nulls.any() else None
    )


def _unpacked(value: bytes, element: np.dtype[Any], name: str) -> list[Any]:
    """Return one array's values, nulls among them."""
    dimensions = _HEAD.unpack_from(value)[0]
    if dimensions > 1:
        raise DataError(f"column {name!r} holds an array of {dimensions} dimensions; features are plain lists")
    found, at = [], 20
    while at < len(value):
        size = struct.unpack_from(">i", value, at)[0]
        at += 4
        found.append(None if size < 0 else np.frombuffer(value, element, 1, at)[0].item())
        at += max(size, 0)
    return found
