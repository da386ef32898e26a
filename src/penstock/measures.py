"""What a person asks of a model on labelled rows: log loss, AUC, precision, recall, F1, Brier score, R², RMSE, MAE.

Measures are added up over batches of scores, labels and weights in bounded memory, and every row counts by its weight.
Every place that evaluates a model uses these. They equal those of ``sklearn.metrics``. Scores are ranked in bounded memory too.

Scores are ranked in bins: a range of scores with the weight of the positive and the negative rows in it. While the distinct
scores are few enough each has a bin of its own, and the area is exact. Beyond that, neighboring bins are merged so that
each has about the same share of both classes. Rows of one bin count as ties, so the area is wrong by at most half of the
pairs of a positive and a negative row that share a merged bin: `Ranking.error` returns that bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
OnScores = Callable[[Doubles, Doubles, Doubles], None]
"""Takes scores, one a row or one a row and class, labels as the loss has them, and weights, none of which is zero."""

MOST_CLASSES_IN_TABLE = 100
"""Classes up to which there is a confusion matrix."""
MOST_CLASSES_RANKED = 20
"""Classes up to which each is ranked against the rest."""
_MEMORY = 64 << 20
_SHARE = 8
"""Ranks may take one part in so many of the memory given."""


def weighted_sum(weights: Doubles, values: NDArray[np.floating[Any]]) -> Doubles:
    """Return the sum of values, one or several a row, by the rows' weights, on the caller's thread alone.

    A product of NumPy's would wake BLAS's threads. Beside threads that read rows these wait for a core, and the caller spins
    until they have had it: longer than the whole sum takes.

    Examples
    --------
    >>> weighted_sum(np.array([1.0, 2.0]), np.array([3.0, 4.0])).item()
    11.0
    >>> weighted_sum(np.array([1.0, 2.0]), np.array([[3.0, 0.0], [4.0, 1.0]])).tolist()
    [11.0, 2.0]
    """
    found: Doubles = np.einsum("i,i...->...", weights, values)
    return found


class Measures(Protocol):
    """Adds up rows, and tells what they come to."""

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        """Take in rows; see `OnScores`."""

    def figures(self) -> dict[str, Any]:
        """Return the measures by name, as plain values; None where one is undefined."""


def measures_of(
    *, classes: int = 0, probabilities: bool = True, memory: int | None = None, unit: float = 1.0
) -> Measures:
    """Return what measures predictions of classes, or of numbers.

    Parameters
    ----------
    classes : int
        How many classes there are; 0 for numbers.
    probabilities : bool
        Whether scores stand for probabilities.
    memory : int, optional
        What rows may occupy; an eighth of it is for ranks. 512 MB if not given.
    unit : float
        What a weight of 1 stands for: weights are divided by their mean for training, and the confusion matrix is in
        those of the data.

    Examples
    --------
    >>> measures = measures_of(classes=2)
    >>> measures.add(np.array([-1.0, 2.0, 0.5]), np.array([-1.0, 1.0, -1.0]), np.ones(3))
    >>> figures = measures.figures()
    >>> figures["precision"], figures["recall"], figures["auc"], figures["confusion_matrix"]
    (0.5, 1.0, 1.0, [[1, 1], [0, 1]])
    """
    if not classes:
        return NumberMeasures()
    room = _MEMORY if memory is None else memory // _SHARE
    if classes == 2:
        return TwoClassMeasures(probabilities=probabilities, memory=room, unit=unit)
    return ManyClassMeasures(classes, memory=room, unit=unit)


class NumberMeasures:
    """R², root mean squared error and mean absolute error of predicted numbers.

    Examples
    --------
    >>> measures = NumberMeasures()
    >>> measures.add(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]), np.ones(3))
    >>> {name: round(value, 3) for name, value in measures.figures().items()}
    {'r2': 0.5, 'rmse': 0.577, 'mae': 0.333}
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._squared = self._absolute = 0.0
        self._pivot: float | None = None
        self._shifted = self._shifted2 = 0.0

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        if not len(labels):
            return
        if self._pivot is None:
            self._pivot = float(labels[0])  # labels far from zero must not cost digits
        error, shifted = scores - labels, labels - self._pivot
        self.weight += float(weights.sum())
        self._squared += float(weighted_sum(weights, error**2))
        self._absolute += float(weighted_sum(weights, np.abs(error)))
        self._shifted += float(weighted_sum(weights, shifted))
        self._shifted2 += float(weighted_sum(weights, shifted**2))

    def figures(self) -> dict[str, Any]:
        if not self.weight:
            return {"r2": None, "rmse": None, "mae": None}
        spread = self._shifted2 - self._shifted**2 / self.weight
        r2 = 1 - self._squared / spread if spread > 0 else float(self._squared == 0)
        return {"r2": r2, "rmse": math.sqrt(self._squared / self.weight), "mae": self._absolute / self.weight}


