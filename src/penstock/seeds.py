"""One seed for a run; from it a generator or a key for every place that needs chance.

A place is named by words and numbers, ``(purpose, epoch, window, …)``, so the same place gets the same
randomness whatever the number of threads or workers, and two places never share a stream.
"""

from __future__ import annotations

import zlib

import numpy as np


def _sequence(seed: int, place: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(p.encode()) if isinstance(p, str) else int(p) for p in place]
    return np.random.SeedSequence(entropy=int(seed), spawn_key=tuple(words))


def generator(seed: int, *place: str | int) -> np.random.Generator:
    """Return the generator that belongs to one place of a run.

    Examples
    --------
    >>> bool((generator(7, "blocks", 0).permutation(5) == generator(7, "blocks", 0).permutation(5)).all())
    True
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, place)))


def key(seed: int, *place: str | int) -> int:
    """Return the 64-bit key that belongs to one place, for kernels that make their own chance."""
    low, high = _sequence(seed, place).generate_state(2, np.uint32)
    return int(high) << 32 | int(low)
