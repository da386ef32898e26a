"""How good a model is on a query's rows: EVALUATE MODEL, ML.EVALUATE, ML.CONFUSION_MATRIX and ML.ROC_CURVE.

All read the rows once, in blocks as a training does, and measure with `penstock.measures`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.columns.base import UnseenValues
from penstock.errors import ColumnError, UsageError
from penstock.events import Stream, Warned
from penstock.groups.results import GroupModels
from penstock.linear import EncodedModel, LinearModel
from penstock.measures import MOST_CLASSES_IN_TABLE
from penstock.model import Model
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.options import EvaluateSettings, evaluate_settings, function_settings
from penstock.sql.prediction_query import distinct_names
from penstock.sql.result import Result
from penstock.sql.statements import ConfusionMatrix, Evaluate, Query, RocCurve
from penstock.sql.threshold_measures import ROC_COLUMNS, RocMeasures, ThresholdMeasures, require_two_classes
from penstock.sql.transform import rows_for_measures
from penstock.sql.warehouse import measure_for_warehouse

_AT_THRESHOLD = {"precision": "precision", "recall": "recall", "accuracy": "accuracy", "f1_score": "f1"}
"""The measures that a threshold changes, by their names of ML.EVALUATE."""


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """A query's rows opened to measure a model on: the source, the label's column, and what a weight of 1 stands for."""

    model: Model
    source: BlockSource
    label: str | None
    unit: float


def evaluate_call(call: Evaluate, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Measure a model on a query's rows, or tell how it did on the rows held out from its training."""
    with catalog.load(call.model) as model:
        return _evaluated(model, call, engine, stream)


def _evaluated(model: Model, call: Evaluate, engine: Engine, stream: Stream) -> Result:
    if call.query is None:
        if "threshold" in call.options:
            raise _no_rows(call.model, "a threshold")
        return _held_out(model, call.model)
    chosen = evaluate_settings(call, engine.describe(call.query))
    if chosen.threshold is not None:
        require_two_classes(model, "a threshold")
    with labelled_rows(model, call.query, chosen, engine, stream=stream) as rows:
        model = rows.model
        at = None if chosen.threshold is None else ThresholdMeasures(model.kind, chosen.threshold, unit=rows.unit)
        measured: dict[str, Any] = {
            "label": rows.label,
            "memory": chosen.memory,
            "on_scores": None if at is None else at.add,
        }
        if call.warehouse:
            found: dict[str, Any] = dict(measure_for_warehouse(model, rows.source, **measured))
        else:
            found = model.evaluate(rows.source, **measured)
            found["rows"] = int(found["rows"])
        if at is not None:
            figures = at.figures()
            found |= {name: figures[own] for name, own in _AT_THRESHOLD.items()} if call.warehouse else figures
    if found.get("confusion_matrix") is not None:
        found["confusion_matrix"] = json.dumps(found["confusion_matrix"])
    types = tuple(pa.float64() for _ in found) if call.warehouse else ()
    return Result(tuple(found), [tuple(found.values())], types=types)


