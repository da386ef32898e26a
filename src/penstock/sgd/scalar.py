"""The arithmetic that all SGD kernels share, for one row or one weight at a time.

Constants are typed float32: a bare ``0.0`` would widen the sums to float64 and halve the speed. Totals are kept in one
float64 array that a kernel adds to, so an epoch's statistics cost no second pass. The exponential and the logarithm are
polynomials in single precision, right to the last digit or two: they call no function of the C library, so that loops
over them vectorize.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

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


HALF = np.float32(0.5)
RUN = 256
"""Rows that are summed in float32 before a float64 takes the sum over; few enough to stay in the nearest cache."""

_LOG2E = np.float32(1.4426950408889634)
_LEAST = np.float32(-126)
# 2 ** f for f from -1/2 to 1/2, and log(1 + e) / e for e from 0 to 1: Chebyshev fits, within 3e-9 and 5e-9.
_A0, _A1, _A2, _A3, _A4, _A5, _A6 = (
    np.float32(a)
    for a in (1.0, 0.69314720671, 0.24022651214, 0.055503272142, 0.009618025603, 0.0013400432165, 0.00015469731972)
)
_B0, _B1, _B2, _B3, _B4, _B5, _B6, _B7, _B8, _B9 = (
    np.float32(b)
    for b in (
        0.99999999538, -0.49999903993, 0.33330004035, -0.24954558871, 0.19678117257, -0.15311863105, 0.10614264693,
        -0.057064200817, 0.019907160957, -0.00325637848,
    )
)  # fmt: skip


@intrinsic
def _times_two_to(typing_context: Any, value: Any, power: Any) -> Any:
    """Multiply a float32 by two to a whole power by adding to its exponent."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        raised = builder.shl(arguments[1], word(23))
        return builder.bitcast(builder.add(builder.bitcast(arguments[0], word), raised), ir.FloatType())

    return types.float32(types.float32, types.int32), generate


@intrinsic
def stay_apart(typing_context: Any) -> Any:
    """Keep the calling kernel a function of its own, whose sums are in the same order wherever it is called from."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def fence(typing_context: Any, value: Any) -> Any:
    """Return a float32 as it is, and keep the compiler from rearranging its factors with those of its caller."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single = ir.FloatType()
        barrier = builder.module.declare_intrinsic("llvm.arithmetic.fence", [single], ir.FunctionType(single, [single]))
        return builder.call(barrier, arguments)

    return types.float32(types.float32), generate


@kernel
def decay(a: Any) -> Any:
    """Return exp(-a) of a float32 that is not negative; what would be below the least normal number is that number."""
    t = -a * _LOG2E
    t = _LEAST if t < _LEAST else t  # in this order a NaN stays one
    whole = np.int32(t - HALF)  # rounds to nearest, for t is not positive
    f = t - np.float32(whole)
    p = _A0 + f * (_A1 + f * (_A2 + f * (_A3 + f * (_A4 + f * (_A5 + f * _A6)))))
    return _times_two_to(p, whole)


@kernel
def log_one_plus(e: Any) -> Any:
    """Return log(1 + e) of a float32 from 0 to 1."""
    high = _B5 + e * (_B6 + e * (_B7 + e * (_B8 + e * _B9)))
    return e * (_B0 + e * (_B1 + e * (_B2 + e * (_B3 + e * (_B4 + e * high)))))
