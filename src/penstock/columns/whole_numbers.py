"""Columns of whole numbers that are something other than quantities: numbers or names of rows, or dates written as numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.columns.number import Number

_NUMBERED_ROWS, _NUMBERED_RANGE = 0.92, 2.0
"""The share of rows with a whole number of its own, and the numbers from the least to the most of them for each row, of row numbers."""
_LEAST_DATES, _FIRST_DATE, _LAST_DATE = 10, 19000101, 21001231
"""Different whole numbers from which on they may be dates, and the first and the last that are one."""


class WholeColumns:
    """What several columns of numbers are; none is looked at any more from the value on that says it is only a number.

    Examples
    --------
    >>> found = WholeColumns([Number("id"), Number("day"), Number("x")])
    >>> rows = np.arange(100)
    >>> found.add(pa.record_batch({"id": rows, "day": 20220601 + rows % 30, "x": rows / 3}))
    >>> found.row_numbers, found.dates, found.columns
    (['id'], ['day'], ['day', 'id'])
    """

    def __init__(self, parts: Iterable[Number] = ()) -> None:
        self._parts = {part.column: part for part in parts}
        self._numbers = {name: WholeNumbers() for name in self._parts}
        self._dates = {name: DateNumbers() for name in self._parts}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take in a block."""
        for name, numbers in list(self._numbers.items()):
            numbers.add(rows.column(name))
            if not numbers.possible:
                del self._numbers[name]
        for name, dates in list(self._dates.items()):
            dates.add(self._parts[name].stored_values(rows.column(name)))
            if not dates.possible:
                del self._dates[name]

    @property
    def columns(self) -> list[str]:
        """The columns that are still looked at, by name."""
        return sorted(self._numbers.keys() | self._dates.keys())

    @property
    def row_numbers(self) -> list[str]:
        """The columns that number the rows, perhaps with gaps or some twice."""
        return [name for name, numbers in self._numbers.items() if numbers.number_rows]

    @property
    def row_names(self) -> list[str]:
        """The columns in which nearly every row has a number of its own."""
        return [name for name, numbers in self._numbers.items() if numbers.name_rows]

    @property
    def dates(self) -> list[str]:
        """The columns of dates written as numbers."""
        return [name for name, dates in self._dates.items() if dates.dates]


class WholeNumbers:
    """Whether the whole numbers of a column name its rows: those that number them, perhaps with gaps or some twice, are no feature.

    How many different numbers there are is estimated, to about 1.6 %, by the smallest of their hashes.

    Examples
    --------
    >>> found = WholeNumbers()
    >>> found.add(pa.array(range(50, 100)))
    >>> found.add(pa.array(range(52)))
    >>> found.number_rows, found.distinct
    (True, 100.0)
    """

    _KEPT = 4_096

    def __init__(self) -> None:
        self._rows, self._least, self._most = 0, 0, 0
        self._smallest: NDArray[np.uint64] = np.empty(0, np.uint64)
        self.possible = True

    def add(self, array: pa.Array) -> None:
        """Take in a block of whole numbers, or of floats that may be whole."""
        if not len(array):
            return
        if array.null_count or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            self.possible = False
            return
        values = np.asarray(array.to_numpy(zero_copy_only=False))
        if values.dtype.kind == "f":
            if not (np.isfinite(values).all() and (values == np.floor(values)).all() and np.abs(values).max() < 2**53):
                self.possible = False
                return
            values = values.astype(np.int64)
        least, most = int(values.min()), int(values.max())
        self._least, self._most = (least, most) if not self._rows else (min(self._least, least), max(self._most, most))
        self._rows += len(values)
        self.possible = self._most - self._least >= _NUMBERED_ROWS * self._rows - 1  # fewer numbers: many come twice
        if not self.possible:
            return
        hashes = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        if len(self._smallest) == self._KEPT:
            hashes = hashes[hashes < self._smallest[-1]]
        self._smallest = np.union1d(self._smallest, hashes)[: self._KEPT]

    @property
    def distinct(self) -> float:
        """How many different numbers there are; an estimate above some thousands."""
        if len(self._smallest) < self._KEPT:
            return float(len(self._smallest))
        return (self._KEPT - 1) * 2.0**64 / (float(self._smallest[-1]) + 1)

    @property
    def name_rows(self) -> bool:
        """Whether nearly every row has a number of its own."""
        return self.possible and self._rows >= 100 and self.distinct >= _NUMBERED_ROWS * self._rows

    @property
    def number_rows(self) -> bool:
        """Whether, besides, the numbers lie close together."""
        return self.name_rows and self._most - self._least < _NUMBERED_RANGE * self._rows


