"""SGD and AdaGrad over sparse rows by several threads on the same weights, without locks (Hogwild).

A thread takes the intercept and the hottest weights along for a few rows and then adds what it learnt to those that all
share: nearly every row writes to these, and cores that write to the same few lines of memory wait for one another. The
other weights are shared as they are, and crossing additions may lose one another. One thread comes to what `linear` and
`adagrad` do but for rounding, so those are the specification.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.adagrad import adagrad_step
from penstock.sgd.scalar import ZERO, bounded_rate, load_totals, rate_at, store_totals, tally, usable, weight_of

RUN = 2
"""Rows between two meetings of a thread's own copies and what is shared: the fewer, the nearer the loss stays to that of one
thread."""
HOT = 256
"""Weights that a thread takes along, at most."""


@kernel(inline=True)
def _place(index: Any, begin: Any, count: Any, away: Any) -> Any:
    """Return where a thread finds a record: its own copy, ``away`` from the shared one, of the hot ones."""
    at = np.int64(index)
    return at + away if np.uint64(at - begin) < np.uint64(count) else at


@kernel(inline=True)
def _take(cells: Any, begin: Any, before: Any, away: Any) -> None:
    """Copy the hot records to the thread's own, and note them."""
    for k in range(before.shape[0]):
        for c in range(before.shape[1]):
            before[k, c] = cells[begin + k, c]
            cells[begin + away + k, c] = before[k, c]


@kernel(inline=True)
def _give(cells: Any, begin: Any, before: Any, away: Any) -> None:
    """Add what the thread's own records have gained to the shared ones."""
    for k in range(before.shape[0]):
        for c in range(before.shape[1]):
            gained = cells[begin + away + k, c] - before[k, c]
            if gained != ZERO:
                cells[begin + k, c] += gained


@kernel
def shared_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    begin: int, away: int, before: Any, step: float, scale: float, totals: Any, loss: Any, base: float, power: float, free: Any,
    bound: float,
) -> Any:  # fmt: skip
    """Update after each of the rows from ``first`` to before ``last``; return -1, or the row that could not be used.

    ``cells`` is (slots, 1); ``step`` counts the updates before the first row, ``scale`` is the weights' common factor.
    The records from ``begin`` on are hot, as many as ``before`` has room for; the thread's own copies of them lie ``away``
    from there.
    """
    factor = np.float32(scale)
    sums = load_totals(totals)
    count = before.shape[0]
    for start in range(first, last, RUN):
        _take(cells, begin, before, away)
        bias = intercept[0]
        known = bias
        for i in range(start, min(start + RUN, last)):
            yi, wi = y[i], weight_of(weight, i)
            if wi == ZERO:
                continue
            dot, size = ZERO, free
            for e in range(indptr[i], indptr[i + 1]):
                dot += cells[_place(indices[e], begin, count, away), 0] * values[e]
                size += values[e] * values[e]
            score = bias + factor * dot
            if not usable(score, yi, wi):
                return i
            slope, linear, excess = loss.row(score, yi)
            sums = tally(sums, loss, score, yi, wi, linear, excess)
            push = np.float32(bounded_rate(rate_at(base, power, step), bound, wi * size)) * wi * slope
            step += 1.0
            if push == ZERO:
                continue
            bias -= free * push
            push = push / factor
            for e in range(indptr[i], indptr[i + 1]):
                cells[_place(indices[e], begin, count, away), 0] -= push * values[e]
        intercept[0] += bias - known
        _give(cells, begin, before, away)
    store_totals(totals, sums)
    return -1


@kernel
def shared_adagrad(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, first: int, last: int, cells: Any, intercept: Any,
    begin: int, away: int, before: Any, step: float, l2: float, totals: Any, loss: Any, base: float, power: float, free: Any,
) -> Any:  # fmt: skip
    """Do the same by AdaGrad: ``cells`` is (slots, 2), ``intercept`` (2,), each with its accumulator."""
    shrink = np.float32(l2)
    sums = load_totals(totals)
    count = before.shape[0]
    for start in range(first, last, RUN):
        _take(cells, begin, before, away)
        bias, grown = intercept[0], intercept[1]
        known, size = bias, grown
        for i in range(start, min(start + RUN, last)):
            yi, wi = y[i], weight_of(weight, i)
            if wi == ZERO:
                continue
            score = bias
            for e in range(indptr[i], indptr[i + 1]):
                score += cells[_place(indices[e], begin, count, away), 0] * values[e]
            if not usable(score, yi, wi):
                return i
            slope, linear, excess = loss.row(score, yi)
            sums = tally(sums, loss, score, yi, wi, linear, excess)
            rate = np.float32(rate_at(base, power, step))
            pulled = np.float32(wi * slope)
            step += 1.0
            bias, grown = adagrad_step(bias, grown, free * pulled, rate)
            for e in range(indptr[i], indptr[i + 1]):
                j = _place(indices[e], begin, count, away)
                gradient = pulled * values[e] + shrink * cells[j, 0]
                cells[j, 0], cells[j, 1] = adagrad_step(cells[j, 0], cells[j, 1], gradient, rate)
        intercept[0] += bias - known
        intercept[1] += grown - size
        _give(cells, begin, before, away)
    store_totals(totals, sums)
    return -1
