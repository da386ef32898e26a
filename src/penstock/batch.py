"""Rows as arrays: what a decoded block, a window and a batch all are.

``x`` is either C-contiguous float32 rows or a `Csr`; ``y``, ``weight`` and ``rows`` (global row numbers)
are there when asked for. CSR arrays are unsigned: Numba's loops over them run twice as fast. Indices have 32 bits,
or 64 where rows were encoded as wide ones: features of a model that does not fit in memory.

The loops that fill rows transpose columns, scatter rows into slots, and join sparse parts row by row. Each kernel has a NumPy
twin, its specification. A slot of `SKIP` means that the row is not wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.copying import SKIP as SKIP
from penstock.errors import UsageError
from penstock.native import kernel

Floats = NDArray[np.float32]
Indices = NDArray[np.uint32] | NDArray[np.uint64]
_T = TypeVar("_T", bound=np.generic)


def indices_of(count: int, *, wide: bool) -> Indices:
    """Make room for so many indices, of 64 bits where they are wide."""
    return np.empty(count, np.uint64) if wide else np.empty(count, np.uint32)


@dataclass(frozen=True, slots=True)
class Csr:
    """Sparse rows: row ``i`` holds ``indices[indptr[i]:indptr[i+1]]`` and the values beside them."""

    indptr: NDArray[np.uint64]
    indices: Indices
    values: Floats
    width: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.indices.nbytes + self.values.nbytes

    def slice(self, start: int, stop: int) -> Csr:
        """Return rows ``start`` to ``stop``, sharing indices and values."""
        lo, hi = int(self.indptr[start]), int(self.indptr[stop])
        return Csr(self.indptr[start : stop + 1] - np.uint64(lo), self.indices[lo:hi], self.values[lo:hi], self.width)

    def take(self, picks: NDArray[np.integer]) -> Csr:
        """Return the rows picked, in the order picked, as a copy."""
        lengths = np.diff(self.indptr)[picks]
        indptr = np.zeros(len(picks) + 1, np.uint64)
        np.cumsum(lengths, out=indptr[1:])
        # Element e of the result comes from its row's start plus its place in that row.
        shift = np.repeat(self.indptr[:-1][picks] - indptr[:-1], lengths.astype(np.int64))
        source = np.arange(int(indptr[-1]), dtype=np.uint64) + shift
        return Csr(indptr, self.indices[source], self.values[source], self.width)

    def to_dense(self) -> Floats:
        """Return the rows as a dense array; for tests and small data."""
        dense = np.zeros((len(self), self.width), np.float32)
        owner = np.repeat(np.arange(len(self)), np.diff(self.indptr).astype(np.int64))
        np.add.at(dense, (owner, self.indices), self.values)
        return dense

    @classmethod
    def concat(cls, parts: Sequence[Csr]) -> Csr:
        """Join runs of rows end to end, as a copy."""
        shifts = np.cumsum([0] + [len(p.indices) for p in parts]).astype(np.uint64)
        indptr = np.concatenate(
            [np.zeros(1, np.uint64)] + [p.indptr[1:] + s for p, s in zip(parts, shifts, strict=False)]
        )
        return cls(
            indptr,
            np.concatenate([p.indices for p in parts]),
            np.concatenate([p.values for p in parts]),
            parts[0].width,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of rows ready to learn from or to score."""

    x: Floats | Csr
    y: Floats | None = None
    weight: Floats | None = None
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def width(self) -> int:
        """The number of features."""
        return self.x.width if isinstance(self.x, Csr) else int(self.x.shape[1])

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + sum(a.nbytes for a in (self.y, self.weight, self.rows) if a is not None)

    def slice(self, start: int, stop: int) -> Batch:
        """Return rows ``start`` to ``stop`` as views."""
        part = slice(start, stop)
        return self._with(self.x.slice(start, stop) if isinstance(self.x, Csr) else self.x[part], part)

    def take(self, picks: NDArray[np.integer]) -> Batch:
        """Return the rows picked, in the order picked, as a copy."""
        return self._with(self.x.take(picks) if isinstance(self.x, Csr) else self.x[picks], picks)

    def _with(self, x: Floats | Csr, part: Any) -> Batch:
        """Return rows with their part of the other columns."""
        return Batch(x, *(None if column is None else column[part] for column in (self.y, self.weight, self.rows)))

    @classmethod
    def concat(cls, parts: Sequence[Batch]) -> Batch:
        """Join batches of one kind end to end, as a copy (or the one part as it is)."""
        if len(parts) == 1:
            return parts[0]
        sparse = [p.x for p in parts if isinstance(p.x, Csr)]
        dense = [p.x for p in parts if not isinstance(p.x, Csr)]
        return cls(
            Csr.concat(sparse) if sparse else np.concatenate(dense),
            _join([p.y for p in parts]),
            _join([p.weight for p in parts]),
            _join([p.rows for p in parts]),
        )