class SampledRowNumbers:
    """Whether whole numbers, of which some blocks are looked at, number all rows, as `WholeNumbers` would say by all blocks.

    Of ``n`` rows among ``rows`` fewer have a number that came before, by the square of their share: with too few rows to tell
    numbers of rows from quantities nothing is said.

    Examples
    --------
    >>> numbered, size = SampledRowNumbers(rows=10_000), SampledRowNumbers(rows=10_000)
    >>> for start in (0, 4_000, 9_000):
    ...     numbered.add(pa.array(range(start, start + 1_000)))
    ...     size.add(pa.array([at * at % 9_973 for at in range(start, start + 1_000)]))
    >>> numbered.number_rows, size.number_rows
    (True, False)
    """

    _LEAST_TWICE = 5.0
    """Rows whose number came before, below which their share in all rows is not to be told."""

    def __init__(self, rows: int) -> None:
        self._all, self._seen = rows, WholeNumbers()
        self._values: list[NDArray[np.int64]] = []

    def add(self, array: pa.Array) -> None:
        """Take in a block of whole numbers, or of floats that may be whole."""
        if self._seen.possible and len(array):
            self._seen.add(array)
            if self._seen.possible:
                values = np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.int64)
                self._values.append(values)
                if len(values) - len(np.unique(values)) > (1 - _NUMBERED_ROWS) * len(values):
                    self._seen.possible = False
        if not self._seen.possible:
            self._values.clear()

    @property
    def number_rows(self) -> bool:
        """Whether nearly every row has a number of its own, and the numbers lie close together."""
        if not self._values:
            return False
        values = np.concatenate(self._values)
        spread = int(values.max()) - int(values.min())
        twice = (1 - _NUMBERED_ROWS) * len(values) ** 2 / self._all
        close = _NUMBERED_ROWS * self._all - 1 <= spread < _NUMBERED_RANGE * self._all
        return close and twice >= self._LEAST_TWICE and len(values) - len(np.unique(values)) <= twice


class DateNumbers:
    """Whether all numbers of a column are dates written as ``20220610``, which no model learns well from as quantities.

    Examples
    --------
    >>> found = DateNumbers()
    >>> found.add(np.arange(20220601.0, 20220611.0))
    >>> found.dates
    True
    >>> found.add(np.array([20220631.0]))
    >>> found.possible
    False
    """

    def __init__(self) -> None:
        self.possible = True
        self._numbers: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in a block; NaN is missing."""
        values = values[~np.isnan(values)]
        if not self.possible or not len(values):
            return
        inside = _FIRST_DATE <= values[0] <= _LAST_DATE and values.min() >= _FIRST_DATE and values.max() <= _LAST_DATE
        self.possible = inside and bool((values == np.floor(values)).all())
        if self.possible:
            self._numbers = np.union1d(self._numbers, values.astype(np.int64))
            self.possible = bool(_are_dates(self._numbers).all())

    @property
    def dates(self) -> bool:
        """Whether they are, and of enough different days."""
        return self.possible and len(self._numbers) >= _LEAST_DATES


def _are_dates(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers are a year, a month and a day that there is."""
    years, months, days = numbers // 10_000, numbers // 100 % 100, numbers % 100
    right = (months >= 1) & (months <= 12) & (days >= 1)
    starts = ((years - 1970) * 12 + np.clip(months, 1, 12) - 1).astype("datetime64[M]")
    lengths = ((starts + 1).astype("datetime64[D]") - starts.astype("datetime64[D]")).astype(np.int64)
    return np.asarray(right & (days <= lengths))
