"""Columns of a few whole numbers that may be codes: what their values tell of the label, beside what a line through them does.

A line is what a linear model learns of a quantity. Of a code, whose numbers are names, it tells little where the values
themselves tell much. For each column the label's mean at each value is compared with a fit on the number, of the logistic
kind for classes: the lack of fit has to be beyond chance, large, and larger than what the fit explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST_LEVELS = 50
"""Different whole numbers up to which a column may be one of codes."""
_LEAST_LEVELS, _LEAST_ROWS = 4, 5
"""Values below which a line tells much of any of them, and rows of a value that say something of it."""
_Z, _SHARE = 6.0, 0.01
"""How far beyond chance a lack of fit is, in standard deviations, and how much of the label's variance it explains at least."""
_CLASSES = 10
"""The classes, the most frequent ones, that are told from one another; rarer ones count as one."""
_TAIL = 0.01
"""The share of the smallest, and of the largest, numbers of a label that count as the ones next to them."""
_STEPS, _RIDGE = 30, 1e-6

Doubles: TypeAlias = NDArray[np.float64]
_MISSING = 255


@dataclass(frozen=True, slots=True)
class LevelEffect:
    """What the values of a column explain of the label's variance, and what a fit on the number explains of it."""

    levels: int
    by_level: float
    by_line: float


class LevelEffects:
    """Rows of columns that may be codes; none is looked at any more from the value on that says it is none.

    Examples
    --------
    >>> rows = np.arange(4000)
    >>> code, size = rows % 8.0, (rows // 8) % 8.0
    >>> found = LevelEffects(["code", "size", "x"])
    >>> found.add({"code": code, "size": size, "x": rows / 7}, (code % 2 + size / 8))
    >>> found.levels
    {'code': 8, 'size': 8}
    >>> list(found.codes(classes=False))
    ['code']
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._known: dict[str, dict[float, int]] = {name: {} for name in names}
        self._rows: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in self._known}
        self._labels: list[Doubles] = []

    @property
    def columns(self) -> list[str]:
        """The columns that are still looked at."""
        return list(self._known)

    @property
    def levels(self) -> dict[str, int]:
        """How many different whole numbers each column has, of those that have few."""
        return {name: len(known) for name, known in self._known.items() if len(known) >= _LEAST_LEVELS}

    def add(self, columns: Mapping[str, Doubles], labels: Doubles) -> None:
        """Take in some rows: the columns' values, NaN where one is missing, and the label's, or the numbers of its classes."""
        for name, known in list(self._known.items()):
            values, places = np.unique(columns[name], return_inverse=True)
            there = values[~np.isnan(values)]
            if (there == np.floor(there)).all() and len(there) <= MOST_LEVELS:
                codes = [known.setdefault(value, len(known)) for value in there.tolist()]
                numbers = np.full(len(values), _MISSING, np.uint8)
                if len(known) <= MOST_LEVELS:
                    numbers[: len(codes)] = codes
                    self._rows[name].append(numbers[places])
                    continue
            del self._known[name], self._rows[name]
        self._labels.append(labels)

    def codes(self, *, classes: bool) -> dict[str, LevelEffect]:
        """Return the columns whose values tell much of the label that no line through them does."""
        if not self._known or not self._labels:
            return {}
        targets = _targets(np.concatenate(self._labels), classes=classes)
        found = {}
        for name in self.levels:
            values = np.array(list(self._known[name]))
            effect = _effect(values, np.concatenate(self._rows[name]), targets, classes=classes)
            if effect is not None:
                found[name] = effect
        return found


def _targets(labels: Doubles, *, classes: bool) -> Doubles:
    """Return what to explain, a column each: a number without its tails, or whether a row is of a class, the rarer ones together."""
    if not classes:
        return np.clip(labels, *np.quantile(labels, [_TAIL, 1 - _TAIL]))[:, None]
    known, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rank = np.empty(len(known), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(known))
    rank = np.minimum(rank, _CLASSES)
    return np.eye(int(rank.max(initial=0)) + 1)[rank[places]]


def _effect(values: Doubles, rows: NDArray[np.uint8], targets: Doubles, *, classes: bool) -> LevelEffect | None:
    """Return what a column explains, where its values explain more than a line, by far more than chance would have it."""
    counts = np.bincount(rows, minlength=_MISSING + 1)[: len(values)].astype(np.float64)
    kept = counts >= _LEAST_ROWS
    if kept.sum() < _LEAST_LEVELS:
        return None
    used = np.isin(rows, np.flatnonzero(kept))
    rows, targets = rows[used], targets[used]
    sums = np.stack([np.bincount(rows, each, minlength=len(values))[kept] for each in targets.T], axis=1)
    values, counts = values[kept], counts[kept]
    means, total, free = sums / counts[:, None], float(counts.sum()), len(values) - 2
    mean = sums.sum(axis=0) / total
    variance = float(((targets - mean) ** 2).sum()) / total
    noise = variance - float((counts @ (means - mean) ** 2).sum()) / total
    if variance <= 0 or total <= len(values):
        return None
    line = (_softmax_line if classes else _line)(values, counts, means)
    lack = float((counts @ (means - line) ** 2).sum())
    # Of a code that tells all of the label no noise is left.
    excess = max(lack / max(noise, 1e-9 * variance) / free, 1e-9)
    z = (np.cbrt(excess) - (1 - 2 / (9 * free))) / np.sqrt(
        2 / (9 * free)
    )  # a chi-squared sum over its degrees of freedom
    beyond = (lack - free * noise) / (total * variance)
    by_line = float((counts @ (line - mean) ** 2).sum()) / (total * variance)
    if z < _Z or beyond < max(_SHARE, by_line):
        return None
    return LevelEffect(len(values), min(1.0, by_line + beyond), by_line)


def _line(values: Doubles, counts: Doubles, means: Doubles) -> Doubles:
    """Return the least squares fit of means on values."""
    total = counts.sum()
    apart = values - counts @ values / total
    slope = (counts * apart) @ means / ((counts * apart) @ apart)
    return np.asarray(counts @ means / total + np.outer(apart, slope))


def _softmax_line(values: Doubles, counts: Doubles, means: Doubles) -> Doubles:
    """Return the fit of classes' shares on values by the softmax of linear scores, by Newton's method."""
    apart = values - counts @ values / counts.sum()
    design = np.column_stack([np.ones(len(apart)), apart / np.abs(apart).max()])
    free = means.shape[1] - 1  # the score of the last class is 0
    weights = np.zeros((free, 2))
    for step in range(_STEPS + 1):
        scores = np.clip(np.column_stack([design @ weights.T, np.zeros(len(values))]), -30, 30)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        if step == _STEPS:
            break
        some = shares[:, :free]
        slope = ((counts[:, None] * (means - shares)[:, :free]).T @ design - _RIDGE * weights).ravel()
        blocks = np.einsum("l,lk,kj,la,lb->kajb", counts, some, np.eye(free), design, design)
        blocks -= np.einsum("l,lk,lj,la,lb->kajb", counts, some, some, design, design)
        curvature = blocks.reshape(2 * free, 2 * free) + _RIDGE * np.eye(2 * free)
        weights = weights + np.clip(np.linalg.solve(curvature, slope), -1, 1).reshape(free, 2)
    return np.asarray(shares)
