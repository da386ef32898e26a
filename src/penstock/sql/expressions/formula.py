"""What a model is made of, once its columns are found in a query: terms of features, weights, classes.

Where a model was learnt from a packed copy, its terms are the columns that the copy was packed from.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.batch import Floats
from penstock.blocks.feature_columns import FeatureColumns, Refusal, classify, is_list
from penstock.blocks.features import Encoder
from penstock.errors import ColumnError, FeatureError, UsageError
from penstock.linear import LinearModel
from penstock.sgd.losses import Loss, loss_of
from penstock.sql.expressions.dialect import Dialect

LITERAL = 1000
"""Weights that are written into a statement one by one; more come as arrays, or from the catalogue."""

VECTOR = b"penstock.vector"
"""In a column's metadata: the schema of pgvector's type, where the column is of that type."""

TermKind = Literal["number", "array", "packed", "vector", "pairs"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the catalogue: the quoted table, the name, and when it was made, which tells it from its successors."""

    table: str
    name: str
    made: int


@dataclass(frozen=True, slots=True)
class FeatureTerm:
    """Some features: one column, or the two of sparse pairs, and where their weights stand.

    ``types`` are the columns' Arrow types, ``schema`` that of pgvector's type for a ``vector``.
    """

    kind: TermKind
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    start: int
    width: int
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """A model, ready to be written: terms of features, weights for each output, what is predicted."""

    loss: Loss
    terms: tuple[FeatureTerm, ...]
    coef: Floats
    intercept: Floats
    classes: tuple[Any, ...]
    stored: StoredModel | None = None

    @property
    def literal(self) -> bool:
        """Whether weights are written one by one."""
        return self.coef.size <= LITERAL

    def weights(self, output: int, term: FeatureTerm) -> list[float]:
        """Return an output's weights for a term, as doubles of the very same value."""
        row = self.coef[output, term.start : term.start + term.width]
        return [float(value) for value in row.astype(np.float64)]

    def places(self, output: int, term: FeatureTerm) -> tuple[int, int]:
        """Return the first and the last place, from 1, of an output's weights for a term in the catalogue."""
        first = output * self.coef.shape[1] + term.start
        return first + 1, first + term.width


def feature_terms(encoder: Encoder, schema: pa.Schema, dialect: Dialect) -> tuple[FeatureTerm, ...] | None:
    """Find a model's columns in a query; None where a column is hashed, which SQL cannot do."""
    parts = encoder.parts
    if encoder.origin and not all(name in schema.names for part in parts for name in part.columns):
        parts = tuple(FeatureColumns.from_dict(part) for part in encoder.origin)
        if parts[-1].kind == "pairs" and parts[-1].width is None and encoder.width is not None:
            parts = encoder_of(parts).with_width(encoder.width).parts
    if any(part.kind == "hash" for part in parts):
        return None
    found, start = [], 0
    for part in parts:
        fields = tuple(_field(schema, name, dialect) for name in part.columns)
        found.append(_term(part, fields, start))
        start += found[-1].width
    return tuple(found)


def encoder_of(parts: tuple[FeatureColumns, ...]) -> Encoder:
    """Return an encoder of these parts alone."""
    return Encoder(parts)


def _field(schema: pa.Schema, name: str, dialect: Dialect) -> pa.Field:
    present = schema.names
    same = [each for each in present if each == name] or [
        each for each in present if dialect.fold(each) == dialect.fold(name)
    ]
    if not same:
        raise ColumnError.missing(name, present, place="the query", role="feature column")
    if Counter(map(dialect.fold, present))[dialect.fold(name)] > 1:
        raise UsageError(f"the query has two columns {name!r}, and the model reads one; give the other another name")
    return schema.field(present.index(same[0]))


def _term(part: FeatureColumns, fields: tuple[pa.Field, ...], start: int) -> FeatureTerm:
    width = part.width or 0
    names, types = tuple(field.name for field in fields), tuple(field.type for field in fields)
    if part.kind == "pairs":
        for field in fields:
            if not holds_lists(field.type):
                raise FeatureError(f"the query: column {field.name!r} is {field.type}; sparse features are two lists")
        return FeatureTerm("pairs", names, types, start, width)
    field, kind = fields[0], types[0]
    if part.kind == "vector":
        if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
            raise ColumnError(
                f"the query: column {field.name!r} holds {kind.list_size} values a row where {width} were learnt from"
            )
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return FeatureTerm("packed", names, types, start, width)
        vector = (field.metadata or {}).get(VECTOR)
        if vector is not None:
            return FeatureTerm("vector", names, types, start, width, vector.decode())
        if holds_lists(kind):
            return FeatureTerm("array", names, types, start, width)
        raise ColumnError(
            f"the query: column {field.name!r} is {kind}, where lists of {width} numbers were learnt from"
        )
    found = classify(field, None)
    if isinstance(found, Refusal) or found.kind != "number":
        raise FeatureError(f"the query: column {field.name!r} is {kind}, where a number was learnt from")
    return FeatureTerm("number", names, types, start, 1)


def holds_lists(kind: pa.DataType) -> bool:
    """Whether a column holds lists, of one length or of any."""
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def formula_of(model: LinearModel, schema: pa.Schema, dialect: Dialect, stored: StoredModel | None) -> Formula | None:
    """Make a model ready to be written over a query's columns; None where its features cannot be made in SQL."""
    terms = feature_terms(model.encoder, schema, dialect)
    if terms is None or sum(term.width for term in terms) != model.weights.width:
        return None
    weights = model.weights.settled()
    labels = model.encoder.labels
    classes = () if labels is None else labels.classes
    return Formula(loss_of(model.kind), terms, np.ascontiguousarray(weights.coef), weights.intercept, classes, stored)
