"""Measures of two classes at other thresholds than a half: the rows above a probability are taken for the second class.

Both take scores as `penstock.measures.OnScores` does, in one pass over rows of any number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.measures import Doubles, Ranking, TwoClassMeasures
from penstock.model import Model
from penstock.sgd.losses import loss_of

_POINTS = 100
_AT_THRESHOLD = ("accuracy", "precision", "recall", "f1", "confusion_matrix")
ROC_COLUMNS = (
    *("threshold", "recall", "false_positive_rate"),
    *("true_positives", "false_positives", "true_negatives", "false_negatives"),
)


def require_two_classes(model: Model, purpose: str) -> None:
    """Raise where a model does not give each row a probability of the second of two classes."""
    classes = [] if model.classes is None else model.classes.tolist()
    if len(classes) == 2 and loss_of(model.kind).probabilities is not None:
        return
    has = f"{len(classes)} classes" if len(classes) > 2 else "no probabilities"
    raise UsageError(f"{purpose} is for models of two classes with probabilities; this {model.word} model has {has}")


def positive_probability(kind: str, scores: NDArray[Any]) -> Doubles:
    """Return the probability of the second class, in double precision where the kind of model says how."""
    loss = loss_of(kind)
    if loss.log_probabilities is not None:
        return np.asarray(np.exp(loss.log_probabilities(scores)[:, 1]), np.float64)
    assert loss.probabilities is not None  # of a model that `require_two_classes` let pass
    return loss.probabilities(scores)[:, 1].astype(np.float64)


class ThresholdMeasures:
    """Accuracy, precision, recall, F1 and the confusion matrix at a threshold.

    Examples
    --------
    >>> measures = ThresholdMeasures("logistic", 0.2)
    >>> measures.add(np.array([-2.0, -1.0, 2.0]), np.array([-1.0, -1.0, 1.0]), np.ones(3))
    >>> measures.figures()["confusion_matrix"]
    [[1, 1], [0, 1]]
    """

    def __init__(self, kind: str, threshold: float, *, unit: float = 1.0) -> None:
        self._kind, self._threshold = kind, threshold
        self._measures = TwoClassMeasures(probabilities=False, unit=unit)

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        """Take in rows."""
        self._measures.add(positive_probability(self._kind, scores) - self._threshold, labels, weights)

    def figures(self) -> dict[str, Any]:
        """Return the measures that depend on the threshold."""
        found = self._measures.figures()
        return {name: found[name] for name in _AT_THRESHOLD}


class RocMeasures:
    """How many rows of each class lie above and below thresholds: those given, or about a hundred over all scores.

    Examples
    --------
    >>> measures = RocMeasures("logistic", [0.5])
    >>> measures.add(np.array([-2.0, 1.0, 2.0]), np.array([-1.0, -1.0, 1.0]), np.ones(3))
    >>> measures.rows()
    [(0.5, 1.0, 0.5, 1, 1, 1, 0)]
    """

    def __init__(self, kind: str, thresholds: list[float] | None = None, *, unit: float = 1.0) -> None:
        self._kind, self._unit = kind, unit
        self._thresholds = None if thresholds is None else np.unique(np.array(thresholds, np.float64))
        self._ranking = Ranking()
        self._mass = np.zeros((2, 1 if thresholds is None else len(self._thresholds) + 1))  # type: ignore[arg-type]

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        """Take in rows."""
        positive = labels > 0
        if self._thresholds is None:
            self._ranking.add(scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores, positive, weights)
            return
        # A row lies above as many of the thresholds as its probability exceeds.
        above = np.searchsorted(self._thresholds, positive_probability(self._kind, scores), side="left")
        count = self._mass.shape[1]
        self._mass[0] += np.bincount(above[positive], weights[positive], count)
        self._mass[1] += np.bincount(above[~positive], weights[~positive], count)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return a row for each threshold, from high to low, with the values of `ROC_COLUMNS`."""
        if self._thresholds is None:
            scores, true, false = self._ranking.cuts(_POINTS)
            finite = np.clip(scores, -1e300, 1e300)
            margins = np.column_stack([np.zeros(len(finite)), finite]) if loss_of(self._kind).many else finite
            thresholds = positive_probability(self._kind, margins)
            positives, negatives = float(true[-1]), float(false[-1])
        else:
            thresholds = self._thresholds[::-1]
            positives, negatives = self._mass.sum(axis=1).tolist()
            true, false = (np.cumsum(mass[::-1])[:-1] for mass in self._mass)
        found = []
        for threshold, above, wrong in zip(thresholds.tolist(), true.tolist(), false.tolist(), strict=True):
            recall = above / positives if positives else None
            fall_out = wrong / negatives if negatives else None
            counts = (above, wrong, negatives - wrong, positives - above)
            found.append((threshold, recall, fall_out, *(self._count(each) for each in counts)))
        return found

    def _count(self, weight: float) -> float:
        count = float(weight) * self._unit
        return round(count) if abs(count - round(count)) < 1e-6 else count
