"""What every kind of feature column offers, and the helpers that the kinds share.

A kind is one file with a frozen dataclass that satisfies `FeatureColumn`, and a line in `penstock.columns.kinds`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.errors import ColumnError, FeatureError
from penstock.messages import Text, TextPart

log = logging.getLogger("penstock")
NULL_VALUES = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A")
"""Texts that stand for a missing value in a column that otherwise holds numbers or dates, or where no others are named."""


_MANY_ROWS = 10
"""Rows from which on values that are new in most of them are warned of by a prediction."""


class UnseenValues:
    """Counts rows with values that training did not see, by column; blocks may be encoded by several threads.

    Attributes
    ----------
    levels : dict of int
        Rows with a level of a category that has no feature of its own.
    rare : set of str
        The categories among them of which training saw levels that were too rare for a feature.
    missing : dict of int
        Rows in which a column is missing that no feature tells of.
    features : dict of int
        Rows with values for features of a sparse column that the model does not have.

    Examples
    --------
    >>> unseen = UnseenValues()
    >>> unseen.count_levels("city", 3, rare=False)
    >>> unseen.count_missing("age", 1)
    >>> print(*unseen.lines(), sep=chr(10))
    3 rows have levels of 'city' that training did not see
    1 row has no 'age'; no feature of the model tells of that
    """

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        self.rare: set[str] = set()
        self.missing: dict[str, int] = {}
        self.features: dict[str, int] = {}
        self._lock = threading.Lock()

    def count_levels(self, column: str, rows: int, *, rare: bool) -> None:
        """Take in rows with other levels of a category."""
        with self._lock:
            self.levels[column] = self.levels.get(column, 0) + rows
            self.rare |= {column} if rare else set()

    def count_missing(self, column: str, rows: int) -> None:
        """Take in rows in which a column is missing."""
        if not rows:
            return
        with self._lock:
            self.missing[column] = self.missing.get(column, 0) + rows

    def count_features(self, column: str, rows: int) -> None:
        """Take in rows with values for features that the model does not have."""
        with self._lock:
            self.features[column] = self.features.get(column, 0) + rows

    def clear(self) -> None:
        """Forget what was counted, as of rows that were read to learn of their size."""
        with self._lock:
            self.levels, self.rare, self.missing, self.features = {}, set(), {}, {}

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts as plain JSON."""
        counts = {"levels": self.levels, "missing": self.missing, "features": self.features}
        return {name: dict(sorted(each.items())) for name, each in counts.items() if each or name != "features"}

    def warn(self, place: object) -> None:
        """Log a warning for each column, with what messages call the rows."""
        for line in self.lines():
            log.warning("%s: %s", place, line)

    def warn_of_most(self, place: object, rows: int) -> None:
        """Log a warning for each column that training did not see so in over half of many rows: they may be written otherwise.

        A few rows, such as those that a service predicts one by one, tell nothing of that.
        """
        for line in self.lines(above=rows / 2) if rows >= _MANY_ROWS else ():
            log.warning("%s (%s rows): %s", place, f"{rows:,}", line)

    def lines(self, *, above: float = 0) -> list[str]:
        """Return a sentence for each column with more such rows than ``above``."""
        found = []
        for column, rows in sorted((column, rows) for column, rows in self.levels.items() if rows > above):
            seldom = ", or saw seldom" if column in self.rare else ""
            found.append(f"{_count_of(rows)} levels of {column!r} that training did not see{seldom}")
        for column, rows in sorted((column, rows) for column, rows in self.missing.items() if rows > above):
            found.append(f"{_count_of(rows)} no {column!r}; no feature of the model tells of that")
        for column, rows in sorted((column, rows) for column, rows in self.features.items() if rows > above):
            found.append(
                f"{_count_of(rows)} features in {column!r} that the model does not have; they count for nothing"
            )
        return found


def _count_of(rows: int) -> str:
    return f"{rows:,} row{' has' if rows == 1 else 's have'}"


