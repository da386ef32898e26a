"""Fits the intercepts of a classifier to the classes' shares, where windows held the classes in unequal shares.

Where rows are stored by class and memory is small, SGD visits the classes in turn, and the logarithm of the odds follows them
up and down. Its average is below the logarithm of the average odds, so a rare class is predicted too rarely. The best weights
predict every class as often as it occurs: all else fixed, the intercepts that do so minimize the training loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.class_weights import ClassWeights
from penstock.measures import Doubles, OnScores, weighted_sum
from penstock.sgd.losses import Loss
from penstock.sgd.model import Weights

PASSES = 3
"""Passes over the rows at most; each leaves a small part of the error."""
_CLOSE = 0.005
"""The error of a class's share, relative to it, that is left."""
_UNEVEN = 3.0
"""How many times as much as after a full shuffle the labels of windows vary where they are uneven."""


@dataclass(slots=True)
class LabelSpread:
    """How unequal the windows of an epoch are in their labels."""

    _windows: list[tuple[int, float]] = field(default_factory=list)
    _squares: float = 0.0

    def add(self, batch: Batch) -> None:
        """Take in a window."""
        if batch.y is not None and len(batch):
            labels = batch.y.astype(np.float64)
            self._windows.append((len(labels), float(labels.mean())))
            self._squares += float(weighted_sum(labels, labels))

    @property
    def uneven(self) -> bool:
        """Whether the mean label of windows varies far more than chance explains."""
        if len(self._windows) < 2:
            return False
        rows, means = np.array(self._windows).T
        mean = float(rows @ means / rows.sum())
        variance = float(self._squares / rows.sum()) - mean**2
        between = float(rows @ (means - mean) ** 2) / (len(rows) - 1)
        return between > _UNEVEN * variance > 0


def fit_intercepts(
    weights: Weights, loss: Loss, class_weights: ClassWeights | None, measure: Callable[[Weights, OnScores], object]
) -> None:
    """Change the intercepts, in place, until each class is predicted as often as it occurs in training.

    The model is one with probabilities; ``measure`` passes over the training rows with weights, and hands the rows' scores over.
    """
    assert loss.probabilities is not None
    probabilities = loss.probabilities
    classes = max(2, weights.outputs)
    for _ in range(PASSES):
        occurring, predicted = np.zeros(classes), np.zeros(classes)

        def add(
            scores: Doubles,
            labels: Doubles,
            shares: Doubles,
            occurring: NDArray[np.float64] = occurring,
            predicted: NDArray[np.float64] = predicted,
        ) -> None:
            if class_weights is not None:
                shares = shares * class_weights.of(labels)
            codes = (labels > 0 if weights.outputs == 1 else labels).astype(np.int64)
            occurring += np.bincount(codes, shares, minlength=classes)
            predicted += weighted_sum(shares, probabilities(scores).astype(np.float64))

        measure(weights, add)
        if not (occurring.all() and predicted.all()):
            return  # a class of no training row, or one that is never predicted
        step = np.log(occurring / predicted)
        weights.intercept += (step[1:] - step[0] if weights.outputs == 1 else step).astype(weights.intercept.dtype)
        if np.abs(step).max() < _CLOSE:
            return
