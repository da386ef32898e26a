"""Writing blocks, converting, and leaving nothing behind on failure."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.conversion import convert
from penstock.blocks.memory import ArraySource
from penstock.blocks.write import _FILLER, BlockWriter
from penstock.columns import choose_features
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import layout_of
from penstock.errors import ColumnError, CorruptFileError, DataError, FeatureError, LabelError, UsageError, WriteError
from penstock.events import Advanced, Finished, Started


def table(rows=1000):
    at = np.arange(rows)
    return pa.table(
        {"a": at.astype(np.float64), "b": at % 7, "y": [f"c{i % 2}" for i in at], "id": [f"r{i}" for i in at]}
    )


def read_all(path):
    with ArrowSource(path) as source:
        batches = [source.read(b) for b in range(len(source.block_rows))]
        return pa.Table.from_batches(batches, source.schema)


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


def test_blocks_have_a_constant_number_of_rows(tmp_path):
    with BlockWriter(tmp_path / "a.arrow", table().schema, rows_per_block=64) as writer:
        for batch in table().to_batches(max_chunksize=37):
            writer.write(batch)
        assert leftovers(tmp_path) != ["a.arrow"]
    assert leftovers(tmp_path) == ["a.arrow"]
    with ArrowSource(tmp_path / "a.arrow") as source:
        assert source.block_rows.tolist() == [64] * 15 + [40]
        noted = layout_of(source.schema)
    assert (noted["version"], noted["rows_per_block"], noted["rows"], noted["blocks"]) == (1, 64, 1000, 16)
    assert read_all(tmp_path / "a.arrow").to_pydict() == table().to_pydict()


def test_data_that_look_like_the_fillers_are_not_touched(tmp_path):
    data = pa.record_batch({"a": [str(filler) for filler in _FILLER.values()]})
    with BlockWriter(tmp_path / "a.arrow", data.schema, rows_per_block=2) as writer:
        writer.write(data)
    assert read_all(tmp_path / "a.arrow").to_pydict() == data.to_pydict()


def test_totals_are_noted_at_both_ends_of_a_wide_file(tmp_path):
    names = [f"a feature with quite a long name {i}" for i in range(5000)]
    wide = pa.record_batch({name: [1.0, 2.0] for name in names})
    with BlockWriter(tmp_path / "a.arrow", wide.schema, rows_per_block=1) as writer:
        writer.write(wide)
    with pa.OSFile(str(tmp_path / "a.arrow")) as file:
        assert layout_of(pa.ipc.open_file(file).schema)["rows"] == 2  # pyarrow takes it from the footer
    with ArrowSource(tmp_path / "a.arrow") as source:
        assert layout_of(source.schema)["rows"] == 2


def test_a_failure_leaves_nothing_and_keeps_what_stood_there(tmp_path):
    path = tmp_path / "a.arrow"
    path.write_text("precious")

    def fail():
        with BlockWriter(path, table().schema, rows_per_block=10) as writer:
            writer.write(table().to_batches()[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert leftovers(tmp_path) == ["a.arrow"]
    assert path.read_text() == "precious"


class FullDisk:
    """A writer on a disk that has no room left."""

    def write_batch(self, batch):
        raise OSError(28, "No space left on device")

    def close(self):
        pass


def test_a_full_disk(tmp_path):
    writer = BlockWriter(tmp_path / "a.arrow", table().schema, rows_per_block=10)
    writer._writer = FullDisk()
    with pytest.raises(WriteError, match=r"cannot write .*a\.arrow: the disk is full \(.* free"):
        writer.write(table().to_batches()[0])
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a disk here")
    try:
        with pytest.raises(WriteError, match="the disk is full"):
            convert(table(100_000), disk / "a.arrow")
        assert leftovers(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_folders_that_cannot_be_written(tmp_path):
    with pytest.raises(WriteError, match="there is no folder"):
        convert(table(), tmp_path / "none" / "a.arrow")
    with pytest.raises(WriteError, match=r"is a folder; name the file"):
        convert(table(), tmp_path)
    with pytest.raises(WriteError, match="cannot write"):
        convert(table(), "/proc/a.arrow")


def test_nulls_where_the_layout_has_none(tmp_path):
    schema = pa.schema([pa.field("a", pa.float64(), nullable=False)])
    with (
        pytest.raises(DataError, match="'a' holds a null"),
        BlockWriter(tmp_path / "a", schema, rows_per_block=9) as writer,
    ):
        writer.write(pa.record_batch({"a": [1.0, None]}))
    assert leftovers(tmp_path) == []


def test_convert_packs_features(tmp_path):
    done = convert(table(), tmp_path / "a.arrow", label="y", exclude=["id"], block_size=1000)
    assert (done.rows, done.path) == (1000, str(tmp_path / "a.arrow"))
    assert done.bytes == os.path.getsize(done.path)
    with ArrowSource(done.path) as source:
        assert done.blocks == len(source.block_rows) > 10
        assert source.schema.names == ["features", "y"]
        assert source.schema.field("features").type.list_size == 2
        recipe = choose_features(source.schema, label="y", place="a")
        assert recipe.names == ("a", "b")
        assert recipe.packed_column == "features"
        assert source.packed("features", None, None) is not None
    read = read_all(done.path)
    assert read["features"].to_pylist() == [[float(i), float(i % 7)] for i in range(1000)]
    assert read["y"].to_pylist() == table()["y"].to_pylist()


def test_convert_keeps_columns_and_weights(tmp_path):
    data = table().append_column("features", pa.array(np.ones(1000)))
    convert(data, tmp_path / "a.arrow", label="features", weight="b", keep=["id", "y"])
    with ArrowSource(tmp_path / "a.arrow") as source:
        assert source.schema.names == ["features_", "features", "b", "id", "y"]
        assert choose_features(source.schema, label="features", place="a").names == ("a",)
        assert source.packed("features_", "features", "b") is not None
    with pytest.raises(ColumnError, match="no column to keep 'x'"):
        convert(table(), tmp_path / "b.arrow", label="y", keep=["x"], exclude=["id"])


def test_convert_without_a_label_keeps_columns_as_they_are(tmp_path):
    data = table().append_column("d", table()["y"].combine_chunks().dictionary_encode())
    convert(data, tmp_path / "a.arrow", exclude=["b"])
    read = read_all(tmp_path / "a.arrow")
    assert read.schema.names == ["a", "y", "id", "d"]
    assert read.to_pydict() == data.drop_columns(["b"]).to_pydict()


def test_converting_again_keeps_what_is_known(tmp_path):
    convert(table(), tmp_path / "a.arrow", label="y", exclude=["id"])
    convert(tmp_path / "a.arrow", tmp_path / "b.arrow", block_size=500)
    convert(tmp_path / "a.arrow", tmp_path / "c.arrow", label="y")
    for name in "bc":
        with ArrowSource(tmp_path / f"{name}.arrow") as source:
            recipe = choose_features(source.schema, label="y", place="b")
            assert recipe.names == ("a", "b")
            assert source.packed("features", None, None) is not None
            raw = recipe.for_schema(table().schema, place="raw")
            np.testing.assert_array_equal(raw.encode(table().to_batches()[0]).x[9], [9, 2])


def test_a_model_serves_raw_and_converted_data(tmp_path):
    convert(table(), tmp_path / "a.arrow", hash=["y:2^4"], exclude=["id"])
    raw = choose_features(table().schema, hash=["y:2^4"], exclude=["id"], place="raw")
    with ArrowSource(tmp_path / "a.arrow") as source:
        packed = choose_features(source.schema, place="packed")
        assert (packed.sparse, packed.width) == (True, 18)
        expected = raw.encode(table().to_batches()[0]).x.to_dense()[: source.block_rows[0]]
        for recipe in (packed, Recipe.from_dict(raw.to_dict()).for_schema(source.schema, place="packed")):
            np.testing.assert_array_equal(recipe.encode(source.read(0)).x.to_dense(), expected)
    again = Recipe.from_dict(packed.to_dict()).for_schema(table().schema, place="raw")
    np.testing.assert_array_equal(again.encode(table().to_batches()[0]).x.to_dense()[: len(expected)], expected)


def test_sparse_rows_note_their_width(tmp_path):
    offsets = pa.array(np.arange(0, 101, dtype=np.int32))
    data = pa.table(
        {
            "label": np.arange(100.0) % 2,
            "indices": pa.ListArray.from_arrays(offsets, pa.array(np.arange(100, dtype=np.int64))),
            "values": pa.ListArray.from_arrays(offsets, pa.array(np.ones(100))),
        }
    )
    convert(data, tmp_path / "a.arrow", block_size=100)
    with ArrowSource(tmp_path / "a.arrow") as source:
        recipe = choose_features(source.schema, label="label", place="a")
        assert (recipe.sparse, recipe.width) == (True, 100)
        assert recipe.encode(source.read(0)).x.width == 100
    assert read_all(tmp_path / "a.arrow")["indices"].to_pylist() == [[i] for i in range(100)]


def test_automatic_block_size(tmp_path):
    small = convert(table(100), tmp_path / "a.arrow", label="b", features=["a"])
    assert small.blocks == 1
    middle = convert(pa.table({"a": np.zeros(1 << 18), "b": np.zeros(1 << 18)}), tmp_path / "b.arrow", label="b")
    assert 700 <= middle.blocks <= 800  # 3 MB in blocks of 4 KB
    rows = np.zeros((1 << 17, 256), np.float32)
    large = convert(ArraySource(rows, rows[:, 0]), tmp_path / "l.arrow", label="label")
    assert 3900 <= large.blocks <= 4300  # 135 MB in 4096 blocks
    one_row = convert(table(5), tmp_path / "c.arrow", block_size=1)
    assert one_row.blocks == 5


def test_bad_rows_are_named_by_their_number_in_the_data(tmp_path):
    pq.write_table(pa.table({"a": [1.0] * 50 + [None], "y": [1] * 51}), tmp_path / "a.parquet", row_group_size=20)
    vectors = pa.array([[1.0]] * 50 + [None], pa.list_(pa.float32(), 1))
    pq.write_table(pa.table({"v": vectors, "y": [1] * 51}), tmp_path / "v.parquet", row_group_size=20)
    with pytest.raises(FeatureError, match=r"v\.parquet: column 'v' is null in row 50"):
        convert(tmp_path / "v.parquet", tmp_path / "a.arrow", label="y")
    with pytest.raises(LabelError, match=r"a\.parquet: 'a' is missing \(null\) in row 50"):
        convert(tmp_path / "a.parquet", tmp_path / "a.arrow", label="a", missing="refuse")
    assert leftovers(tmp_path) == ["a.parquet", "v.parquet"]


def test_own_input_is_not_overwritten(tmp_path):
    convert(table(), tmp_path / "a.arrow")
    with pytest.raises(UsageError, match="is the file being read"):
        convert(tmp_path / "a.arrow", tmp_path / "a.arrow")
    with pytest.raises(UsageError, match="local path"):
        convert(table(), "s3://bucket/a.arrow")


def test_progress_is_told_in_bytes(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=100)
    heard = []
    convert(tmp_path / "a.parquet", tmp_path / "a.arrow", listen=heard.append)
    assert isinstance(heard[0], Started)
    assert heard[0].unit == "bytes"
    assert sum(e.amount for e in heard if isinstance(e, Advanced)) == heard[0].total
    assert isinstance(heard[-1], Finished)


def test_streams_and_readers(tmp_path):
    path = tmp_path / "s.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=100)
    convert(path, tmp_path / "a.arrow")
    convert(pa.RecordBatchReader.from_batches(table().schema, table().to_batches(100)), tmp_path / "b.arrow")
    for name in "ab":
        assert read_all(tmp_path / f"{name}.arrow").to_pydict() == table().to_pydict()
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(CorruptFileError, match=r"s\.arrow is a truncated"):
        convert(path, tmp_path / "c.arrow")
    assert "c.arrow" not in leftovers(tmp_path)


def compressors():
    zstd = pa.Codec("zstd")
    return {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
        "zst": lambda data: zstd.compress(data, asbytes=True),
    }


@pytest.mark.parametrize("suffix", compressors())
@pytest.mark.parametrize("format", ["csv", "libsvm"])
def test_compressed_text(tmp_path, suffix, format, monkeypatch):
    pytest.importorskip(f"penstock.blocks.{format}")
    monkeypatch.setattr("penstock.blocks.row_streams.CHUNK", 1000)  # several chunks, cut inside lines
    if format == "csv":
        lines = ["a,b,y", *(f"{i}.5,{i % 7},{i % 2}" for i in range(1000))]
    else:
        lines = [f"{i % 2} {i % 7}:{i}.5 9:1" for i in range(1000)]
    path = tmp_path / f"a.{format}.{suffix}"
    content = "\n".join(lines).encode()
    path.write_bytes(compressors()[suffix](content))
    heard = []
    done = convert(path, tmp_path / "a.arrow", label="y" if format == "csv" else "label", listen=heard.append)
    assert done.rows == 1000
    read = read_all(tmp_path / "a.arrow")
    if format == "csv":
        assert read["features"].to_pylist() == [[i + 0.5, i % 7] for i in range(1000)]
    else:
        assert read["values"].to_pylist() == [[i + 0.5, 1] for i in range(1000)]
    assert sum(e.amount for e in heard if isinstance(e, Advanced)) == heard[0].total
    path.write_bytes(compressors()[suffix](content)[:-20])
    with pytest.raises(CorruptFileError, match="truncated or damaged"):
        convert(path, tmp_path / "b.arrow", label="y" if format == "csv" else "label")
    assert "b.arrow" not in leftovers(tmp_path)


def test_memory_stays_bounded(tmp_path):
    """One row group of 160 MB decoded is converted without holding it."""
    code = f"""
import resource, numpy as np, pyarrow as pa, pyarrow.parquet as pq
rng = np.random.default_rng(0)
schema = pa.schema([(f"f{{i}}", pa.float32()) for i in range(20)] + [("y", pa.int8())])
with pq.ParquetWriter({str(tmp_path / "a.parquet")!r}, schema, use_dictionary=False) as out:
    for _ in range(2):
        x = rng.random((20, 1_000_000), np.float32)
        out.write_table(pa.table([*x, np.zeros(1_000_000, np.int8)], schema=schema), row_group_size=1_000_000)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    code = f"""
import resource
from penstock.blocks import convert
from penstock.blocks.conversion import choose_features
import penstock.blocks.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = convert({str(tmp_path / "a.parquet")!r}, {str(tmp_path / "a.arrow")!r}, label="y")
assert done.rows == 2_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert int(ran.stdout) < 300_000, f"{ran.stdout} kB"


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.NPY"])
def test_an_arrow_file_is_not_written_under_another_formats_name(tmp_path, name):
    with pytest.raises(UsageError, match=r"ends in \.arrow"):
        convert(pa.table({"x": [1]}), tmp_path / name)