@dataclass(frozen=True, slots=True)
class Place:
    """What messages call the data, and the number of the first row; ``unseen`` counts values that training did not see."""

    name: str = "the data"
    first_row: int = 0
    unseen: UnseenValues | None = None


class FeatureColumn(Protocol):
    """One stored column, or the two of a pair, and how it becomes features.

    Dense kinds write their features as columns (`write`); sparse ones give CSR rows (`sparse_rows`). A kind that is always dense
    or always sparse raises in the other method.
    """

    kind: ClassVar[str]
    """The name in saved models and in messages."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns; a member of a struct is ``struct.member``."""
        ...

    @property
    def width(self) -> int | None:
        """The number of features; None for sparse lists whose width is not known yet."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What the features are called; empty where they are too many to be named."""
        ...

    def feature_name(self, place: int) -> str:
        """Return what one feature is called, also where they are too many to be named."""
        ...

    @property
    def sparse(self) -> bool:
        """Whether only the features that are not 0 are stored."""
        ...

    @property
    def flags(self) -> NDArray[np.bool_]:
        """Which features are 0 or 1 and keep that size when features are scaled; empty where none are."""
        ...

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        """Write the features of some rows: feature ``i`` of row ``r`` to ``into[i, r]``."""
        ...

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        """Return the features of some rows as CSR; ``wide`` indices have 64 bits, and are refused beyond a known width."""
        ...

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        """Raise where a column of other data cannot be encoded as the one that was learnt from."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what a table of the columns shows beside name and kind: levels, missing, and the like."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a column cannot be a feature, and what to do; whether it could be one if it were hashed."""

    reason: str
    fixes: tuple[TextPart, ...]
    can_hash: bool = False

    @property
    def text(self) -> Text:
        """All of it in one sentence."""
        return FeatureError(self.reason, fixes=self.fixes).text


NO_FLAGS = np.empty(0, np.bool_)


def flags_of(ranges: Sequence[tuple[int, int]], width: int) -> NDArray[np.bool_]:
    """Return which of some features are 0 or 1, given where such features begin and end; empty where none are.

    Examples
    --------
    >>> flags_of([(1, 3)], 4).tolist()
    [False, True, True, False]
    """
    if not ranges:
        return NO_FLAGS
    flags = np.zeros(width, np.bool_)
    for start, stop in ranges:
        flags[start:stop] = True
    return flags


def flag_ranges_of(parts: Sequence[FeatureColumn]) -> tuple[tuple[int, int], ...]:
    """Return where the features of columns side by side that are 0 or 1 begin and end."""
    ranges, at = [], 0
    for part in parts:
        if len(part.flags):
            edges = np.flatnonzero(np.diff(np.pad(part.flags.astype(np.int8), 1)))
            ranges += [(at + start, at + stop) for start, stop in edges.reshape(-1, 2).tolist()]
        at += part.width or 0
    return tuple(ranges)


