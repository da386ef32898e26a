"""Where a stored DuckDB table is cut: into row groups, and these into blocks of whole vectors, with exact counts.

Row groups need not be full, and those after a partial one begin at any rowid. Deleted rows leave gaps, which a grouped
count per vector finds; without gaps nothing is counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import Int64s, Nulls, require_columns
from penstock.blocks.duckdb_table import (
    DuckDBColumn,
    TableName,
    fetch_rows,
    fix_lengths,
    null_conditions,
    quote_name,
    refuse_nulls,
    served_columns,
    stored_columns,
)
from penstock.blocks.sampled_source import TableSize
from penstock.errors import UsageError, some_of

VECTOR = 2048
"""Rows that DuckDB reads and skips at a time; row groups begin with a whole one."""
ROW_GROUP = 122_880
BLOCK_SIZE = 2_000_000
"""A statement costs about a millisecond whatever it reads, which smaller blocks would mostly be."""
BLOCKS_WANTED = 128
_PIECES = 128
"""Ranges that one statement counts."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """All that reading a table needs: its columns, the condition that rows meet, and its blocks.

    Block ``b`` is the ``rows[b]`` rows with rowids from ``starts[b]`` to below ``ends[b]``. ``state`` is what `state_of`
    gave.
    """

    columns: tuple[DuckDBColumn, ...]
    where: str
    starts: Int64s
    ends: Int64s
    rows: Int64s
    row_bytes: float
    state: tuple[int, int | None, int]
    whole: TableSize
    survey_seconds: float = 0.0


def survey_table(
    cursor: Any,
    table: TableName,
    columns: Sequence[str] | None,
    block_size: int | None,
    *,
    place: str,
    nulls: Nulls,
    sample: int | None = None,
) -> TableLayout:
    """Find out how a table is read; lists of unequal length in columns asked for by name are refused, and so are null ones.

    With ``sample`` so many blocks are looked at, which the layout has alone; its ``whole`` and ``survey_seconds`` are estimates.
    """
    stored = dict(stored_columns(cursor, table.sql))
    if any(name.lower() == "rowid" for name in stored):
        raise UsageError(
            f"{place} has a column named 'rowid', which hides the rows' own numbers; rename it: ALTER TABLE {table.sql}"
            " RENAME COLUMN rowid TO …"
        )
    wanted = list(stored if columns is None else dict.fromkeys(columns))
    require_columns(pa.schema([(name, pa.null()) for name in stored]), wanted, place=place)
    if not wanted:
        raise UsageError("names no column", option="columns", value=wanted, fixes=[f"{place} has: {some_of(stored)}"])
    found = served_columns(cursor, [(name, stored[name]) for name in wanted])
    if sample is not None:
        return _sampled(cursor, table, found, block_size, sample, place=place, nulls=nulls, named=columns is not None)
    last = fetch_rows(cursor, f"SELECT max(rowid) FROM {table.sql}")[0][0]
    slots = 0 if last is None else last + 1
    groups, listed = [slots], {c.name for c in found if c.kind not in ("plain", "blob")}
    if slots > ROW_GROUP:
        kept, with_nulls = row_groups(cursor, table)
        listed &= with_nulls
        # Any ranges would do; those that are not as stored only cost more.
        groups = kept if sum(kept) >= slots else [min(ROW_GROUP, slots - at) for at in range(0, slots, ROW_GROUP)]
    began = time.perf_counter()
    found, where = _checked(cursor, table.sql, found, listed, place=place, nulls=nulls, named=columns is not None)
    seconds = time.perf_counter() - began
    state = state_of(cursor, table, where)
    row_bytes = _row_bytes(cursor, table, found, where)
    starts, ends = cut_row_groups(groups, _step(block_size, row_bytes, state[0]))
    rows = ends - starts
    if state[0] != sum(groups) or where != "true":
        rows = count_blocks(cursor, table.sql, starts, ends, where=where)
        starts, ends, rows = (each[rows > 0] for each in (starts, ends, rows))
    whole = _size(int(rows.sum()), len(rows), row_bytes)
    return TableLayout(tuple(found), where, starts, ends, rows, row_bytes, state, whole, seconds)


def _checked(
    cursor: Any,
    rows: str,
    columns: Sequence[DuckDBColumn],
    holding: set[str],
    *,
    place: str,
    nulls: Nulls,
    named: bool,
    sure: bool = False,
) -> tuple[list[DuckDBColumn], str]:
    """Return columns with lists of one length fixed in size, and the condition that rows without refused nulls meet.

    ``holding`` are the columns whose lists may hold nulls; where that is ``sure``, all columns in which nulls may be.
    """
    where = "true"
    checked = [column for column in columns if nulls != "fill" or column.kind != "plain"]
    checked = [column for column in checked if column.name in holding] if sure else checked
    listed = {column.name for column in columns if column.name in holding and column.kind not in ("plain", "blob")}
    if checked and (named or nulls == "skip"):
        conditions = null_conditions(cursor, rows, checked, listed)
        if nulls != "skip":
            refuse_nulls(cursor, rows, conditions, place=place)
        where = " AND ".join(f"NOT ({each})" for each in conditions.values()) or "true"
    return fix_lengths(cursor, rows, columns, where, place=place, strict=named), where


def _sampled(
    cursor: Any,
    table: TableName,
    columns: Sequence[DuckDBColumn],
    block_size: int | None,
    most: int,
    *,
    place: str,
    nulls: Nulls,
    named: bool,
) -> TableLayout:
    """Return the layout of a few blocks, evenly spread, the first and the last among them."""
    count, last = fetch_rows(cursor, f"SELECT count(*), max(rowid) FROM {table.sql}")[0]
    slots = 0 if last is None else last + 1
    row_bytes = _row_bytes(cursor, table, columns, "true")
    step = _step(block_size, row_bytes, count)
    blocks = -(-slots // step)
    starts = np.unique(np.linspace(0, max(blocks - 1, 0), min(most, blocks)).astype(np.int64)) * step
    ends = np.minimum(starts + min(step, max(VECTOR, int(BLOCK_SIZE / row_bytes))), slots)
    ranges = " OR ".join(f"(rowid >= {start} AND rowid < {end})" for start, end in zip(starts.tolist(), ends.tolist()))
    rows = f"(SELECT rowid, * FROM {table.sql} WHERE {ranges or 'false'})"
    holding = _with_nulls(cursor, table, columns)
    began = time.perf_counter()
    found, where = _checked(cursor, rows, columns, holding, place=place, nulls=nulls, named=named, sure=True)
    seconds = time.perf_counter() - began
    counts = [
        f"(SELECT count(*) FROM {table.sql} WHERE rowid >= {start} AND rowid < {end} AND {where})"
        for start, end in zip(starts.tolist(), ends.tolist())
    ]
    seen = np.array(fetch_rows(cursor, f"SELECT {', '.join(counts)}")[0] if counts else (), np.int64)
    looked = max(int((ends - starts).sum()), 1)
    if where != "true":  # of the rows some are left out
        count = round(slots * int(seen.sum()) / looked)
    starts, ends, seen = (each[seen > 0] for each in (starts, ends, seen))
    state = state_of(cursor, table, f"({ranges or 'false'}) AND {where}")
    whole = _size(max(count, int(seen.sum())), max(blocks, len(seen)), row_bytes)
    return TableLayout(tuple(found), where, starts, ends, seen, row_bytes, state, whole, seconds * slots / looked)


def _with_nulls(cursor: Any, table: TableName, columns: Sequence[DuckDBColumn]) -> set[str]:
    """Return the columns that may hold nulls, or lists with nulls, by the statistics that DuckDB keeps of the whole table."""
    # The statistics also have values, whose types Python may lack: of times with a zone, say.
    asked = [
        f"stats({quote_name(column.name)}).{part}has_null::BOOLEAN"
        for column in columns
        for part in ("", *(() if column.kind in ("plain", "blob") else ("child_stats.",)))
    ]
    names = [column.name for column in columns for _ in range(1 if column.kind in ("plain", "blob") else 2)]
    rows = fetch_rows(cursor, f"SELECT {', '.join(asked)} FROM {table.sql} LIMIT 1")
    return {name for name, holds in zip(names, rows[0] if rows else ()) if holds is not False}


def _size(rows: int, blocks: int, row_bytes: float) -> TableSize:
    return TableSize(rows, blocks, int(rows * row_bytes))


def cut_vectors(cursor: Any, table: TableName, layout: TableLayout, rows: int, most: int) -> tuple[Int64s, TableLayout]:
    """Cut a table's blocks finer: whole vectors of about ``rows`` rows, parts of one only where ``most`` is less.

    Return the block that each part belongs to, and the layout of the parts; those without rows are left out.
    """
    step = rows // VECTOR * VECTOR
    if not step:  # the largest half, quarter and so on of a vector that is small enough
        step = 1 << (min(max(1, most), VECTOR).bit_length() - 1)
    counts = -(-(layout.ends - layout.starts) // step)
    owners = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = layout.starts[owners] + place * step
    ends = np.minimum(starts + step, layout.ends[owners])
    found = ends - starts
    if not np.array_equal(layout.rows, layout.ends - layout.starts):
        found = count_blocks(cursor, table.sql, starts, ends, where=layout.where)
    kept = found > 0
    return owners[kept], replace(layout, starts=starts[kept], ends=ends[kept], rows=found[kept])


def state_of(cursor: Any, table: TableName, where: str) -> tuple[int, int | None, int]:
    """Return how many rows there are, the last one's rowid, and the number of the table itself."""
    numbers = "SELECT table_oid FROM duckdb_tables() WHERE (database_name, schema_name, table_name) = ($1, $2, $3)"
    count, last = fetch_rows(cursor, f"SELECT count(*), max(rowid) FROM {table.sql} WHERE {where}")[0]
    oid = fetch_rows(cursor, numbers, (table.database, table.schema, table.table))
    return count, last, oid[0][0] if oid else -1


