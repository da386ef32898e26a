"""The native loops over pages: checksums, writes, the pages that rows need, and updates over some of the pages at a time.

A page is a fixed number of float32 cells; a record is one or more of them, and a page holds a power of two of records, so
that a position's page is its high bits. A page's checksum also covers its number, so that a page from another place is
noticed. Each loop has a plain twin.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.native import kernel
from penstock.sgd.adagrad import adagrad_step

DONE, FAILED = 0, 1
NEVER = 2
"""The side of a page that was never written."""

# Resolved in the process's own C library, so compiled code can be cached.
_pwrite = types.ExternalFunction("pwrite", types.int64(types.int32, types.int64, types.uint64, types.int64))
_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.uint64))

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xD6E8FEB86659FD93)
_MASK = (1 << 64) - 1


@kernel
def page_checksum(words: Any, number: Any) -> Any:  # noqa: D103 - the twin is the documentation
    a = (np.uint64(number) + np.uint64(1)) * _PRIME
    b, c, d = a ^ _OTHER, a + _PRIME, a + _OTHER
    for i in range(0, len(words), 4):
        # Four sums side by side: one alone would wait for each multiplication.
        a = (a ^ words[i]) * _PRIME
        b = (b ^ words[i + 1]) * _PRIME
        c = (c ^ words[i + 2]) * _PRIME
        d = (d ^ words[i + 3]) * _PRIME
        a ^= a >> np.uint64(29)
        b ^= b >> np.uint64(29)
        c ^= c >> np.uint64(29)
        d ^= d >> np.uint64(29)
    total = ((a * _OTHER ^ b) * _OTHER ^ c) * _OTHER ^ d
    return total ^ (total >> np.uint64(32))


def page_checksum_reference(words: NDArray[np.uint64], number: int) -> int:
    """Return a page's checksum: four running products over its 64-bit words, begun from its number, then joined."""
    prime, other = int(_PRIME), int(_OTHER)
    a = (number + 1) * prime & _MASK
    sums = [a, a ^ other, (a + prime) & _MASK, (a + other) & _MASK]
    for i, word in enumerate(words.tolist()):
        s = (sums[i % 4] ^ word) * prime & _MASK
        sums[i % 4] = s ^ (s >> 29)
    total = sums[0]
    for s in sums[1:]:
        total = (total * other & _MASK) ^ s
    return total ^ (total >> 32)


@kernel
def note_checksums(words: Any, pages: Any, sums: Any) -> None:
    """Write each frame's checksum, as that of the page it holds."""
    for i in range(len(pages)):
        sums[i] = page_checksum(words[i], pages[i])


@kernel
def find_damage(words: Any, pages: Any, frames: Any, sums: Any) -> Any:
    """Return the place of the first page whose content is not that of its checksum, or -1."""
    for i in range(len(pages)):
        if page_checksum(words[frames[i]], pages[i]) != sums[pages[i]]:
            return i
    return -1


@kernel
def write_pages(fd: Any, pages: Any, frames: Any, words: Any, base: Any, sums: Any, staging: Any, room: Any) -> Any:
    """Write frames as pages, in ascending order, neighbours as one; note their checksums. Return DONE, or the page.

    ``base`` is the address of the frames, ``staging`` that of ``room`` bytes to join neighbours in.
    """
    size = np.int64(words.shape[1] * 8)
    first = 0
    while first < len(pages):
        last = first
        while last < len(pages) and pages[last] == pages[first] + (last - first) and (last - first + 1) * size <= room:
            sums[pages[last]] = page_checksum(words[frames[last]], pages[last])
            _memcpy(staging + (last - first) * size, base + frames[last] * size, np.uint64(size))
            last += 1
        done, total = np.int64(0), (last - first) * size
        while done < total:
            n = _pwrite(np.int32(fd), staging + done, np.uint64(total - done), pages[first] * size + done)
            if n <= 0:
                return FAILED, pages[first] + done // size
            done += n
        first = last
    return DONE, np.int64(0)


def write_pages_reference(fd: int, pages: NDArray[np.int64], frames: NDArray[np.int64], words: Any, sums: Any) -> None:
    """Write frame ``frames[i]`` as page ``pages[i]`` and note its checksum."""
    for page, frame in zip(pages.tolist(), frames.tolist(), strict=True):
        sums[page] = page_checksum_reference(words[frame], page)
        os.pwrite(fd, words[frame].tobytes(), page * words.shape[1] * 8)


@kernel
def distinct_pages(positions: Any, shift: Any, stamps: Any, now: Any, out: Any) -> Any:
    """Write the pages of positions to ``out``, each once in the order met, and return how many.

    ``stamps`` (one a page) tell what was met under the number ``now``. Where ``out`` is full, -1 is returned.
    """
    count = 0
    for e in range(len(positions)):
        page = positions[e] >> shift
        if stamps[page] != now:
            if count == len(out):
                return -1
            stamps[page] = now
            out[count] = page
            count += 1
    return count


def distinct_pages_reference(positions: NDArray[np.uint32], shift: int) -> NDArray[np.int64]:
    """Return the pages of positions, each once in the order met."""
    found, first = np.unique(positions >> np.uint32(shift), return_index=True)
    return np.asarray(found[np.argsort(first)], np.int64)


