"""Replaces Penstock's calls inside a statement of the engine's by SQL that stands for their rows.

Predictions are written as an expression over the query's columns, so rows stay where they are. Measures, epochs and
weights are few, and are written out as values. What cannot be written as SQL is scored here, into a temporary table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.coefficients import describe_columns
from penstock.columns.summary import column_summaries
from penstock.errors import UsageError
from penstock.events import Stream
from penstock.linear import LinearModel
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.attributions import explained_rows
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.model_measures import confusion_rows, evaluate_call, roc_rows
from penstock.sql.model_properties import training_info_rows
from penstock.sql.options import function_settings
from penstock.sql.prediction_query import StoredModel, added_columns, select_predictions
from penstock.sql.result import Result
from penstock.sql.scored_rows import scored_rows
from penstock.sql.statements import (
    Call,
    ConfusionMatrix,
    Embedded,
    Evaluate,
    ExplainPredict,
    FeatureInfo,
    Predict,
    RocCurve,
    TrainingInfo,
)
from penstock.sql.stored_groups import is_linear
from penstock.sql.threshold_measures import require_two_classes
from penstock.sql.transform import rows_for_prediction

_MOST_VALUES = 100_000
"""Weights that are written out as values; those of wider models are read where they are."""
_TYPES = {pa.float64(): "double precision", pa.int64(): "bigint", pa.string(): "text"}
"""SQL's words for types, by which nulls are written: without one a column of nulls is of none."""


@contextmanager
def fill_calls(statement: Embedded, engine: Engine, catalog: Catalog, *, stream: Stream) -> Iterator[str]:
    """Give a statement with every call replaced by SQL; what was made for it goes with the ``with`` block."""
    with ExitStack() as stack:

        def fill(call: Call) -> str:
            if isinstance(call, Predict):
                return _predictions(call, engine, catalog, view=statement.view, stack=stack, stream=stream)
            if isinstance(call, ExplainPredict):
                return stack.enter_context(explained_rows(call, engine, catalog, view=statement.view, stream=stream))
            return values_query(_small_result(call, engine, catalog, stream=stream), engine)

        texts = [statement.texts[0]]
        for call, after in zip(statement.calls, statement.texts[1:], strict=True):
            texts += [f"({fill(call)})", after]
        yield "".join(texts)


