"""Rows that cannot be read: what is looked for beforehand, and how the one that spoils a block is found.

Nulls, and arrays of several dimensions, are counted for the whole table before anything is read. What only shows in the
bytes of a block (a row changed since, a number too large) is traced to its row by a second query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from psycopg import sql

from penstock.blocks.postgres.connect import Connection
from penstock.blocks.postgres.fetch import ColumnForm, Fetch, PageRange
from penstock.blocks.postgres.relation import Leaf, Relation, StoredColumn
from penstock.blocks.postgres.snapshots import RunQuery
from penstock.blocks.postgres.wire import WireError
from penstock.errors import DataError
from penstock.messages import Text, Use


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must not be: in which column, as SQL, and in words; ``null`` if rows with it may be left out."""

    column: str
    holds: sql.Composable
    words: str
    null: bool = True


@dataclass(frozen=True, slots=True)
class Flaws:
    """What was found in a column: in how many rows, and where first."""

    column: str
    words: str
    rows: int
    first: str

    def error(self, *, place: str) -> DataError:
        """Return the error for rows that cannot be read."""
        many = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        skip = Text("leave them out with ", Use("nulls", "skip"))
        return DataError(
            f"column {self.column!r} {self.words} in {many}, the first at ctid {self.first}",
            place=place,
            fixes=["make them plain lists"]
            if "dimension" in self.words
            else ["fill or delete such rows", skip, "leave out the column"],
        )


def checks(column: StoredColumn) -> list[Check]:
    """Return what is looked for in a column before it is read."""
    name = sql.Identifier(column.name)
    found = []
    if not column.required:
        found.append(Check(column.name, sql.SQL("{} IS NULL").format(name), "is NULL"))
    if column.kind == "array":
        inside = sql.SQL("CASE WHEN array_ndims({0}) = 1 THEN array_position({0}, NULL) IS NOT NULL END").format(name)
        found.append(Check(column.name, inside, "holds a NULL"))
        deep = sql.SQL("array_ndims({}) > 1").format(name)
        found.append(Check(column.name, deep, "has more than one dimension", null=False))
    return found


def serves_nulls(column: StoredColumn) -> bool:
    """Whether nulls of a column can be served: those of numbers, dates and text."""
    return column.kind in ("number", "text")


def and_check(check: Check) -> sql.Composable:
    """Return a check as a condition to stand behind another."""
    return sql.SQL(" AND {}").format(check.holds)


def without_nulls(columns: Sequence[StoredColumn]) -> sql.Composable:
    """Return the condition, to stand behind another, that a row has no nulls in these columns."""
    found = [check for column in columns for check in checks(column) if check.null]
    return sql.Composed([sql.SQL(" AND ({}) IS NOT TRUE").format(check.holds) for check in found])


def length(column: StoredColumn) -> sql.Composable:
    """Return the number of values of an array or vector, and of bytes in anything else."""
    name = sql.Identifier(column.name)
    if column.kind == "array":
        return sql.SQL("cardinality({})").format(name)
    if column.kind == "vector":
        return sql.SQL("(octet_length({}({})) - 4) / 4").format(sql.Identifier(*column.send), name)
    return sql.SQL("octet_length({})").format(name)


def first_match(
    connection: Connection, leaf: Leaf, rows: PageRange, holds: sql.Composable, *, after: int = 0
) -> str | None:
    """Return the identifier of the first row of a range for which something holds, after so many others."""
    query = sql.SQL("SELECT ctid::text AS place FROM ONLY {} WHERE {}{} ORDER BY ctid LIMIT 1 OFFSET {}").format(
        leaf.identifier, rows.condition, holds, sql.Literal(after)
    )
    row = connection.execute(query, rows.bounds).fetchone()
    return None if row is None else str(row[0])


def diagnose(
    run: RunQuery,
    relation: Relation,
    fetch: Fetch,
    rows: PageRange,
    error: WireError | psycopg.DataError,
    *,
    place: str,
) -> DataError:
    """Return the error that names the row which spoils a block."""
    leaf = relation.leaves[rows.leaf]
    for form in fetch.forms:
        flaws = [each for each in checks(replace(form.column, required=False)) if not (form.nullable and each.null)]
        for check in [*flaws, *_of_length(form)]:
            found = run(partial(first_match, leaf=leaf, rows=rows, holds=and_check(check) + fetch.where))
            if found is not None:
                return DataError(
                    f"{place}: column {check.column!r} {check.words} in the row at ctid {found}; mend or delete it and start"
                    " again"
                )
    if isinstance(error, WireError):
        where = (
            None if error.row is None else run(lambda c: first_match(c, leaf, rows, fetch.where, after=error.row or 0))
        )
        told = str(error)
    else:
        where = _trace(run, leaf, fetch, rows)
        told = " ".join(str(error.diag.message_primary or error).split())
    shown = "" if where is None else f" in the row at ctid {where}"
    return DataError(f"{place}: {told}{shown}; mend or delete it and start again")


def _of_length(form: ColumnForm) -> list[Check]:
    """Return the check that a value is as long as the others were, where all must be alike."""
    column, width = form.column, form.width
    if width is None or column.kind == "number":
        return []
    size = 4 * width if column.kind == "bytes" else width
    holds = sql.SQL("{} <> {}").format(length(column), sql.Literal(size))
    unit = "bytes" if column.kind == "bytes" else "values"
    return [Check(column.name, holds, f"has other than {size} {unit}", null=False)]


def _trace(run: RunQuery, leaf: Leaf, fetch: Fetch, rows: PageRange) -> str | None:
    """Return the first row that the server cannot send, by halving."""
    query = sql.SQL("SELECT ctid::text AS place FROM ONLY {} WHERE {}{} ORDER BY ctid").format(
        leaf.identifier, rows.condition, fetch.where
    )
    places: list[str] = [row[0] for row in run(lambda c: c.execute(query, rows.bounds).fetchall())]

    def fails(some: Sequence[str]) -> bool:
        try:
            run(lambda c: fetch.ask_between(c, rows.leaf, some[0], some[-1]))
        except psycopg.DataError:
            return True
        return False

    if not places or not fails(places):
        return None
    while len(places) > 1:
        half = places[: len(places) // 2]
        places = half if fails(half) else places[len(half) :]
    return places[0]
