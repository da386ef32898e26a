"""What an epoch of a model on disk will read and write, foretold from how often features occur.

Pages fall into classes that rows touch at about the same rate: hot pages by how frequent their features are, and cold ones,
which the rows touch that their features first occurred in and, now and then, rows from anywhere. The pool is taken to
keep what was touched last (Che's approximation): a page stays for so many rows that the pages touched in them fill the
frames. Chunks are as `penstock.bigmodel.chunks` makes them. Rows of a window are taken to be well shuffled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.feature_positions import PreparationPlan
from penstock.bigmodel.rewrite import BLOCK_SIZE, BLOCKS_WANTED, LEAST_BLOCK
from penstock.bigmodel.storage import Storage
from penstock.explanation.feature_counts import Class, FeatureCounts

# What a window takes of the memory for rows: itself, its successor, and the blocks that it is put together from.
_WINDOW, _READING = 3.0, 1.03
# Preparing allows for so many times the entries that a few blocks lead it to expect.
_OVER = 1.1


@dataclass(frozen=True, slots=True)
class PageTraffic:
    """What is expected of an epoch after the first: pages of the model, how many memory holds (``frames``), and bytes.

    ``hot`` features are in the first pages, which stay in memory; ``hot_share`` of the entries fall on them, ``repeated_share``
    on others that occur more than once, whose pages rows from everywhere want. ``hit_rate`` is the share of the pages wanted by
    chunks that are in memory.
    """

    pages: int
    frames: int
    hot: int
    hot_share: float
    repeated_share: float
    hit_rate: float
    rows_read: int
    pages_read: int
    pages_written: int

    @property
    def whole(self) -> bool:
        """Whether all pages stay in memory."""
        return self.frames >= self.pages


@dataclass(frozen=True, slots=True)
class RowWindows:
    """How rows come: so many of them shuffled together, from blocks of so many; read once if they stay in memory."""

    window: float
    block: float
    resident: bool

    @classmethod
    def of(cls, counts: FeatureCounts, memory: int) -> RowWindows:
        """Foretell it for memory given for rows."""
        rows = max(1, counts.rows)
        each = max(1.0, counts.rows_bytes / rows)
        size = max(min(BLOCK_SIZE, counts.rows_bytes // BLOCKS_WANTED), LEAST_BLOCK)
        block = max(1.0, size / each)
        resident = counts.rows_bytes * (1 + _WINDOW) * _READING <= memory
        window = rows if resident else memory / (_WINDOW * _READING * each)
        return cls(max(min(window, rows), min(block, rows)), block, resident)


def expected_traffic(
    counts: FeatureCounts, storage: Storage, *, memory: int, prepare_memory: int | None = None
) -> PageTraffic:
    """Predict an epoch with ``memory`` bytes for rows; ``prepare_memory`` if other bytes than those for rows and model are given.

    Examples
    --------
    >>> rare = FeatureCounts(10_000, 300_000, 300_000, 10**9, ((300_000.0, 300_000.0),), 2_560_000, 3_600_000, 1.0)
    >>> expected_traffic(rare, Storage(model_memory="100MB"), memory=10**8).hit_rate
    1.0
    """
    size = int(storage.page_size)
    pages, frames = storage.pages(counts.features), storage.pool_memory(counts.features) // size
    rows = RowWindows.of(counts, memory)
    hot, cold = _parted(counts, storage.hot(counts.features))
    whole = frames >= pages
    if whole:
        hot, cold = list(counts.classes), []
        wanted, missed, changed = 1.0, 0.0, pages
    else:
        plan = PreparationPlan.of(int(_OVER * counts.entries), prepare_memory or memory + storage.least_memory)
        epoch = _Epoch.of(counts, storage, hot, cold, rows=rows, plan=plan, frames=frames)
        wanted, missed = epoch.run(
            min(rows.window, storage.chunk_entries(counts.features) * counts.rows / counts.entries)
        )
        changed = frames
    entries = max(1, counts.entries)
    return PageTraffic(
        pages=pages,
        frames=min(frames, pages),
        hot=round(sum(f for f, _ in hot)),
        hot_share=sum(e for _, e in hot) / entries,
        repeated_share=sum(e for f, e in cold if e > f) / entries,
        hit_rate=1 - missed / wanted,
        rows_read=0 if rows.resident else counts.rows_bytes,
        pages_read=round(missed) * size,
        pages_written=(round(missed) + changed) * size,
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """Pages in classes, the rate at which a row touches each page of a class, and frames for some; the first is a window's own."""

    sizes: NDArray[np.float64]
    rates: NDArray[np.float64]
    frames: int
    window: float
    windows: float

    @classmethod
    def of(
        cls,
        counts: FeatureCounts,
        storage: Storage,
        hot: Sequence[Class],
        cold: Sequence[Class],
        *,
        rows: RowWindows,
        plan: PreparationPlan,
        frames: int,
    ) -> _Epoch:
        """Work out which pages are touched how often."""
        features, records = sum(f for f, _ in cold), storage.page_records
        own = features / counts.rows
        pages = max(1.0, features / records)
        # A row's own features lie in as many places of its stretch as there are buckets, unless those share pages.
        places = max(1.0, min(plan.stretch * features / counts.entries / records, float(1 << plan.bits)))
        touched = places * -math.expm1(own * math.log1p(-1 / places)) if places > 1 else min(own, 1.0)
        # Pages hold the features of neighbouring blocks, and are a window's own if any of these is in it.
        blocks = 1 + records * places / max(own, 1e-9) / rows.block
        here = pages * (1 - max(0.0, 1 - rows.window / counts.rows) ** blocks)
        anywhere = max(0.0, sum(e - f for f, e in cold)) / counts.rows / pages
        return cls(
            sizes=np.array([here, pages - here, *(f / records for f, _ in hot)]),
            rates=np.array([touched / here + anywhere, anywhere, *(e * records / f / counts.rows for f, e in hot)]),
            frames=frames,
            window=rows.window,
            windows=counts.rows / rows.window,
        )

    def run(self, most: float) -> tuple[float, float]:
        """Return the pages wanted by an epoch's chunks, and those of them that are not in memory."""
        stays, chunk = self._stays(), max(1.0, most)
        while True:
            wanted, missed = self._window(chunk, stays)
            chunks = self.window / chunk
            fits = missed / chunks <= max(1, self.frames // 4) and wanted / chunks <= self.frames
            if fits or chunk <= 1:
                return wanted * self.windows, missed * self.windows
            chunk = max(1.0, chunk / 2)

    def _touched(self, rows: float) -> NDArray[np.float64]:
        """Return how many pages of each class so many rows touch."""
        pages: NDArray[np.float64] = -self.sizes * np.expm1(-self.rates * rows)
        return pages

    def _stays(self) -> float:
        """Return for how many rows a page stays in memory after it was touched."""
        low, high = 0.0, 1e15
        if float(self._touched(high).sum()) <= self.frames:
            return math.inf
        for _ in range(200):
            middle = (low + high) / 2 if low else high / 1e3
            low, high = (middle, high) if float(self._touched(middle).sum()) < self.frames else (low, middle)
        return low

    def _window(self, chunk: float, stays: float) -> tuple[float, float]:
        """Return the pages wanted and missed in a window."""
        wanted = self._touched(chunk) * self.window / chunk
        gone = np.exp(-self.rates * stays) if math.isfinite(stays) else np.zeros(len(self.rates))
        missed = wanted * gone
        if self.windows > 1:
            # A new window's own pages are not there yet, but for those that frames to spare have kept from the last epoch.
            first = float(self._touched(self.window)[0])
            spare = max(0.0, self.frames - float(self.sizes[0] + self.sizes[2:].sum()))
            kept = min(1.0, spare / max(1.0, float(self.sizes[1])))
            missed[0] = min(wanted[0], first * (1 - kept) + max(0.0, wanted[0] - first) * gone[0])
        return float(wanted.sum()), float(missed.sum())


def _parted(counts: FeatureCounts, most: int) -> tuple[list[Class], list[Class]]:
    """Part the classes into hot ones, at most so many features, none of which occurs once; and cold ones."""
    hot: list[Class] = []
    cold: list[Class] = []
    left = float(most)
    for features, entries, divisible in _finer(counts.classes):
        taken = min(features, left) if entries > features and (divisible or features <= left) else 0.0
        left = left - taken if taken == features else 0.0
        if taken:
            hot.append((taken, entries * taken / features))
        if taken < features:
            cold.append((features - taken, entries * (1 - taken / features)))
    return hot, cold


def _finer(classes: Sequence[Class]) -> Iterator[tuple[float, float, bool]]:
    """Yield classes, and whether they are of several counts: features that occur alike are hot all of them or none."""
    for features, entries in classes:
        thrice = entries - 2 * features
        if not 0 <= thrice <= features:
            yield features, entries, entries > features
            continue
        if thrice > 0:
            yield thrice, 3 * thrice, False
        if thrice < features:
            yield features - thrice, 2 * (features - thrice), False
