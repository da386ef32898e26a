"""What Penstock knows of an optimizer: its state, its learning rate, and the kernels that update by it.

Plain SGD is none of these: its kernels, in `linear` and `softmax`, keep no state beside the weights. The kernels here compute
the mean gradients of a few dense or sparse rows, which those of the optimizers turn into updates. They serve all losses:
scores are (outputs,), one for the row or one for each class. With the gradients come the mean squares of the features, by
which `shortened` bounds a step where every weight has a rate of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba.extending import overload

from penstock.native import kernel
from penstock.sgd.scalar import ONE, ZERO, load_totals, store_totals, tally, usable, weight_of
from penstock.sgd.softmax import shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A rule by which every weight is updated with a rate of its own.

    Attributes
    ----------
    name : str
        The word a user writes.
    cells : int
        How many float32 numbers are kept beside each weight and each intercept.
    learning_rate : float
        The rate where none is given, of steps that are bounded (`penstock.sgd.optimizer.shortened`). Rates of squared loss are
        in units of the labels' standard deviation.
    power : float
        With rate="auto" the rate of an epoch is the learning rate over ``(1 + epoch) ** power``.
    scheduled : bool
        Whether the rate may follow a schedule that the user chooses.
    penalty : float
        What the L2 penalty is where none is given, over 1 / rows.
    sparsifies : bool
        Whether it knows an L1 penalty, by which weights become exactly zero.
    dense, sparse : callables
        Kernels; see `penstock.sgd.kernels.train` for what they take.
    start : callable, optional
        ``start(cells, coef, intercept, terms)`` fills the cells of weights that training begins with; by default with zeros.
    settle : callable, optional
        ``settle(cells, coef, terms, updates)`` computes the weights from the cells, where sparse rows leave that open.
    """

    name: str
    cells: int
    learning_rate: float
    power: float = 0.0
    penalty: float = 1.0
    scheduled: bool = True
    sparsifies: bool = False
    dense: Callable[..., Any]
    sparse: Callable[..., Any]
    start: Callable[..., None] | None = None
    settle: Callable[..., None] | None = None


def slopes(loss: Any, scores: Any, y: Any, weight: Any, totals: Any) -> Any:
    """Turn a row's scores into weighted slopes and add the row to the totals; False if it cannot be used."""
    return shares(scores, y, weight, totals) if loss.many else _slope(loss, scores, y, weight, totals)


@overload(slopes, strict=False)
def _slopes(loss: Any, scores: Any, y: Any, weight: Any, totals: Any) -> Any:
    if loss.record.many:
        return lambda loss, scores, y, weight, totals: shares(scores, y, weight, totals)
    return lambda loss, scores, y, weight, totals: _slope(loss, scores, y, weight, totals)


@kernel
def _slope(loss: Any, scores: Any, y: Any, weight: Any, totals: Any) -> Any:
    if not usable(scores[0], y, weight):
        return False
    slope, value, e = loss.row(scores[0], y)
    store_totals(totals, tally(load_totals(totals), loss, scores[0], y, weight, value, e))
    scores[0] = weight * slope
    return True


@kernel(inline=True)
def shortened(bound: float, size: Any) -> Any:
    """Return the factor of a step that would change the scores of its rows by ``size`` times their slopes.

    `scalar.bounded_rate` for rates that differ: ``size`` is the sum of the features' squares times their rates.
    """
    return np.float32(1.0 / (1.0 + bound * np.float64(size)))


@kernel
def batch_end(weight: Any, start: int, rows: int, batch_size: int) -> Any:
    """Return the row after a batch that begins with ``start``, where rows of weight 0 do not count."""
    row, taken = start + 1, 1
    while row < rows and taken < batch_size:
        if weight_of(weight, row) != ZERO:
            taken += 1
        row += 1
    return row


