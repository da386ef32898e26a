"""The server's binary formats, written here value by value, come back as Arrow."""

from __future__ import annotations

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.blocks.postgres import wire

CODES = {">f4": "f", ">f8": "d", ">i4": "i", ">i8": "q"}
ELEMENTS = [np.dtype(code) for code in CODES]


def sent(values, element, first=1):
    """One array as array_send writes it."""
    code = ">" + CODES[element.str]
    if not values:
        return struct.pack(">iiI", 0, 0, 700)
    head = struct.pack(">iiIii", 1, 0, 700, len(values), first)
    return head + b"".join(struct.pack(">i", element.itemsize) + struct.pack(code, value) for value in values)


def sent_together(rows, element):
    """Rows as array_send writes an array of two dimensions."""
    code = ">" + CODES[element.str]
    head = struct.pack(">iiIiiii", 2, 0, 700, len(rows), 1, len(rows[0]), 1)
    return head + b"".join(struct.pack(">i", element.itemsize) + struct.pack(code, v) for row in rows for v in row)


def lengths(rows):
    return b"".join(struct.pack(">i", len(row)) for row in rows)


def same(found, rows):
    """Compare floats bit by bit, so that NaN equals NaN."""
    flat = np.array([value for row in rows for value in row], np.float32)
    assert found.values.to_numpy().tobytes() == flat.tobytes()
    assert len(found) == len(rows)


@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_arrays_of_equal_length(rows):
    element = np.dtype(">f4")
    same(wire.decode_matrix(sent_together(rows, element), len(rows), 3, element=element), rows)
    same(wire.decode_arrays(b"".join(sent(row, element) for row in rows), len(rows), 3, element=element), rows)


@pytest.mark.parametrize("element", ELEMENTS)
def test_elements_of_every_kind_become_float32(element):
    rows = [[1, 2], [-3, 4]]
    for found in (
        wire.decode_matrix(sent_together(rows, element), 2, 2, element=element),
        wire.decode_arrays(b"".join(sent(row, element) for row in rows), 2, 2, element=element),
    ):
        assert found.type == pa.list_(pa.float32(), 2)
        assert found.to_pylist() == rows


@pytest.mark.parametrize("element", ELEMENTS)
@given(data=st.data())
def test_lists_of_any_length(element, data):
    value = st.floats(width=32, allow_nan=False) if element.kind == "f" else st.integers(-(2**31), 2**31 - 1)
    rows = data.draw(st.lists(st.lists(value, max_size=4), max_size=6))
    stream = b"".join(sent(row, element) for row in rows)
    found = wire.decode_lists(stream, lengths(rows), len(rows), element=element)
    assert found.to_pylist() == rows
    assert found.type == pa.list_(
        pa.float32() if element.kind == "f" else pa.from_numpy_dtype(element.newbyteorder("="))
    )


def test_arrays_may_count_from_any_number():
    element = np.dtype(">f4")
    found = wire.decode_arrays(
        sent([1.0, 2.0], element, first=0) + sent([3.0, 4.0], element, first=7), 2, 2, element=element
    )
    assert found.to_pylist() == [[1.0, 2.0], [3.0, 4.0]]


def test_numbers_side_by_side():
    types = [np.dtype(t) for t in (">f4", ">f8", ">i2", ">i4", ">i8", "?")]
    row = struct.pack(">fdhiq?", 1.5, -2.25, 3, -4, 5, True)
    found = wire.decode_numbers(row * 2, 2, types)
    assert [column.to_pylist() for column in found] == [[1.5] * 2, [-2.25] * 2, [3] * 2, [-4] * 2, [5] * 2, [True] * 2]
    assert [str(column.type) for column in found] == ["float", "double", "int16", "int32", "int64", "bool"]


def test_intervals_keep_months_and_days_apart():
    rows = [(1_500_000, 2, -3), (-7, 0, 14)]
    data, kind = b"".join(struct.pack(">qii", *row) for row in rows), pa.month_day_nano_interval()
    found = wire.decode_nullable(data, bytes([0, 1]), 2, [wire.SENT_INTERVAL], [kind], nullable=[True])
    assert found[0].to_pylist() == [(-3, 2, 1_500_000_000), None]
    with pytest.raises(wire.WireError, match="292 years") as caught:
        wire.decode_numbers(data + struct.pack(">qii", 2**63 - 1, 0, 0), 3, [wire.SENT_INTERVAL], [kind])
    assert caught.value.row == 2


