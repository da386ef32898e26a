"""The names of a training's figures, and which of them describe the finished model.

A prefix says on which rows a loss or score was measured:

- ``progressive_``: on each row just before it is learned from. It describes no finished model, and it flatters where
  similar rows follow one another.
- ``held_out_``: on rows of the training data that are never learned from.
- ``test_``: on other data that the user named.
- ``training_``: the finished model on a sample of the rows it was learned from.

Only an evaluation of a finished model on rows that the user named has the plain names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import some_of
from penstock.messages import Text, Use

METRICS = ("accuracy", "r2", "rmse")
"""The scores there are; a model has one of them."""

_FINISHED = ("test", "held_out", "training")
_EPOCH = ("test", "held_out", "progressive")
_KINDS = ("test", "held_out", "training", "progressive")
_TITLES = {
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
    "auc": "AUC",
    "f1": "F1",
    "brier": "Brier score",
    "macro_auc": "macro AUC",
    "macro_f1": "macro F1",
}


@dataclass(frozen=True, slots=True)
class Score:
    """One score with its full name, such as ``held_out_accuracy``, and the metric that it is."""

    name: str
    metric: str
    value: float

    @property
    def title(self) -> str:
        """The name as people write it."""
        return title(self.name)


def headline(figures: Mapping[str, Any]) -> Score | None:
    """Return the score of a finished model: on test rows, else on held-out rows, else on a sample of training rows.

    Examples
    --------
    >>> headline({"progressive_accuracy": 0.99, "held_out_accuracy": 0.5, "held_out_loss": 0.7})
    Score(name='held_out_accuracy', metric='accuracy', value=0.5)
    >>> headline({"progressive_accuracy": 0.99}) is None
    True
    """
    return _first(figures, _FINISHED)


def epoch_score(row: Mapping[str, Any]) -> Score | None:
    """Return the score of one epoch: on test rows, else on held-out rows, else the progressive one.

    Examples
    --------
    >>> epoch_score({"epoch": 1, "progressive_r2": 0.25}).title
    'progressive R²'
    """
    return _first(row, _EPOCH)


def deciding_loss(row: Mapping[str, Any]) -> float:
    """Return the loss of an epoch that early stopping watches: on held-out rows, else on test rows, else progressive.

    With class weights it is the loss in which rows count by these, as they do in training.

    Examples
    --------
    >>> deciding_loss({"held_out_loss": 0.5, "held_out_weighted_loss": 0.25, "test_loss": 0.75})
    0.25
    """
    for kind in ("held_out", "test", "progressive"):
        value = row.get(f"{kind}_weighted_loss", row.get(f"{kind}_loss"))
        if value is not None:
            return float(value)
    return math.inf


def learned_rows(figures: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> int | None:
    """Return from how many rows a finished model has learned; those held out are among them where it learned from these at the end.

    Examples
    --------
    >>> epochs = [{"epoch": 1, "rows": 90}, {"epoch": 2, "rows": 90}]
    >>> learned_rows({"held_out_rows": 10}, epochs), learned_rows({"held_out_rows": 10, "refit_rows": 100}, epochs)
    (90, 100)
    """
    rows: int | None = figures.get("refit_rows")
    return rows if rows is not None or not history else history[-1].get("rows")


def finished_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of an epoch that describe the model after it; progressive ones do not.

    Examples
    --------
    >>> finished_figures({"epoch": 1, "progressive_loss": 0.5, "held_out_loss": 0.75})
    {'held_out_loss': 0.75}
    """
    return {name: value for name, value in row.items() if name.startswith(("held_out_", "test_"))}


_RANKS_WELL, _POOR = 0.6, 1.1
_COLUMNS = 8
"""Columns that are named at most."""
_FEW_ROWS = 30
"""Fewer rows than these judge no model: chance decides."""
_MANY_ROWS, _NO_ERROR = 200, {"accuracy": 1.0, "r2": 0.99999}
"""Rows on which a model that learned from noisy data makes an error, and the scores of one that makes none."""


