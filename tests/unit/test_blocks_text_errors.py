"""Text that cannot be used: each message names the place, the value and the remedy."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.blocks.csv import CsvSource, csv_format
from penstock.blocks.libsvm import LibsvmSource, libsvm_format
from penstock.errors import (
    ColumnError,
    DataChangedError,
    DataError,
    ParseError,
    SchemaError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


GOOD = "".join(f"{i},{i}.5,w{i},{'true' if i % 2 else 'false'}\n" for i in range(60_000))


@pytest.fixture(scope="module")
def long_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose beginning, on which the types rest, is good."""
    return write(tmp_path_factory.mktemp("text") / "long.csv", "a,b,c,d\n" + GOOD)


def read_with(path: Path, bad: str | bytes, tmp_path: Path) -> None:
    bad = bad.encode() if isinstance(bad, str) else bad
    made = write(tmp_path / "bad.csv", path.read_bytes() + bad + b"7,7.5,w7,true\n")
    with CsvSource(made) as source:
        for k in range(len(source.block_rows)):
            source.read(k)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("1,abc,w,true\n", ["bad.csv:60002", "'b'", "'abc'", "leave the field empty"]),
        ("\n1,2x,w,true\n", ["bad.csv:60003", "'2x'"]),
        ("1,2,w\n", ["bad.csv:60002", "expected 4 fields and found 3", "'1,2,w'"]),
        ("1,2,w,true,5\n", ["bad.csv:60002", "expected 4 fields and found 5"]),
        ('1,2,"w\nv",true\n', ["bad.csv:60002", "not closed on this line", "Parquet"]),
        ('1,2,w"v,true\n', ["bad.csv:60002", "stray quote"]),
        ('"1\n2",2,w,true\n', ["bad.csv:60002", "not closed on this line"]),
        ("1,2,w,perhaps\n", ["bad.csv:60002", "'d'", "'perhaps'", "true and false"]),
        (b"1,2,\xff\xfe,true\n", ["bad.csv:60002", "'c'", "not UTF-8"]),
    ],
)
def test_bad_lines(long_csv: Path, tmp_path: Path, bad: str | bytes, told: list[str]) -> None:
    with pytest.raises(ParseError) as raised:
        read_with(long_csv, bad, tmp_path)
    for part in told:
        assert part in str(raised.value)


def test_bad_lines_within_the_sample(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"a\.csv:3: expected 2 fields and found 3"):
        CsvSource(write(tmp_path / "a.csv", "a,b\n1,2\n1,2,3\n"))
    with pytest.raises(ParseError, match=r"a\.csv:2: a quote is opened but not closed"):
        CsvSource(write(tmp_path / "a.csv", 'a,b\n1,"x\ny"\n'))


def test_line_numbers_of_a_chunk_can_be_given() -> None:
    format = csv_format(b"a,b\n1,2\n", "s.csv.gz")
    with pytest.raises(ParseError, match=r"other:12: column 'b'"):
        format.parse(b"1,2\n1,x\n", name="other", first_line=11)
    with pytest.raises(ParseError, match=r"s:6: "):
        libsvm_format("s").parse(b"1 1:1\n1 x\n", first_line=lambda: 5)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("1 3:1 2:1", ["'2:1'", "sort the indices"]),
        ("1 3:1 3:1", ["'3:1'", "does not come after"]),
        ("1 3:x", ["'3:x'", "not an index:value pair"]),
        ("1 3", ["'3'", "not an index:value pair"]),
        ("1 -3:1", ["'-3:1'", "negative"]),
        ("1 3:1:2", ["'3:1:2'"]),
        ("1 9223372036854775808:1", ["9223372036854775808", "renumber"]),
        ("1,2 3:1", ["'1,2'", "several labels"]),
        ("yes 3:1", ["'yes'", "not a number"]),
        ("3:1 4:1", ["'3:1'", "not with a label"]),
    ],
)
def test_bad_libsvm_lines(tmp_path: Path, line: str, told: list[str]) -> None:
    path = write(tmp_path / "a.svm", "1 1:1 2:1\n" * 150_000 + line + "\n")
    with LibsvmSource(path) as source, pytest.raises(ParseError) as raised:
        source.read(len(source.block_rows) - 1, ["label"])
    for part in ["a.svm:150001", *told]:
        assert part in str(raised.value)