def test_vectors_and_packed_rows():
    rows = [[1.0, math.nan, 3.0], [4.0, 5.0, math.inf]]
    same(wire.decode_vectors(b"".join(struct.pack(">hh3f", 3, 0, *row) for row in rows), 2, 3), rows)
    data = b"".join(struct.pack("<3f", *row) for row in rows)
    found = wire.decode_packed(data, 2, 3)
    same(found, rows)
    assert found.values.buffers()[1].address == np.frombuffer(data, np.uint8).ctypes.data, "packed rows are not copied"


def test_text_and_bytes():
    words = ["", "a", "Zürich", "\N{SNOWMAN}", ""]
    coded = [word.encode() for word in words]
    assert wire.decode_texts(b"".join(coded), lengths(coded), 5).to_pylist() == words
    assert wire.decode_blobs(b"".join(coded), lengths(coded), 5).to_pylist() == coded
    with pytest.raises(wire.WireError, match="UTF-8"):
        wire.decode_texts(b"\xff\xfe", lengths([b"\xff\xfe"]), 1)


def test_no_rows():
    element = np.dtype(">f4")
    empty = [
        *wire.decode_numbers(None, 0, [element]),
        wire.decode_matrix(None, 0, 3, element=element),
        wire.decode_arrays(None, 0, 3, element=element),
        wire.decode_lists(None, None, 0, element=element),
        wire.decode_vectors(None, 0, 3),
        wire.decode_packed(None, 0, 3),
        wire.decode_texts(None, None, 0),
        wire.decode_blobs(None, None, 0),
    ]
    assert [len(array) for array in empty] == [0] * len(empty)


def test_a_value_that_a_float32_cannot_hold_is_told_with_its_row():
    element = np.dtype(">f8")
    rows = [[1.0, 2.0], [math.inf, 3.0], [1e300, 4.0]]
    for read in (
        lambda: wire.decode_matrix(sent_together(rows, element), 3, 2, element=element),
        lambda: wire.decode_arrays(b"".join(sent(row, element) for row in rows), 3, 2, element=element),
        lambda: wire.decode_lists(b"".join(sent(row, element) for row in rows), lengths(rows), 3, element=element),
    ):
        with pytest.raises(wire.WireError, match=r"1e\+300 is beyond") as caught:
            read()
        assert caught.value.row == 2
    tiny = wire.decode_matrix(sent_together([[1e-300, math.nan]], element), 1, 2, element=element)
    assert tiny.values.to_pylist()[0] == 0.0


def test_rows_that_are_not_as_the_others_are_noticed():
    element = np.dtype(">f4")
    null = struct.pack(">iiIii", 1, 1, 700, 2, 1) + struct.pack(">i", -1) + struct.pack(">if", 4, 1.0)
    deep = struct.pack(">iiIiiii", 2, 0, 700, 2, 1, 1, 1) + struct.pack(">ifif", 4, 1.0, 4, 2.0)
    good = sent([1.0, 2.0], element)
    for bad in (null, deep, sent([1.0], element), sent([], element), sent([1.0, 2.0, 3.0], element), b""):
        with pytest.raises(wire.WireError):
            wire.decode_arrays(good + bad, 2, 2, element=element)
    for bad in (null, deep, b""):
        with pytest.raises(wire.WireError):
            wire.decode_lists(good + bad, lengths([[1, 2], [3, 4]]), 2, element=element)
    # Two faults that make up for one another in bytes: the head tells.
    swapped = sent([1.0], element) + sent([1.0, 2.0, 3.0], element)
    with pytest.raises(wire.WireError, match="not of 2 values") as caught:
        wire.decode_arrays(swapped, 2, 2, element=element)
    assert caught.value.row == 0
    with pytest.raises(wire.WireError):
        wire.decode_matrix(sent_together([[1.0, 2.0]], element), 2, 1, element=element)
    with pytest.raises(wire.WireError):
        wire.decode_vectors(struct.pack(">hhfhhfff", 1, 0, 1.0, 3, 0, 1.0, 2.0, 3.0), 2, 2)
    with pytest.raises(wire.WireError, match="8 bytes came where 12"):
        wire.decode_numbers(b"12345678", 3, [element])
    with pytest.raises(wire.WireError):
        wire.decode_texts(b"abc", lengths([b"ab"]), 1)
