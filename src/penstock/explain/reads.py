"""Reads of one file, timed: at random places or straight on, one at a time or many in flight, from storage.

What is to be read is put out of the page cache first, and asked after: a page that can be had without waiting was
cached. The reads themselves are a compiled loop over ``pread``, so that threads do not wait for the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.native import kernel

KB, MB = 1 << 10, 1 << 20
LARGEST = 50 * MB

_POINT_BYTES, _POINT_SECONDS = 16 * MB, 0.04
_SEQUENTIAL_BYTES, _SEQUENTIAL_SECONDS = 32 * MB, 0.08
_WHOLE = 4 << 30  # a file up to this size is put out of the cache at one stroke

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64))


class Reader:
    """A file read at many places, timed; a context manager.

    Attributes
    ----------
    size : int
        The file's.
    bytes_read : int
        So far.
    """

    def __init__(self, path: str) -> None:
        self.size = os.path.getsize(path)
        self.bytes_read = 0
        self._seen = self._resident = 0
        # Touched beforehand: a read into memory that the system has yet to find would be charged for that.
        self._buffer = np.ones(min(self.size, LARGEST), np.uint8)
        self._random = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._forward = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._random, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(self._forward, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        with contextlib.suppress(OSError):
            os.fsync(self._random)  # what is not yet written cannot leave the cache

    @property
    def cold(self) -> bool | None:
        """Whether what was read was not cached; None where that cannot be told."""
        return self._resident <= 0.05 * self._seen if self._seen else None

    def scattered(self, rng: np.random.Generator, size: int, *, threads: int) -> float:
        """Read distinct blocks of one size at random places; return bytes a second."""
        count = int(min(self.size // size, max(_POINT_BYTES // size, 2 if size <= 10 * MB else 1)))
        places = rng.choice(self.size // size, count, replace=False).astype(np.int64) * size
        return self.time(places, size, threads=threads)

    def straight(self, rng: np.random.Generator, *, threads: int) -> float:
        """Read one long stretch from its start on; return bytes a second."""
        step = min(MB, self.size)
        steps = self.size // step
        count = min(steps, _SEQUENTIAL_BYTES // step)
        first = int(rng.integers(0, steps - count + 1))
        places = np.arange(first, first + count, dtype=np.int64) * step
        return self.time(places, step, threads=threads, forward=threads == 1, seconds=_SEQUENTIAL_SECONDS)

    def time(
        self,
        places: NDArray[np.int64],
        size: int,
        *,
        threads: int,
        evict: bool = True,
        forward: bool = False,
        seconds: float = _POINT_SECONDS,
    ) -> float:
        """Read a block at each place, as many as time allows; return bytes a second."""
        if evict:
            self._evict(places, size)
        fd = self._forward if forward else self._random
        # Few system calls a turn, so that the clock is looked at often enough.
        turns = iter(np.array_split(places, max(1, len(places) * size // (256 * KB))) if len(places) else [])
        room = len(self._buffer) // size
        began = time.perf_counter()

        def work(thread: int) -> int:
            # What is read is of no interest, so large reads may overwrite one another's.
            at = thread % room * size
            buffer = self._buffer[at : at + size]
            total = 0
            while (turn := next(turns, None)) is not None:  # a list's iterator hands each turn out once
                got = int(read_ranges(fd, turn, size, buffer))
                if got < 0:
                    raise OSError(f"a read of {size} bytes failed")
                total += got
                if time.perf_counter() - began > seconds:
                    break
            return total

        if threads == 1:
            total = work(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                total = sum(pool.map(work, range(min(threads, len(places)))))
        self.bytes_read += total
        return total / max(time.perf_counter() - began, 1e-9)

    def _evict(self, places: NDArray[np.int64], size: int) -> None:
        if self.size <= _WHOLE:
            os.posix_fadvise(self._random, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            for at in places.tolist():
                os.posix_fadvise(self._random, at, size, os.POSIX_FADV_DONTNEED)
        for at in places[:: max(1, len(places) // 16)].tolist():
            cached = _is_cached(self._random, at)
            if cached is not None:
                self._seen += 1
                self._resident += cached

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._random)
        os.close(self._forward)


@kernel
def read_ranges(fd: int, places: NDArray[np.int64], size: int, buffer: NDArray[np.uint8]) -> np.int64:
    """Read ``size`` bytes at each place, without the GIL; return the bytes read, or -1 where a read failed."""
    total = np.int64(0)
    for k in range(len(places)):
        got = np.int64(0)
        while got < size:
            n = _pread(fd, buffer[got:].ctypes, np.uint64(size - got), places[k] + got)
            if n <= 0:
                return np.int64(-1)
            got += n
        total += got
    return total


def read_ranges_reference(fd: int, places: NDArray[np.int64], size: int, buffer: NDArray[np.uint8]) -> int:
    """Say what `read_ranges` does."""
    for place in places.tolist():
        data = os.pread(fd, size, place)
        if len(data) < size:
            return -1
        buffer[:size] = np.frombuffer(data, np.uint8)
    return size * len(places)


def _is_cached(fd: int, place: int) -> bool | None:
    """Say whether a page is in the page cache, by asking for it without waiting; None where that is not possible."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:
        return None
