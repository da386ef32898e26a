"""What the optimizers' kernels compute, in plain NumPy: one update at a time, in float64, all weights as one array.

Weights here are (outputs, features + 1), the intercepts last, and so are gradients; ``cells`` are as in
`penstock.sgd.optimizer_state`. Tests hold the two against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.errors import UsageError
from penstock.sgd.kernels import Step

Doubles = NDArray[np.float64]


def optimize_reference(
    batch: Batch, w: Doubles, cells: Doubles, *, step: Step, updates: int, unit: float = 1.0
) -> dict[str, float]:
    """Update ``w`` and ``cells`` in place; return the sums and the updates made.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> w, cells = np.zeros((1, 3)), np.zeros((1, 3, 1))
    >>> batch = Batch(np.array([[3.0, -2.0]], np.float32), np.array([1.0], np.float32))
    >>> step = Step(find_loss("hinge"), base=0.5, optimizer="adagrad")
    >>> sums = optimize_reference(batch, w, cells, step=step, updates=0)
    >>> w.round(6), cells[0, :, 0], sums["loss"], sums["updates"]
    (array([[ 0.5, -0.5,  0.5]]), array([9., 4., 1.]), 1.0, 1)
    """
    if batch.y is None:
        raise UsageError("optimizers learn from rows with labels")
    sparse = isinstance(batch.x, Csr)
    x = (batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x).astype(np.float64)
    x = np.hstack([x, np.full((len(x), 1), float(step.intercept))])
    y, weight = batch.y.astype(np.float64), np.ones(len(x)) if batch.weight is None else batch.weight.astype(np.float64)
    kept = np.flatnonzero(weight)
    sums: dict[str, float] = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    for start in range(0, len(kept), step.batch_size):
        rows = kept[start : start + step.batch_size]
        bare = x[rows] @ w.T + (0 if step.intercept else w[:, -1])
        scores = bare if step.loss.many else bare[:, 0]
        sums["loss"] += float(weight[rows] @ step.loss.value(scores, y[rows]))
        sums["weight"] += float(weight[rows].sum())
        sums["hits"] += float(weight[rows] @ step.loss.hits(scores, y[rows]))
        slopes = step.loss.slope(scores, y[rows]).reshape(len(rows), -1) * weight[rows, None]
        gradient = slopes.T @ x[rows] / len(rows)
        touched = np.ones(x.shape[1], bool)
        if sparse:
            touched[:-1] = (x[rows, :-1] != 0).any(axis=0)
        squares = weight[rows] @ x[rows] ** 2 / len(rows)
        penalties = np.array([step.l1, step.l2])[:, None] * (np.arange(w.shape[1]) < w.shape[1] - 1)
        if step.optimizer == "ftrl":
            alpha, grown = (step.base * unit, unit), penalties * (updates + 1)
            ftrl_reference(w, cells, gradient, rates=alpha, penalties=grown, squares=squares, bound=step.bound)
        else:
            rate = unit * step.base * (1.0 + updates) ** -step.power
            move = {"adagrad": adagrad_update_reference, "adam": adam_reference}[step.optimizer]
            steps, rates = move(cells, gradient + penalties[1] * w, rate=rate, touched=touched)
            w -= steps / (1 + step.bound * (rates * touched) @ squares)[:, None]
        updates += 1
    sums["updates"] = updates
    return sums


def adagrad_update_reference(
    cells: Doubles, gradient: Doubles, *, rate: float, touched: NDArray[np.bool_]
) -> tuple[Doubles, Doubles]:
    """Add squared gradients to the accumulators; return the steps, by the gradients over their roots, and the rates."""
    gradient, squares = gradient * touched, cells[..., 0]
    squares += gradient**2
    rates = rate / (np.sqrt(squares) + 1e-10)
    return rates * gradient, rates


def adam_reference(
    cells: Doubles, gradient: Doubles, *, rate: float, touched: NDArray[np.bool_]
) -> tuple[Doubles, Doubles]:
    """Return steps by the mean gradient over the root mean square one, both of the gradients that a weight has had."""
    mean, squares, count = cells[:, touched, 0], cells[:, touched, 1], cells[:, touched, 2] + 1
    mean += (gradient[:, touched] - mean) * (1 - 0.9) / (1 - 0.9**count)
    squares += (gradient[:, touched] ** 2 - squares) * (1 - 0.999) / (1 - 0.999**count)
    cells[:, touched] = np.stack([mean, squares, count], axis=-1)
    rates = rate / (np.sqrt(cells[..., 1]) + 1e-8)
    return rates * cells[..., 0] * touched, rates


def ftrl_reference(
    w: Doubles,
    cells: Doubles,
    gradient: Doubles,
    *,
    rates: tuple[float, float],
    penalties: Doubles,
    squares: Doubles,
    bound: float,
) -> None:
    """Add gradients to z and their squares to n, and compute all weights anew.

    ``rates`` are alpha and beta, ``penalties`` L1 and L2 of each weight, and ``squares`` the features' mean squares.
    """
    (alpha, beta), total, grown = rates, cells[..., 0], cells[..., 1]
    before = np.sqrt(grown)
    grown += gradient**2
    steep = (beta + np.sqrt(grown)) / alpha + penalties[1]
    short = 1 / (1 + bound * (1 / steep) @ squares)
    total += short[:, None] * gradient - (np.sqrt(grown) - before) / alpha * w
    shrunk = np.sign(total) * np.maximum(np.abs(total) - penalties[0], 0)
    w[:] = -shrunk / steep
