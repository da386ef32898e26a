"""What a read of the model costs on this storage: a seek and so much for each record (section 5's t_s and t_u).

Both are measured on a temporary file of a few megabytes, past the page cache where the system lets us: small reads at
random, and reading straight on. Where direct reads are not to be had, the file's pages are dropped from the cache.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.errors import UsageError, WriteError
from penstock.loader.direct import PAGE, aligned, open_direct

MB = 1 << 20
FILE_BYTES = 8 * MB
_SMALL_READS = 128
# The best round counts: other work on the machine only ever slows.
_ROUNDS = 3
# Below what any clock tells apart; a cost of nothing would make every merge, or none, worth while.
_LEAST_SECONDS = 1e-12


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that it takes to read a partition: ``seek`` once and ``unit`` for each of its records.

    Only their ratio decides which features are stored together.

    Examples
    --------
    >>> Cost(seek=100.0, unit=0.5).of(8)
    104.0
    """

    seek: float
    unit: float

    def __post_init__(self) -> None:
        for name, value in (("seek", self.seek), ("unit", self.unit)):
            if not (isfinite(value) and value >= 0):
                raise UsageError(f"{name}={value!r} is not a cost; give seconds, 0 or more")

    def of(self, size: int) -> float:
        """Return the cost of reading a partition of so many records."""
        return self.seek + size * self.unit


def measure_cost(folder: str | os.PathLike[str], *, record_bytes: int = 4) -> Cost:
    """Measure what reads cost where a model is to lie.

    Parameters
    ----------
    folder : path
        A folder on the storage in question, which must take a temporary file of 8 MB.
    record_bytes : int
        The size of one record: 4 for a weight, 8 for a weight with its accumulator.

    Returns
    -------
    Cost
        Both of its parts above zero.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cost = measure_cost(folder)
    >>> cost.seek > 0 and cost.unit > 0
    True
    """
    if record_bytes < 1:
        raise UsageError(f"record_bytes={record_bytes} is not a size; give 1 or more bytes")
    rng = seeds.generator(0, "partition", "cost")
    try:
        with tempfile.TemporaryFile(prefix=".penstock-cost-", dir=folder) as file:
            file.write(rng.bytes(FILE_BYTES))  # of chance, so that a storage that compresses gains nothing
            file.flush()
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())  # what is not yet written cannot leave the cache
            direct = open_direct(file.fileno(), nbytes=sys.maxsize)
            try:
                return _measure(file.fileno() if direct is None else direct, rng, record_bytes)
            finally:
                if direct is not None:
                    os.close(direct)
    except OSError as error:
        raise WriteError(
            f"{os.fspath(folder)}: cannot measure storage there ({error.strerror or error});"
            f" give a folder that exists and has {FILE_BYTES // MB} MB free"
        ) from error


def _measure(fd: int, rng: np.random.Generator, record_bytes: int) -> Cost:
    page, run = aligned(PAGE)[:PAGE], aligned(MB)[:MB]
    places = rng.choice(FILE_BYTES // PAGE, _SMALL_READS, replace=False) * PAGE
    straight, small = [], []
    for _ in range(_ROUNDS):
        straight.append(sum(_times(fd, range(0, FILE_BYTES, MB), run)))
        small.append(float(np.median(_times(fd, places.tolist(), page))))
    unit = max(min(straight) / FILE_BYTES * record_bytes, _LEAST_SECONDS)
    # A small read also carries its records; what is left is the seek.
    seek = max(min(small) - PAGE / record_bytes * unit, _LEAST_SECONDS)
    return Cost(seek, unit)


def _times(fd: int, places: Iterable[int], buffer: NDArray[np.uint8]) -> list[float]:
    """Return the seconds that each read takes, of what is not in the page cache."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    found = []
    for place in places:
        began = time.perf_counter()
        os.preadv(fd, [buffer.data], place)
        found.append(time.perf_counter() - began)
    return found
