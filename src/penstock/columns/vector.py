"""Columns of fixed-size lists of numbers: each element is a feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import Place, as_ranges, flags_of, is_number, null_mask, require_present, require_type, saved
from penstock.columns.labels import to_numbers
from penstock.errors import ColumnError, FeatureError, UsageError


@dataclass(frozen=True, slots=True)
class Vector:
    """A list of ``width`` numbers in every row; missing ones are refused by their row."""

    kind: ClassVar[str] = "vector"
    sparse: ClassVar[bool] = False

    column: str
    width: int
    names: tuple[str, ...] = ()
    flag_ranges: tuple[tuple[int, int], ...] = ()
    """Of a converted file, the elements that are 0 or 1: from each first up to a last one."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def feature_name(self, place: int) -> str:
        return self.names[place] if self.names else f"{self.column}[{place}]"

    @property
    def flags(self) -> NDArray[np.bool_]:
        return flags_of(self.flag_ranges, self.width)

    @classmethod
    def of(cls, field: pa.Field) -> Vector:
        """Return the features of a field that holds such lists."""
        size = field.type.list_size
        return cls(field.name, size, tuple(f"{field.name}[{i}]" for i in range(size)))

    def rows(self, array: pa.Array, place: Place) -> Floats:
        """Return the lists as C-contiguous rows; a view where they are of float32."""
        require_present(array, self.column, place)
        values = array.values.slice(array.offset * self.width, len(array) * self.width)
        if values.null_count:
            entry = int(np.argmax(null_mask(values)))
            raise FeatureError(
                f"{place.name}: {self.names[entry % self.width] if self.names else self.column!r} is null in row"
                f" {place.first_row + entry // self.width}; fill or remove it"
            )
        return to_numbers(values).reshape(len(array), self.width)

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        into[:] = self.rows(array, place).T

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        raise UsageError(f"{self.column!r} has fixed-size lists, which are stored in every row")

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        found = require_type(schema, self.column, fits=is_vector, learnt=f"lists of {self.width} numbers", place=place)
        if found.list_size != self.width:
            raise ColumnError(
                f"{place}: column {self.column!r} holds {found.list_size} values a row where {self.width} were learnt from"
            )

    def to_dict(self) -> dict[str, Any]:
        return saved(self, flag_ranges=self.flag_ranges)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Vector:
        """Build the column again."""
        return cls(data["columns"][0], data["width"], tuple(data["names"]), as_ranges(data.get("flag_ranges", ())))

    def facts(self) -> dict[str, Any]:
        return {"missing": "refused"}


def is_vector(kind: pa.DataType) -> bool:
    """Whether a type is one of fixed-size lists of numbers."""
    fixed = pa.types.is_fixed_size_list(kind)
    return bool(fixed and (is_number(kind.value_type) or pa.types.is_boolean(kind.value_type)))
