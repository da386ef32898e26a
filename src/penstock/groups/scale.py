"""Features brought to mean 0 and spread 1 within each group, without touching the rows.

Scores at weights for scaled features are those at other weights for the features as they are; so rows are summed as they
lie, and only weights and gradients are carried from one scale to the other. Sparse features are brought to one root mean
square and not shifted, which would fill their zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.sgd.full import Sums

Doubles = NDArray[np.float64]
_TILE = 8192
"""Rows that are looked at together as float64."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of features and of their squares over rows to learn from, by the rows' weights."""

    weight: float
    total: Doubles
    squares: Doubles

    @classmethod
    def none(cls, width: int) -> Moments:
        """Return those of no rows."""
        return cls(0.0, np.zeros(width), np.zeros(width))

    @classmethod
    def of(cls, batch: Batch, hold: NDArray[np.bool_] | None) -> Moments:
        """Add up rows that are not held out."""
        mass = np.ones(len(batch), np.float32) if batch.weight is None else batch.weight
        if hold is not None:
            mass = np.where(hold, np.float32(0), mass)
        x, total = batch.x, float(mass.sum(dtype=np.float64))
        if isinstance(x, Csr):
            each = np.repeat(mass, np.diff(x.indptr).astype(np.int64)).astype(np.float64) * x.values
            sums = [np.bincount(x.indices, each * power, minlength=x.width) for power in (1.0, x.values)]
            return cls(total, sums[0].astype(np.float64), sums[1].astype(np.float64))
        found = cls.none(x.shape[1])
        for at in range(0, len(x), _TILE):
            taken = np.flatnonzero(mass[at : at + _TILE]) + at  # others may hold what is not finite
            own, tile = mass[taken].astype(np.float64), x[taken].astype(np.float64)
            found += cls(0.0, own @ tile, own @ tile**2)
        return replace(found, weight=total)

    @classmethod
    def of_parts(cls, parts: Sequence[tuple[Batch, NDArray[np.bool_] | None]]) -> Moments:
        """Add up the rows of some parts, at least one."""
        return sum((cls.of(batch, hold) for batch, hold in parts), cls.none(parts[0][0].width))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.weight + other.weight, self.total + other.total, self.squares + other.squares)


@dataclass(frozen=True, slots=True)
class Scale:
    """The way between weights for scaled features and for features as they are.

    Examples
    --------
    >>> x = np.array([[1.0], [3.0]], np.float32)
    >>> scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    >>> scale.mean, scale.spread
    (array([2.]), array([1.]))
    >>> scale.raw(np.array([[4.0], [0.5]])).ravel()  # 4 * (x - 2) + 0.5
    array([ 4. , -7.5])
    """

    mean: Doubles
    spread: Doubles

    @classmethod
    def of(cls, moments: Moments, *, shift: bool) -> Scale:
        """Take mean and spread from sums; a feature that does not vary is left as it is."""
        mass = max(moments.weight, 1e-300)
        mean = moments.total / mass if shift else np.zeros_like(moments.total)
        with np.errstate(invalid="ignore"):
            spread = np.sqrt(np.maximum(moments.squares / mass - mean**2, 0.0))
        varies = spread > 1e-7 * np.abs(mean)
        return cls(np.where(varies, mean, 0.0), np.where(varies, spread, 1.0))

    def raw(self, weights: Doubles) -> Doubles:
        """Return the weights for features as they are that score like these do for scaled ones."""
        raw = weights.copy()
        raw[:-1] /= self.spread[:, None]
        raw[-1] -= self.mean @ raw[:-1]
        return raw

    def scaled(self, sums: Sums) -> Sums:
        """Return sums at raw weights as those at weights for scaled features: another gradient."""
        gradient = sums.gradient.copy()
        gradient[:-1] = (gradient[:-1] - self.mean[:, None] * gradient[-1]) / self.spread[:, None]
        return replace(sums, gradient=gradient)

    def rows(self, x: Floats | Csr) -> Floats | Csr:
        """Return a scaled copy of rows."""
        if isinstance(x, Csr):
            return replace(x, values=(x.values / self.spread[x.indices]).astype(np.float32))
        return ((x - self.mean) / self.spread).astype(np.float32)
