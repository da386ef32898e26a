"""What `adagrad.adagrad_rows` computes, in plain NumPy: one row and one entry at a time, in float64.

Tests hold the two against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.errors import UsageError
from penstock.sgd.kernels import Step

Doubles = NDArray[np.float64]


def adagrad_reference(
    batch: Batch, cells: Doubles, intercept: Doubles, *, step: Step, updates: int
) -> dict[str, float]:
    """Update ``cells`` (features, 2) and ``intercept`` (2,) in place; return the sums and the updates made.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> x = Csr(np.array([0, 1], np.uint64), np.array([2], np.uint32), np.array([4.0], np.float32), 3)
    >>> cells, intercept = np.zeros((3, 2)), np.zeros(2)
    >>> batch = Batch(x, np.array([1.0], np.float32))
    >>> sums = adagrad_reference(batch, cells, intercept, step=Step(find_loss("hinge"), base=0.5), updates=0)
    >>> cells[2].round(6), intercept.round(6), sums["loss"], sums["updates"]
    (array([ 0.5, 16. ]), array([0.5, 1. ]), 1.0, 1)
    """
    if not isinstance(batch.x, Csr) or batch.y is None:
        raise UsageError("AdaGrad learns from sparse rows with labels")
    sums: dict[str, float] = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    for row in range(len(batch)):
        weight = 1.0 if batch.weight is None else float(batch.weight[row])
        if weight == 0:
            continue
        entries = slice(int(batch.x.indptr[row]), int(batch.x.indptr[row + 1]))
        features, values = batch.x.indices[entries], batch.x.values[entries].astype(np.float64)
        score, label = cells[features, :1].T @ values + intercept[0], batch.y[row : row + 1].astype(np.float64)
        sums["loss"] += weight * float(step.loss.value(score, label)[0])
        sums["weight"] += weight
        sums["hits"] += weight * float(step.loss.hits(score, label)[0])
        push = weight * float(step.loss.slope(score, label)[0])
        rate = step.base * (1.0 + updates) ** -step.power
        updates += 1
        if step.intercept:
            _move(intercept, push, rate)
        for feature, value in zip(features, values, strict=True):
            _move(cells[feature], push * value + step.l2 * cells[feature, 0], rate)
    sums["updates"] = updates
    return sums


def _move(cell: Doubles, gradient: float, rate: float) -> None:
    cell[1] += gradient**2
    cell[0] -= rate * gradient / (np.sqrt(cell[1]) + 1e-10)
