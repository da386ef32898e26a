"""The kinds of feature column, by the name that saved models have for them.

A kind of your own is a class that satisfies `penstock.columns.base.FeatureColumn`, and a line in `KINDS`.
"""

from __future__ import annotations

from typing import Any

from penstock.columns.base import FeatureColumn
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number
from penstock.columns.pairs import Pairs
from penstock.columns.tree import TreeColumn
from penstock.columns.vector import Vector

KINDS: dict[str, Any] = {kind.kind: kind for kind in (Number, Category, Date, Hashed, Vector, Pairs, TreeColumn)}


def column_from_dict(data: dict[str, Any]) -> FeatureColumn:
    """Build a feature column again from its JSON."""
    column: FeatureColumn = KINDS[data["kind"]].from_dict(data)
    return column
