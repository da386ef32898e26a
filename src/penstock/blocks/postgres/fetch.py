"""A block's rows by one query: aggregates of the binary forms of its values, which are decoded here all at once.

One row comes back whatever the size of the block, so neither side spends time on each value of each row. Numbers travel
side by side in strips; arrays of equal length as one array of two dimensions, or as pgvector's vectors where the database
has these, which takes a third of the time; arrays of any length one by one. Names are quoted, row identifiers are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from psycopg import sql

from penstock.blocks.postgres import wire
from penstock.blocks.postgres.connect import Connection
from penstock.blocks.postgres.relation import Leaf, Relation, StoredColumn

Way = Literal["vectors", "together", "apart"]
WAYS: tuple[Way, ...] = ("vectors", "together", "apart")
"""How arrays of equal length are sent, fastest first. The first refuse what the later ones do not: NaN, lower bounds."""

DTYPES = {
    "bool": np.dtype("?"),
    "int2": np.dtype(">i2"),
    "int4": np.dtype(">i4"),
    "int8": np.dtype(">i8"),
    "float4": np.dtype(">f4"),
    "float8": np.dtype(">f8"),
    "date": np.dtype(">i4"),
    "time": np.dtype(">i8"),
    "timestamp": np.dtype(">i8"),
    "timestamptz": np.dtype(">i8"),
    "interval": wire.SENT_INTERVAL,
}
_MOMENTS = {
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.month_day_nano_interval(),
}
_FILLERS = {"bool": "false", "time": "'00:00'::time", "interval": "'0'::interval"} | {
    name: f"'2000-01-01'::{name}" for name in ("date", "timestamp", "timestamptz")
}
"""What stands in a row for a null, if not 0, beside the flag that tells of it."""
_STRIP = 8
"""Numbers sent side by side: more would be copied too often while they are put together."""
_MOST = 16_000
"""The longest vector."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as it is served: its Arrow type, how many values each row has where they are all alike, whether it holds nulls."""

    column: StoredColumn
    type: pa.DataType
    width: int | None = None
    nullable: bool = False

    @classmethod
    def of(cls, column: StoredColumn, lengths: tuple[int, int] | None = None, *, alike: bool = True) -> ColumnForm:
        """Settle the form from the shortest and the longest value; ``alike`` is false for the parts of sparse rows."""
        kind = column.kind
        if column.base in _MOMENTS and kind == "number":
            return cls(column, _MOMENTS[column.base])
        if kind == "number":
            return cls(column, pa.from_numpy_dtype(DTYPES[column.base].newbyteorder("=")))
        if kind == "text":
            return cls(column, pa.string())
        least, most = lengths or (0, 0)
        if kind == "bytes":
            if least == most and most and most % 4 == 0:
                return cls(column, pa.list_(pa.float32(), most // 4), most // 4)
            return cls(column, pa.binary())
        if (least == most and most and alike) or kind == "vector":
            return cls(column, pa.list_(pa.float32(), most), most)
        element = DTYPES[column.base]
        item = pa.float32() if element.kind == "f" else pa.from_numpy_dtype(element.newbyteorder("="))
        return cls(column, pa.list_(item))


@dataclass(frozen=True, slots=True)
class PageRange:
    """Rows of a leaf: those on pages from ``start`` up to ``stop``, or to the end where that is None."""

    leaf: int
    start: int
    stop: int | None

    @property
    def condition(self) -> sql.Composable:
        """What holds for its rows; their bounds are parameters."""
        return sql.SQL("ctid >= $1::tid" if self.stop is None else "ctid >= $1::tid AND ctid < $2::tid")

    @property
    def bounds(self) -> list[str]:
        """The parameters: row identifiers."""
        return [f"({page},0)" for page in (self.start, self.stop) if page is not None]


class Fetch:
    """How some columns of a block are asked for, and what comes is decoded.

    Parameters
    ----------
    forms : sequence of ColumnForm
        The columns.
    relation : Relation
        Whose they are.
    way : str
        How arrays of equal length are sent, where there is a choice.
    where : psycopg.sql.Composable
        What else must hold for a row, such as no nulls.
    """

    def __init__(self, forms: Sequence[ColumnForm], relation: Relation, way: Way, where: sql.Composable) -> None:
        self.forms = tuple(forms)
        self.way = way
        self.schema = pa.schema([(form.column.name, form.type) for form in forms])
        self.where = where
        self._relation = relation
        self._asked: list[sql.Composable] = []
        self._pieces: list[tuple[tuple[str, ...], int, Callable[..., Any]]] = []
        numbers = [form for form in forms if form.column.kind == "number"]
        for at in range(0, len(numbers), _STRIP):
            self._strip(numbers[at : at + _STRIP])
        for form in forms:
            if form.column.kind != "number":
                self._one(form)

    def query(self, leaf: Leaf, condition: sql.Composable) -> sql.Composed:
        """Return the query for those of a leaf's rows for which something holds."""
        asked = [
            sql.SQL("count(*)"),
            sql.SQL("pg_catalog.pg_relation_filenode({}::oid)::int8").format(sql.Literal(leaf.oid)),
            *self._asked,
        ]
        return sql.SQL("SELECT {} FROM ONLY {} WHERE {}{}").format(
            sql.SQL(", ").join(asked), leaf.identifier, condition, self.where
        )

    def ask(self, connection: Connection, rows: PageRange) -> Sequence[Any]:
        """Return what the server sends: how many rows, the file that they are in, and the values."""
        leaf = self._relation.leaves[rows.leaf]
        with connection.cursor(binary=True) as cursor:
            row = cursor.execute(self.query(leaf, rows.condition), rows.bounds).fetchone()
        return row or (0, None)

    def ask_between(self, connection: Connection, leaf: int, start: str, stop: str) -> None:
        """Ask for the rows from one identifier to another, to see whether the server can send them."""
        query = self.query(self._relation.leaves[leaf], sql.SQL("ctid >= $1::tid AND ctid <= $2::tid"))
        connection.execute(query, (start, stop)).fetchone()

    def decode(self, sent: Sequence[Any]) -> pa.RecordBatch:
        """Return the rows, or raise `wire.WireError`."""
        rows, at = int(sent[0]), 2
        found: dict[str, pa.Array] = {}
        for names, count, make in self._pieces:
            made = make(*sent[at : at + count], rows)
            found.update(zip(names, made if isinstance(made, list) else [made], strict=True))
            at += count
        return pa.RecordBatch.from_arrays([found[name] for name in self.schema.names], schema=self.schema)

    def _strip(self, forms: Sequence[ColumnForm]) -> None:
        types = [DTYPES[form.column.base] for form in forms]
        sent = [sql.SQL("{}({})").format(sql.SQL(_send(f.column.base)), _filled(f)) for f in forms]
        asked = [_joined(sql.SQL(" || ").join(sent))]
        kinds, nullable = [form.type for form in forms], [form.nullable for form in forms]
        make: Callable[..., Any] = partial(wire.decode_numbers, types=types, kinds=kinds)
        if any(nullable):
            flags = [sql.SQL("boolsend({} IS NULL)").format(sql.Identifier(f.column.name)) for f in forms if f.nullable]
            asked.append(_joined(sql.SQL(" || ").join(flags)))
            make = partial(wire.decode_nullable, types=types, kinds=kinds, nullable=nullable)
        self._add([form.column.name for form in forms], asked, make)

    def _one(self, form: ColumnForm) -> None:
        column, width, fixed = form.column, form.width, form.width or 0
        element = DTYPES.get(column.base, DTYPES["float4"])
        taken = value(column)
        make: Callable[..., Any]
        if column.kind == "text":
            sent = sql.SQL("textsend({})").format(taken)
            count = "coalesce(octet_length({}), -1)" if form.nullable else "octet_length({})"
            asked, make = [_joined(sent), _lengths(sql.SQL(count).format(sent))], wire.decode_texts
        elif column.kind == "bytes" and width is None:
            asked, make = [_joined(taken), _lengths(sql.SQL("octet_length({})").format(taken))], wire.decode_blobs
        elif column.kind == "bytes":
            asked, make = [_joined(taken)], partial(wire.decode_packed, width=fixed)
        elif column.kind == "vector":
            sent = sql.SQL("{}({})").format(sql.Identifier(*column.send), taken)
            asked, make = [_joined(sent)], partial(wire.decode_vectors, width=fixed)
        elif width is None:
            sent = sql.SQL("array_send({})").format(taken)
            asked = [_joined(sent), _lengths(sql.SQL("cardinality({})").format(taken))]
            make = partial(wire.decode_lists, element=element)
        elif self.way == "vectors" and self._as_vector(form):
            schema = self._relation.vectors or ""
            kind, send = sql.Identifier(schema, "vector"), sql.Identifier(schema, "vector_send")
            asked = [_joined(sql.SQL("{}({}::{})").format(send, taken, kind))]
            make = partial(wire.decode_vectors, width=fixed)
        elif self.way == "apart":
            asked = [_joined(sql.SQL("array_send({})").format(taken))]
            make = partial(wire.decode_arrays, width=fixed, element=element)
        else:
            asked = [sql.SQL("array_send(array_agg({}))").format(taken)]
            make = partial(wire.decode_matrix, width=fixed, element=element)
        self._add([column.name], asked, make)

    def _as_vector(self, form: ColumnForm) -> bool:
        """Whether the server can make a vector of an array, with the values that we would make of it."""
        column = form.column
        return (
            self._relation.vectors is not None
            and (form.width or 0) <= _MOST
            and not column.cast
            and column.base in ("int4", "float4", "float8")
        )

    def _add(self, names: Sequence[str], asked: Sequence[sql.Composable], make: Callable[..., Any]) -> None:
        self._asked += asked
        self._pieces.append((tuple(names), len(asked), make))


def value(column: StoredColumn) -> sql.Composable:
    """Return a column's value as it is sent, cast where that is needed."""
    name = sql.Identifier(column.name)
    return sql.SQL("{}::{}").format(name, sql.SQL(column.cast)) if column.cast else name


def _filled(form: ColumnForm) -> sql.Composable:
    """Return a number as it is sent, with something in the place of a null."""
    taken = value(form.column)
    if not form.nullable:
        return taken
    base = form.column.base
    return sql.SQL("coalesce({}, {})").format(taken, sql.SQL(_FILLERS.get(base, f"0::{base}")))


def _send(base: str) -> str:
    return f"{base}_send" if base in _MOMENTS else f"{base}send"


def _joined(sent: sql.Composable) -> sql.Composable:
    return sql.SQL("string_agg({}, ''::bytea)").format(sent)


def _lengths(count: sql.Composable) -> sql.Composable:
    return sql.SQL("string_agg(int4send({}), ''::bytea)").format(count)
