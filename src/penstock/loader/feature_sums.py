"""Sums of features and of their squares over all rows, and what brings features to one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.columns.recipe import Recipe
from penstock.loader.moment_kernels import add_dense_moments, add_moments, inverse_sizes
from penstock.loader.row_forms import NOTHING, Scaling
from penstock.solvers import WIDEST

_WHOLE = 2.0**24
"""Up to here float32 tells whole numbers apart, so that a column of one value is one."""
ROUNDING = 1e-7
"""The precision of float32: a spread below this share of the mean is rounding."""
FAR_FROM_ZERO = 1e5
"""How many times its spread a column may lie from 0; beyond, float32 is coarser than a hundredth of the spread."""


class FeatureSums:
    """Sums of features and of their squares, block by block, in double precision; of sparse features, which are not
    centered, the number of values that are not 0 stands in the place of the sum.

    Parameters
    ----------
    dense : int
        The number of features of plain numbers. Beside sparse features they are centered too: they come first, and every
        row has all of them.
    """

    def __init__(self, dense: int = 0) -> None:
        self._dense = dense
        self.rows = 0
        self.width = 0
        self._counted = 0
        self._sum = np.zeros(0)
        self._square = np.zeros(0)
        self._origin: NDArray[np.float64] | None = None
        self._missing = np.zeros(0)

    @property
    def missing_share(self) -> NDArray[np.float64]:
        """The share of the rows in which each dense feature is missing."""
        return self._missing / max(self._counted, 1)

    def leave_out(self, places: Sequence[int]) -> None:
        """Forget dense features."""
        self._sum, self._square = (np.delete(array, places) for array in (self._sum, self._square))
        if self._origin is not None:
            self._origin, self._missing = np.delete(self._origin, places), np.delete(self._missing, places)
        self.width -= len(places)
        self._dense -= len(places) if self._dense else 0

    def add(self, batch: Batch, weight: Floats | None = None) -> None:
        """Take in a block; rows of weight 0 are no part of the sums."""
        self.rows += len(batch)
        if weight is not None and not weight.all():
            batch = batch.take(np.flatnonzero(weight))
        self._counted += len(batch)
        if batch.width > self.width:
            self.width = batch.width
            self._make_room(self.width)
        x = batch.x
        if isinstance(x, Csr):
            add_moments(x.indices, x.values, self._dense, self._sum, self._square)
            if self._dense:
                self._add_dense(x.values[x.indices < self._dense].reshape(len(batch), self._dense))
        else:
            self._add_dense(x)

    def _make_room(self, width: int) -> None:
        if width > len(self._sum):
            room = max(width, 2 * len(self._sum))  # the width may grow with every block
            self._sum, self._square = (_extended(array, room) for array in (self._sum, self._square))

    def _add_dense(self, x: Floats) -> None:
        """Take in the values of features of plain numbers, the first ones."""
        if not x.size:
            return
        width = x.shape[1]
        if self._origin is None:
            first = np.argmin(np.isnan(x), axis=0)
            typical = x[first, np.arange(width)].astype(np.float64)  # sums about it lose no digits to a large mean
            self._origin = np.nan_to_num(typical)
            self._missing = np.zeros(width)
        # Sums of a block are added to those of all, which keeps more digits than adding row by row.
        sums, squares = np.zeros(width), np.zeros(width)
        add_dense_moments(x, self._origin, self._missing, sums, squares)
        self._sum[:width] += sums
        self._square[:width] += squares

    def _present(self, width: int) -> NDArray[np.float64]:
        """Return in how many rows each of the first features is there."""
        missing = self._missing if len(self._missing) else np.zeros(width)
        return np.maximum(self._counted - missing, 1)

    def far_from_zero(self) -> list[int]:
        """Return the features of dense rows that differ by less than float32 can tell well at their distance from 0."""
        if self._origin is None or self._dense:
            return []
        count = self._present(self.width)
        mean = self._sum[: self.width] / count
        spread = np.sqrt(np.maximum(self._square[: self.width] / count - mean**2, 0))
        center = np.abs(mean + self._origin)
        constant = (spread == 0) & (center < _WHOLE)
        return [int(j) for j in np.flatnonzero((center > FAR_FROM_ZERO * spread) & ~constant & (center > 0))]

    def scaling(self, recipe: Recipe) -> Scaling:
        """Return what centers and scales plain numbers; sparse features are only scaled, to stay sparse.

        A number that is constant, or varies by rounding only, is scaled to 0. Sparse features are scaled by `sparse_scale`.
        """
        count, dense = max(self._counted, 1), self._dense if recipe.sparse else self.width
        present = self._present(dense)
        mean = self._sum[:dense] / present
        spread = np.sqrt(np.maximum(self._square[:dense] / present - mean**2, 0))
        center = mean + (0.0 if self._origin is None else self._origin)
        scale = _inverse(np.where(spread > ROUNDING * np.abs(center), spread, 0.0))
        if not recipe.sparse:
            _keep_flags(recipe, scale)
            return Scaling(center.astype(np.float32), scale)
        width = recipe.width or 0
        rest = sparse_scale(self._square[dense : self.width], self._sum[dense : self.width], rows=count, width=width)
        unseen = width - dense - len(rest)  # declared, but in no row
        if dense or unseen:
            rest = np.concatenate([scale, rest, np.ones(unseen, np.float32)])
        scale = rest
        _keep_flags(recipe, scale)
        return Scaling(np.pad(center, (0, width - dense)).astype(np.float32) if dense else NOTHING, scale)


def _keep_flags(recipe: Recipe, scale: Floats) -> None:
    """Set the scale of features that are 0 or 1 to 1, in place, but for those that are constant.

    Scaled by its spread the rarest level of a category would be the largest feature, which is fitted to the few rows that have it.
    """
    at = 0
    for part in recipe.parts:
        flags, width = part.flags, part.width or 0
        if len(flags):
            here = scale[at : at + width]
            here[flags & (here > 0)] = 1
        at += width


def sparse_scale(squares: NDArray[np.float64], counts: NDArray[np.float64], *, rows: float, width: int) -> Floats:
    """Return what sparse features are multiplied by, given the sums of their squares and the numbers of values not 0.

    Up to `WIDEST` features come to a root mean square of 1 over all rows, as dense ones do: how rows are stored makes no
    difference. Of more features only the values that are not 0 come to it: a flag stays a flag, however rare. A division by its
    size over all rows would make the rarest of many flags the largest features, which are fitted to the few rows that have them.

    Examples
    --------
    >>> squares, counts = np.array([4.0, 64.0, 0.0]), np.array([4.0, 1.0, 0.0])
    >>> sparse_scale(squares, counts, rows=16, width=10_000).tolist()
    [1.0, 0.125, 0.0]
    >>> sparse_scale(squares, counts, rows=16, width=3).tolist()
    [2.0, 0.5, 0.0]
    """
    scale = np.empty(len(squares), np.float32)
    inverse_sizes(squares, counts, 0.0 if width > WIDEST else float(rows), scale)
    return scale


def _extended(array: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    longer = np.zeros(length)
    longer[: len(array)] = array
    return longer


def _inverse(size: NDArray[np.float64]) -> Floats:
    """Return what brings features of these sizes to 1, and those of size 0 to 0."""
    with np.errstate(divide="ignore"):
        return np.where(size > 0, 1 / size, 0.0).astype(np.float32)
