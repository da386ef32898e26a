"""Times reads of a storage: random blocks of several sizes and sequential ones, one at a time and many in flight (section 7.2.4).

What is to be read is first put out of the page cache, and whether it really was is checked: a page that can be had without
waiting was cached. The reads are a compiled loop over ``pread``, so that threads do not wait for the interpreter. Time and
bytes are bounded.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock import seeds
from penstock.closing import Closing
from penstock.native import kernel

KB, MB = 1 << 10, 1 << 20
IN_FLIGHT = 16
_LARGEST = 50 * MB
_SIZES = (4 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 10 * MB, _LARGEST)
SMALLEST_FILE = 192 * MB
_NEAR = 0.9
_POINT_BYTES, _POINT_SECONDS = 16 * MB, 0.04
_SEQUENTIAL_BYTES, _SEQUENTIAL_SECONDS = 32 * MB, 0.08
_WHOLE = 4 << 30  # a file up to this size is put out of the cache at one stroke
# Each point is measured in several rounds and the best one counts: other work on the machine only ever slows.
_ROUNDS = 5

_pread = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64))


@dataclass(frozen=True, slots=True)
class BlockSpeed:
    """Bytes a second when blocks of one size are read at random, one at a time and many in flight."""

    block_bytes: int
    one: float
    many: float


@dataclass(frozen=True, slots=True)
class StorageSpeeds:
    """What was measured of a storage, in bytes a second.

    ``cached`` is reading from the page cache; ``cold`` says whether the ranges were out of it before they were read, None
    where that cannot be told; ``bytes_read`` and ``seconds`` are what measuring took.
    """

    place: str
    points: tuple[BlockSpeed, ...]
    sequential: float
    sequential_many: float
    cached: float
    cold: bool | None
    bytes_read: int
    seconds: float

    def knee(self, *, many: bool) -> int | None:
        """Return the smallest block size that comes within 10 % of sequential reading; None if none does."""
        sequential = self.sequential_many if many else self.sequential
        return next((p.block_bytes for p in self.points if (p.many if many else p.one) >= _NEAR * sequential), None)

    def random(self, block_bytes: float, *, many: bool) -> float:
        """Return the bandwidth for blocks of any size, by interpolation between those measured."""
        sizes = np.log([p.block_bytes for p in self.points])
        speeds = np.log([p.many if many else p.one for p in self.points])
        return float(np.exp(np.interp(np.log(max(block_bytes, 1.0)), sizes, speeds)))

    def to_dict(self) -> dict[str, Any]:
        knees = {f"near_sequential_{name}": self.knee(many=name == "many") for name in ("one", "many")}
        return {**asdict(self), "points": [asdict(p) for p in self.points], "in_flight": IN_FLIGHT, **knees}


def measure_storage(files: Sequence[str], *, seed: int = 0) -> StorageSpeeds | str:
    """Measure the storage of some files, on the largest of them or on a temporary file on the same device.

    Returns a sentence on why nothing was measured, where that is so.
    """
    local = [f for f in files if os.path.isfile(f)]
    if not local:
        return "the data are not in local files"
    if not hasattr(os, "posix_fadvise"):
        return "this system cannot put a file out of its page cache"
    largest = max(local, key=os.path.getsize)
    try:
        if os.path.getsize(largest) >= SMALLEST_FILE:
            return measure_file(largest, seed=seed)
        folder = _folder_like(largest)
        if folder is None:
            return f"{largest} is too small to measure and no folder on the same device can be written to"
        with random_file(folder, SMALLEST_FILE, seed) as path:
            return measure_file(path, seed=seed, place=f"a temporary file in {folder}")
    except OSError as error:
        return f"reading failed: {error.strerror or error}"


def measure_file(path: str, *, seed: int = 0, place: str | None = None) -> StorageSpeeds:
    """Measure reads of one file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(bytes(1 << 20))
    ...     file.flush()
    ...     speeds = measure_file(file.name)
    >>> [p.block_bytes for p in speeds.points]
    [4096, 16384, 65536, 262144]
    """
    began = time.perf_counter()
    rng = seeds.generator(seed, "explain", "storage")
    with ReadTimer(path) as timer:
        sequential = [0.0, 0.0]
        speeds = {size: [0.0, 0.0] for size in _SIZES if size * 4 <= timer.size}
        for _ in range(_ROUNDS):
            for k, threads in enumerate((1, IN_FLIGHT)):
                sequential[k] = max(sequential[k], timer.sequential(rng, threads=threads))
                for size, best in speeds.items():
                    best[k] = max(best[k], timer.random(rng, size, threads=threads))
        span = np.arange(0, min(timer.size, 16 * MB) // MB * MB, MB, dtype=np.int64)
        warm = [timer.time(span, MB, threads=IN_FLIGHT, evict=False) for _ in range(_ROUNDS) if len(span)]
        return StorageSpeeds(
            place=place or path,
            points=tuple(BlockSpeed(size, *best) for size, best in speeds.items()),
            sequential=sequential[0],
            sequential_many=sequential[1],
            cached=max(warm, default=sequential[1]),  # the first time brings it in
            cold=timer.cold,
            bytes_read=timer.bytes_read,
            seconds=time.perf_counter() - began,
        )


class ReadTimer(Closing):
    """A file that is read at many places, timed; a context manager. ``bytes_read`` counts up."""

    def __init__(self, path: str) -> None:
        self.size = os.path.getsize(path)
        self.bytes_read = 0
        self._seen = self._resident = 0
        # Touched beforehand: a read into memory that the system has yet to find would be charged for that.
        self._buffer = np.ones(min(self.size, _LARGEST), np.uint8)
        self._random, self._forward = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._random, 0, 0, os.POSIX_FADV_RANDOM)
            os.posix_fadvise(self._forward, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        with contextlib.suppress(OSError):
            os.fsync(self._random)  # what is not yet written cannot leave the cache
        self.time(np.zeros(1, np.int64), min(self.size, 4 * KB), threads=1, evict=False)  # compiled and awake

    @property
    def cold(self) -> bool | None:
        """Whether what was read was not cached; None where that cannot be told."""
        return self._resident <= 0.05 * self._seen if self._seen else None

    def random(self, rng: np.random.Generator, size: int, *, threads: int) -> float:
        """Read distinct blocks of one size at random places; return bytes a second."""
        count = int(min(self.size // size, max(_POINT_BYTES // size, 2 if size <= 10 * MB else 1)))
        places = rng.choice(self.size // size, count, replace=False).astype(np.int64) * size
        return self.time(places, size, threads=threads)

    def sequential(self, rng: np.random.Generator, *, threads: int) -> float:
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
        if evict and hasattr(os, "posix_fadvise"):
            self._evict(places, size)
        fd = self._forward if forward else self._random
        # Few system calls a turn, so that the clock is looked at often enough.
        turns = iter(np.array_split(places, max(1, len(places) * size // (256 * KB))) if len(places) else [])
        room = len(self._buffer) // max(1, size)
        began = time.perf_counter()

        def work(thread: int) -> int:
            # What is read is of no interest, so large reads may overwrite one another's.
            at = thread % room * size
            buffer = self._buffer[at : at + size]
            total = 0
            while (turn := next(turns, None)) is not None:  # a list's iterator hands each turn out once
                count = int(read_ranges(fd, turn, size, buffer))
                if count < 0:
                    raise OSError(f"a read of {size} bytes failed")
                total += count
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
        ranges = [(0, 0)] if self.size <= _WHOLE else [(at, size) for at in places.tolist()]
        for at, length in ranges:
            os.posix_fadvise(self._random, at, length, os.POSIX_FADV_DONTNEED)
        for at in places[:: max(1, len(places) // 16)].tolist():
            cached = _is_cached(self._random, at)
            if cached is not None:
                self._seen += 1
                self._resident += cached

    def close(self) -> None:
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


def _folder_like(path: str) -> str | None:
    """Return a folder to write to on the device of the file: the system's temporary one, or the file's own."""
    device = os.stat(path).st_dev
    for folder in (tempfile.gettempdir(), os.path.dirname(os.path.abspath(path))):
        with contextlib.suppress(OSError):
            room = os.statvfs(folder)
            free = room.f_bavail * room.f_frsize
            if os.stat(folder).st_dev == device and os.access(folder, os.W_OK) and free > 8 * SMALLEST_FILE:
                return folder
    return None


@contextlib.contextmanager
def random_file(folder: str | os.PathLike[str], size: int, seed: int = 0) -> Iterator[str]:
    """Give a temporary file of random bytes, which a storage that compresses cannot gain from."""
    piece = seeds.generator(seed, "explain", "file").bytes(MB)
    unnamed = os.path.isdir("/proc/self/fd")  # nothing is left of such a file where the process is killed
    make: Any = tempfile.TemporaryFile if unnamed else tempfile.NamedTemporaryFile
    with make(dir=folder) as file:
        for _ in range(size // MB):
            file.write(piece)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if unnamed else file.name
