"""Arrow files: reading by hand, layouts of packed rows, and what is refused."""

from __future__ import annotations

import os
import struct

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.ipc import read_footer
from penstock.blocks.storage import LocalFile
from penstock.blocks.write import BlockWriter
from penstock.errors import CorruptFileError, SchemaError, SourceError, SourceNotFoundError


def packed_batch(rows=100, width=3, label=np.int8, weight=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((rows, width), np.float32)
    columns = {
        "label": pa.array(rng.integers(0, 2, rows).astype(label)),
        "features": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width),
    }
    if weight:
        columns["weight"] = pa.array(rng.random(rows).astype(weight))
    return pa.RecordBatch.from_pydict(columns)


def write(path, batch, rows, **options):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema, **options) as writer:
        for at in range(0, batch.num_rows, rows):
            writer.write_batch(batch.slice(at, rows))
    return str(path)


def convert(path, batch, rows):
    schema = pa.schema([field.with_nullable(False) for field in batch.schema])
    with BlockWriter(path, schema, rows_per_block=rows) as writer:
        writer.write(batch)
    return str(path)


def read_packed(layout):
    """Read every block by its layout alone."""
    xs, ys, ws = [], [], []
    for b, n in enumerate(layout.rows):
        data = os.pread(layout.fd, int(layout.nbytes[b]), int(layout.offsets[b]))
        xs.append(np.frombuffer(data, np.float32, n * layout.width, layout.features_at[b]).reshape(n, layout.width))
        if layout.label_type is not None:
            ys.append(np.frombuffer(data, layout.label_type, n, layout.label_at[b]))
        if layout.weight_type is not None:
            ws.append(np.frombuffer(data, layout.weight_type, n, layout.weight_at[b]))
    return xs, ys, ws


@pytest.mark.parametrize("writer", [write, convert])
@pytest.mark.parametrize("label", [np.int8, np.uint16, np.int64, np.float32, np.float64])
def test_packed_rows_lie_where_the_layout_says(tmp_path, writer, label):
    batch = packed_batch(100, label=label, weight=np.float64)
    with ArrowSource(writer(tmp_path / "a.arrow", batch, 7)) as source:
        layout = source.packed("features", "label", "weight")
        xs, ys, ws = read_packed(layout)
        assert layout.label_type == label
        np.testing.assert_array_equal(np.concatenate(xs).ravel(), batch["features"].values.to_numpy())
        np.testing.assert_array_equal(np.concatenate(ys), batch["label"].to_numpy())
        np.testing.assert_array_equal(np.concatenate(ws), batch["weight"].to_numpy())
        assert source.packed("features", None, None).label_at.tolist() == [-1] * 15


def test_packed_without_the_labels_of_other_blocks_being_alike(tmp_path):
    batch = packed_batch(40).append_column("note", pa.array(["x" * (i % 9) for i in range(40)]))
    with ArrowSource(convert(tmp_path / "a.arrow", batch, 7)) as source:
        xs, ys, _ = read_packed(source.packed("features", "label", None))
        np.testing.assert_array_equal(np.concatenate(xs).ravel(), batch["features"].values.to_numpy())
        np.testing.assert_array_equal(np.concatenate(ys), batch["label"].to_numpy())


def test_no_layout_where_decoding_is_needed(tmp_path):
    batch = packed_batch(40)
    compressed = write(tmp_path / "c.arrow", batch, 9, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    with ArrowSource(compressed) as source:
        assert source.packed("features", "label", None) is None
        assert source.read(1).equals(batch.slice(9, 9))
    labels = pa.array([None if i == 30 else i % 2 for i in range(40)], pa.int8())
    nulls = batch.set_column(0, "label", labels)
    with ArrowSource(write(tmp_path / "n.arrow", nulls, 9)) as source:
        assert source.packed("features", "label", None) is None
        assert source.packed("features", None, None) is not None
    for column in (pa.array([i % 2 == 0 for i in range(40)]), pa.array(["a"] * 40)):
        with ArrowSource(write(tmp_path / "b.arrow", batch.set_column(0, "label", column), 9)) as source:
            assert source.packed("features", "label", None) is None
            assert source.packed("label", None, None) is None
    with ArrowSource([write(tmp_path / "1.arrow", batch, 9), write(tmp_path / "2.arrow", batch, 9)]) as source:
        assert source.packed("features", "label", None) is None


def test_metadata_that_no_longer_fits_is_not_believed(tmp_path):
    batch = packed_batch(50)
    with ArrowSource(convert(tmp_path / "a.arrow", batch, 10)) as source:
        schema = source.schema
    moved = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    with ArrowSource(write(tmp_path / "b.arrow", moved, 7)) as source:
        assert source.block_rows.tolist() == [7] * 7 + [1]
        assert len(source.read(7)) == 1


def test_the_footer_is_read_without_looking_at_each_block(tmp_path, monkeypatch):
    batch = packed_batch(3000, width=1)
    path = convert(tmp_path / "a.arrow", batch, 1)
    reads = []
    read_at = LocalFile.read_at
    monkeypatch.setattr(LocalFile, "read_at", lambda self, at, n: reads.append(n) or read_at(self, at, n))
    with ArrowSource(path) as source:
        assert source.packed("features", "label", None) is not None
        assert len(source.block_rows) == 3000
    assert len(reads) < 20


def test_footer_equals_what_pyarrow_reads(tmp_path):
    path = write(tmp_path / "a.arrow", packed_batch(100), 9)
    file = LocalFile(path)
    footer = read_footer(file)
    file.close()
    with pa.OSFile(path) as opened:
        reader = pa.ipc.open_file(opened)
        assert len(footer.offset) == reader.num_record_batches
        assert footer.schema.equals(reader.schema)


def test_memory_is_not_mapped(tmp_path):
    batch = packed_batch(1000)
    with ArrowSource(write(tmp_path / "a.arrow", batch, 100)) as source:
        source.read(3)
        with open("/proc/self/maps") as maps:
            assert "a.arrow" not in maps.read()


def test_a_stream_is_refused_with_the_line_to_run(tmp_path):
    path = tmp_path / "s.arrow"
    batch = packed_batch()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(SourceError, match=rf"penstock convert {path} DST"):
        ArrowSource(path)


@pytest.mark.parametrize("left", [0, 5, 20, 200, -3, -400])
def test_truncated(tmp_path, left):
    path = tmp_path / "a.arrow"
    write(path, packed_batch(100), 9)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptFileError, match=r"a\.arrow.*(truncated|empty|not an Arrow)"):
        ArrowSource(path)


