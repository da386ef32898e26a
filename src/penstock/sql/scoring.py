"""Computes predictions outside the engine, for models that cannot be written as SQL.

The query's rows stream through and come back, with their predictions, as a temporary table of the session's, which the
statement then reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa

from penstock.batch import Batch
from penstock.errors import UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import LinearModel, predicted
from penstock.sql.engines.base import Engine
from penstock.sql.feature_columns import as_features
from penstock.sql.statements import Predict


@contextmanager
def scored_table(model: LinearModel, call: Predict, engine: Engine, *, stream: Stream) -> Iterator[str]:
    """Put a query's rows with their predictions into a temporary table, and give its quoted name."""
    if call.warehouse:
        raise UsageError(
            f"ML.PREDICT cannot write model {call.model!r} as SQL (its features are hashed, or packed in a BLOB); write SELECT … FROM"
            f" (SELECT … PREDICT BY {call.model}) AS p"
        )
    with engine.stream_rows(call.query) as reader:
        batches = _predictions(model, reader, stream)
        first = next(batches)
        rows = pa.RecordBatchReader.from_batches(first.schema, _chained(first, batches))
        table = engine.store_rows(rows)
    try:
        yield table
    finally:
        engine.run(f"DROP TABLE IF EXISTS {table}")


def _predictions(model: LinearModel, reader: pa.RecordBatchReader, stream: Stream) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows with predictions beside them; a first batch always, be it without rows."""
    names, encoder, first = reader.schema.names, None, 0
    stream.emit(Started("predict", None, "rows"))
    widths = {part.columns[0]: part.width or 0 for part in model.encoder.parts if part.kind == "vector"}
    for rows in chain([pa.RecordBatch.from_pylist([], reader.schema)], reader):
        features = as_features(rows, model.encoder.columns, widths=widths, first_row=first)
        encoder = encoder or model.encoder.for_schema(features.schema, place="the query")
        batch: Batch = encoder.encode(features, first_row=first)
        yield predicted(model.kind, model.encoder, model.scores(batch), rows, names)
        stream.emit(Advanced("predict", len(rows)))
        first += len(rows)
    stream.emit(Finished("predict"))


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others
