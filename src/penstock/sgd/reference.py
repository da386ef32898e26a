"""The specification of the kernels in plain NumPy: one update at a time, in float64, nothing lazy.

`train_reference`, `scores_reference` and `measure_reference` do for every loss, layout and batch size what
`kernels.train`, `scores` and `measure` do, and are slow. `adagrad_reference` specifies `adagrad.adagrad_rows`,
`optimize_reference` the optimizers: their weights are (outputs, features + 1), the intercepts last, and so are gradients;
``cells`` are as in `optimizers.OptimizerState`. Tests compare the twins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.errors import UsageError
from penstock.sgd.factor import ABSENT, COUNT, SQUARES
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
        _add(sums, step.loss, score[:, None], label, np.array([weight]))
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
    x, y, weight = _dense(batch)
    x = np.hstack([x, np.full((len(x), 1), float(step.intercept))])
    kept = np.flatnonzero(weight)
    sums: dict[str, float] = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    for start in range(0, len(kept), step.batch_size):
        rows = kept[start : start + step.batch_size]
        scores = x[rows] @ w.T + (0 if step.intercept else w[:, -1])
        _add(sums, step.loss, scores, y[rows], weight[rows])
        slopes = (
            step.loss.slope(scores if step.loss.many else scores[:, 0], y[rows]).reshape(len(rows), -1)
            * weight[rows, None]
        )
        gradient = slopes.T @ x[rows] / len(rows)
        touched = np.ones(x.shape[1], bool)
        if isinstance(batch.x, Csr):
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


def factor_rows_reference(
    records: Doubles,
    users: Any,
    items: Any,
    ratings: Any,
    *,
    mean: float,
    rate: float,
    l2: float,
    rank: int,
    totals: Any,
) -> int:
    """Learn from ratings as `factor_rows` does; return -1, or the place of one that could not be used.

    Examples
    --------
    >>> records, totals = np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros(2)
    >>> factor_rows_reference(records, [0], [1], [3.0], mean=0.0, rate=0.1, l2=0.0, rank=1, totals=totals)
    -1
    >>> records.tolist(), totals.tolist()
    ([[1.2, 0.1], [2.1, 0.1]], [1.0, 1.0])
    """
    for i, (user, item, rating) in enumerate(zip(users, items, ratings, strict=True)):
        p, q = records[user, : rank + 1].copy(), records[item, : rank + 1].copy()
        error = rating - (mean + p[rank] + q[rank] + p[:rank] @ q[:rank])
        if not np.isfinite(error):
            return i
        totals[SQUARES] += error**2
        totals[COUNT] += 1
        # A bias is a factor whose other side is always one.
        mine, other = np.append(p[:rank], 1.0), np.append(q[:rank], 1.0)
        records[user, : rank + 1] = p + rate * (error * other - l2 * p)
        records[item, : rank + 1] = q + rate * (error * mine - l2 * q)
    return -1


def factor_scores_reference(records: NDArray[Any], users: Any, items: Any, *, mean: float, rank: int) -> Doubles:
    """Return what each pair is expected to be rated, as `factor_scores` does.

    Examples
    --------
    >>> records = np.array([[1.0, 0.5], [2.0, 0.25]])
    >>> factor_scores_reference(records, [0, 0], [1, ABSENT], mean=3.0, rank=1).tolist()
    [5.75, 3.5]
    """
    out = np.full(len(users), mean, np.float64)
    for i, (user, item) in enumerate(zip(users, items, strict=True)):
        known = [record for record in (user, item) if record != ABSENT]
        out[i] += sum(float(records[record, rank]) for record in known)
        if len(known) == 2:
            out[i] += records[user, :rank].astype(np.float64) @ records[item, :rank]
    return out
