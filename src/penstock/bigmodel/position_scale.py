"""How the features of a model on disk are scaled: in bounded memory, however many there are.

Each of the most frequent features, which have the first positions, is brought to a root mean square of 1 over the values
that are not 0, and all others together to one; nothing is centered, so rows stay sparse. Both are told from a sample of the
rows. Flags, whose values are all 1, stay as they are, and then nothing is done at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from penstock import seeds
from penstock.batch import Batch, Csr, Floats, Indices
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.linear import encoded

_ROWS = 100_000
_FEW = 10
"""Values of a feature in the sample below which it is scaled as the rare ones are."""


@dataclass(frozen=True, slots=True)
class PositionScale:
    """The factors of features by position; the last is that of all positions from there on.

    Examples
    --------
    >>> scale = PositionScale(np.array([0.5, 2.0, 1.0], np.float32))
    >>> scale.values(np.array([1, 0, 7], np.uint32), np.array([1, 2, 3], np.float32)).tolist()
    [2.0, 1.0, 3.0]
    """

    factors: Floats

    @classmethod
    def of(cls, batches: Iterable[Batch], own: int) -> Self | None:
        """Return the scale of rows whose indices are positions, the first ``own`` of which have factors of their own.

        None where it changes nothing.
        """
        squares, counts = np.zeros(own + 1), np.zeros(own + 1, np.int64)
        for batch in batches:
            assert isinstance(batch.x, Csr)
            there = batch.x.values != 0
            at = np.minimum(batch.x.indices[there], own).astype(np.int64)
            squares += np.bincount(at, batch.x.values[there].astype(np.float64) ** 2, own + 1)
            counts += np.bincount(at, minlength=own + 1)
        few = counts[:-1] < _FEW
        squares[-1] += squares[:-1][few].sum()
        counts[-1] += counts[:-1][few].sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.sqrt(counts / squares)
        rest = factors[-1] if np.isfinite(factors[-1]) else 1.0
        factors[:-1][few] = rest
        factors[~np.isfinite(factors)] = rest
        return None if (factors == 1).all() else cls(factors.astype(np.float32))

    @classmethod
    def sampled(cls, source: BlockSource, encoder: Encoder, *, own: int, seed: int) -> Self | None:
        """Return the scale of prepared rows, from blocks drawn at random."""
        drawn = seeds.generator(seed, "position_scale", "blocks").permutation(len(source.block_rows))
        drawn = drawn[: int(np.searchsorted(np.cumsum(source.block_rows[drawn]), _ROWS)) + 1]
        blocks = np.sort(drawn).tolist()
        return cls.of((encoded(encoder, source, each, source.read(each, encoder.columns)) for each in blocks), own)

    def values(self, positions: Indices, values: Floats) -> Floats:
        """Return the values of entries at positions, scaled."""
        scaled: Floats = values * self.factors.take(positions, mode="clip")
        return scaled
