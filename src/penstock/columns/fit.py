"""What columns hold, found in one pass: which text is a category, a number, a date or an identifier, and what is missing.

Text of few values is a category. Text of many values is hashed, by words where it is prose; text that differs in nearly every
row names the row and is left out, as a constant is. Memory is bounded whatever is found: above a number of values they are not
kept but counted by the smallest of their hashes (k minimum values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.columns.base import NULL_VALUES, FeatureColumn, Place, as_texts, is_date, is_text, null_mask
from penstock.columns.category import DATE_PARTS, Category, date_part
from penstock.columns.date import Date, as_dates, parse_dates, to_days
from penstock.columns.hashing import Hashed, count_words
from penstock.columns.number import (
    Number,
    as_numbers,
    inverse_spread,
    is_elapsed,
    is_null_number,
    null_numbers,
    to_doubles,
    to_seconds,
)
from penstock.columns.spelling import CODE, SpellingTally, is_spelled
from penstock.columns.whole_numbers import WholeNumbers
from penstock.errors import UsageError

MOST_LEVELS = 10_000
"""Values up to which text is a category; more are not counted one by one."""
_LEVEL_ROWS = 2
"""Rows that a level needs for a feature of its own. With more, levels of held-out rows would be known more often than those of new rows."""
_OWN_VALUE, _OWN_VALUES = 0.8, 5
"""The share of rows with a value of their own, and their number, above which a column names rows."""
_PROSE_WORDS = 3.0
"""Words that a text has on average from which on it is hashed by words."""
_MOST_STRAYS, _STRAY_SHARE, _RARE_STRAYS = 3, 0.2, 0.01
"""Values, and their share of the rows, that may be none in a column of numbers or dates stored as text, and count as missing; of few numbers, the
share of rows that they may be unless each is of a single row."""
_CODES = 20
"""Values up to which numbers stored as text are taken for codes, one feature each, where no odd value says why they are text."""
_LEAST_NUMBERS = 5
"""Numbers from which on a column of few values with odd ones is one of numbers; fewer are codes."""
RARELY_MISSING = 0.01
"""The share of missing values up to which no feature tells of them."""
_SKETCH = 1_024
"""Hashes that are kept to estimate how many values there are."""
_HASH_BITS = 31
_PROSE_BITS, _LEAST_BITS, _MOST_BITS = 18, 10, 22
WIDE_BITS = 40
"""The power of two that text is hashed to in models on disk."""

POLICIES = ("auto", "fill", "indicator", "drop", "refuse")
"""What to do with missing values; see the option ``missing``."""


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """A column that is made features by what it holds.

    Attributes
    ----------
    field : pyarrow.Field
        The column.
    kind : str or None
        The kind that was asked for; None leaves it to the data.
    bits : int or None
        Where it was asked to be hashed, the power of two.
    named : bool
        Whether somebody named the column as a feature, so that it is none to leave out.
    standardized : bool
        Whether numbers and dates are brought to mean 0 and spread 1 by the recipe itself.
    """

    field: pa.Field
    kind: str | None = None
    named: bool = False
    null_values: tuple[str, ...] = ()
    standardized: bool = False

    @property
    def all_null_values(self) -> tuple[str, ...]:
        """What stands for a missing number or date: of text also the usual words, of numbers those that are numbers."""
        if is_text(self.field.type):
            return tuple(dict.fromkeys([*NULL_VALUES, *self.null_values]))
        return null_numbers(self.null_values)


FitColumns = Callable[[Sequence[ColumnRequest], str], Mapping[str, tuple[FeatureColumn, ...] | str]]
"""Gives each column asked for as features, or the reason for leaving it out, under a policy for missing values."""


class Tally(Protocol):
    """What is found in a column, block by block."""

    def add(self, array: pa.Array) -> None:
        """Take in a block."""
        ...

    def result(self, policy: str) -> tuple[FeatureColumn, ...] | str:
        """Return the column as features, or the reason for leaving it out."""
        ...


def tally_of(request: ColumnRequest) -> Tally:
    """Return what is to be found of a column."""
    kind = request.field.type
    if request.kind == "number" or (request.kind is None and not is_text(kind) and not pa.types.is_dictionary(kind)):
        return DateTally(request) if is_date(kind) and request.kind is None else NumberTally(request)
    if request.kind == "date":
        return DateTally(request)
    return TextTally(request)


class Spread:
    """The mean and the spread of numbers, added up about the first of them, so that a large mean costs no digits.

    Examples
    --------
    >>> spread = Spread()
    >>> spread.add(np.array([1e9, np.inf, 1e9 + 2]))
    >>> spread.rows, spread.missing, spread.mean, spread.scale
    (3, 0, 1000000001.0, 1.0)
    """

    def __init__(self) -> None:
        self.rows, self.missing = 0, 0
        self._count, self._origin, self._sum, self._squares = 0, 0.0, 0.0, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Take in a block; an infinite number is left to be refused by its row."""
        self.rows += len(values)
        self.missing += int(np.isnan(values).sum())
        values = values[np.isfinite(values)]
        if not len(values):
            return
        if not self._count:
            self._origin = float(values[0])
        values = values - self._origin
        self._count += len(values)
        self._sum += float(values.sum())
        self._squares += float(np.dot(values, values))

    @property
    def empty(self) -> bool:
        """Whether there is no number."""
        return self.missing == self.rows

    @property
    def missing_share(self) -> float:
        """The share of the rows without a number."""
        return self.missing / max(self.rows, 1)

    @property
    def mean(self) -> float:
        """The mean of the numbers there are."""
        return self._origin + self._sum / max(self._count, 1)

    @property
    def scale(self) -> float:
        """What brings the numbers to a spread of 1, where missing ones are at the mean; 0 for a constant."""
        count = max(self._count, 1)
        squares = self._squares / count - (self._sum / count) ** 2
        return inverse_spread(self.mean, squares * (1 - self.missing_share))


