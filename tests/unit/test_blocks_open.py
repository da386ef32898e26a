"""Opening whatever a user names."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock.blocks
from penstock.blocks import ArraySource, ArrowSource, NpySource, ParquetSource, TableSource
from penstock.blocks.base import BlockSource
from penstock.blocks.open import detect_bytes
from penstock.blocks.open import open as open_source
from penstock.errors import (
    CorruptFileError,
    ParseError,
    SourceError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
    WriteError,
)


def table():
    return pa.table({"x": np.arange(100.0), "y": np.arange(100) % 2})


@pytest.fixture
def folder(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table())
    np.save(tmp_path / "a.npy", np.ones((10, 2)))
    (tmp_path / "a.csv").write_text("x,y\n1.5,0\n2.5,1\n")
    (tmp_path / "a.libsvm").write_text("1 3:0.5\n-1 1:2 4:1\n")
    return tmp_path


KINDS = {
    "parquet": "ParquetSource",
    "arrow": "ArrowSource",
    "npy": "NpySource",
    "csv": "CsvSource",
    "libsvm": "LibsvmSource",
}


@pytest.mark.parametrize("format", KINDS)
def test_by_suffix_by_content_and_by_name(folder, format):
    plain = folder / "plain"
    plain.write_bytes((folder / f"a.{format}").read_bytes())
    for path, options in ((folder / f"a.{format}", {}), (str(plain), {}), (plain, {"format": format})):
        with open_source(path, **options) as source:
            assert type(source).__name__ == KINDS[format]
            assert isinstance(source, BlockSource)
            assert source.read(0).num_rows > 0


def test_folders_globs_and_lists(tmp_path):
    for number in range(3):
        pq.write_table(table(), tmp_path / f"{number}.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("not data")
    for data in (tmp_path, str(tmp_path / "*.parquet"), [tmp_path / f"{n}.parquet" for n in range(3)]):
        with open_source(data) as source:
            assert isinstance(source, ParquetSource)
            assert source.block_rows.tolist() == [100] * 3


def test_block_size_and_options_reach_the_source(folder):
    with open_source(folder / "a.parquet", block_size="400B", max_open=2) as source:
        assert len(source.block_rows) > 3
    with pytest.raises(UnknownOptionError, match=r"max_opn.*max_open"):
        open_source(folder / "a.parquet", max_opn=2)
    with pytest.raises(UsageError, match="block_size='much'"):
        open_source(folder / "a.parquet", block_size="much")


def test_what_lies_in_memory():
    for data, kind in (
        (table(), TableSource),
        (table().to_batches()[0], TableSource),
        (np.ones((3, 2)), ArraySource),
    ):
        assert isinstance(open_source(data), kind)
    source = open_source(table())
    assert open_source(source) is source
    with pytest.raises(UsageError, match=r"only once.*convert"):
        open_source(pa.RecordBatchReader.from_batches(table().schema, table().to_batches()))
    with pytest.raises(UsageError, match="int cannot be opened"):
        open_source(3)


def test_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0], "y": ["a", "b"]}, index=[5, 6])
    assert open_source(frame).read(0).to_pydict() == {"x": [1.0, 2.0], "y": ["a", "b"]}


def test_what_cannot_be_opened(folder):
    with pytest.raises(SourceNotFoundError, match=r"there is no file .*a\.parqet \(did you mean 'a\.parquet'\?\)"):
        open_source(folder / "a.parqet")
    with pytest.raises(UsageError, match=r"several formats: arrow \(.*csv .*name files of one format"):
        open_source(folder)
    with pytest.raises(
        UnknownOptionError, match="format='xls' is not known; choose one of: arrow, csv, duckdb, libsvm"
    ):
        open_source(folder / "a.csv", format="xls")
    (folder / "b").write_bytes(b"\x00\x01\x02")
    with pytest.raises(UsageError, match=r"format of .*b is not known; .* arrow, csv, duckdb, libsvm, npy, parquet"):
        open_source(folder / "b")
    (folder / "c").write_bytes(b"")
    with pytest.raises(CorruptFileError, match="empty"):
        open_source(folder / "c")
    with pytest.raises(UsageError, match="no files"):
        open_source([])
    with pytest.raises(UsageError, match="one is read at a time"):
        open_source([folder / "a.npy", folder / "a.npy"])


@pytest.mark.parametrize("name", ["a.csv.gz", "plain"])
def test_compressed_text_is_copied_and_the_copy_removed(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"x,y\n1,2\n"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with open_source(tmp_path / name, scratch=scratch) as source:
        assert len(list(scratch.iterdir())) == 1
        assert source.read(0).to_pylist() == [{"x": 1.0, "y": 2.0}]
        assert source.name == str(tmp_path / name)
        assert source.file_of(0) == (str(tmp_path / name), 0)
    assert not list(scratch.iterdir())


def test_a_copy_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 2_000_000 + b"1,z\n"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ParseError, match=r"a\.csv\.gz.*'y' holds numbers"):
        open_source(tmp_path / "a.csv.gz", scratch=scratch)
    assert not list(scratch.iterdir())
    with pytest.raises(WriteError, match="scratch="):
        open_source(tmp_path / "a.csv.gz", scratch=tmp_path / "nowhere")


def test_formats_told_from_bytes():
    for head, format in (
        (b"+1 1:0.5 2:1\n", "libsvm"),
        (b"# a remark\n0 qid:3 1:2\n", "libsvm"),
        (b"a,b\n1,2\n", "csv"),
        (b"a\tb\n", "csv"),
        (b"12:30,5\n", "csv"),
    ):
        assert detect_bytes(head, name="x") == format


def test_tfrecord_files_are_refused_by_name(tmp_path):
    record = b"\n\x0c" + b"x" * 40
    (tmp_path / "a.tfrecord").write_bytes(struct.pack("<Q", len(record)) + b"abcd" + record + b"efgh")
    with pytest.raises(
        SourceError, match="looks like a TFRecord file, which is not read; save its examples as Parquet"
    ):
        penstock.open(tmp_path / "a.tfrecord")


def test_names_of_the_room():
    for name in penstock.blocks.__all__:
        assert getattr(penstock.blocks, name) is not None
    assert ArrowSource.__module__ == "penstock.blocks.arrow"
    assert NpySource.__module__ == "penstock.blocks.numpy"
    with pytest.raises(AttributeError, match="nothing"):
        _ = penstock.blocks.nothing


def test_the_room_opens_without_numba():
    code = "import sys, penstock.blocks; assert not {'numba', 'pandas', 'pyarrow.parquet'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
