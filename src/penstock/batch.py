"""Rows as arrays: what a decoded block, a window and a batch all are.

``x`` is either C-contiguous float32 rows or a `Csr`; ``y``, ``weight`` and ``rows`` (global row numbers)
are there when asked for. CSR arrays are unsigned: Numba's loops over them run twice as fast. Indices have 32 bits,
or 64 where rows were encoded as wide ones: features of a model that does not fit in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
        x = self.x.slice(start, stop) if isinstance(self.x, Csr) else self.x[part]
        return Batch(
            x,
            None if self.y is None else self.y[part],
            None if self.weight is None else self.weight[part],
            None if self.rows is None else self.rows[part],
        )

    def take(self, picks: NDArray[np.integer]) -> Batch:
        """Return the rows picked, in the order picked, as a copy."""
        x = self.x.take(picks) if isinstance(self.x, Csr) else self.x[picks]
        return Batch(
            x,
            None if self.y is None else self.y[picks],
            None if self.weight is None else self.weight[picks],
            None if self.rows is None else self.rows[picks],
        )

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
