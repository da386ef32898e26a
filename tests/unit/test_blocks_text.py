"""CSV and LibSVM sources: what they find in a file, and how they cut it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.base import BlockSource
from penstock.blocks.csv import CsvSource, csv_format
from penstock.blocks.libsvm import LibsvmSource, libsvm_format
from penstock.blocks.open import open as open_source
from penstock.blocks.text import block_size_for


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(source: BlockSource, columns: list[str] | None = None) -> list[dict[str, object]]:
    return [row for k in range(len(source.block_rows)) for row in source.read(k, columns).to_pylist()]


def test_csv_types_and_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n,word,flag,m\n1,ab,true,\n-2.5e3,,FALSE, 4 \n,é,,NA\n")
    with CsvSource(path) as source:
        assert isinstance(source, BlockSource)
        assert not source.exact_rows
        assert source.schema.types == [pa.float64(), pa.string(), pa.bool_(), pa.float64()]
        assert rows(source) == [
            {"n": 1.0, "word": "ab", "flag": True, "m": None},
            {"n": -2500.0, "word": None, "flag": False, "m": 4.0},
            {"n": None, "word": "é", "flag": None, "m": None},
        ]
        batch = source.read(0, ["flag", "n"])
        assert batch.schema.names == ["flag", "n"]
        assert batch.column("n").null_count == 1
        assert source.read(0, []).num_columns == 0


def test_nan_is_a_value_and_empty_is_null(tmp_path: Path) -> None:
    with CsvSource(write(tmp_path / "a.csv", "a,b\nnan,1\n,inf\n")) as source:
        column = source.read(0).column("a")
    assert column.null_count == 1
    assert np.isnan(column[0].as_py())


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("a.csv", "x,y\n1,2\n", ["x", "y"]),
        ("a.csv", "x;y\n1,5;2\n", ["x", "y"]),
        ("a.csv", "x|y\n1|2\n", ["x", "y"]),
        ("a.txt", "x\ty\n1\t2\n", ["x", "y"]),
        ("a.tsv", "x,1\ty\n1\t2\n", ["x,1", "y"]),
        ("a.csv", "1,2\n3,4\n", ["column_0", "column_1"]),
        ("a.csv", "5.1,rose\n4.9,rose\n", ["column_0", "column_1"]),
        ("a.csv", "name,kind\na,b\n", ["name", "kind"]),
        ("a.csv", '"x, y",,z\r\n1,2,3\r\n', ["x, y", "column_1", "z"]),
        ("a.csv", b"\xef\xbb\xbfx,y\n1,2\n", ["x", "y"]),
        ("a.csv", "\n\nx,y\n1,2\n", ["x", "y"]),
        ("a.csv", "x\n1\n2\n", ["x"]),
    ],
)
def test_delimiter_and_header_are_found(tmp_path: Path, name: str, text: str | bytes, names: list[str]) -> None:
    with CsvSource(write(tmp_path / name, text)) as source:
        assert source.schema.names == names
        assert len(rows(source)) == (2 if "column_0" in names or names == ["x"] else 1)


def test_header_and_delimiter_can_be_forced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "2019:2020\n1:2\n")
    with CsvSource(path, delimiter=":", header=True) as source:
        assert rows(source) == [{"2019": 1.0, "2020": 2.0}]
    with CsvSource(path, delimiter=":", header=False) as source:
        assert len(rows(source)) == 2
    with CsvSource(write(tmp_path / "b.csv", "a,b\nc,d\n"), header=False) as source:
        assert rows(source)[0] == {"column_0": "a", "column_1": "b"}


def test_quotes_within_a_line(tmp_path: Path) -> None:
    text = 'a,b,c\n"1.5","x, ""y""",2\n3,plain, "4" \n'
    with CsvSource(write(tmp_path / "a.csv", text)) as source:
        assert rows(source) == [{"a": 1.5, "b": 'x, "y"', "c": 2.0}, {"a": 3.0, "b": "plain", "c": 4.0}]


def test_several_files_make_one_source(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "a,b\n1,2\n3,4")
    write(tmp_path / "2.csv", "a,b\r\n5,6\r\n")
    with CsvSource([tmp_path / "2.csv", tmp_path / "1.csv"]) as source:
        assert [row["a"] for row in rows(source)] == [5.0, 1.0, 3.0]
        assert "1 more" in source.name
    with CsvSource(tmp_path) as source:
        assert [row["a"] for row in rows(source)] == [1.0, 3.0, 5.0]


def test_libsvm_rows(tmp_path: Path) -> None:
    text = "# a comment\n+1 qid:7 0:1.5 3:-2e-1 # more: 3:4\n\n-1\n2.5\t1:1\r\n"
    with LibsvmSource(write(tmp_path / "a.svm", text)) as source:
        assert isinstance(source, BlockSource)
        assert source.schema.names == ["label", "indices", "values"]
        assert rows(source) == [
            {"label": 1.0, "indices": [0, 3], "values": [1.5, float(np.float32(-0.2))]},
            {"label": -1.0, "indices": [], "values": []},
            {"label": 2.5, "indices": [1], "values": [1.0]},
        ]
        assert source.read(0, ["values", "label"]).schema.names == ["values", "label"]


