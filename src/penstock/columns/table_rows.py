"""Rows for a network that takes numbers and categories: what a recipe makes of columns where features are not side by side.

Numbers, dates and fixed-size lists are float32 features; each category is one number, to be looked up in an embedding, with
numbers for values that were not seen and for missing ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columns.base import FeatureColumn, Place, column_of
from penstock.columns.category import Category
from penstock.columns.hashing import Hashed
from penstock.columns.recipe import Recipe, dense_features
from penstock.errors import UsageError
from penstock.messages import Text, Use

NUMBERS, CATEGORIES, LABEL, WEIGHT = "numbers", "categories", "label", "weight"


@dataclass(frozen=True, slots=True)
class TableRows:
    """Makes columns ``numbers``, ``categories``, ``label`` and ``weight``, those that there are, of stored ones.

    ``label`` is the number of a class where the recipe knows the classes, else the number that is stored. ``weight`` is 0 for rows
    without a label.
    """

    recipe: Recipe
    schema: pa.Schema

    @classmethod
    def of(cls, recipe: Recipe, schema: pa.Schema, *, place: str) -> TableRows:
        """Return what makes rows of data with this schema; where it has no label, rows have none."""
        fitted = recipe.for_schema(schema, place=place, scored=recipe.label in schema.names)
        if [part.kind for part in fitted.parts] != [part.kind for part in recipe.parts]:
            raise UsageError(f"{place} has its columns packed together; name the data that it was converted from")
        for part in fitted.parts:
            if part.kind == "pairs" or (isinstance(part, Hashed) and part.words):
                fix = Text("leave it out of the recipe: ", Use("exclude", list(part.columns)))
                raise UsageError(f"{part.columns[0]!r} has many values in a row, not one category", fixes=[fix])
        numbers, categories = _split(fitted.parts)
        width = sum(part.width or 0 for part in numbers)
        fields = [pa.field(NUMBERS, pa.list_(pa.float32(), width))] if numbers else []
        fields += [pa.field(CATEGORIES, pa.list_(pa.int64(), len(categories)))] if categories else []
        if fitted.label is not None:
            whole = fitted.labels is not None or pa.types.is_integer(schema.field(fitted.label).type)
            fields.append(pa.field(LABEL, pa.int64() if whole else pa.float32()))
        fields += [pa.field(WEIGHT, pa.float32())] if fitted.weighted else []
        return cls(fitted, pa.schema(fields))

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns to read."""
        return self.recipe.columns

    def encode(self, batch: pa.RecordBatch, place: Place) -> pa.RecordBatch:
        """Return the columns of some rows."""
        recipe = self.recipe.at(place.name)
        if recipe.missing == "refuse":
            recipe.require_complete(batch, first_row=place.first_row)
        numbers, categories = _split(recipe.parts)
        arrays = []
        if numbers:
            arrays.append(_lists(dense_features(batch, numbers, place), self.schema.field(NUMBERS)))
        if categories:
            ids = [part.ids(column_of(batch, part.column), place) for part in categories]
            arrays.append(_lists(np.stack(ids, axis=1), self.schema.field(CATEGORIES)))
        y, weight = recipe.targets(batch, first_row=place.first_row)
        if recipe.label is not None and y is not None:
            kind = self.schema.field(LABEL).type
            if recipe.labels is None and pa.types.is_integer(kind):
                arrays.append(pc.fill_null(batch.column(recipe.label).cast(kind), 0))  # as many digits as are stored
            else:
                arrays.append(pa.array(y).cast(kind))
        arrays += [] if weight is None else [pa.array(weight)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _split(parts: Sequence[FeatureColumn]) -> tuple[list[FeatureColumn], list[Category | Hashed]]:
    categories = [part for part in parts if isinstance(part, (Category, Hashed))]
    return [part for part in parts if not isinstance(part, (Category, Hashed))], categories


def _lists(rows: np.ndarray[tuple[int, ...], np.dtype[np.generic]], field: pa.Field) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=field.type)