@kernel
def dense_gradient(
    x: Any, y: Any, weight: Any, start: int, stop: int, coef: Any, intercept: Any, free: Any, loss: Any, scores: Any,
    totals: Any, gradient: Any, squares: Any,
) -> Any:  # fmt: skip
    """Write the mean gradient of the rows from ``start`` to before ``stop``; return -1, or the row that cannot be used.

    ``gradient`` is (outputs, features + 1), the intercept's last; ``squares`` gets the features' mean squares.
    """
    width = x.shape[1]
    taken = 0
    for i in range(start, stop):
        wi = weight_of(weight, i)
        if wi == ZERO:
            continue
        for c in range(len(intercept)):
            w, score = coef[c], intercept[c]
            for j in range(width):
                score += w[j] * x[i, j]
            scores[c] = score
        if not slopes(loss, scores, y[i], wi, totals):
            return i
        if taken == 0:
            for j in range(width):
                squares[j] = wi * x[i, j] * x[i, j]
            squares[width] = wi * free
        else:
            for j in range(width):
                squares[j] += wi * x[i, j] * x[i, j]
            squares[width] += wi * free
        for c in range(len(intercept)):
            g, push = gradient[c], scores[c]
            if taken == 0:
                for j in range(width):
                    g[j] = push * x[i, j]
                g[width] = free * push
            else:
                for j in range(width):
                    g[j] += push * x[i, j]
                g[width] += free * push
        taken += 1
    if taken > 1:
        share = ONE / np.float32(taken)
        for j in range(width + 1):
            squares[j] *= share
        for c in range(len(intercept)):
            for j in range(width + 1):
                gradient[c, j] *= share
    return -1


@kernel
def largest_batch(indptr: Any, batch_size: int) -> Any:
    """Return the most entries that a batch of sparse rows can have."""
    longest = np.int64(0)
    for i in range(len(indptr) - 1):
        longest = max(longest, np.int64(indptr[i + 1] - indptr[i]))
    return min(longest * batch_size, np.int64(indptr[len(indptr) - 1] - indptr[0]))


@kernel
def sparse_gradient(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, start: int, stop: int, w: Any, intercept: Any,
    free: Any, loss: Any, scores: Any, totals: Any, features: Any, gradient: Any, squares: Any,
    whole: Any,
) -> Any:  # fmt: skip
    """Write the mean gradient of the sparse rows from ``start`` to before ``stop``.

    ``features`` gets the features that occur, ``gradient`` their gradients, (entries, outputs), and ``squares`` their mean squares;
    ``whole`` gets the gradients of the intercepts, and at its end the square of the one that they stand for. A feature stands in
    it once, unless the batch is one row in which it stands twice.

    Returns
    -------
    (row, count)
        -1, or the row that cannot be used; and how many features there are.
    """
    taken, count = 0, 0
    whole[:] = ZERO
    for i in range(start, stop):
        wi = weight_of(weight, i)
        if wi == ZERO:
            continue
        for c in range(len(intercept)):
            scores[c] = intercept[c]
        for e in range(indptr[i], indptr[i + 1]):
            j, value = indices[e], values[e]
            for c in range(len(intercept)):
                scores[c] += w[j, c] * value
        if not slopes(loss, scores, y[i], wi, totals):
            return i, 0
        for e in range(indptr[i], indptr[i + 1]):
            features[count] = indices[e]
            squares[count] = wi * values[e] * values[e]
            for c in range(len(intercept)):
                gradient[count, c] = scores[c] * values[e]
            count += 1
        for c in range(len(intercept)):
            whole[c] += free * scores[c]
        whole[len(intercept)] += free * wi
        taken += 1
    if taken > 1:
        count = _merge(features, gradient, squares, count, ONE / np.float32(taken))
        for c in range(len(whole)):
            whole[c] /= np.float32(taken)
    return -1, count


@kernel
def _merge(features: Any, gradient: Any, squares: Any, count: int, share: Any) -> Any:
    """Add up what is of the same feature, times ``share``; return how many features there are."""
    outputs = gradient.shape[1]
    order = np.argsort(features[:count], kind="mergesort")
    given, parts, sizes = features[:count].copy(), gradient[:count].copy(), squares[:count].copy()
    kept = 0
    for k in range(count):
        at = order[k]
        if kept == 0 or given[at] != features[kept - 1]:
            features[kept] = given[at]
            squares[kept] = ZERO
            for c in range(outputs):
                gradient[kept, c] = ZERO
            kept += 1
        squares[kept - 1] += sizes[at] * share
        for c in range(outputs):
            gradient[kept - 1, c] += parts[at, c] * share
    return kept
