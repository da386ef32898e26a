"""The native loops over blocks of sparse rows: read whole blocks and find each row's entries, then copy them to slots.

One call reads a run of blocks, so that threads do not wait for one another's Python. `copy_entries` has a plain twin; what
`read_lists` finds is what Arrow finds, and the tests compare the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.checksum import checksum_at
from penstock.copying import SKIP
from penstock.loader.read_kernels import read_run
from penstock.native import kernel

DONE, READ_FAILED, OUTSIDE, UNUSUAL, DAMAGED = 0, 1, 2, 3, 4

_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.uint64))


@kernel(inline=True)
def _end(ints: Any, longs: Any, at: Any, size: Any, i: Any) -> Any:
    return np.int64(ints[at // 4 + i]) if size == 4 else longs[at // 8 + i]


@kernel
def read_lists(
    stored: Any, blocks: Any, starts: Any, base: Any, views: Any, page: Any, width: Any, sizes: Any, found: Any, to: Any,
    widths: Any,
) -> Any:  # fmt: skip
    """Read blocks to memory and note where each row's entries lie there; copy the other columns to where they go.

    Parameters
    ----------
    stored : tuple of arrays
        Of all blocks: file descriptor, offset, bytes, checksum (or zero), rows, and the places of columns counted from the block's start
        (values and ends of indices, values and ends of values, then the other columns' values and nothing).
    blocks, starts : array
        The blocks to read, and where in memory each goes.
    base, views : int, tuple of arrays
        The memory, as an address and as uint32, int32 and int64.
    page : int
        What reads are widened to.
    width : int
        Indices lie below it, or the block is unusual.
    sizes : tuple of int
        The bytes of an end of the two lists.
    found : tuple of arrays
        For each row: where its indices and values begin, in words of 32 bits, and how many there are.
    to, widths : array
        The addresses of the other columns, and the bytes of a value.

    Returns
    -------
    tuple of int
        `DONE`, or what was met and the place of the block among those read.
    """
    fds, offsets, nbytes, sums, rows, places = stored
    words, ints, longs = views
    index_at, value_at, lengths = found
    size, value_size = sizes
    done = 0
    for k in range(len(blocks)):
        b = blocks[k]
        lead = read_run(np.int32(fds[b]), offsets[b], nbytes[b], base + starts[k], page)
        if lead < 0:
            return READ_FAILED, k
        if sums[b] and checksum_at(base + starts[k] + lead, nbytes[b], offsets[b]) != sums[b]:
            return DAMAGED, k
        first, count = starts[k] + lead, rows[b]
        limit = first + nbytes[b]
        at, ends, value, value_ends = (
            first + places[b, 0], first + places[b, 1], first + places[b, 2], first + places[b, 3],
        )  # fmt: skip
        if min(at, ends, value, value_ends) < first:
            return OUTSIDE, k
        if at % 4 or value % 4 or ends % size or value_ends % value_size:
            return UNUSUAL, k
        for c in range(len(to)):
            source = first + places[b, 4 + 2 * c]
            if source < first or source + count * widths[c] > limit:
                return OUTSIDE, k
            _memcpy(to[c] + done * widths[c], base + source, np.uint64(count * widths[c]))
        if count == 0:
            continue
        if ends + (count + 1) * size > limit or value_ends + (count + 1) * value_size > limit:
            return OUTSIDE, k
        low, other = _end(ints, longs, ends, size, 0), _end(ints, longs, value_ends, value_size, 0)
        before = low
        if low < 0 or other < 0:
            return OUTSIDE, k
        for i in range(count):
            after = _end(ints, longs, ends, size, i + 1)
            if after < before:
                return OUTSIDE, k
            if after - low != _end(ints, longs, value_ends, value_size, i + 1) - other:
                return UNUSUAL, k
            index_at[done + i] = at // 4 + before
            value_at[done + i] = value // 4 + other + (before - low)
            lengths[done + i] = np.uint64(after - before)
            before = after
        if at + 4 * before > limit or value + 4 * (other + before - low) > limit:
            return OUTSIDE, k
        top = np.uint32(0)
        for e in range(at // 4 + low, at // 4 + before):
            top = max(top, words[e])
        if before > low and np.int64(top) >= width:
            return UNUSUAL, k
        done += count
    return DONE, 0


@kernel
def copy_entries(  # noqa: D103 - the twin is the documentation
    words: Any,
    index_at: Any,
    value_at: Any,
    lengths: Any,
    slots: Any,
    scale: Any,
    indptr: Any,
    indices: Any,
    values: Any,
) -> None:
    bits = values.view(np.uint32)
    for i in range(len(slots)):
        if slots[i] == SKIP:
            continue
        to, count = np.int64(indptr[slots[i]]), np.int64(lengths[i])
        index, value = index_at[i], value_at[i]
        for e in range(count):
            indices[to + e] = words[index + e]
            bits[to + e] = words[value + e]
        if len(scale):
            for e in range(to, to + count):
                values[e] *= scale[indices[e]]


def copy_entries_reference(
    words: NDArray[np.uint32],
    index_at: NDArray[np.int64],
    value_at: NDArray[np.int64],
    lengths: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    scale: Floats,
    indptr: NDArray[np.uint64],
    indices: NDArray[np.uint32],
    values: Floats,
) -> None:
    """Copy the entries of row ``i`` to where the row in ``slots[i]`` begins, scaled if there is a scale."""
    for index, value, count, slot in zip(index_at.tolist(), value_at.tolist(), lengths.tolist(), slots.tolist()):
        if slot != SKIP:
            goal = slice(int(indptr[slot]), int(indptr[slot]) + count)
            indices[goal] = words[index : index + count]
            values[goal] = words[value : value + count].view(np.float32)
            if len(scale):
                values[goal] *= scale[indices[goal]]
