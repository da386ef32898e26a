"""Text that is numbers or dates as people write them, which no kind of column reads: found so that a user is told of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

SPELLED_DATES = "dates in another order or spelling than that of ISO 8601"
ODD_DATES = "dates but for some values"
"""How the reason, or the warning, begins for columns of dates."""
SPELLED_NUMBERS = "numbers with a comma, a currency or a per cent sign"
"""How the reason for leaving a column out begins where its numbers are written as people write them."""
ODD_NUMBERS = "numbers but for"
"""How the reason begins where more values than a few are none."""
ALIKE = 0.95
"""The share of rows, or levels, that have to be numbers, or dates, for a column to be taken for one of them."""
CODE = r"^[-+]?0\d"
"""Numbers of this kind in text, such as the postal code 01067, are codes however many there are."""
_SPELLED = r"^\s*[-+]?(\d+,\d+|\d{1,3}([.,' ]\d{3})+([.,]\d+)?|\d+([.,]\d+)?\s?%|[$€£]\s?\d[\d,]*(\.\d+)?)\s*$"
_PLAIN = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_MONTH = r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|dec(ember)?)\.?"
_DAY = r"\d{1,2}(st|nd|rd|th)?"
_DATE = (
    r"(?i)^((mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?[., ]+)?"
    r"(\d{1,4}\.\d{1,2}\.\d{1,4}|\d{1,4}/\d{1,2}/\d{1,4}|\d{1,4}-\d{1,2}-\d{1,4}"
    rf"|{_DAY}[ ./-]*{_MONTH}[ ,./-]*\d{{2,4}}|{_MONTH}[ ./-]*{_DAY}[ ,./-]+\d{{2,4}}|\d{{4}}[ ./-]*{_MONTH}[ ./-]*{_DAY})"
    r"([ T,].*)?$"
)
_ISO = r"^\d{4}-\d{2}-\d{2}"
_SHOWN = 3


class SpellingTally:
    """How many rows of a column of text are plain numbers, numbers as people write them, or neither.

    Attributes
    ----------
    plain, spelled, others : int
        The rows of each.
    dates : int
        The rows of dates, in whatever spelling, among the others.
    codes : bool
        Whether some numbers have a zero in front.
    example : str
        The first number as people write it; empty where there is none.

    Examples
    --------
    >>> tally = SpellingTally()
    >>> tally.add(pa.array(["900.00", "1,234.50", "?", None]), np.array([10, 5, 1, 4]))
    >>> tally.plain, tally.spelled, tally.others
    (10, 5, 1)
    """

    def __init__(self) -> None:
        self.plain, self.spelled, self.others, self.dates = 0, 0, 0, 0
        self.codes, self.example, self._date, self._iso_date = False, "", "", ""
        self._odd: dict[str, None] = {}

    @classmethod
    def of(cls, texts: Sequence[str]) -> SpellingTally:
        """Take in some texts once each."""
        tally = cls()
        tally.add(pa.array(texts, pa.large_string()), np.ones(len(texts), np.int64))
        return tally

    def add(self, values: pa.Array, rows: NDArray[np.int64]) -> None:
        """Take in distinct values of a block and how many rows have each; nulls are not counted."""
        spelled = pc.match_substring_regex(values, _SPELLED)
        codes = pc.match_substring_regex(values, CODE)
        self.codes = self.codes or bool(pc.any(codes).as_py())
        plain = pc.and_not(pc.and_not(pc.match_substring_regex(values, _PLAIN), codes), spelled)
        others = pc.invert(pc.or_(plain, spelled))
        self.plain, self.spelled, self.others = (
            known + int(rows[pc.fill_null(found, False).to_numpy(zero_copy_only=False)].sum())
            for known, found in ((self.plain, plain), (self.spelled, spelled), (self.others, others))
        )
        dates = pc.match_substring_regex(values, _DATE)
        self.dates += int(rows[pc.fill_null(dates, False).to_numpy(zero_copy_only=False)].sum())
        iso = pc.match_substring_regex(values, _ISO)
        self._date = self._date or next(iter(values.filter(pc.and_not(dates, iso)).slice(0, 1).to_pylist()), "")
        self._iso_date = self._iso_date or next(iter(values.filter(pc.and_(dates, iso)).slice(0, 1).to_pylist()), "")
        if not self.example:
            self.example = next(iter(values.filter(spelled).slice(0, 1).to_pylist()), "")
        if len(self._odd) <= _SHOWN:
            self._odd |= dict.fromkeys(values.filter(others).slice(0, _SHOWN + 1).to_pylist())

    @property
    def spelled_reason(self) -> str | None:
        """Why a column is left out whose values are numbers, some of them as people write them; None where they are not."""
        numbers = self.plain + self.spelled
        if not self.spelled or self.others > self.spelled or numbers < ALIKE * (numbers + self.others):
            return None
        return f"{SPELLED_NUMBERS}, such as {self.example!r}; write plain numbers, such as 1234.5, into the data"

    @property
    def dates_spelling(self) -> str | None:
        """What the values are where nearly all are dates, with one of them; None where they are not."""
        if not self.dates or self.dates < ALIKE * (self.plain + self.spelled + self.others):
            return None
        return f"{SPELLED_DATES}, such as {self._date!r}" if self._date else f"{ODD_DATES}, such as {self._iso_date!r}"

    @property
    def odd_reason(self) -> str | None:
        """Why a column of numbers with too many values that are none is left out; None where it is no such column."""
        odd = self.spelled + self.others
        if self.codes or not self.plain or not odd or self.plain < ALIKE * (self.plain + odd):
            return None
        shown = ", ".join(map(repr, list(self._odd)[:_SHOWN])) + (", …" if len(self._odd) > _SHOWN else "")
        return f"{ODD_NUMBERS} {shown or repr(self.example)}; name these values as missing ones"


def names_help(reason: str) -> bool:
    """Whether naming a column that is left out makes a sensible feature of it; numbers in another spelling would be levels."""
    return reason != "empty" and not reason.startswith((SPELLED_NUMBERS, ODD_NUMBERS, SPELLED_DATES, ODD_DATES))


def is_spelled(values: pa.Array) -> bool:
    """Whether texts are all numbers as people write them: with a decimal comma, commas between thousands, %, $.

    Examples
    --------
    >>> [is_spelled(pa.array([text])) for text in ("0,25", "3.5 %", "$1,200.50", "1.5", "a,b")]
    [True, True, True, False, False]
    """
    return bool(pc.all(pc.match_substring_regex(values, _SPELLED)).as_py())
