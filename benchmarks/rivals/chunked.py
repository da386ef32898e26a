"""HogBatch: one update for a chunk of rows, by the mean of its rows' gradients, as the paper's baselines learn.

The mean is over the rows whose weight is not zero, as in the mini-batches of the kernels. L2 shrinks the chunk's own
features alone, once for the chunk: the others are not read. Weights are given as the cells that a chunk asks for, so
that a key-value store and a plain array learn alike, to the last bit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.arrays import Features, single
from penstock.batch import Batch, Csr, Floats
from penstock.errors import FeatureError, LabelError, UsageError
from penstock.native import kernel
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.scalar import ZERO, load_totals, store_totals, tally, usable, weight_of

_NONE = np.zeros(0, np.float32)


@kernel
def chunk_gradient(
    indptr: Any, places: Any, values: Any, y: Any, weight: Any, cells: Any, bias: Any, totals: Any, loss: Any,
    gradient: Any,
) -> Any:  # fmt: skip
    """Add all rows' gradients to ``gradient``, by cell; return (bad row or -1, the intercept's gradient, rows)."""
    sums = load_totals(totals)
    total, taken = ZERO, 0
    for i in range(len(indptr) - 1):
        yi, wi = y[i], weight_of(weight, i)
        if wi == ZERO:
            continue
        score = bias
        for e in range(indptr[i], indptr[i + 1]):
            score += cells[places[e]] * values[e]
        if not usable(score, yi, wi):
            return i, ZERO, 0
        slope, linear, excess = loss.row(score, yi)
        sums = tally(sums, loss, score, yi, wi, linear, excess)
        push = np.float32(wi * slope)
        total += push
        taken += 1
        if push != ZERO:
            for e in range(indptr[i], indptr[i + 1]):
                gradient[places[e]] += push * values[e]
    store_totals(totals, sums)
    return -1, total, taken


@kernel
def chunk_scores(indptr: Any, places: Any, values: Any, cells: Any, bias: Any, out: Any) -> None:
    """Write each row's score."""
    for i in range(len(indptr) - 1):
        score = bias
        for e in range(indptr[i], indptr[i + 1]):
            score += cells[places[e]] * values[e]
        out[i, 0] = score


@dataclass(frozen=True, slots=True)
class Gradient:
    """A chunk's gradient: summed over its rows, by cell; ``stopped`` is the row that could not be used, or -1."""

    stopped: int
    cells: Floats
    intercept: float
    rows: int


class HogBatch:
    """The state that learning by chunks has beside the weights; several threads may use it, one chunk each.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> rows = Csr(np.array([0, 1, 2], np.uint64), np.array([7, 7], np.uint32), np.ones(2, np.float32), 9)
    >>> learner, cells = HogBatch(Step(find_loss("hinge"), base=0.5)), np.zeros(1, np.float32)
    >>> batch, places = Batch(rows, np.ones(2, np.float32)), np.zeros(2, np.uint32)
    >>> gradient = learner.gradient(batch, places, cells, totals=Totals())
    >>> learner.apply(gradient, cells, np.array([0]))
    >>> cells, learner.intercept
    (array([0.5], dtype=float32), array([0.5], dtype=float32))
    """

    def __init__(self, step: Step) -> None:
        self.step = single(step)
        self.intercept: Floats = np.zeros(1, np.float32)
        self.updates = 0
        self._turn = threading.Lock()

    def gradient(self, batch: Batch, places: NDArray[np.uint32], cells: Floats, *, totals: Totals) -> Gradient:
        """Return the gradient of a chunk whose entries' weights stand in ``cells[places]``; count its rows."""
        x = sparse(batch)
        if batch.y is None:
            raise LabelError("the batch has no labels; name the label column when opening the data")
        weight = _NONE if batch.weight is None else np.ascontiguousarray(batch.weight, np.float32)
        y = np.ascontiguousarray(batch.y, np.float32)
        if len(y) != len(batch) or (batch.weight is not None and len(weight) != len(batch)):
            raise UsageError(f"{len(batch)} rows came with {len(y)} labels and {len(weight)} weights")
        with self._turn:
            totals.start(batch)
            part = totals.share()
        found = np.zeros(len(cells), np.float32)
        rows = (x.indptr, places, np.ascontiguousarray(x.values, np.float32), y, weight)
        stopped, total, taken = chunk_gradient(*rows, cells, self.intercept[0], part.sums, self.step.loss, found)
        with self._turn:
            totals.add(part)
        return Gradient(int(stopped), found, float(total), int(taken))

    def apply(self, gradient: Gradient, cells: Floats, touched: NDArray[np.integer]) -> None:
        """Update the intercept, and the cells that the chunk's features have, by the mean gradient."""
        with self._turn:
            rate = self.step.base * (1.0 + self.updates) ** -self.step.power
            self.updates += 1
            share = np.float32(rate / gradient.rows)
            if self.step.intercept:
                self.intercept[0] -= share * np.float32(gradient.intercept)
        kept = np.float32(max(1 - rate * self.step.l2, 0))
        cells[touched] = kept * cells[touched] - share * gradient.cells[touched]

    def scores(self, batch: Batch, places: NDArray[np.uint32], cells: Floats) -> Floats:
        """Return the scores of a chunk's rows, (rows, 1)."""
        x, out = sparse(batch), np.empty((len(batch), 1), np.float32)
        chunk_scores(x.indptr, places, np.ascontiguousarray(x.values, np.float32), cells, self.intercept[0], out)
        return out