@kernel
def to_slots(positions: Any, shift: Any, frame_of: Any, out: Any) -> None:  # noqa: D103 - see the twin
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for e in range(len(positions)):
        at = positions[e]
        out[e] = (np.uint32(frame_of[at >> shift]) << shift) | (at & mask)


def to_slots_reference(positions: NDArray[np.uint32], shift: int, frame_of: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return where in the pool the records at positions lie: the page's frame, and the place within the page."""
    inside = positions & np.uint32((1 << shift) - 1)
    return np.asarray((frame_of[positions >> shift].astype(np.uint32) << np.uint32(shift)) | inside, np.uint32)


@kernel
def pin(pages: Any, frame_of: Any, pins: Any, heat: Any, hottest: Any, missing: Any) -> Any:
    """Pin the pages that are in memory and warm them; list the others. Return how many are missing, and were free."""
    count, taken = 0, 0
    for i in range(len(pages)):
        frame = frame_of[pages[i]]
        if frame < 0:
            missing[count] = pages[i]
            count += 1
        else:
            taken += pins[frame] == 0
            pins[frame] += 1
            if heat[frame] < hottest:
                heat[frame] += 1
    return count, taken


@kernel
def unpin(pages: Any, frame_of: Any, pins: Any, dirty: Any, changed: Any) -> Any:
    """Unpin the pages that are in memory, as changed or not, and return how many frames that frees."""
    freed = 0
    for i in range(len(pages)):
        frame = frame_of[pages[i]]
        if frame >= 0:
            pins[frame] -= 1
            freed += pins[frame] == 0
            dirty[frame] |= changed
    return freed


@kernel
def victims(count: Any, page_in: Any, pins: Any, heat: Any, hand: Any, out: Any) -> Any:
    """Choose frames to give up by the clock, and return where its hand stands; -1 where all are pinned.

    A frame that is passed cools by one; a cold one that is neither pinned nor chosen already is chosen. Chosen frames are
    marked by a pin of -1.
    """
    chosen, waited, frames = 0, 0, len(page_in)
    while chosen < count:
        if pins[hand] == 0:
            if page_in[hand] < 0 or heat[hand] == 0:
                out[chosen] = hand
                pins[hand] = -1
                chosen += 1
                waited = 0
            else:
                heat[hand] -= 1
                waited = 0
        hand = hand + 1 if hand + 1 < frames else 0
        waited += 1
        if waited > frames:
            return -1
    return hand


ABSENT = np.uint32(0xFFFFFFFF)
"""The position of a feature that does not occur in the data a model was learnt from; its weight is zero."""


@kernel
def page_dots(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, dots: Any
) -> None:
    """Add to each row's dot product what the pages from ``low`` to below ``high``, all in the pool, have of it."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        dot = dots[i]
        for e in range(indptr[i], indptr[i + 1]):
            at = positions[e]
            page = at >> shift
            if at != ABSENT and page >= low and page < high:
                dot += cells[(np.uint32(frame_of[page]) << shift) | (at & mask), 0] * values[e]
        dots[i] = dot


def page_dots_reference(rows: Csr, weights: Floats, dots: Floats) -> None:
    """Add each row's dot product with the weights (by position) to ``dots``; absent features add nothing."""
    for i in range(len(rows)):
        part = slice(int(rows.indptr[i]), int(rows.indptr[i + 1]))
        there = rows.indices[part] != ABSENT
        dots[i] += weights[rows.indices[part][there]] @ rows.values[part][there]


@kernel
def update_pages(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, pushes: Any
) -> None:
    """Take each row's values, times its push, from the weights in the pages from ``low`` to below ``high``."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        push = pushes[i]
        for e in range(indptr[i], indptr[i + 1]):
            page = positions[e] >> shift
            if page >= low and page < high:
                cells[(np.uint32(frame_of[page]) << shift) | (positions[e] & mask), 0] -= push * values[e]


def update_pages_reference(rows: Csr, weights: Floats, pushes: Floats) -> None:
    """Take each row's values, times its push, from the weights (by position)."""
    for i in range(len(rows)):
        part = slice(int(rows.indptr[i]), int(rows.indptr[i + 1]))
        np.subtract.at(weights, rows.indices[part], pushes[i] * rows.values[part])


@kernel
def update_pages_adagrad(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, slopes: Any,
    rate: Any, l2: Any,
) -> None:  # fmt: skip
    """Update the weights, and the accumulators beside them, in the pages from ``low`` to below ``high``."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            page = positions[e] >> shift
            if page >= low and page < high:
                slot = (np.uint32(frame_of[page]) << shift) | (positions[e] & mask)
                g = slopes[i] * values[e] + l2 * cells[slot, 0]
                cells[slot, 0], cells[slot, 1] = adagrad_step(cells[slot, 0], cells[slot, 1], g, rate)


def ranges(pages: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """Split ascending pages into runs of at most so many.

    Examples
    --------
    >>> [run.tolist() for run in ranges(np.array([1, 4, 5, 9, 12]), 2)]
    [[1, 4], [5, 9], [12]]
    """
    return [pages[at : at + most] for at in range(0, len(pages), most)]
