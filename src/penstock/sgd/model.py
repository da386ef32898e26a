"""The weights of a linear model, with what the lazily kept penalties of sparse training still owe, and their mean over epochs.

``coef`` is (outputs, features) float32. While sparse batches are trained on, the true weights are
``scale * soft(coef, owed - seen)``, or follow from what an optimizer keeps; `Weights.settle` makes ``coef`` them. Everything
that training depends on is in `Weights.arrays`, so weights made of these continue exactly as the original would.

The last weights of an epoch carry the noise of the last rows; their mean over the epoch, taken from snapshots at even
row counts, does not. Where windows hold a part of sorted rows, that mean still depends on which blocks met in them, so the
means of the epochs are averaged in turn, each counting by its number (Shamir and Zhang 2013, polynomial-decay averaging).
A snapshot costs as much as the weights are wide, so their number falls where a model is wide beside the entries of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.errors import ModelFileError, UsageError
from penstock.sgd import kernels
from penstock.sgd.optimizers import OptimizerState
from penstock.sgd.scalar import CLOCK, OWED, SCALE, STEP, settle

Doubles = NDArray[np.float64]


def _clock() -> Doubles:
    clock = np.zeros(CLOCK)
    clock[SCALE] = 1.0
    return clock


@dataclass(slots=True)
class Weights:
    """A linear model's weights, changed in place by training.

    Examples
    --------
    >>> weights = Weights.zeros(width=3, outputs=1)
    >>> weights.coef.shape, weights.updates
    ((1, 3), 0)
    >>> weights.scores(Batch(np.ones((2, 3), np.float32)))
    array([[0.],
           [0.]], dtype=float32)
    """

    coef: Floats  # (outputs, features); in sparse training with L1 or L2, the true weights only after `settle`
    intercept: Floats  # (outputs,), zero where the model has none
    clock: Doubles = field(default_factory=_clock)  # updates, the common factor, and the L1 penalty owed by all
    seen: Doubles = field(default_factory=lambda: np.zeros(0))  # what each feature had paid of L1 when last seen
    optimizer_state: OptimizerState | None = None

    @classmethod
    def zeros(cls, width: int, outputs: int = 1) -> Weights:
        """Return weights that know nothing yet."""
        if width < 0 or outputs < 1:
            raise UsageError(f"a model of {width} features and {outputs} outputs cannot be; give at least one output")
        return cls(np.zeros((outputs, width), np.float32), np.zeros(outputs, np.float32))

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.coef.shape[1])

    @property
    def outputs(self) -> int:
        """The number of scores for a row: one, or one for each class."""
        return int(self.coef.shape[0])

    @property
    def updates(self) -> int:
        """How many updates were made since training began."""
        return int(self.clock[STEP])

    def arrange(self, *, sparse: bool, lazy_l1: bool = False) -> None:
        """Lay the weights out for the kind of rows to come; values stay as they are.

        Sparse rows want a feature's weights side by side, dense ones a class's.
        """
        if sparse:
            self.coef = np.asfortranarray(self.coef)
            if lazy_l1 and len(self.seen) == 0:
                self.seen = np.full(self.width, self.clock[OWED])
        else:
            self.settle()
            self.coef = np.ascontiguousarray(self.coef)

    @property
    def owes(self) -> bool:
        """Whether ``coef`` differs from the true weights, until `settle`."""
        lazy = self.clock[SCALE] != 1.0 or self.clock[OWED] != 0.0
        return bool(lazy or (self.optimizer_state is not None and self.optimizer_state.due))

    def settle(self) -> None:
        """Pay all that is owed, so that ``coef`` holds the true weights."""
        if not self.owes:
            return
        self.coef = np.asfortranarray(self.coef)
        settle(self.coef.T, self.clock, self.seen)
        if self.optimizer_state is not None:
            self.optimizer_state.settle(self.coef, self.clock[STEP])
            self.optimizer_state.due = False

    def settled(self) -> Weights:
        """Return the weights with all paid: themselves where nothing is owed, else a copy."""
        return self.copy() if self.owes else self

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of a batch's rows, (rows, outputs) float32."""
        return kernels.scores(batch, self.settled())

    def is_finite(self) -> bool:
        """Return whether every weight is a finite number."""
        return bool(np.isfinite(self.coef).all() and np.isfinite(self.intercept).all())

    def copy(self) -> Weights:
        """Return the weights with all paid, which share nothing with these, without what an optimizer keeps."""
        coef = np.asfortranarray(self.coef).copy(order="K") if self.owes else self.coef.copy(order="K")
        paid = Weights(coef, self.intercept.copy(), self.clock.copy(), self.seen.copy())
        paid.settle()
        if self.optimizer_state is not None:
            self.optimizer_state.settle(coef, self.clock[STEP])
        return paid

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that training depends on, by name."""
        return {
            "coef": np.array(self.coef, order="C"),
            "intercept": self.intercept.copy(),
            "clock": self.clock.copy(),
            "seen": self.seen.copy(),
            **({} if self.optimizer_state is None else self.optimizer_state.arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Weights:
        """Return the weights that `arrays` was taken from, to the last bit."""
        missing = {"coef", "intercept", "clock", "seen"} - set(arrays)
        if missing:
            raise ModelFileError(f"the weights lack {', '.join(sorted(missing))}; they were not saved by `arrays`")
        coef = np.array(arrays["coef"], np.float32, order="C")
        intercept = np.array(arrays["intercept"], np.float32)
        clock, seen = np.array(arrays["clock"], np.float64), np.array(arrays["seen"], np.float64)
        if coef.ndim != 2 or intercept.shape != coef.shape[:1] or clock.shape != (CLOCK,):
            raise ModelFileError(
                f"weights of shape {coef.shape}, intercepts of {intercept.shape} and a clock of {clock.shape}"
                " do not belong together; the file was not saved by this version"
            )
        if len(seen) not in (0, coef.shape[1]):
            raise ModelFileError(f"the L1 record is of {len(seen)} features, the weights of {coef.shape[1]}")
        return cls(coef, intercept, clock, seen, OptimizerState.from_arrays(arrays, coef.shape))


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
