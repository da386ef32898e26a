"""Sums over the weights of rows, by which these are divided by their mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.batch import Floats
from penstock.columns.labels import LabelTally
from penstock.columns.recipe import Recipe
from penstock.errors import DataError


class WeightSums:
    """Sums over the rows' weights, in double precision.

    Attributes
    ----------
    count, rows : int
        The rows whose weight is above 0, and all.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = replace(recipe, weight_mean=1.0)
        self._sum, self._squares = 0.0, 0.0
        self.count, self.rows = 0, 0

    def add(self, rows: pa.RecordBatch, place: str, first_row: int) -> Floats:
        """Take in a block and return its weights; one that is missing, negative or not finite is refused by its row."""
        weights = self._recipe.at(place).weights(rows, first_row=first_row)
        assert weights is not None  # there is such a column
        self._sum += float(weights.sum(dtype=np.float64))
        self._squares += float(np.square(weights, dtype=np.float64).sum())
        self.count += int(np.count_nonzero(weights))
        self.rows += len(weights)
        return weights

    def add_equal(self, rows: int) -> None:
        """Take in rows of weight 1."""
        self._sum, self._squares = self._sum + rows, self._squares + rows
        self.count, self.rows = self.count + rows, self.rows + rows

    @property
    def effective_rows(self) -> float:
        """How many rows of equal weight would tell as much (Kish's effective sample size)."""
        return self._sum**2 / self._squares

    def mean(self, labels: LabelTally | None) -> float:
        """Return the mean of the weights above 0; where labels are classes, these must be of rows of two or more."""
        place, weight = self._recipe.place, self._recipe.weight
        if not self.count:
            raise DataError(
                f"{place}: the weight {weight!r} is 0 in every row, so there is nothing to learn from; give some rows a"
                " weight, or leave the weight out"
            )
        if labels is not None and len(labels.weighed) < 2:
            raise DataError(
                f"{place}: all rows whose weight {weight!r} is above 0 are of one class, {labels.weighed[0]!r}, so"
                " there is nothing to tell apart; give rows of another label a weight, or leave the weight out"
            )
        return self._sum / self.count
