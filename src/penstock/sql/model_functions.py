"""Replaces Penstock's calls inside a statement of the engine's by SQL that stands for their rows.

Predictions are written as an expression over the query's columns, so rows stay where they are. Measures, epochs and
weights are few, and are written out as values. What cannot be written as SQL is scored here, into a temporary table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.batch import Batch
from penstock.blocks.base import require_columns
from penstock.columns.hashing import Hashed
from penstock.config import Config
from penstock.errors import ColumnError, DataError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import LinearModel, predicted
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.options import evaluate_settings
from penstock.sql.prediction_query import select_predictions
from penstock.sql.query_copy import as_features
from penstock.sql.result import Result
from penstock.sql.statements import Call, Embedded, Evaluate, Predict, TrainingInfo
from penstock.sql.warehouse import measure_for_warehouse

_MOST_VALUES = 100_000
"""Weights that are written out as values; those of wider models are read where they are."""
_SHOWN_CONFIG = ("solver", "optimizer", "rate", "batch_size", "l1", "l2", "standardize", "shuffle", "memory", "seed")


@contextmanager
def fill_calls(statement: Embedded, engine: Engine, catalog: Catalog, *, stream: Stream) -> Iterator[str]:
    """Give a statement with every call replaced by SQL; what was made for it goes with the ``with`` block."""
    with ExitStack() as stack:

        def fill(call: Call) -> str:
            if isinstance(call, Predict):
                return _predictions(call, engine, catalog, view=statement.view, stack=stack, stream=stream)
            if isinstance(call, Evaluate):
                rows = evaluate_call(call, engine, catalog, stream=stream)
            elif isinstance(call, TrainingInfo):
                rows = training_info_rows(catalog.load(call.model))
            else:
                rows = weight_rows(catalog.load(call.model))
            return values_query(rows, engine)

        texts = [statement.texts[0]]
        for call, after in zip(statement.calls, statement.texts[1:], strict=True):
            texts += [f"({fill(call)})", after]
        yield "".join(texts)


def _predictions(
    call: Predict, engine: Engine, catalog: Catalog, *, view: bool, stack: ExitStack, stream: Stream
) -> str:
    model, stored = catalog.find(call.model)
    schema = engine.describe(call.query)
    query, dialect = call.query.text, engine.dialect
    text = select_predictions(model, query, schema=schema, dialect=dialect, stored=stored, warehouse=call.warehouse)
    if text is not None:
        return text
    if view:
        raise UsageError(
            f"model {call.model!r} cannot be written as SQL (its features are hashed, packed in a BLOB, or categories of other values than text), so nothing can be"
            " stored that makes its predictions later; make a table: CREATE TABLE … AS SELECT … PREDICT BY"
        )
    return f"SELECT * FROM {stack.enter_context(scored_table(model, call, engine, stream=stream))}"


def evaluate_call(call: Evaluate, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Measure a model on a query's rows, or tell how it did on the rows held out from its training."""
    model = catalog.load(call.model)
    if call.query is None:
        return _held_out(model, call.model)
    schema = engine.describe(call.query)
    chosen = evaluate_settings(call, schema)
    label, present = chosen.label or model.recipe.label, schema.names
    recipe = model.recipe
    features = list(dict.fromkeys(recipe.members.get(name, name) for part in recipe.parts for name in part.columns))
    for name, role in (*((name, "feature") for name in features), (label, "label")):
        if name is not None and name not in present:
            raise ColumnError.missing(name, present, place="the query", role=role)
    weight = model.recipe.weight
    wanted = [*features, str(label), *([weight] if weight is not None and weight in present else [])]
    # One pass: there is nothing to keep rows for.
    with engine.open(call.query, wanted, replace(chosen.reading, cache=False), stream=stream) as opened:
        if call.warehouse:
            found: dict[str, Any] = dict(measure_for_warehouse(model, opened.source, label=label, memory=chosen.memory))
        else:
            found = model.evaluate(opened.source, label=label, memory=chosen.memory)
            found["rows"] = int(found["rows"])
            if found.get("confusion_matrix") is not None:
                found["confusion_matrix"] = json.dumps(found["confusion_matrix"])
            if not found["rows"]:
                raise DataError(f"{opened.source.name} has no rows; there is nothing to measure the model on")
    return Result(tuple(found), [tuple(found.values())])


