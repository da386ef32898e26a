"""A table copied with its features packed into one column, which crosses the wire several times as fast as arrays do.

Rows travel once here and back by binary COPY: all other columns pass through byte for byte, whatever their types. pgvector's
columns are made by the server itself. The new table appears whole, in one transaction, or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.blocks.postgres import wire
from penstock.blocks.postgres.connect import PINNED, Address, Connection, driver
from penstock.blocks.postgres.relation import VECTORS
from penstock.errors import DatabaseError, FeatureError
from penstock.events import Advanced, Finished, Started, Stream

_HEAD = 19
"""Bytes before the first row: a mark, flags, and the length of nothing more."""
_STEP = 4096


def pack(
    address: Address,
    table: Any,
    into: Any,
    *,
    features: Sequence[str],
    kept: Sequence[str],
    number: bool = False,
    to: str = "bytea",
    replace: bool = False,
    stream: Stream,
) -> int:
    """Copy a table with its features as one column ``features``, and return how many rows it has.

    Parameters
    ----------
    address : Address
        The database.
    table, into : psycopg.sql.Composable
        What is copied, and the name of the copy.
    features, kept : sequence of str
        The columns that are packed, one array or many numbers, and those that stay as they are.
    number : bool
        Whether a single feature is a number rather than an array.
    to : str
        ``bytea`` for little-endian float32, or pgvector's ``vector``.
    replace : bool
        Whether a table of that name may be replaced.
    stream : Stream
        Hears how far the copy is.
    """
    sql, psycopg = driver().sql, driver()
    others = [sql.Identifier(name) for name in kept]
    listed = sql.SQL(", ").join(others) + sql.SQL(", ") if others else sql.SQL("")
    names = [sql.Identifier(name) for name in features]
    array = names[0] + sql.SQL("::real[]") if len(names) == 1 and not number else _array(sql, names)
    try:
        with _connect(address) as reader, _connect(address) as writer, writer.transaction():
            if replace:
                writer.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(into))
            if to == "vector":
                query = sql.SQL("CREATE TABLE {} AS SELECT {}{}::{} AS features FROM {}")
                return writer.execute(query.format(into, listed, array, _vector(writer), table)).rowcount
            query = sql.SQL("CREATE TABLE {} AS SELECT {}NULL::bytea AS features FROM {} WHERE false")
            writer.execute(query.format(into, listed, table))
            out = sql.SQL("COPY (SELECT {}{} FROM {}) TO STDOUT (FORMAT binary)").format(listed, array, table)
            back = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(into)
            with reader.cursor() as source, writer.cursor() as target:
                return _copy(source.copy(out), target.copy(back), stream, place=table.as_string(reader))
    except psycopg.Error as error:
        told = address.hide(" ".join(str(error.diag.message_primary or error).split()))
        raise DatabaseError(f"{address}: nothing was packed: {told}") from None


def _connect(address: Address) -> Connection:
    """Open a connection that looks names up in pg_catalog alone; tables are named with their schemas here."""
    connection = address.connect()
    connection.execute(f"SET search_path = {PINNED}".encode())
    return connection


def _vector(connection: Connection) -> Any:
    """Return the name of pgvector's type, with its schema."""
    found = connection.execute(VECTORS).fetchone()
    return driver().sql.Identifier(*([found[0]] if found else []), "vector")


def _array(sql: Any, names: Sequence[Any]) -> Any:
    """Return numbers as one array; one that is null makes the whole of it null, and is refused with its row."""
    whole = sql.SQL("ARRAY[{}]::real[]").format(sql.SQL(", ").join(names))
    missing = sql.SQL(" OR ").join(name + sql.SQL(" IS NULL") for name in names)
    return sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(missing, whole)


def _copy(reading: Any, writing: Any, stream: Stream, *, place: str) -> int:
    rows = 0
    stream.emit(Started("pack", None, "rows"))
    with reading as source, writing as target:
        pieces = (bytes(piece) for piece in source)
        head = next(pieces)
        target.write(head[:_HEAD])
        width: int | None = None
        for some in _groups(head[_HEAD:], pieces):
            width = width or _width(some[0], place)
            target.write(_packed(some, width, rows, place))
            rows += len(some)
            stream.emit(Advanced("pack", len(some)))
        target.write(b"\xff\xff")
    stream.emit(Finished("pack"))
    return rows


def _groups(first: bytes, pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the rows of a COPY some thousands at a time, without the mark at its end."""

    def rows() -> Iterator[bytes]:
        if first:
            yield first
        yield from pieces

    left = (row for row in rows() if row != b"\xff\xff")
    while some := list(islice(left, _STEP)):
        yield some


def _width(row: bytes, place: str) -> int:
    """Return how many features the first row has: its last field is their array."""
    at, length = 2, -1
    for _ in range(struct.unpack_from(">h", row)[0]):
        (length,) = struct.unpack_from(">i", row, at)
        at += 4 + max(length, 0)
    if length < 28:
        raise FeatureError(
            f"{place}: the first row has no features (a null or an empty array); fill or remove such rows"
        )
    return (length - 20) // 8


def _packed(rows: Sequence[bytes], width: int, before: int, place: str) -> bytes:
    """Return rows with the array at their end as packed float32."""
    size = 20 + 8 * width
    length = struct.pack(">i", size)
    for number, row in enumerate(rows):
        if row[-size - 4 : -size] != length:
            raise FeatureError(
                f"{place}: row {before + number} has a null in its features, or not {width} of them; fill or remove such rows"
            )
    try:
        found = wire.decode_arrays(b"".join(row[-size:] for row in rows), len(rows), width, element=np.dtype(">f4"))
    except wire.WireError as error:
        raise FeatureError(
            f"{place}: row {before + (error.row or 0)}: {error}; features are lists of {width} numbers"
        ) from None
    data = found.values.to_numpy().astype("<f4", copy=False).tobytes()
    new = struct.pack(">i", 4 * width)
    return b"".join(
        b"".join((row[: -size - 4], new, data[4 * width * at : 4 * width * (at + 1)])) for at, row in enumerate(rows)
    )
