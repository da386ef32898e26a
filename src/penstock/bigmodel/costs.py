"""What a read of the model costs on this storage: a seek and so much for each record (section 5's t_s and t_u).

Both are measured on a temporary file of a few megabytes, out of the page cache: small reads at random, and sequential ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import isfinite

from penstock import seeds
from penstock.errors import UsageError, WriteError
from penstock.loader.direct_reads import PAGE
from penstock.storage_timer import MB, ReadTimer, random_file

FILE_BYTES = 8 * MB
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
                raise UsageError("is not a cost", option=name, value=value, fixes=["give seconds, 0 or more"])

    def of(self, size: int) -> float:
        """Return the cost of reading a partition of so many records."""
        return self.seek + size * self.unit


def measure_cost(folder: str | os.PathLike[str], *, record_bytes: int = 4) -> Cost:
    """Measure what reads of a model in a folder cost; both parts are above zero.

    ``record_bytes`` is the size of one record: 4 for a weight, 8 for a weight with its accumulator. The folder must take a
    temporary file of 8 MB.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cost = measure_cost(folder)
    >>> cost.seek > 0 and cost.unit > 0
    True
    """
    if record_bytes < 1:
        raise UsageError("is not a size", option="record_bytes", value=record_bytes, fixes=["give 1 or more bytes"])
    rng = seeds.generator(0, "partition", "cost")
    try:
        with random_file(folder, FILE_BYTES) as path, ReadTimer(path) as timer:
            rounds = [(timer.sequential(rng, threads=1), timer.random(rng, PAGE, threads=1)) for _ in range(_ROUNDS)]
    except OSError as error:
        raise WriteError(
            f"{os.fspath(folder)}: cannot measure storage there ({error.strerror or error});"
            f" give a folder that exists and has {FILE_BYTES // MB} MB free"
        ) from error
    sequential, small = (max(speeds) for speeds in zip(*rounds, strict=True))
    unit = max(record_bytes / sequential, _LEAST_SECONDS)
    # A small read also carries its records; what is left is the seek.
    return Cost(max(PAGE / small - PAGE / record_bytes * unit, _LEAST_SECONDS), unit)
