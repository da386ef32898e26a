"""How fast this storage reads blocks at random, by the size of a block (section 7.2.4's tool).

Distinct ranges of the file itself are read, after they were put out of the page cache, one at a time and with
many reads in flight, and compared with reading straight on. Time and bytes are bounded; whether the ranges
really were not cached is checked, and said.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock import seeds
from penstock.explain.reads import KB, LARGEST, MB, Reader

IN_FLIGHT = 16
SIZES = (4 * KB, 16 * KB, 64 * KB, 256 * KB, 1 * MB, 4 * MB, 10 * MB, LARGEST)
SMALLEST_FILE = 192 * MB
NEAR = 0.9

# Each point is measured in several rounds and the best one counts: other work on the machine only ever slows.
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """Bytes a second when blocks of one size are read at random, one at a time and many in flight."""

    block_bytes: int
    one: float
    many: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What was measured of a storage, in bytes a second.

    Attributes
    ----------
    place : str
        What was read.
    points : tuple of Point
        Random reads, by block size.
    sequential, sequential_many : float
        Reading straight on, by one reader and with many reads in flight.
    cached : float
        Reading what is in the page cache.
    cold : bool or None
        Whether the ranges were out of the page cache before they were read; None where that cannot be told.
    bytes_read : int
        How much was read to find out.
    seconds : float
        How long it took.
    """

    place: str
    points: tuple[Point, ...]
    sequential: float
    sequential_many: float
    cached: float
    cold: bool | None
    bytes_read: int
    seconds: float

    def knee(self, *, many: bool) -> int | None:
        """Return the smallest block size that comes within 10 % of reading straight on; None if none does."""
        straight = self.sequential_many if many else self.sequential
        return next((p.block_bytes for p in self.points if (p.many if many else p.one) >= NEAR * straight), None)

    def random(self, block_bytes: float, *, many: bool) -> float:
        """Return the bandwidth for blocks of any size, by interpolation between those measured."""
        sizes = np.log([p.block_bytes for p in self.points])
        speeds = np.log([p.many if many else p.one for p in self.points])
        return float(np.exp(np.interp(np.log(max(block_bytes, 1.0)), sizes, speeds)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            **asdict(self),
            "points": [asdict(p) for p in self.points],
            "in_flight": IN_FLIGHT,
            "near_sequential_one": self.knee(many=False),
            "near_sequential_many": self.knee(many=True),
        }


def measure_storage(files: Sequence[str], *, seed: int = 0) -> Curve | str:
    """Measure where the files lie, on the largest of them, or on a temporary file on the same device.

    Returns
    -------
    Curve or str
        What was measured, or a sentence on why nothing was.
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
        with _temporary(folder, SMALLEST_FILE, seed) as path:
            return measure_file(path, seed=seed, place=f"a temporary file in {folder}")
    except OSError as error:
        return f"reading failed: {error.strerror or error}"


def measure_file(path: str, *, seed: int = 0, place: str | None = None) -> Curve:
    """Measure reads of one file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(bytes(1 << 20))
    ...     file.flush()
    ...     curve = measure_file(file.name)
    >>> [p.block_bytes for p in curve.points]
    [4096, 16384, 65536, 262144]
    """
    began = time.perf_counter()
    rng = seeds.generator(seed, "explain", "storage")
    with Reader(path) as reader:
        reader.time(np.zeros(1, np.int64), min(reader.size, 4 * KB), threads=1, evict=False)  # compiled and awake
        straight = [0.0, 0.0]
        speeds = {size: [0.0, 0.0] for size in SIZES if size * 4 <= reader.size}
        for _ in range(_ROUNDS):
            for k, threads in enumerate((1, IN_FLIGHT)):
                straight[k] = max(straight[k], reader.straight(rng, threads=threads))
                for size, best in speeds.items():
                    best[k] = max(best[k], reader.scattered(rng, size, threads=threads))
        points = [Point(size, *best) for size, best in speeds.items()]
        span = np.arange(0, min(reader.size, 16 * MB) // MB * MB, MB, dtype=np.int64)
        warm = [reader.time(span, MB, threads=IN_FLIGHT, evict=False) for _ in range(_ROUNDS) if len(span)]
        return Curve(
            place=place or path,
            points=tuple(points),
            sequential=straight[0],
            sequential_many=straight[1],
            cached=max(warm, default=straight[1]),  # the first time brings it in
            cold=reader.cold,
            bytes_read=reader.bytes_read,
            seconds=time.perf_counter() - began,
        )


def _folder_like(path: str) -> str | None:
    """Return a folder to write to on the device of the file: the system's temporary one, or the file's own."""
    device = os.stat(path).st_dev
    for folder in (tempfile.gettempdir(), os.path.dirname(os.path.abspath(path))):
        with contextlib.suppress(OSError):
            room = os.statvfs(folder)
            if (
                os.stat(folder).st_dev == device
                and os.access(folder, os.W_OK)
                and room.f_bavail * room.f_frsize > 8 * SMALLEST_FILE
            ):
                return folder
    return None


@contextlib.contextmanager
def _temporary(folder: str, size: int, seed: int) -> Iterator[str]:
    # Bytes of chance, so that a storage that compresses gains nothing.
    piece = seeds.generator(seed, "explain", "file").bytes(MB)
    with tempfile.NamedTemporaryFile(prefix=".penstock-explain-", dir=folder) as file:
        for _ in range(size // MB):
            file.write(piece)
        file.flush()
        yield file.name