def _small_result(call: Call, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Return the rows of a call that has few."""
    match call:
        case Evaluate():
            return evaluate_call(call, engine, catalog, stream=stream)
        case ConfusionMatrix():
            return confusion_rows(call, engine, catalog, stream=stream)
        case RocCurve():
            return roc_rows(call, engine, catalog, stream=stream)
        case TrainingInfo():
            return training_info_rows(catalog.load_linear(call.model, "ML.TRAINING_INFO"))
        case FeatureInfo():
            return feature_rows(catalog.load_linear(call.model, "ML.FEATURE_INFO"))
        case _:
            return weight_rows(catalog.load_linear(call.model, "ML.WEIGHTS"))


def _predictions(
    call: Predict, engine: Engine, catalog: Catalog, *, view: bool, stack: ExitStack, stream: Stream
) -> str:
    model, stored = catalog.find(call.model)
    stack.enter_context(model)
    raw = rows_for_prediction(model, call.query, engine) if isinstance(model, LinearModel) else None
    if raw is not None and isinstance(model, LinearModel):
        added = added_columns(model, dialect=engine.dialect, present=raw.names, warehouse=call.warehouse)
        call, model = replace(call, query=raw.query), replace(model, transform=None)
        return raw.restored(_scored(call, model, stored, engine, view=view, stack=stack, stream=stream), added)
    return _scored(call, model, stored, engine, view=view, stack=stack, stream=stream)


def _scored(
    call: Predict,
    model: Model,
    stored: StoredModel | None,
    engine: Engine,
    *,
    view: bool,
    stack: ExitStack,
    stream: Stream,
) -> str:
    """Write a query's rows with predictions as a query; where that cannot be, score them here, into a temporary table."""
    schema = engine.describe(call.query)
    threshold = function_settings(call).threshold
    if threshold is not None:
        require_two_classes(model, "a threshold")
    text = select_predictions(
        model,
        call.query.text,
        schema=schema,
        dialect=engine.dialect,
        stored=stored,
        warehouse=call.warehouse,
        threshold=threshold,
    )
    if text is not None:
        return text
    if view:
        raise UsageError(
            f"model {call.model!r} cannot be written as SQL ({_why_not(model)}), so nothing can be stored that makes its"
            " predictions later; make a table: CREATE TABLE … AS SELECT … PREDICT BY"
        )
    return stack.enter_context(scored_rows(model, call, engine, threshold=threshold, stream=stream))


def _why_not(model: Model) -> str:
    """Say why a model cannot be written as SQL."""
    if model.linear is not None or is_linear(model):
        return "its features are hashed, packed in a BLOB, or categories of other values than text"
    return f"it is a {model.word} model, and no row of weights"


_FEATURE_FACTS = {
    "input": pa.string(),
    "kind": pa.string(),
    "min": pa.float64(),
    "max": pa.float64(),
    "mean": pa.float64(),
    "median": pa.float64(),
    "stddev": pa.float64(),
    "category_count": pa.int64(),
    "null_count": pa.int64(),
    "dimension": pa.int64(),
    "missing": pa.string(),
}


def feature_rows(model: LinearModel) -> Result:
    """Return a row for each column that a model reads, with what is known of it; the rest is null."""
    recipe = model.recipe
    known = {each.column: each for each in describe_columns(model)}
    rows = []
    for part, summary in zip(recipe.parts, column_summaries(recipe), strict=True):
        found = known[summary.column]
        levels = found.levels if isinstance(found.levels, int) else None
        dimension = part.width if part.kind in ("vector", "pairs") else None
        facts = {"min": None, "max": None, "median": None, "null_count": None}
        named = {"input": summary.column, "kind": found.kind, "mean": found.mean, "stddev": found.scale, **facts}
        named |= {"category_count": levels, "dimension": dimension, "missing": found.missing}
        rows.append(tuple(named[name] for name in _FEATURE_FACTS))
    return Result(tuple(_FEATURE_FACTS), rows, types=tuple(_FEATURE_FACTS.values()))


def weight_rows(model: LinearModel) -> Result:
    """Return a row for each weight; of a model that tells several classes apart, for each class."""
    coef, intercept = model.weights.coef, model.weights.intercept
    if coef.size > _MOST_VALUES:
        raise UsageError(
            f"the model has {coef.size:,} weights; read them where they are: SELECT coef, intercept FROM penstock.models"
        )
    features = model.recipe.names or tuple(map(str, range(coef.shape[1])))
    several = loss_of(model.kind).many and model.recipe.labels is not None
    classes = list(model.recipe.labels.classes) if several and model.recipe.labels else [None]
    rows: list[tuple[Any, ...]] = []
    for kind, row, constant in zip(classes, coef, intercept, strict=True):
        named = [*zip(features, row.tolist(), strict=True), ("__INTERCEPT__", float(constant))]
        rows += [(*each, kind) if several else each for each in named]
    return Result(("processed_input", "weight", *(["class"] if several else [])), rows)


def values_query(result: Result, engine: Engine) -> str:
    """Write a small result as a query."""
    names = [engine.quote(name) for name in result.columns]
    if not result.rows:
        return f"SELECT {', '.join(f'NULL AS {name}' for name in names)} WHERE false"
    types = [_TYPES.get(kind) for kind in result.types or (None,) * len(names)]
    nulls = ["NULL" if kind is None else f"CAST(NULL AS {kind})" for kind in types]

    def written(value: Any, null: str) -> str:
        return null if value is None else engine.dialect.literal(value)

    rows = (f"({', '.join(map(written, row, nulls))})" for row in result.rows)
    return f"WITH v({', '.join(names)}) AS (VALUES {', '.join(rows)}) SELECT * FROM v"
