"""The softmax loss: the logistic loss of three or more classes, with a score for each.

SGD has kernels of its own for it in `penstock.sgd.softmax`; `softmax_run` is for full passes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel
from penstock.sgd.losses.record import Array, Loss
from penstock.sgd.scalar import ONE, RUN, ZERO, decay


def _value(scores: Array, y: Array) -> Array:
    raised = scores - scores.max(axis=1, keepdims=True)
    own = raised[np.arange(len(y)), y.astype(np.int64)]
    return np.asarray(np.log(np.exp(raised).sum(axis=1)) - own)


def _slope(scores: Array, y: Array) -> Array:
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y.astype(np.int64)] -= 1
    return np.asarray(share)


def _probabilities(scores: NDArray[Any]) -> NDArray[np.float32]:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _log_probabilities(scores: NDArray[Any]) -> NDArray[np.float64]:
    wide = scores.astype(np.float64)
    raised = wide - wide.max(axis=1, keepdims=True)
    return np.asarray(raised - np.log(np.exp(raised).sum(axis=1, keepdims=True)))


@kernel
def softmax_run(z: Any, y: Any, share: Any, bias: Any, pushed: Any) -> Any:
    """Turn softmax scores (classes, rows), less the bias, into slopes by the rows' weights, in place.

    Adds the slopes of each class to ``pushed`` and returns (loss, right answers) summed by the weights. A label that is no
    class makes the loss NaN. A row of weight zero adds nothing, not even what is not finite.
    """
    classes, rows = z.shape
    top, best, own = np.empty(RUN, np.float32), np.empty(RUN, np.float32), np.empty(RUN, np.float32)
    rest, part = np.empty(RUN, np.float32), np.empty(RUN, np.float32)
    loss, right = 0.0, 0.0
    for start in range(0, rows, RUN):
        count = min(RUN, rows - start)
        ys, shares = y[start : start + count], share[start : start + count]
        for i in range(count):
            top[i], best[i], own[i], rest[i] = -np.inf, ZERO, np.nan, ZERO
        for c in range(classes):
            run, number, level = z[c, start : start + count], np.float32(c), bias[c]
            for i in range(count):
                score = run[i] + level
                run[i] = score
                best[i] = number if score > top[i] else best[i]
                top[i] = score if score > top[i] else top[i]
                own[i] = score if np.floor(ys[i]) == number else own[i]
        for c in range(classes):
            run, number = z[c, start : start + count], np.float32(c)
            for i in range(count):
                e = decay(top[i] - run[i])
                run[i] = e
                rest[i] += ZERO if best[i] == number else e
        for i in range(count):
            part[i] = ZERO
            if shares[i] > ZERO:
                # The best class counts one in all: kept apart, it costs the small ones no digits.
                loss += np.float64(shares[i]) * (math.log1p(np.float64(rest[i])) + np.float64(top[i] - own[i]))
                right += np.float64(shares[i]) if best[i] == np.floor(ys[i]) else 0.0
                part[i] = shares[i] / (ONE + rest[i])
        for c in range(classes):
            run, number, total = z[c, start : start + count], np.float32(c), ZERO
            for i in range(count):
                push = run[i] * part[i] - (shares[i] if np.floor(ys[i]) == number else ZERO)
                push = push if shares[i] > ZERO else ZERO
                run[i] = push
                total += push
            pushed[c] += np.float64(total)
    return loss, right


SOFTMAX = Loss(
    name="softmax",
    model="softmax",
    curvature=0.5,
    value=_value,
    slope=_slope,
    many=True,
    aliases=("multinomial", "softmax_regression", "multinomial_logistic"),
    probabilities=_probabilities,
    log_probabilities=_log_probabilities,
)
