"""Columns of numbers: integers, floats, decimals, booleans, durations and times of day; also numbers that are stored as text.

A missing number (null or NaN) stands at the mean of the column, and where missing ones are not rare a feature tells of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import NO_FLAGS, Place, as_texts, is_number, is_text, require_present, require_type, saved
from penstock.columns.labels import to_numbers
from penstock.errors import FeatureError, UsageError

_WHOLE = frozenset(
    kind.id
    for kind in (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.bool_(),
    )
)
_PLAIN = _WHOLE | {pa.float32().id, pa.float64().id}
"""Types that become numbers as they are; few comparisons count where blocks are small and columns many."""
_ROUNDING = 1e-12
"""A spread below this share of the mean is what is left of the digits of doubles."""
INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
"""How Arrow stores an interval."""
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Number:
    """A number, and what stands for a missing one.

    Attributes
    ----------
    column : str
        The stored column.
    fill : float or None
        What stands for a missing number; None refuses missing numbers by their row.
    missing : bool
        Whether a second feature tells that the number is missing.
    null_values : tuple of str
        Texts that stand for a missing number, in columns of text; those that are numbers do so in columns of numbers too.
    center, scale : float
        The feature is the number less ``center``, times ``scale``; both are left as they are where training scales features.

    Examples
    --------
    >>> into = np.empty((2, 3), np.float32)
    >>> Number("age", fill=40.0, missing=True).write(pa.array([20, None, 60]), into, Place())
    >>> into.tolist()
    [[20.0, 40.0, 60.0], [0.0, 1.0, 0.0]]
    """

    kind: ClassVar[str] = "number"
    sparse: ClassVar[bool] = False

    column: str
    fill: float | None = None
    missing: bool = False
    null_values: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 1.0

    plain: bool = field(init=False, repr=False, compare=False)
    """Whether the only feature is the number as it is stored, where it is not missing."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plain", not (self.missing or self.null_values or self.standardized))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        return 1 + self.missing

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column, f"{self.column} is missing")[: self.width]

    def feature_name(self, place: int) -> str:
        return self.names[place]

    @property
    def flags(self) -> NDArray[np.bool_]:
        return np.array([False, True]) if self.missing else NO_FLAGS

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        text = array.type.id not in _PLAIN and is_text(array.type)
        if array.type.id not in _PLAIN:
            if text:
                array = _parsed(as_texts(array, self.null_values), self.column, place)
            elif pa.types.is_null(array.type):
                array = array.cast(pa.float64())
            elif is_elapsed(array.type):
                array = to_seconds(array)
        row = into[0]
        if self.missing:
            into[1] = 0
        if self.fill is None:
            require_present(array, self.column, place)
        if self.standardized:
            values = to_doubles(array)
            row[:] = (values - self.center) * self.scale
            if self.fill is not None:
                self._fill(into, np.isnan(values), place)
        elif self.fill is None:
            row[:] = to_numbers(array)
        elif array.null_count:
            row[:] = to_numbers(array.cast(pa.float64(), safe=False))  # a null comes to NaN
            self._fill(into, np.isnan(row), place)
        else:
            row[:] = to_numbers(array)
            if array.type.id not in _WHOLE and np.isnan(row.sum()):
                self._fill(into, np.isnan(row), place)
        if self.null_values and not text:
            self._replace_nulls(array, into, place)

    def stored_values(self, array: pa.Array) -> NDArray[np.float64]:
        """Return the numbers as they are stored, with NaN for missing ones; where they are text, those that can be read."""
        if is_text(array.type):
            numbers = as_numbers(as_texts(array, self.null_values))
            return np.empty(0) if numbers is None else to_doubles(numbers)
        values = to_doubles(to_seconds(array) if is_elapsed(array.type) else array)
        return np.where(is_null_number(array, self.null_values), np.nan, values) if self.null_values else values

    @property
    def standardized(self) -> bool:
        """Whether the feature is another number than the stored one."""
        return self.center != 0 or self.scale != 1

    def _replace_nulls(self, array: pa.Array, into: Floats, place: Place) -> None:
        """Take numbers that stand for a missing one as missing."""
        missing = is_null_number(array, self.null_values)
        if missing.any():
            if self.fill is None:
                require_present(pa.array(np.zeros(len(missing)), mask=missing), self.column, place)
            self._fill(into, missing, place)

    def _fill(self, into: Floats, missing: NDArray[np.bool_], place: Place) -> None:
        assert self.fill is not None
        into[0, missing] = (self.fill - self.center) * self.scale
        if self.missing:
            into[1, missing] = 1
        elif place.unseen is not None:
            place.unseen.count_missing(self.column, int(missing.sum()))

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        raise UsageError(f"{self.column!r} is a number, which is stored in every row")

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        fits = lambda kind: is_numeric(kind) or is_text(kind)  # noqa: E731
        require_type(schema, self.column, fits=fits, learnt="numbers", place=place)

    def to_dict(self) -> dict[str, Any]:
        made = saved(self, fill=self.fill, missing=self.missing, null_values=self.null_values)
        return made | ({"center": self.center, "scale": self.scale} if self.standardized else {})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Number:
        """Build the column again."""
        nulls = tuple(data.get("null_values", ()))
        center, scale = data.get("center", 0.0), data.get("scale", 1.0)
        return cls(data["columns"][0], data.get("fill"), data.get("missing", False), nulls, center, scale)

    def facts(self) -> dict[str, Any]:
        return {"missing": "own feature" if self.missing else "filled" if self.fill is not None else "refused"}


