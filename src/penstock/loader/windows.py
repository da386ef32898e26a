"""Windows filled ahead of their use.

`WindowReader` fills one window: it works out each row's slot, splits the blocks over threads in the order in
which they lie on disk, and gives back a batch. `ahead` keeps one window in the making while another is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import Int64s
from penstock.blocks.transpose import SKIP, scatter_rows, scatter_values
from penstock.errors import UsageError
from penstock.loader import fill
from penstock.loader.decode import Feed, Slots
from penstock.loader.holdout import Part
from penstock.shuffle import RowWindow, Window
from penstock.shuffle.permute import slots as random_slots

_T = TypeVar("_T")
_LEAST_RUN = 128 * 1024
"""Bytes that are worth a thread's attention."""
# Blocks that one task reads when single rows are wanted of them.
_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class LoadedWindow:
    """A window's rows in the order in which they are to be learned from.

    The arrays of a dense window are reused: they are good until the next window is asked for. Rows that a mixer
    held back, or that come from a shuffled copy, cannot be ``located``.
    """

    index: int
    batch: Batch
    blocks: Int64s
    block_rows: Int64s
    slots: NDArray[np.uint32] | None
    located: bool = True
    single: Int64s | None = None
    """For a window of single rows: the place of each within its block, which stands at the same place of ``blocks``."""

    def locate(self, position: int) -> tuple[int, int]:
        """Return the block, and the row within it, of the row at a position of the batch."""
        if self.single is not None:
            return int(self.blocks[position]), int(self.single[position])
        place = position if self.slots is None else int(np.flatnonzero(self.slots == position)[0])
        ends = np.cumsum(self.block_rows)
        k = int(np.searchsorted(ends, place, side="right"))
        return int(self.blocks[k]), place - int(ends[k] - self.block_rows[k])