def useless_reason(figures: Mapping[str, Any]) -> str | None:
    """Say why a finished model is no better than a constant prediction, on test or held-out rows; None where it is better.

    A classifier is no better where its accuracy is at most the share of the largest class, or by no more above it than chance
    would have it where its log loss is above that of the classes' shares. One with a lower log loss is better. With class
    weights, rows count by these in all four.

    Examples
    --------
    >>> useless_reason({"held_out_r2": -0.5, "held_out_rows": 100})
    'held-out R² -0.5000 is no better than predicting the mean of the label, 0'
    >>> figures = {"test_accuracy": 0.8, "test_log_loss": 0.7, "test_confusion_matrix": [[80, 0], [20, 0]], "test_rows": 100}
    >>> useless_reason(figures)
    'test accuracy 0.8000 is no better than predicting the largest class, 0.8000'
    >>> useless_reason(figures | {"test_log_loss": 0.4}) is None
    True
    >>> useless_reason(figures | {"test_log_loss": 0.75, "test_accuracy": 0.82})
    "test log loss 0.7500 is no better than predicting the classes' shares, 0.5004, and accuracy 0.8200 is above the largest class, 0.8000, by no more than chance"
    >>> useless_reason(figures | {"class_weights": {"a": 0.6, "b": 2.5}, "test_weighted_loss": 0.8})
    'test accuracy by class weights 0.4898 is no better than predicting the largest class, 0.5102'
    """
    factors = list(figures.get("class_weights", {}).values())
    for kind in ("test", "held_out"):
        if (figures.get(f"{kind}_rows") or 0) < _FEW_ROWS:
            continue
        r2, matrix = figures.get(f"{kind}_r2"), figures.get(f"{kind}_confusion_matrix")
        if r2 is not None:
            what = f"{title(f'{kind}_r2')} {r2:.4f} is no better than predicting the mean of the label, 0"
            return what if r2 <= 0 else None
        if matrix:
            named, loss = title(f"{kind}_accuracy"), figures.get(f"{kind}_log_loss")
            accuracy = float(figures[f"{kind}_accuracy"])
            if factors:
                matrix = [[factor * count for count in row] for factor, row in zip(factors, matrix, strict=True)]
                accuracy = sum(row[at] for at, row in enumerate(matrix)) / sum(map(sum, matrix))
                named += " by class weights"
                loss = loss if loss is None else figures.get(f"{kind}_weighted_loss")
            counts = [sum(row) for row in matrix]
            shares = [count / sum(counts) for count in counts if count]
            most, constant = max(shares), -sum(share * math.log(share) for share in shares)
            if loss is not None and loss <= constant:
                return None
            if accuracy <= most:
                return f"{named} {accuracy:.4f} is no better than predicting the largest class, {most:.4f}"
            chance = 2 * math.sqrt(most * (1 - most) / figures[f"{kind}_rows"])
            if loss is None or accuracy > most + chance:
                return None
            return (
                f"{named.replace('accuracy', 'log loss')} {loss:.4f} is no better than predicting the classes' shares,"
                f" {constant:.4f}, and accuracy {accuracy:.4f} is above the largest class, {most:.4f}, by no more than chance"
            )
    return None


def poor_probabilities(figures: Mapping[str, Any]) -> str | None:
    """Say that predicted probabilities are worse than the classes' shares, though classes may be predicted well; else None.

    Examples
    --------
    >>> figures = {"test_log_loss": 9.5, "test_confusion_matrix": [[45, 5], [5, 45]], "test_rows": 100}
    >>> poor_probabilities(figures)
    "test log loss 9.5 is above that of the classes' shares, 0.693: predicted probabilities are of no use"
    >>> poor_probabilities(figures | {"test_log_loss": 0.4}) is None
    True
    """
    for kind in ("test", "held_out"):
        loss, matrix = figures.get(f"{kind}_log_loss"), figures.get(f"{kind}_confusion_matrix")
        if loss is None or not matrix or (figures.get(f"{kind}_rows") or 0) < _FEW_ROWS or figures.get("class_weights"):
            continue
        counts = [sum(row) for row in matrix]
        constant = -sum(count / sum(counts) * math.log(count / sum(counts)) for count in counts if count)
        if loss > _POOR * constant:
            return (
                f"{title(f'{kind}_log_loss')} {loss:.3g} is above that of the classes' shares, {constant:.3g}: predicted"
                " probabilities are of no use"
            )
    return None