class MiniBatchModel:
    """All weights in memory, one update for each chunk: what `KeyValueModel` learns, without the store.

    Parameters
    ----------
    width : int
        The number of features.
    step : Step
        The loss, the learning rate and L2; its batch size is not used, a chunk being a batch.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> rows = Csr(np.array([0, 1], np.uint64), np.array([2], np.uint32), np.ones(1, np.float32), 3)
    >>> with MiniBatchModel(3, step=Step(find_loss("hinge"), base=0.5)) as model:
    ...     model.train(Batch(rows, np.ones(1, np.float32))), model.weights(np.array([1, 2], np.uint64))
    (-1, array([0. , 0.5], dtype=float32))
    """

    requests = 0

    def __init__(self, width: int, *, step: Step) -> None:
        self.totals, self._learner = Totals(), HogBatch(step)
        self._coef: Floats = np.zeros(width, np.float32)

    @property
    def step(self) -> Step:
        """The loss, the learning rate and L2."""
        return self._learner.step

    @step.setter
    def step(self, step: Step) -> None:
        self._learner.step = single(step)

    @property
    def bytes(self) -> int:
        """What the weights take."""
        return self._coef.nbytes

    @property
    def intercept(self) -> float:
        """The intercept."""
        return float(self._learner.intercept[0])

    def train(self, batch: Batch) -> int:
        """Learn from a chunk of rows; return -1, or the row that could not be used, the weights being as before."""
        features, places = self._features(batch)
        gradient = self._learner.gradient(batch, places, self._coef[features], totals=self.totals)
        if gradient.stopped < 0 and gradient.rows:
            latest = self._coef[features]
            self._learner.apply(gradient, latest, np.arange(len(features)))
            self._coef[features] = latest
        return gradient.stopped

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows, (rows, 1)."""
        features, places = self._features(batch)
        return self._learner.scores(batch, places, self._coef[features])

    def weights(self, features: Features) -> Floats:
        """Return some features' weights."""
        return self._coef[features]

    def close(self) -> None:
        """Let the weights go."""
        self._coef = np.zeros(0, np.float32)

    def _features(self, batch: Batch) -> tuple[Features, NDArray[np.uint32]]:
        features, places = distinct(sparse(batch))
        if len(features) and int(features[-1]) >= len(self._coef):
            raise FeatureError(
                f"a row has a value for feature {features[-1]}, but the model has {len(self._coef)} features"
            )
        return features, places

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def sparse(batch: Batch) -> Csr:
    """Return the batch's sparse rows.

    Examples
    --------
    >>> sparse(Batch(np.ones((1, 2), np.float32)))
    Traceback (most recent call last):
    ...
    penstock.errors.UsageError: learning by chunks is for sparse rows; these are dense
    """
    if not isinstance(batch.x, Csr):
        raise UsageError("learning by chunks is for sparse rows; these are dense")
    return batch.x


def distinct(rows: Csr) -> tuple[Features, NDArray[np.uint32]]:
    """Return the features that rows hold, ascending, and the place among them of each entry's.

    Examples
    --------
    >>> rows = Csr(np.array([0, 3], np.uint64), np.array([9, 4, 9], np.uint32), np.ones(3, np.float32), 10)
    >>> distinct(rows)
    (array([4, 9], dtype=uint32), array([1, 0, 1], dtype=uint32))
    """
    features, places = np.unique(rows.indices, return_inverse=True)
    return np.asarray(features, rows.indices.dtype), places.astype(np.uint32)
