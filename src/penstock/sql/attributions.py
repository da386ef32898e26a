"""ML.EXPLAIN_PREDICT: what each column of a row contributed to the score of the class that is predicted.

A feature contributes its weight times its distance from the mean of the rows trained on, or from 0 where the model does not know
the mean; a column contributes the sum over its features. The baseline is the score of a row of means, so that baseline and
contributions add up to the score. Of two classes with one score, scores of the first class have their sign turned.

Models of numbers, dates and categories with one score are written as SQL, like their predictions. All others are scored here,
batch by batch, into a temporary table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import require_columns
from penstock.columns.number import Number
from penstock.errors import UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import LinearModel, decide
from penstock.measures import Doubles
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.dialect import AttributionFormula, AttributionTerm, quote_identifier
from penstock.sql.engines.base import Engine
from penstock.sql.options import FunctionSettings, function_settings
from penstock.sql.prediction_query import formula_of, refuse_taken
from penstock.sql.query_copy import as_features
from penstock.sql.statements import ExplainPredict
from penstock.sql.threshold_measures import positive_probability, require_two_classes
from penstock.sql.transform import rows_for_prediction

_IN_SQL = ("number", "date", "category")
_MOST_IN_SQL = 500
"""Columns whose contributions are written into a statement."""
_CELLS = 4_000_000
_FEATURES, _VALUES = "__penstock_features", "__penstock_attributions"


@dataclass(frozen=True, slots=True)
class ModelAttributions:
    """What a model's features contribute to: which of the named columns each counts for, and the mean it is compared with."""

    model: LinearModel
    names: tuple[str, ...]
    column_of: NDArray[np.int64]
    means: Doubles

    @classmethod
    def of(cls, model: LinearModel) -> ModelAttributions:
        """Return the attributions of a model: a list's values have names of their own, all else that of its column."""
        names: dict[str, int] = {}
        column_of = np.empty(model.weights.width, np.int64)
        at = 0
        for part in model.recipe.parts:
            stop = at + (part.width or model.weights.width - at)
            apart = part.kind in ("vector", "pairs")
            for feature in range(at, stop):
                name = part.feature_name(feature - at) if apart else part.columns[0]
                column_of[feature] = names.setdefault(name, len(names))
                if not apart:
                    column_of[at:stop] = column_of[feature]
                    break
            at = stop
        return cls(model, tuple(names), column_of, feature_means(model))

    @property
    def baselines(self) -> Doubles:
        """The score of a row of means, for each output."""
        weights = self.model.weights.settled()
        return np.asarray(
            weights.intercept.astype(np.float64) + weights.coef.astype(np.float64) @ self.means, np.float64
        )

    def of_rows(
        self, batch: Batch, outputs: NDArray[np.int64], signs: Doubles, most: int
    ) -> list[list[tuple[str, float]]]:
        """Return the largest contributions to one output of each row, times a sign."""
        coef = self.model.weights.settled().coef.astype(np.float64)
        if isinstance(batch.x, Csr):
            return [
                self._of_sparse(batch.x, row, coef[output], sign, most)
                for row, (output, sign) in enumerate(zip(outputs, signs, strict=True))
            ]
        found: list[list[tuple[str, float]]] = []
        step = max(1, _CELLS // max(coef.shape[1], 1))
        for at in range(0, len(batch), step):
            rows = slice(at, at + step)
            moved = (batch.x[rows] - self.means) * coef[outputs[rows]] * signs[rows, None]
            sums = np.zeros((len(self.names), len(moved)))
            np.add.at(sums, self.column_of, moved.T)
            found += [self._largest(np.arange(len(sums)), sums[:, row], most) for row in range(len(moved))]
        return found

    def _of_sparse(self, x: Csr, row: int, weights: Doubles, sign: float, most: int) -> list[tuple[str, float]]:
        entries = slice(int(x.indptr[row]), int(x.indptr[row + 1]))
        features = x.indices[entries].astype(np.int64)
        moved = (x.values[entries] - self.means[features]) * weights[features] * sign
        columns, place = np.unique(self.column_of[features], return_inverse=True)
        sums: Doubles = np.bincount(place, moved, len(columns)).astype(np.float64)
        return self._largest(columns, sums, most)

    def _largest(self, columns: NDArray[np.int64], sums: Doubles, most: int) -> list[tuple[str, float]]:
        order = np.argsort(-np.abs(sums), kind="stable")[:most]
        return [(self.names[columns[at]], float(sums[at])) for at in order]


def feature_means(model: LinearModel) -> Doubles:
    """Return the mean of each feature in the rows that a model was trained on; 0 where that is not known."""
    means = np.zeros(model.weights.width)
    shift = model.scaling.shift
    known = min(model.recipe.dense_width if model.recipe.sparse else len(shift), len(shift))
    if known:
        means[:known] = shift[:known]
        return means
    at = 0
    for part in model.recipe.parts:
        if isinstance(part, Number) and part.fill is not None:
            means[at] = (part.fill - part.center) * part.scale
        at += part.width or 0
    return means


@contextmanager
def explained_rows(
    call: ExplainPredict, engine: Engine, catalog: Catalog, *, view: bool, stream: Stream
) -> Iterator[str]:
    """Give SQL for a query's rows with predictions and contributions; what was made for it goes with the ``with`` block."""
    model, stored = catalog.load_linear(call.model, "ML.EXPLAIN_PREDICT"), catalog.find(call.model)[1]
    settings, writer = function_settings(call), engine.dialect.attributions
    names = _added_names(model)
    raw = rows_for_prediction(model, call.query, engine)
    if raw is not None:
        refuse_taken(names, raw.names, engine.dialect)
        call = replace(call, query=raw.query)
    schema = engine.describe(call.query)
    if settings.threshold is not None:
        require_two_classes(model, "a threshold")
    if writer is None:
        raise UsageError(
            f"ML.EXPLAIN_PREDICT is not supported on {engine.dialect.title}; export the model: EXPORT MODEL"
        )
    refuse_taken(names, schema.names, engine.dialect)
    attributions = ModelAttributions.of(model)
    formula = None if loss_of(model.kind).many else formula_of(model, schema, engine.dialect, stored)
    if (
        formula is not None
        and len(attributions.names) <= _MOST_IN_SQL
        and {t.kind for t in formula.terms} <= {*_IN_SQL}
    ):
        formula = replace(formula, threshold=settings.threshold)
        columns: dict[str, list[AttributionTerm]] = {name: [] for name in attributions.names}
        for term in formula.terms:
            features = slice(term.start, term.start + term.width)
            mean = float(formula.coef[0, features].astype(np.float64) @ attributions.means[features])
            columns[attributions.names[attributions.column_of[term.start]]].append(AttributionTerm(term, mean))
        explained = AttributionFormula(formula, columns, float(attributions.baselines[0]), settings.top_k_features)
        text = writer.select(explained, call.query.text, names, present=schema.names)
        yield text if raw is None else raw.restored(text, names)
        return
    if view:
        raise UsageError(
            f"the contributions of model {call.model!r} cannot be written as SQL, so nothing can be stored that makes them later;"
            " make a table: CREATE TABLE … AS SELECT * FROM ML.EXPLAIN_PREDICT(…)"
        )
    with engine.stream_rows(call.query) as reader:
        batches = _explained_batches(attributions, reader, settings, names, stream)
        first = next(batches)
        table = engine.store_rows(pa.RecordBatchReader.from_batches(first.schema, chain([first], batches)))
    try:
        shown = [quote_identifier(name) for name in (*schema.names, *names)]
        top = names.index("top_feature_attributions") + len(schema.names)
        shown[top] = f"{writer.pairs(quote_identifier(_FEATURES), quote_identifier(_VALUES))} AS {shown[top]}"
        text = f"SELECT {', '.join(shown)} FROM {table} AS e"
        yield text if raw is None else raw.restored(text, names)
    finally:
        engine.run(f"DROP TABLE IF EXISTS {table}")


def _added_names(model: LinearModel) -> list[str]:
    probable = model.recipe.labels is not None and loss_of(model.kind).probabilities is not None
    return [
        f"predicted_{model.recipe.label or 'label'}",
        *(["probability"] if probable else []),
        *("top_feature_attributions", "baseline_prediction_value", "prediction_value", "approximation_error"),
    ]


def _explained_batches(
    attributions: ModelAttributions,
    reader: pa.RecordBatchReader,
    settings: FunctionSettings,
    names: Sequence[str],
    stream: Stream,
) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows with what explains them beside them; a first batch always, be it without rows."""
    model, first = attributions.model, 0
    stream.emit(Started("explain", None, "rows"))
    widths = {part.columns[0]: part.width or 0 for part in model.recipe.parts if part.kind == "vector"}
    columns = replace(model.recipe, label=None, weight=None).columns
    require_columns(reader.schema, columns, place="the query")
    recipe = None
    for rows in chain([pa.RecordBatch.from_pylist([], reader.schema)], reader):
        features = as_features(rows, columns, widths=widths, first_row=first)
        recipe = recipe or model.recipe.for_schema(features.schema, place="the query")
        batch: Batch = recipe.encode(features, first_row=first)
        added = _explained(attributions, batch, settings)
        named = dict(zip(names, added[:-2], strict=True)) | {_FEATURES: added[-2], _VALUES: added[-1]}
        del named["top_feature_attributions"]
        yield pa.record_batch({name: rows.column(at) for at, name in enumerate(reader.schema.names)} | named)
        stream.emit(Advanced("explain", len(rows)))
        first += len(rows)
    stream.emit(Finished("explain"))


def _explained(attributions: ModelAttributions, batch: Batch, settings: FunctionSettings) -> list[pa.Array]:
    """Return the columns that are added, and at the end the names and the sizes of contributions, as two lists a row."""
    model, kind, labels = attributions.model, attributions.model.kind, attributions.model.recipe.labels
    found = model.scores(batch)
    scores = found.astype(np.float64)
    rows = np.arange(len(scores))
    outputs, signs = np.zeros(len(scores), np.int64), np.ones(len(scores))
    predicted: Any = decide(kind, model.recipe, found)
    if labels is not None:
        chosen = np.asarray(loss_of(kind).decision(scores))
        chosen = chosen.astype(np.int64) if scores.ndim == 2 else (scores > 0).astype(np.int64)
        if settings.threshold is not None:
            chosen = (positive_probability(kind, scores) > settings.threshold).astype(np.int64)
            predicted = np.array(labels.classes)[chosen]
        outputs = chosen if scores.ndim == 2 else outputs
        signs = signs if scores.ndim == 2 else np.where(chosen > 0, 1.0, -1.0)
    values = scores[rows, outputs] if scores.ndim == 2 else signs * scores
    listed = attributions.of_rows(batch, outputs, signs, settings.top_k_features)
    chances = None if labels is None else model.probabilities(found)
    return [
        pa.array(predicted),
        *([] if chances is None else [pa.array(chances[rows, chosen].astype(np.float64))]),
        pa.nulls(len(rows)),
        pa.array(signs * attributions.baselines[outputs]),
        pa.array(values),
        pa.array(np.zeros(len(rows))),
        pa.array([[name for name, _ in each] for each in listed], pa.list_(pa.string())),
        pa.array([[value for _, value in each] for each in listed], pa.list_(pa.float64())),
    ]
