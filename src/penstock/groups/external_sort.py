"""The external sort by group: rows that fit in memory are sorted and stored as runs, and runs are merged in bounded memory.

A run is noted when its file is complete: which blocks it holds, and the keys first met in them. After an interruption, the
runs that follow one another from the first block on are kept. Notes of another boot of the machine are not trusted, since
the files may not have reached the disk, nor are runs whose checksum differs. Merging yields small groups many at a time,
large ones in blocks whose size does not depend on the memory, so the same data always make the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch import Batch, Csr
from penstock.blocks.base import Int64s
from penstock.checksum import checksum_path
from penstock.closing import Closing
from penstock.groups.keys import Numbering, from_text, to_text
from penstock.groups.scratch import boot
from penstock.groups.sorted_runs import (
    GroupOffsets,
    MemoryRun,
    RowShape,
    RunWriter,
    SortedRun,
    StoredRun,
    count_runs,
    find,
    sort_rows,
)
from penstock.parallel import in_order
from penstock.sealed import read_note, write_note

SORT_BYTES = 20
"""What sorting takes for each row beside the row."""
Merge = Callable[[Sequence[StoredRun], str], StoredRun]


@dataclass(frozen=True, slots=True)
class _Noted:
    """A run, the blocks it holds, and what else is known of it."""

    first: int
    last: int
    run: StoredRun
    keys: list[str]
    width: int


class RunFolder:
    """Runs on disk, in the order of the data."""

    def __init__(self, folder: Path, shape: RowShape, kinds: Sequence[pa.DataType]) -> None:
        self._folder, self._shape, self._kinds = folder, shape, kinds
        self._noted: list[_Noted] = []
        self._boot = boot()

    @property
    def runs(self) -> list[StoredRun]:
        """The runs, in the order of the data."""
        return [noted.run for noted in self._noted]

    @property
    def width(self) -> int:
        """The most features that a row of them has."""
        return max((noted.width for noted in self._noted), default=0)

    def resume(self) -> tuple[Numbering, int]:
        """Take up the runs of an earlier attempt; return the keys met in them, and the block to go on with."""
        found = [noted for path in self._folder.glob("run-*.json") if (noted := self._read(path)) is not None]
        numbering, at = Numbering(), 0
        for noted in sorted(found, key=lambda noted: (noted.first, -noted.last)):
            if noted.first == at:
                numbering.number(from_text(text, self._kinds) for text in noted.keys)
                self._noted.append(noted)
                at = noted.last
        kept = {Path(noted.run.path).stem for noted in self._noted}
        for path in self._folder.glob("run-*"):
            if path.stem not in kept:
                path.unlink()
        return numbering, at

    def name(self, first: int, last: int) -> str:
        """Return the path of a run that holds such blocks."""
        return str(self._folder / f"run-{first:010d}-{last:010d}.bin")

    def add(self, run: StoredRun, first: int, last: int, *, keys: list[str], width: int) -> None:
        """Note a run that was written."""
        self._note(_Noted(first, last, run, keys, width))

    def narrow(self, most: int, merge: Merge) -> None:
        """Merge runs until there are at most so many."""
        while len(self._noted) > most:
            before, self._noted = self._noted, []
            for at in range(0, len(before), most):
                some = before[at : at + most]
                if len(some) == 1:
                    self._noted += some
                    continue
                first, last = some[0].first, some[-1].last
                run = merge([noted.run for noted in some], self.name(first, last))
                keys = [key for noted in some for key in noted.keys]
                self._note(_Noted(first, last, run, keys, max(noted.width for noted in some)))
                for noted in some:
                    _note_path(noted.run.path).unlink(missing_ok=True)
                    noted.run.remove()

    def _note(self, noted: _Noted) -> None:
        run = noted.run
        note = {
            "boot": self._boot,
            "first": noted.first,
            "last": noted.last,
            "width": noted.width,
            "keys": noted.keys,
            "run": {"slices": run.slices, "rows": run.rows, "entries": run.entries},
            "content": checksum_path(run.path),
        }
        write_note(_note_path(run.path), note)
        self._noted.append(noted)

    def _read(self, path: Path) -> _Noted | None:
        try:
            told = read_note(path)
            run = StoredRun(str(path.with_suffix(".bin")), self._shape, **told["run"])
            noted = _Noted(told["first"], told["last"], run, told["keys"], told["width"])
            trusted = self._boot and told["boot"] == self._boot and run.whole
            return noted if trusted and told["content"] == checksum_path(run.path) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Sorter(Closing):
    """Collects rows, and sorts and sets them aside whenever they come to so many bytes.

    Writing goes on in the background while the next rows are collected, so twice ``most`` may be held.
    """

    def __init__(self, folder: RunFolder, shape: RowShape, numbering: Numbering, *, begin: int, most: int) -> None:
        self._folder, self._shape, self._numbering, self._most = folder, shape, numbering, most
        self._parts: list[Batch] = []
        self._numbers: list[Int64s] = []
        self._held = self._width = 0
        self._first = self._last = begin
        self._known = len(numbering)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-runs")
        self._writing: Future[None] | None = None

    def add(self, rows: Batch, numbers: Int64s, *, block: int, stored: int) -> None:
        """Take in a block's rows and the numbers of their groups; ``stored`` is what the block takes as it was read."""
        size = SORT_BYTES * len(rows) + (max(rows.nbytes, stored) if _shares(rows) else rows.nbytes)
        if self._parts and self._held + size > self._most:
            self._spill()
        self._parts.append(rows)
        self._numbers.append(numbers)
        self._held += size
        self._last = block + 1
        if isinstance(rows.x, Csr):
            self._width = max(self._width, rows.x.width)

    def finish(self) -> list[SortedRun]:
        """Return all runs: the rows themselves where they never had to be set aside."""
        if not self._folder.runs and self._writing is None:
            return [MemoryRun(*self._sorted())]
        if self._parts:
            self._spill()
        self._wait()
        return list(self._folder.runs)

    def close(self) -> None:
        self._pool.shutdown()

    def _spill(self) -> None:
        self._wait()
        keys = [to_text(key) for key in islice(self._numbering.keys, self._known, None)]
        self._known += len(keys)
        first, last, width = self._first, self._last, self._width
        index, rows = self._sorted()
        self._first = last
        self._writing = self._pool.submit(self._write, index, rows, first, last, keys, width)

    def _sorted(self) -> tuple[GroupOffsets, Batch]:
        parts, numbers = self._parts, self._numbers
        self._parts, self._numbers, self._held = [], [], 0
        return sort_rows(parts, numbers, self._shape, groups=len(self._numbering))

    def _write(self, index: GroupOffsets, rows: Batch, first: int, last: int, keys: list[str], width: int) -> None:
        sizes: dict[str, Any] = {"slices": len(index.groups), "rows": len(rows), "entries": int(index.entries[-1])}
        writer = RunWriter(self._folder.name(first, last), self._shape, **sizes)
        try:
            writer.append(index.groups, index.rows[1:] - index.rows[:-1], rows)
            run = writer.close()
        except BaseException:
            writer.discard()
            raise
        self._folder.add(run, first, last, keys=keys, width=width)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()


def _shares(rows: Batch) -> bool:
    """Whether rows may be views of a block as it was read."""
    return isinstance(rows.x, Csr) or rows.x.base is not None


def _note_path(path: str) -> Path:
    return Path(path).with_suffix(".json")


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
    """Yield the rows of all runs, which are in the order of the data, by group, from the first to the last."""
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
