"""The smooth losses, logistic and squared, as loops that vectorise: a run of scores in, slopes and sums out.

`bend` calls no function of the C library: `decay` is exp(-a) and `grown` is log(1 + e), each by a polynomial
in float32 that is right to its last digit or two. The hinge has a corner and many classes have many scores;
solvers of full passes refuse both by `smooth`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from penstock.errors import UnknownOptionError, UsageError
from penstock.native import kernel
from penstock.sgd.losses import HINGE, LOGISTIC, LOSSES, SOFTMAX, Loss, named
from penstock.sgd.scalar import ONE, ZERO

# So many rows are summed in float32 before a float64 takes the sum over; few enough to stay in the nearest cache.
RUN = 256

_HALF = np.float32(0.5)
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


def smooth(loss: str | Loss) -> Loss:
    """Return the loss of that name, refusing those that full passes cannot descend.

    Examples
    --------
    >>> smooth("squared").metric
    'r2'
    """
    found = named(loss) if isinstance(loss, str) else loss
    if not isinstance(found, Loss):
        raise UnknownOptionError.of("loss", loss, LOSSES)
    if found.code == HINGE:
        raise UsageError(
            "loss='hinge' has a corner where its slope jumps, which solver='lbfgs' and 'gd' cannot descend;"
            " use solver='sgd', or loss='logistic'"
        )
    if found.code == SOFTMAX:
        raise UsageError(
            "loss='softmax' has a score for each class, and solver='lbfgs' and 'gd' learn one score; use solver='sgd'"
        )
    return found


@intrinsic
def _times_two_to(typing_context: Any, value: Any, power: Any) -> Any:
    """Multiply a float32 by two to a whole power by adding to its exponent."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        raised = builder.shl(arguments[1], word(23))
        return builder.bitcast(builder.add(builder.bitcast(arguments[0], word), raised), ir.FloatType())

    return types.float32(types.float32, types.int32), generate


@kernel
def decay(a: Any) -> Any:
    """Return exp(-a) of a float32 that is not negative; what would be below the least normal number is that number."""
    t = -a * _LOG2E
    t = _LEAST if t < _LEAST else t  # in this order a NaN stays one
    whole = np.int32(t - _HALF)  # rounds to nearest, for t is not positive
    f = t - np.float32(whole)
    p = _A0 + f * (_A1 + f * (_A2 + f * (_A3 + f * (_A4 + f * (_A5 + f * _A6)))))
    return _times_two_to(p, whole)


@kernel
def grown(e: Any) -> Any:
    """Return log(1 + e) of a float32 from 0 to 1."""
    high = _B5 + e * (_B6 + e * (_B7 + e * (_B8 + e * _B9)))
    return e * (_B0 + e * (_B1 + e * (_B2 + e * (_B3 + e * (_B4 + e * high)))))


@kernel
def bend(code: int, z: Any, y: Any, train: Any, held: Any, bias: Any) -> Any:
    """Turn the scores of up to `RUN` rows, less the bias, into slopes by training weight, in place.

    Returns (loss, slope) summed by training weight, then (loss, right answers) by held-out weight; of the squared
    loss the last is the squared error. A row of weight zero adds nothing, not even what is not finite.
    """
    loss, pushed, held_loss, right = ZERO, ZERO, ZERO, ZERO
    if code == LOGISTIC:
        for i in range(len(z)):
            score = z[i] + bias
            margin = score * y[i]
            e = decay(abs(margin))
            value = (ZERO if margin > ZERO else -margin) + grown(e)
            # Not by the slash, which looks for a zero below it and so would not vectorise.
            slope = -y[i] * np.true_divide(e if margin > ZERO else ONE, ONE + e)
            push = train[i] * slope if train[i] > ZERO else ZERO
            z[i] = push
            pushed += push
            loss += train[i] * value if train[i] > ZERO else ZERO
            held_loss += held[i] * value if held[i] > ZERO else ZERO
            right += held[i] if (score > ZERO) == (y[i] > ZERO) else ZERO
    else:
        for i in range(len(z)):
            residual = z[i] + bias - y[i]
            square = residual * residual
            push = train[i] * residual if train[i] > ZERO else ZERO
            z[i] = push
            pushed += push
            loss += train[i] * square if train[i] > ZERO else ZERO
            right += held[i] * square if held[i] > ZERO else ZERO
        loss *= _HALF
        held_loss = _HALF * right
    return np.float64(loss), np.float64(pushed), np.float64(held_loss), np.float64(right)
