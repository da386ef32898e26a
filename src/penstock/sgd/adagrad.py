"""AdaGrad over sparse rows with one score each: every weight has a rate of its own, which falls as it is used.

A weight and the sum of its squared gradients, its accumulator, lie side by side: one record, one line of the cache.
Only the row's own features are touched, and so L2 draws on them alone. Nothing is owed: weights are always the true
ones. Indices past the width stop the kernel before they are used. Scores: `sparse.sparse_scores` on ``cells[:, :1]``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.scalar import (
    CHECKED,
    STEP,
    ZERO,
    closed,
    opened,
    outside,
    pull,
    rate_at,
    tally,
    usable,
    weight_of,
)

# Keeps a weight whose gradients were all zero from dividing by zero; too small to be felt otherwise.
SMALLEST = np.float32(1e-10)


@kernel
def adagrad_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, cells: Any, intercept: Any, clock: Any, totals: Any,
    code: int, base: float, power: float, l2: float, free: Any,
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
    sums = opened(totals)
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
        slope, linear, excess = pull(code, score, yi)
        sums = tally(sums, code, score, yi, wi, linear, excess)
        rate = np.float32(rate_at(base, power, step))
        step += 1.0
        push = np.float32(wi * slope)
        if push == ZERO and shrink == ZERO:
            continue
        drawn = free * push
        grown += drawn * drawn
        bias -= rate * drawn / (np.float32(math.sqrt(grown)) + SMALLEST)
        for e in range(indptr[i], indptr[i + 1]):
            j = indices[e]
            gradient = push * values[e] + shrink * cells[j, 0]
            squares = cells[j, 1] + gradient * gradient
            cells[j, 1] = squares
            cells[j, 0] -= rate * gradient / (np.float32(math.sqrt(squares)) + SMALLEST)
    intercept[0], intercept[1], clock[STEP] = bias, grown, step
    closed(totals, sums)
    return -1
