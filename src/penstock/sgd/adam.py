"""Adam: steps by the running mean of the gradients over the root of that of their squares (Kingma & Ba, 2015).

Both means are kept free of bias: as ``mean += (g - mean) * (1 - beta) / (1 - beta ** k)``, where k counts the gradients,
they equal the paper's corrected ones. Of sparse rows only the row's own features are touched ("lazy" Adam): each
has a k of its own, its means do not fade while it does not occur, and L2 draws on it only where it does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.optimizer import Optimizer, batch_end, dense_gradient, largest_batch, shortened, sparse_gradient
from penstock.sgd.scalar import STEP, ZERO, following, rate_at

BETA1, BETA2 = 0.9, 0.999
SMALLEST = np.float32(1e-8)
MEAN, SQUARES, COUNT, CELLS = 0, 1, 2, 3
# Gradients after which a weight's bias is beyond float32.
_MANY = 20_000.0


@kernel
def newest_share(beta: float, count: Any) -> Any:
    """Return the part that the newest of `count` gradients has in the mean."""
    if count > _MANY:
        return np.float32(1.0 - beta)
    return np.float32((1.0 - beta) / (1.0 - beta ** np.float64(count)))


@kernel
def _steps(
    w: Any, mean: Any, squares: Any, gradient: Any, sizes: Any, rate: Any, shrink: Any, first: Any, second: Any
) -> Any:
    """Turn gradients into steps, and return how far they move the scores of their rows."""
    size = ZERO
    for j in range(len(w)):
        drawn = gradient[j] + shrink * w[j]
        mean[j] += (drawn - mean[j]) * first
        squares[j] += (drawn * drawn - squares[j]) * second
        own = rate / (np.float32(math.sqrt(squares[j])) + SMALLEST)
        gradient[j] = own * mean[j]
        size += sizes[j] * own
    return size


@kernel(inline=True)
def _lazy_rate(cell: Any, gradient: Any, rate: Any) -> Any:
    """Change a weight's cells by a gradient, by its own count of them; return the weight's rate."""
    cell[COUNT] += np.float32(1)
    cell[MEAN] += (gradient - cell[MEAN]) * newest_share(BETA1, cell[COUNT])
    cell[SQUARES] += (gradient * gradient - cell[SQUARES]) * newest_share(BETA2, cell[COUNT])
    return rate / (np.float32(math.sqrt(cell[SQUARES])) + SMALLEST)


@kernel
def adam_dense(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, cells: Any, clock: Any, totals: Any, loss: Any,
    base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end.

    ``cells`` is (3, outputs, features + 1). Returns -1, or the row that could not be used.
    """
    rows, width = x.shape
    outputs = len(intercept)
    scores, shrink = np.zeros(outputs, np.float32), np.float32(l2)
    gradient, sizes = np.zeros((len(intercept), width + 1), np.float32), np.zeros(width + 1, np.float32)
    count = cells[COUNT, 0, width]  # the intercept has seen all updates
    i = following(weight, 0, rows)
    while i < rows:
        stop = batch_end(weight, i, rows, batch_size)
        failed = dense_gradient(x, y, weight, i, stop, coef, intercept, free, loss, scores, totals, gradient, sizes)
        if failed >= 0:
            return failed
        count += np.float32(1)
        first, second = newest_share(BETA1, count), newest_share(BETA2, count)
        rate = np.float32(unit * rate_at(base, power, clock[STEP]))
        for c in range(outputs):
            mean, squares, g = cells[MEAN, c], cells[SQUARES, c], gradient[c]
            size = _steps(coef[c], mean[:width], squares[:width], g[:width], sizes[:width], rate, shrink, first, second)
            size += _steps(
                intercept[c : c + 1], mean[width:], squares[width:], g[width:], sizes[width:], rate, ZERO, first, second
            )
            short = shortened(bound, size)
            for j in range(width):
                coef[c, j] -= short * g[j]
            intercept[c] -= short * g[width]
        clock[STEP] += 1.0
        i = following(weight, stop, rows)
    cells[COUNT] = count
    return -1


@kernel
def adam_sparse(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, w: Any, intercept: Any, cells: Any, clock: Any,
    totals: Any, loss: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Do the same by sparse rows: ``w`` is (features, outputs), ``cells`` (features + 1, outputs, 3)."""
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
            own = _lazy_rate(cells[width, c], whole[c], rate)
            step, size = own * cells[width, c, MEAN], own * whole[outputs]
            for k in range(count):
                j = features[k]
                own = _lazy_rate(cells[j, c], gradient[k, c] + shrink * w[j, c], rate)
                gradient[k, c] = own * cells[j, c, MEAN]
                size += sizes[k] * own
            short = shortened(bound, size)
            for k in range(count):
                w[features[k], c] -= short * gradient[k, c]
            intercept[c] -= short * step
        clock[STEP] += 1.0
        i = following(weight, stop, rows)
    return -1


ADAM = Optimizer(name="adam", cells=CELLS, learning_rate=0.02, power=0.5, dense=adam_dense, sparse=adam_sparse)