class NumberTally:
    """The mean and spread of a column of numbers, how many are missing, and whether they number the rows."""

    def __init__(self, request: ColumnRequest) -> None:
        self._request = request
        self._spread = Spread()
        self._whole = None if request.named or is_text(request.field.type) else WholeNumbers()

    @property
    def missing(self) -> int:
        """How many numbers are missing."""
        return self._spread.missing

    def add(self, array: pa.Array) -> None:
        """Take in a block."""
        request = self._request
        if is_text(array.type):
            texts = as_texts(array, request.all_null_values)
            numbers = as_numbers(texts)
            if numbers is None:
                row = next(row for row in range(len(texts)) if as_numbers(texts.slice(row, 1)) is None)
                raise UsageError(
                    f"names {request.field.name!r}, which has the value {texts[row].as_py()!r}, not a number",
                    option="number",
                    value=[request.field.name],
                    fixes=[
                        *(
                            ["write plain numbers, such as 1234.5, into the data"]
                            if is_spelled(texts.slice(row, 1))
                            else []
                        ),
                        "leave the column out of it",
                        "name the value among those that stand for a missing one",
                    ],
                )
            array = numbers
        elif self._whole is not None:
            self._whole.add(array)
            self._whole = self._whole if self._whole.possible else None
        if is_elapsed(array.type):
            array = to_seconds(array)
        values = to_doubles(array)
        if request.null_values and not is_text(request.field.type):
            values = np.where(is_null_number(array, request.null_values), np.nan, values)
        self._spread.add(values)

    def result(self, policy: str) -> tuple[FeatureColumn, ...] | str:
        """Return the column, filled with its mean."""
        request, spread = self._request, self._spread
        if spread.empty:
            return "empty"
        if self._whole is not None and self._whole.number_rows:
            return "row numbers"
        told = tells_missing(policy, spread.missing_share)
        nulls = request.all_null_values
        center, scale = (spread.mean, spread.scale) if request.standardized else (0.0, 1.0)
        return (Number(request.field.name, None if policy == "refuse" else spread.mean, told, nulls, center, scale),)


class DateTally:
    """The mean of a column of dates, and how many are missing."""

    def __init__(self, request: ColumnRequest) -> None:
        self._request = request
        self._spread = Spread()
        self._parts = {part: np.zeros(32, np.int64) for part in DATE_PARTS}

    def add(self, array: pa.Array) -> None:
        """Take in a block; a text that is no date is refused."""
        if is_text(array.type):
            texts = as_texts(array, self._request.all_null_values)
            dates = parse_dates(texts)
            if dates is None:
                row = next(row for row in range(len(texts)) if parse_dates(texts.slice(row, 1)) is None)
                raise UsageError(
                    f"names {self._request.field.name!r}, which has the value {texts[row].as_py()!r}, no date as ISO 8601"
                    " writes it (2026-11-18, 2026-11-18 09:30:00)",
                    option="date",
                    value=[self._request.field.name],
                )
            array = dates
        self._spread.add(to_days(array))
        dates = as_dates(array, self._request.field.name, (), Place())
        for part, counts in self._parts.items():
            counts += np.bincount(date_part(dates, part).drop_null().to_numpy(zero_copy_only=False), minlength=32)

    def result(self, policy: str) -> tuple[FeatureColumn, ...] | str:
        """Return the column as days, counted from their mean, and the parts of dates of which several occur."""
        spread = self._spread
        if spread.empty:
            return "empty"
        origin = float(round(spread.mean))
        told = tells_missing(policy, spread.missing_share)
        nulls = self._request.all_null_values if is_text(self._request.field.type) else ()
        name = self._request.field.name
        levels = {part: np.flatnonzero(counts).astype(str).tolist() for part, counts in self._parts.items()}
        parts = [
            Category(name, tuple(found), null_values=nulls, of=of) for of, found in levels.items() if len(found) > 1
        ]
        return Date(name, origin, told, nulls, spread.scale if self._request.standardized else 1.0), *parts


