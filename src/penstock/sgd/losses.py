"""The four losses, in plain NumPy: what the compiled kernels compute, one array at a time.

Labels are float32. Of two classes they are -1 and +1; of many, the class's number; of a regression, as they
stand. A loss knows its value and its slope at given scores, and the measure a user reads beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UnknownOptionError

Array = NDArray[np.floating[Any]]
LOGISTIC, HINGE, SQUARED, SOFTMAX = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of scores against labels.

    Attributes
    ----------
    name : str
        The word a user writes.
    code : int
        What the kernels know it by.
    metric : str
        The measure reported beside the loss: accuracy or r2.
    value : callable
        ``value(scores, y)`` gives the loss of each row.
    slope : callable
        ``slope(scores, y)`` gives the loss's derivative by the scores, in the scores' shape.

    Examples
    --------
    >>> loss = named("hinge")
    >>> loss.value(np.array([0.5, 2.0]), np.array([1.0, 1.0]))
    array([0.5, 0. ])
    >>> loss.slope(np.array([0.5, 2.0]), np.array([1.0, 1.0]))
    array([-1.,  0.])
    """

    name: str
    code: int
    metric: Literal["accuracy", "r2"]
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]

    @property
    def many(self) -> bool:
        """Whether there is a score for each class rather than one for the row."""
        return self.code == SOFTMAX

    def hits(self, scores: Array, y: Array) -> NDArray[np.bool_]:
        """Return which rows are classified as labelled; a score of zero counts for the negative class."""
        found = scores.argmax(axis=1) == y if self.many else (scores > 0) == (y > 0)
        return np.asarray(found, bool)


def _logistic_value(scores: Array, y: Array) -> Array:
    margin = scores * y
    return np.asarray(np.maximum(-margin, 0) + np.log1p(np.exp(-np.abs(margin))))


def _logistic_slope(scores: Array, y: Array) -> Array:
    margin = scores * y
    small = np.exp(-np.abs(margin))  # never above one, so it cannot overflow
    return np.asarray(-y * np.where(margin > 0, small, 1) / (1 + small))


def _hinge_value(scores: Array, y: Array) -> Array:
    return np.asarray(np.maximum(1 - scores * y, 0))


def _hinge_slope(scores: Array, y: Array) -> Array:
    return np.where(scores * y < 1, -y, np.zeros_like(y))


def _squared_value(scores: Array, y: Array) -> Array:
    return np.asarray(0.5 * (scores - y) ** 2)


def _squared_slope(scores: Array, y: Array) -> Array:
    return np.asarray(scores - y)


def _softmax_value(scores: Array, y: Array) -> Array:
    raised = scores - scores.max(axis=1, keepdims=True)
    chosen = raised[np.arange(len(y)), y.astype(np.int64)]
    return np.asarray(np.log(np.exp(raised).sum(axis=1)) - chosen)


def _softmax_slope(scores: Array, y: Array) -> Array:
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y.astype(np.int64)] -= 1
    return np.asarray(share)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("logistic", LOGISTIC, "accuracy", _logistic_value, _logistic_slope),
        Loss("hinge", HINGE, "accuracy", _hinge_value, _hinge_slope),
        Loss("squared", SQUARED, "r2", _squared_value, _squared_slope),
        Loss("softmax", SOFTMAX, "accuracy", _softmax_value, _softmax_slope),
    )
}


def named(name: str) -> Loss:
    """Return the loss of that name.

    Examples
    --------
    >>> named("squared").metric
    'r2'
    """
    try:
        return LOSSES[name]
    except (KeyError, TypeError):
        raise UnknownOptionError.of("loss", name, LOSSES) from None
