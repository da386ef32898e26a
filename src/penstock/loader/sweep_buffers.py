"""What holds the rows that a sweep has picked up until their window is due.

`SlotBuffer` keeps rows of fixed width in slots allocated once: a row is read into whichever slot is free, and its slot is
free again when its window has been put together. `RaggedBuffer` keeps rows of unequal length as they came, cut by window.
"""

from __future__ import annotations

import threading
from typing import Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import Int64s
from penstock.loader.row_forms import R, R_co, SlotsOf
from penstock.loader.windows import Feed


class SweepBuffer(Protocol[R_co]):
    """Rows between being picked up and being given out."""

    def pick(self, owner: Int64s, local: Int64s, positions: Int64s) -> None:
        """Read rows, whose blocks and places in these come in ascending order, and keep them for their positions."""
        ...

    def assemble(self, low: int, rows: int) -> R_co:
        """Put together the window of so many rows that begins at a position, and forget them."""
        ...


class RaggedBuffer(Generic[R]):
    """Rows of unequal length, in memory of their own; windows lie between ``bounds``."""

    def __init__(self, feed: Feed[R], bounds: Int64s) -> None:
        self._feed = feed
        self._bounds = bounds
        self._lock = threading.Lock()
        self._parts: dict[int, list[tuple[R, NDArray[np.uint32]]]] = {}

    def pick(self, owner: Int64s, local: Int64s, positions: Int64s) -> None:
        number = np.searchsorted(self._bounds, positions, side="right") - 1
        by_window = np.argsort(number, kind="stable")
        found = self._feed.decoder.pick(owner, local)
        for here in np.split(by_window, np.flatnonzero(np.diff(number[by_window])) + 1):
            low = int(self._bounds[number[here[0]]])
            part = found.take(here), (positions[here] - low).astype(np.uint32)
            with self._lock:
                self._parts.setdefault(low, []).append(part)

    def assemble(self, low: int, rows: int) -> R:
        parts = self._parts.pop(low, [])
        return self._feed.form.join([part for part, _ in parts], [places for _, places in parts], rows)


class SlotBuffer(Generic[R]):
    """Rows of fixed width, in slots; grows where more are held than was foreseen.

    Parameters
    ----------
    feed : Feed
        Whose rows.
    capacity : int
        How many are likely to be held.
    window : int
        Rows of the largest window.
    reach : int
        A power of two: no two rows held at a time are so many positions apart.
    """

    def __init__(self, feed: Feed[R], *, capacity: int, window: int, reach: int) -> None:
        self._feed = feed
        self._capacity = max(1, capacity)
        self._lock = threading.Lock()
        self._slabs: list[tuple[SlotsOf[R], R]] = []
        self._starts = [0]
        self._free: list[NDArray[np.uint32]] = []
        self._slot_of = np.empty(reach, np.uint32)
        self._windows = [feed.form.empty(window) for _ in range(2)]
        self._turn = 0

    def pick(self, owner: Int64s, local: Int64s, positions: Int64s) -> None:
        slots = self._take(len(owner))
        for number, mine in self._by_slab(slots):
            place = slots[mine] - np.uint32(self._starts[number])
            self._feed.decoder.pick_into(owner[mine], local[mine], place, self._slabs[number][0])
        self._slot_of[positions & (len(self._slot_of) - 1)] = slots

    def assemble(self, low: int, rows: int) -> R:
        self._turn = 1 - self._turn
        into = self._windows[self._turn]
        if rows > len(into):
            into = self._windows[self._turn] = self._feed.form.empty(rows)
        slots = self._slot_of[np.arange(low, low + rows) & (len(self._slot_of) - 1)]
        for number, mine in self._by_slab(slots):
            picks = slots[mine].astype(np.int64) - self._starts[number]
            self._feed.form.move(self._slabs[number][1], picks, into, np.arange(rows)[mine])
        with self._lock:
            self._free.append(slots)
        return into.slice(0, rows)

    def _by_slab(self, slots: NDArray[np.uint32]) -> list[tuple[int, NDArray[np.intp] | slice]]:
        if len(self._slabs) == 1:
            return [(0, slice(None))]
        slab = np.searchsorted(np.array(self._starts), slots, side="right") - 1
        return [(number, np.flatnonzero(slab == number)) for number in np.unique(slab).tolist()]

    def _take(self, count: int) -> NDArray[np.uint32]:
        """Return free slots, of new memory where there are too few."""
        taken: list[NDArray[np.uint32]] = []
        with self._lock:
            while count:
                if not self._free:
                    self._grow()
                some = self._free.pop()
                if len(some) > count:
                    some, rest = some[:count], some[count:]
                    self._free.append(rest)
                taken.append(some)
                count -= len(some)
        return np.concatenate(taken) if taken else np.empty(0, np.uint32)

    def _grow(self) -> None:
        size = self._capacity if not self._slabs else -(-self._capacity // 8)
        slots = self._feed.form.empty(size)
        start = 0 if not self._slabs else self._starts[-1] + len(self._slabs[-1][0])
        if self._slabs:
            self._starts.append(start)
        self._slabs.append((slots, slots.slice(0, size)))
        self._free.append(np.arange(start, start + size, dtype=np.uint32))