def row_groups(cursor: Any, table: TableName) -> tuple[list[int], set[str]]:
    """Return the rows of each row group, deleted ones included, and the columns whose lists may hold nulls."""
    found = fetch_rows(
        cursor,
        "SELECT row_group_id, column_name, column_path, sum(count)::BIGINT, bool_or(stats.has_null::BOOLEAN)"
        " FROM pragma_storage_info($1) WHERE segment_type = 'VALIDITY' GROUP BY ALL ORDER BY ALL",
        [table.sql],
    )
    counts: dict[int, int] = {}
    nulls = set()
    for group, name, path, count, has_null in found:
        depth = path.count(",")
        if depth == 1:
            counts.setdefault(group, count)
        elif has_null is not False:
            nulls.add(name)
    return [counts[group] for group in sorted(counts)], nulls


def cut_row_groups(groups: Iterable[int], step: int) -> tuple[Int64s, Int64s]:
    """Return the first rowid of each block, and the one after its last: parts of row groups, ``step`` rows or less.

    Examples
    --------
    >>> [bounds.tolist() for bounds in cut_row_groups([5000, 3000], 2048)]
    [[0, 2048, 4096, 5000, 7048], [2048, 4096, 5000, 7048, 8000]]
    """
    starts, ends, at = [], [], 0
    for rows in groups:
        firsts = np.arange(at, at + rows, step, dtype=np.int64)
        starts.append(firsts)
        ends.append(np.minimum(firsts + step, at + rows))
        at += rows
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(starts), np.concatenate(ends)


