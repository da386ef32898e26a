"""What two of the baselines hold back from window to window: a sliding buffer and a reservoir.

A mixer is told how many rows come in and answers with places; it never sees a row. `SlidingBuffer` is section
3.3 (TensorFlow's), `Reservoir` section 3.4 (Bismarck's). The loops over rows are kernels, with plain twins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel
from penstock.shuffle.base import Int64s, Mix
from penstock.shuffle.permute import Draws, below, below_wide, slots


@kernel(fast=False)
def _slide(held: Any, incoming: Any, capacity: Any, last: Any, state: Any) -> Any:
    total = held + incoming
    kept = min(total, capacity)
    buffer = np.empty(kept, np.int64)
    for i in range(held):
        buffer[i] = i
    picks = np.empty(total if last else total - kept, np.int64)
    given = 0
    for place in range(held, total):
        if place < capacity:  # still filling: nothing has been given out yet
            buffer[place] = place
        else:
            j, state = below(state, np.uint64(capacity))
            picks[given] = buffer[j]
            buffer[j] = place
            given += 1
    if last:
        for i in range(kept, 0, -1):
            j, state = below(state, np.uint64(i))
            picks[given] = buffer[j]
            buffer[j] = buffer[i - 1]
            given += 1
        buffer = buffer[:0]
    return picks, buffer, state


def slide_reference(
    held: int, incoming: int, capacity: int, last: bool, state: int
) -> tuple[list[int], list[int], int]:
    """Twin of the sliding buffer's kernel."""
    draws, buffer, picks = Draws(state), list(range(held)), []
    for place in range(held, held + incoming):
        if len(buffer) < capacity:
            buffer.append(place)
        else:
            j = draws.below(capacity)
            picks.append(buffer[j])
            buffer[j] = place
    while last and buffer:
        j = draws.below(len(buffer))
        picks.append(buffer[j])
        buffer[j] = buffer[-1]
        buffer.pop()
    return picks, buffer, draws.state


class SlidingBuffer:
    """A buffer from which a random row goes out for every row that comes in; at the end it is drained at random.

    Examples
    --------
    >>> mixer = SlidingBuffer(capacity=3, key=1)
    >>> first = mixer.step(4, last=False)
    >>> len(first.picks), len(first.keeps)
    (1, 3)
    >>> sorted(mixer.step(2, last=True).picks.tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, capacity: int, key: int) -> None:
        self._capacity, self._state, self._held = capacity, key, 0

    def step(self, incoming: int, *, last: bool) -> Mix:
        """Take in so many rows and say what goes out."""
        picks, keeps, self._state = _slide(self._held, incoming, self._capacity, last, np.uint64(self._state))
        self._held = len(keeps)
        return Mix(picks, keeps)


@kernel(fast=False)
def _reserve(held: Any, seen: Any, incoming: Any, capacity: Any, loop: Any, at: Any, state: Any) -> Any:
    looped = loop.size
    filled = min(held + incoming, capacity)
    kept = np.empty(filled, np.int64)
    for i in range(held):
        kept[i] = looped + i
    picks = np.empty((held + incoming - filled) * (2 if looped else 1), np.int64)
    given = 0
    for i in range(held, held + incoming):
        place = looped + i
        seen += np.uint64(1)
        if i < capacity:
            kept[i] = place
            continue
        j, state = below_wide(state, seen)
        if j < np.uint64(capacity):
            picks[given] = kept[j]
            kept[j] = place
        else:
            picks[given] = place
        given += 1
        if looped:
            picks[given] = loop[at]
            given += 1
            at += 1
            if at == looped:
                at = 0
                for k in range(looped - 1, 0, -1):
                    j, state = below(state, np.uint64(k + 1))
                    loop[k], loop[j] = loop[j], loop[k]
    return picks, kept, at, state


def reserve_reference(
    held: int, seen: int, incoming: int, capacity: int, loop: list[int], at: int, state: int
) -> tuple[list[int], list[int], int, int]:
    """Twin of the reservoir's kernel; like it, shuffles ``loop`` where it lies when its end is reached."""
    draws, looped, picks = Draws(state), len(loop), []
    kept = list(range(looped, looped + held))
    for place in range(looped + held, looped + held + incoming):
        seen += 1
        if len(kept) < capacity:
            kept.append(place)
            continue
        j = draws.below_wide(seen)
        dropped = place
        if j < capacity:
            dropped, kept[j] = kept[j], place
        picks.append(dropped)
        if loop:
            picks.append(loop[at])
            at = (at + 1) % looped
            for k in range(looped - 1, 0, -1) if at == 0 else ():
                j = draws.below(k + 1)
                loop[k], loop[j] = loop[j], loop[k]
    return picks, kept, at, draws.state


class Reservoir:
    """Bismarck's two buffers as one stream.

    The rows scanned are sampled into a reservoir; each row that it drops goes out, followed by one of the
    ``carried`` rows (the reservoir of the epoch before), which are gone through again and again, each time in
    another random order. At the end the reservoir is what is kept. Held rows are the carried, then the sampled.

    Examples
    --------
    >>> mixer = Reservoir(capacity=2, carried=2, key=1)
    >>> mix = mixer.step(5, last=True)
    >>> len(mix.picks), len(mix.keeps)
    (6, 2)
    """

    def __init__(self, capacity: int, carried: int, key: int) -> None:
        self._capacity, self._state = capacity, key
        self._held = self._seen = self._at = 0
        self._loop: NDArray[np.int64] = slots(carried, key ^ 1).astype(np.int64)

    def step(self, incoming: int, *, last: bool) -> Mix:
        """Take in so many rows and say what goes out."""
        picks, kept, self._at, self._state = _reserve(
            self._held, np.uint64(self._seen), incoming, self._capacity, self._loop, self._at, np.uint64(self._state)
        )
        self._held = len(kept)
        self._seen += incoming
        keeps: Int64s = kept if last else np.concatenate([np.arange(len(self._loop)), kept])
        return Mix(picks, keeps)