def _held_out(model: LinearModel, name: str) -> Result:
    found = {key: value for key, value in model.metrics.items() if key.startswith(("held_out_", "test_"))}
    found |= {key: json.dumps(value) for key, value in found.items() if isinstance(value, list)}
    if not found:
        raise UsageError(
            f"model {name!r} was trained without held-out rows (test_fraction); name rows to measure it on: EVALUATE MODEL"
            f" {name} ON SELECT …"
        )
    return Result(tuple(found), [tuple(found.values())])


def training_info_rows(model: LinearModel) -> Result:
    """Return a row for each epoch, as the warehouses do; the losses have the names that say what they were measured on."""
    names = ("training_run", "iteration", "progressive_loss", "held_out_loss", "learning_rate", "duration_ms")
    rate = Config(**model.config).spec().rate if model.config else None
    rows = []
    for number, row in enumerate(model.history):
        step = None if rate is None else rate.at(number, number * row["rows"])
        losses = row.get("progressive_loss"), row.get("held_out_loss")
        rows.append((0, number, *losses, step, round(1000 * row["seconds"])))
    return Result(names, rows)


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
    rows = (f"({', '.join(engine.dialect.literal(value) for value in row)})" for row in result.rows)
    return f"WITH v({', '.join(names)}) AS (VALUES {', '.join(rows)}) SELECT * FROM v"


def _usual_rate(model: LinearModel) -> float:
    known = {name: model.config[name] for name in ("solver", "rate") if name in model.config}
    return Config(model=model.kind, **{"solver": "sgd", **known}).first_rate


def model_properties(model: LinearModel, name: str) -> Result:
    """Return what is known of a model, a row for each property."""
    recipe = model.recipe
    hashed = [f"{part.column}:2^{part.bits}" for part in recipe.parts if isinstance(part, Hashed)]
    properties: dict[str, Any] = {
        "name": name,
        "kind": model.kind,
        "label": recipe.label,
        "classes": None if recipe.labels is None else list(recipe.labels.classes),
        "features": model.weights.width,
        "columns": [column for part in recipe.parts for column in part.columns],
        "epochs": len(model.history),
        **model.metrics,
        **({"hash": hashed} if hashed else {}),
        "learning_rate": model.config.get("learning_rate") or _usual_rate(model),
        **{key: model.config[key] for key in _SHOWN_CONFIG if key in model.config},
    }
    return Result(("property", "value"), list(properties.items()))


@contextmanager
def scored_table(model: LinearModel, call: Predict, engine: Engine, *, stream: Stream) -> Iterator[str]:
    """Put a query's rows with their predictions into a temporary table, and give its quoted name."""
    if call.warehouse:
        raise UsageError(
            f"ML.PREDICT cannot write model {call.model!r} as SQL (its features are hashed, packed in a BLOB, or categories of other values than text); write SELECT … FROM"
            f" (SELECT … PREDICT BY {call.model}) AS p"
        )
    with engine.stream_rows(call.query) as reader:
        batches = _scored_batches(model, reader, stream)
        first = next(batches)
        rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        table = engine.store_rows(rows)
    try:
        yield table
    finally:
        engine.run(f"DROP TABLE IF EXISTS {table}")


def _scored_batches(model: LinearModel, reader: pa.RecordBatchReader, stream: Stream) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows with predictions beside them; a first batch always, be it without rows."""
    names, recipe, first = reader.schema.names, None, 0
    stream.emit(Started("predict", None, "rows"))
    widths = {part.columns[0]: part.width or 0 for part in model.recipe.parts if part.kind == "vector"}
    columns = replace(model.recipe, label=None, weight=None).columns
    require_columns(reader.schema, columns, place="the query")
    for rows in chain([pa.RecordBatch.from_pylist([], reader.schema)], reader):
        features = as_features(rows, columns, widths=widths, first_row=first)
        recipe = recipe or model.recipe.for_schema(features.schema, place="the query")
        batch: Batch = recipe.encode(features, first_row=first)
        yield predicted(model.kind, model.recipe, model.scores(batch), rows, names)
        stream.emit(Advanced("predict", len(rows)))
        first += len(rows)
    stream.emit(Finished("predict"))
