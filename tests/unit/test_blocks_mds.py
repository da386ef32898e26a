"""MDS shards, written byte by byte: every encoding, compression, and everything that can be wrong with them."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.blocks.samples import mds
from penstock.blocks.samples.features import noted_features
from penstock.errors import CorruptFileError, DataError, SchemaError, SourceError, SourceNotFoundError, UsageError

SIZES = {"int": 8, "uint8": 1, "int16": 2, "float16": 2, "float32": 4, "float64": 8, "uint64": 8, "int32": 4}
Cells = dict[str, list[bytes]]


def shard_bytes(cells: Cells, sizes: list[int | None]) -> bytes:
    samples = []
    for row in zip(*cells.values()):
        head = b"".join(struct.pack("<I", len(cell)) for cell, size in zip(row, sizes) if size is None)
        samples.append(head + b"".join(row))
    settings = b'{"compression": null}'
    begin = 4 + 4 * (len(samples) + 1) + len(settings)
    ends = np.cumsum([begin, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + ends.tobytes() + settings + b"".join(samples)


def write(folder: Path, encodings: dict[str, str], shards: list[Cells], *, packer=None, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [more.get("sizes", {}).get(name, SIZES.get(kind)) for name, kind in encodings.items()]
    listed = []
    for number, cells in enumerate(shards):
        raw = shard_bytes(cells, sizes)
        name = f"shard.{number:05d}.mds"
        entry = {
            "column_names": list(encodings),
            "column_encodings": list(encodings.values()),
            "column_sizes": sizes,
            "compression": None,
            "format": "mds",
            "hashes": [],
            "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
            "samples": len(next(iter(cells.values()))),
            "version": 2,
            "zip_data": None,
        }
        if packer:
            codec, pack = packer
            packed = pack(raw)
            entry["compression"] = codec
            entry["zip_data"] = {"basename": f"{name}.{codec.partition(':')[0]}", "bytes": len(packed), "hashes": {}}
            (folder / entry["zip_data"]["basename"]).write_bytes(packed)
        else:
            (folder / name).write_bytes(raw)
        listed.append(entry)
    (folder / "index.json").write_text(json.dumps({"shards": listed, "version": 2}))
    return folder


def converted(source: object, tmp_path: Path, **options: object) -> pa.Table:
    penstock.convert(source, tmp_path / "out.arrow", **options)
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def cells(count: int, start: int = 0) -> Cells:
    numbers = range(start, start + count)
    return {
        "image": [bytes([n % 256]) * (n + 1) for n in numbers],
        "label": [struct.pack("<q", n) for n in numbers],
        "text": [f"row {n}".encode() for n in numbers],
    }


KINDS = {"image": "jpeg", "label": "int", "text": "str"}


def expected(count: int) -> dict[str, list]:
    numbers = range(count)
    return {
        "image": [bytes([n % 256]) * (n + 1) for n in numbers],
        "label": list(numbers),
        "text": [f"row {n}" for n in numbers],
    }


def test_shards_in_order(tmp_path, monkeypatch):
    folder = write(tmp_path / "in", KINDS, [cells(30), cells(20, 30)])
    table = converted(folder, tmp_path)
    assert table.to_pydict() == expected(50)
    assert noted_features(table.schema) == {"image": {"_type": "Image"}}
    monkeypatch.setattr(mds, "BATCH_BYTES", 100)
    assert converted(folder, tmp_path).to_pydict() == expected(50)
    assert converted(folder, tmp_path, exclude=["image"]).column_names == ["label", "text"]


def array_with_shape(values: np.ndarray, *, typed: bool) -> bytes:
    code = {"uint8": 8, "int64": 65, "float32": 34}[values.dtype.name]
    shape = bytes([values.ndim << 2]) + np.array(values.shape, np.uint8).tobytes()
    return (b"" if typed else bytes([code])) + shape + values.tobytes()


def listed(parts: list[bytes], placeholder: bool) -> bytes:
    head = struct.pack("<I", len(parts)) + b"".join(struct.pack("<I", len(part)) for part in parts)
    return (b"\0\0\0\0" if placeholder else b"") + head + b"".join(parts)


def test_every_encoding(tmp_path):
    square = np.arange(12, dtype=np.uint8).reshape(3, 4)
    line = np.array([1.5, 2.5], np.float32)
    pil = struct.pack("<III", 1, 1, 3) + b"RGB" + b"\1\2\3"
    kinds = {
        "raw": "bytes",
        "text": "str",
        "number": "int",
        "small": "uint8",
        "short": "int16",
        "half": "float16",
        "single": "float32",
        "double": "float64",
        "large": "uint64",
        "fixed": "ndarray:uint8:3,4",
        "typed": "ndarray:float32",
        "any": "ndarray",
        "photo": "jpeg",
        "picture": "png",
        "pixels": "pil",
        "object": "json",
        "digits": "str_int",
        "real": "str_float",
        "exact": "str_decimal",
        "photos": "list[jpeg]",
        "frames": "jpeg_array",
    }
    row = {
        "raw": b"\0\1",
        "text": "é".encode(),
        "number": struct.pack("<q", -5),
        "small": b"\xff",
        "short": struct.pack("<h", -2),
        "half": np.float16(0.5).tobytes(),
        "single": np.float32(0.25).tobytes(),
        "double": np.float64(0.1).tobytes(),
        "large": struct.pack("<Q", 2**63),
        "fixed": square.tobytes(),
        "typed": array_with_shape(line, typed=True),
        "any": array_with_shape(square.astype(np.int64), typed=False),
        "photo": b"\xff\xd8",
        "picture": b"\x89PNG",
        "pixels": pil,
        "object": b'{"a": [1]}',
        "digits": b"-123",
        "real": b"1e3",
        "exact": b"0.1000000000000000000001",
        "photos": listed([b"a", b"", b"ccc"], True),
        "frames": listed([b"xy"], False),
    }
    folder = write(tmp_path / "in", kinds, [{name: [cell, cell] for name, cell in row.items()}], sizes={"fixed": 12})
    table = converted(folder, tmp_path)
    assert table.slice(1).to_pylist() == [
        {
            "raw": b"\0\1",
            "text": "é",
            "number": -5,
            "small": 255,
            "short": -2,
            "half": 0.5,
            "single": 0.25,
            "double": 0.1,
            "large": 2**63,
            "fixed": square.tolist(),
            "typed": [1.5, 2.5],
            "typed.shape": [2],
            "any": list(range(12)),
            "any.shape": [3, 4],
            "photo": b"\xff\xd8",
            "picture": b"\x89PNG",
            "pixels": pil,
            "object": '{"a": [1]}',
            "digits": -123,
            "real": 1000.0,
            "exact": "0.1000000000000000000001",
            "photos": [b"a", b"", b"ccc"],
            "frames": [b"xy"],
        }
    ]
    assert table.schema.field("fixed").type == pa.list_(pa.list_(pa.uint8(), 4), 3)
    assert table.schema.field("half").type == pa.float16()
    assert noted_features(table.schema) == {"photo": {"_type": "Image"}, "picture": {"_type": "Image"}}


def arrow_packer(codec: str):
    return lambda raw: pa.compress(raw, codec=codec, asbytes=True)


@pytest.mark.parametrize(
    "packer",
    [
        ("gz", gzip.compress),
        ("bz2:9", bz2.compress),
        ("zstd:7", arrow_packer("zstd")),
        ("br", arrow_packer("brotli")),
        ("snappy", arrow_packer("snappy")),
    ],
    ids=lambda packer: packer[0],
)
def test_compressed_shards(tmp_path, packer):
    folder = write(tmp_path / "in", KINDS, [cells(30), cells(20, 30)], packer=packer)
    assert converted(folder, tmp_path).to_pydict() == expected(50)


def test_an_uncompressed_copy_is_preferred(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(3)], packer=("gz", lambda raw: b"damaged"))
    (folder / "shard.00000.mds").write_bytes(shard_bytes(cells(3), [None, 8, None]))
    assert converted(folder, tmp_path).to_pydict() == expected(3)


def test_unknown_compression_is_refused_by_name(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(3)], packer=("lz9", lambda raw: raw))
    with pytest.raises(SourceError, match="is compressed with 'lz9', which is not read; one of these is: br, bz2, gz"):
        converted(folder, tmp_path)


def test_splits(tmp_path):
    write(tmp_path / "in" / "train", KINDS, [cells(3)])
    write(tmp_path / "in" / "val", KINDS, [cells(2)])
    with pytest.raises(UsageError, match="several splits: train, val"):
        converted(tmp_path / "in", tmp_path)
    assert converted(tmp_path / "in", tmp_path, split="val").num_rows == 2


class Boom:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("boom"),))


def test_pickled_columns_are_refused_and_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "in", {"a": "pkl"}, [{"a": [pickle.dumps(Boom())]}])
    with pytest.raises(SourceError, match=r"column 'a' is pickled, .* nothing is unpickled"):
        converted(folder, tmp_path)
    assert not (tmp_path / "boom").exists()


def test_unknown_encodings_are_refused_by_name(tmp_path):
    folder = write(tmp_path / "in", {"a": "mp4"}, [{"a": [b""]}])
    with pytest.raises(SourceError, match=r"column 'a' has the encoding 'mp4', which is not known; known are: bytes,"):
        converted(folder, tmp_path)
    folder = write(tmp_path / "in", {"a": "ndarray:complex64"}, [{"a": [b""]}])
    with pytest.raises(SourceError, match="holds arrays of 'complex64'"):
        converted(folder, tmp_path)


def test_a_missing_index_and_missing_shards(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(3), cells(2)])
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(SourceNotFoundError, match=r"index\.json in .* names the shard shard\.00001\.mds"):
        converted(folder, tmp_path)
    (folder / "index.json").unlink()
    with pytest.raises(SourceNotFoundError, match=r"has no index\.json"):
        converted(folder, tmp_path)
    write(folder, KINDS, [cells(3)], packer=("gz", gzip.compress))
    (folder / "shard.00000.mds.gz").unlink()
    (folder / "shard.00000.mds").unlink(missing_ok=True)
    with pytest.raises(SourceNotFoundError, match=r"neither it nor shard\.00000\.mds is there"):
        converted(folder, tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "csv"}, "only MDS shards of version 2 are read"),
        ({"version": 1}, "only MDS shards of version 2 are read"),
        ({"samples": None}, "damaged at shard 0: it has no 'samples'"),
        ({"column_sizes": []}, "differ in number"),
        ({"samples": 9}, r"has 3 samples where index\.json says 9"),
        ({"raw_data": {"basename": "../x.mds", "bytes": 3}}, "lies outside the folder"),
        ({"raw_data": {"basename": "/x.mds", "bytes": 3}}, "lies outside the folder"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 3}}, "its samples' places are not in order"),
    ],
)
def test_a_wrong_index_is_told(tmp_path, change, told):
    folder = write(tmp_path / "in", KINDS, [cells(3)])
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0].update(change)
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=told):
        converted(folder, tmp_path)
    (folder / "index.json").write_text('{"shards": []}')
    with pytest.raises(CorruptFileError, match="lists no shards"):
        converted(folder, tmp_path)
    assert not (tmp_path / "out.arrow").exists()


def test_a_truncated_shard_is_told_with_its_place(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(30)])
    path = folder / "shard.00000.mds"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(CorruptFileError, match=rf"truncated: it ends at byte {len(whole) - 10} of {len(whole)}"):
        converted(folder, tmp_path)
    path.write_bytes(whole[:50])
    with pytest.raises(CorruptFileError, match="truncated: it ends at byte 50"):
        converted(folder, tmp_path)
    folder = write(tmp_path / "gz", KINDS, [cells(30)], packer=("gz", gzip.compress))
    path = folder / "shard.00000.mds.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFileError, match=r"shard\.00000\.mds\.gz is truncated"):
        converted(folder, tmp_path)


def test_damaged_samples_are_told_by_number(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(5)])
    path = folder / "shard.00000.mds"
    whole = bytearray(path.read_bytes())
    third = int(np.frombuffer(whole, "<u4", 1, 4 + 4 * 2)[0])
    whole[third] += 1
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match="sample 2 is damaged: its columns' sizes do not come to its own"):
        converted(folder, tmp_path)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "told"),
    [
        ("str", b"a", b"\xff", "is not str"),
        ("str_int", b"1", b"x", "is not str_int"),
        ("str_int", b"1", b"9" * 30, "does not fit in 64 bits"),
        ("str_float", b"1", b"x", "is not str_float"),
        ("ndarray", b"\x08\x04\x01\x07", b"\x09\x04\x01\x07", "holds int8 where the first holds uint8"),
        ("ndarray:uint8", b"\x04\x01\x07", b"\x04\x02\x07", "do not make the shape"),
        ("ndarray:uint8", b"\x04\x01\x07", b"", "ends before its shape"),
        ("list[png]", listed([b"a"], True), listed([b"a"], True) + b"x", "entries come to 1 bytes, not 2"),
        ("list[png]", listed([b"a"], True), b"\0\0\0\0\x09\0\0\0", "too few for 9 entries"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_its_row(tmp_path, kind, good, bad, told):
    folder = write(tmp_path / "in", {"a": kind}, [{"a": [good, good, bad]}])
    with pytest.raises(DataError, match=r"shard\.00000\.mds: sample 2: column 'a'.*") as error:
        converted(folder, tmp_path)
    assert told in str(error.value)


def test_shards_that_disagree_are_refused(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(3), cells(2)])
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["column_encodings"][0] = "png"
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SchemaError, match="shard 1 has the columns"):
        converted(folder, tmp_path)


def test_open_says_how_to_convert(tmp_path):
    folder = write(tmp_path / "in", KINDS, [cells(3)])
    with pytest.raises(SourceError, match=rf"MDS shards, .*penstock convert {folder} DST\.arrow"):
        penstock.open(folder)
    (folder / "state.json").write_text("{}")
    with pytest.raises(UsageError, match=r"holds a Hugging Face data set \(state\.json\) and MDS shards"):
        converted(folder, tmp_path)
    assert converted(folder, tmp_path, format="mds").num_rows == 3
