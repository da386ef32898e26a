"""An exact global shuffle by sweeps: the file is passed over again and again, and each pass picks up what is due next.

A chunk of the file, when it is passed at sweep time t, gives up the rows that stand between ``reach(t)`` and
``reach(t + 1)`` of the shuffled order: all that will be wanted before the chunk is passed once more. A row is
therefore held for half a sweep on average, and a sweep picks up two to three times the rows that two windows in the
same memory would. Rows that lie far apart are read singly, near ones together (`row_reader`); the reach grows from a
few rows, so the first batch does not wait for a sweep. Which rows come when is the permutation's alone; how they
are fetched never shows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol

import numpy as np

from penstock.blocks.base import Int64s
from penstock.loader.holdout import RowFilter
from penstock.loader.plan import HELD
from penstock.loader.row_forms import R
from penstock.loader.row_reader import distinct
from penstock.loader.sweep_buffers import RaggedBuffer, SlotBuffer, SweepBuffer
from penstock.loader.windows import Feed, LoadedWindow
from penstock.parallel import in_order

GROWTH = 16
"""How many times as far each sweep reaches as the one before, until the memory is full."""
_FIRST_ROWS, _FIRST_BYTES = 512, 2 << 20
_FIRST_WINDOW, _LEAST_WINDOW = 128, 64
_WINDOWS, _CHUNKS = 32, 256
_CHUNK_BYTES = 512 << 10
# Chunks in flight for each that a sweep has: what is read ahead is held, too.
_FLIGHT = 1 / 12


class Permutation(Protocol):
    """A shuffled order."""

    n: int

    def apply(self, positions: Int64s) -> Int64s:
        """Return the rows at these positions."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """How far ahead of the rows given out a sweep looks, as a function of sweep time.

    Examples
    --------
    >>> reach = Reach(start=0, rows=1000, first=10, span=300)
    >>> [reach.at(t) for t in (0, 1, 2, 3, 4, 5)]
    [10, 245, 545, 845, 1000, 1000]
    """

    start: int
    rows: int
    first: int
    span: int

    def at(self, time: float) -> int:
        """Return the position up to which rows are held when the chunk due at this time is passed."""
        turn = max(0.0, math.log(self.span / (self.first * (GROWTH - 1)), GROWTH))
        grown = self.first * GROWTH ** min(time, turn)
        return min(self.rows, self.start + int(grown + max(0.0, time - turn) * self.span))


def edges(start: int, rows: int, most: int) -> Int64s:
    """Return where the windows of a sweep begin and end: the first are small, each then twice as large as the last.

    Examples
    --------
    >>> edges(0, 2000, 512).tolist()
    [0, 128, 384, 896, 1408, 1920, 2000]
    """
    sizes = [min(_FIRST_WINDOW, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    ramp = start + np.cumsum([0, *sizes])
    whole = np.concatenate([ramp, np.arange(ramp[-1] + most, rows, most)])
    return np.append(whole[whole < rows], rows).astype(np.int64)


@dataclass(slots=True)
class Sweep(Generic[R]):
    """Gives out a feed's rows in the order of a permutation.

    Parameters
    ----------
    feed : Feed
        Whose rows.
    permutation : Permutation
        Their order, over all ranks: position ``p`` belongs to rank ``p % world``.
    span : int
        Rows that a sweep picks up when memory is full; `plan.HELD` of them are held at a time.
    threads : int
        Chunks being read at a time, memory permitting.
    rank, world : int
        This worker's place among all.
    part : Keeps, optional
        Only the rows on one side of a held-out split.
    offset : int
        Positions of the order, over all ranks, that were given out before; the rest is dealt out anew.
    """

    feed: Feed[R]
    permutation: Permutation
    span: int
    threads: int
    rank: int = 0
    world: int = 1
    part: RowFilter | None = None
    offset: int = 0
    _read_whole: int = field(init=False, default=0)
    _read_before: int = field(init=False)
    _ends: Int64s = field(init=False)
    _firsts: Int64s = field(init=False)
    _chunks: Int64s = field(init=False)
    _flight: int = field(init=False)
    _bits: int = field(init=False)

    def __post_init__(self) -> None:
        n = self.permutation.n
        self._read_before = self._read_singly
        # A row's number and its position among those held share 63 bits.
        self.span = max(1, min(self.span, 4 * self.rows, 1 << max(0, 60 - n.bit_length())))
        self._ends = np.cumsum(self.feed.block_rows)
        self._firsts = self._ends - self.feed.block_rows
        count = int(np.clip(self.span * self.feed.form.row_bytes // _CHUNK_BYTES, 16, _CHUNKS))
        cuts = np.linspace(0, n, count + 1).astype(np.int64)
        if not self.feed.decoder.single:  # a block is decoded whole, so no two chunks should share one
            cuts = np.append(0, self._ends)[np.searchsorted(np.append(0, self._ends), cuts)]
        self._chunks = np.unique(cuts)
        chunks = len(self._chunks) - 1
        self._flight = max(1, min(self.threads, int(chunks * _FLIGHT)))
        # Few chunks are large ones, and more than half of a sweep is then held.
        self.span = max(1, int(self.span * min(1.0, HELD / self._share)))
        self._bits = (self.span + self.span * self._flight // max(1, chunks) + 2 * self.window + 2).bit_length()

    @property
    def rows(self) -> int:
        """Rows of this rank, those of the other side of a split included."""
        return len(range(self.offset + self.rank, self.permutation.n, self.world))

    @property
    def bytes_read(self) -> int:
        """Bytes of the data fetched so far."""
        return self._read_whole + self._read_singly - self._read_before

    @property
    def _read_singly(self) -> int:
        return getattr(self.feed.decoder, "bytes_read", 0)

    @property
    def window(self) -> int:
        """The most rows of a window."""
        return max(_LEAST_WINDOW, self.span // _WINDOWS)

    @property
    def _share(self) -> float:
        """The part of a span that is held: half of it, what is read ahead, and windows not yet complete."""
        return 0.5 + (self._flight + 1) / max(1, len(self._chunks) - 1) + 2.5 / _WINDOWS

    def edges(self, start: int = 0) -> Int64s:
        """Return where windows begin and end if the first begins at this position."""
        return edges(start, self.rows, self.window)

    def numbers(self, low: int, high: int) -> Int64s:
        """Return the numbers of the rows at these positions, in their order; of a part, only those it keeps."""
        rows = self.permutation.apply(np.arange(low, high) * self.world + self.offset + self.rank)
        return rows if self.part is None else rows[self.part.keeps(*self._locate(rows))]

    def windows(self, bounds: Int64s) -> Generator[LoadedWindow[R], None, None]:
        """Yield the windows between these positions, one being put together while another is in use."""
        assembled = self._assembled(bounds)
        with closing(assembled), closing(in_order(lambda _: next(assembled), bounds[1:], threads=1)) as windows:
            yield from windows

    def _locate(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        owner = np.searchsorted(self._ends, rows, side="right")
        return owner, rows - self._firsts[owner]

    def _reach(self, start: int) -> Reach:
        if self.feed.decoder.single:
            row_bytes = max(1, self.feed.form.row_bytes)
            first = min(_FIRST_ROWS, max(128, _FIRST_BYTES // row_bytes))
        else:  # each row costs its whole block, so begin with a full sweep
            first = self.span // GROWTH
        return Reach(start, self.rows, max(1, min(first, self.span // GROWTH)), self.span)

    def _hold(self, bounds: Int64s) -> SweepBuffer[R]:
        if not self.feed.filled:
            return RaggedBuffer(self.feed, bounds)
        capacity = min(int(self._share * self.span), int(bounds[-1] - bounds[0]))
        return SlotBuffer(self.feed, capacity=capacity, window=self.window, reach=1 << self._bits)

    def _assembled(self, bounds: Int64s) -> Generator[LoadedWindow[R], None, None]:
        held = self._hold(bounds)
        sizes: dict[int, int] = {}
        done = 0
        with closing(self._steps(bounds, held, sizes)) as steps:
            for complete in steps:
                for number in range(done, complete):
                    low, high = int(bounds[number]), int(bounds[number + 1])
                    batch = held.assemble(low, sizes.pop(number))
                    nowhere, find = np.empty(0, np.int64), partial(self.numbers, low, high)
                    yield LoadedWindow(number, batch, nowhere, self.feed.block_rows, None, numbers=find)
                done = complete

    def _steps(self, bounds: Int64s, held: SweepBuffer[R], sizes: dict[int, int]) -> Generator[int, None, None]:
        """Read chunk after chunk, several at a time; yield how many windows are complete."""
        waiting: deque[tuple[int, Future[None]]] = deque()
        with ThreadPoolExecutor(self._flight, thread_name_prefix="penstock-sweep") as pool:
            try:
                for complete, base, keys in self._schedule(bounds, sizes):
                    waiting.append((complete, pool.submit(self._pick, held, base, keys)))
                    if len(waiting) > self._flight:
                        complete, work = waiting.popleft()
                        work.result()
                        yield complete
                while waiting:
                    complete, work = waiting.popleft()
                    work.result()
                    yield complete
            finally:
                for _, work in waiting:
                    work.cancel()

    def _schedule(self, bounds: Int64s, sizes: dict[int, int]) -> Iterator[tuple[int, int, list[Int64s]]]:
        """Yield, chunk by chunk, how many windows are complete after it, where its first window begins, its rows.

        A row is a key: its number, and in the low bits its position. Keys are sorted window by window.
        """
        reach, chunks = self._reach(int(bounds[0])), len(self._chunks) - 1
        sorted_: dict[int, tuple[Int64s, list[int]]] = {}

        def due(time: float) -> int:
            """Return the number of windows that a chunk passed at this time has given up before."""
            return int(np.searchsorted(bounds, reach.at(time)))

        sweep, gone, made = -1, 0, 0
        while sweep < 0 or reach.at(sweep) < self.rows:
            for chunk in range(chunks):
                # The first sweep begins at the start, whatever the chunk; each later one where the one before it ended.
                low = 0 if sweep < 0 else due(sweep + chunk / chunks)
                high = due(sweep + 1 + chunk / chunks)
                last = chunk == chunks - 1
                complete = due(sweep + (chunk + 1) / chunks) if sweep >= 0 else due(0) if last else 0
                for number in range(made, high):
                    keys = self._keys(int(bounds[number]), int(bounds[number + 1]))
                    sizes[number] = len(keys)
                    sorted_[number] = keys, np.searchsorted(keys, self._chunks << self._bits).tolist()
                for number in range(gone, low):
                    del sorted_[number]
                gone, made = low, max(made, high)
                parts = [keys[cuts[chunk] : cuts[chunk + 1]] for keys, cuts in (sorted_[w] for w in range(low, high))]
                yield complete, int(bounds[low]), [keys for keys in parts if len(keys)]
            sweep += 1

    def _keys(self, low: int, high: int) -> Int64s:
        rows = self.numbers(low, high)
        keys = (rows << self._bits) | (np.arange(low, low + len(rows)) & ((1 << self._bits) - 1))
        keys.sort()
        return keys

    def _pick(self, held: SweepBuffer[R], base: int, parts: list[Int64s]) -> None:
        if not parts:
            return
        keys = np.concatenate(parts)
        keys.sort(kind="stable")  # of many windows, each sorted: merged
        owner, local = self._locate(keys >> self._bits)
        held.pick(owner, local, base + ((keys - base) & ((1 << self._bits) - 1)))
        if not self.feed.decoder.single:
            self._read_whole += int(self.feed.source.block_bytes[distinct(owner)].sum())
