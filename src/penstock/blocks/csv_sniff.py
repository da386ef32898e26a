"""What can be told from the first lines of a CSV file: its delimiter, its header.

Guesses are made once, from a sample, and can be overruled by the caller.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.blocks.parse_reference import MISSING, read_number_reference, strip_field
from penstock.blocks.text import BYTE_ORDER_MARK
from penstock.errors import DataError, ParseError, UsageError

DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Where the first line that is not empty lies: from ``begin`` to ``after``, the number of it, and its text."""

    begin: int
    after: int
    line: int
    first: str
    text: str

    @classmethod
    def of(cls, sample: bytes, name: str) -> CsvLayout:
        """Find the first line of a sample."""
        begin = len(BYTE_ORDER_MARK) if sample.startswith(BYTE_ORDER_MARK) else 0
        body = sample[begin:]
        leading = len(body) - len(body.lstrip(b"\r\n"))
        if not body.strip():
            raise DataError(f"{name} is empty; give a file with at least one row")
        if b"\n" not in body and b"\r" in body.strip(b"\r"):
            raise ParseError(f"{name} has lines that end in a carriage return alone; run: tr '\\r' '\\n' < {name}")
        start = begin + leading
        end = sample.find(b"\n", start)
        after = len(sample) if end < 0 else end + 1
        line = sample[start:after].rstrip(b"\r\n").decode("utf-8", "replace")
        head = sample[start : start + 65536].decode("utf-8", "replace")
        return cls(begin, after, 1 + body.count(b"\n", 0, leading), line, head)


def split_line(line: str, delimiter: str) -> list[str]:
    """Return the fields of one line, without their quotes.

    Examples
    --------
    >>> split_line('a,"b,c",d', ",")
    ['a', 'b,c', 'd']
    """
    return next(csv.reader([line], delimiter=delimiter), [""])


def sniff_delimiter(text: str, name: str, given: str | None) -> str:
    """Return the delimiter given, or that of the file's suffix, or the likeliest in the first lines."""
    if given is not None:
        if len(given) != 1 or not given.isascii() or given.isalnum() or given in ' "+-.\r\n':
            raise UsageError(
                "cannot be used",
                option="delimiter",
                value=given,
                fixes=["give one character such as ',', ';', '|' or a tab ('\\t')"],
            )
        return given
    if name.lower().endswith((".tsv", ".tab")):
        return "\t"
    lines = [line for line in text.splitlines()[:21] if line]
    lines = lines[:-1] if len(lines) > 2 else lines  # the last may be cut
    best, most = ",", 0
    for delimiter in DELIMITERS:
        counts = [len(split_line(line, delimiter)) for line in lines]
        # One that cuts all lines alike wins over one that does not.
        score = counts[0] * (1000 if min(counts) == max(counts) else 1) if counts[0] > 1 else 0
        if score > most:
            best, most = delimiter, score
    return best


def is_word(field: str) -> bool:
    """Whether a field holds something that is neither a number nor missing."""
    raw = strip_field(field.encode("utf-8", "replace"))
    return read_number_reference(raw) is None and not MISSING.fullmatch(raw)


def has_header(first: Sequence[str], numeric: Sequence[bool], *, alone: bool) -> bool:
    """Whether the first line holds names, given which columns are numeric below it.

    Examples
    --------
    >>> has_header(["age", "name"], [True, False], alone=False), has_header(["5.1", "rose"], [True, False], alone=False)
    (True, False)
    """
    words = [is_word(field) for field in first]
    if alone:
        return any(words)
    return all(words) or any(word and number for word, number in zip(words, numeric, strict=True))


def header_names(fields: Sequence[str]) -> list[str]:
    """Return the names in a header; a column without one is called by its place."""
    return [field.strip() or f"column_{i}" for i, field in enumerate(fields)]
