"""Rows sorted by group number: runs in memory or on disk, the two halves of an external sort beside merging.

A run is a contiguous stretch of the data, its rows in stored order within each group. On disk it is one file of raw
arrays: which groups it holds and where each begins, then targets, weights and features; any stretch of it is read by a
few ``pread``. Which files make up a sort is noted by `etl`, not here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.base import Int64s
from penstock.columns.recipe import Recipe
from penstock.loader.row_forms import FeatureForm, Scaling
from penstock.native import kernel
from penstock.outputs import byte_view, read_array, write_at, writing

_ROOM = "grouping needs room for twice the rows as float32: make room or choose another folder"

_STEP = 1 << 16
"""Entries of an index that are looked at together."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """What rows are: dense of a width, or sparse; with weights or without."""

    recipe: Recipe

    @property
    def sparse(self) -> bool:
        return self.recipe.sparse

    @property
    def weighted(self) -> bool:
        return self.recipe.weighted

    @property
    def width(self) -> int:
        """The number of features; zero where it is not known yet."""
        return self.recipe.width or 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is kept, entries of sparse ones aside."""
        return 4 * (1 + self.weighted) + (8 if self.sparse else 4 * self.width)

    def nbytes(self, rows: Any, entries: Any) -> Any:
        """Return the bytes of so many rows with so many entries."""
        return self.row_bytes * rows + 8 * entries

    def empty(self, rows: int, entries: int) -> Batch:
        """Make room for rows."""
        x: Floats | Csr
        if self.sparse:
            indptr = np.zeros(rows + 1, np.uint64)
            x = Csr(indptr, np.empty(entries, np.uint32), np.empty(entries, np.float32), self.width)
        else:
            x = np.empty((rows, self.width), np.float32)
        return Batch(x, np.empty(rows, np.float32), np.empty(rows, np.float32) if self.weighted else None)

    def join(self, parts: Sequence[Batch], slots: Sequence[NDArray[np.uint32]], rows: int) -> Batch:
        """Put parts together, each row at its slot."""
        return FeatureForm(self.recipe, Scaling.none()).join(parts, slots, rows)


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Groups in ascending order, and where the rows and the entries of each begin; one more for the end."""

    groups: Int64s
    rows: Int64s
    entries: Int64s


class SortedRun(Protocol):
    """Rows sorted by group."""

    slices: int
    """How many groups there are rows of."""

    def index(self, first: int, last: int) -> GroupOffsets:
        """Return a part of the index."""

    def entry(self, row: int) -> int:
        """Return how many entries stand before a row."""

    def take(self, first: int, last: int) -> Batch:
        """Return a stretch of rows."""

    def fill(self, first: int, last: int, into: Batch, at: tuple[int, int]) -> tuple[int, int]:
        """Put a stretch of rows into others, from a row and an entry on, and return where the next go."""

    def close(self) -> None: ...


class MemoryRun:
    """A run that is held."""

    def __init__(self, index: GroupOffsets, rows: Batch) -> None:
        self.slices = len(index.groups)
        self._index = index
        self._rows = rows

    def index(self, first: int, last: int) -> GroupOffsets:
        found = self._index
        return GroupOffsets(found.groups[first:last], found.rows[first : last + 1], found.entries[first : last + 1])

    def entry(self, row: int) -> int:
        return int(self._rows.x.indptr[row]) if isinstance(self._rows.x, Csr) else 0

    def take(self, first: int, last: int) -> Batch:
        return self._rows.slice(first, last)

    def fill(self, first: int, last: int, into: Batch, at: tuple[int, int]) -> tuple[int, int]:
        raise NotImplementedError("a run in memory is the only one, and taken")  # pragma: no cover

    def close(self) -> None:
        pass


class StoredRun:
    """A run on disk; the file is opened when it is first read."""

    def __init__(self, path: str, shape: RowShape, *, slices: int, rows: int, entries: int) -> None:
        self.path = path
        self.shape = shape
        self.slices, self.rows, self.entries = slices, rows, entries
        self._at = _regions(shape, slices, rows, entries)
        self._fd: int | None = None
        self._lock = threading.Lock()

    @property
    def whole(self) -> bool:
        """Whether the file has the size it should have."""
        return os.path.exists(self.path) and os.path.getsize(self.path) == self._at["end"]

    def index(self, first: int, last: int) -> GroupOffsets:
        groups, rows = self._read("groups", first, last, np.int64), self._read("rows", first, last + 1, np.int64)
        sparse = self.shape.sparse
        return GroupOffsets(
            groups, rows, self._read("counts", first, last + 1, np.int64) if sparse else np.zeros_like(rows)
        )

    def entry(self, row: int) -> int:
        return int(self._read("ends", row, row + 1, np.uint64)[0]) if self.shape.sparse else 0

    def take(self, first: int, last: int) -> Batch:
        into = self.shape.empty(last - first, self.entry(last) - self.entry(first))
        self.fill(first, last, into, (0, 0))
        return into

    def fill(self, first: int, last: int, into: Batch, at: tuple[int, int]) -> tuple[int, int]:
        row, entry = at
        stop = row + last - first
        for name, column in (("y", into.y), ("weight", into.weight)):
            if column is not None:
                self._into(name, first, column[row:stop])
        if not isinstance(into.x, Csr):
            self._into("x", first, into.x[row:stop])
            return stop, 0
        ends = self._read("ends", first, last + 1, np.uint64)
        start, count = int(ends[0]), int(ends[-1] - ends[0])
        into.x.indptr[row + 1 : stop + 1] = ends[1:] - ends[0] + np.uint64(entry)
        self._into("indices", start, into.x.indices[entry : entry + count])
        self._into("values", start, into.x.values[entry : entry + count])
        return stop, entry + count

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        with contextlib.suppress(OSError):
            os.remove(self.path)

    def _read(self, name: str, first: int, last: int, kind: Any) -> NDArray[Any]:
        return self._into(name, first, np.empty(last - first, kind))

    def _into(self, name: str, first: int, out: NDArray[Any]) -> NDArray[Any]:
        width = out.itemsize * (out.shape[1] if out.ndim == 2 else 1)
        at = self._at[name] + first * width
        return read_array(self._open(), out, at, name=self.path)

    def _open(self) -> int:
        if self._fd is None:
            with self._lock:
                if self._fd is None:
                    self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._fd


class RunWriter:
    """Writes a run whose size is known, a few groups after another; the file appears when it is whole."""

    def __init__(self, path: str, shape: RowShape, *, slices: int, rows: int, entries: int) -> None:
        self.run = StoredRun(path, shape, slices=slices, rows=rows, entries=entries)
        self._at = _regions(shape, slices, rows, entries)
        self._done = [0, 0, 0]
        self._last = -1
        self._temporary = f"{path}.tmp"
        with writing(self._temporary, room=_ROOM):
            self._fd: int | None = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def append(self, groups: Int64s, counts: Int64s, rows: Batch) -> None:
        """Add the rows of some groups; the first may be the one that came last, for a further part of its rows."""
        slices, row, entry = self._done
        if int(groups[0]) == self._last:
            slices -= 1
        starts = row + np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        new = slice(int(slices < self._done[0]), None)  # where a group goes on, its beginning stays
        parts: list[tuple[str, int, NDArray[Any]]] = [
            ("groups", slices, groups),
            ("rows", slices + new.start, starts[new]),
        ]
        parts += [
            (name, row, column) for name, column in (("y", rows.y), ("weight", rows.weight)) if column is not None
        ]
        entries = 0
        if isinstance(rows.x, Csr):
            ends = rows.x.indptr + np.uint64(entry)
            entries = len(rows.x.indices)
            parts += [("ends", row, ends), ("counts", slices + new.start, ends[starts - row][new].astype(np.int64))]
            parts += [("indices", entry, rows.x.indices), ("values", entry, rows.x.values)]
        else:
            parts.append(("x", row, rows.x))
        with writing(self._temporary, room=_ROOM):
            for name, place, array in parts:
                at = self._at[name] + place * (array.nbytes // max(len(array), 1))
                write_at(self._fd or 0, byte_view(array), at)
        self._last = int(groups[-1])
        self._done = [slices + len(groups), row + len(rows), entry + entries]

    def close(self) -> StoredRun:
        """Give the file its name."""
        with writing(self._temporary, room=_ROOM):
            self.discard(keep=True)
            os.replace(self._temporary, self.run.path)
        return self.run

    def discard(self, *, keep: bool = False) -> None:
        """Stop writing, and remove what was written."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
            if not keep:
                os.remove(self._temporary)