def test_block_size_and_estimates(tmp_path: Path) -> None:
    lines = 40_000
    path = write(tmp_path / "a.csv", "a,b\n" + "".join(f"{i},{i * 7 % 100}\n" for i in range(lines)))
    with CsvSource(path) as source:
        assert 60 <= len(source.block_rows) <= 70
        assert source.block_rows.sum() == pytest.approx(lines, rel=0.05)
        assert source.block_bytes.sum() == os.path.getsize(path) - 4
        assert source.block_rows.dtype == source.block_bytes.dtype == np.int64
    with CsvSource(path, block_size="32KiB") as source:
        assert source.block_bytes.max() <= 32768
    assert block_size_for(10**10, line_bytes=100, block_size=None) == 1_000_000
    assert block_size_for(5000, line_bytes=100, block_size="auto") == 4096


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    wide = [",".join(f"{i}.{j:04d}" for j in range(2000)) for i in range(3)]
    path = write(tmp_path / "a.csv", "\n".join(wide))
    with CsvSource(path, block_size=1000, header=False) as source:
        found = [batch for k in range(len(source.block_rows)) if len(batch := source.read(k))]
        assert len(source.block_rows) > 30
        assert [int(b.column(0)[0].as_py()) for b in found] == [0, 1, 2]


def test_reads_from_many_threads(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b,c\n" + "".join(f"{i},w{i},{i / 7}\n" for i in range(5000)))
    with CsvSource(path, block_size=4096) as source, ThreadPoolExecutor(8) as pool:
        blocks = list(range(len(source.block_rows))) * 4
        found = list(pool.map(source.read, blocks))
        first = found[: len(blocks) // 4]
        assert [x for b in first for x in b.column("a").to_pylist()] == list(range(5000))
        assert all(found[i].equals(first[i % len(first)]) for i in range(len(found)))


def test_fingerprint_follows_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with CsvSource(path) as one, CsvSource(path) as two:
        assert one.fingerprint == two.fingerprint
        before = one.fingerprint
    write(path, "a,b\n1,3\n")
    with CsvSource(path) as source:
        assert source.fingerprint != before


def test_formats_read_any_chunk() -> None:
    format = csv_format(b"a,b\n1,x\n2,y", "s.csv.gz", whole=False)
    assert (format.skip, format.schema.names) == (4, ["a", "b"])
    assert format.parse(b"3,z\n4,w").to_pylist() == [{"a": 3.0, "b": "z"}, {"a": 4.0, "b": "w"}]
    assert len(format.parse(b"")) == 0
    assert format.parse(b"").schema == format.schema
    assert libsvm_format("s", b"\xef\xbb\xbf1 1:2\n").skip == 3
    assert libsvm_format("s").parse(memoryview(b"1 1:2")).to_pylist() == [
        {"label": 1.0, "indices": [1], "values": [2.0]}
    ]


def test_libsvm_arrays_are_not_copied() -> None:
    batch = libsvm_format("s").parse(b"1 1:2 3:4\n-1 2:1\n")
    assert batch.column("indices").offsets.to_pylist() == [0, 2, 3]
    one, two = batch.column("indices"), batch.column("values")
    assert one.offsets.buffers()[1].address == two.offsets.buffers()[1].address


def test_a_wide_file(tmp_path: Path) -> None:
    header = ",".join(f"f{i}" for i in range(3000))
    path = write(tmp_path / "a.csv", header + "\n" + "\n".join(",".join(["0.5"] * 3000) for _ in range(20)))
    with CsvSource(path) as source:
        assert sum(len(source.read(k, ["f2999", "f0"])) for k in range(len(source.block_rows))) == 20


def test_whole_numbers_that_begin_with_a_zero_are_text(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text('zip,share,grade\n1234,0.5,1\n"0123",0.25,01\n99,0,2\n')
    with CsvSource(path) as source:
        assert source.read(0).to_pydict() == {
            "zip": ["1234", "0123", "99"],
            "share": [0.5, 0.25, 0.0],
            "grade": ["1", "01", "2"],
        }


def test_a_code_at_the_end_of_a_large_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sorted.csv"
    path.write_text("grade,x\n" + "1,0.5\n" * 400_000 + "01,0.5\n" * 100)
    with CsvSource(path) as source:
        assert source.schema.field("grade").type == pa.string()
        assert source.schema.field("x").type == pa.float64()


def test_texts_have_no_blanks_about_them(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name, size, kind\nada, 1, big one\nbob , 2,\nabe,3,\t\n")
    with open_source(str(path)) as source:
        rows = source.read(0)
    assert rows.column("name").to_pylist() == ["ada", "bob", "abe"]
    assert rows.column("kind").to_pylist() == ["big one", None, None]
    assert rows.column("size").to_pylist() == [1, 2, 3]
