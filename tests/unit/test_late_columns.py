"""Columns of CSV files that are empty in the first megabyte: their values decide later what they are."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.application import app

ROWS = 110_000


def write(path: Path, late: Callable[[int], str]) -> Path:
    """Write a file of over a megabyte, whose column ``g`` is given by the number of the row."""
    lines = (f"{i * 7 % 97},{late(i)},{i % 97 // 49 if i < ROWS * 0.9 else i % 2}\n" for i in range(ROWS))
    path.write_text("x,g,y\n" + "".join(lines))
    return path


def kind(path: Path) -> pa.DataType:
    with penstock.open(path) as source:
        return source.schema.field("g").type


@pytest.mark.parametrize("options", [[], ["--category", "g"], ["--exclude", "g"]])
def test_text_that_begins_late_is_text(tmp_path: Path, options: list[str]) -> None:
    path = write(tmp_path / "late.csv", lambda i: "" if i < ROWS * 0.9 else "pq"[i % 2])
    words = ["train", str(path), "--label", "y", "--out", str(tmp_path / "m"), "--epochs", "1", *options]
    done = CliRunner().invoke(app, words)
    assert "saved " in done.stdout + done.stderr, done.stderr
    assert kind(path) == pa.string()


def test_text_is_kept_wherever_it_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "rare.csv", lambda i: "q" if i == 80_123 else "")
    with penstock.open(path) as source:
        found = [
            v for b in range(len(source.block_rows)) for v in source.read(b, ["g"]).column(0).drop_null().to_pylist()
        ]
    assert found == ["q"]


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (lambda i: "" if i < ROWS * 0.9 else f"{i / 8}", pa.float64()),
        (lambda i: "" if i < ROWS * 0.9 else "007", pa.string()),
        (lambda i: "" if i < ROWS * 0.8 else "3" if i < ROWS * 0.99 else "z", pa.string()),
        (lambda i: "5" if i == 0 else "", pa.float64()),
    ],
)
def test_numbers_that_begin_late_are_numbers_unless_text_or_codes_are_among_them(
    tmp_path: Path, late: Callable[[int], str], expected: pa.DataType
) -> None:
    assert kind(write(tmp_path / "late.csv", late)) == expected


def test_a_column_that_is_empty_in_the_first_file_is_what_the_next_one_has(tmp_path: Path) -> None:
    for name, values in (("a.csv", ",,"), ("b.csv", "1,2,3"), ("c.csv", "1,u,3")):
        (tmp_path / name).write_text("x,g\n" + "".join(f"1,{value}\n" for value in values.split(",")))
    for names, expected in ((("a.csv", "b.csv"), pa.float64()), (("a.csv", "c.csv"), pa.string())):
        with penstock.open([tmp_path / name for name in names]) as source:
            assert source.schema.field("g").type == expected
            assert source.schema.field("x").type == pa.float64()
    assert kind(tmp_path / "a.csv") == pa.float64()  # there is nothing in it


def test_compressed_text_that_begins_late_is_read(tmp_path: Path) -> None:
    plain = write(tmp_path / "late.csv", lambda i: "" if i < ROWS * 0.9 else "pq"[i % 2])
    path = tmp_path / "late.csv.gz"
    path.write_bytes(gzip.compress(plain.read_bytes(), 1))
    assert kind(path) == pa.string()