def count_blocks(cursor: Any, table: str, starts: Int64s, ends: Int64s, *, where: str) -> Int64s:
    """Count the rows of each block: those neither deleted nor left out."""
    rows = np.zeros(len(starts), np.int64)
    if not len(starts):
        return rows
    # Rows are counted by vectors, or by blocks where these are smaller. Row groups after a partial one begin anywhere,
    # so each run of blocks that are whole numbers of vectors apart has its own offset.
    unit = int(min(VECTOR, (ends - starts).max()))
    runs = np.flatnonzero(np.diff(starts % unit, prepend=-1))
    pieces = []
    for first, stop in zip(runs.tolist(), [*runs[1:].tolist(), len(starts)]):
        low, high = int(starts[first]), int(ends[stop - 1])
        key = f"((rowid - {low}) // {unit}) * {unit} + {low}"
        pieces.append(
            f"SELECT {key} AS at, count(*) AS n FROM {table} WHERE rowid >= {low} AND rowid < {high} AND {where} GROUP BY 1"
        )
    for at in range(0, len(pieces), _PIECES):
        found = cursor.execute(" UNION ALL ".join(pieces[at : at + _PIECES])).fetchnumpy()
        owners = np.searchsorted(starts, np.asarray(found["at"], np.int64), side="right") - 1
        np.add.at(rows, owners, np.asarray(found["n"], np.int64))
    return rows


def _row_bytes(cursor: Any, table: TableName, columns: Sequence[DuckDBColumn], where: str) -> float:
    """Return what a row takes in Arrow, judged by the first ones."""
    selected = ", ".join(column.selected for column in columns)
    sample = cursor.sql(f"SELECT {selected} FROM {table.sql} WHERE {where} LIMIT {VECTOR}").to_arrow_table()
    return max(float(sample.nbytes) / max(int(sample.num_rows), 1), 1.0)


def _step(block_size: int | None, row_bytes: float, rows: int) -> int:
    """Return the rows of a block: whole vectors, or a half, a quarter and so on of one twice as large as wanted."""
    fitting = (block_size or BLOCK_SIZE) / row_bytes
    if block_size is None:
        fitting = min(fitting, max(rows / BLOCKS_WANTED, VECTOR))
    if fitting >= VECTOR:
        return int(fitting) // VECTOR * VECTOR
    return max(1, VECTOR >> int(np.log2(VECTOR / max(fitting, 1))))
