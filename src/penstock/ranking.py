"""Ranks of scores, streamed: the area under the ROC curve, the curve itself, and calibration, in bounded memory.

Scores are kept as bins: a range of scores with the weight of the positive and the negative rows in it. While the distinct
scores are few enough each has a bin of its own, and the area is exact. Beyond that, neighboring bins are merged so that
each has about the same share of both classes. Rows of one bin count as ties, so the area is wrong by at most half of the
pairs of a positive and a negative row that share a merged bin: `Ranking.error` returns that bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

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
        self._fold()
        positive, negative = (np.concatenate([[0.0], np.cumsum(mass[::-1])]) for mass in self._mass)
        true, false = positive / max(positive[-1], 1e-300), negative / max(negative[-1], 1e-300)
        # Even steps along both rates, so that steep and flat parts have points alike.
        wanted = np.searchsorted(true + false, np.linspace(0, true[-1] + false[-1], points))
        kept = np.unique(np.concatenate([[0], np.minimum(wanted, len(true) - 1), [len(true) - 1]]))
        return false[kept], true[kept]

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
