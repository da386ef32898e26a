"""Features brought to mean 0 and spread 1 within each group, without touching the rows.

Scores at weights for scaled features are those at other weights for the features as they are; so rows are summed as they
lie, and only weights and gradients are carried from one scale to the other. Sparse features are not shifted, which would
fill their zeros; they are scaled as `penstock.loader.scan.sparse_scale` does. Numbers beside them, which every row has, are
shifted. Features that are 0 or 1, such as the levels of a category, keep their size. A feature that is constant within a group
has an infinite spread: it is 0 in every scaled row, and its weight is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.columns.recipe import Recipe
from penstock.groups.split import TRAINING, Parts
from penstock.loader.feature_sums import sparse_scale
from penstock.sgd.full import Sums

Doubles = NDArray[np.float64]
_TILE = 8192
"""Rows that are looked at together as float64."""
_ROUNDING = 1e-7
"""The precision of float32: a spread below this share of the mean is rounding."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The weighted mean of each feature over rows to learn from, and the sum of squared distances from it.

    Parts are merged as Chan, Golub and LeVeque do (*Updating formulae and a pairwise algorithm for computing sample
    variances*, 1979): a variance far below the square of the mean keeps its digits. ``present`` is the weight of the rows
    in which a sparse feature is not 0; None of dense ones.
    """

    weight: float
    mean: Doubles
    squares: Doubles
    present: Doubles | None = None

    @classmethod
    def none(cls, width: int) -> Moments:
        """Return those of no rows."""
        return cls(0.0, np.zeros(width), np.zeros(width))

    @classmethod
    def of(cls, batch: Batch, part: Parts | None, *, dense: int = 0) -> Moments:
        """Return those of the rows that are trained on; the first ``dense`` features of sparse rows are in each of them."""
        mass = np.ones(len(batch), np.float32) if batch.weight is None else batch.weight
        if part is not None:
            mass = np.where(part == TRAINING, mass, np.float32(0))
        x = batch.x
        if isinstance(x, Csr):
            total = max(float(mass.sum(dtype=np.float64)), 1e-300)
            weights = np.repeat(mass, np.diff(x.indptr).astype(np.int64)).astype(np.float64)
            each = weights * x.values
            there = np.where(x.values == 0, 0.0, weights)
            present = np.bincount(x.indices, there, minlength=x.width).astype(np.float64)
            mean = np.bincount(x.indices, each, minlength=x.width) / total
            squares = np.bincount(x.indices, each * x.values, minlength=x.width).astype(np.float64)
            squares = np.maximum(squares - total * mean**2, 0.0)
            if dense:  # about the mean, so that large numbers lose no digits
                own = cls._of_dense(x.values[x.indices < dense].reshape(len(x), dense), mass)
                mean[:dense], squares[:dense] = own.mean, own.squares
            return cls(total, mean, squares, present)
        return cls._of_dense(x, mass)

    @classmethod
    def _of_dense(cls, x: Floats, mass: Floats) -> Moments:
        found = cls.none(x.shape[1])
        for at in range(0, len(x), _TILE):
            taken = np.flatnonzero(mass[at : at + _TILE]) + at  # others may hold what is not finite
            if len(taken):
                own, tile = mass[taken].astype(np.float64), x[taken].astype(np.float64)
                total = float(own.sum())
                mean = own @ tile / total
                found += cls(total, mean, own @ (tile - mean) ** 2)
        return found

    @classmethod
    def of_parts(cls, parts: Iterable[tuple[Batch, Parts | None]], width: int, *, dense: int = 0) -> Moments:
        """Return those of the rows of some batches that are trained on."""
        return sum((cls.of(batch, part, dense=dense) for batch, part in parts), cls.none(width))

    def __add__(self, other: Moments) -> Moments:
        weight = self.weight + other.weight
        if not weight:
            return self
        mean = (self.weight * self.mean + other.weight * other.mean) / weight
        between = (self.mean - other.mean) ** 2 * (self.weight * other.weight / weight)
        present = self.present if other.present is None else other.present
        if self.present is not None and other.present is not None:
            present = self.present + other.present
        return Moments(weight, mean, self.squares + other.squares + between, present)


@dataclass(frozen=True, slots=True)
class Scale:
    """The way between weights for scaled features and for features as they are.

    Examples
    --------
    >>> x = np.array([[1.0, 2013.0], [3.0, 2013.0]], np.float32)
    >>> scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    >>> scale.mean.tolist(), scale.spread.tolist()
    ([2.0, 2013.0], [1.0, inf])
    >>> scale.rows(x)
    array([[-1.,  0.],
           [ 1.,  0.]], dtype=float32)
    >>> scale.raw(np.array([[4.0], [7.0], [0.5]])).ravel()  # 4 * (x - 2) + 0.5
    array([ 4. ,  0. , -7.5])
    """

    mean: Doubles
    spread: Doubles

    @classmethod
    def of(cls, moments: Moments, *, shift: bool, dense: int = 0, flags: NDArray[np.bool_] | None = None) -> Scale:
        """Take mean and spread from moments; the spread of a feature that does not vary is infinite.

        The first ``dense`` features of sparse rows are in each of them. Those that are ``flags``, 0 or 1, have a spread of 1
        where they vary: by their own spread the rarest level of a category would be the largest feature.
        """
        found = cls._of_dense(moments, shift=shift)
        if moments.present is not None:
            sums = moments.squares + moments.weight * moments.mean**2
            scale = sparse_scale(sums, moments.present, rows=moments.weight, width=len(sums)).astype(np.float64)
            spread = np.divide(1, scale, out=np.full(len(sums), np.inf), where=scale > 0)
            found.mean[dense:], found.spread[dense:] = 0.0, spread[dense:]
        if flags is not None and len(flags):
            found.spread[flags & np.isfinite(found.spread)] = 1.0
        return found

    @classmethod
    def for_recipe(
        cls, moments: Moments, recipe: Recipe, *, shift: bool, features: NDArray[np.int64] | None = None
    ) -> Scale:
        """Take mean and spread from the moments of a recipe's features, or of some of them."""
        flags = recipe.flags
        if features is not None and len(flags):
            flags = flags[features]
        return cls.of(moments, shift=shift, dense=dense_width_of(recipe), flags=flags)

    @classmethod
    def _of_dense(cls, moments: Moments, *, shift: bool) -> Scale:
        variance = moments.squares / max(moments.weight, 1e-300)
        mean = moments.mean.copy() if shift else np.zeros_like(moments.mean)
        with np.errstate(invalid="ignore"):
            spread = np.sqrt(variance if shift else variance + moments.mean**2)
            varies = ~(spread <= _ROUNDING * np.abs(mean))  # what is not a number stays so, to be found out
        return cls(mean, np.where(varies, spread, np.inf))

    def raw(self, weights: Doubles) -> Doubles:
        """Return the weights for features as they are that score like these do for scaled ones.

        Of several classes the weights of a feature follow one another, one for each class; the intercepts are last.
        """
        raw = weights.reshape(len(self.spread) + 1, -1).copy()
        raw[:-1] /= self.spread[:, None]
        raw[-1] -= self.mean @ raw[:-1]
        return raw.reshape(weights.shape)

    def of_raw(self, weights: Doubles) -> Doubles:
        """Return the weights for scaled features that score like these do for features as they are; `raw` undone.

        Examples
        --------
        >>> scale = Scale(np.array([2.0, 2013.0]), np.array([1.0, np.inf]))
        >>> scale.of_raw(scale.raw(np.array([[4.0], [0.0], [0.5]]))).ravel()
        array([4. , 0. , 0.5])
        """
        own = weights.reshape(len(self.spread) + 1, -1).copy()
        own[-1] += self.mean @ own[:-1]
        own[:-1] *= np.where(np.isfinite(self.spread), self.spread, 0.0)[:, None]
        return own.reshape(weights.shape)

    def scaled(self, sums: Sums) -> Sums:
        """Return sums at raw weights as those at weights for scaled features: another gradient."""
        gradient = sums.gradient.reshape(len(self.spread) + 1, -1).copy()
        gradient[:-1] = (gradient[:-1] - self.mean[:, None] * gradient[-1]) / self.spread[:, None]
        return replace(sums, gradient=gradient.reshape(sums.gradient.shape))

    def rows(self, x: Floats | Csr) -> Floats | Csr:
        """Return a scaled copy of rows."""
        if isinstance(x, Csr):
            shifted = x.values - self.mean[x.indices] if self.mean.any() else x.values
            return replace(x, values=(shifted / self.spread[x.indices]).astype(np.float32))
        return ((x - self.mean) / self.spread).astype(np.float32)


def dense_width_of(recipe: Recipe) -> int:
    """Return how many features, the first ones, every row has of a recipe that makes sparse rows; 0 for dense rows."""
    return recipe.dense_width if recipe.sparse else 0
