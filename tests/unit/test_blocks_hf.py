"""Hugging Face folders and Arrow streams, written by hand with pyarrow: every layout, pieces, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.blocks import arrow_streams
from penstock.blocks.arrow_streams import StreamFile
from penstock.blocks.samples.features import noted_features
from penstock.columns.schema_notes import layout_of
from penstock.errors import (
    CorruptFileError,
    DataChangedError,
    DataError,
    SchemaError,
    SourceError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
)

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["no", "yes"], "_type": "ClassLabel"}}


def rows(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"text": [f"row {n}" for n in numbers], "label": pa.array([n % 2 for n in numbers], pa.int64())})


def write_stream(path: Path, table: pa.Table, *, per_batch: int = 3, features: dict | None = None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        writer.write_table(table, max_chunksize=per_batch)
    return path


def save(folder: Path, tables: list[pa.Table], features: dict | None = FEATURES, **more: object) -> Path:
    """Write a folder as `save_to_disk` does."""
    names = [f"data-{n:05d}-of-{len(tables):05d}.arrow" for n in range(len(tables))]
    for name, table in zip(names, tables):
        write_stream(folder / name, table, features=features)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None, **more}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def converted(source: object, tmp_path: Path, **options: object) -> pa.Table:
    penstock.convert(source, tmp_path / "out.arrow", **options)
    return read(tmp_path / "out.arrow")


def test_a_saved_folder_keeps_rows_order_and_features(tmp_path):
    folder = save(tmp_path / "data", [rows(7), rows(5, 7)])
    table = converted(folder, tmp_path)
    assert table.to_pydict() == rows(12).to_pydict()
    assert noted_features(table.schema) == FEATURES
    assert layout_of(table.schema)["rows"] == 12


def test_features_come_from_the_folder_where_the_files_have_none(tmp_path):
    folder = save(tmp_path / "data", [rows(2)], features=None)
    assert noted_features(converted(folder, tmp_path).schema) == FEATURES


def test_splits_are_asked_for_and_listed(tmp_path):
    for split in ("train", "test"):
        save(tmp_path / "data" / split, [rows(3 if split == "train" else 2)])
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UsageError, match=r"several splits: train, test; name one with split="):
        converted(tmp_path / "data", tmp_path)
    with pytest.raises(UsageError, match=r"no split 'dev'; it has: train, test"):
        converted(tmp_path / "data", tmp_path, split="dev")
    assert converted(tmp_path / "data", tmp_path, split="test").num_rows == 2
    with pytest.raises(UsageError, match="one split by itself"):
        converted(tmp_path / "data" / "train", tmp_path, split="train")


def test_the_only_split_need_not_be_named(tmp_path):
    save(tmp_path / "data" / "train", [rows(3)])
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert converted(tmp_path / "data", tmp_path).num_rows == 3


def test_the_cache_layout(tmp_path):
    folder = tmp_path / "cache"
    for number in range(2):
        write_stream(folder / f"my-set-train-{number:05d}-of-00002.arrow", rows(4, 4 * number), features=FEATURES)
    write_stream(folder / "my-set-test.arrow", rows(3), features=FEATURES)
    write_stream(folder / "cache-0123456789abcdef.arrow", rows(99), features=FEATURES)
    (folder / "dataset_info.json").write_text("{}")
    with pytest.raises(UsageError, match="several splits: test, train"):
        converted(folder, tmp_path)
    assert converted(folder, tmp_path, split="train").to_pydict() == rows(8).to_pydict()
    assert converted(folder, tmp_path, split="test").num_rows == 3
    (folder / "my-set-train-00000-of-00002.arrow").unlink()
    with pytest.raises(SourceNotFoundError, match=r"file 0 of 2 of the split 'train' is missing"):
        converted(folder, tmp_path, split="train")


def test_a_folder_above_caches_is_not_mixed_together(tmp_path):
    write_stream(tmp_path / "root" / "a" / "x-train.arrow", rows(2))
    (tmp_path / "root" / "a" / "dataset_info.json").write_text("{}")
    with pytest.raises(UsageError, match="folders below it; name one of them: a"):
        converted(tmp_path / "root", tmp_path)


@pytest.mark.parametrize("key", ["_indices_files", "_indices_data_files"])
def test_a_saved_selection_is_refused_with_the_remedy(tmp_path, key):
    folder = save(tmp_path / "data", [rows(2)], **{key: [{"filename": "indices.arrow"}]})
    with pytest.raises(SourceError, match=r"flatten_indices\(\)\.save_to_disk"):
        converted(folder, tmp_path)


def test_a_missing_file_and_a_damaged_state_are_named(tmp_path):
    folder = save(tmp_path / "data", [rows(2), rows(2)])
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(SourceNotFoundError, match=r"state\.json .* names data-00001-of-00002\.arrow"):
        converted(folder, tmp_path)
    (folder / "state.json").write_text("{")
    with pytest.raises(CorruptFileError, match=r"state\.json is damaged"):
        converted(folder, tmp_path)
    (folder / "state.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="no '_data_files'"):
        converted(folder, tmp_path)


def images(cells: list[dict | None]) -> pa.Table:
    return pa.table({"image": pa.array(cells, MEDIA), "label": pa.array(range(len(cells)), pa.int64())})


IMAGE = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}


def test_images_become_plain_bytes_with_their_paths_beside(tmp_path):
    cells = [{"bytes": b"a", "path": "a.png"}, {"bytes": b"bb", "path": None}, None]
    table = converted(save(tmp_path / "data", [images(cells)], IMAGE), tmp_path)
    assert table.schema.field("image").type == pa.binary()
    assert table.to_pydict() == {"image": [b"a", b"bb", None], "label": [0, 1, 2], "image_path": ["a.png", "", ""]}
    assert noted_features(table.schema) == IMAGE
    assert layout_of(table.schema)["paths"] == {"image": "image_path"}


def test_without_paths_there_is_no_column_of_them(tmp_path):
    table = converted(save(tmp_path / "data", [images([{"bytes": b"a", "path": None}])], IMAGE), tmp_path)
    assert table.column_names == ["image", "label"]


def test_files_that_only_paths_name_are_taken_in(tmp_path, monkeypatch):
    from penstock.blocks.samples import hf

    monkeypatch.setattr(hf, "PIECE", 5)
    for n in range(5):
        (tmp_path / f"{n}.png").write_bytes(bytes([n]) * 4)
    cells = [{"bytes": None, "path": str(tmp_path / f"{n}.png")} for n in range(5)]
    folder = save(tmp_path / "data", [images(cells)], IMAGE)
    assert converted(folder, tmp_path)["image"].to_pylist() == [bytes([n]) * 4 for n in range(5)]
    (tmp_path / "3.png").unlink()
    with pytest.raises(SourceNotFoundError, match=r"column 'image' in row 3 holds no bytes but the path .*3\.png"):
        converted(folder, tmp_path)


def test_several_streams_at_once(tmp_path):
    for name in "ab":
        write_stream(tmp_path / "s" / f"{name}.arrow", rows(5, 5 * (name == "b")))
    expected = rows(10).to_pydict()
    assert converted(tmp_path / "s", tmp_path).to_pydict() == expected
    assert converted([tmp_path / "s" / "a.arrow", tmp_path / "s" / "b.arrow"], tmp_path).to_pydict() == expected
    assert converted(str(tmp_path / "s" / "*.arrow"), tmp_path).to_pydict() == expected
    write_stream(tmp_path / "s" / "c.arrow", pa.table({"text": [1]}))
    with pytest.raises(SchemaError, match=r"a\.arrow and .*c\.arrow"):
        converted(tmp_path / "s", tmp_path)


def test_streams_and_files_are_not_mixed(tmp_path):
    write_stream(tmp_path / "s" / "a.arrow", rows(5))
    penstock.convert(rows(2), tmp_path / "s" / "b.arrow")
    with pytest.raises(UsageError, match=r"a\.arrow is an Arrow stream and .*b\.arrow an Arrow file"):
        converted(tmp_path / "s", tmp_path)


def nested(count: int) -> pa.Table:
    """Every kind that rows can be cut out of, with nulls, empty lists and very unequal rows."""
    return pa.table(
        {
            "image": pa.array(
                [None if n % 7 == 3 else {"bytes": bytes([n % 256]) * (n * n), "path": None} for n in range(count)],
                MEDIA,
            ),
            "text": pa.array([None if n % 5 == 0 else "x" * (n % 11) for n in range(count)]),
            "big": pa.array([b"y" * (n % 3) for n in range(count)], pa.large_binary()),
            "list": pa.array([None if n % 4 == 1 else list(range(n % 6)) for n in range(count)], pa.list_(pa.int32())),
            "deep": pa.array([[["a"] * (n % 3)] * (n % 2) for n in range(count)], pa.list_(pa.list_(pa.string()))),
            "structs": pa.array([[{"a": n, "b": str(n)}] * (n % 3) for n in range(count)]),
            "fixed": pa.array([[n, None] for n in range(count)], pa.list_(pa.float32(), 2)),
            "flag": pa.array([n % 3 == 0 for n in range(count)]),
            "nothing": pa.nulls(count),
            "blob": pa.array([bytes([n % 256]) * 3 for n in range(count)], pa.binary(3)),
        }
    )


@pytest.mark.parametrize("per_batch", [1, 37, 200])
def test_pieces_of_a_batch_are_its_rows(tmp_path, monkeypatch, per_batch):
    monkeypatch.setattr(arrow_streams, "PIECE", 20_000)
    table = nested(200)
    stream = StreamFile(str(write_stream(tmp_path / "a.arrow", table, per_batch=per_batch)))
    parts = list(stream.parts())
    found = pa.Table.from_batches([batch for batch, _ in stream.batches(None)])
    stream.close()
    assert found.equals(table)
    found.validate(full=True)
    many = [part.nbytes for part in parts if part.piece and part.piece.stop - part.piece.start > 1]
    assert max(many, default=0) <= 40_000
    assert bool(many) == (per_batch > 1)
    assert stream.rows == 200


def test_pieces_serve_only_the_columns_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_streams, "PIECE", 20_000)
    stream = StreamFile(str(write_stream(tmp_path / "a.arrow", nested(100), per_batch=100)))
    found = pa.Table.from_batches([batch for batch, _ in stream.batches(["flag", "text"])])
    stream.close()
    assert found.equals(nested(100).select(["flag", "text"]))


@pytest.mark.parametrize("kind", ["dictionary", "compressed", "view"])
def test_what_cannot_be_cut_is_read_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(arrow_streams, "PIECE", 100)
    table = rows(50)
    options = {}
    if kind == "dictionary":
        table = table.set_column(0, "text", table["text"].dictionary_encode())
    elif kind == "view":
        table = table.set_column(0, "text", table["text"].cast(pa.string_view()))
    else:
        options["compression"] = "zstd"
    path = write_stream(tmp_path / "a.arrow", table, per_batch=20, **options)
    assert converted(path, tmp_path).to_pydict() == rows(50).to_pydict()


def test_a_truncated_stream_is_told_before_anything_is_written(tmp_path):
    folder = save(tmp_path / "data", [rows(50)])
    path = folder / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    for left_off, told in (
        (40, r"truncated Arrow stream: the message at byte \d+ should end"),
        (200, r"no whole message at byte \d+"),
        (len(whole) - 100, "damaged Arrow stream"),
    ):
        path.write_bytes(whole[:-left_off])
        with pytest.raises(CorruptFileError, match=told):
            converted(folder, tmp_path)
    path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match="not an Arrow stream"):
        converted(folder, tmp_path)
    assert not (tmp_path / "out.arrow").exists()


def test_a_stream_that_changes_after_it_was_opened_is_told(tmp_path):
    path = write_stream(tmp_path / "a.arrow", rows(5))
    stream = StreamFile(str(path))
    write_stream(path, rows(6))
    with pytest.raises(DataChangedError, match="was changed while it was in use"):
        list(stream.batches(None))


def test_open_says_how_to_convert(tmp_path):
    folder = save(tmp_path / "data", [rows(2)])
    with pytest.raises(SourceError, match=rf"a Hugging Face data set.*penstock convert {folder} DST\.arrow"):
        penstock.open(folder)
    for name in "ab":
        write_stream(tmp_path / "s" / f"{name}.arrow", rows(2))
    with pytest.raises(SourceError, match=rf"holds Arrow streams.*penstock convert {tmp_path / 's'} DST\.arrow"):
        penstock.open(tmp_path / "s")
    with pytest.raises(SourceError, match="penstock convert"):
        penstock.open(folder, format="hf")


def test_formats_and_splits_that_do_not_fit(tmp_path):
    with pytest.raises(UnknownOptionError, match=r"format='hff' is not known; choose one of: .*hf.*mds.*webdataset"):
        penstock.convert(tmp_path, tmp_path / "out.arrow", format="hff")
    with pytest.raises(UsageError, match="split='train' is for data that come in splits"):
        penstock.convert(rows(2), tmp_path / "out.arrow", split="train")
    with pytest.raises(SourceNotFoundError, match="is not a folder"):
        penstock.convert(tmp_path / "none", tmp_path / "out.arrow", format="hf")


def test_blocks_of_very_unequal_rows_stay_small(tmp_path):
    """Tiny rows first, large ones after: blocks are ended early, and the file opens and reads as any other."""
    cells = [b"x" * 10] * 3000 + [b"y" * 1_000_000] * 20 + [b"z" * 10] * 3000
    table = pa.table({"a": pa.array(cells, pa.binary())})
    path = write_stream(tmp_path / "a.arrow", table, per_batch=500)
    penstock.convert(path, tmp_path / "out.arrow", block_size="256KB")
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        reader = pa.ipc.open_file(file)
        sizes = [reader.get_batch(n).nbytes for n in range(reader.num_record_batches)]
    assert max(sizes) <= 4 << 20
    with penstock.open(tmp_path / "out.arrow") as source:
        assert int(source.block_rows.sum()) == 6020
        assert pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))]).equals(table)


def test_rows_per_block_follow_all_rows_not_the_first(tmp_path):
    """Ten megabytes of large rows come first; the many small ones after are not put in blocks of one row."""
    cells = [b"x" * 500_000] * 20 + [b"z" * 10] * 100_000
    path = write_stream(tmp_path / "a.arrow", pa.table({"a": pa.array(cells, pa.binary())}), per_batch=5000)
    done = penstock.convert(path, tmp_path / "out.arrow")
    assert done.blocks < 10_000


MATRIX = {"m": {"shape": [2, 3], "dtype": "float32", "_type": "Array2D"}}


def test_arrays_of_known_shape_become_fixed_size_lists(tmp_path):
    kind = pa.list_(pa.list_(pa.float32()))
    table = pa.table({"m": pa.array([[[1, 2, 3], [4, 5, 6]], [[0] * 3] * 2], kind)})
    found = converted(save(tmp_path / "data", [table], MATRIX), tmp_path)
    assert found.schema.field("m").type == pa.list_(pa.list_(pa.float32(), 3), 2)
    assert found.to_pydict() == table.to_pydict()
    assert noted_features(found.schema) == MATRIX
    wrong = pa.table({"m": pa.array([[[1, 2, 3], [4, 5, 6]], [[0] * 2] * 2], kind)})
    with pytest.raises(
        DataError, match=r"column 'm' does not have the shape that its features tell .* row from 0 to 1"
    ):
        converted(save(tmp_path / "data", [wrong], MATRIX), tmp_path)


def test_arrays_of_unknown_length_stay_lists(tmp_path):
    kind = pa.list_(pa.list_(pa.float32()))
    table = pa.table({"m": pa.array([[[1, 2, 3]], []], kind)})
    features = {"m": {"shape": [None, 3], "dtype": "float32", "_type": "Array2D"}}
    assert converted(save(tmp_path / "data", [table], features), tmp_path).schema.field("m").type == kind