def is_numeric(kind: pa.DataType) -> bool:
    """Whether values of a type become one number each."""
    return bool(is_number(kind) or pa.types.is_boolean(kind) or is_elapsed(kind))


def is_elapsed(kind: pa.DataType) -> bool:
    """Whether a type is one of durations, times of the day or intervals as databases have them."""
    return bool(pa.types.is_duration(kind) or pa.types.is_time(kind) or kind == pa.month_day_nano_interval())


def number_view(array: pa.Array) -> NDArray[Any] | None:
    """Return an array of integers or floats without nulls as it lies in memory; None for any other."""
    try:
        values = array.to_numpy()
    except (pa.ArrowException, NotImplementedError):  # nulls, or a type that NumPy does not have
        return None
    return values if values.dtype.kind in "iuf" else None


def null_numbers(null_values: Sequence[str]) -> tuple[str, ...]:
    """Return those values that stand for a missing one and are numbers.

    Examples
    --------
    >>> null_numbers(["?", "-999", "1e6"])
    ('-999', '1e6')
    """
    found = ((text, as_numbers(pa.array([text], pa.large_string()))) for text in null_values)
    return tuple(text for text, number in found if number is not None and number[0].as_py() is not None)


def is_null_number(array: pa.Array, null_values: Sequence[str]) -> NDArray[np.bool_]:
    """Return which numbers stand for a missing one, to the precision of float32."""
    if is_elapsed(array.type):
        array = to_seconds(array)
    numbers = to_numbers(array.cast(pa.float64(), safe=False) if array.null_count else array)
    return np.isin(numbers, np.array(null_numbers(null_values), np.float64).astype(np.float32))


def to_seconds(array: pa.Array) -> pa.Array:
    """Return durations, times of the day or intervals as seconds; a year has 365.25 days, any other month 30, as in SQL.

    Examples
    --------
    >>> to_seconds(pa.array([(0, 1, 5 * 10**8), (13, 0, 0), None], pa.month_day_nano_interval())).to_pylist()
    [86400.5, 34149600.0, None]
    """
    kind = array.type
    if kind == pa.month_day_nano_interval():
        values = np.frombuffer(array.buffers()[1] or b"", INTERVAL)[array.offset : array.offset + len(array)]
        years, months = np.fmod(values["months"], 12), values["months"]
        days = (months - years) / 12 * 365.25 + 30.0 * years + values["days"]
        return pa.array(days * 86_400 + values["nanoseconds"] / 1e9, mask=np.asarray(array.is_null()))
    whole = array.cast(pa.int32()).cast(pa.int64()) if kind.bit_width == 32 else array.cast(pa.int64())
    return pc.multiply(whole.cast(pa.float64(), safe=False), _SECONDS[kind.unit])


def to_doubles(array: pa.Array) -> NDArray[np.float64]:
    """Return numbers or booleans in double precision, with NaN for missing ones."""
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)


def inverse_spread(mean: float, squares: float) -> float:
    """Return what brings numbers of a mean and a mean square about it to a spread of 1; 0 where they vary by rounding only."""
    spread = math.sqrt(max(squares, 0.0))
    return 1 / spread if spread > _ROUNDING * abs(mean) else 0.0


def as_numbers(texts: pa.Array) -> pa.Array | None:
    """Return texts as numbers; None where one is none."""
    try:
        return pc.utf8_trim_whitespace(texts).cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def _parsed(texts: pa.Array, column: str, place: Place) -> pa.Array:
    numbers = as_numbers(texts)
    if numbers is not None:
        return numbers
    row = next(row for row in range(len(texts)) if as_numbers(texts.slice(row, 1)) is None)
    raise FeatureError(
        f"{place.name}: column {column!r} is {texts[row].as_py()!r} in row {place.first_row + row}, where numbers were learnt"
        " from; mend it, or make it null where the number is missing"
    )
