"""What PostgreSQL sends, as Arrow: the values of a block's rows, one after another in the server's binary formats.

The functions are pure. Each is told how many rows there must be and raises `WireError` where the bytes do not come to
that: a null leaves nothing behind, so a row that is not as the others shows in the length. Which row it was, the server
is asked afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import Int64s
from penstock.columns.number import INTERVAL

_MATRIX = struct.Struct(">iiIiiii")
"""The head of an array of two dimensions: their number, nulls or not, the element's type, then size and first index each."""


SENT_INTERVAL = np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
_DAYS_TO_2000, _MICROSECONDS_TO_2000 = 10_957, 946_684_800_000_000
"""From 1970, where Arrow counts from, to 2000, where the server does."""


class WireError(ValueError):
    """The bytes are not those of so many rows of this kind; ``row`` is the first that is not, where that shows."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def decode_numbers(
    data: bytes | None, rows: int, types: Sequence[np.dtype[Any]], kinds: Sequence[pa.DataType] = ()
) -> list[pa.Array]:
    """Return columns of numbers, dates and times that were sent row by row, side by side.

    ``kinds`` are their Arrow types, where some are dates or times, which the server counts from 2000.

    Examples
    --------
    >>> [column.to_pylist() for column in decode_numbers(bytes([0, 0, 0, 7, 1]), 1, [np.dtype(">i4"), np.dtype("?")])]
    [[7], [True]]
    """
    return decode_nullable(data, b"", rows, types, kinds, nullable=[False] * len(types))


def decode_nullable(
    data: bytes | None,
    flags: bytes | None,
    rows: int,
    types: Sequence[np.dtype[Any]],
    kinds: Sequence[pa.DataType] = (),
    *,
    nullable: Sequence[bool],
) -> list[pa.Array]:
    """Return columns as `decode_numbers` does, some of which are ``nullable``: of these ``flags`` has a byte a row, 1 for a null."""
    row = np.dtype([(f"f{number}", kind) for number, kind in enumerate(types)])
    table = np.frombuffer(_expect(data, rows * row.itemsize), row)
    marks = np.frombuffer(_expect(flags, rows * sum(nullable)), np.bool_).reshape(rows, sum(nullable))
    missing = iter(np.ascontiguousarray(marks.T))
    found = [_native(table[name]) for name in row.names or ()]
    kinds = kinds or [pa.from_numpy_dtype(values.dtype) for values in found]
    return [
        _moments(values, kind, next(missing) if may else None)
        for values, kind, may in zip(found, kinds, nullable, strict=True)
    ]


def _moments(values: NDArray[Any], kind: pa.DataType, missing: NDArray[np.bool_] | None) -> pa.Array:
    """Return numbers, or dates and times counted from 1970."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        ends = np.iinfo(values.dtype)
        _require_all((values != ends.min) & (values != ends.max), "infinity is no date")
        values = values + values.dtype.type(_DAYS_TO_2000 if pa.types.is_date(kind) else _MICROSECONDS_TO_2000)
    if kind == pa.month_day_nano_interval():
        return intervals(values, missing)
    array = pa.array(values, mask=missing)
    return array if array.type == kind else array.view(kind)


def intervals(values: NDArray[Any], missing: NDArray[np.bool_] | None) -> pa.Array:
    """Return intervals, which the server counts in microseconds, days and months.

    Examples
    --------
    >>> intervals(np.array([(1_500_000, 2, 3)], SENT_INTERVAL), None).to_pylist()
    [MonthDayNano(months=3, days=2, nanoseconds=1500000000)]
    """
    made = np.empty(len(values), INTERVAL)
    made["months"], made["days"] = values["months"], values["days"]
    made["nanoseconds"] = values["microseconds"].astype(np.int64) * 1000
    _require_all(made["nanoseconds"] // 1000 == values["microseconds"], "an interval is beyond 292 years, or infinite")
    valid = None if missing is None else pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(made), [valid, pa.py_buffer(made)])


def decode_matrix(data: bytes | None, rows: int, width: int, *, element: np.dtype[Any]) -> pa.Array:
    """Return rows of equal length that were sent as one array of two dimensions, as float32."""
    if not rows:
        return _fixed(np.empty(0, np.float32), width)
    item = np.dtype([("length", ">i4"), ("value", element)])
    found = _expect(data, _MATRIX.size + rows * width * item.itemsize)
    dimensions, _, _, first, _, second, _ = _MATRIX.unpack_from(found)
    if (dimensions, first, second) != (2, rows, width):
        raise WireError(f"an array of {first} × {second} in {dimensions} dimensions came for {rows} × {width}")
    return _fixed(_floats(np.frombuffer(found, item, offset=_MATRIX.size)["value"], width), width)


def decode_arrays(data: bytes | None, rows: int, width: int, *, element: np.dtype[Any]) -> pa.Array:
    """Return rows of equal length that were sent as an array each, as float32."""
    row = np.dtype(
        [
            ("dimensions", ">i4"),
            ("nulls", ">i4"),
            ("type", ">i4"),
            ("size", ">i4"),
            ("first", ">i4"),
            ("items", [("length", ">i4"), ("value", element)], (width,)),
        ]
    )
    table = np.frombuffer(_expect(data, rows * row.itemsize), row)
    _require_all((table["dimensions"] == 1) & (table["size"] == width), f"an array is not of {width} values")
    return _fixed(_floats(table["items"]["value"].reshape(-1), width), width)


