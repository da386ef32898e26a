"""Predictions of models that cannot be written as SQL: a query's rows are scored here, and stored in a temporary table.

Any `penstock.model.Model` will do: rows come from the engine some thousands at a time, and are a source like any other. Values that
training did not see are counted in warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import require_columns
from penstock.blocks.memory import TableSource
from penstock.columns.base import UnseenValues
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.groups.results import GroupModels
from penstock.linear import EncodedModel, predicted
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.dialect import double_literal, quote_identifier
from penstock.sql.engines.base import Engine
from penstock.sql.prediction_query import added_columns
from penstock.sql.query_copy import as_features
from penstock.sql.statements import Predict

_TOGETHER = 32 << 20
"""Bytes of rows that are scored together: a model on disk brings its pages for each such lot."""


@contextmanager
def scored_rows(
    model: Model, call: Predict, engine: Engine, *, threshold: float | None, stream: Stream
) -> Iterator[str]:
    """Put a query's rows with their predictions into a temporary table, and give a query of them."""
    unseen = UnseenValues()
    model = model.counting(unseen) if isinstance(model, EncodedModel | GroupModels) else model
    with engine.stream_rows(call.query) as reader:
        present = reader.schema.names
        names = added_columns(model, dialect=engine.dialect, present=present, warehouse=call.warehouse)
        batches = _scored_batches(model, reader, stream)
        first = next(batches)
        made = first.schema.names[len(present) :]
        table = engine.store_rows(pa.RecordBatchReader.from_batches(first.schema, chain([first], batches)))
    for line in unseen.lines():
        stream.emit(Warned(line))
    try:
        if call.warehouse:
            outcomes = _warehouse_columns(model, made, names, engine, threshold)
        else:
            outcomes = [
                f"{quote_identifier(own)} AS {quote_identifier(name)}" for own, name in zip(made, names, strict=True)
            ]
        yield f"SELECT {', '.join([*map(quote_identifier, present), *outcomes])} FROM {table} AS p"
    finally:
        engine.run(f"DROP TABLE IF EXISTS {table}")


def _warehouse_columns(
    model: Model, made: list[str], names: list[str], engine: Engine, threshold: float | None
) -> list[str]:
    """Write the prediction, and the probabilities as one column, under the names of ML.PREDICT."""
    outcome, *chances = map(quote_identifier, made)
    classes = [] if model.classes is None else list(map(engine.dialect.literal, model.classes.tolist()))
    if threshold is not None:
        limit = double_literal(threshold)
        first, second = classes
        outcome = f"CASE WHEN {chances[1]} > {limit} THEN {second} WHEN {chances[1]} <= {limit} THEN {first} END"
    values = [outcome]
    if chances:
        pairs = engine.dialect.class_pairs(list(zip(classes, chances, strict=True)))
        values.append(f"CASE WHEN {chances[0]} IS NOT NULL THEN {pairs} END")
    return [f"{value} AS {quote_identifier(name)}" for value, name in zip(values, names, strict=True)]


def _scored_batches(model: Model, reader: pa.RecordBatchReader, stream: Stream) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows with predictions beside them; a first batch always, be it without rows."""
    require_columns(reader.schema, model.columns, place="the query")
    parts = () if model.recipe is None else model.recipe.parts
    widths = {part.columns[0]: part.width or 0 for part in parts if part.kind == "vector"}
    stream.emit(Started("predict", None, "rows"))
    first, empty = 0, True
    for rows in _gathered(reader):
        features = as_features(rows, model.columns, widths=widths, first_row=first)
        place = "the query" if not first else f"the query from row {first:,} on"
        source = TableSource([features], schema=features.schema, name=place)
        with source, closing(model.predictions(source)) as found:
            added = pa.Table.from_batches(list(found)).combine_chunks()
        yield _beside(rows, added.to_batches()[0])
        stream.emit(Advanced("predict", len(rows)))
        first, empty = first + len(rows), False
    if empty:
        yield _beside(pa.RecordBatch.from_pylist([], reader.schema), _nothing(model))
    stream.emit(Finished("predict"))


def _beside(rows: pa.RecordBatch, added: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows, whose names may be there twice, with other columns behind them."""
    schema = pa.schema([*rows.schema.remove_metadata(), *added.schema])
    return pa.RecordBatch.from_arrays([*rows.columns, *added.columns], schema=schema)


def _gathered(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield rows in fewer batches, none of them empty."""
    held: list[pa.RecordBatch] = []
    for rows in reader:
        if len(rows):
            held.append(rows)
        if sum(each.nbytes for each in held) >= _TOGETHER:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _nothing(model: Model) -> pa.RecordBatch:
    """Return the predictions of no rows, with the types that those of rows have."""
    if model.recipe is None:
        kind = pa.float32() if model.classes is None else pa.array(model.classes).type
        return pa.record_batch({"prediction": pa.array([], kind)})
    outputs = len(model.classes) if model.classes is not None and loss_of(model.kind).many else 0
    scores: Any = np.zeros((0, outputs) if outputs else 0, np.float32)
    return predicted(model.kind, model.recipe, scores, pa.RecordBatch.from_pylist([], pa.schema([])), [])
