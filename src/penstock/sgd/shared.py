"""SGD and AdaGrad over sparse rows by several threads on the same weights, without locks (Hogwild).

A thread takes the intercept along for a few rows and then adds what it learnt to the one that all share; weights are shared
as they are. Crossing additions may lose one another. One thread comes to what `sparse` and `adagrad` do but for rounding,
so those are the specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.adagrad import SMALLEST
from penstock.sgd.scalar import ZERO, closed, opened, pull, rate_at, tally, usable, weight_of

RUN = 8
"""Rows between two meetings of a thread's intercept and the shared one."""


@kernel
def shared_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    step: float, scale: float, totals: Any, code: int, base: float, power: float, free: Any,
) -> Any:  # fmt: skip
    """Update after each of the rows from ``first`` to before ``last``; return -1, or the row that could not be used.

    ``cells`` is (slots, 1); ``step`` counts the updates before the first row, ``scale`` is the weights' common factor.
    """
    factor = np.float32(scale)
    sums = opened(totals)
    for start in range(first, last, RUN):
        bias = intercept[0]
        before = bias
        for i in range(start, min(start + RUN, last)):
            yi, wi = y[i], weight_of(weight, i)
            if wi == ZERO:
                continue
            dot = ZERO
            for e in range(indptr[i], indptr[i + 1]):
                dot += cells[indices[e], 0] * values[e]
            score = bias + factor * dot
            if not usable(score, yi, wi):
                return i
            slope, linear, excess = pull(code, score, yi)
            sums = tally(sums, code, score, yi, wi, linear, excess)
            push = np.float32(rate_at(base, power, step)) * wi * slope
            step += 1.0
            if push == ZERO:
                continue
            bias -= free * push
            push = push / factor
            for e in range(indptr[i], indptr[i + 1]):
                cells[indices[e], 0] -= push * values[e]
        intercept[0] += bias - before
    closed(totals, sums)
    return -1


@kernel
def shared_adagrad(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    step: float, l2: float, totals: Any, code: int, base: float, power: float, free: Any,
) -> Any:  # fmt: skip
    """Do the same by AdaGrad: ``cells`` is (slots, 2), ``intercept`` (2,), each with its accumulator."""
    shrink = np.float32(l2)
    sums = opened(totals)
    for start in range(first, last, RUN):
        bias, grown = intercept[0], intercept[1]
        before, size = bias, grown
        for i in range(start, min(start + RUN, last)):
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
            pulled = np.float32(wi * slope)
            step += 1.0
            grown += free * pulled * pulled
            bias -= free * rate * pulled / (np.float32(math.sqrt(grown)) + SMALLEST)
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                gradient = pulled * values[e] + shrink * cells[j, 0]
                squares = cells[j, 1] + gradient * gradient
                cells[j, 1] = squares
                cells[j, 0] -= rate * gradient / (np.float32(math.sqrt(squares)) + SMALLEST)
        intercept[0] += bias - before
        intercept[1] += grown - size
    closed(totals, sums)
    return -1