class _ClassTable:
    """The weight of rows by true and by predicted class: a table of both where the classes are few."""

    def __init__(self, classes: int, unit: float) -> None:
        self._classes, self._unit = classes, unit
        self._true, self._predicted, self._right = np.zeros((3, classes))
        self._table = np.zeros((classes, classes)) if classes <= MOST_CLASSES_IN_TABLE else None

    @property
    def weight(self) -> float:
        return float(self._true.sum())

    def add(self, true: NDArray[np.int64], predicted: NDArray[np.int64], weights: Doubles) -> None:
        count = self._classes
        self._true += np.bincount(true, weights, count)
        self._predicted += np.bincount(predicted, weights, count)
        self._right += np.bincount(true, weights * (true == predicted), count)
        if self._table is not None:
            self._table += np.bincount(true * count + predicted, weights, count * count).reshape(count, count)

    def accuracy(self) -> float | None:
        return float(self._right.sum() / self.weight) if self.weight else None

    def scores(self) -> tuple[Doubles, Doubles, Doubles]:
        """Return precision, recall and F1 of each class that occurs, as label or as prediction."""
        here = (self._true > 0) | (self._predicted > 0)
        right, true, predicted = self._right[here], self._true[here], self._predicted[here]
        return _ratio(right, predicted), _ratio(right, true), _ratio(2 * right, true + predicted)

    def of(self, number: int) -> tuple[float, float, float]:
        """Return precision, recall and F1 of one class."""
        right, true, predicted = (each[number : number + 1] for each in (self._right, self._true, self._predicted))
        found = _ratio(right, predicted), _ratio(right, true), _ratio(2 * right, true + predicted)
        return float(found[0][0]), float(found[1][0]), float(found[2][0])

    def rows(self) -> list[list[float]] | None:
        """Return the confusion matrix: a row for each true class, a column for each predicted one."""
        if self._table is None:
            return None
        table = self._table * self._unit
        return [[int(value) if value == int(value) else value for value in row] for row in table.tolist()]


class TwoClassMeasures:
    """The measures of two classes, of which the second is the positive one.

    Labels are -1 and 1 with one score a row, or 0 and 1 with two.
    """

    def __init__(self, *, probabilities: bool, memory: int | None = None, unit: float = 1.0) -> None:
        self._table = _ClassTable(2, unit)
        self.ranking = Ranking(memory=memory)
        self._probabilities = probabilities
        self._log = self._brier = 0.0

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        if scores.ndim == 2:
            scores = scores[:, 1] - scores[:, 0]
        positive = labels > 0
        self._table.add(positive.astype(np.int64), (scores > 0).astype(np.int64), weights)
        self.ranking.add(scores, positive, weights)
        if self._probabilities:
            margin = np.where(positive, scores, -scores)
            self._log += float(weighted_sum(weights, np.logaddexp(0, -margin)))
            self._brier += float(weighted_sum(weights, (1 - logistic(margin)) ** 2))

    def figures(self) -> dict[str, Any]:
        """Return ``log_loss``, ``brier`` (both only of models with probabilities), ``auc``, ``precision``, ``recall``,
        ``f1`` and ``confusion_matrix``.
        """
        weight = self._table.weight
        precision, recall, f1 = self._table.of(1)
        sums = {"log_loss": self._log, "brier": self._brier} if self._probabilities else {}
        return {
            "accuracy": self._table.accuracy(),
            **{name: value / weight if weight else None for name, value in sums.items()},
            "auc": self.ranking.area(),
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "confusion_matrix": self._table.rows(),
        }


