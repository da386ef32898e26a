"""How good a model is, in the measures that users of the warehouses know: ``ML.EVALUATE``.

One pass over the rows in bounded memory. Measures that hang on the ranks of all rows (the area under the ROC curve, a
median) are exact up to four million rows and beyond that taken of an even sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.errors import DataError
from penstock.linear import LinearModel, probabilities
from penstock.loader.loader import Loader

_MOST = 4_000_000
"""Rows of which ranks are kept."""
_SURE = 1e-15


def measure(
    model: LinearModel, source: BlockSource, *, label: str | None = None, memory: str | int = "512MB"
) -> dict[str, float | None]:
    """Return the measures of a model on labelled rows, by the names that ``ML.EVALUATE`` has for them."""
    encoder = replace(model.encoder, label=label or model.encoder.label, weight=None)
    encoder = encoder.for_schema(source.schema, place=source.name, scored=True)
    tally: _Classes | _Numbers
    tally = _Numbers() if encoder.labels is None else _Classes(len(encoder.labels.classes))
    with Loader(source, encoder, "none", memory=memory) as loader:
        for window in loader.epoch(0):
            batch = window.batch
            if batch.y is not None and len(batch):
                tally.add(model, model.scores(batch), batch.y)
    if not tally.rows:
        raise DataError(f"{source.name} has no rows; there is nothing to measure the model on")
    return tally.found()


@dataclass(slots=True)
class _Sample:
    """Columns of numbers of which at most so many are kept: all, or every second, fourth, eighth …"""

    step: int = 1
    seen: int = 0
    parts: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, columns: NDArray[np.float32]) -> None:
        first = -self.seen % self.step
        self.seen += len(columns)
        self.parts.append(columns[first :: self.step].copy())
        if sum(map(len, self.parts)) > _MOST:
            self.step *= 2
            self.parts = [np.concatenate(self.parts)[::2].copy()]

    def values(self) -> NDArray[np.float32]:
        return np.concatenate(self.parts)


@dataclass(slots=True)
class _Numbers:
    """Sums over the errors of a regression."""

    rows: int = 0
    absolute: float = 0.0
    squared: float = 0.0
    logged: float | None = 0.0
    error: float = 0.0
    total: float = 0.0
    total_squared: float = 0.0
    sample: _Sample = field(default_factory=_Sample)

    def add(self, model: LinearModel, scores: NDArray[Any], y: NDArray[Any]) -> None:
        truth = y.astype(np.float64)
        error = truth - scores
        self.rows += len(truth)
        self.absolute += float(np.abs(error).sum())
        self.squared += float((error**2).sum())
        self.error += float(error.sum())
        self.total += float(truth.sum())
        self.total_squared += float((truth**2).sum())
        if self.logged is not None:
            low = min(float(truth.min()), float(scores.min()))
            step = ((np.log1p(truth) - np.log1p(scores)) ** 2).sum() if low > -1 else None
            self.logged = None if step is None else self.logged + float(step)
        self.sample.add(np.abs(error).astype(np.float32))

    def found(self) -> dict[str, float | None]:
        count = self.rows
        spread = self.total_squared - self.total**2 / count
        unexplained = self.squared - self.error**2 / count
        return {
            "mean_absolute_error": self.absolute / count,
            "mean_squared_error": self.squared / count,
            "mean_squared_log_error": None if self.logged is None else self.logged / count,
            "median_absolute_error": float(np.median(self.sample.values())),
            "r2_score": 1 - self.squared / spread if spread > 0 else None,
            "explained_variance": 1 - unexplained / spread if spread > 0 else None,
        }


class _Classes:
    """A table of true against predicted classes, and what was thought of the true one."""

    def __init__(self, classes: int) -> None:
        self.rows = 0
        self._table = np.zeros((classes, classes), np.int64)
        self._log = 0.0
        self._sample = _Sample()
        self._sure = True

    def add(self, model: LinearModel, scores: NDArray[Any], y: NDArray[Any]) -> None:
        classes = len(self._table)
        several = model.kind == "softmax"
        truth = y.astype(np.int64) if several else (y > 0).astype(np.int64)
        said = scores.argmax(axis=1) if several else (scores > 0).astype(np.int64)
        np.add.at(self._table, (truth, said), 1)
        self.rows += len(truth)
        chances = probabilities(model.kind, scores)
        if chances is None:
            self._sure = False
            chances = np.column_stack([-scores, scores])
        else:
            self._log -= float(np.log(np.maximum(chances[np.arange(len(truth)), truth], _SURE)).sum())
        shown = chances if classes > 2 else chances[:, 1:]
        self._sample.add(np.column_stack([truth, shown]).astype(np.float32))

    def found(self) -> dict[str, float | None]:
        right = np.diag(self._table).astype(np.float64)
        true, said = self._table.sum(axis=1), self._table.sum(axis=0)
        kinds = slice(1, 2) if len(self._table) == 2 else slice(None)
        precision, recall = _share(right, said)[kinds], _share(right, true)[kinds]
        harmonic = _share(2 * precision * recall, precision + recall)
        return {
            "precision": float(precision.mean()),
            "recall": float(recall.mean()),
            "accuracy": float(right.sum() / self.rows),
            "f1_score": float(harmonic.mean()),
            "log_loss": self._log / self.rows if self._sure else None,
            "roc_auc": self._area(),
        }

    def _area(self) -> float | None:
        values = self._sample.values()
        truth, chances = values[:, 0].astype(np.int64), values[:, 1:]
        kinds = [1] if chances.shape[1] == 1 else range(chances.shape[1])
        areas = [_area(truth == kind, chances[:, column]) for column, kind in enumerate(kinds)]
        known = [area for area in areas if area is not None]
        return float(np.mean(known)) if known else None


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Return part over whole, and 0 where there is no whole."""
    share: NDArray[np.float64] = np.divide(part, whole, out=np.zeros(len(part)), where=np.asarray(whole) > 0)
    return share


def _area(positive: NDArray[np.bool_], scores: NDArray[np.float32]) -> float | None:
    """Return the chance that a positive row scores above a negative one, ties counting half."""
    count = int(positive.sum())
    if count in (0, len(positive)):
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))