def confusion_rows(call: ConfusionMatrix, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Return a row for each class, and in it how many of the class's rows were taken for each class."""
    with catalog.load(call.model) as model:
        return _confusion(model, call, engine, stream)


def _confusion(model: Model, call: ConfusionMatrix, engine: Engine, stream: Stream) -> Result:
    classes = [] if model.classes is None else model.classes.tolist()
    if not classes:
        raise UsageError(f"model {call.model!r} predicts numbers; a confusion matrix is for classes")
    if len(classes) > MOST_CLASSES_IN_TABLE:
        raise UsageError(
            f"model {call.model!r} tells {len(classes)} classes apart, and a confusion matrix shows up to"
            f" {MOST_CLASSES_IN_TABLE}; count them in SQL: SELECT …, count(*) FROM (SELECT … PREDICT BY {call.model}) AS p GROUP BY …"
        )
    settings = function_settings(call)
    if call.query is None:
        if settings.threshold is not None:
            raise _no_rows(call.model, "a threshold")
        matrix = model.metrics.get("held_out_confusion_matrix") or model.metrics.get("test_confusion_matrix")
        if matrix is None:
            raise _no_rows(call.model, "a model that was trained without held-out rows")
    else:
        if settings.threshold is not None:
            require_two_classes(model, "a threshold")
        chosen = evaluate_settings(Evaluate(call.model, call.query))
        with labelled_rows(model, call.query, chosen, engine, stream=stream) as rows:
            at = (
                None
                if settings.threshold is None
                else ThresholdMeasures(model.kind, settings.threshold, unit=rows.unit)
            )
            found = rows.model.evaluate(
                rows.source, label=rows.label, memory=chosen.memory, on_scores=None if at is None else at.add
            )
            matrix = (found if at is None else at.figures())["confusion_matrix"]
    names = distinct_names(["expected_label", *map(_column_of_class, classes)], engine.dialect)
    return Result(tuple(names), [(label, *counts) for label, counts in zip(classes, matrix, strict=True)])


def roc_rows(call: RocCurve, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Return a row for each threshold, from high to low."""
    thresholds: Any = call.options["thresholds"].value if "thresholds" in call.options else None
    chosen = evaluate_settings(Evaluate(call.model, call.query))
    with catalog.load(call.model) as model:
        require_two_classes(model, "ML.ROC_CURVE")
        with labelled_rows(model, call.query, chosen, engine, stream=stream) as rows:
            measures = RocMeasures(model.kind, thresholds, unit=rows.unit)
            rows.model.evaluate(rows.source, label=rows.label, memory=chosen.memory, on_scores=measures.add)
    return Result(ROC_COLUMNS, measures.rows(), types=tuple(pa.float64() for _ in ROC_COLUMNS))


@contextmanager
def labelled_rows(
    model: Model, query: Query, chosen: EvaluateSettings, engine: Engine, *, stream: Stream
) -> Iterator[LabelledRows]:
    """Open a query's rows to measure a model on; raise for a column that is missing."""
    if isinstance(model, LinearModel):
        model, query = rows_for_measures(model, query, engine, chosen.label)
    recipe, present = model.recipe, engine.describe(query).names
    label = chosen.label or model.label
    for name in (*model.columns, label):
        if name is not None and name not in present:
            role = "label" if name == label else "column to group by" if name in model.by else "feature"
            raise ColumnError.missing(name, present, place="the query", role=role)
    weight = None if recipe is None or recipe.weight not in present else recipe.weight
    wanted = list(dict.fromkeys([*model.columns, str(label), *([weight] if weight is not None else [])]))
    unseen = UnseenValues()
    counting = model.counting(unseen) if isinstance(model, EncodedModel | GroupModels) else model
    # One pass: there is nothing to keep rows for.
    with engine.open(query, wanted, replace(chosen.reading, cache=False), stream=stream) as opened:
        unit = 1.0 if recipe is None or weight is None else recipe.weight_mean
        yield LabelledRows(counting, opened.source, label, unit)
    for line in unseen.lines():
        stream.emit(Warned(line))


def _column_of_class(label: Any) -> str:
    """Return the name of a class's column: as the warehouses have it, one that begins with a digit gets a line before it."""
    text = str(label).lower() if isinstance(label, bool) else str(label)
    return f"_{text}" if text[:1].isdigit() else text


def _no_rows(name: str, what: str) -> UsageError:
    return UsageError(f"{what} needs rows to measure model {name!r} on; name them: MODEL {name}, (SELECT …)")


def _held_out(model: Model, name: str) -> Result:
    found = {key: value for key, value in model.metrics.items() if key.startswith(("held_out_", "test_"))}
    found |= {key: json.dumps(value) for key, value in found.items() if isinstance(value, list)}
    if not found:
        raise UsageError(
            f"model {name!r} was trained without held-out rows (test_fraction); name rows to measure it on: EVALUATE MODEL"
            f" {name} ON SELECT …"
        )
    return Result(tuple(found), [tuple(found.values())])
