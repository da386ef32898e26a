"""Where single rows lie in Arrow files: every kind that has a layout, and those that have none and are still right."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks import row_layout
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import UNKNOWN
from penstock.blocks.write import BlockWriter
from penstock.columns.schema_notes import layout_of
from penstock.errors import DataError
from penstock.loader.decode_records import ArrowDecoder, LayoutDecoder, record_decoder
from penstock.records import Ragged

ROWS = 230


def fixed_list(values: np.ndarray, *sizes: int) -> pa.Array:
    array = pa.array(values)
    for size in sizes[::-1]:
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def table(rows: int = ROWS) -> pa.Table:
    """Return every plain type; each row holds its number in some way."""
    number = np.arange(rows)
    return pa.table(
        {
            "n": pa.array(number),
            "x": fixed_list(np.repeat(number, 5).astype(np.float32), 5),
            "grid": fixed_list(np.repeat(number, 6).astype(np.int16), 2, 3),
            "raw": pa.array([bytes([i % 256] * 3) for i in range(rows)], pa.binary(3)),
            "when": pa.array(number.astype("M8[s]")),
            "tokens": pa.array([[i] * (i % 4) for i in range(rows)], pa.list_(pa.int32())),
            "large": pa.array([[i / 2] * (i % 3) for i in range(rows)], pa.large_list(pa.float64())),
            "text": pa.array([str(i) * (i % 3) for i in range(rows)]),
            "long": pa.array([str(i) * (i % 2) for i in range(rows)], pa.large_string()),
            "bytes": pa.array([b"%d" % i * (i % 5) for i in range(rows)], pa.large_binary()),
        }
    )


FIXED = ("n", "x", "grid", "raw", "when")


def write(path, data: pa.Table, *, chunk: int | None = 32, options=None) -> str:
    with pa.ipc.new_file(path, data.schema, options=options) as writer:
        for batch in data.to_batches(max_chunksize=chunk):
            writer.write_batch(batch)
    return str(path)


def convert(path, data: pa.Table, *, block: int = 32) -> str:
    with BlockWriter(path, data.schema, rows_per_block=block) as writer:
        for batch in data.to_batches():
            writer.write(batch)
    return str(path)


def listed(column) -> list:
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in column]


def check(source: ArrowSource, data: pa.Table, columns=None, *, layout: bool = True) -> None:
    """Read rows singly, into slots and by block, and compare each with the table."""
    fields = Fields.of(source.schema, columns, place=source.name, numbered=True)
    decoder = record_decoder(source, fields)
    assert type(decoder) is (LayoutDecoder if layout else ArrowDecoder)
    rng = np.random.default_rng(0)
    ends = np.cumsum(source.block_rows)
    whole = Fields.of(data.schema, fields.columns).decode(data.combine_chunks().to_batches()[0])
    expected = {name: listed(column) for name, column in whole.columns.items()}
    for count in (1, 7, len(data) // 2, len(data)):
        rows = np.sort(rng.permutation(len(data))[:count])
        owner = np.searchsorted(ends, rows, side="right")
        local = rows - (ends - source.block_rows)[owner]
        found = decoder.pick(owner, local)
        assert found.rows.tolist() == rows.tolist()
        for name, column in found.columns.items():
            assert listed(column) == [expected[name][i] for i in rows], name
        if fields.fixed:
            into = decoder._form.empty(2 * count)
            slots = rng.permutation(2 * count)[:count].astype(np.uint32)
            decoder.pick_into(owner, local, slots, into)
            assert into.rows[slots].tolist() == rows.tolist()
            for name in fields.columns:
                assert listed(into.columns[name][slots]) == [expected[name][i] for i in rows], name
    if fields.fixed:
        blocks = rng.permutation(len(source.block_rows))
        counts = source.block_rows[blocks]
        slots = rng.permutation(len(data)).astype(np.uint32)
        into = decoder._form.empty(len(data))
        decoder.fill(blocks, np.cumsum(counts) - counts, slots, into)
        stored = np.concatenate([np.arange(ends[b] - source.block_rows[b], ends[b]) for b in blocks])
        assert into.rows[slots].tolist() == stored.tolist()
        for name in fields.columns:
            assert listed(into.columns[name][slots]) == [expected[name][i] for i in stored], name
    decoder.close()


COLUMNS = [FIXED, ("x",), ("tokens", "n"), ("when", "text", "x"), None]


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_files_of_other_writers(tmp_path, columns):
    data = table()
    with ArrowSource(write(tmp_path / "a.arrow", data)) as source:
        check(source, data, columns)


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_converted_files(tmp_path, columns):
    data = table()
    with ArrowSource(convert(tmp_path / "a.arrow", data)) as source:
        check(source, data, columns)


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_one_huge_record_batch_is_read_in_pieces(tmp_path, columns):
    data = table(2000)
    with ArrowSource(write(tmp_path / "a.arrow", data, chunk=None), block_size=10_000) as source:
        assert len(source.block_rows) > 10
        check(source, data, columns)


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_several_files_of_unequal_blocks(tmp_path, columns):
    data = table()
    paths = [
        write(tmp_path / "a.arrow", data.slice(0, 50), chunk=7),
        convert(tmp_path / "b.arrow", data.slice(50, 100), block=16),
        write(tmp_path / "c.arrow", data.slice(150, 0)),
        write(tmp_path / "d.arrow", data.slice(150), chunk=60),
    ]
    with ArrowSource(paths) as source:
        check(source, data, columns)


def test_batches_without_rows_lie_between_others(tmp_path):
    data = table()
    batches = data.combine_chunks().to_batches()[0]
    with pa.ipc.new_file(tmp_path / "a.arrow", data.schema) as writer:
        for start, count in ((0, 0), (0, 40), (40, 0), (40, 0), (40, 150), (190, 0), (190, 40), (230, 0)):
            writer.write_batch(batches.slice(start, count))
    with ArrowSource(tmp_path / "a.arrow") as source:
        for columns in COLUMNS:
            check(source, data, columns)


@pytest.mark.parametrize("which", ["all", "first", "last"])
def test_compressed_files_have_no_layout_and_are_right(tmp_path, which):
    data = table()
    lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
    paths = [
        write(tmp_path / "a.arrow", data.slice(0, 100), options=None if which == "last" else lz4),
        write(tmp_path / "b.arrow", data.slice(100), options=None if which == "first" else lz4),
    ]
    with ArrowSource(paths) as source:
        for columns in COLUMNS:
            check(source, data, columns, layout=False)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
        pa.array([{"a": i} for i in range(ROWS)]),
        pa.array([i % 2 == 0 for i in range(ROWS)]),
        pa.array([[]] * ROWS, pa.list_(pa.float32(), 0)),
        pa.array(["ab"] * ROWS, pa.string_view()),
    ],
    ids=lambda array: str(array.type),
)
def test_columns_that_need_decoding_have_no_layout(tmp_path, column):
    data = pa.table({"n": np.arange(ROWS), "other": column})
    with ArrowSource(write(tmp_path / "a.arrow", data)) as source:
        check(source, data, None, layout=False)
        hidden = pa.types.is_nested(column.type) and not pa.types.is_fixed_size_list(column.type)
        hidden = hidden or pa.types.is_dictionary(column.type) or pa.types.is_string_view(column.type)
        check(source, data, ["n"], layout=not hidden)  # beside plain ones, they are passed over where they can be


def test_a_shuffled_copy_with_numbers_has_no_layout(tmp_path):
    with ArrowSource(write(tmp_path / "a.arrow", table())) as source:
        assert source.row_layout(Fields.of(source.schema, ["n"], numbered=True).of_copy()) is None


@pytest.mark.parametrize("kind", ["foreign", "pieces", "converted"])
@pytest.mark.parametrize("column", ["n", "x", "tokens", "text"])
def test_nulls_are_refused_by_column_and_block(tmp_path, kind, column):
    data = table(600)
    values = data[column].to_pylist()
    if column == "x":
        values[100] = [1.0, None, 1.0, 1.0, 1.0]
    elif column == "tokens":
        values[101] = [1, None]
    else:
        values[100] = None
    data = data.set_column(
        data.schema.get_field_index(column), column, pa.array(values, data.schema.field(column).type)
    )
    path = tmp_path / "a.arrow"
    if kind == "converted":
        source = ArrowSource(convert(path, data))
    else:
        source = ArrowSource(write(path, data, chunk=None if kind == "pieces" else 32), block_size=5000)
    with source:
        decoder = record_decoder(source, Fields.of(source.schema, [column], place=source.name))
        assert isinstance(decoder, LayoutDecoder)
        ends = np.cumsum(source.block_rows)
        owner = np.searchsorted(ends, np.array([100]), side="right")
        with pytest.raises(DataError, match=f"a.arrow: column '{column}' holds a null in block {owner[0]}"):
            decoder.pick(owner, np.array([100]) - (ends - source.block_rows)[owner])
        other = record_decoder(source, Fields.of(source.schema, ["when"], place=source.name))
        assert other.pick(owner, np.zeros(1, np.int64)).columns["when"].shape == (1,)


def test_columns_that_could_be_null_and_are_not_have_a_layout(tmp_path):
    data = table()
    assert all(field.nullable for field in data.schema)
    with ArrowSource(write(tmp_path / "a.arrow", data)) as source:
        check(source, data, FIXED)
    # A block that carries a validity map all the same has its values elsewhere in the body.
    mapped = pa.Array.from_buffers(pa.int64(), 5, [pa.py_buffer(b"\xff"), pa.py_buffer(np.arange(5))])
    plain = pa.table({"n": np.arange(5, 20)})
    with pa.ipc.new_file(tmp_path / "b.arrow", plain.schema) as writer:
        writer.write_batch(pa.record_batch({"n": mapped}))
        writer.write_table(plain, max_chunksize=5)
    with ArrowSource(tmp_path / "b.arrow") as source:
        check(source, pa.table({"n": np.arange(20)}), None)


def test_equal_blocks_of_a_converted_file_are_known_from_the_first(tmp_path):
    data = table().select(FIXED)
    with ArrowSource(convert(tmp_path / "a.arrow", data)) as source:
        layout = source.row_layout(Fields.of(source.schema, FIXED))
        assert layout.fixed
        assert (layout.at[:, :-1] != UNKNOWN).all()
        assert (layout.at[:, -1] == UNKNOWN).all()
        asked = []
        find = layout.find
        object.__setattr__(layout, "find", lambda block: asked.append(block) or find(block))
        layout.locate(np.arange(len(source.block_rows)))
        assert asked == [len(source.block_rows) - 1]
    with ArrowSource(convert(tmp_path / "b.arrow", table())) as source:
        ragged = source.row_layout(Fields.of(source.schema, ["n", "text"]))
        assert (ragged.at == UNKNOWN).all()
        assert not ragged.fixed


def test_blocks_of_a_converted_file_with_nulls_are_asked_one_by_one(tmp_path):
    data = pa.table({"n": np.arange(100), "m": pa.array([None if i == 70 else i for i in range(100)])})
    with ArrowSource(convert(tmp_path / "a.arrow", data, block=10)) as source:
        assert (source.row_layout(Fields.of(source.schema, ["n"])).at == UNKNOWN).all()
        check(source, data.select(["n"]), ["n"])


def test_only_so_many_ends_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(row_layout, "KEPT_ENDS", 3 * 33)
    data = table()
    with ArrowSource(write(tmp_path / "a.arrow", data)) as source:
        check(source, data, ("tokens", "text"))
        layout = source.row_layout(Fields.of(source.schema, ["text"]))
        layout.locate(np.arange(len(source.block_rows)))
        assert 0 < len(layout._ends) < len(source.block_rows)
        for block in range(len(source.block_rows)):
            text = source.read(block).column("text").to_pylist()
            assert np.diff(layout.ends(0, block)).tolist() == [len(row) for row in text]


def test_ragged_columns_keep_their_kind(tmp_path):
    data = table()
    with ArrowSource(write(tmp_path / "a.arrow", data)) as source:
        decoder = record_decoder(source, Fields.of(source.schema, ["tokens", "text", "bytes"]))
        found = decoder.pick(np.zeros(2, np.int64), np.array([1, 5]))
        assert all(isinstance(column, Ragged) for column in found.columns.values())
        assert [column.kind for column in found.columns.values()] == ["list", "text", "bytes"]


def test_the_converter_counts_nulls_also_inside_lists(tmp_path):
    data = pa.table(
        {
            "n": pa.array([1, None, 3, None]),
            "list": pa.array([[1, None], None, [], [None]], pa.list_(pa.int32())),
            "fixed": pa.array([[1, None], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
            "text": pa.array(["", "a", "b", "c"]),
        }
    )
    for columns, nulls in ((["text"], 0), (["n"], 2), (["list"], 3), (["fixed"], 2), (data.column_names, 7)):
        with ArrowSource(convert(tmp_path / "a.arrow", data.select(columns), block=3)) as source:
            assert layout_of(source.schema)["nulls"] == nulls
