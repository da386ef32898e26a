"""Streams a query's rows as Arrow batches, fetched through a cursor of the session.

So they are the rows that this session sees, temporary tables and an open transaction among them, all of one moment.
Numbers come packed, several columns in one value; a call for every value of every row would take ten times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import DataError
from penstock.sql.engines.postgres.column_types import QueryColumn

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
    numbers = values.astype(values.dtype.newbyteorder("="))
    kind = column.type
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
