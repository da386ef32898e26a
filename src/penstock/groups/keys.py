"""Group keys: the values of the grouping columns as a tuple, as text such as ``FR/ios``, and as a number.

Text is unambiguous: ``/`` and ``%`` within a value are escaped as in addresses, and a null, which is a group of its own,
is ``%null``. Whole floats read as whole numbers, since text files know no other numbers. NaN is one key, and so are 0.0
and -0.0; a moment in a time zone is the moment in UTC. Lists, structs and raw bytes are refused.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.columns.base import without_dictionary
from penstock.errors import ColumnError, DataError, UsageError

Key = tuple[Any, ...]
"""The values of the grouping columns; None for a null."""
NULL = "%null"
_ESCAPES = {ord("%"): "%25", ord("/"): "%2F", **{code: f"%{code:02X}" for code in [*range(32), 127]}}
_NAN = math.nan
_WHOLE = 2**53


def key_type(kind: pa.DataType, *, column: str, place: str = "the data") -> pa.DataType:
    """Return the type in which a column's values are kept as keys, or refuse the column.

    Examples
    --------
    >>> key_type(pa.dictionary(pa.int32(), pa.large_string()), column="country")
    DataType(string)
    """
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_date(kind):
        return pa.date32()
    if types.is_float16(kind):
        return pa.float32()
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if any(is_kind(kind) for is_kind in plain):
        return kind
    raise ColumnError(
        f"{place}: column {column!r} is {kind}, which cannot name groups; group by text, numbers, booleans, dates or times"
    )


def coded(
    columns: Sequence[pa.Array | pa.ChunkedArray], kinds: Sequence[pa.DataType], *, rows: int = 0
) -> tuple[NDArray[np.int64], list[Key]]:
    """Return the different keys of some rows, by first occurrence, and for each row which of them it has.

    Without columns all rows, whose number is then to be told, have the empty key.

    Examples
    --------
    >>> codes, keys = coded([pa.array(["FR", "DE", "FR"]), pa.array([1, None, 1])], [pa.string(), pa.int64()])
    >>> codes.tolist(), keys
    ([0, 1, 0], [('FR', 1), ('DE', None)])
    """
    codes = np.zeros(len(columns[0]) if columns else rows, np.int64)
    keys: list[Key] = [()]
    for column, kind in zip(columns, kinds, strict=True):
        found, values = _encoded(_as_kind(column, kind))
        if len(keys) > 1:  # pairs of what was found so far and the new value, numbered by first occurrence again
            found, pairs = _encoded(pa.array(codes * len(values) + found))
            keys = [(*keys[pair // len(values)], values[pair % len(values)]) for pair in pairs]
        else:
            keys = [(*key, value) for key in keys for value in values]
        codes = found
    return codes, keys


class Numbering:
    """Numbers for keys, by first occurrence.

    Examples
    --------
    >>> numbering = Numbering()
    >>> numbering.number([("FR",), (None,), ("FR",)]).tolist(), numbering.keys
    ([0, 1, 0], [('FR',), (None,)])
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._numbers: dict[Key, int] = {}
        self.number(keys)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def keys(self) -> list[Key]:
        """The keys in the order of their numbers."""
        return list(self._numbers)

    def number(self, keys: Iterable[Key]) -> NDArray[np.int64]:
        """Return each key's number; one not met before gets the next."""
        numbers = self._numbers
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def to_text(key: Key) -> str:
    """Return a key as text.

    Examples
    --------
    >>> to_text(("FR", "i/os", None, 3.0, True))
    'FR/i%2Fos/%null/3/true'
    """
    return "/".join(map(_value_text, key))


def from_text(text: str, kinds: Sequence[pa.DataType]) -> Key:
    """Return the key that `to_text` wrote as this text.

    Examples
    --------
    >>> from_text("FR/%null/2024-02-29", [pa.string(), pa.int64(), pa.date32()])
    ('FR', None, datetime.date(2024, 2, 29))
    """
    parts = text.split("/")
    if len(parts) != len(kinds):
        raise UsageError(
            f"the group {text!r} has {len(parts)} values where there are {len(kinds)} grouping columns; write them with"
            " '/' between, and a '/' within a value as %2F"
        )
    key = []
    for part, kind in zip(parts, kinds):
        try:
            key.append(None if part == NULL else _parser(kind)(unquote(part)))
        except (ValueError, ArithmeticError) as error:
            raise UsageError(f"the group {text!r} has {part!r} where a value of type {kind} is wanted") from error
    return tuple(key)


def to_columns(keys: Sequence[Key], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return keys as a column for each of their values."""
    return [pa.array([key[place] for key in keys], kind) for place, kind in enumerate(kinds)]


def from_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """Return the keys that `to_columns` made columns of."""
    return list(zip(*(map(_canonical, column.to_pylist()) for column in columns), strict=True))


def _as_kind(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = without_dictionary(array)
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"a group's key cannot be kept as {kind} ({error}); round the column to microseconds, or group by another"
        ) from error


def _encoded(array: pa.Array) -> tuple[NDArray[np.int64], list[Any]]:
    """Return values by first occurrence, a null among them, and each row's place there."""
    found = array.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), [_canonical(value) for value in found.dictionary.to_pylist()]


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return _NAN if value != value else value + 0.0  # a NaN equals only the very same one; -0.0 becomes 0.0
    return value


def _value_text(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _WHOLE else repr(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value).translate(_ESCAPES)


def _parser(kind: pa.DataType) -> Callable[[str], Any]:
    types = pa.types
    if types.is_boolean(kind):
        return _boolean
    if types.is_integer(kind):
        return int
    if types.is_floating(kind):
        return lambda text: _canonical(float(text))
    if types.is_decimal(kind):
        return Decimal
    if types.is_date(kind):
        return datetime.date.fromisoformat
    if types.is_timestamp(kind):
        return datetime.datetime.fromisoformat
    return datetime.time.fromisoformat if types.is_time(kind) else str


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"
