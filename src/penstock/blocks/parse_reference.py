"""What the loops of `parse` must do, in plain Python: the specification, and the twins that tests compare.

Each returns what its compiled twin returns and fills the same arrays. None is meant to be fast.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from penstock.blocks.parse import (
    BAD_INDEX,
    BAD_LABEL,
    BAD_ORDER,
    BAD_QUOTE,
    BAD_TOKEN,
    BAD_VALUE,
    BAD_WIDTH,
    OK,
)

NUMBER = re.compile(rb"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:infinity|inf|nan))")
MISSING = re.compile(rb"(?i:|na|n/a|null|none)")
_FIELD = re.compile(rb'"(?:[^"\n]|"")*"')


def read_number_reference(field: bytes) -> float | None:
    """Return the number that a field holds, or None.

    Examples
    --------
    >>> read_number_reference(b"-1.5e3"), read_number_reference(b"1,5")
    (-1500.0, None)
    """
    return float(field) if NUMBER.fullmatch(field) else None


def strip_field(field: bytes) -> bytes:
    """Return a CSV field without the spaces and quotes about it."""
    field = field.strip(b" ")
    if len(field) >= 2 and field.startswith(b'"') and field.endswith(b'"'):
        field = field[1:-1].strip(b" ")
    return field


def find_ends_reference(data: Any, delimiter: int, ends: Any) -> tuple[int, int, int]:
    """Do what `parse.find_ends` does."""
    found = np.flatnonzero((data == delimiter) | (data == 10))
    ends[: len(found)] = found
    return len(found), int(np.count_nonzero(data == 10)), int(np.count_nonzero(data == ord('"')))


def split_fields(line: bytes, delimiter: bytes) -> tuple[list[int], list[bytes], bool]:
    """Cut a line (without its end) into fields; return where they begin, the fields, and whether quotes pair."""
    starts: list[int] = []
    fields: list[bytes] = []
    at = 0
    while True:
        quoted = _FIELD.match(line, at)
        if quoted is None and line[at : at + 1] == b'"':
            return [*starts, at], fields, False
        tail = quoted.end() if quoted else at
        end = line.find(delimiter, tail)
        end = len(line) if end < 0 else end
        starts.append(at)
        fields.append(line[at:end])
        if line.count(b'"', tail, end) % 2:
            return starts, fields, False
        if end == len(line):
            return starts, fields, True
        at = end + 1


def csv_rows_reference(
    data: Any, delimiter: int, slots: Any, values: Any, missing: Any, strange: Any
) -> tuple[int, int, int, int]:
    """Do what `parse.csv_rows_quoted` does, and on text without quotes `parse.csv_rows`."""
    row, place = 0, 0
    for line in data.tobytes().split(b"\n")[:-1]:
        body = line.removesuffix(b"\r")
        if not body:
            place += len(line) + 1
            continue
        starts, fields, paired = split_fields(body, bytes([delimiter]))
        for column, at in enumerate(starts):
            if not paired and column == len(starts) - 1:
                return BAD_QUOTE, row, column, place + at
            if (column == len(starts) - 1) != (column == len(slots) - 1):
                return BAD_WIDTH, row, column, place
            slot = slots[column]
            if slot < 0:
                continue
            field = strip_field(fields[column])
            value = read_number_reference(field)
            values[slot, row] = math.nan if value is None else value
            if value is None:
                missing[slot, row] = 1
                if not MISSING.fullmatch(field):
                    if len(strange) == 0:
                        return BAD_VALUE, row, column, place + at
                    strange[slot] = 1
        row += 1
        place += len(line) + 1
    return OK, row, 0, place


def libsvm_rows_reference(data: Any, labels: Any, indptr: Any, indices: Any, values: Any) -> tuple[int, int, int, int]:
    """Do what `parse.libsvm_rows` does."""
    row, entry, place = 0, 0, 0
    indptr[0] = 0
    for line in data.tobytes().split(b"\n")[:-1]:
        tokens = [(place + m.start(), m[0]) for m in re.finditer(rb"[^ \t\r]+", line.split(b"#")[0])]
        place += len(line) + 1
        if not tokens:
            continue
        label = read_number_reference(tokens[0][1])
        if label is None:
            return BAD_LABEL, row, entry, tokens[0][0]
        labels[row] = label
        bound = 0
        for at, token in tokens[1:]:
            if token.startswith(b"qid:"):
                continue
            index, colon, text = token.partition(b":")
            value = read_number_reference(text)
            if not colon or not re.fullmatch(rb"[0-9]+", index):
                return BAD_TOKEN, row, entry, at
            if int(index) > 2**63 - 1 or len(index) > 19:
                return BAD_INDEX, row, entry, at
            if int(index) < bound:
                return BAD_ORDER, row, entry, at
            if value is None:
                return BAD_TOKEN, row, entry, at
            indices[entry], values[entry] = int(index), value
            bound = int(index) + 1
            entry += 1
        row += 1
        indptr[row] = entry
    return OK, row, entry, place
