"""SGD and AdaGrad over sparse rows by several threads on the same weights, without locks (Hogwild).

Weights that every row has would be torn to and fro between the cores' caches. The first ``hot`` records are therefore
learnt in a copy for a short run of rows, and what the run changed is then added to the weights that all share; the others
are shared as they are. Crossing additions may lose one another, as in Hogwild. One thread comes to what `sparse` and
`adagrad` do but for rounding, so those are the specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.adagrad import SMALLEST
from penstock.sgd.scalar import ZERO, closed, opened, pull, rate_at, tally, usable, weight_of

RUN = 64
"""Rows between two meetings of a thread's copy and the shared weights."""


@kernel
def borrow(cells: Any, mine: Any, lent: Any) -> None:
    """Copy the hot records, twice: to learn in, and to tell afterwards what was learnt."""
    for j in range(mine.shape[0]):
        for c in range(mine.shape[1]):
            mine[j, c] = cells[j, c]
            lent[j, c] = cells[j, c]


@kernel
def give_back(cells: Any, mine: Any, lent: Any) -> None:
    """Add what was learnt to the hot records."""
    for j in range(mine.shape[0]):
        for c in range(mine.shape[1]):
            change = mine[j, c] - lent[j, c]
            if change != ZERO:
                cells[j, c] += change


@kernel
def shared_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    step: float, scale: float, totals: Any, code: int, base: float, power: float, free: Any, hot: int,
) -> Any:  # fmt: skip
    """Update after each of the rows from ``first`` to before ``last``; return -1, or the row that could not be used.

    ``cells`` is (slots, 1); ``step`` counts the updates before the first row, ``scale`` is the weights' common factor.
    """
    mine, lent = np.empty((hot, 1), np.float32), np.empty((hot, 1), np.float32)
    factor = np.float32(scale)
    sums = opened(totals)
    for start in range(first, last, RUN):
        borrow(cells, mine, lent)
        bias = intercept[0]
        before = bias
        for i in range(start, min(start + RUN, last)):
            yi, wi = y[i], weight_of(weight, i)
            if wi == ZERO:
                continue
            dot = ZERO
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                dot += (mine[j, 0] if j < hot else cells[j, 0]) * values[e]
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
                j = indices[e]
                if j < hot:
                    mine[j, 0] -= push * values[e]
                else:
                    cells[j, 0] -= push * values[e]
        give_back(cells, mine, lent)
        intercept[0] += bias - before
    closed(totals, sums)
    return -1


@kernel
def shared_adagrad(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    step: float, l2: float, totals: Any, code: int, base: float, power: float, free: Any, hot: int,
) -> Any:  # fmt: skip
    """Do the same by AdaGrad: ``cells`` is (slots, 2), ``intercept`` (2,), each with its accumulator."""
    mine, lent = np.empty((hot, 2), np.float32), np.empty((hot, 2), np.float32)
    shrink = np.float32(l2)
    sums = opened(totals)
    for start in range(first, last, RUN):
        borrow(cells, mine, lent)
        bias, grown = intercept[0], intercept[1]
        before, size = bias, grown
        for i in range(start, min(start + RUN, last)):
            yi, wi = y[i], weight_of(weight, i)
            if wi == ZERO:
                continue
            score = bias
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                score += (mine[j, 0] if j < hot else cells[j, 0]) * values[e]
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
                if j < hot:
                    g = pulled * values[e] + shrink * mine[j, 0]
                    mine[j, 1] += g * g
                    mine[j, 0] -= rate * g / (np.float32(math.sqrt(mine[j, 1])) + SMALLEST)
                else:
                    g = pulled * values[e] + shrink * cells[j, 0]
                    cells[j, 1] += g * g
                    cells[j, 0] -= rate * g / (np.float32(math.sqrt(cells[j, 1])) + SMALLEST)
        give_back(cells, mine, lent)
        intercept[0] += bias - before
        intercept[1] += grown - size
    closed(totals, sums)
    return -1
