"""Columns as decision trees take them: one feature each, a number or the code of a category, and NaN where it is missing.

Trees split numbers at any place, sets of categories from one another, and send missing values their own way, so that nothing is
filled, and no level needs a feature of its own. A model whose rows had no missing number in a column has no such way for it; there
`TreeColumn.fill` stands for one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import NO_FLAGS, Place, saved
from penstock.columns.category import Category
from penstock.columns.date import Date, as_dates, to_days
from penstock.columns.number import Number
from penstock.errors import UsageError

_FORMS = {kind.kind: kind for kind in (Number, Category, Date)}


@dataclass(frozen=True, slots=True)
class TreeColumn:
    """A number, a date in days or the code of a category's level, with NaN where it is missing.

    Levels that training did not see have the code of rare ones, or are missing where there were none.

    Examples
    --------
    >>> into = np.empty((1, 3), np.float32)
    >>> TreeColumn(Category("color", ("blue", "red"))).write(pa.array(["red", None, "blue"]), into, Place())
    >>> into.tolist()
    [[1.0, nan, 0.0]]
    """

    kind: ClassVar[str] = "tree"
    sparse: ClassVar[bool] = False
    width: ClassVar[int] = 1

    of: Number | Category | Date

    @property
    def columns(self) -> tuple[str, ...]:
        return self.of.columns

    @property
    def names(self) -> tuple[str, ...]:
        if isinstance(self.of, Category):
            return (self.of.name,)
        return self.of.names[:1]

    def feature_name(self, place: int) -> str:
        return self.names[place]

    @property
    def flags(self) -> NDArray[np.bool_]:
        return NO_FLAGS

    @property
    def fill(self) -> float:
        """What stands for a missing value where training had none; NaN for a category, which then is none of the levels."""
        if isinstance(self.of, Number):
            return math.nan if self.of.fill is None else self.of.fill
        return 0.0 if isinstance(self.of, Date) else math.nan

    @property
    def categorical(self) -> bool:
        """Whether the feature is the code of a category."""
        return isinstance(self.of, Category)

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        if isinstance(self.of, Category):
            codes = self.of.codes(array, place)
            values = len(self.of.levels) + self.of.rare  # a code beyond them is that of a missing value
            into[0] = np.where((codes >= 0) & (codes < values), codes, np.nan)
        elif isinstance(self.of, Date):
            into[0] = to_days(as_dates(array, self.of.column, self.of.null_values, place)) - self.of.origin
        else:  # one without a fill refuses missing numbers
            fill = None if self.of.fill is None else math.nan
            plain = replace(self.of, fill=fill, missing=False)
            plain.write(array, into, replace(place, unseen=None))  # the model knows whether it tells of missing numbers

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        raise UsageError(f"{self.columns[0]!r} is a feature of trees, which is stored in every row")

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        self.of.require_kind(schema, place=place)

    def to_dict(self) -> dict[str, Any]:
        return saved(self, of=self.of.to_dict())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TreeColumn:
        """Build the column again."""
        kind: Any = _FORMS[data["of"]["kind"]]
        return cls(kind.from_dict(data["of"]))

    def facts(self) -> dict[str, Any]:
        return {
            **self.of.facts(),
            "missing": "NaN" if math.isnan(self.fill) else "NaN, or filled where training had none",
        }
