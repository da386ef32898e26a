"""AdaGrad: every weight has a rate of its own, which falls as the weight is used (Duchi et al., 2011).

Beside a weight stands the sum of its squared gradients, its accumulator. Of sparse rows only the row's own features are
touched, and so L2 draws on them alone. Nothing is owed: weights are always the true ones.

`adagrad_dense` and `adagrad_sparse` are for models in memory. `adagrad_rows` is for models on disk, whose weights and
accumulators lie side by side: one record, one line of the cache; indices past the width stop it before they are used.
Scores of those: `linear.sparse_scores` on ``cells[:, :1]``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.optimizer import Optimizer, batch_end, dense_gradient, largest_batch, shortened, sparse_gradient
from penstock.sgd.scalar import (
    CHECKED,
    STEP,
    ZERO,
    following,
    load_totals,
    outside,
    rate_at,
    store_totals,
    tally,
    usable,
    weight_of,
)

# Keeps a weight whose gradients were all zero from dividing by zero; too small to be felt otherwise.
SMALLEST = np.float32(1e-10)


@kernel(inline=True)
def adagrad_step(w: Any, squares: Any, gradient: Any, rate: Any) -> Any:
    """Return a weight after its update, and its accumulator."""
    grown = squares + gradient * gradient
    return w - rate * gradient / (np.float32(math.sqrt(grown)) + SMALLEST), grown


@kernel
def _steps(w: Any, squares: Any, gradient: Any, sizes: Any, rate: Any, shrink: Any) -> Any:
    """Turn gradients into steps, and return how far they move the scores of their rows."""
    size = ZERO
    for j in range(len(w)):
        drawn = gradient[j] + shrink * w[j]
        squares[j] += drawn * drawn
        own = rate / (np.float32(math.sqrt(squares[j])) + SMALLEST)
        gradient[j] = own * drawn
        size += sizes[j] * own
    return size


@kernel
def adagrad_dense(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, cells: Any, clock: Any, totals: Any, loss: Any,
    base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end.

    ``cells`` is (1, outputs, features + 1). Returns -1, or the row that could not be used.
    """
    rows, width = x.shape
    scores, shrink = np.zeros(len(intercept), np.float32), np.float32(l2)
    gradient, sizes = np.zeros((len(intercept), width + 1), np.float32), np.zeros(width + 1, np.float32)
    i = following(weight, 0, rows)
    while i < rows:
        stop = batch_end(weight, i, rows, batch_size)
        failed = dense_gradient(x, y, weight, i, stop, coef, intercept, free, loss, scores, totals, gradient, sizes)
        if failed >= 0:
            return failed
        rate = np.float32(unit * rate_at(base, power, clock[STEP]))
        for c in range(len(intercept)):
            squares, g = cells[0, c], gradient[c]
            size = _steps(coef[c], squares[:width], g[:width], sizes[:width], rate, shrink)
            size += _steps(intercept[c : c + 1], squares[width:], g[width:], sizes[width:], rate, ZERO)
            short = shortened(bound, size)
            for j in range(width):
                coef[c, j] -= short * g[j]
            intercept[c] -= short * g[width]
        clock[STEP] += 1.0
        i = following(weight, stop, rows)
    return -1


@kernel
def adagrad_sparse(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, w: Any, intercept: Any, cells: Any, clock: Any,
    totals: Any, loss: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Do the same by sparse rows: ``w`` is (features, outputs), ``cells`` (features + 1, outputs, 1)."""
    rows, width, outputs = len(indptr) - 1, w.shape[0], len(intercept)
    most, shrink = largest_batch(indptr, batch_size), np.float32(l2)
    features, gradient = np.zeros(most, np.uint32), np.zeros((most, outputs), np.float32)
    sizes, scores, whole = np.zeros(most, np.float32), np.zeros(outputs, np.float32), np.zeros(outputs + 1, np.float32)
    i = following(weight, 0, rows)
    while i < rows:
        stop = batch_end(weight, i, rows, batch_size)
        failed, count = sparse_gradient(
            indptr, indices, values, y, weight, i, stop, w, intercept, free, loss, scores, totals, features, gradient,
            sizes, whole,
        )  # fmt: skip
        if failed >= 0:
            return failed
        rate = np.float32(unit * rate_at(base, power, clock[STEP]))
        for c in range(outputs):
            size = _steps(intercept[c : c + 1], cells[width, c], whole[c : c + 1], whole[outputs:], rate, ZERO)
            for k in range(count):
                j = features[k]
                drawn = gradient[k, c] + shrink * w[j, c]
                cells[j, c, 0] += drawn * drawn
                own = rate / (np.float32(math.sqrt(cells[j, c, 0])) + SMALLEST)
                gradient[k, c] = own * drawn
                size += sizes[k] * own
            short = shortened(bound, size)
            for k in range(count):
                w[features[k], c] -= short * gradient[k, c]
            intercept[c] -= short * whole[c]
        clock[STEP] += 1.0
        i = following(weight, stop, rows)
    return -1


def _start(cells: Any, coef: Any, intercept: Any, base: float, unit: float) -> None:
    # From zero the first step would be as long for the smallest gradient: the small negative value that most rows have of
    # a rare feature, once it is scaled, would give it a weight that is far too large for its few large values.
    cells[:] = np.float32(unit * unit)


ADAGRAD = Optimizer(
    name="adagrad", cells=1, learning_rate=0.5, dense=adagrad_dense, sparse=adagrad_sparse, start=_start
)


@kernel
def adagrad_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, cells: Any, intercept: Any, clock: Any, totals: Any,
    loss: Any, base: float, power: float, l2: float, free: Any,
) -> Any:  # fmt: skip
    """Update after every row: add the gradient's square to the accumulator, then step by the gradient over its root.

    ``cells`` is (features, 2), weight and accumulator; ``intercept`` is (2,), the intercept and its own. The gradient
    of a feature in the row is the loss's plus ``l2`` times the weight. In SGD every row shrinks all weights, exactly;
    here a weight is shrunk by the rows that hold its feature, so a rare feature is held back less than there. The
    intercept is not shrunk. A feature that stands twice in a row counts with both values in the score, and then makes
    two updates, one after the other, each with a square and an L2 term of its own.

    Returns -1, or the row that could not be used; the weights are then not to be used either.
    """
    width = cells.shape[0]
    bias, grown, step = intercept[0], intercept[1], clock[STEP]
    shrink = np.float32(l2)
    sums = load_totals(totals)
    for i in range(len(indptr) - 1):
        if i % CHECKED == 0 and outside(indptr, indices, i, width):
            return i
        yi, wi = y[i], weight_of(weight, i)
        if wi == ZERO:
            continue
        score = bias
        for e in range(indptr[i], indptr[i + 1]):
            score += cells[indices[e], 0] * values[e]
        if not usable(score, yi, wi):
            return i
        slope, linear, excess = loss.row(score, yi)
        sums = tally(sums, loss, score, yi, wi, linear, excess)
        rate = np.float32(rate_at(base, power, step))
        step += 1.0
        push = np.float32(wi * slope)
        if push == ZERO and shrink == ZERO:
            continue
        bias, grown = adagrad_step(bias, grown, free * push, rate)
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            gradient = push * values[e] + shrink * cells[j, 0]
            cells[j, 0], cells[j, 1] = adagrad_step(cells[j, 0], cells[j, 1], gradient, rate)
    intercept[0], intercept[1], clock[STEP] = bias, grown, step
    store_totals(totals, sums)
    return -1
