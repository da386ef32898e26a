"""Chunks: rows whose pages are acquired together; the next chunk is made while the kernel learns from the one before.

A chunk's distinct pages are brought by the pool, and each entry's position becomes its slot in the pool, on which the kernels
for models in memory run. Where one update's rows need more pages than the pool has, the chunk is worked on in several passes.
Values are scaled on the way (`PositionScale`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np

from penstock import seeds
from penstock.batch import Batch, Csr, Floats, Indices
from penstock.bigmodel.pages import distinct_pages, to_slots
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.store import Int64s
from penstock.blocks.base import BlockSource
from penstock.columns.recipe import Recipe
from penstock.linear import encoded

_ROWS = 100_000
_FEW = 10
"""Values of a feature in the sample below which it is scaled as the rare ones are."""


@dataclass(frozen=True, slots=True)
class PositionScale:
    """The factors of features by position; the last is that of all positions from there on.

    Examples
    --------
    >>> scale = PositionScale(np.array([0.5, 2.0, 1.0], np.float32))
    >>> scale.values(np.array([1, 0, 7], np.uint32), np.array([1, 2, 3], np.float32)).tolist()
    [2.0, 1.0, 3.0]
    """

    factors: Floats

    @classmethod
    def of(cls, batches: Iterable[Batch], own: int) -> Self | None:
        """Return the scale of rows whose indices are positions, the first ``own`` of which have factors of their own.

        None where it changes nothing.
        """
        squares, counts = np.zeros(own + 1), np.zeros(own + 1, np.int64)
        for batch in batches:
            assert isinstance(batch.x, Csr)
            there = batch.x.values != 0
            at = np.minimum(batch.x.indices[there], own).astype(np.int64)
            squares += np.bincount(at, batch.x.values[there].astype(np.float64) ** 2, own + 1)
            counts += np.bincount(at, minlength=own + 1)
        few = counts[:-1] < _FEW
        squares[-1] += squares[:-1][few].sum()
        counts[-1] += counts[:-1][few].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.sqrt(counts / squares)
        rest = factors[-1] if np.isfinite(factors[-1]) else 1.0
        factors[:-1][few] = rest
        factors[~np.isfinite(factors)] = rest
        return None if (factors == 1).all() else cls(factors.astype(np.float32))

    @classmethod
    def sampled(cls, source: BlockSource, recipe: Recipe, *, own: int, seed: int) -> Self | None:
        """Return the scale of prepared rows, from blocks drawn at random."""
        drawn = seeds.generator(seed, "position_scale", "blocks").permutation(len(source.block_rows))
        drawn = drawn[: int(np.searchsorted(np.cumsum(source.block_rows[drawn]), _ROWS)) + 1]
        blocks = np.sort(drawn).tolist()
        return cls.of((encoded(recipe, source, each, source.read(each, recipe.columns)) for each in blocks), own)

    def values(self, positions: Indices, values: Floats) -> Floats:
        """Return the values of entries at positions, scaled."""
        scaled: Floats = values * self.factors.take(positions, mode="clip")
        return scaled


ENTRIES = 1 << 20
"""Entries in a chunk: enough that its pages are worth sorting, few enough that its slots stay in the cache."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ready to be learnt from: ``indices`` are slots of the pool, and ``pages`` are pinned there.

    With ``pages`` None the rows' pages do not fit together, and ``indices`` are still positions.
    """

    batch: Batch
    pages: Int64s | None

    @property
    def alone(self) -> bool:
        """Whether it needs the whole pool, so that nothing may be made ready beside it."""
        return self.pages is None


class Chunker:
    """Cuts batches of rows, whose indices are positions, into chunks.

    A page has ``2**shift`` records. The ``batch_size`` rows of one update are never parted; ``rows`` and ``entries`` are the most in
    a chunk, unless one update has more entries. Without ``learning`` the rows do not change the pages. ``scale`` is what values
    are multiplied by.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        pool: PagePool,
        *,
        shift: int,
        batch_size: int = 1,
        rows: int | None = None,
        entries: int = ENTRIES,
        learning: bool = True,
        scale: PositionScale | None = None,
    ) -> None:
        self._batches = batches
        self._pool = pool
        self._shift = np.uint32(shift)
        self._size = batch_size
        self._rows = rows
        self._entries = entries
        self._learning = learning
        self._scale = scale
        self._batch: Batch | None = None
        self._at = 0
        self._ends = np.zeros(0, np.int64)
        frames = len(pool.buffer)
        self._stamps = np.zeros(0 if pool.whole else len(pool.frame_of), np.int32)
        self._now = 0
        self._found = np.empty(0 if pool.whole else frames, np.int64)
        self._fresh = max(1, frames // 4)  # so that chunks in use and in the making fit beside what they share

    def make(self) -> Chunk | None:
        """Return the next chunk, or None at the end; raise `CrowdedError` where pages in use leave no room for it."""
        while self._batch is None or self._at == len(self._batch):
            self._batch, self._at = next(self._batches, None), 0
            if self._batch is None:
                return None
            self._ends = _ends(self._batch, self._size)
        x = self._batch.x
        assert isinstance(x, Csr)
        start, stop = self._at, self._reach(x)
        if self._pool.whole:
            self._at = stop
            return Chunk(self._scaled(self._batch.slice(start, stop)), np.empty(0, np.int64))
        pages = self._acquired(x, start, stop)
        while pages is None and stop > self._end(start + 1):
            stop = self._end(start + (stop - start) // 2)
            pages = self._acquired(x, start, stop)
        if pages is None:
            if self._pool.pinned:
                raise CrowdedError
            pages = self._acquired(x, start, stop, fresh=len(self._found))
        self._at = stop
        batch = self._scaled(self._batch.slice(start, stop))
        if pages is None:
            return Chunk(batch, None)
        assert isinstance(batch.x, Csr)
        slots = np.empty(len(batch.x.indices), np.uint32)
        to_slots(batch.x.indices, self._shift, self._pool.frame_of, slots)
        # As wide as the pool: a slot is never past it.
        x = replace(batch.x, indices=slots, width=len(self._pool.buffer) << int(self._shift))
        return Chunk(replace(batch, x=x), pages)

    def each(self) -> Generator[Chunk, None, None]:
        """Yield the chunks, each given back when the next is asked for."""
        while (chunk := self.make()) is not None:
            yield chunk
            self.release(chunk)

    def release(self, chunk: Chunk) -> None:
        """Give back the pages of a chunk that was used."""
        if chunk.pages is not None and len(chunk.pages):
            self._pool.release(chunk.pages, dirty=self._learning)

    def _scaled(self, batch: Batch) -> Batch:
        x = batch.x
        if self._scale is None or not isinstance(x, Csr):
            return batch
        return replace(batch, x=replace(x, values=self._scale.values(x.indices, x.values)))

    def _reach(self, x: Csr) -> int:
        """Return the row that the next chunk ends before: whole updates, up to the most entries."""
        most = int(x.indptr[self._at]) + self._entries
        stop = int(np.searchsorted(x.indptr, np.uint64(most), side="right")) - 1
        return self._end(stop if self._rows is None else min(stop, self._at + self._rows))

    def _end(self, stop: int) -> int:
        """Return the end of the last update that ends by a row; at least one is begun."""
        place = max(int(np.searchsorted(self._ends, stop, side="right")) - 1, self._first())
        return int(self._ends[place])

    def _first(self) -> int:
        return int(np.searchsorted(self._ends, self._at, side="right"))

    def _acquired(self, x: Csr, start: int, stop: int, *, fresh: int | None = None) -> Int64s | None:
        """Acquire the distinct pages of some rows; None where they are too many, or the pool has no room for them."""
        if self._now == np.iinfo(np.int32).max:
            self._stamps[:] = 0
            self._now = 0
        self._now += 1
        entries = x.indices[int(x.indptr[start]) : int(x.indptr[stop])]
        count = int(distinct_pages(entries, self._shift, self._stamps, np.int32(self._now), self._found))
        if count < 0:
            return None
        pages = self._found[:count].copy()
        return pages if self._pool.try_acquire(pages, fresh=fresh or self._fresh) else None


def _ends(batch: Batch, size: int) -> Int64s:
    """Return the rows that a batch's updates end before: so many rows each, those of no weight not counted."""
    kept = np.arange(len(batch)) if batch.weight is None or size == 1 else np.flatnonzero(batch.weight)
    ends = kept[size - 1 :: size] + 1
    return ends if len(ends) and ends[-1] == len(batch) else np.append(ends, len(batch))


class CrowdedError(Exception):
    """There is no room beside what is in use; ask again when that is released."""


class Made(Protocol):
    """What `ahead` hands on."""

    @property
    def alone(self) -> bool:
        """Whether nothing else may be made ready while it is used."""


_T = TypeVar("_T", bound=Made)


def ahead(make: Callable[[], _T | None], release: Callable[[_T], None]) -> Generator[_T, None, None]:
    """Yield what ``make`` returns until it returns None, each made while the one before is used.

    An item is released when the next is asked for. Both functions run in one thread that is not the caller's, never at the
    same time; an item that is ``alone`` is used with nothing else made or unreleased.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-chunks") as pool:

        def step(done: _T | None) -> _T | None:
            if done is not None:
                release(done)
            return make()

        used: _T | None = None
        coming: Future[_T | None] | None = pool.submit(step, None)
        try:
            while coming is not None:
                try:
                    item = coming.result()
                except CrowdedError:
                    done, used = used, None
                    item = pool.submit(step, done).result()
                coming = None
                if item is None:
                    return
                if item.alone and used is not None:
                    pool.submit(release, used).result()
                    used = None
                if not item.alone:
                    done, used = used, item
                    coming = pool.submit(step, done)
                yield item
                if item.alone:
                    coming = pool.submit(step, item)
        finally:
            left = None if coming is None or coming.exception() is not None else coming.result()
            for item in (used, left):
                if item is not None:
                    pool.submit(release, item).result()