def as_ranges(pairs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return pairs of numbers, as JSON has them, as tuples."""
    return tuple((int(start), int(stop)) for start, stop in pairs)


def saved(part: FeatureColumn, **more: Any) -> dict[str, Any]:
    """Return the JSON that all kinds share, with what one kind adds; facts that are off are left out."""
    shared = {
        "columns": list(part.columns),
        "kind": part.kind,
        "width": part.width,
        "names": list(part.names),
        "hashed": None,
    }
    return shared | {
        name: value for name, value in more.items() if not (value is None or value is False or value == ())
    }


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column, or a member of a struct by its dotted name; a member of a missing struct is missing."""
    at = batch.schema.get_field_index(name)
    if at >= 0:
        return batch.column(at)
    root, _, rest = name.partition(".")
    array = batch.column(root)
    while rest:
        index = array.type.get_field_index(rest)
        step, rest = (rest, "") if index >= 0 else rest.split(".", 1)
        array = pc.struct_field(array, step)
    return array


def field_of(schema: pa.Schema, name: str) -> pa.Field | None:
    """Return the field of a column, or of a member of a struct by its dotted name; None where there is none."""
    if name in schema.names:
        return schema.field(name)
    root, _, rest = name.partition(".")
    if not rest or root not in schema.names:
        return None
    found = schema.field(root)
    while rest:
        if not pa.types.is_struct(found.type):
            return None
        index = found.type.get_field_index(rest)
        step, rest = (rest, "") if index >= 0 else (rest.split(".", 1) if "." in rest else (rest, ""))
        at = found.type.get_field_index(step)
        if at < 0:
            return None
        found = found.type.field(at)
    return pa.field(name, found.type, found.nullable)


def member_path(kind: pa.DataType, name: str) -> tuple[str, ...]:
    """Return the members that a dotted name leads through inside of a struct.

    Examples
    --------
    >>> inner = pa.struct([("a.b", pa.int8()), ("c", pa.struct([("d", pa.int8())]))])
    >>> member_path(inner, "a.b"), member_path(inner, "c.d")
    (('a.b',), ('c', 'd'))
    """
    found: list[str] = []
    while name:
        step, name = (name, "") if kind.get_field_index(name) >= 0 else (*name.split(".", 1), "")[:2]
        kind = kind.field(kind.get_field_index(step)).type
        found.append(step)
    return tuple(found)


def require_type(
    schema: pa.Schema, column: str, *, fits: Callable[[pa.DataType], bool], learnt: str, place: str
) -> pa.DataType:
    """Return the type of a column, or raise where it is not one that ``fits`` what was learnt from."""
    field = field_of(schema, column)
    found = None if field is None else field.type
    if found is None or not (fits(found) or pa.types.is_null(found)):  # all values are missing in a column of no type
        raise ColumnError(f"{place}: column {column!r} is {found}, where {learnt} were learnt from")
    return found


def stored_column(schema: pa.Schema, name: str) -> str:
    """Return the column to read for a name: itself, or the struct that it is a member of."""
    return name if name in schema.names or "." not in name else name.split(".", 1)[0]


def without_dictionary(array: Any) -> Any:
    """Return an array, or a chunked one, with its values themselves where it has their places in a dictionary.

    Examples
    --------
    >>> words = pa.array(["a", "b"]).cast(pa.string_view())
    >>> without_dictionary(pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), words)).to_pylist()
    ['b', None, 'a']
    """
    if not pa.types.is_dictionary(array.type):
        return array
    values = array.type.value_type
    if pa.types.is_string_view(values) or pa.types.is_binary_view(values):  # which Arrow does not take values from
        plain = pa.large_string() if pa.types.is_string_view(values) else pa.large_binary()
        if isinstance(array, pa.ChunkedArray):
            return pa.chunked_array([without_dictionary(chunk) for chunk in array.chunks], plain)
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array.cast(values)


def as_texts(array: pa.Array, null_values: Sequence[str] = ()) -> pa.Array:
    """Return a column as text; ``null_values`` become missing."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    array = without_dictionary(array)
    if not pa.types.is_large_string(array.type):
        array = array.cast(pa.large_string())
    if null_values:
        array = pc.if_else(pc.is_in(array, pa.array(null_values, pa.large_string())), None, array)
    return array


def null_mask(array: pa.Array) -> NDArray[np.bool_]:
    """Return which values are null."""
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def require_present(array: pa.Array, name: str, place: Place) -> None:
    """Raise `FeatureError` naming the first row that is null."""
    if array.null_count:
        row = place.first_row + int(np.argmax(null_mask(array)))
        raise FeatureError(
            f"{place.name}: column {name!r} is null in row {row}; fill or remove such rows, or exclude it"
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of text, or of a dictionary of it."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_date(kind: pa.DataType) -> bool:
    """Whether a type is one of dates, or of dates with times."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