def perfect_score(figures: Mapping[str, Any]) -> str | None:
    """Say that a finished model makes no error on test or held-out rows, which is seldom so unless a feature tells the label.

    Examples
    --------
    >>> perfect_score({"held_out_accuracy": 1.0, "held_out_rows": 300})
    'held-out accuracy 1.0000 on 300 rows'
    >>> perfect_score({"test_r2": 0.99, "test_rows": 300}) is None
    True
    """
    score = headline(figures)
    if score is None or score.metric not in _NO_ERROR or score.name.startswith("training_"):
        return None
    rows = figures.get(f"{score.name.removesuffix(f'_{score.metric}')}_rows") or 0
    perfect = rows >= _MANY_ROWS and score.value >= _NO_ERROR[score.metric]
    return f"{score.title} {score.value:.4f} on {rows:,} rows" if perfect else None


def useless_advice(figures: Mapping[str, Any], label: str | None) -> Text:
    """Return what to do about a model that is no better than a constant prediction.

    Examples
    --------
    >>> print(useless_advice({"held_out_auc": 0.52}, "churn"))
    look for columns that tell more of 'churn'
    >>> print(useless_advice({"held_out_auc": 0.75}, "churn"))
    its scores rank rows well (AUC 0.750): weigh the rarer class more, by balanced class weights
    """
    area = figures.get("test_auc", figures.get("held_out_auc"))
    if area is not None and area > _RANKS_WELL:
        return Text(
            f"its scores rank rows well (AUC {area:.3f}): weigh the rarer class more, by balanced class weights"
        )
    codes = codes_advice(figures)
    return Text(codes, ", or " if codes else "", f"look for columns that tell more of {label!r}")


def codes_advice(figures: Mapping[str, Any]) -> Text:
    """Return what to do about columns of few whole numbers that were taken as quantities; nothing without any.

    Examples
    --------
    >>> print(codes_advice({"few_valued": {"plan": 8}}))
    whole numbers were taken as quantities: 'plan' (8 different); where they are codes, use category=['plan']
    """
    columns: Mapping[str, int] = figures.get("few_valued", {})
    if not columns:
        return Text()
    shown = some_of((f"{name!r} ({count} different)" for name, count in columns.items()), _COLUMNS)
    some = list(columns)[:_COLUMNS]
    return Text(f"whole numbers were taken as quantities: {shown}; where they are codes, use ", Use("category", some))


def title(name: str) -> str:
    """Return the name of a figure as people write it.

    Examples
    --------
    >>> title("held_out_accuracy"), title("progressive_loss"), title("test_r2"), title("rmse"), title("test_log_loss")
    ('held-out accuracy', 'progressive loss', 'test R²', 'RMSE', 'test log loss')
    """
    kind = next((each for each in _KINDS if name.startswith(f"{each}_")), "")
    metric = name.removeprefix(f"{kind}_") if kind else name
    return f"{kind.replace('_', '-')} {_TITLES.get(metric, metric.replace('_', ' '))}".strip()


def _first(figures: Mapping[str, Any], kinds: tuple[str, ...]) -> Score | None:
    for kind in kinds:
        for metric in METRICS:
            value = figures.get(f"{kind}_{metric}")
            if value is not None:
                return Score(f"{kind}_{metric}", metric, float(value))
    return None
