"""Half the squared error of a number, which linear regression minimizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.losses.record import Array, Loss
from penstock.sgd.scalar import HALF, ZERO, stay_apart


def _value(scores: Array, y: Array) -> Array:
    return np.asarray(0.5 * (scores - y) ** 2)


def _slope(scores: Array, y: Array) -> Array:
    return np.asarray(scores - y)


@kernel
def _row(score: Any, y: Any) -> Any:
    residual = score - y
    return residual, 0.5 * np.float64(residual) * np.float64(residual), ZERO


@kernel
def _run(z: Any, y: Any, train: Any, held: Any, bias: Any) -> Any:
    stay_apart()
    loss, pushed, right = ZERO, ZERO, ZERO
    for i in range(len(z)):
        residual = z[i] + bias - y[i]
        square = residual * residual
        push = train[i] * residual if train[i] > ZERO else ZERO
        z[i] = push
        pushed += push
        loss += train[i] * square if train[i] > ZERO else ZERO
        right += held[i] * square if held[i] > ZERO else ZERO
    return np.float64(HALF * loss), np.float64(pushed), np.float64(HALF * right), np.float64(right)


# The slope has no bound, so the rates are smaller than those of the other losses.
SQUARED = Loss(
    name="squared",
    model="linear",
    metric="r2",
    curvature=1.0,
    value=_value,
    slope=_slope,
    row=_row,
    run=_run,
    aliases=("linear_reg", "linear_regression", "ols"),
    solvers=("exact", "lbfgs", "gd"),
    bounded_rate=0.03,
    plain_rate=0.01,
)
