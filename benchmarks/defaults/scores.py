"""What a model reaches on the test rows, what scikit-learn reaches there, and whether the bars are met."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.defaults import column_transformer
from benchmarks.defaults.tables import DefaultsTable

SMALLEST = 1e-15
"""Probabilities are clipped there before their logarithm is taken."""


@dataclass(frozen=True, slots=True)
class Bars:
    """How far a model may stay behind scikit-learn's: points of accuracy, ratio of log losses, R²."""

    points: float = 0.5
    log_loss_ratio: float = 1.02
    r2: float = 0.01


DEFAULT_BARS = Bars()
SGD_BARS = Bars(points=1.0, log_loss_ratio=math.inf)


@dataclass(frozen=True, slots=True)
class Answer:
    """Predictions for the test rows; probabilities have a column for each of ``classes``."""

    prediction: np.ndarray
    probability: np.ndarray | None = None
    classes: Sequence[Any] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModelScore:
    """Accuracy (or R²) and log loss on the test rows; ``error`` says why there are none.

    ``refused`` means that the memory was too small for the file, which is said beforehand and counts as no model.
    """

    score: float | None = None
    log_loss: float | None = None
    note: str = ""
    error: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Baseline:
    """scikit-learn's scores on a table, and those of a constant prediction."""

    score: float
    log_loss: float | None
    constant: float


def score(table: DefaultsTable, answer: Answer) -> ModelScore:
    """Score predictions for the test rows of a table."""
    y = table.split()[1].y
    if len(answer.prediction) != len(y):
        return ModelScore(error=f"{len(answer.prediction)} predictions for {len(y)} rows")
    if not table.classes:
        return ModelScore(r2(y, np.asarray(answer.prediction, np.float64)), note=answer.note)
    accuracy = float((_as_text(answer.prediction) == _as_text(y)).mean())
    loss = None if answer.probability is None else log_loss(y, answer.probability, answer.classes)
    return ModelScore(accuracy, loss, note=answer.note)


def r2(y: np.ndarray, prediction: np.ndarray) -> float:
    """Return the share of the labels' variance that predictions explain; a value that is no number explains nothing."""
    if not np.isfinite(prediction).all():
        return -math.inf
    return float(1 - ((y - prediction) ** 2).mean() / y.var())


def log_loss(y: np.ndarray, probability: np.ndarray, classes: Sequence[Any]) -> float:
    """Return the mean of -log(probability of the row's class); a class that is not known has probability 0."""
    places = {text: place for place, text in enumerate(_as_text(np.asarray(classes)))}
    columns = np.array([places.get(text, -1) for text in _as_text(y)])
    chosen = np.where(columns >= 0, probability[np.arange(len(y)), columns], 0.0).astype(np.float64)
    return float(-np.log(np.clip(np.nan_to_num(chosen), SMALLEST, 1)).mean())


def _as_text(labels: np.ndarray) -> np.ndarray:
    """Write labels alike, whatever type a door returns them as: 1.0, 1 and "1" are the same class."""

    def text(label: Any) -> str:
        try:
            number = float(label)
        except (TypeError, ValueError):
            return str(label)
        return str(int(number)) if number.is_integer() else str(number)

    known = {label: text(label) for label in set(np.asarray(labels).tolist())}
    return np.array([known[label] for label in np.asarray(labels).tolist()])


def baseline(table: DefaultsTable, cache: Path | None = None) -> Baseline:
    """Fit scikit-learn's model, and a constant; the result is kept in ``cache``, by the rows' content."""
    file = None if cache is None else cache / f"{table.name}-{_digest(table)}.json"
    if file is not None and file.exists():
        return Baseline(**json.loads(file.read_text()))
    fitted = _fit(table)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(fitted)))
    return fitted


def _fit(table: DefaultsTable) -> Baseline:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.preprocessing import StandardScaler

    train, test = table.split()
    model: Any = LogisticRegression(max_iter=1000) if table.classes else Ridge()
    if table.whole:
        train_x, test_x = column_transformer.careful_features(train.x, test.x)
    else:
        scaler = StandardScaler(with_mean=not train.sparse)
        train_x, test_x = scaler.fit_transform(train.matrix()), scaler.transform(test.matrix())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that did not suffice
        model.fit(train_x, train.y)
    found = Answer(
        model.predict(test_x),
        model.predict_proba(test_x) if table.classes else None,
        model.classes_ if table.classes else (),
    )
    reached = score(table, found)
    assert reached.score is not None
    if not table.classes:
        return Baseline(reached.score, None, 0.0)
    values, counts = np.unique(train.y, return_counts=True)
    return Baseline(reached.score, reached.log_loss, float((test.y == values[counts.argmax()]).mean()))


