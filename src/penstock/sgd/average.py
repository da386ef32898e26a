"""The mean of the weights over the epochs, in which later epochs count more.

The last weights of an epoch carry the noise of the last rows; their mean over the epoch, taken from snapshots at even
row counts, does not. Where windows hold a part of sorted rows, that mean still depends on which blocks met in them, so the
means of the epochs are averaged in turn, each counting by its number (Shamir and Zhang 2013, polynomial-decay averaging).
A snapshot costs as much as the weights are wide, so their number falls where a model is wide beside the entries of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.sgd.model import Weights

_MOST, _LEAST = 128, 4
"""Snapshots of an epoch; where fewer than the least are affordable, the last weights are taken as they are."""
_COST = 0.05
"""Weights copied for each entry of the rows learned from."""


def snapshot_interval(rows: int, entries: float, weights: int) -> int:
    """Return after how many rows a snapshot is due; 0 for none.

    Parameters
    ----------
    rows : int
        In an epoch.
    entries : float
        Stored values of a row.
    weights : int
        Of the model.

    Examples
    --------
    >>> snapshot_interval(12_800, 28, 29), snapshot_interval(25_000, 100, 2**24)
    (100, 0)
    """
    count = min(_MOST, int(_COST * rows * max(entries, 1.0) / max(weights, 1)), rows)
    return -(-rows // count) if count >= _LEAST or count == rows > 0 else 0


class WeightAverage:
    """The mean of the weights over the epochs so far.

    Parameters
    ----------
    interval : int
        Rows from one snapshot to the next, 1 or more.
    first : int
        Rows of the first epoch after which its mean begins; snapshots before it are left out.

    Examples
    --------
    >>> weights, average = Weights.zeros(1), WeightAverage(interval=2)
    >>> average.rows_to_next()
    2
    >>> average.advance(2, weights)
    >>> weights.coef += 4
    >>> average.advance(2, weights)
    >>> average.weights(weights).coef
    array([[2.]], dtype=float32)
    """

    def __init__(self, interval: int, *, first: int = 0) -> None:
        self._interval, self._first = interval, first
        self._rows, self._snapshots, self._epochs = 0, 0, 0
        self._epoch_mean: Weights | None = None
        self._mean: Weights | None = None

    def rows_to_next(self) -> int:
        """Return after how many more rows a snapshot is due."""
        return self._interval - self._rows % self._interval

    def advance(self, rows: int, weights: Weights) -> None:
        """Count rows that were learned from, and take a snapshot where one is due."""
        due = rows >= self.rows_to_next()
        self._rows += rows
        if not due or (self._epochs == 0 and self._rows <= self._first):
            return
        self._snapshots += 1
        self._epoch_mean = _moved(self._epoch_mean, weights.settled(), 1 / self._snapshots)

    def end_epoch(self, last: Weights) -> None:
        """Take the epoch's mean into that of all; an epoch without a snapshot counts by its last weights."""
        self._epochs += 1
        self._mean = _moved(self._mean, self._epoch_mean or last.settled(), 2 / (self._epochs + 1))
        self._rows, self._snapshots, self._epoch_mean = 0, 0, None

    def weights(self, last: Weights) -> Weights:
        """Return the mean over the epochs that have ended, else over the snapshots of the first, else the last weights."""
        mean = self._mean or self._epoch_mean
        return last.settled() if mean is None else mean.copy()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that the mean depends on."""
        numbers = np.array([self._interval, self._first, self._rows, self._snapshots, self._epochs], np.float64)
        found: dict[str, NDArray[Any]] = {"average": numbers}
        for name, mean in (("epoch", self._epoch_mean), ("mean", self._mean)):
            if mean is not None:
                found |= {f"average.{name}.coef": mean.coef.copy(), f"average.{name}.intercept": mean.intercept.copy()}
        return found

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> WeightAverage | None:
        """Return the mean that `arrays` was taken from; None where there was none."""
        if "average" not in arrays:
            return None
        interval, first, rows, snapshots, epochs = (int(number) for number in arrays["average"])
        average = cls(interval, first=first)
        average._rows, average._snapshots, average._epochs = rows, snapshots, epochs
        average._epoch_mean, average._mean = _saved(arrays, "epoch"), _saved(arrays, "mean")
        return average


def _moved(mean: Weights | None, weights: Weights, share: float) -> Weights:
    """Return a mean that has moved to some weights by a share of the way; the weights themselves where there was none."""
    if mean is None:
        return Weights(weights.coef.copy(order="K"), weights.intercept.copy())
    mean.coef += (weights.coef - mean.coef) * np.float32(share)
    mean.intercept += (weights.intercept - mean.intercept) * np.float32(share)
    return mean


def _saved(arrays: Mapping[str, NDArray[Any]], name: str) -> Weights | None:
    if f"average.{name}.coef" not in arrays:
        return None
    coef, intercept = arrays[f"average.{name}.coef"], arrays[f"average.{name}.intercept"]
    return Weights(np.array(coef, np.float32), np.array(intercept, np.float32))
