"""The native loops that bring rows of any columns from a file to memory, by addresses.

`read_blocks` reads whole blocks and puts each row's columns into its slot. `read_pieces` reads single rows: pieces of
the file in ascending order, neighbours joined into one read where the gap between them costs less than a read of its
own; `lay_out` says which pieces those are. Both call ``pread`` inside the compiled loop: one call per thread and task,
no GIL. Each has a plain twin.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.checksum import checksum_at
from penstock.copying import SKIP
from penstock.native import kernel, prefetch_address

DONE, READ_FAILED, DAMAGED = 0, 1, 2
_AHEAD, _LINE, _LINES = 16, 64, 4

# Addresses are passed as numbers; both are resolved in the process's own C library, so compiled code can be cached.
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.uint64, types.int64))
_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.uint64))


@kernel
def read_run(fd: Any, at: Any, nbytes: Any, staging: Any, page: Any) -> Any:
    """Read a run of bytes to the staging address, widened to page borders; return where it begins there, or -1."""
    lead = at % page
    end = lead + nbytes
    size = (end + page - 1) // page * page
    got = np.int64(0)
    while got < end:
        n = _pread(fd, staging + got, np.uint64(size - got), at - lead + got)
        if n <= 0:
            return np.int64(-1)
        got += n
    return np.int64(lead)


@kernel
def read_blocks(  # noqa: D103 - the twin is the documentation
    fds: Any,
    blocks: Any,
    starts: Any,
    slots: Any,
    offsets: Any,
    nbytes: Any,
    sums: Any,
    rows: Any,
    at: Any,
    widths: Any,
    to: Any,
    staging: Any,
    page: Any,
    whole: Any,
) -> Any:
    for k in range(len(blocks)):
        b = blocks[k]
        start = starts[k]
        count = rows[b]
        if count == 0:
            continue
        lead = np.int64(0)
        if whole:
            lead = read_run(np.int32(fds[b]), offsets[b], nbytes[b], staging, page)
            if lead < 0:
                return READ_FAILED, k
            if sums[b] and checksum_at(staging + lead, nbytes[b], offsets[b]) != sums[b]:
                return DAMAGED, k
        for c in range(len(widths)):
            width = widths[c]
            source = staging + lead + at[c, b] - offsets[b]
            if not whole:  # its columns lie apart
                lead = read_run(np.int32(fds[b]), at[c, b], count * width, staging, page)
                if lead < 0:
                    return READ_FAILED, k
                source = staging + lead
            base = to[c]
            for i in range(count):
                if i + _AHEAD < count:
                    ahead = slots[start + i + _AHEAD]
                    if ahead != SKIP:
                        place = base + np.int64(ahead) * width
                        for j in range(0, min(width, _LINES * _LINE), _LINE):
                            prefetch_address(place + j)
                slot = slots[start + i]
                if slot != SKIP:
                    _memcpy(base + np.int64(slot) * width, source + i * width, np.uint64(width))
    return DONE, 0


def read_blocks_reference(
    fds: NDArray[np.int64],
    blocks: NDArray[np.int64],
    starts: NDArray[np.int64],
    slots: NDArray[np.uint32],
    at: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: list[NDArray[Any]],
) -> None:
    """Put row ``i`` of block ``k`` at ``slots[starts[k] + i]`` of each column; skip rows whose slot is `SKIP`."""
    for start, b in zip(starts, blocks):
        place = slots[start : start + rows[b]]
        for c, column in enumerate(out):
            row_bytes = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
            raw = os.pread(int(fds[b]), int(rows[b]) * row_bytes, int(at[c, b]))
            values = np.frombuffer(raw, column.dtype).reshape(int(rows[b]), *column.shape[1:])
            column[place[place != SKIP]] = values[place != SKIP]


@kernel
def read_pieces(  # noqa: D103 - the twin is the documentation
    fd: Any, at: Any, nbytes: Any, to: Any, gap: Any, staging: Any, room: Any, page: Any
) -> Any:
    total = np.int64(0)
    first = 0
    while first < len(at):
        end = at[first] + nbytes[first]
        last = first + 1
        while last < len(at) and at[last] <= end + gap and at[last] + nbytes[last] - at[first] <= room:
            end = max(end, at[last] + nbytes[last])
            last += 1
        begin = at[first]
        # A piece larger than the staging memory comes in several reads.
        while begin < end:
            size = min(end - begin, room)
            lead = read_run(np.int32(fd), begin, size, staging, page)
            if lead < 0:
                return READ_FAILED, first, total
            total += size
            for i in range(first, last):
                if i + _AHEAD < last:
                    for j in range(0, min(nbytes[i + _AHEAD], _LINES * _LINE), _LINE):
                        prefetch_address(to[i + _AHEAD] + j)
                low, high = max(at[i], begin), min(at[i] + nbytes[i], begin + size)
                if low < high:
                    _memcpy(to[i] + low - at[i], staging + lead + low - begin, np.uint64(high - low))
            begin += size
        first = last
    return DONE, 0, total


def read_pieces_reference(fd: int, at: NDArray[np.int64], nbytes: NDArray[np.int64], to: NDArray[np.int64]) -> None:
    """Read ``nbytes[i]`` bytes at ``at[i]`` of the file to the address ``to[i]``."""
    for offset, size, address in zip(at.tolist(), nbytes.tolist(), to.tolist(), strict=True):
        raw = os.pread(fd, size, offset)
        ctypes.memmove(address, raw, len(raw))


@kernel
def lay_out(owner: Any, local: Any, slots: Any, at: Any, widths: Any, to: Any) -> Any:  # noqa: D103 - see the twin
    count = len(owner) * len(widths)
    place, nbytes, goal = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    k = first = 0
    while first < len(owner):
        b = owner[first]
        last = first + 1
        while last < len(owner) and owner[last] == b:
            last += 1
        for c in range(len(widths)):
            width, begin, base = widths[c], at[c, b], to[c]
            for i in range(first, last):
                place[k] = begin + local[i] * width
                nbytes[k] = width
                goal[k] = base + np.int64(slots[i]) * width
                k += 1
        first = last
    return place, nbytes, goal


def lay_out_reference(
    owner: NDArray[np.int64],
    local: NDArray[np.int64],
    slots: NDArray[np.uint32],
    at: NDArray[np.int64],
    widths: NDArray[np.int64],
    to: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where rows of fixed width lie, block by block and in each column by column: place, bytes and goal.

    Row ``i`` is row ``local[i]`` of block ``owner[i]`` and goes to ``slots[i]`` of memory that begins, for column
    ``c``, at the address ``to[c]``.
    """
    pieces = [
        (at[c, b] + local[i] * width, width, to[c] + int(slots[i]) * width)
        for b in np.unique(owner)
        for c, width in enumerate(widths)
        for i in np.flatnonzero(owner == b)
    ]
    place, nbytes, goal = np.array(pieces, np.int64).reshape(-1, 3).T
    return place, nbytes, goal
