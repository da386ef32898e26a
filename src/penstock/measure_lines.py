"""The measures of a model as text, in one line or in lines of all of them, and figures as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.metric_names import epoch_score, headline, title

_SHOWN = (
    *("auc", "macro_auc", "precision", "macro_precision", "recall", "macro_recall", "f1", "macro_f1"),
    *("log_loss", "brier", "r2", "rmse", "mae"),
)
_MOST_CLASSES = 12
"""Classes of a confusion matrix that is printed."""


def evaluation_lines(found: Mapping[str, Any], metric: str, *, classes: Sequence[Any] | None) -> Iterator[str]:
    """Yield the figures of an evaluation: first ``metric`` and the loss, then the other measures.

    Examples
    --------
    >>> found = {"loss": 0.5, "accuracy": 0.75, "auc": 0.9, "confusion_matrix": [[2, 1], [0, 1]], "rows": 4}
    >>> print(*evaluation_lines(found, "accuracy", classes=["no", "yes"]), sep=chr(10))
    accuracy 75.00 %, loss 0.5, 4 rows
    AUC 0.9000
    confusion matrix (a row for each true class, a column for each predicted one):
          no  yes
      no   2    1
     yes   0    1
    """
    loss = f", loss {found['loss']:.5g}" if "loss" in found else ""
    yield f"{title(metric)} {show_score(found[metric], metric)}{loss}, {found['rows']:,} rows"
    if others := measure_line(found, leave_out=metric):
        yield others
    yield from _confusion(found.get("confusion_matrix"), classes)


def finished_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the measures of a model that was trained, a line for each kind of rows that it was measured on.

    Examples
    --------
    >>> list(finished_lines({"held_out_r2": 0.5, "held_out_rmse": 1.25, "test_r2": 0.25, "test_rmse": 1.5}))
    ['test: R² 0.2500, RMSE 1.5000', 'held-out: R² 0.5000, RMSE 1.2500']
    """
    for kind in ("test", "held_out", "training"):
        line = measure_line(found, kind)
        if ", " in line:  # one alone is in the line of the score
            yield f"{kind.replace('_', '-')}: {line}"
    if rows := found.get("refit_rows"):
        yield f"measured so, it learned from the held-out rows too: {rows:,} rows in all"
    if rows := found.get("dropped_rows"):
        yield f"{show_items(rows, 'row')} that lacked a feature were neither learned from nor held out; evaluate measures such rows"


def measure_line(found: Mapping[str, Any], kind: str = "", *, leave_out: str = "") -> str:
    """Return the measures on rows of a kind, such as ``"test"``, in one line; empty where there are none.

    Examples
    --------
    >>> measure_line({"test_auc": 0.9, "test_f1": 0.5, "test_accuracy": 0.8}, "test")
    'AUC 0.9000, F1 0.5000'
    """
    prefix = f"{kind}_" if kind else ""
    values = {name: found.get(prefix + name) for name in _SHOWN if name != leave_out}
    return ", ".join(f"{title(name)} {value:.4f}" for name, value in values.items() if value is not None)


def _confusion(table: Sequence[Sequence[float]] | None, classes: Sequence[Any] | None) -> Iterator[str]:
    if table is None or classes is None or len(classes) > _MOST_CLASSES:
        return
    names = [str(each) for each in classes]
    cells = [[f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" for value in row] for row in table]
    wide = max(map(len, [*names, *(cell for row in cells for cell in row)]))
    yield "confusion matrix (a row for each true class, a column for each predicted one):"
    for name, row in zip(["", *names], [names, *cells]):
        yield " " + "  ".join(f"{cell:>{wide}}" for cell in (name, *row))


def show_score(score: float | None, metric: str) -> str:
    """Write an accuracy as a percentage, and an R² or RMSE as it is.

    Examples
    --------
    >>> show_score(0.98765, "accuracy"), show_score(0.98765, "r2"), show_score(None, "r2")
    ('98.77 %', '0.9877', '–')
    """
    if score is None:
        return "–"
    return f"{100 * score:.2f} %" if metric.endswith("accuracy") else f"{score:.4f}"


def show_items(count: int, noun: str, plural: str = "") -> str:
    """Write a count of things.

    Examples
    --------
    >>> show_items(1, "group"), show_items(1200, "group"), show_items(2, "pass", "passes")
    ('1 group', '1,200 groups', '2 passes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def final_score(found: Mapping[str, Any]) -> str:
    """Say the score of a finished model in words, and on how many rows it was measured where that is known.

    Examples
    --------
    >>> final_score({"held_out_accuracy": 0.5, "held_out_rows": 1000})
    'held-out accuracy 50.00 % (1,000 rows)'
    """
    score = headline(found) or epoch_score(found)
    if score is None:
        return "no score"
    rows = found.get(f"{score.name.removesuffix(f'_{score.metric}')}_rows")
    return f"{score.title} {show_score(score.value, score.metric)}" + ("" if rows is None else f" ({rows:,} rows)")


def strict_json(value: Any) -> Any:
    """Return a value as strict JSON has it: no NaN, no infinity, no NumPy scalars.

    Examples
    --------
    >>> strict_json({"loss": float("nan"), "rows": np.int64(3)})
    {'loss': None, 'rows': 3}
    """
    if isinstance(value, Mapping):
        return {str(name): strict_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [strict_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
