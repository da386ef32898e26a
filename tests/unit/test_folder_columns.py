"""Conversion keeps the columns that stand in folder names, names rows by their files, and tells of text among numbers."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks import convert
from penstock.errors import DataError
from penstock.events import Warned

ROWS = {("FR", 1): [1.0, 2.0], ("FR", 2): [3.0], ("DE", 1): [4.0, 5.0, 6.0]}


def write(path, values):
    table = pa.table({"x": values})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".arrows":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"x": value}) + "\n" for value in values))
    else:
        text = "\n".join(["x", *map(str, values)]).encode() + b"\n"
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def hive(root, name):
    for (country, day), values in ROWS.items():
        folder = root / f"country={country}" / f"day={day}"
        folder.mkdir(parents=True)
        write(folder / name, values)
    (root / "_SUCCESS").write_text("")
    return root


@pytest.mark.parametrize("name", ["p.parquet", "p.arrow", "p.arrows", "p.csv", "p.csv.gz", "p.jsonl"])
def test_columns_in_folder_names_are_converted(tmp_path, name):
    convert(hive(tmp_path / "hive", name), tmp_path / "t.arrow")
    with penstock.open(tmp_path / "t.arrow") as source:
        found = [row for block in range(len(source.block_rows)) for row in source.read(block).to_pylist()]
    wanted = [{"x": x, "country": c, "day": d} for (c, d), values in ROWS.items() for x in values]
    assert sorted(found, key=lambda row: row["x"]) == wanted
    assert source.schema.field("day").type == pa.int64()


@pytest.mark.parametrize("name", ["p.parquet", "p.arrow", "p.csv"])
def test_columns_in_folder_names_are_columns_of_the_source(tmp_path, name):
    with penstock.open(hive(tmp_path / "hive", name)) as source:
        assert source.schema.names == ["x", "country", "day"]
        assert source.schema.field("day").type == pa.int64()
        blocks = range(len(source.block_rows))
        found = [row for block in blocks for row in source.read(block, ["day", "x"]).to_pylist()]
        assert sum(len(source.read(block, ["country"])) for block in blocks) == 6
    wanted = [{"day": d, "x": x} for (_, d), values in ROWS.items() for x in values]
    assert sorted(found, key=lambda row: row["x"]) == wanted


def test_folders_above_the_files_named_are_no_columns(tmp_path):
    data = hive(tmp_path / "run=3", "p.parquet")
    with penstock.open(data) as source:
        assert source.schema.names == ["x", "country", "day"]
    with penstock.open(data / "country=FR" / "day=1" / "p.parquet") as source:
        assert source.schema.names == ["x"]


def test_a_column_in_folder_names_can_be_the_label_or_left_out(tmp_path):
    data = hive(tmp_path / "hive", "p.parquet")
    convert(data, tmp_path / "t.arrow", label="country", features=["x", "day"])
    with penstock.open(tmp_path / "t.arrow") as source:
        assert source.schema.names == ["features", "country"]
    convert(data, tmp_path / "u.arrow", exclude=["country"])
    with penstock.open(tmp_path / "u.arrow") as source:
        assert source.schema.names == ["x", "day"]


def test_a_row_that_cannot_be_converted_is_named_by_its_own_file(tmp_path):
    for name, labels in (("a", [0, 1]), ("b", [0, None])):
        pq.write_table(pa.table({"x": [1.0, 2.0], "y": labels}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: 'y' is missing \(null\) in row 1"):
        convert(str(tmp_path / "*.parquet"), tmp_path / "t.arrow", label="y", missing="refuse")


def test_a_column_of_numbers_that_turned_to_text_is_told_of(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "".join(f"{i},{'7 km' if i == 7 else i},w{i}\n" for i in range(100)))
    heard = []
    convert(path, tmp_path / "t.arrow", listen=heard.append)
    warned = [event.message for event in heard if isinstance(event, Warned)]
    assert len(warned) == 1
    assert "'b'" in warned[0]
    assert "'7 km'" in warned[0]
