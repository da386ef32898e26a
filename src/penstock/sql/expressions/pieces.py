"""What a model is made of, once its columns are found in a query: pieces of features, weights, classes.

Where a model was learnt from a packed copy, its pieces are the columns that the copy was packed from.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.batch import Floats
from penstock.blocks.features import Encoder
from penstock.blocks.parts import Part, classify, is_list
from penstock.errors import ColumnError, FeatureError, UsageError
from penstock.linear import LinearModel
from penstock.sql.expressions.literals import DUCKDB

LITERAL = 1000
"""Weights that are written into a statement one by one; more come as arrays, or from the catalogue."""

VECTOR = b"penstock.vector"
"""In a column's metadata: the schema of pgvector's type, where the column is of that type."""

Kind = Literal["number", "array", "packed", "vector", "pairs"]


@dataclass(frozen=True, slots=True)
class Stored:
    """A model in the catalogue: the quoted table, the name, and when it was made, which tells it from its successors."""

    table: str
    name: str
    made: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some features: one column, or the two of sparse pairs, and where their weights stand.

    ``types`` are the columns' Arrow types, ``schema`` that of pgvector's type for a ``vector``.
    """

    kind: Kind
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    start: int
    width: int
    schema: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """A model, ready to be written: pieces of features, weights for each output, what is predicted."""

    kind: str
    pieces: tuple[Piece, ...]
    coef: Floats
    intercept: Floats
    classes: tuple[Any, ...]
    stored: Stored | None = None

    @property
    def literal(self) -> bool:
        """Whether weights are written one by one."""
        return self.coef.size <= LITERAL

    def weights(self, output: int, piece: Piece) -> list[float]:
        """Return an output's weights for a piece, as doubles of the very same value."""
        row = self.coef[output, piece.start : piece.start + piece.width]
        return [float(value) for value in row.astype(np.float64)]

    def places(self, output: int, piece: Piece) -> tuple[int, int]:
        """Return the first and the last place, from 1, of an output's weights for a piece in the catalogue."""
        first = output * self.coef.shape[1] + piece.start
        return first + 1, first + piece.width


def pieces_of(encoder: Encoder, schema: pa.Schema, engine: str) -> tuple[Piece, ...] | None:
    """Find a model's columns in a query; None where a column is hashed, which SQL cannot do."""
    parts = encoder.parts
    if encoder.origin and not all(name in schema.names for part in parts for name in part.columns):
        parts = tuple(Part.from_dict(part) for part in encoder.origin)
        if parts[-1].kind == "pairs" and parts[-1].width is None and encoder.width is not None:
            parts = encoder_of(parts).with_width(encoder.width).parts
    if any(part.kind == "hash" for part in parts):
        return None
    found, start = [], 0
    for part in parts:
        fields = tuple(_field(schema, name, engine) for name in part.columns)
        found.append(_piece(part, fields, start))
        start += found[-1].width
    return tuple(found)


def encoder_of(parts: tuple[Part, ...]) -> Encoder:
    """Return an encoder of these parts alone."""
    return Encoder(parts)


def _field(schema: pa.Schema, name: str, engine: str) -> pa.Field:
    present = schema.names
    same = [each for each in present if each == name]
    if not same and engine == DUCKDB:  # where names are the same whatever their case
        same = [each for each in present if each.lower() == name.lower()]
    if not same:
        raise ColumnError.missing(name, present, place="the query", role="feature column")
    if len(same) > 1 or (engine == DUCKDB and Counter(map(str.lower, present))[name.lower()] > 1):
        raise UsageError(f"the query has two columns {name!r}, and the model reads one; give the other another name")
    return schema.field(present.index(same[0]))


def _piece(part: Part, fields: tuple[pa.Field, ...], start: int) -> Piece:
    width = part.width or 0
    names, types = tuple(field.name for field in fields), tuple(field.type for field in fields)
    if part.kind == "pairs":
        for field in fields:
            if not holds_lists(field.type):
                raise FeatureError(f"the query: column {field.name!r} is {field.type}; sparse features are two lists")
        return Piece("pairs", names, types, start, width)
    field, kind = fields[0], types[0]
    if part.kind == "vector":
        if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
            raise ColumnError(
                f"the query: column {field.name!r} holds {kind.list_size} values a row where {width} were learnt from"
            )
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return Piece("packed", names, types, start, width)
        vector = (field.metadata or {}).get(VECTOR)
        if vector is not None:
            return Piece("vector", names, types, start, width, vector.decode())
        if holds_lists(kind):
            return Piece("array", names, types, start, width)
        raise ColumnError(
            f"the query: column {field.name!r} is {kind}, where lists of {width} numbers were learnt from"
        )
    found = classify(field, None)
    if isinstance(found, str) or found.kind != "number":
        raise FeatureError(f"the query: column {field.name!r} is {kind}, where a number was learnt from")
    return Piece("number", names, types, start, 1)


def holds_lists(kind: pa.DataType) -> bool:
    """Whether a column holds lists, of one length or of any."""
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def formula_of(model: LinearModel, schema: pa.Schema, engine: str, stored: Stored | None) -> Formula | None:
    """Make a model ready to be written over a query's columns; None where its features cannot be made in SQL."""
    pieces = pieces_of(model.encoder, schema, engine)
    if pieces is None or sum(piece.width for piece in pieces) != model.weights.width:
        return None
    weights = model.weights.settled()
    labels = model.encoder.labels
    classes = () if labels is None else labels.classes
    return Formula(model.kind, pieces, np.ascontiguousarray(weights.coef), weights.intercept, classes, stored)
