"""Reads that go past the page cache, for files larger than the memory that could cache them.

Such a file's pages are evicted before they are used again, so caching them only costs copies and reclaim. With many
direct reads in flight, blocks in random order come about as fast as in sequence.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from penstock.budget import available_memory

PAGE = 4096
"""What direct reads are aligned to: offset, length and memory alike."""
LEAST = 256_000_000
"""Bytes of a file below which nobody lacks the memory to cache it."""


def open_direct(fd: int, *, nbytes: int) -> int | None:
    """Open the file behind a descriptor once more, for direct reads, if it is too large to be cached.

    Returns None where the cache can hold it, or where the system or file system has no direct reads.
    """
    if not hasattr(os, "O_DIRECT") or nbytes < max(LEAST, available_memory() // 2):
        return None
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    try:
        os.preadv(direct, [aligned(PAGE).data], 0)
    except OSError:
        os.close(direct)
        return None
    return direct


def room(largest: int, *, nbytes: int) -> int:
    """Return the memory that a thread's reads of a file take, in whichever way it will be read.

    The plan, and with it which rows meet in a window, must not hang on what else the machine is doing.
    """
    return largest + 3 * PAGE if nbytes >= LEAST else largest


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Return memory for reads of up to so many bytes from any offset, begun and ended at page borders."""
    size = -(-nbytes // PAGE) * PAGE + PAGE
    raw = np.empty(size + PAGE, np.uint8)
    shift = -raw.ctypes.data % PAGE
    return raw[shift : shift + size]


class DirectFiles:
    """Second descriptors of files, for direct reads, by the first; empty where the page cache can hold the data."""

    def __init__(self, fds: NDArray[np.int64], *, nbytes: int) -> None:
        self._opened: dict[int, int] = {}
        for fd in np.unique(fds).tolist():
            direct = open_direct(fd, nbytes=nbytes)
            if direct is not None:
                self._opened[fd] = direct

    def get(self, fd: int) -> int | None:
        """Return the descriptor for direct reads of a file, if there is one."""
        return self._opened.get(fd)

    def instead_of(self, fds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return descriptors with those opened for direct reads in their place."""
        names, place = np.unique(fds, return_inverse=True)
        return np.array([self._opened.get(fd, fd) for fd in names.tolist()], np.int64)[place]

    def __len__(self) -> int:
        return len(self._opened)

    def close(self) -> None:
        """Close them all."""
        for fd in self._opened.values():
            os.close(fd)
        self._opened.clear()