@pytest.mark.parametrize("kind", [CsvSource, LibsvmSource])
def test_empty_missing_and_closed(tmp_path: Path, kind: type[CsvSource] | type[LibsvmSource]) -> None:
    with pytest.raises(DataError, match=r"a\.txt is empty"):
        kind(write(tmp_path / "a.txt", ""))
    with pytest.raises(DataError, match=r"a\.txt (is empty|has no rows)"):
        kind(write(tmp_path / "a.txt", "\n\n"))
    with pytest.raises(SourceNotFoundError, match=r"nothing\.txt"):
        kind(tmp_path / "nothing.txt")
    source = kind(write(tmp_path / "a.txt", "1\n2\n"))
    source.close()
    with pytest.raises(SourceError, match="closed"):
        source.read(0)


def test_header_without_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a header but no rows"):
        CsvSource(write(tmp_path / "a.csv", "a,b\n"))


@pytest.mark.parametrize("how", ["grow", "touch", "replace", "remove"])
def test_a_file_that_changes(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    with CsvSource(path) as source:
        if how == "grow":
            write(path, "a,b\n1,2\n3,4\n")
        elif how == "touch":
            os.utime(path, ns=(1, 1))
        elif how == "replace":
            os.replace(write(tmp_path / "b.csv", "a,b\n1,9\n"), path)
        else:
            path.unlink()
        with pytest.raises(DataChangedError, match=r"a\.csv"):
            source.read(0)


def test_files_that_differ(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", "a,b\n1,2\n")
    for text, told in (
        ("a,c\n1,2\n", ["no 'b'", "no 'c'"]),
        ("a,b,c\n1,2,3\n", ["one.csv has no 'c'"]),
    ):
        with pytest.raises(SchemaError) as raised:
            CsvSource([one, write(tmp_path / "two.csv", text)])
        for part in ["one.csv", "two.csv", *told]:
            assert part in str(raised.value)
    with pytest.raises(SchemaError, match="2 fields against 3"):
        CsvSource([write(tmp_path / "x.csv", "1,2\n"), write(tmp_path / "y.csv", "1,2,3\n")])


def test_names_given_twice_and_unknown(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'a' more than once"):
        CsvSource(write(tmp_path / "a.csv", "a,b,a\n1,2,3\n"))
    with (
        CsvSource(write(tmp_path / "a.csv", "age,b\n1,2\n")) as source,
        pytest.raises(ColumnError, match=r"no column 'aeg'.*did you mean 'age'"),
    ):
        source.read(0, ["aeg"])


def test_compressed_text_is_refused_with_the_line_to_run(tmp_path: Path) -> None:
    by_magic = write(tmp_path / "a.csv", gzip.compress(b"a,b\n1,2\n"))
    by_name = write(tmp_path / "b.csv.zst", pa.Codec("zstd").compress(b"a,b\n1,2\n", asbytes=True))
    for path, named in ((by_magic, f"{by_magic}.gz"), (by_name, str(by_name))):
        with pytest.raises(SourceError, match=f"penstock convert {re.escape(named)} "):
            CsvSource(path)


def test_other_things_that_are_not_csv(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="UTF-16"):
        CsvSource(write(tmp_path / "a.csv", "a,b\n".encode("utf-16")))
    with pytest.raises(ParseError, match="carriage return"):
        CsvSource(write(tmp_path / "a.csv", "a,b\r1,2\r"))
    with pytest.raises(SourceError, match="Parquet"):
        CsvSource(write(tmp_path / "a.csv", b"PAR1\x15\x04\x15"))


@pytest.mark.parametrize("delimiter", [" ", ",,", "a", '"', "é", "", "-"])
def test_delimiters_that_cannot_be(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(UsageError, match="delimiter="):
        CsvSource(write(tmp_path / "a.csv", "a,b\n1,2\n"), delimiter=delimiter)


def test_block_sizes_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="block_size="):
        CsvSource(write(tmp_path / "a.csv", "a,b\n1,2\n"), block_size="many")


def test_a_file_rewritten_during_a_read_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", "x,y\n" + "1,2\n" * 100)
    with CsvSource(path) as source:
        parse = type(source.format).parse

        def rewritten(*args: object, **options: object) -> object:
            write(path, "x,y\n" + "oh no\n" * 50)
            return parse(source.format, b"1,2,3\n", None, name="a.csv", first_line=lambda: 1)  # type: ignore[arg-type]

        monkeypatch.setattr(type(source.format), "parse", rewritten)
        with pytest.raises(DataChangedError, match=r"a\.csv"):
            source.read(0)
