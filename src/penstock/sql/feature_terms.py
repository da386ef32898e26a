"""A recipe's columns as SQL: what a number, a date or a category adds to a score.

A missing number adds what the recipe fills it with, times its weight; a category adds the weight of its level, looked up by the
text of the value. Both engines share what is here, and say in a `ValueWriter` how they read values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.columns.base import is_text
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.number import Number, null_numbers
from penstock.sql.dialect import double_literal
from penstock.sql.prediction_query import FeatureTerm

ZONED = ":[0-9.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
"""What a text ends with that is a time with a zone."""


@dataclass(frozen=True, slots=True)
class ValueWriter:
    """How an engine reads values.

    Attributes
    ----------
    column : callable
        Writes the value of a term's column.
    double : callable
        Writes a number, a boolean, a time of the day or an interval, of an Arrow type, as a double.
    parsed : callable
        Writes a text as a double, or as a timestamp: the second argument tells which.
    days : callable
        Writes a date, or a date with a time, of an Arrow type, as days since 1970.
    date_part : callable
        Writes the month, weekday or hour of a date, of an Arrow type, as text.
    text : callable
        Writes a value as text.
    lookup : callable
        Writes the number that a dictionary has for a text; null for other texts.
    among : callable
        Writes whether a text is one of some.
    """

    column: Callable[[FeatureTerm], str]
    double: Callable[[str, pa.DataType], str]
    parsed: Callable[[str, str], str]
    days: Callable[[str, pa.DataType], str]
    date_part: Callable[[str, pa.DataType, str], str]
    text: Callable[[str], str]
    lookup: Callable[[str, dict[str, int]], str]
    among: Callable[[str, tuple[str, ...]], str]

    def number(self, term: FeatureTerm, weights: Sequence[str]) -> str:
        """Write what a number adds to a score, with these weights: null where it is missing and the recipe does not fill it."""
        part, value, kind = term.part, self.column(term), term.types[0]
        assert isinstance(part, Number)
        if is_text(kind):
            value = self.parsed(self._present(value, part.null_values), "double")
        else:
            value = self.double(value, kind)
            nulls = ", ".join(double_literal(float(each)) for each in null_numbers(part.null_values))
            value = f"CASE WHEN {value} IN ({nulls}) THEN NULL ELSE {value} END" if nulls else value
        if part.fill is None:
            return f"{value} * {weights[0]}"
        filled = f"{double_literal(part.fill)} * {weights[0]}" + (f" + {weights[1]}" if part.missing else "")
        present = f"nullif({value}, 'NaN'::float8)" if may_be_nan(kind) else value
        return f"coalesce({present} * {weights[0]}, {filled})"

    def date(self, term: FeatureTerm, weights: Sequence[str]) -> str:
        """Write what a date adds to a score, with these weights."""
        part = term.part
        assert isinstance(part, Date)
        days = self.days(*self._date(term, part.null_values))
        added = f"({days} - {double_literal(part.origin)}) * {weights[0]}"
        return f"coalesce({added}, {weights[1] if part.missing else double_literal(0.0)})"

    def code(self, term: FeatureTerm) -> str:
        """Write which of a category's features a row has, counted from 1; 0 where it has none."""
        part = term.part
        assert isinstance(part, Category)
        rare = len(part.levels) + 1 if part.rare else 0
        missing = len(part.levels) + part.rare + 1 if part.missing else 0
        codes = {level: place for place, level in enumerate(part.levels, 1)}
        if part.of:
            text = self.date_part(*self._date(term, part.null_values), part.of)
        else:
            text = self.text(self.column(term))
            codes |= dict.fromkeys(part.null_values, missing)
        found = f"coalesce({self.lookup(text, codes)}, {rare})" if codes else str(rare)
        return f"CASE WHEN {text} IS NULL THEN {missing} ELSE {found} END"

    def _date(self, term: FeatureTerm, null_values: tuple[str, ...]) -> tuple[str, pa.DataType]:
        """Return a date and its type; of text, the timestamp that it is."""
        value, kind = self.column(term), term.types[0]
        if not is_text(kind):
            return value, kind
        return self.parsed(self._present(value, null_values), "timestamp"), pa.timestamp("us")

    def _present(self, value: str, null_values: tuple[str, ...]) -> str:
        """Write a text, with null in the place of those that stand for a missing value."""
        text = self.text(value)
        return f"CASE WHEN {self.among(text, null_values)} THEN NULL ELSE {text} END" if null_values else text


def may_be_nan(kind: pa.DataType) -> bool:
    """Whether a value of a type can be a number that is none."""
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind) or is_text(kind))