def sort_rows(
    parts: Sequence[Batch], numbers: Sequence[Int64s], shape: RowShape, *, groups: int
) -> tuple[GroupOffsets, Batch]:
    """Sort rows by the ``numbers`` of their groups, which are below ``groups``; those of a group stay in order."""
    counts = np.zeros(groups, np.int64)
    for some in numbers:
        counts += np.bincount(some, minlength=groups)
    ends = np.cumsum(counts) - counts
    present = np.flatnonzero(counts)
    starts = np.append(ends[present], counts.sum())
    slots = [np.empty(len(some), np.uint32) for some in numbers]
    for some, into in zip(numbers, slots, strict=True):
        places(some, ends, into)
    rows = shape.join(parts, slots, int(starts[-1]))
    entries = rows.x.indptr[starts].astype(np.int64) if isinstance(rows.x, Csr) else np.zeros_like(starts)
    return GroupOffsets(present, starts, entries), rows


@kernel
def places(numbers: Any, ends: Any, slots: Any) -> None:
    """Give each row the next place of its number; ``ends`` says where that is, and is moved on."""
    for i in range(len(numbers)):
        number = numbers[i]
        slots[i] = ends[number]
        ends[number] += 1


def places_reference(numbers: Int64s, ends: Int64s, slots: NDArray[np.uint32]) -> None:
    """Say what `places` does."""
    for i, number in enumerate(numbers.tolist()):
        slots[i] = ends[number]
        ends[number] += 1


def find(run: SortedRun, borders: Int64s) -> Int64s:
    """Return how many of a run's groups stand below each border, reading its index piece by piece."""
    found = np.zeros(len(borders), np.int64)
    for first in range(0, run.slices, _STEP):
        found += np.searchsorted(run.index(first, min(first + _STEP, run.slices)).groups, borders)
    return found


def count_runs(runs: Sequence[SortedRun], groups: int) -> tuple[Int64s, Int64s]:
    """Return the rows and the entries of each group in all runs."""
    rows, entries = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    for run in runs:
        for first in range(0, run.slices, _STEP):
            part = run.index(first, min(first + _STEP, run.slices))
            rows[part.groups] += np.diff(part.rows)
            entries[part.groups] += np.diff(part.entries)
    return rows, entries


def _regions(shape: RowShape, slices: int, rows: int, entries: int) -> dict[str, int]:
    """Return where each array of a run's file begins, and where the file ends."""
    sizes = {"groups": 8 * slices, "rows": 8 * (slices + 1), "y": 4 * rows, "weight": 4 * rows * shape.weighted}
    if shape.sparse:
        sizes |= {"counts": 8 * (slices + 1), "ends": 8 * (rows + 1), "indices": 4 * entries, "values": 4 * entries}
    else:
        sizes["x"] = 4 * rows * shape.width
    ends = np.cumsum(list(sizes.values())).tolist()
    return dict(zip([*sizes, "end"], [0, *ends]))
