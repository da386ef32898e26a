"""The kernels' specification in plain NumPy: one update at a time, in float64, nothing lazy.

`train_reference`, `scores_reference` and `measure_reference` do for every loss, layout and batch size what
`kernels.train`, `scores` and `measure` do, and are slow. Tests hold the two against each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.sgd.kernels import Step
from penstock.sgd.losses import Loss

Doubles = NDArray[np.float64]


def train_reference(batch: Batch, coef: Doubles, intercept: Doubles, *, step: Step, updates: int) -> dict[str, float]:
    """Update ``coef`` (outputs, features) and ``intercept`` in place; return the sums and the updates made.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> coef, intercept = np.zeros((1, 2)), np.zeros(1)
    >>> batch = Batch(np.array([[1.0, 2.0]], np.float32), np.array([1.0], np.float32))
    >>> sums = train_reference(batch, coef, intercept, step=Step(find_loss("hinge"), base=0.5), updates=0)
    >>> coef, intercept, sums["loss"], sums["updates"]
    (array([[0.5, 1. ]]), array([0.5]), 1.0, 1)
    """
    x, y, weight = _dense(batch)
    kept = np.flatnonzero(weight)
    sums: dict[str, float] = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    for start in range(0, len(kept), step.batch_size):
        rows = kept[start : start + step.batch_size]
        scores = x[rows] @ coef.T + intercept
        _add(sums, step.loss, scores, y[rows], weight[rows])
        slopes = step.loss.slope(scores if step.loss.many else scores[:, 0], y[rows]).reshape(len(rows), -1)
        slopes = slopes * weight[rows, None] / len(rows)
        rate = step.base * (1.0 + updates) ** -step.power
        coef *= max(1 - rate * step.l2, 0)
        size = weight[rows] @ ((x[rows] ** 2).sum(axis=1) + step.intercept) / len(rows)
        short = rate / (1 + rate * step.bound * size)
        coef -= short * slopes.T @ x[rows]
        coef[:] = np.sign(coef) * np.maximum(np.abs(coef) - rate * step.l1, 0)
        if step.intercept:
            intercept -= short * slopes.sum(axis=0)
        updates += 1
    sums["updates"] = updates
    return sums


def scores_reference(batch: Batch, coef: NDArray[Any], intercept: NDArray[Any]) -> Doubles:
    """Return the scores of a batch's rows, (rows, outputs).

    Examples
    --------
    >>> scores_reference(Batch(np.ones((1, 2), np.float32)), np.array([[1.0, 2.0]]), np.array([0.5]))
    array([[3.5]])
    """
    x = batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x
    return np.asarray(x.astype(np.float64) @ coef.T.astype(np.float64) + intercept)


def measure_reference(batch: Batch, coef: NDArray[Any], intercept: NDArray[Any], *, loss: Loss) -> dict[str, float]:
    """Return the sums over a batch's rows without learning from them.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> batch = Batch(np.ones((2, 2), np.float32), np.array([1.0, -1.0], np.float32))
    >>> measure_reference(batch, np.ones((1, 2)), np.zeros(1), loss=find_loss("hinge"))["hits"]
    1.0
    """
    _, y, weight = _dense(batch)
    sums = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    _add(sums, loss, scores_reference(batch, coef, intercept), y, weight)
    return sums


def _dense(batch: Batch) -> tuple[Doubles, Doubles, Doubles]:
    x = batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x
    y = np.zeros(len(batch)) if batch.y is None else batch.y
    weight = np.ones(len(batch)) if batch.weight is None else batch.weight
    return x.astype(np.float64), y.astype(np.float64), weight.astype(np.float64)


def _add(sums: dict[str, float], loss: Loss, scores: Doubles, y: Doubles, weight: Doubles) -> None:
    found = scores if loss.many else scores[:, 0]
    sums["loss"] += float(weight @ loss.value(found, y))
    sums["weight"] += float(weight.sum())
    sums["hits"] += float(weight @ loss.hits(found, y))
