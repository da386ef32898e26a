"""WebDataset tars: samples, columns and types; strictness about damage; long names and compression."""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.blocks.samples import folders, webdataset
from penstock.blocks.samples.features import noted_features
from penstock.blocks.samples.tar import members
from penstock.errors import (
    CorruptFileError,
    DataError,
    SourceError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
)


def pack(path: Path, files: list[tuple[str, bytes]], *, mode: str = "w", format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=format) as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    return [
        (f"{n:04d}.{extension}", content)
        for n in range(start, start + count)
        for extension, content in (("cls", str(n % 3).encode()), ("jpg", bytes([n % 256]) * (n + 1)))
    ]


def converted(source: object, tmp_path: Path, **options: object) -> pa.Table:
    penstock.convert(source, tmp_path / "out.arrow", **options)
    with pa.memory_map(str(tmp_path / "out.arrow")) as file:
        return pa.ipc.open_file(file).read_all()


def expected(count: int) -> dict[str, list]:
    numbers = range(count)
    return {
        "__key__": [f"{n:04d}" for n in numbers],
        "cls": [n % 3 for n in numbers],
        "jpg": [bytes([n % 256]) * (n + 1) for n in numbers],
    }


def test_a_tar_a_list_a_glob_a_range_and_a_folder(tmp_path):
    paths = [pack(tmp_path / "in" / f"train-{n:03d}.tar", samples(10, 10 * n)) for n in range(3)]
    assert converted(paths[0], tmp_path).to_pydict() == expected(10)
    for given in (
        paths,
        str(tmp_path / "in" / "train-*.tar"),
        str(tmp_path / "in" / "train-{000..002}.tar"),
        tmp_path / "in",
    ):
        assert converted(given, tmp_path).to_pydict() == expected(30)
    with pytest.raises(SourceNotFoundError, match=r"train-003\.tar"):
        converted(str(tmp_path / "in" / "train-{000..003}.tar"), tmp_path)


def test_types_and_features(tmp_path):
    files = [
        ("a/x.seg.PNG", b"\x89"),
        ("a/x.cls", b" 7\n"),
        ("a/x.id", b"abc"),
        ("a/x.txt", b"12"),
        ("a/x.json", b'{"a": 1}'),
        ("a/x.npy", b"\x93NUMPY"),
        ("a/x.bad.txt", b"\xff"),
    ]
    table = converted(pack(tmp_path / "a.tar", files), tmp_path)
    assert table.to_pylist() == [
        {
            "__key__": "a/x",
            "seg.png": b"\x89",
            "cls": 7,
            "id": "abc",
            "txt": "12",
            "json": '{"a": 1}',
            "npy": b"\x93NUMPY",
            "bad.txt": b"\xff",
        }
    ]
    assert noted_features(table.schema) == {"seg.png": {"_type": "Image"}}


def test_a_missing_part_is_null(tmp_path):
    files = [*samples(2), ("0009.jpg", b"only")]
    table = converted(pack(tmp_path / "a.tar", files), tmp_path)
    assert table["cls"].to_pylist() == [0, 1, None]


def test_a_late_column_is_an_error_that_says_how_to_ask(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "LOOK_ROWS", 3)
    path = pack(tmp_path / "a.tar", [*samples(5), ("0009.jpg", b"j"), ("0009.txt", b"t")])
    with pytest.raises(
        DataError, match=r"a\.tar: the sample '0009' at byte \d+ has a 'txt'.*extensions=\['cls', 'jpg', 'txt'\]"
    ):
        converted(path, tmp_path)
    table = converted(path, tmp_path, extensions=["cls", "jpg", "txt"])
    assert table["txt"].to_pylist() == [None] * 5 + ["t"]
    assert converted(path, tmp_path, extensions=["jpg"]).column_names == ["__key__", "jpg"]


def test_a_value_that_does_not_parse_is_told_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "LOOK_ROWS", 3)
    path = pack(tmp_path / "a.tar", [*samples(5), ("0009.cls", b"cat"), ("0009.jpg", b"j")])
    with pytest.raises(DataError, match=r"'cls' of the sample '0009' at byte \d+ is not a whole number \(b'cat'\)"):
        converted(path, tmp_path)
    table = converted(path, tmp_path, extensions={"cls": "string", "jpg": None})
    assert table["cls"].to_pylist() == ["0", "1", "2", "0", "1", "cat"]
    assert converted(path, tmp_path, extensions={"cls": "binary"})["cls"].to_pylist()[-1] == b"cat"
    with pytest.raises(UnknownOptionError, match=r"extensions\['cls'\]='float' is not known; .*binary, int, string"):
        converted(path, tmp_path, extensions={"cls": "float"})


def test_text_that_is_not_utf8_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "LOOK_ROWS", 1)
    path = pack(tmp_path / "a.tar", [("a.txt", b"fine"), ("b.txt", b"\xff\xfe")])
    with pytest.raises(DataError, match=r"'txt' of the sample 'b' .* not UTF-8 text .*extensions=\{'txt': 'binary'\}"):
        converted(path, tmp_path)