def _join(columns: Sequence[NDArray[_T] | None]) -> NDArray[_T] | None:
    present = [c for c in columns if c is not None]
    return np.concatenate(present) if present else None


_TILE = 32


@kernel
def transpose(columns: Any, out: Any, at: Any) -> None:
    """Write columns (one per row of the first array) into ``out[:, at:]``, a tile of rows at a time."""
    count, rows = columns.shape
    for start in range(0, rows, _TILE):
        stop = min(start + _TILE, rows)
        for column in range(count):
            for row in range(start, stop):
                out[row, at + column] = columns[column, row]


def transpose_reference(columns: Floats, out: Floats, at: int) -> None:
    """Do the same in NumPy."""
    out[:, at : at + len(columns)] = columns.T


@kernel
def scatter_rows(rows: Any, slots: Any, out: Any) -> None:
    """Copy row ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    width = rows.shape[1]
    for row in range(len(slots)):
        slot = slots[row]
        if slot != SKIP:
            for column in range(width):
                out[slot, column] = rows[row, column]


def scatter_rows_reference(rows: Floats, slots: NDArray[np.uint32], out: Floats) -> None:
    """Do the same in NumPy."""
    kept = slots != SKIP
    out[slots[kept]] = rows[kept]


@kernel
def scatter_values(values: Any, slots: Any, out: Any) -> None:
    """Copy value ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot != SKIP:
            out[slot] = values[row]


def scatter_values_reference(values: Floats, slots: NDArray[np.uint32], out: Floats) -> None:
    """Do the same in NumPy."""
    kept = slots != SKIP
    out[slots[kept]] = values[kept]


@kernel
def copy_part(indptr: Any, indices: Any, values: Any, base: Any, ends: Any, out_indices: Any, out_values: Any) -> None:
    """Append one sparse part's entries to each row; ``ends`` says how far each row is filled, and is moved on."""
    for row in range(len(indptr) - 1):
        to = ends[row]
        for entry in range(indptr[row], indptr[row + 1]):
            out_indices[to] = indices[entry] + base
            out_values[to] = values[entry]
            to += np.uint64(1)
        ends[row] = to


def copy_part_reference(
    indptr: NDArray[np.uint64],
    indices: Indices,
    values: Floats,
    base: np.uint32 | np.uint64,
    ends: NDArray[np.uint64],
    out_indices: Indices,
    out_values: Floats,
) -> None:
    """Do the same in NumPy."""
    lengths = np.diff(indptr)
    to = np.arange(len(indices), dtype=np.uint64) + np.repeat(ends - indptr[:-1], lengths.astype(np.int64))
    out_indices[to] = indices + base
    out_values[to] = values
    ends += lengths


def join_parts(parts: Sequence[Csr], *, wide: bool = False) -> Csr:
    """Set sparse parts of the same rows side by side, each in its own range of indices."""
    if wide and sum(part.width for part in parts) > 1 << 64:
        raise UsageError(
            f"the columns make {sum(part.width for part in parts)} features together, more than the 2^64 that indices"
            " can tell apart; hash to fewer bits"
        )
    indptr = np.zeros_like(parts[0].indptr)
    for part in parts:
        indptr += part.indptr
    ends = indptr[:-1].copy()
    indices = indices_of(int(indptr[-1]), wide=wide)
    values = np.empty(int(indptr[-1]), np.float32)
    base = 0
    for part in parts:
        copy_part(part.indptr, part.indices, part.values, indices.dtype.type(base), ends, indices, values)
        base += part.width
    return Csr(indptr, indices, values, base)


@kernel
def standardize_rows(x: Floats, slots: NDArray[np.uint32], shift: Floats, scale: Floats) -> None:
    """Shift and scale, in place, the rows that stand in the slots given."""
    for i in range(len(slots)):
        slot = slots[i]
        if slot != SKIP:
            for j in range(x.shape[1]):
                x[slot, j] = (x[slot, j] - shift[j]) * scale[j]


def standardize_rows_reference(x: Floats, slots: NDArray[np.uint32], shift: Floats, scale: Floats) -> None:
    """Say what `standardize_rows` does."""
    kept = slots[slots != SKIP]
    x[kept] = (x[kept] - shift) * scale