class WindowReader:
    """Fills windows, one at a time, with several reads in flight."""

    def __init__(self, feed: Feed, *, capacity: int, threads: int, part: Part | None = None) -> None:
        self._feed = feed
        self._source = feed.source
        self._encoder = feed.encoder
        self._decoder = feed.decoder
        self._scaling = feed.scaling
        self._part = part
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-read")
        self._spare = [Slots.empty(capacity, feed.encoder) for _ in range(2)] if feed.filled else []
        self._turn = 0

    def read(self, window: Window | RowWindow) -> LoadedWindow:
        """Read one window and put its rows in their order."""
        if isinstance(window, RowWindow):
            return self._read_rows(window)
        return self._fill(window) if self._feed.filled else self._assemble(window)

    def count(self, window: Window) -> int:
        """Return how many rows of a window are this part's, without reading it (where rows are counted)."""
        if self._part is None:
            return window.rows
        counts = self._feed.block_rows[window.blocks].tolist()
        return sum(int(self._part.keeps(b, np.arange(n)).sum()) for b, n in zip(window.blocks, counts, strict=True))

    def close(self) -> None:
        """Stop reading; what is under way is waited for, what is not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self, window: Window) -> LoadedWindow:
        counts = self._feed.block_rows[window.blocks]
        slots, kept = self._slots(window, counts)
        into = self._next_slots(kept)
        by_place = np.argsort(window.blocks, kind="stable")
        blocks = window.blocks[by_place]
        starts = (np.cumsum(counts) - counts)[by_place]
        runs = self._runs(blocks)
        self._all([self._pool.submit(self._decoder.fill, blocks[r], starts[r], slots, into) for r in runs])
        return LoadedWindow(window.index, into.batch(kept), window.blocks, counts, slots)

    def _assemble(self, window: Window) -> LoadedWindow:
        by_place = np.argsort(window.blocks, kind="stable")
        runs = [by_place[r] for r in self._runs(window.blocks[by_place])]
        decoded = self._all([self._pool.submit(self._decode, window.blocks[r]) for r in runs])
        places = np.concatenate(runs).tolist() if runs else []
        found = dict(zip(places, chain.from_iterable(decoded), strict=True))
        parts = [found[place] for place in range(len(places))]
        counts = np.array([len(p) for p in parts], np.int64)
        slots, kept = self._slots(window, counts)
        pieces = np.split(slots, np.cumsum(counts)[:-1]) if len(parts) else []
        return LoadedWindow(window.index, self._join(parts, pieces, kept), window.blocks, counts, slots)

    def _runs(self, blocks: Int64s) -> list[Int64s]:
        """Cut a window's blocks, as they lie on disk, into runs that threads read one after another."""
        units, places = self._feed.units, np.arange(len(blocks))
        if units is not None:  # only one thread can decode a unit
            return np.split(places, np.flatnonzero(np.diff(units[blocks])) + 1)
        # More runs than threads, so that a slow read does not leave the other threads idle at the end; but none so
        # small that handing it to a thread costs more than reading it.
        count = int(self._source.block_bytes[blocks].sum()) // _LEAST_RUN
        return np.array_split(places, max(1, min(count, len(blocks), 4 * self._threads)))

    def _decode(self, blocks: Int64s) -> list[Batch]:
        return [self._decoder.decode(block) for block in blocks.tolist()]

    def _join(self, parts: list[Batch], pieces: list[NDArray[np.uint32]], kept: int) -> Batch:
        """Put decoded rows together, each at its slot."""
        y = np.empty(kept, np.float32) if self._encoder.label else None
        weight = np.empty(kept, np.float32) if self._encoder.weight else None
        for part, place in zip(parts, pieces, strict=True):
            for target, column in ((y, part.y), (weight, part.weight)):
                if target is not None and column is not None:
                    scatter_values(column, place, target)
        if self._encoder.sparse:
            sparse = [p.x for p in parts if isinstance(p.x, Csr)]
            return Batch(fill.assemble_csr(sparse, pieces, kept, self._scaling.scale), y, weight)
        x = np.empty((kept, self._encoder.width or 0), np.float32)
        for part, place in zip(parts, pieces, strict=True):
            scatter_rows(part.x, place, x)
            if len(self._scaling.scale):
                fill.standardize_rows(x, place, self._scaling.shift, self._scaling.scale)
        return Batch(x, y, weight)

    def _read_rows(self, window: RowWindow) -> LoadedWindow:
        """Read single rows: each block that they lie in once, its other rows left out."""
        counts = self._feed.block_rows
        if not self._feed.exact:
            raise UsageError(
                f"shuffle='global' reads single rows, and those of {self._source.name} are not counted; convert it"
                " first: penstock convert SRC DST.arrow"
            )
        ends = np.cumsum(counts)
        owner = np.searchsorted(ends, window.numbers, side="right")
        single = window.numbers - (ends - counts)[owner]
        if self._part is not None:
            chosen = self._part.keeps(owner, single)
            owner, single = owner[chosen], single[chosen]
        by_block = np.argsort(owner, kind="stable")
        blocks, firsts = np.unique(owner[by_block], return_index=True)
        lasts = np.append(firsts[1:], len(owner))
        if not self._feed.filled:
            places = [by_block[a:b] for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]
            work = [self._pool.submit(self._pick, b, single[p]) for b, p in zip(blocks.tolist(), places, strict=True)]
            pieces = [p.astype(np.uint32) for p in places]
            batch = self._join(self._all(work), pieces, len(owner))
            return LoadedWindow(window.index, batch, owner, np.empty(0, np.int64), None, single=single)
        into = self._next_slots(len(owner))

        def put(run: slice) -> None:
            here = counts[blocks[run]]
            starts = np.cumsum(here) - here
            mine = by_block[firsts[run][0] : lasts[run][-1]]
            slots = np.full(int(here.sum()), SKIP, np.uint32)
            slots[np.repeat(starts, (lasts - firsts)[run]) + single[mine]] = mine
            self._decoder.fill(blocks[run], starts, slots, into)

        # A few blocks at a time: a window of single rows may touch every block there is.
        runs = [slice(at, at + _BLOCKS) for at in range(0, len(blocks), _BLOCKS)]
        self._all([self._pool.submit(put, run) for run in runs])
        batch = into.batch(len(owner))
        return LoadedWindow(window.index, batch, owner, np.empty(0, np.int64), None, single=single)

    def _pick(self, block: int, rows: Int64s) -> Batch:
        return self._decoder.decode(block).take(rows)

    def _next_slots(self, rows: int) -> Slots:
        """Return the arrays whose turn it is; others where one block is larger than a window is meant to be."""
        self._turn = 1 - self._turn
        into = self._spare[self._turn]
        return Slots.empty(rows, self._encoder) if rows > len(into.x) else into

    def _slots(self, window: Window, counts: Int64s) -> tuple[NDArray[np.uint32], int]:
        """Return each row's slot, in stored order, and how many rows are kept."""
        rows = int(counts.sum())
        if self._part is None:
            slots = np.arange(rows, dtype=np.uint32) if window.key is None else random_slots(rows, window.key)
            return slots, rows
        kept = np.empty(rows, np.bool_)
        start = 0
        for block, count in zip(window.blocks, counts.tolist(), strict=True):  # by block, to hold few numbers at once
            kept[start : start + count] = self._part.keeps(block, np.arange(count))
            start += count
        count = int(kept.sum())
        slots = np.full(rows, SKIP, np.uint32)
        slots[kept] = np.arange(count, dtype=np.uint32) if window.key is None else random_slots(count, window.key)
        return slots, count

    @staticmethod
    def _all(futures: list[Future[_T]]) -> list[_T]:
        """Wait for all, then raise the first failure: no thread may still write into a window given up."""
        try:
            return [f.result() for f in futures]
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()


def ahead(
    plan: Iterable[Window | RowWindow], read: Callable[[Window | RowWindow], LoadedWindow]
) -> Generator[LoadedWindow, None, None]:
    """Yield the windows of a plan, each read while the one before it is in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-ahead") as one:
        coming: Future[LoadedWindow] | None = None
        try:
            for window in plan:
                ready = None if coming is None else coming.result()
                coming = one.submit(read, window)
                if ready is not None:
                    yield ready
            if coming is not None:
                yield coming.result()
        finally:
            if coming is not None:
                coming.cancel()
