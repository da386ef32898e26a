"""The few lines of arithmetic that all SGD kernels share, for one row or one weight at a time.

Constants are typed float32: a bare ``0.0`` would widen the sums to float64 and halve the speed. Totals are
kept in one float64 array that a kernel adds to, so an epoch's statistics cost no second pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel

ZERO, ONE = np.float32(0), np.float32(1)
LARGEST = np.finfo(np.float32).max

# Places in the totals: weighted loss, weight, weighted hits (squared errors of a regression whose loss they are not), weighted sum
# of (y - pivot) and of its square, the pivot, and the product of (1 + e) terms whose logarithm is still to be added to the loss.
LOSS, WEIGHT, HITS, SHIFTED, SHIFTED2, PIVOT, GROWN, TOTALS = 0, 1, 2, 3, 4, 5, 6, 7

# Places in the clock: updates so far, the factor of all weights, the L1 penalty owed so far by all weights.
STEP, SCALE, OWED, CLOCK = 0, 1, 2, 3

_HUGE = 1e300
# How many rows of a sparse batch have their indices checked at a time: few enough to stay in the cache.
CHECKED = 64


@kernel
def rate_at(base: float, power: float, step: float) -> Any:
    """Return the learning rate of one update."""
    if power == 0.0:
        return base
    return base * (1.0 + step) ** -power


@kernel(inline=True)
def bounded_rate(rate: float, bound: float, size: Any) -> Any:
    """Return a learning rate shortened for a row of squared length ``size``, so that its update cannot overshoot.

    It is the first-order form of the implicit update: however large the rate, the row's own loss does not rise.
    """
    return rate / (1.0 + rate * bound * np.float64(size))


@kernel
def load_totals(totals: Any) -> Any:
    """Return the totals as a tuple, which stays in registers where an array would be stored for every row."""
    return totals[LOSS], totals[WEIGHT], totals[HITS], totals[SHIFTED], totals[SHIFTED2], totals[PIVOT], totals[GROWN]


@kernel
def store_totals(totals: Any, sums: Any) -> None:
    """Put the totals back."""
    for place in range(TOTALS):
        totals[place] = sums[place]


@kernel
def tally(sums: Any, loss: Any, score: Any, y: Any, weight: Any, value: Any, e: Any) -> Any:
    """Return the totals with one more row, of what ``loss.row`` returned."""
    total, mass, hits, shifted, shifted2, pivot, product = sums
    if weight == ONE:
        # One logarithm for hundreds of rows: the logarithm of a product is the sum of the logarithms.
        total += value
        product *= 1.0 + e
        if product > _HUGE:
            total += math.log(product)
            product = 1.0
    else:
        total += weight * (value + math.log(1.0 + e))
    mass += weight
    if not loss.classifies:
        apart = np.float64(y) - pivot
        shifted += weight * apart
        shifted2 += weight * apart * apart
        if not loss.exact:  # which is half the squared error itself
            hits += weight * np.float64(score - y) * np.float64(score - y)
    elif (score > ZERO) == (y > ZERO):
        hits += weight
    return total, mass, hits, shifted, shifted2, pivot, product


@kernel
def soft(value: Any, threshold: Any) -> Any:
    """Draw a value towards zero by the threshold, not past it."""
    return max(value - threshold, ZERO) + min(value + threshold, ZERO)


@kernel
def following(weight: Any, row: int, rows: int) -> Any:
    """Return the first row from here on whose weight is not zero; without weights, this one."""
    if len(weight) > 0:
        while row < rows and weight[row] == ZERO:
            row += 1
    return row


@kernel
def weight_of(weight: Any, row: int) -> Any:
    """Return a row's weight; one where there are none."""
    return weight[row] if len(weight) > 0 else ONE


@kernel
def usable(score: Any, y: Any, weight: Any) -> Any:
    """Return whether a row can be learnt from: all of it finite, and a weight that is not negative."""
    # Not math.isfinite: it is compiled as v - v == v - v, which reordering of sums turns into True.
    return abs(score + y + weight) <= LARGEST and weight > ZERO


@kernel
def outside(indptr: Any, indices: Any, start: int, width: int) -> Any:
    """Return whether one of the next `CHECKED` rows names a feature past the width."""
    stop = min(start + CHECKED, len(indptr) - 1)
    top = np.uint32(0)
    for e in range(indptr[start], indptr[stop]):
        top = max(top, indices[e])
    return indptr[stop] > indptr[start] and top >= width


@kernel
def settle(w: Any, clock: Any, seen: Any) -> None:
    """Pay what lazily kept weights (features by outputs) owe: their L1 penalty and their common factor."""
    scale = np.float32(clock[SCALE])
    owed = clock[OWED]
    for j in range(w.shape[0]):
        debt = ZERO
        if len(seen) > 0:
            debt = np.float32(owed - seen[j])
            seen[j] = 0.0
        for c in range(w.shape[1]):
            w[j, c] = scale * soft(w[j, c], debt)
    clock[SCALE] = 1.0
    clock[OWED] = 0.0