class _Reading:
    """What the values of a column of text may be as well, numbers or dates, but for a few that stand for missing ones.

    Attributes
    ----------
    least : int
        Above how many values they are taken for it.
    """

    def __init__(self, tally: Tally, read: Callable[[pa.Array], pa.Array | None], least: int) -> None:
        self.least = least
        self._tally, self._read = tally, read
        self._strays: list[str] = []
        self._stray_rows = 0

    def add(self, texts: pa.Array, values: pa.Array) -> bool:
        """Take in a block and its distinct values; return whether this may still be what they are."""
        if not self._find_strays(as_texts(values, self._strays)):
            return False
        if self._strays:
            known = as_texts(texts, self._strays)
            self._stray_rows += known.null_count - texts.null_count
            texts = known
        self._tally.add(texts)
        return True

    def rare(self, present: int) -> bool:
        """Whether strays are few of the values that are not missing, and there are others."""
        return self._stray_rows <= _STRAY_SHARE * present and self._stray_rows < present

    def few_odd(self, counts: Mapping[str, int], present: int) -> bool:
        """Whether a few odd values, or words for missing ones, are why numbers of few values are stored as text.

        An odd value of more rows than one is more often a level, such as ``3+`` beside numbers.
        """
        numbers = counts.keys() - {*NULL_VALUES, *self._strays}
        most = max(len(self._strays), _RARE_STRAYS * present)
        return len(counts) > len(numbers) >= _LEAST_NUMBERS and self._stray_rows <= most

    def result(self, policy: str) -> tuple[FeatureColumn, ...] | str:
        """Return the column, in which strays are missing."""
        found: Any = self._tally.result(policy)
        if isinstance(found, str) or not self._strays:
            return found  # type: ignore[no-any-return]  # as the tally's
        return tuple(replace(part, null_values=(*part.null_values, *self._strays)) for part in found)

    def _find_strays(self, values: pa.Array) -> bool:
        """Note which values cannot be read; False where they are too many."""
        if self._read(values) is not None:
            return True
        if len(values) > 1:
            half = len(values) // 2
            return self._find_strays(values.slice(0, half)) and self._find_strays(values.slice(half))
        self._strays.append(values[0].as_py())
        return len(self._strays) <= _MOST_STRAYS


