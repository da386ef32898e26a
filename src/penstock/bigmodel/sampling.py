"""A sample of sparse rows, drawn in one pass: what `partition` looks at to tell which features occur together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.copying import gather_runs
from penstock.errors import UsageError


@dataclass(frozen=True, slots=True)
class RowSample:
    """Some rows of the data, in their order: row ``i`` holds ``indices[indptr[i]:indptr[i+1]]``."""

    indptr: NDArray[np.uint64]
    indices: NDArray[Any]
    rows_seen: int

    def __len__(self) -> int:
        return len(self.indptr) - 1


def sample_of(
    batches: Iterable[Batch],
    *,
    share: float = 0.01,
    least: int = 100_000,
    seed: int = 0,
    most_entries: int = 1 << 25,
) -> RowSample:
    """Draw rows without replacement from a stream of unknown length, as a reservoir does, in one pass.

    Every row draws a number; those with the lowest stay. Which rows they are hangs on the seed and on the rows' order,
    not on how they are cut into batches.

    Parameters
    ----------
    batches : iterable of Batch
        Sparse rows.
    share, least : float, int
        The part of the rows to draw, and how many to draw where that is fewer (all, if there are no more).
    seed : int
        Of the draw.
    most_entries : int
        Draw fewer rows where they would hold more features than this; for a moment three times as many are in memory.

    Examples
    --------
    >>> rows = Csr(np.arange(101, dtype=np.uint64), np.arange(100, dtype=np.uint32), np.ones(100, np.float32), 100)
    >>> sample = sample_of([Batch(rows)], least=5)
    >>> len(sample), sample.rows_seen, bool((np.diff(sample.indices.astype(int)) > 0).all())
    (5, 100, True)
    """
    rng = seeds.generator(seed, "partition", "sample")
    held: list[_Drawn] = []
    bound, seen, rows, fresh_rows, fresh_entries = 1.0, 0, 0, 0, 0
    for batch in batches:
        if not isinstance(batch.x, Csr):
            raise UsageError(
                "a sample for partitions is drawn from sparse rows, but these are dense; their model is small"
            )
        draws = rng.random(len(batch))
        seen += len(batch)
        held.append(_picked(_Drawn(draws, batch.x.indptr, batch.x.indices), np.flatnonzero(draws < bound)))
        fresh_rows += len(held[-1].draws)
        fresh_entries += len(held[-1].indices)
        if fresh_rows > max(least, rows) or fresh_entries > most_entries // 2:
            kept, bound = _lowest(held, share=share, least=least, most_entries=most_entries, bound=bound)
            held, rows, fresh_rows, fresh_entries = [kept], len(kept.draws), 0, 0
    if not held:
        return RowSample(np.zeros(1, np.uint64), np.empty(0, np.uint64), 0)
    kept, _ = _lowest(held, share=share, least=least, most_entries=most_entries, bound=bound)
    return RowSample(kept.indptr, kept.indices, seen)


@dataclass(frozen=True, slots=True)
class _Drawn:
    draws: NDArray[np.float64]
    indptr: NDArray[np.uint64]
    indices: NDArray[Any]


def _picked(rows: _Drawn, picks: NDArray[np.int64]) -> _Drawn:
    """Return some of the rows as a copy."""
    starts = rows.indptr[:-1][picks].astype(np.int64)
    ends = np.cumsum(rows.indptr[1:][picks].astype(np.int64) - starts)
    offsets = np.concatenate([[0], ends])
    indices = np.empty(int(offsets[-1]), rows.indices.dtype)
    gather_runs(rows.indices, starts, offsets, indices)
    return _Drawn(rows.draws[picks], offsets.astype(np.uint64), indices)


def _lowest(parts: list[_Drawn], *, share: float, least: int, most_entries: int, bound: float) -> tuple[_Drawn, float]:
    """Keep the rows with the lowest draws, in their order; return them and the draw from which on none is kept."""
    draws = np.concatenate([part.draws for part in parts])
    lengths = np.concatenate([np.diff(part.indptr) for part in parts]).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    rows = _Drawn(draws, indptr, np.concatenate([part.indices for part in parts]))
    order = np.argsort(draws, kind="stable")
    count = max(least, int(np.count_nonzero(draws < share)))
    count = min(count, int(np.searchsorted(np.cumsum(lengths[order]), most_entries, side="right")))
    if count >= len(order):
        return rows, bound
    return _picked(rows, np.sort(order[:count])), float(draws[order[count]])