class ManyClassMeasures:
    """The measures of three or more classes, with a score each; ``macro_`` ones are plain means over the classes.

    A class counts in the means of precision, recall and F1 if it occurs as a label or as a prediction, and in that of the
    area under the ROC curve (of each class against the rest) if there are rows of it and of others.
    """

    def __init__(self, classes: int, *, memory: int | None = None, unit: float = 1.0) -> None:
        self._table = _ClassTable(classes, unit)
        self._log = 0.0
        ranked = classes if classes <= MOST_CLASSES_RANKED else 0
        self._rankings = [Ranking(memory=None if memory is None else memory // ranked) for _ in range(ranked)]

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        true = labels.astype(np.int64)
        self._table.add(true, scores.argmax(axis=1), weights)
        raised = scores - scores.max(axis=1, keepdims=True)
        total = np.log(np.exp(raised).sum(axis=1))
        self._log += float(weighted_sum(weights, total - raised[np.arange(len(true)), true]))
        for number, ranking in enumerate(self._rankings):
            ranking.add(np.exp(raised[:, number] - total), true == number, weights)

    def figures(self) -> dict[str, Any]:
        """Return ``log_loss``, ``macro_auc``, ``macro_precision``, ``macro_recall``, ``macro_f1`` and
        ``confusion_matrix``.
        """
        weight = self._table.weight
        precision, recall, f1 = (float(each.mean()) if len(each) else None for each in self._table.scores())
        areas = [area for ranking in self._rankings if (area := ranking.area()) is not None]
        return {
            "accuracy": self._table.accuracy(),
            "log_loss": self._log / weight if weight else None,
            "macro_auc": float(np.mean(areas)) if areas else None,
            "macro_precision": precision,
            "macro_recall": recall,
            "macro_f1": f1,
            "confusion_matrix": self._table.rows(),
        }


def logistic(scores: Doubles) -> Doubles:
    """Return the probability of the positive class that a logistic model's scores stand for."""
    return np.asarray(0.5 * (1 + np.tanh(scores / 2)), np.float64)


def _ratio(part: Doubles, whole: Doubles) -> Doubles:
    """Return part over whole, and 0 where there is no whole."""
    return np.asarray(np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0), np.float64)


MOST_EXACT = 10_000_000
"""Distinct scores that are kept at most, each in a bin of its own."""
TOLERANCE = 1e-3
"""An area that may be wrong by more is not reported."""
_LEAST = 1 << 16
_PENDING = 1 << 18
_BIN_BYTES = 96
"""Of a bin: two float32 bounds and two float64 weights, once more while others are put between, and rows that wait."""
_KEPT_SHARE = 4
"""Merging leaves one bin for so many."""


class Ranking:
    """The ranks of scores of positive rows among those of negative rows.

    Parameters
    ----------
    memory : int, optional
        Bytes that bins may take; there are always 65,536 of them, about 6 MB. All distinct scores up to 10 million are
        kept if not given.

    Examples
    --------
    >>> ranking = Ranking()
    >>> ranking.add(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]), np.ones(4))
    >>> ranking.area(), ranking.error()
    (0.75, 0.0)
    """

    def __init__(self, *, memory: int | None = None) -> None:
        self._most = MOST_EXACT if memory is None else min(MOST_EXACT, max(_LEAST, memory // _BIN_BYTES))
        self._low = self._high = np.zeros(0, np.float32)
        self._mass: Doubles = np.zeros((2, 0))
        self._pending: list[tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]] = []
        self._waiting = 0

    def add(self, scores: NDArray[Any], positive: NDArray[np.bool_], weights: NDArray[Any]) -> None:
        """Take in rows: their scores, whether they are of the positive class, and their weights."""
        # The more bins there are, the more rows come between them at once, since all bins are moved for them.
        step = min(self._most, max(_PENDING, len(self._low) // 4))
        for at in range(0, len(scores), step):
            part = slice(at, at + step)
            self._pending.append(
                (scores[part].astype(np.float32), positive[part].copy(), weights[part].astype(np.float32))
            )
            self._waiting += len(self._pending[-1][0])
            if self._waiting >= step:
                self._fold()

    def area(self) -> float | None:
        """Return the chance that a positive row scores above a negative one, ties counting half.

        None where rows of one class are missing, or where merged bins leave it uncertain by more than 0.001.
        """
        self._fold()
        positive, negative = self._mass
        pairs = positive.sum() * negative.sum()
        if not pairs or self.error() > TOLERANCE:
            return None
        below = np.cumsum(negative) - negative
        return float(positive @ (below + negative / 2) / pairs)

    def error(self) -> float:
        """Return by how much the area may be wrong; 0 while every distinct score has a bin of its own."""
        self._fold()
        merged = self._low < self._high
        positive, negative = self._mass
        pairs = positive.sum() * negative.sum()
        return float(positive[merged] @ negative[merged] / 2 / pairs) if pairs else 0.0

    def curve(self, points: int = 200) -> tuple[Doubles, Doubles]:
        """Return false and true positive rates, from (0, 0) to (1, 1), at about so many thresholds from high to low."""
        _, true, false = self.cuts(points)
        return false / max(false[-1], 1e-300), true / max(true[-1], 1e-300)

    def cuts(self, points: int = 200) -> tuple[Doubles, Doubles, Doubles]:
        """Return about so many scores to cut at, from high to low, and the weight of positive and negative rows above each.

        The first lies above all scores, and the last below; the others lie between the bins.
        """
        self._fold()
        between = (self._low[1:].astype(np.float64) + self._high[:-1]) / 2
        scores = np.concatenate([[np.inf], between[::-1], [-np.inf]])[: len(self._low) + 1]
        true, false = (np.concatenate([[0.0], np.cumsum(mass[::-1])]) for mass in self._mass)
        # Even steps along both rates, so that steep and flat parts have points alike.
        share = true / max(true[-1], 1e-300) + false / max(false[-1], 1e-300)
        wanted = np.searchsorted(share, np.linspace(0, share[-1], points))
        kept = np.unique(np.concatenate([[0], np.minimum(wanted, len(true) - 1), [len(true) - 1]]))
        return scores[kept], true[kept], false[kept]

    def calibration(self, probability: Any, bins: int = 10) -> list[tuple[float, float, float]]:
        """Return, for parts of about equal weight by score, the mean probability predicted, the share of positive rows,
        and the weight.

        ``probability`` turns scores into probabilities of the positive class.
        """
        self._fold()
        positive, total = self._mass[0], self._mass.sum(axis=0)
        if not total.sum():
            return []
        expected = probability((self._low.astype(np.float64) + self._high) / 2)
        middle = (np.cumsum(total) - total / 2) / total.sum()
        part = np.minimum((middle * bins).astype(np.int64), bins - 1)
        sums = [np.bincount(part, values, bins) for values in (total, total * expected, positive)]
        return [(float(e / w), float(p / w), float(w)) for w, e, p in zip(*sums) if w > 0]

    def _fold(self) -> None:
        """Bring the rows that wait into bins."""
        if not self._pending:
            return
        scores, is_positive, weights = (np.concatenate(column) for column in zip(*self._pending))
        self._pending, self._waiting = [], 0
        order = np.argsort(scores)  # sorted ones are found among the bins several times faster
        scores, is_positive, weights = scores[order], is_positive[order], weights[order].astype(np.float64)
        first = np.flatnonzero(np.diff(scores, prepend=np.float32(np.inf)))
        own = scores[first]
        rows = np.stack([np.where(is_positive, weights, 0), np.where(is_positive, 0, weights)])
        mass = np.add.reduceat(rows, first, axis=1)
        if len(self._low):
            place = np.searchsorted(self._low, own, side="right") - 1
            inside = (place >= 0) & (own <= self._high[place])
            self._mass += [np.bincount(place[inside], each[inside], len(self._low)) for each in mass]
            own, mass = own[~inside], mass[:, ~inside]
        if len(own):
            at = np.searchsorted(self._low, own)
            self._low, self._high = np.insert(self._low, at, own), np.insert(self._high, at, own)
            self._mass = np.insert(self._mass, at, mass, axis=1)
        if len(self._low) > self._most:
            self._merge(self._most // _KEPT_SHARE)

    def _merge(self, bins: int) -> None:
        """Merge neighbors into about so many bins of equal shares of both classes."""
        totals = self._mass.sum(axis=1, keepdims=True)
        share = (self._mass / np.where(totals > 0, totals, 1)).sum(axis=0)
        middle = np.cumsum(share) - share / 2
        part = (middle / share.sum() * bins).astype(np.int64)
        first = np.flatnonzero(np.diff(part, prepend=-1))
        last = np.append(first[1:], len(part)) - 1
        self._low, self._high = self._low[first], self._high[last]
        self._mass = np.add.reduceat(self._mass, first, axis=1)
