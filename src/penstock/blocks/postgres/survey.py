"""A table's blocks: ranges of pages of about equal rows, and what was learnt while counting them.

A plan looks at a few of the blocks, and takes the others to be like them. Pages are taken for what they hold together with what is stored beside them: an array of some thousand values leaves but
twenty bytes on its page. Every range is counted in the snapshot that will be read; nulls and the lengths of arrays are
found in the same pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from psycopg import sql

from penstock.blocks.base import Nulls
from penstock.blocks.postgres.connect import Connection
from penstock.blocks.postgres.faults import Flaws, and_check, checks, first_match, length, serves_nulls, without_nulls
from penstock.blocks.postgres.fetch import PageRange
from penstock.blocks.postgres.relation import Leaf, Relation, StoredColumn
from penstock.blocks.postgres.snapshots import RunQuery
from penstock.parallel import in_order

BLOCK_SIZE = 1_000_000
LEAST_BLOCK = 128 * 1024
BLOCKS_WANTED = 64
_JOINED = 8
"""Times its bytes that a block may come to by being joined: few rows may also be long ones."""


@dataclass(frozen=True, slots=True)
class Block:
    """A range of a leaf's pages, its rows, and its bytes."""

    range: PageRange
    rows: int
    nbytes: int

    def with_rows(self, page_rows: float, relation: Relation) -> Block:
        """Return the block with as many rows as its pages have where each has so many."""
        end = max(1, relation.leaves[self.range.leaf].nbytes // relation.page)
        pages = (end if self.range.stop is None else self.range.stop) - self.range.start
        return replace(self, rows=max(1, round(page_rows * pages)))


@dataclass(frozen=True, slots=True)
class Survey:
    """What a pass over all rows found.

    Attributes
    ----------
    blocks : tuple of Block
        Those with rows, in order.
    lengths : dict
        The shortest and the longest value of each column of arrays, vectors or bytes.
    flaws : dict
        Nulls that are not served, and arrays of several dimensions, by column.
    nullable : frozenset of str
        The columns that hold nulls which are served.
    """

    blocks: tuple[Block, ...]
    lengths: dict[str, tuple[int, int]]
    flaws: dict[str, Flaws]
    nullable: frozenset[str] = frozenset()
    seconds: float = 0.0
    """What counting the blocks has taken, one after another."""


def survey_relation(
    run: RunQuery,
    relation: Relation,
    columns: Sequence[StoredColumn],
    cuts: Sequence[Block],
    *,
    nulls: Nulls,
    cover: bool,
    threads: int,
) -> Survey:
    """Count the rows of blocks.

    Parameters
    ----------
    run : callable
        Does work with a connection in the snapshot.
    relation : Relation
        The table.
    columns : sequence of Column
        Those that are wanted.
    cuts : sequence of Block
        The blocks, their rows not counted yet.
    nulls : str
        Whether rows with nulls are left out, and whether nulls of plain values are served.
    cover : bool
        Whether pages without rows stay within some block, as there may be rows on them later.
    threads : int
        Ranges counted at once.
    """
    looked = [check for column in columns for check in checks(column) if not (nulls == "skip" and check.null)]
    sized = [column for column in columns if column.kind in ("array", "vector", "bytes")]
    asked: list[sql.Composable] = [sql.SQL("count(*)")]
    asked += [sql.SQL("count(*) FILTER (WHERE {})").format(check.holds) for check in looked]
    asked += [sql.SQL(f"{end}({{}})").format(length(column)) for column in sized for end in ("min", "max")]
    where = without_nulls(columns) if nulls == "skip" else sql.SQL("")
    plain = {column.name for column in columns if nulls == "fill" and serves_nulls(column)}

    def count(number: int) -> Sequence[Any]:
        rows = cuts[number].range
        query = sql.SQL("SELECT {} FROM ONLY {} WHERE {}{}").format(
            sql.SQL(", ").join(asked), relation.leaves[rows.leaf].identifier, rows.condition, where
        )

        def timed(connection: Connection) -> Sequence[Any]:
            began = time.perf_counter()
            counted = connection.execute(query, rows.bounds).fetchone() or ()
            return (*counted, time.perf_counter() - began)

        return run(timed)

    with closing(in_order(count, range(len(cuts)), threads=threads)) as results:
        found = list(results)
    flaws: dict[str, Flaws] = {}
    nullable: set[str] = set()
    for number, check in enumerate(looked, 1):
        total = sum(row[number] for row in found)
        if total and check.column in plain:
            nullable.add(check.column)
        elif total and check.column not in flaws:
            rows = next(block.range for block, row in zip(cuts, found, strict=True) if row[number])
            place = run(partial(first_match, leaf=relation.leaves[rows.leaf], rows=rows, holds=and_check(check)))
            flaws[check.column] = Flaws(check.column, check.words, total, str(place))
    lengths: dict[str, tuple[int, int]] = {}
    for number, column in enumerate(sized):
        at = 1 + len(looked) + 2 * number
        seen = [(row[at], row[at + 1]) for row in found if row[at] is not None]
        if seen:
            lengths[column.name] = (min(ends[0] for ends in seen), max(ends[1] for ends in seen))
    counted = [replace(block, rows=int(row[0])) for block, row in zip(cuts, found, strict=True)]
    seconds = sum(float(row[-1]) for row in found)
    return Survey(tuple(join_blocks(counted, cover=cover)), lengths, flaws, frozenset(nullable), seconds)


@dataclass(frozen=True, slots=True)
class _LeafCut:
    """How a leaf's pages are cut: into ranges of ``step`` pages, of which each takes ``page_bytes``."""

    leaf: int
    pages: int
    step: int
    page_bytes: float

    @property
    def count(self) -> int:
        """How many ranges there are."""
        return -(-self.pages // self.step)

    def block(self, number: int, most: int | None = None) -> Block:
        """Return a range, of as many pages at most; the last one has no end."""
        start = number * self.step
        pages = min(self.step, self.pages - start, most or self.pages)
        stop = None if start + pages >= self.pages else start + pages
        return Block(PageRange(self.leaf, start, stop), 0, max(1, int(pages * self.page_bytes)))


def _cuts(relation: Relation, columns: Sequence[StoredColumn], block_size: int | None) -> list[_LeafCut]:
    """Cut each leaf's pages into ranges of about equal bytes."""
    wide = any(column.wide for column in columns)

    def size(leaf: Leaf) -> int:
        return max(leaf.all_bytes, leaf.nbytes) if wide else leaf.nbytes

    total = sum(size(leaf) for leaf in relation.leaves)
    wanted = block_size or max(LEAST_BLOCK, min(BLOCK_SIZE, total // BLOCKS_WANTED))
    cuts = []
    for number, leaf in enumerate(relation.leaves):
        pages = max(1, leaf.nbytes // relation.page)
        each = max(size(leaf) / pages, 1.0)
        count = -(-pages // max(1, int(wanted / each)))
        cuts.append(_LeafCut(number, pages, -(-pages // count), each))
    return cuts


def plan_blocks(relation: Relation, columns: Sequence[StoredColumn], block_size: int | None) -> list[Block]:
    """Cut a table's pages into ranges of about equal bytes; the last of each leaf has no end."""
    return [cut.block(number) for cut in _cuts(relation, columns, block_size) for number in range(cut.count)]


@dataclass(frozen=True, slots=True)
class SpreadBlocks:
    """A few of a table's blocks, and how many it has; ``pages`` and ``nbytes`` are of all, ``page_rows`` by the statistics."""

    blocks: tuple[Block, ...]
    count: int
    pages: int
    nbytes: int
    page_rows: float | None

    def rows(self, relation: Relation, counted: Sequence[Block]) -> int:
        """Return about how many rows the table has: by the server's statistics, or by the rows counted in the blocks."""
        page_rows = self.page_rows
        if page_rows is None:
            ends = [max(1, leaf.nbytes // relation.page) for leaf in relation.leaves]
            pages = sum((b.range.stop or ends[b.range.leaf]) - b.range.start for b in self.blocks)
            page_rows = sum(block.rows for block in counted) / max(pages, 1)
        return max(round(page_rows * self.pages), sum(block.rows for block in counted))


def spread_blocks(
    relation: Relation, columns: Sequence[StoredColumn], block_size: int | None, most: int
) -> SpreadBlocks:
    """Return a few of the blocks that `plan_blocks` cuts, evenly spread, the first and the last among them; at most a megabyte of each."""
    cuts = _cuts(relation, columns, block_size)
    count = sum(cut.count for cut in cuts)
    ends = np.cumsum([cut.count for cut in cuts])
    blocks = []
    for number in np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64)).tolist():
        place = int(np.searchsorted(ends, number, side="right"))
        cut = cuts[place]
        pages = max(1, int(BLOCK_SIZE / cut.page_bytes))
        blocks.append(cut.block(number - int(ends[place]) + cut.count, pages))
    known = [leaf.page_rows for leaf in relation.leaves]
    pages, nbytes = sum(cut.pages for cut in cuts), int(sum(cut.pages * cut.page_bytes for cut in cuts))
    rows = [rows * cut.pages for rows, cut in zip(known, cuts, strict=True) if rows is not None]
    page_rows = sum(rows) / pages if len(rows) == len(cuts) and pages else None
    return SpreadBlocks(tuple(blocks), count, pages, nbytes, page_rows)


def cut_pages(
    run: RunQuery, relation: Relation, blocks: Sequence[Block], rows: int, *, where: sql.Composable, exact: bool
) -> tuple[list[int], list[Block]]:
    """Cut blocks into ranges of fewer pages, of about so many rows each, and say which block each part belongs to.

    Where counts have to be ``exact`` the parts of a block are counted by one statement, and those without rows left out;
    otherwise its rows are taken to be spread evenly over its pages.
    """
    owners: list[int] = []
    parts: list[Block] = []
    for number, block in enumerate(blocks):
        leaf = relation.leaves[block.range.leaf]
        first = block.range.start
        last = max(first + 1, leaf.nbytes // relation.page) if block.range.stop is None else block.range.stop
        count = max(1, min(last - first, -(-block.rows // max(1, rows))))
        edges = [first + (last - first) * place // count for place in range(count)]
        ranges = [
            PageRange(block.range.leaf, *each) for each in zip(edges, [*edges[1:], block.range.stop], strict=True)
        ]
        found = [-(-block.rows // count)] * count
        if exact and count > 1:
            found = _counts(run, leaf, ranges, where)
        here = [Block(each, n, max(1, block.nbytes // count)) for each, n in zip(ranges, found) if n or not exact]
        parts += here
        owners += [number] * len(here)
    return owners, parts


def _counts(run: RunQuery, leaf: Leaf, ranges: Sequence[PageRange], where: sql.Composable) -> list[int]:
    """Count the rows of neighbouring ranges of a leaf."""
    bounds = [bound for each in ranges for bound in each.bounds]
    places = iter(range(1, len(bounds) + 1))
    asked = []
    for each in ranges:
        low = sql.SQL(f"ctid >= ${next(places)}::tid")
        high = sql.SQL("") if each.stop is None else sql.SQL(f" AND ctid < ${next(places)}::tid")
        asked.append(sql.SQL("(SELECT count(*) FROM ONLY {} WHERE {}{}{})").format(leaf.identifier, low, high, where))
    query = sql.SQL("SELECT {}").format(sql.SQL(", ").join(asked))
    return [int(n) for n in run(lambda connection: connection.execute(query, bounds).fetchone()) or ()]


def join_blocks(blocks: Sequence[Block], *, cover: bool) -> list[Block]:
    """Leave out blocks without rows, and join neighbours that dead rows have left with few.

    Where all pages are to be covered, those without rows join their neighbours instead.

    Examples
    --------
    >>> blocks = [Block(PageRange(0, at, at + 1), rows, 8192) for at, rows in enumerate([100, 0, 30, 40, 90])]
    >>> [(block.range.start, block.range.stop, block.rows) for block in join_blocks(blocks, cover=False)]
    [(0, 1, 100), (2, 4, 70), (4, 5, 90)]
    """
    most: dict[int, int] = {}
    for block in blocks:
        most[block.range.leaf] = max(most.get(block.range.leaf, 0), block.rows)
    joined: list[Block] = []
    for block in blocks:
        leaf = block.range.leaf
        if not most[leaf] or (not block.rows and not cover):
            continue
        last = joined[-1] if joined and joined[-1].range.leaf == leaf else None
        few = last is not None and last.rows + block.rows <= most[leaf]
        if last is not None and few and (not last.rows * block.rows or last.nbytes < _JOINED * block.nbytes):
            rows = replace(last.range, stop=block.range.stop)
            joined[-1] = Block(rows, last.rows + block.rows, last.nbytes + block.nbytes)
        else:
            joined.append(block)
    return joined
