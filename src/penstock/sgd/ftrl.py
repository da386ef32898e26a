"""FTRL-proximal: the weights minimize all gradients so far, bounded by their own rates, and L1 makes true zeros.

McMahan et al., "Ad click prediction: a view from the trenches" (2013), Algorithm 1. Beside a weight stand z, the sum
of its gradients less what the rates have taken back, and n, the sum of their squares; the weight follows from both:

    w = -soft(z, l1 t) / ((beta + sqrt(n)) / alpha + l2 t)

As everywhere in Penstock, l1 and l2 are penalties of every update: after t updates t times as much, where the paper's
penalties are of all updates together. Alpha is the learning rate. Weights of features that do not occur follow from t as
well, so the result for sparse rows is that for dense ones; it is computed where a row asks for it, and by `ftrl_settle`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.optimizer import Optimizer, batch_end, dense_gradient, largest_batch, shortened, sparse_gradient
from penstock.sgd.scalar import STEP, ZERO, following, soft

BETA = 1.0
SUM, SQUARES, CELLS = 0, 1, 2


@kernel(inline=True)
def ftrl_weight(total: Any, root: Any, inverse: Any, beta: Any, threshold: Any, ridge: Any) -> Any:
    """Return the weight that follows from z and the root of n; ``inverse`` is one over alpha."""
    return soft(-total, threshold) / ((beta + root) * inverse + ridge)


@kernel
def _size(squares: Any, gradient: Any, sizes: Any, inverse: Any, beta: Any, ridge: Any) -> Any:
    """Return how far steps by gradients would move the scores of their rows."""
    size = ZERO
    for j in range(len(squares)):
        root = np.float32(math.sqrt(squares[j] + gradient[j] * gradient[j]))
        size += sizes[j] / ((beta + root) * inverse + ridge)
    return size


@kernel
def _update(
    w: Any, total: Any, squares: Any, gradient: Any, short: Any, inverse: Any, beta: Any, threshold: Any, ridge: Any
) -> None:
    for j in range(len(w)):
        g = gradient[j]
        grown = squares[j] + g * g
        before, root = np.float32(math.sqrt(squares[j])), np.float32(math.sqrt(grown))
        z = total[j] + short * g - (root - before) * inverse * w[j]
        total[j], squares[j] = z, grown
        w[j] = ftrl_weight(z, root, inverse, beta, threshold, ridge)


@kernel
def ftrl_dense(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, cells: Any, clock: Any, totals: Any, loss: Any,
    base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end.

    ``cells`` is (2, outputs, features + 1). Returns -1, or the row that could not be used.
    """
    rows, width = x.shape
    scores = np.zeros(len(intercept), np.float32)
    gradient, sizes = np.zeros((len(intercept), width + 1), np.float32), np.zeros(width + 1, np.float32)
    inverse, beta = np.float32(1.0 / (base * unit)), np.float32(BETA * unit)
    i = following(weight, 0, rows)
    while i < rows:
        stop = batch_end(weight, i, rows, batch_size)
        failed = dense_gradient(x, y, weight, i, stop, coef, intercept, free, loss, scores, totals, gradient, sizes)
        if failed >= 0:
            return failed
        clock[STEP] += 1.0
        threshold, ridge = np.float32(l1 * clock[STEP]), np.float32(l2 * clock[STEP])
        for c in range(len(intercept)):
            z, n, g = cells[SUM, c], cells[SQUARES, c], gradient[c]
            size = ZERO
            if bound > 0.0:
                size = _size(n[:width], g[:width], sizes[:width], inverse, beta, ridge)
                size += _size(n[width:], g[width:], sizes[width:], inverse, beta, ZERO)
            short = shortened(bound, size)
            _update(coef[c], z[:width], n[:width], g[:width], short, inverse, beta, threshold, ridge)
            _update(intercept[c : c + 1], z[width:], n[width:], g[width:], short, inverse, beta, ZERO, ZERO)
        i = following(weight, stop, rows)
    return -1


