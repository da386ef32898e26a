"""What becomes of every type of column, and back again."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.fields import Field, Fields
from penstock.errors import ColumnError, DataError
from penstock.records import Ragged

ROWS = 9


def nested(kind: pa.DataType, *shape: int) -> pa.Array:
    """Return rows of fixed-size lists of lists, counted through."""
    values = pa.array(np.arange(ROWS * int(np.prod(shape)))).cast(kind)
    for size in shape[::-1]:
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


FIXED = {
    "int8": (pa.array(np.arange(ROWS, dtype=np.int8)), np.int8, ()),
    "uint64": (pa.array(np.arange(ROWS, dtype=np.uint64)), np.uint64, ()),
    "float16": (pa.array(np.arange(ROWS, dtype=np.float16)), np.float16, ()),
    "double": (pa.array(np.arange(ROWS, dtype=np.float64)), np.float64, ()),
    "bool": (pa.array([i % 3 == 0 for i in range(ROWS)]), np.bool_, ()),
    "timestamp": (pa.array(np.arange(ROWS).astype("M8[us]")), "M8[us]", ()),
    "duration": (pa.array(np.arange(ROWS).astype("m8[ms]")), "m8[ms]", ()),
    "list": (nested(pa.float32(), 3), np.float32, (3,)),
    "lists of lists": (nested(pa.int16(), 2, 3), np.int16, (2, 3)),
    "list of flags": (
        pa.FixedSizeListArray.from_arrays(pa.array([i % 3 == 0 for i in range(2 * ROWS)]), 2),
        np.bool_,
        (2,),
    ),
    "bytes": (pa.array([bytes([i] * 4) for i in range(ROWS)], pa.binary(4)), np.uint8, (4,)),
    "list of bytes": (
        pa.FixedSizeListArray.from_arrays(pa.array([bytes([i] * 3) for i in range(2 * ROWS)], pa.binary(3)), 2),
        np.uint8,
        (2, 3),
    ),
    "tensor": (
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (2, 2)), nested(pa.float32(), 4)),
        np.float32,
        (2, 2),
    ),
}
RAGGED = {
    "list": (pa.array([[i] * (i % 3) for i in range(ROWS)], pa.list_(pa.int32())), "list", np.int32),
    "large list": (pa.array([[0.5] * (i % 4) for i in range(ROWS)], pa.large_list(pa.float32())), "list", np.float32),
    "text": (pa.array(["", "ä", "bc"] * 3), "text", np.uint8),
    "large text": (pa.array(["", "ä", "bc"] * 3, pa.large_string()), "text", np.uint8),
    "bytes": (pa.array([b"", b"\xff", b"bc"] * 3), "bytes", np.uint8),
    "large bytes": (pa.array([b"", b"\xff", b"bc"] * 3, pa.large_binary()), "bytes", np.uint8),
    "dictionary": (pa.array(["", "ä", "bc"] * 3).dictionary_encode(), "text", np.uint8),
}
OBJECTS = {
    "struct": pa.array([{"a": i} for i in range(ROWS)]),
    "map": pa.array([[("k", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    "list of lists": pa.array([[[i], []] for i in range(ROWS)]),
    "list of texts": pa.array([["a"] * (i % 3) for i in range(ROWS)]),
    "list of flags": pa.array([[True] * (i % 3) for i in range(ROWS)]),
    "date": pa.array([datetime.date(2020, 1, 1 + i) for i in range(ROWS)]),
    "decimal": pa.array([i * 100 for i in range(ROWS)]).cast(pa.decimal128(25, 2)),
}


def decode(array: pa.Array):
    field = Field.of(pa.field("c", array.type))
    return field, field.decode(array, place="a.arrow", first_row=0)


def back(array: pa.Array, *, numbered: bool = False) -> pa.RecordBatch:
    """Decode a column and write it again."""
    batch = pa.record_batch({"c": array})
    fields = Fields.of(batch.schema, numbered=numbered)
    return fields.to_arrow(fields.decode(batch, first_row=50))


def parts_of(array: pa.Array):
    """Return an array, and parts of it that begin elsewhere or are empty."""
    return [array, array.slice(2, 5), array.slice(len(array)), array.slice(0, 0)]


@pytest.mark.parametrize("name", FIXED)
def test_rows_of_fixed_width_become_arrays_of_the_stored_type(name):
    array, dtype, shape = FIXED[name]
    whole = np.array(
        array.to_pylist() if not isinstance(array, pa.ExtensionArray) else array.to_numpy_ndarray().tolist()
    )
    for part, expected in zip(parts_of(array), (whole, whole[2:7], whole[:0], whole[:0]), strict=True):
        field, found = decode(part)
        assert (field.kind, field.dtype, field.shape) == ("fixed", np.dtype(dtype), shape)
        assert found.shape == (len(part), *shape)
        assert found.dtype == np.dtype(dtype)
        if "bytes" in name:
            rows = [b"".join(row) if isinstance(row, list) else row for row in part.to_pylist()]
            assert found.tobytes() == b"".join(rows)
        else:
            assert np.array_equal(found, expected.reshape(found.shape).astype(dtype))
        written = back(part)
        storage = part.storage if isinstance(part, pa.ExtensionArray) else part
        assert written.column(0).type == storage.type
        assert written.column(0).to_pylist() == storage.to_pylist()
    assert field.row_bytes == found.dtype.itemsize * int(np.prod(shape))
    assert field.packed == (np.dtype(dtype) != np.bool_)


@pytest.mark.parametrize("name", RAGGED)
def test_rows_of_unequal_length_become_ragged(name):
    array, kind, dtype = RAGGED[name]
    for part in parts_of(array):
        field, found = decode(part)
        assert isinstance(found, Ragged)
        assert (field.kind, found.kind, found.values.dtype) == (kind, kind, np.dtype(dtype))
        assert [row.tolist() if kind == "list" else row for row in found] == part.to_pylist()
        written = back(part).column(0)
        assert written.to_pylist() == part.to_pylist()
        assert written.type == (part.type.value_type if name == "dictionary" else part.type)
    assert not Fields.of(pa.schema([("c", array.type)])).fixed


@pytest.mark.parametrize("name", OBJECTS)
def test_everything_else_becomes_objects(name):
    for part in parts_of(OBJECTS[name]):
        field, found = decode(part)
        assert (field.kind, found.dtype) == ("object", np.dtype(object))
        assert found.tolist() == part.to_pylist()
        assert back(part).column(0).equals(part)


def test_strings_of_a_view_and_extension_types_are_objects():
    field, found = decode(pa.array(["a", "bcd" * 9], pa.string_view()))
    assert field.kind == "object"
    assert found.tolist() == ["a", "bcd" * 9]
    array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16)))
    field, found = decode(array)
    assert field.kind == "object"
    assert found.tolist() == [b"x" * 16]


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (pa.array([1, 2, None, 4]), "is null in row 12"),
        (pa.array(["a", None]), "is null in row 11"),
        (pa.array([[1], None], pa.list_(pa.int32())), "is null in row 11"),
        (pa.array([[1], [2, None]], pa.list_(pa.int32())), "holds a null"),
        (pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2)), "is null in row 11"),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), "is null in row 11"),
        (pa.array(["a", None]).dictionary_encode(), "is null in row 11"),
        (pa.array([{"a": 1}, None]), "is null in row 11"),
    ],
)
def test_nulls_are_refused_by_column_and_row(array, named):
    fields = Fields.of(pa.schema([("c", array.type)]), place="a.arrow")
    with pytest.raises(DataError, match=f"a.arrow: .*'c' {named}|a.arrow: .* column 'c' {named}"):
        fields.decode(pa.record_batch({"c": array}), first_row=10)


def test_a_null_elsewhere_does_no_harm():
    array = pa.array([[1], [None], [3, 4]], pa.list_(pa.int32()))
    fields = Fields.of(pa.schema([("c", array.type)]))
    found = fields.decode(pa.record_batch({"c": array.slice(2)}))
    assert found.columns["c"][0].tolist() == [3, 4]


def test_columns_are_chosen_by_name_and_in_that_order():
    schema = pa.schema({"a": pa.int64(), "b": pa.list_(pa.float32(), 2), "c": pa.string()})
    fields = Fields.of(schema, ["b", "a"], place="a.arrow", numbered=True)
    assert fields.columns == ["b", "a"]
    assert (fields.fixed, fields.packed, fields.row_bytes) == (True, True, 8 + 8 + 8)
    batch = pa.record_batch({"a": [1, 2], "b": pa.array([[1, 2], [3, 4]], schema.field("b").type), "c": ["x", "y"]})
    found = fields.decode(batch, first_row=7)
    assert list(found.columns) == ["b", "a"]
    assert found.rows.tolist() == [7, 8]
    empty = fields.empty(3)
    assert (len(empty), empty.rows.shape, empty.columns["b"].shape) == (3, (3,), (3, 2))
    assert not Fields.of(schema).fixed
    assert not Fields.of(schema).packed


def test_numbers_go_with_the_rows_into_a_copy_and_come_back():
    batch = pa.record_batch({"a": [1, 2, 3], "t": ["x", "", "yz"]})
    fields = Fields.of(batch.schema, numbered=True)
    rows = fields.decode(batch, first_row=100).take(np.array([2, 0]))
    again = fields.of_copy()
    copied = again.decode(fields.to_arrow(rows), first_row=0)
    assert copied.rows.tolist() == [102, 100]
    assert copied.columns["a"].tolist() == [3, 1]
    assert list(copied.columns["t"]) == ["yz", "x"]
    assert again.columns == ["a", "t", "__row__"]
    assert Fields.of(batch.schema).of_copy().columns == ["a", "t"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [(["nope"], "nope.*x"), (["x", "x"], "names 'x' twice"), ([], "names no column; .* has: x, y")],
)
def test_columns_that_cannot_be_chosen_are_told(columns, message):
    with pytest.raises(ColumnError, match=message):
        Fields.of(pa.schema({"x": pa.int64(), "y": pa.int64()}), columns, place="a.arrow")
