"""Columns of dates and times: the days elapsed.

Text that is dates as ISO 8601 writes them is read as dates. The month, the day of the week and the hour of a date are categories
(`penstock.columns.category`) beside the days. Times with a zone are taken in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import NO_FLAGS, Place, as_texts, is_date, is_text, require_type, saved
from penstock.errors import FeatureError, UsageError

DAY_MS = 86_400_000
# Texts of a column have all a zone (Z, +02:00) or none, and up to 6 or 9 digits of a second.
_SPELLINGS = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))


@dataclass(frozen=True, slots=True)
class Date:
    """A date, or a date with a time, as days.

    Attributes
    ----------
    column : str
        The stored column.
    origin : float
        The day, since 1970, that days are counted from; it also stands for a missing date.
    missing : bool
        Whether a feature tells that the date is missing.
    null_values : tuple of str
        Of dates stored as text, the texts that stand for a missing one.
    scale : float
        What days are multiplied by; left as it is where training scales features.

    Examples
    --------
    >>> into = np.empty((1, 2), np.float32)
    >>> Date("day", 20_000.0).write(pa.array(["2024-10-05", "2024-10-06 12:00:00"]), into, Place())
    >>> into.tolist()
    [[1.0, 2.5]]
    """

    kind: ClassVar[str] = "date"
    sparse: ClassVar[bool] = False

    column: str
    origin: float
    missing: bool = False
    null_values: tuple[str, ...] = ()
    scale: float = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        return 1 + self.missing

    @property
    def names(self) -> tuple[str, ...]:
        return (f"{self.column} in days", f"{self.column} is missing")[: self.width]

    def feature_name(self, place: int) -> str:
        return self.names[place]

    @property
    def flags(self) -> NDArray[np.bool_]:
        return np.array([False, True]) if self.missing else NO_FLAGS

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        days = to_days(as_dates(array, self.column, self.null_values, place))
        missing = np.isnan(days)
        into[0] = np.where(missing, 0.0, (days - self.origin) * self.scale)
        if self.missing:
            into[1] = missing
        elif place.unseen is not None and missing.any():
            place.unseen.count_missing(self.column, int(missing.sum()))

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        raise UsageError(f"{self.column!r} is a date, which is stored in every row")

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        fits = lambda kind: is_date(kind) or is_text(kind)  # noqa: E731
        require_type(schema, self.column, fits=fits, learnt="dates", place=place)

    def to_dict(self) -> dict[str, Any]:
        made = saved(self, origin=self.origin, missing=self.missing, null_values=self.null_values)
        return made | ({"scale": self.scale} if self.scale != 1 else {})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Date:
        """Build the column again."""
        missing, nulls = bool(data.get("missing", False)), tuple(data.get("null_values", ()))
        return cls(data["columns"][0], float(data["origin"]), missing, nulls, float(data.get("scale", 1.0)))

    def facts(self) -> dict[str, Any]:
        return {"missing": "own feature" if self.missing else "filled"}


def as_dates(array: pa.Array, column: str, null_values: Sequence[str], place: Place) -> pa.Array:
    """Return a column of dates, or of text that is dates, as dates; one that is none is refused by its row."""
    if pa.types.is_null(array.type):
        return array.cast(pa.timestamp("ms"))
    if not is_text(array.type):
        zoned = pa.types.is_timestamp(array.type) and array.type.tz is not None
        return array.cast(pa.timestamp(array.type.unit)) if zoned else array  # in UTC, wherever it is read
    texts = as_texts(array, null_values)
    dates = parse_dates(texts)
    if dates is not None:
        return dates
    row = next(row for row in range(len(texts)) if parse_dates(texts.slice(row, 1)) is None)
    raise FeatureError(
        f"{place.name}: column {column!r} is {texts[row].as_py()!r} in row {place.first_row + row}, where dates were"
        " learnt from; mend it, or leave it empty"
    )


def parse_dates(texts: pa.Array) -> pa.Array | None:
    """Return texts as dates with times; None where one is no date as ISO 8601 writes it."""
    for kind in _SPELLINGS:
        with suppress(pa.ArrowInvalid):
            dates = texts.cast(kind)
            return dates if kind.tz is None else dates.cast(pa.timestamp(kind.unit))  # in UTC
    return None


def to_days(array: pa.Array) -> NDArray[np.float64]:
    """Return dates and times as days since 1970, with NaN for missing ones."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.date32()).cast(pa.int32()).cast(pa.float64())
        return np.asarray(array.to_numpy(zero_copy_only=False))
    elapsed = array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64()).cast(pa.float64())
    return np.asarray(elapsed.to_numpy(zero_copy_only=False)) / DAY_MS
