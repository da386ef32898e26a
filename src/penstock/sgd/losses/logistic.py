"""The logistic loss of two classes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel
from penstock.sgd.losses.record import Array, Loss
from penstock.sgd.scalar import ONE, ZERO, decay, fence, log_one_plus


def _value(scores: Array, y: Array) -> Array:
    margin = scores * y
    return np.asarray(np.maximum(-margin, 0) + np.log1p(np.exp(-np.abs(margin))))


def _slope(scores: Array, y: Array) -> Array:
    margin = scores * y
    small = np.exp(-np.abs(margin))  # never above one, so it cannot overflow
    return np.asarray(-y * np.where(margin > 0, small, 1) / (1 + small))


@kernel
def _row(score: Any, y: Any) -> Any:
    margin = score * y
    e = math.exp(-abs(margin))
    share = ONE / (ONE + e)
    slope = -y * (e * share) if margin > ZERO else -y * share
    return fence(slope), np.float64(max(-margin, ZERO)), e


@kernel
def _run(z: Any, y: Any, train: Any, held: Any, bias: Any) -> Any:
    loss, pushed, held_loss, right = ZERO, ZERO, ZERO, ZERO
    for i in range(len(z)):
        score = z[i] + bias
        margin = score * y[i]
        e = decay(abs(margin))
        value = (ZERO if margin > ZERO else -margin) + log_one_plus(e)
        # Not by the slash, which looks for a zero below it and so would not vectorize.
        slope = -y[i] * np.true_divide(e if margin > ZERO else ONE, ONE + e)
        push = train[i] * slope if train[i] > ZERO else ZERO
        z[i] = push
        pushed += push
        loss += train[i] * value if train[i] > ZERO else ZERO
        held_loss += held[i] * value if held[i] > ZERO else ZERO
        right += held[i] if (score > ZERO) == (y[i] > ZERO) else ZERO
    return np.float64(loss), np.float64(pushed), np.float64(held_loss), np.float64(right)


def _probabilities(scores: NDArray[Any]) -> NDArray[np.float32]:
    positive = 1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -500, 500)))
    return np.column_stack([1 - positive, positive]).astype(np.float32)


def _log_probabilities(scores: NDArray[Any]) -> NDArray[np.float64]:
    wide = scores.astype(np.float64)
    return np.asarray(-np.logaddexp(0, np.column_stack([wide, -wide])))


LOGISTIC = Loss(
    name="logistic",
    model="logistic",
    curvature=0.25,
    value=_value,
    slope=_slope,
    row=_row,
    run=_run,
    aliases=("lr", "logit", "logistic_reg", "logistic_regression"),
    several="softmax",
    probabilities=_probabilities,
    log_probabilities=_log_probabilities,
    probability_sql=lambda score, exp: f"1::float8 / (1::float8 + {exp}(-{score}))",
)
