"""The kinds of feature column, by the name that saved models have for them, and which kind a stored column is by its type.

A kind of your own is a class that satisfies `penstock.columns.base.FeatureColumn`, and a line in `KINDS`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.columns.base import FeatureColumn, Refusal, is_date, is_list, is_text
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number, is_numeric
from penstock.columns.pairs import Pairs
from penstock.columns.tree import TreeColumn
from penstock.columns.vector import Vector, is_vector
from penstock.messages import Text, Use

KINDS: dict[str, Any] = {kind.kind: kind for kind in (Number, Category, Date, Hashed, Vector, Pairs, TreeColumn)}


def column_from_dict(data: dict[str, Any]) -> FeatureColumn:
    """Build a feature column again from its JSON."""
    column: FeatureColumn = KINDS[data["kind"]].from_dict(data)
    return column


def classify(field: pa.Field, hashed: Hashed | None) -> FeatureColumn | Refusal:
    """Return what a column is as a feature by its type alone, or why it is none."""
    name, kind = field.name, field.type
    if hashed is not None:
        return hashed
    if is_numeric(kind):
        return Number(name)
    if is_vector(kind):
        return Vector.of(field)
    if is_date(kind):
        return Refusal(
            f"column {name!r} is {kind}, not a number", ("turn it into one (days since a date, say) or exclude it",)
        )
    if is_list(kind):
        fixes = "make it a fixed-size list", "give sparse rows as two columns named 'indices' and 'values'"
        return Refusal(f"column {name!r} is {kind}, a list of any length", fixes)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return Refusal(f"column {name!r} is {kind}, which cannot be a feature", ("flatten it or exclude it",))
    by_hash = Text("hash it: ", Use("hash", [f"{name}:2^20"]))
    return Refusal(f"column {name!r} is {kind}, not a number", ("encode it", "exclude it", by_hash), can_hash=True)


def can_fit(field: pa.Field) -> bool:
    """Whether a column is made features by what it holds: text, categories and dates."""
    return is_text(field.type) or is_date(field.type) or pa.types.is_dictionary(field.type)
