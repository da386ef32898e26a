"""The exponential and the logarithm in single precision, as polynomials.

They call no function of the C library, so that loops over them vectorize, and are right to the last digit or two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from penstock.native import kernel

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
