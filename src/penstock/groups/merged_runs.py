"""Runs put together: the rows of each group, from all runs in their order, in bounded memory.

Small groups come many at a time, large ones in blocks of a given size; several runs become one where there are too many.
How large a group's blocks are does not hang on the memory given, so the same data always make the same blocks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.batch import Batch
from penstock.blocks.base import Int64s
from penstock.groups.sorted_runs import RowShape, RunWriter, SortedRun, StoredRun, count_runs, find
from penstock.parallel import in_order

FAN = 256
"""Runs that are merged at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """All rows of some groups, or a block of one: ``counts`` rows of each group from ``first`` on."""

    first: int
    counts: Int64s
    rows: Batch


@dataclass(frozen=True, slots=True)
class Room:
    """What may be held: bytes of a block, of groups read together, and how many such readings go on at once."""

    block: int
    window: int
    threads: int

    @classmethod
    def of(cls, memory: int, block: int) -> Room:
        """Share memory out: every thread has two pieces under way, and those of many groups are held twice."""
        threads = 2 if memory >= 5 * block else 1
        return cls(block, min(block, memory // (4 * threads)), threads)


@dataclass(frozen=True, slots=True)
class _Job:
    """What to read for one piece: of each run a stretch of its index, or of its rows if it is a block of one group."""

    first: int
    last: int
    stretches: tuple[tuple[int, int, int], ...]
    block: bool


def merged(runs: Sequence[SortedRun], shape: RowShape, *, groups: int, room: Room) -> Generator[Piece, None, None]:
    """Yield the rows of all runs by group, from the first to the last.

    Parameters
    ----------
    runs : list of Run
        In the order of the data.
    shape : Shape
        Of the rows.
    groups : int
        How many groups there are.
    room : Room
        What may be held.
    """
    rows, entries = count_runs(runs, groups)
    sizes = shape.nbytes(rows, entries)
    spans = list(_spans(sizes, room))
    borders = np.array([*(first for first, _ in spans), groups], np.int64)
    where = [find(run, borders) for run in runs]
    jobs: list[_Job] = []
    for number, (first, last) in enumerate(spans):
        held = [(r, int(at[number]), int(at[number + 1])) for r, at in enumerate(where) if at[number] < at[number + 1]]
        if last - first == 1 and sizes[first] > room.block:
            jobs += [_Job(first, last, block, True) for block in _blocks(runs, held, shape, room.block)]
        elif held:
            jobs.append(_Job(first, last, tuple(held), False))

    def read(number: int) -> Piece:
        job = jobs[number]
        if job.block:
            part = _concatenated(runs, job.stretches, shape)
            return Piece(job.first, np.array([len(part)], np.int64), part)
        counts = rows[job.first : job.last]
        return Piece(job.first, counts, _gathered(runs, job, counts, shape))

    with closing(in_order(read, range(len(jobs)), threads=room.threads)) as pieces:
        yield from pieces


def merge_runs(runs: Sequence[StoredRun], path: str, shape: RowShape, *, groups: int, room: Room) -> StoredRun:
    """Write several runs as one; theirs stay."""
    rows, entries = count_runs(runs, groups)
    slices = int(np.count_nonzero(rows))
    writer = RunWriter(path, shape, slices=slices, rows=int(rows.sum()), entries=int(entries.sum()))
    try:
        with closing(merged(runs, shape, groups=groups, room=room)) as pieces:
            for piece in pieces:
                present = np.flatnonzero(piece.counts)
                writer.append(piece.first + present, piece.counts[present], piece.rows)
        return writer.close()
    except BaseException:
        writer.discard()
        raise
    finally:
        for run in runs:
            run.close()


def _spans(sizes: Int64s, room: Room) -> Iterator[tuple[int, int]]:
    """Yield stretches of groups that fit together, or one that does not fit."""
    ends = np.cumsum(sizes)
    at = 0
    while at < len(sizes):
        before = int(ends[at - 1]) if at else 0
        last = max(int(np.searchsorted(ends, before + room.window, side="right")), at + 1)
        yield at, last
        at = last


def _blocks(
    runs: Sequence[SortedRun], held: Sequence[tuple[int, int, int]], shape: RowShape, most: int
) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Cut a group into blocks of at most so many bytes; each is a stretch of rows of one run or several."""
    spans = [(r, *map(int, runs[r].index(first, last).rows[[0, -1]])) for r, first, last in held]
    at = np.cumsum([0] + [last - first for _, first, last in spans])
    entries_at = np.cumsum([0] + [runs[r].entry(last) - runs[r].entry(first) for r, first, last in spans])

    def entries(row: int) -> int:
        """How many entries of the group stand before a row of it."""
        if not shape.sparse:
            return 0
        k = min(int(np.searchsorted(at, row, side="right")) - 1, len(spans) - 1)
        r, first, _ = spans[k]
        return int(entries_at[k]) + runs[r].entry(first + row - int(at[k])) - runs[r].entry(first)

    total, start = int(at[-1]), 0
    borders = [0]
    while start < total:
        low, high = start + 1, min(total, start + max(most // shape.row_bytes, 1))
        before = entries(start)
        while low < high:  # the last row that still fits
            middle = (low + high + 1) // 2
            fits = shape.nbytes(middle - start, entries(middle) - before) <= most
            low, high = (middle, high) if fits else (low, middle - 1)
        start = low
        borders.append(start)
    for low, high in pairwise(borders):
        yield tuple(
            (r, first + max(low - int(a), 0), min(first + high - int(a), last))
            for (r, first, last), a in zip(spans, at)
            if a < high and a + last - first > low
        )


def _concatenated(runs: Sequence[SortedRun], stretches: Sequence[tuple[int, int, int]], shape: RowShape) -> Batch:
    """Read stretches of rows of several runs, one after another."""
    if len(stretches) == 1:
        number, first, last = stretches[0]
        return runs[number].take(first, last)
    entries = sum(runs[r].entry(last) - runs[r].entry(first) for r, first, last in stretches)
    into = shape.empty(sum(last - first for _, first, last in stretches), entries)
    at = (0, 0)
    for number, first, last in stretches:
        at = runs[number].fill(first, last, into, at)
    return into


def _gathered(runs: Sequence[SortedRun], job: _Job, counts: Int64s, shape: RowShape) -> Batch:
    """Read whole groups of several runs, and put the rows of each group together."""
    indexes = [(r, runs[r].index(first, last)) for r, first, last in job.stretches]
    if len(indexes) == 1 or job.last - job.first == 1:
        return _concatenated(runs, [(r, int(i.rows[0]), int(i.rows[-1])) for r, i in indexes], shape)
    filled = np.cumsum(counts) - counts
    parts, slots = [], []
    for r, index in indexes:
        parts.append(runs[r].take(int(index.rows[0]), int(index.rows[-1])))
        groups, lengths = index.groups - job.first, np.diff(index.rows)
        shift = np.repeat(filled[groups] - (index.rows[:-1] - index.rows[0]), lengths)
        slots.append((shift + np.arange(len(shift))).astype(np.uint32))
        filled[groups] += lengths
    return shape.join(parts, slots, int(counts.sum()))
