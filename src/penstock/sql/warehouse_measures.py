"""How good a model is, by the names that users of the warehouses know: ``ML.EVALUATE``.

The measures are those of `penstock.evaluation`, and some of a regression that only the warehouses have: a median of errors,
exact up to four million rows and beyond that of an even sample, and errors of logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.errors import DataError
from penstock.linear import LinearModel

_MOST = 4_000_000
"""Rows whose errors are kept for the median."""
_CLASSES = {
    "precision": ("precision", "macro_precision"),
    "recall": ("recall", "macro_recall"),
    "accuracy": ("accuracy",),
    "f1_score": ("f1", "macro_f1"),
    "log_loss": ("log_loss",),
    "roc_auc": ("auc", "macro_auc"),
}


def measure_for_warehouse(
    model: LinearModel, source: BlockSource, *, label: str | None = None, memory: str | int = "512MB"
) -> dict[str, float | None]:
    """Return the measures of a model on labelled rows, by the names that ``ML.EVALUATE`` has for them."""
    errors = _Errors() if model.encoder.labels is None else None
    found = model.evaluate(source, label=label, memory=memory, on_scores=None if errors is None else errors.add)
    if not found["rows"]:
        raise DataError(f"{source.name} has no rows; there is nothing to measure the model on")
    if errors is not None:
        return errors.figures(found)
    return {
        name: next((found[own] for own in names if found.get(own) is not None), None)
        for name, names in _CLASSES.items()
    }


@dataclass(slots=True)
class _Errors:
    """What the warehouses tell of a regression's errors beside R² and the means."""

    weight: float = 0.0
    error: float = 0.0
    squared: float = 0.0
    logged: float | None = 0.0
    label: float = 0.0
    label_squared: float = 0.0
    seen: int = 0
    step: int = 1
    kept: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> None:
        error = labels - scores
        self.weight += float(weights.sum())
        self.error += float(weights @ error)
        self.squared += float(weights @ error**2)
        self.label += float(weights @ labels)
        self.label_squared += float(weights @ labels**2)
        if self.logged is not None and len(labels):
            low = min(float(labels.min()), float(scores.min()))
            logs = weights @ (np.log1p(labels) - np.log1p(scores)) ** 2 if low > -1 else None
            self.logged = None if logs is None else self.logged + float(logs)
        first = -self.seen % self.step
        self.seen += len(error)
        self.kept.append(np.abs(error[first :: self.step]).astype(np.float32))
        if sum(map(len, self.kept)) > _MOST:
            self.step *= 2
            self.kept = [np.concatenate(self.kept)[::2].copy()]

    def figures(self, found: dict[str, Any]) -> dict[str, float | None]:
        weight = self.weight
        spread = self.label_squared - self.label**2 / weight
        unexplained = self.squared - self.error**2 / weight
        return {
            "mean_absolute_error": found["mae"],
            "mean_squared_error": found["rmse"] ** 2,
            "mean_squared_log_error": None if self.logged is None else self.logged / weight,
            "median_absolute_error": float(np.median(np.concatenate(self.kept))),
            "r2_score": found["r2"] if spread > 0 else None,
            "explained_variance": 1 - unexplained / spread if spread > 0 else None,
        }
