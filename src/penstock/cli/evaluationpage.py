"""What ``penstock evaluate --report`` writes: curves are collected while rows are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.coefficients import coefficients
from penstock.measures import Doubles, TwoClassMeasures, logistic
from penstock.model import Model
from penstock.report import Evaluation, write_report
from penstock.sgd.losses import linear_models

_MOST = 20
"""Coefficients that are drawn."""
_MEMORY = 64 << 20


@dataclass(frozen=True, slots=True)
class EvaluationPage:
    """The page about a model, before it is measured."""

    model: Model
    name: str
    path: Path
    ranks: TwoClassMeasures | None

    @classmethod
    def of(cls, model: Model, name: str, path: Path) -> EvaluationPage:
        """Begin a page about a model, called ``name``, that goes to ``path``."""
        two = model.classes is not None and len(model.classes) == 2
        probable = model.kind not in (models := linear_models()) or models[model.kind].probabilities is not None
        ranks = TwoClassMeasures(probabilities=probable, memory=_MEMORY) if two else None
        return cls(model, name, path, ranks)

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        """Take in rows."""
        if self.ranks is not None:
            self.ranks.add(scores, labels, weights)

    def write(self, found: Mapping[str, Any], *, data: str) -> Path:
        """Write the page about the rows taken in, whose measures were found, and return its path."""
        model, ranking = self.model, None if self.ranks is None else self.ranks.ranking
        listed = [] if model.linear is None else coefficients(model.linear, most=_MOST)
        scaled = bool(listed) and listed[0].standardized is not None
        unit = "standard deviation" if scaled else "unit"
        bars = [
            (
                each.feature if each.output is None else f"{each.feature} ({each.output})",
                each.standardized if scaled and each.standardized is not None else each.value,
            )
            for each in listed
        ]
        roc = None
        if ranking is not None and found.get("auc") is not None:
            false, true = ranking.curve()
            roc = (false.tolist(), true.tolist())
        calibration = ranking.calibration(logistic) if ranking is not None and "brier" in found else []
        page = Evaluation(
            model=self.name,
            data=data,
            kind=model.word,
            label=str(model.label),
            measures=found,
            classes=None if model.classes is None else model.classes.tolist(),
            roc=roc,
            calibration=calibration,
            coefficients=bars,
            coefficient_note=f"What one {unit} of the feature adds to the score; the {len(bars)} largest.",
        )
        return write_report(page, self.path)