def _digest(table: DefaultsTable) -> str:
    import sklearn

    found = hashlib.sha256(sklearn.__version__.encode())
    if isinstance(table.rows.x, pa.Table) and table.whole:
        found.update(Path(column_transformer.__file__).read_bytes())
        found.update(table.rows.y.tobytes())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.rows.x.schema) as writer:
            writer.write_table(table.rows.x)
        found.update(sink.getvalue())
        return found.hexdigest()[:16]
    x = table.rows.matrix()
    for array in (x, table.rows.y) if isinstance(x, np.ndarray) else (x.data, x.indices, x.indptr, table.rows.y):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table through one door: scikit-learn's scores, ours by the order of the stored rows, and the bars."""

    table: str
    rows: int
    features: int
    metric: str
    cut_from: int | None
    test_rows: int
    baseline: Baseline
    ours: dict[str, ModelScore]
    bars: Bars

    @property
    def points(self) -> float | None:
        """The worst difference from scikit-learn: points of accuracy, or hundredths of R²."""
        scores = [found.score for found in self.ours.values() if found.score is not None]
        return 100 * (min(scores) - self.baseline.score) if scores else None

    @property
    def log_loss_ratio(self) -> float | None:
        """The worst log loss over scikit-learn's."""
        losses = [found.log_loss for found in self.ours.values() if found.log_loss is not None]
        return max(losses) / self.baseline.log_loss if losses and self.baseline.log_loss else None

    @property
    def misses(self) -> list[str]:
        """Which bars are missed, in words."""
        errors = {order: one.error for order, one in self.ours.items() if one.error}
        same = len(errors) == len(self.ours) and len(set(errors.values())) == 1
        found = [next(iter(errors.values()))] if same else [f"{order}: {error}" for order, error in errors.items()]
        allowed = 100 * self.bars.r2 if self.metric == "R²" else self.bars.points
        if self.points is not None and self.points < -allowed - 1e-9:
            found.append(f"{-self.points:.2f} behind" + self._rows_behind())
        if self.log_loss_ratio is not None and self.log_loss_ratio > self.bars.log_loss_ratio:
            found.append(f"log loss ×{self.log_loss_ratio:.3f}")
        scores = [one.score for one in self.ours.values() if one.score is not None]
        if scores and min(scores) < min(self.baseline.constant, self.baseline.score) - 1e-9:
            found.append("below a constant prediction")
        return found

    def _rows_behind(self) -> str:
        """Of a small test set, say how few rows the difference is."""
        if self.metric != "accuracy" or self.test_rows >= 1000 or self.points is None:
            return ""
        return f" ({round(-self.points * self.test_rows / 100)} of {self.test_rows} rows)"

    @property
    def verdict(self) -> str:
        if all(one.refused for one in self.ours.values()):
            return "refused"
        return "MISSED" if self.misses else "met"

    @property
    def remarks(self) -> str:
        """What was missed, how rows were cut, and what doors had to say."""
        notes = [one.note for one in self.ours.values() if one.note]
        cut = [f"{self.rows:,} of {self.cut_from:,} rows"] if self.cut_from else []
        return "; ".join([*self.misses, *cut, *dict.fromkeys(notes)])

    def to_json(self) -> dict[str, Any]:
        """Return all figures; one that is not finite is None, as JSON has no name for it."""
        body = {
            **asdict(self),
            "points": self.points,
            "log_loss_ratio": self.log_loss_ratio,
            "verdict": self.verdict,
            "misses": self.misses,
        }
        return {name: _finite(value) for name, value in body.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_table(comparisons: Sequence[Comparison], title: str) -> str:
    """Return the table of a door, with the count of the bars met below it."""
    header = [
        *("table", "rows", "features", "metric", "scikit-learn", "as published", "sorted", "points", "log loss ×"),
        *("constant", "verdict", "remarks"),
    ]
    lines = [header, *([*_cells(one)] for one in comparisons)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    left = (0, 3, 10, 11)
    text = [
        "  ".join(cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    ]
    return "\n".join([title, *(line.rstrip() for line in text), count(comparisons)])


def count(comparisons: Sequence[Comparison]) -> str:
    """Say how many tables met the bars."""
    verdicts = [one.verdict for one in comparisons]
    refused = verdicts.count("refused")
    kept = len(verdicts) - refused
    return f"{verdicts.count('met')} of {kept} tables met" + f", {refused} refused for too little memory" * bool(
        refused
    )


def markdown_table(comparisons: Sequence[Comparison]) -> str:
    """Return the same table as Markdown."""
    header = "| table | rows | features | metric | scikit-learn | as published | sorted | points | log loss × | constant | verdict | remarks |"
    lines = [header, "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(_cells(one)) + " |" for one in comparisons])


def _cells(one: Comparison) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    ours = [number(one.ours[order].score if order in one.ours else None, ".4f") for order in ("published", "sorted")]
    return [
        one.table,
        f"{one.rows:,}",
        str(one.features),
        one.metric,
        f"{one.baseline.score:.4f}",
        *ours,
        number(one.points, "+.2f"),
        number(one.log_loss_ratio, ".3f"),
        f"{one.baseline.constant:.4f}",
        one.verdict,
        one.remarks,
    ]