class TextTally:
    """The values of a column of text.

    Examples
    --------
    >>> tally = TextTally(ColumnRequest(pa.field("color", pa.string())))
    >>> tally.add(pa.array(["red", None, "blue", "red"] * 5))
    >>> tally.counts, tally.missing, tally.distinct
    ({'red': 10, 'blue': 5}, 5, 2.0)
    """

    def __init__(self, request: ColumnRequest, *, wide: bool = False) -> None:
        self._request, self._wide = request, wide
        self._hashed = Hashed(request.field.name, _HASH_BITS)
        self._smallest: NDArray[np.uint32] = np.empty(0, np.uint32)
        self.counts: dict[str, int] | None = None if wide else {}
        self.rows = 0
        self.missing = 0
        self._words = 0
        self._spelling = SpellingTally()
        self._others: list[_Reading] = []
        if request.kind is None:
            numbers = NumberTally(replace(request, kind="number"))
            dates = _Reading(DateTally(request), parse_dates, 0)
            # Of the billions of features of a model on disk, numbers in text are the names of things.
            self._others = [dates] if wide else [_Reading(numbers, as_numbers, _CODES), dates]

    def add(self, array: pa.Array) -> None:
        """Take in a block."""
        # Rows are many and values few: only these are made text, unless the column may be of numbers or dates.
        coded = array.dictionary_encode()
        codes = coded.indices.drop_null().to_numpy(zero_copy_only=False)
        numbers = np.bincount(codes, minlength=len(coded.dictionary))
        values = as_texts(coded.dictionary, self._request.null_values)
        there = ~null_mask(values) & (numbers > 0)
        values, numbers = values.filter(pa.array(there)), numbers[there]
        self.rows += len(array)
        self.missing += len(array) - int(numbers.sum())
        present = as_texts(values, NULL_VALUES)
        if pc.any(pc.match_substring_regex(present, CODE)).as_py():
            self._others = [each for each in self._others if not each.least]
        if self._others:
            texts = as_texts(array, self._request.null_values)
            self._others = [each for each in self._others if each.add(texts, present)]
        if not len(values):
            return
        if self._request.kind is None:
            self._spelling.add(present, numbers)
        self._words += int((_word_counts(values) * numbers).sum())
        hashes = np.unique(self._hashed.encode(values).indices.astype(np.uint32))
        self._smallest = np.union1d(self._smallest, hashes)[:_SKETCH]
        if self.counts is None or len(values) > MOST_LEVELS:
            self.counts = None
            return
        for value, count in zip(values.to_pylist(), numbers.tolist(), strict=True):
            self.counts[value] = self.counts.get(value, 0) + count
        if len(self.counts) > MOST_LEVELS:
            self.counts = None

    @property
    def distinct(self) -> float:
        """How many values there are; an estimate, good to some percent, where they were not kept."""
        if self.counts is not None:
            return float(len(self.counts))
        if len(self._smallest) < _SKETCH:
            return float(len(self._smallest))
        return (_SKETCH - 1) * 2.0**_HASH_BITS / (float(self._smallest[-1]) + 1)

    @property
    def _prose(self) -> bool:
        return 0 < _PROSE_WORDS * (self.rows - self.missing) <= self._words

    def result(self, policy: str) -> tuple[FeatureColumn, ...] | str:
        """Return the column as a number, a date, a category, or hashed; or why it is left out.

        ``wide`` columns, of a model on disk, are dates or hashed, prose by its words.
        """
        request, present = self._request, self.rows - self.missing
        for other in self._others:
            few_odd = self.counts is not None and other.few_odd(self.counts, present)
            if other.rare(present) and (self.distinct > other.least or few_odd):
                found = other.result(policy)
                if not isinstance(found, str):
                    return found
        if self._wide:
            return (
                Hashed(
                    request.field.name, WIDE_BITS, self._prose, policy not in ("fill", "refuse"), request.null_values
                ),
            )
        if not present:
            return "empty"
        dates = self._spelling.dates_spelling
        prose = self._prose and not dates
        if request.kind is None and not request.named:
            if self.distinct > _CODES and (spelled := self._spelling.spelled_reason):
                return spelled
            if self.distinct == 1 and not self.missing:
                return "one value"
            own = self.distinct > max(_OWN_VALUE * present, _OWN_VALUES) and not prose
            if dates and (own or self.counts is None):
                return f"{dates}; write them as 2026-11-18 into the data"
            if own:
                return self._spelling.odd_reason or "a value of its own in nearly every row"
        told = self.missing > 0 and policy not in ("fill", "refuse")
        nulls = request.null_values
        if self.counts is not None and not (request.kind is None and prose and self.distinct > _CODES):
            levels = sorted(value for value, count in self.counts.items() if count >= _LEVEL_ROWS)
            rare = len(levels) < len(self.counts)
            return (Category(request.field.name, tuple(levels), rare, told, null_values=nulls),)
        if request.kind == "category":
            raise UsageError(
                f"names {request.field.name!r}, which has about {self.distinct:,.0f} values, more than the"
                f" {MOST_LEVELS:,} that can be levels",
                option="category",
                value=[request.field.name],
                fixes=["hash the column"],
            )
        if prose:
            return (Hashed(request.field.name, _PROSE_BITS, True, told, nulls),)
        bits = int(np.clip(np.ceil(np.log2(4 * self.distinct)), _LEAST_BITS, _MOST_BITS))
        return (Hashed(request.field.name, bits, False, told, nulls),)


def tells_missing(policy: str, share: float) -> bool:
    """Whether a feature tells of missing values that are this share of the rows."""
    return policy == "indicator" if policy != "auto" else RARELY_MISSING < share < 1


def _word_counts(values: pa.Array) -> NDArray[np.uint64]:
    counts = np.empty(len(values), np.uint64)
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    count_words(places, content, counts)
    return counts