@kernel
def ftrl_sparse(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, w: Any, intercept: Any, cells: Any, clock: Any,
    totals: Any, loss: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float, unit: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Do the same by sparse rows: ``w`` is (features, outputs), ``cells`` (features + 1, outputs, 2).

    Afterwards ``w`` is for `ftrl_settle` to compute.
    """
    rows, width, outputs = len(indptr) - 1, w.shape[0], len(intercept)
    most = largest_batch(indptr, batch_size)
    features, gradient = np.zeros(most, np.uint32), np.zeros((most, outputs), np.float32)
    sizes, scores, whole = np.zeros(most, np.float32), np.zeros(outputs, np.float32), np.zeros(outputs + 1, np.float32)
    inverse, beta = np.float32(1.0 / (base * unit)), np.float32(BETA * unit)
    i = following(weight, 0, rows)
    while i < rows:
        stop = batch_end(weight, i, rows, batch_size)
        threshold, ridge = np.float32(l1 * clock[STEP]), np.float32(l2 * clock[STEP])
        for e in range(indptr[i], indptr[stop]):
            j = indices[e]
            for c in range(outputs):
                root = np.float32(math.sqrt(cells[j, c, SQUARES]))
                w[j, c] = ftrl_weight(cells[j, c, SUM], root, inverse, beta, threshold, ridge)
        failed, count = sparse_gradient(
            indptr, indices, values, y, weight, i, stop, w, intercept, free, loss, scores, totals, features, gradient,
            sizes, whole,
        )  # fmt: skip
        if failed >= 0:
            return failed
        clock[STEP] += 1.0
        ridge = np.float32(l2 * clock[STEP])
        for c in range(outputs):
            size = _size(cells[width, c, SQUARES:], whole[c : c + 1], whole[outputs:], inverse, beta, ZERO)
            if bound > 0.0:
                for k in range(count):
                    root = np.float32(math.sqrt(cells[features[k], c, SQUARES] + gradient[k, c] * gradient[k, c]))
                    size += sizes[k] / ((beta + root) * inverse + ridge)
            short = shortened(bound, size)
            for k in range(count):
                j = features[k]
                _add(cells[j, c], gradient[k, c], short, inverse, w[j, c])
            _add(cells[width, c], whole[c], short, inverse, intercept[c])
            root = np.float32(math.sqrt(cells[width, c, SQUARES]))
            intercept[c] = ftrl_weight(cells[width, c, SUM], root, inverse, beta, ZERO, ZERO)
        i = following(weight, stop, rows)
    return -1


@kernel(inline=True)
def _add(cell: Any, gradient: Any, short: Any, inverse: Any, w: Any) -> None:
    """Add a gradient to a weight's cells."""
    grown = cell[SQUARES] + gradient * gradient
    rise = np.float32(math.sqrt(grown)) - np.float32(math.sqrt(cell[SQUARES]))
    cell[SUM] += short * gradient - rise * inverse * w
    cell[SQUARES] = grown


@kernel
def ftrl_settle(cells: Any, w: Any, inverse: Any, beta: Any, threshold: Any, ridge: Any) -> None:
    """Compute all weights (features, outputs) from their cells (features + 1, outputs, 2)."""
    for j in range(w.shape[0]):
        for c in range(w.shape[1]):
            root = np.float32(math.sqrt(cells[j, c, SQUARES]))
            w[j, c] = ftrl_weight(cells[j, c, SUM], root, inverse, beta, threshold, ridge)


def _start(cells: Any, coef: Any, intercept: Any, base: float, unit: float) -> None:
    """Have the weights that training begins with follow from the cells, (outputs, features + 1, 2)."""
    cells[:, :-1, SUM] = -coef * np.float32(BETA / base)
    cells[:, -1, SUM] = -intercept * np.float32(BETA / base)


def _settle(cells: Any, w: Any, base: float, unit: float, l1: float, l2: float, updates: float) -> None:
    inverse, beta = np.float32(1.0 / (base * unit)), np.float32(BETA * unit)
    ftrl_settle(cells, w, inverse, beta, np.float32(l1 * updates), np.float32(l2 * updates))


FTRL = Optimizer(
    name="ftrl",
    cells=CELLS,
    learning_rate=0.5,
    # Of the many features that it is chosen for most are rare, and 1 / rows keeps those near zero.
    penalty=0.1,
    scheduled=False,
    sparsifies=True,
    dense=ftrl_dense,
    sparse=ftrl_sparse,
    start=_start,
    settle=_settle,
)