def test_a_sample_in_pieces_is_refused(tmp_path):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"1"), ("b.cls", b"2")])
    with pytest.raises(DataError, match="the files of the sample 'a' do not stand together"):
        converted(path, tmp_path)
    path = pack(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(DataError, match=r"'a\.JPG' at byte 1024 stands twice in the sample 'a'"):
        converted(path, tmp_path)


def test_what_is_no_sample_is_passed_over(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("dir/0.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name in ("README", "__meta__/info.json", "dir/1.jpg", ".hidden"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    assert converted(path, tmp_path).to_pydict() == {"__key__": ["dir/1"], "jpg": [b"abc"]}


def test_names_that_lead_elsewhere_do_no_harm(tmp_path):
    path = pack(tmp_path / "in" / "a.tar", [("../../evil.txt", b"x"), ("/tmp/abs.txt", b"y")])
    before = sorted(tmp_path.rglob("*"))
    table = converted(path, tmp_path)
    assert table["__key__"].to_pylist() == ["../../evil", "/tmp/abs"]
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "out.arrow"])


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_every_dialect(tmp_path, format):
    name = "/".join(["folder" * 5] * 4) + "/sample.jpg"
    files = [(name, b"1"), ("z.jpg", b"22")]
    if format != tarfile.USTAR_FORMAT:
        files.insert(1, ("é" * 120 + ".jpg", b"333"))
    table = converted(pack(tmp_path / "a.tar", files, format=format), tmp_path)
    assert table["__key__"].to_pylist() == [n.removesuffix(".jpg") for n, _ in files]
    assert table["jpg"].to_pylist() == [content for _, content in files]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"])
def test_compressed_tars(tmp_path, suffix):
    plain = pack(tmp_path / "plain", samples(20)).read_bytes()
    path = tmp_path / f"a{suffix}"
    if suffix == ".tar.zst":
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as out:
            out.write(plain)
    else:
        pack(
            path, samples(20), mode=f"w:{ {'.tar.gz': 'gz', '.tgz': 'gz', '.tar.bz2': 'bz2', '.tar.xz': 'xz'}[suffix] }"
        )
    assert converted(path, tmp_path).to_pydict() == expected(20)


def test_truncation_is_told_with_shard_and_place(tmp_path):
    paths = [pack(tmp_path / "in" / f"{n}.tar", samples(10, 10 * n)) for n in range(2)]
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[:2000])  # inside the content of the second member
    with pytest.raises(CorruptFileError, match=r"1\.tar is truncated: it ends at byte 2000, inside '0010\.jpg'"):
        converted(paths, tmp_path)
    paths[1].write_bytes(whole[:1300])
    with pytest.raises(CorruptFileError, match=r"1\.tar is truncated: it ends at byte 1300, inside a header"):
        converted(paths, tmp_path)
    paths[1].write_bytes(whole[:1024] + b"\x01" * 512 + whole[1536:])
    with pytest.raises(CorruptFileError, match=r"1\.tar is damaged or not a tar: what stands at byte 1024"):
        converted(paths, tmp_path)
    paths[1].write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"1\.tar is empty"):
        converted(paths, tmp_path)
    assert not (tmp_path / "out.arrow").exists()


def test_a_truncated_gzip_is_told(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(pack(tmp_path / "plain", samples(50)).read_bytes())[:-30])
    with pytest.raises(CorruptFileError, match=r"a\.tar\.gz is truncated or damaged and cannot be decompressed"):
        converted(path, tmp_path)


def test_a_missing_end_mark_is_warned_of(tmp_path, caplog):
    path = pack(tmp_path / "a.tar", samples(2))
    path.write_bytes(path.read_bytes()[: 4 * 1024])
    with caplog.at_level(logging.WARNING):
        assert converted(path, tmp_path).num_rows == 2
    assert "no end mark after its last member at byte 4096" in caplog.text


def test_sparse_members_are_refused(tmp_path):
    path = pack(tmp_path / "a.tar", [("a.jpg", b"1")], format=tarfile.GNU_FORMAT)
    header = bytearray(path.read_bytes())
    header[156:157] = b"S"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))
    with pytest.raises(SourceError, match=r"'a\.jpg' at byte 0 is a sparse member"):
        list(members(io.BytesIO(bytes(header)), "a.tar"))


def test_sizes_over_eight_gigabytes_are_understood():
    header = bytearray(512)
    header[:5] = b"a.jpg"
    header[124:136] = b"\x80" + (9 << 30).to_bytes(11, "big")
    header[156:157] = b"0"
    header[148:156] = b"%06o\0 " % (sum(header) + 8 * 32)
    with pytest.raises(CorruptFileError, match=r"ends at byte 515, inside 'a\.jpg'"):
        list(members(io.BytesIO(bytes(header) + b"abc"), "a.tar"))


def test_wrong_asks(tmp_path):
    path = pack(tmp_path / "a.tar", samples(2))
    with pytest.raises(UsageError, match="tars have no splits"):
        converted(path, tmp_path, split="train")
    with pytest.raises(UsageError, match="extensions= names no column"):
        converted(path, tmp_path, extensions=[])
    with pytest.raises(CorruptFileError, match="holds no sample"):
        converted(pack(tmp_path / "b.tar", [("README", b"x")]), tmp_path)
    with pytest.raises(SourceError, match=r"WebDataset tars, .*penstock convert .*a\.tar DST\.arrow"):
        penstock.open(path)


def test_many_small_batches_keep_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "BATCH_BYTES", 100)
    monkeypatch.setattr(folders, "BATCH_ROWS", 7)
    monkeypatch.setattr(webdataset, "LOOK_BYTES", 50)
    assert converted(pack(tmp_path / "a.tar", samples(60)), tmp_path).to_pydict() == expected(60)