def test_damaged_footer_and_blocks(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, packed_batch(100), 9)
    content = path.read_bytes()
    path.write_bytes(content[:-10] + struct.pack("<i", 10**9) + content[-6:])
    with pytest.raises(CorruptFileError, match="damaged"):
        ArrowSource(path)
    with ArrowSource(write(tmp_path / "b.arrow", packed_batch(100), 9)) as source:
        at = int(source._offsets[2])
    path.write_bytes(content[:at] + b"\0" * 64 + content[at + 64 :])
    with pytest.raises(CorruptFileError, match=r"a\.arrow"):
        ArrowSource(path).read(2)


def test_files_that_disagree(tmp_path):
    one = write(tmp_path / "1.arrow", pa.record_batch({"x": [1.0], "y": [1]}), 9)
    two = write(tmp_path / "2.arrow", pa.record_batch({"x": ["a"], "y": [1]}), 9)
    with pytest.raises(SchemaError, match=r"1\.arrow and .*2\.arrow .*'x' \(double against string\)"):
        ArrowSource([one, two])


def test_no_blocks(tmp_path):
    with ArrowSource(write(tmp_path / "a.arrow", packed_batch(0), 9)) as source:
        assert len(source.block_rows) == 0
        assert source.packed("features", "label", None) is None


def test_missing_file_names_a_near_one(tmp_path):
    write(tmp_path / "clicks.arrow", packed_batch(), 9)
    with pytest.raises(SourceNotFoundError, match=r"did you mean 'clicks\.arrow'"):
        ArrowSource(tmp_path / "click.arrow")


@pytest.mark.parametrize("size", [100, 999, 5000])
def test_large_batches_of_other_writers_are_served_in_pieces(tmp_path, size):
    at = np.arange(500)
    odd = at % 3 == 0
    batch = pa.RecordBatch.from_pydict(
        {
            "f": pa.array(at / 2),
            "n": pa.array(at, pa.int16(), mask=odd),
            "b": pa.array(at % 2 == 0, mask=odd),
            "s": pa.array([None if o else "x" * (i % 11) for i, o in zip(at, odd, strict=True)]),
            "S": pa.array([f"{i}" for i in at], pa.large_string()),
            "l": pa.array([[float(i)] * (i % 4) for i in at], pa.list_(pa.float32())),
            "v": pa.array([[i, None] for i in at], pa.list_(pa.int64(), 2)),
            "ls": pa.array([["a", "bc"] * (i % 2) for i in at]),
            "t": pa.array(at, pa.timestamp("us")),
        }
    )
    with ArrowSource(write(tmp_path / "a.arrow", batch, 450), block_size=size) as source:
        assert len(source.block_rows) > 5
        blocks = [source.read(b) for b in range(len(source.block_rows))]
        for found in blocks:
            found.validate(full=True)
        assert pa.Table.from_batches(blocks).to_pydict() == pa.Table.from_batches([batch]).to_pydict()
        assert source.read(2, ["l", "b"]).to_pydict() == blocks[2].select(["l", "b"]).to_pydict()


def test_pieces_read_no_more_than_their_rows(tmp_path, monkeypatch):
    path = write(tmp_path / "a.arrow", packed_batch(100_000), 100_000)
    reads = []
    read_at = LocalFile.read_at
    monkeypatch.setattr(LocalFile, "read_at", lambda self, at, n: reads.append(n) or read_at(self, at, n))
    with ArrowSource(path, block_size=50_000) as source:
        source.read(7)
        assert source.packed("features", "label", None) is None
    assert sum(reads) < 70_000


def test_converted_blocks_are_never_cut(tmp_path):
    with ArrowSource(convert(tmp_path / "a.arrow", packed_batch(1000), 500), block_size=100) as source:
        assert source.block_rows.tolist() == [500, 500]
