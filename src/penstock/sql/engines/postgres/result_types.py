"""The Arrow types of a result's columns, by the numbers that the server's own types have on every server.

A domain comes under the number of its base type. Types that an extension or a user made have no fixed number; their values are
text, as are those of JSON, UUIDs and network addresses.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_NUMERIC, _NUMERIC_ARRAY = 1700, 1231
_MOST_DIGITS = 76
_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    1186: pa.month_day_nano_interval(),
    1000: pa.list_(pa.bool_()),
    1005: pa.list_(pa.int16()),
    1007: pa.list_(pa.int32()),
    1016: pa.list_(pa.int64()),
    1021: pa.list_(pa.float32()),
    1022: pa.list_(pa.float64()),
    1009: pa.list_(pa.string()),
    1015: pa.list_(pa.string()),
    1115: pa.list_(pa.timestamp("us")),
    1182: pa.list_(pa.date32()),
}


def result_types(cursor: Any) -> tuple[pa.DataType, ...]:
    """Return the types of the columns of a cursor's result."""
    result = cursor.pgresult
    return tuple(
        _numeric(result.fmod(at), many=column.type_code == _NUMERIC_ARRAY)
        if column.type_code in (_NUMERIC, _NUMERIC_ARRAY)
        else _TYPES.get(column.type_code, pa.string())
        for at, column in enumerate(cursor.description)
    )


def _numeric(modifier: int, *, many: bool) -> pa.DataType:
    """Return a numeric's type: a decimal where its digits are declared; a double where they may be any."""
    digits, places = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    declared = modifier >= 4 and places <= digits <= _MOST_DIGITS
    kind = (
        pa.float64()
        if not declared
        else pa.decimal128(digits, places)
        if digits <= 38
        else pa.decimal256(digits, places)
    )
    return pa.list_(kind) if many else kind