def decode_vectors(data: bytes | None, rows: int, width: int) -> pa.Array:
    """Return pgvector's vectors, which were sent as their size and their values."""
    row = np.dtype([("size", ">i2"), ("unused", ">i2"), ("values", ">f4", (width,))])
    table = np.frombuffer(_expect(data, rows * row.itemsize), row)
    _require_all(table["size"] == width, f"a vector is not of {width} values")
    return _fixed(_floats(table["values"].reshape(-1), width), width)


def decode_packed(data: bytes | None, rows: int, width: int) -> pa.Array:
    """Return rows of little-endian float32 as they are, without a copy.

    Examples
    --------
    >>> decode_packed(np.array([1.5, 2.5], "<f4").tobytes(), 1, 2).to_pylist()
    [[1.5, 2.5]]
    """
    return _fixed(_native(np.frombuffer(_expect(data, rows * width * 4), "<f4")), width)


def decode_lists(data: bytes | None, lengths: bytes | None, rows: int, *, element: np.dtype[Any]) -> pa.Array:
    """Return rows of any length that were sent as an array each: lists of float32, or of integers as they are."""
    counts = _lengths(lengths, rows)
    words = np.frombuffer(data or b"", ">u4") if len(data or b"") % 4 == 0 else np.empty(0, ">u4")
    step = 1 + element.itemsize // 4  # each value stands behind its length
    sizes = np.where(counts == 0, 3, 5 + step * counts)
    ends = np.cumsum(sizes)
    if len(words) != (int(ends[-1]) if rows else 0):
        raise WireError(f"{len(data or b'')} bytes came for arrays of {int(counts.sum())} values in {rows} rows")
    starts = ends - sizes
    filled = np.flatnonzero(counts)
    fits = words[starts] == (counts > 0)
    fits[filled] &= words[starts[filled] + 3] == counts[filled]
    _require_all(fits, "an array is not a plain list")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    places = np.repeat(starts + 6 - step * offsets[:-1], counts)
    places += np.arange(0, step * len(places), step)
    halves = np.empty((len(places), element.itemsize // 4), words.dtype)
    for half in range(halves.shape[1]):
        halves[:, half] = words[places + half]
    values = halves.reshape(-1).view(element)
    inner = _floats(values, offsets) if element.kind == "f" else _native(values)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(inner))


def decode_texts(data: bytes | None, lengths: bytes | None, rows: int) -> pa.Array:
    """Return text; a length below 0 is that of a null.

    Examples
    --------
    >>> decode_texts("aé".encode(), bytes([0, 0, 0, 1, 0, 0, 0, 2]), 2).to_pylist()
    ['a', 'é']
    """
    missing = _lengths(lengths, rows) < 0
    valid = pa.array(~missing).buffers()[1] if missing.any() else None
    array = pa.StringArray.from_buffers(rows, *_strings(data, lengths, rows), valid)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise WireError(f"the text is not UTF-8 ({error})") from None
    return array


def decode_blobs(data: bytes | None, lengths: bytes | None, rows: int) -> pa.Array:
    """Return bytes of any length."""
    return pa.Array.from_buffers(pa.binary(), rows, [None, *_strings(data, lengths, rows)])


def _strings(data: bytes | None, lengths: bytes | None, rows: int) -> tuple[pa.Buffer, pa.Buffer]:
    counts = np.maximum(_lengths(lengths, rows), 0)
    _expect(data, int(counts.sum()))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    return pa.py_buffer(offsets), pa.py_buffer(data or b"")


def _lengths(data: bytes | None, rows: int) -> Int64s:
    return np.frombuffer(_expect(data, 4 * rows), ">i4").astype(np.int64)


def _expect(data: bytes | None, size: int) -> bytes:
    """Return the bytes, which must be so many; there are none where there are no rows."""
    found = data or b""
    if len(found) != size:
        raise WireError(f"{len(found)} bytes came where {size} should")
    return found


def _require_all(fits: NDArray[np.bool_], message: str) -> None:
    if not fits.all():
        raise WireError(message, int(np.argmin(fits)))


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in this machine's byte order, one beside the other; themselves where they are so already."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))


def _floats(values: NDArray[Any], rows: int | Int64s) -> NDArray[np.float32]:
    """Return values as float32; one that is finite and does not fit is refused with its row.

    ``rows`` is the width of each row, or where each begins.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found: NDArray[np.float32] = values.astype(np.float32)
        total = found.sum(dtype=np.float64)
    if values.dtype.itemsize > 4 and not np.isfinite(total):
        beyond = np.isinf(found) & np.isfinite(values)
        if beyond.any():
            entry = int(np.argmax(beyond))
            row = entry // rows if isinstance(rows, int) else int(np.searchsorted(rows, entry, side="right")) - 1
            raise WireError(f"{float(values[entry])!r} is beyond the range of a float32", row)
    return found


def _fixed(values: NDArray[np.float32], width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values), width)
