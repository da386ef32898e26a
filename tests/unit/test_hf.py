"""Converted files as `datasets.Dataset`: features, images, formats, worker processes, and errors."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock import hf
from penstock.errors import (
    ColumnError,
    CorruptFileError,
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)


def png(shade: int) -> bytes:
    """Return a grey picture of one pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes([0, shade])))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def datasets():
    # It is an extra, and its own warnings are not ours to mend.
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png"]):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number * 10))
    penstock.convert(tmp_path / "in", tmp_path / "pictures.arrow", block_size="100B")
    return tmp_path / "pictures.arrow"


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "tokens": pa.array([[n, n + 1, n + 2] for n in range(100)], pa.list_(pa.int32(), 3)),
            "label": pa.array([n % 2 for n in range(100)], pa.int64()),
            "text": [f"row {n}" for n in range(100)],
        }
    )
    penstock.convert(table, tmp_path / "numbers.arrow", block_size="300B")
    return tmp_path / "numbers.arrow"


def test_images_are_images_again(datasets, pictures):
    pytest.importorskip("PIL")
    data = hf.open_dataset(pictures)
    assert isinstance(data, datasets.Dataset)
    assert isinstance(data.features["image"], datasets.Image)
    assert data.features["label"].names == ["cat", "dog"]
    assert data["label"][:] == [0, 0, 1, 1]
    assert [picture.getpixel((0, 0)) for picture in data["image"]] == [0, 10, 20, 30]
    assert data[2]["path"] == "dog/c.png"
    raw = data.cast_column("image", datasets.Image(decode=False))[3]["image"]
    assert raw == {"bytes": png(30), "path": None}


def test_paths_kept_beside_images_are_folded_back(datasets, tmp_path):
    media = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [{"bytes": png(1), "path": "a.png"}, {"bytes": png(2), "path": None}, None]
    features = json.dumps({"info": {"features": {"image": {"decode": False, "_type": "Image"}}}})
    table = pa.table({"image": pa.array(cells, media)}).replace_schema_metadata({"huggingface": features})
    folder = tmp_path / "saved"
    folder.mkdir()
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    penstock.convert(folder, tmp_path / "a.arrow")
    data = hf.open_dataset(tmp_path / "a.arrow")
    assert data.column_names == ["image"]
    assert [row["image"] for row in data] == cells


def test_what_save_to_disk_writes_comes_back_equal(datasets, tmp_path):
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "matrix": datasets.Array2D((2, 3), "float32"),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "pair": {"a": datasets.Value("string"), "b": datasets.Value("bool")},
        }
    )
    rows = {
        "label": [0, 1, 1],
        "matrix": [[[n] * 3] * 2 for n in range(3)],
        "tokens": [[1], [], [2, 3]],
        "pair": [{"a": str(n), "b": n == 1} for n in range(3)],
    }
    saved = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": saved, "test": saved.select([1])}).save_to_disk(tmp_path / "saved")
    penstock.convert(tmp_path / "saved", tmp_path / "a.arrow", split="train")
    data = hf.open_dataset(tmp_path / "a.arrow")
    assert data.features == features
    assert data[:] == saved[:]


def test_indexing_formats_and_columns(datasets, numbers):
    data = hf.open_dataset(numbers)
    assert len(data) == 100
    assert data[-1] == {"tokens": [99, 100, 101], "label": 1, "text": "row 99"}
    assert data[[5, 70, 5]]["label"] == [1, 0, 1]
    assert sorted(data.select([3, 1]).shuffle(seed=0)["text"]) == ["row 1", "row 3"]
    data.set_format("numpy")
    assert data[3:5]["tokens"].tolist() == [[3, 4, 5], [4, 5, 6]]
    assert hf.open_dataset(numbers, columns=["label"]).column_names == ["label"]
    with pytest.raises(ColumnError, match=r"has no column 'lable'; it has: tokens, label, text \(did you mean 'label'"):
        hf.open_dataset(numbers, columns=["lable"])


def test_torch_format_and_the_stock_loader(datasets, numbers):
    torch = pytest.importorskip("torch")
    data = hf.open_dataset(numbers)
    data.set_format("torch", columns=["tokens", "label"])
    assert data[0]["tokens"].tolist() == [0, 1, 2]
    loader = torch.utils.data.DataLoader(data, batch_size=10, shuffle=True)
    labels = torch.cat([batch["label"] for batch in loader])
    assert int(labels.sum()) == 50


def test_pickling_takes_the_path_not_the_rows(datasets, numbers):
    data = hf.open_dataset(numbers)
    for made in (data, data.select(range(10, 20)), data.rename_column("text", "words"), data.remove_columns("tokens")):
        packed = pickle.dumps(made)
        assert len(packed) < 20_000
        again = pickle.loads(packed)
        assert again[:] == made[:]
    assert str(numbers).encode() in pickle.dumps(data.select(range(10, 20)))


def test_map_and_the_same_fingerprint_for_the_same_file(datasets, numbers, tmp_path):
    data = hf.open_dataset(numbers)
    doubled = data.map(lambda row: {"twice": 2 * row["label"]}, keep_in_memory=True)
    assert doubled["twice"][:4] == [0, 2, 0, 2]
    assert hf.open_dataset(numbers)._fingerprint == data._fingerprint
    doubled.save_to_disk(tmp_path / "again")
    penstock.convert(tmp_path / "again", tmp_path / "again.arrow")
    assert hf.open_dataset(tmp_path / "again.arrow")["twice"][:] == doubled["twice"][:]


def test_wrong_files_are_told(datasets, numbers, tmp_path):
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        hf.open_dataset(tmp_path / "none.arrow")
    (tmp_path / "cut.arrow").write_bytes(numbers.read_bytes()[:-100])
    with pytest.raises(CorruptFileError, match="is truncated"):
        hf.open_dataset(tmp_path / "cut.arrow")
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"a": pa.int64()})):
        pass
    (tmp_path / "stream.arrow").write_bytes(sink.getvalue())
    with pytest.raises(SourceError, match="penstock convert"):
        hf.open_dataset(tmp_path / "stream.arrow")
    with pytest.raises(UsageError, match="copy it here first"):
        hf.open_dataset("s3://bucket/a.arrow")


def test_without_the_library_the_line_to_run_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"penstock\.hf\.open_dataset needs datasets.*pip install 'penstock\[hf\]'"
    ):
        hf.open_dataset(tmp_path / "a.arrow")


def test_nothing_else_imports_the_library():
    import subprocess

    code = "import sys, penstock.hf, penstock.blocks.samples.hf; print('datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
