"""JSON lines are converted as what they are; files that are plainly something else than their name says are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks import row_streams
from penstock.errors import DataError, ParseError, SourceError, UnknownOptionError, UsageError


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def converted(path: Any, **options: Any) -> pa.Table:
    target = Path("converted.arrow")
    penstock.convert(path, target, **options)
    with pa.ipc.open_file(target) as file:
        return file.read_all()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["y.jsonl", "y.ndjson", "y.JSONL", "y.json", "y", "y.dat"])
def test_objects_become_rows(name: str, here: Path) -> None:
    rows = [{"x": i / 4, "n": i, "t": f"a{i}", "b": i % 2 == 0} for i in range(1000)]
    assert converted(write(here / name, rows)).to_pylist() == rows


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", pa.Codec("zstd").compress)],
)
def test_compressed(suffix: str, packed: Any, here: Path) -> None:
    rows = [{"x": i} for i in range(100)]
    text = write(here / "y.jsonl", rows).read_bytes()
    for name in (f"z.jsonl{suffix}", f"z.json{suffix}"):
        data = packed(text)
        (here / name).write_bytes(data if isinstance(data, bytes) else data.to_pybytes())
        assert converted(name).to_pylist() == rows


def test_types_hold_for_all_rows_wherever_they_show(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "CHUNK", 200)  # so that few rows make many chunks
    rows: list[dict[str, Any]] = [{"n": i, "d": "2020-01-01", "none": None} for i in range(100)]
    rows += [{"n": 0.5, "late": [1, 2]}, {"late": [0.5], "d": "text"}, {"n": None}]
    found = converted(write(here / "y.jsonl", rows))
    assert found.schema.types == [pa.float64(), pa.string(), pa.float64(), pa.list_(pa.float64())]
    names = ["n", "d", "none", "late"]
    assert found.to_pylist() == [{name: row.get(name) for name in names} for row in rows]


def test_training_reads_the_lines_and_the_converted_file(here: Path) -> None:
    rows = [{"x": i % 2 * 2 - 1, "y": i % 2} for i in range(200)]
    path = write(here / "y.jsonl", rows)
    assert penstock.LogisticRegression(epochs=2).fit(path, y="y").score(path, "y") == 1
    with penstock.open("y.jsonl", format="jsonl") as source:
        assert int(source.block_rows.sum()) == 200
    penstock.convert(path, "y.arrow", label="y")
    assert penstock.LogisticRegression(epochs=2).fit("y.arrow").score("y.arrow") == 1


@pytest.mark.parametrize(
    ("lines", "line", "told"),
    [
        (['{"a": 1}', "", '{"a": "x"}'], 3, "'a' holds text, but numbers before"),
        (['{"a": 1}', '{"a": true}'], 2, "'a' holds true or false, but numbers before"),
        (['{"a": 1}', '{"a": {"b": 2}}'], 2, "'a' holds an object, but numbers before"),
        (['{"a": {"b": 2}}', '{"a": 1}'], 2, "'a' holds numbers, but an object before"),
        (['{"a": {"b": {"c": 2}}}', '{"a": {"b": {"c": "x"}}}'], 2, "'a.b.c' holds text, but numbers before"),
        (['{"a": {"b": [{"c": 2}]}}'], 1, "'a.b' holds a list of an object"),
        (['{"a": {"b": 1, "b": 2}}'], 1, "'b' stands in it twice"),
        (['{"a": [{"b": 2}]}'], 1, "'a' holds a list of an object"),
        (['{"a": [1]}', '{"a": 1}'], 2, "'a' holds numbers, but a list of numbers before"),
        (['{"a": [1, "x"]}'], 1, "'a'"),
        (['{"a": 1}', "nonsense"], 2, "not one JSON object"),
        (['{"a": 1}', '{"a": 1} {"a": 2}'], 2, "not one JSON object"),
        (["{", '"a": 1', "}"], 1, "not one JSON object"),
        (['{"a": 1}', "[1, 2]"], 2, "instead of an object"),
        (['{"a": 1, "a": 2}'], 1, "'a' stands in it twice"),
        (['{"a": 1}', '{"a": '], 2, "not one JSON object"),
    ],
)
@pytest.mark.parametrize("before", [0, 500])
def test_faults_name_the_line(
    lines: list[str], line: int, told: str, before: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_streams, "CHUNK", 1000)
    (here / "y.jsonl").write_text('{"z": 1}\n' * before + "\n".join(lines) + "\n")
    with pytest.raises(ParseError, match=told) as caught:
        converted("y.jsonl")
    assert f"y.jsonl:{before + line}:" in str(caught.value)
    assert not Path("converted.arrow").exists()


def test_text_that_is_not_utf8(here: Path) -> None:
    (here / "y.jsonl").write_bytes(b'{"a": "x"}\n{"a": "\xff"}\n')
    with pytest.raises(ParseError, match=r"y\.jsonl:2: text that is not UTF-8"):
        converted("y.jsonl")


def test_a_type_that_changes_between_chunks_or_files_names_the_line(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_streams, "CHUNK", 500)
    (here / "d").mkdir()
    write(here / "d" / "a.jsonl", [{"a": i} for i in range(300)])
    write(here / "d" / "b.jsonl", [{"a": None}, {"a": "x"}])
    with pytest.raises(ParseError, match=r"b\.jsonl:2: column 'a' holds text, but numbers before"):
        converted("d")
    write(here / "d" / "b.jsonl", [{"b": 1.5}])
    (here / "d" / "README").write_text("about")
    found = converted("d")
    assert (len(found), found["b"].to_pylist()[-2:]) == (301, [None, 1.5])
    pq.write_table(pa.table({"a": [1]}), here / "d" / "c.parquet")
    with pytest.raises(UsageError, match=r"a\.jsonl holds JSON lines and .*c\.parquet does not"):
        converted("d")


def test_odd_files(here: Path) -> None:
    (here / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="no rows"):
        converted("empty.jsonl")
    write(here / "y.jsonl", [{"a": 1}])
    with pytest.raises(UnknownOptionError, match="delimiter"):
        converted("y.jsonl", delimiter=";")
    with pytest.raises(UsageError, match=r"ends in \.arrow"):
        penstock.convert("y.jsonl", "z.jsonl")
    (here / "mark.jsonl").write_bytes(b"\xef\xbb\xbf" + (here / "y.jsonl").read_bytes())
    assert converted("mark.jsonl").to_pylist() == [{"a": 1}]


def excel() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", "<x/>")
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def sqlite() -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a)")
    return database.serialize()


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), file)
    return file.getvalue()


FOREIGN = {
    "an Excel workbook": excel(),
    "npz": npz(),
    "SQLite": sqlite(),
    "pickle": pickle.dumps({"a,b": [1, 2]}),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "JSON array": b'[{"a": 1, "b": 2}, {"a": 3, "b": 4}]',
    "a JSON array": b"[1, 2]\n[3, 4]\n",
    "ORC": b"ORC\x08\x03\x10\x00,",
    "Avro": b"Obj\x01,avro.codec",
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:1,2\n",
    "web page": b"<!DOCTYPE html>\n<html>a,b</html>",
    "UTF-16": "a,b\n1,2\n".encode("utf-16"),
    "lz4": b"\x04\x22\x4d\x18,,",
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("name", ["x.dat", "x.csv", "x.json"])
def test_what_is_no_table_is_not_taken_for_csv(what: str, name: str, here: Path) -> None:
    (here / name).write_bytes(FOREIGN[what])
    for call in (penstock.open, converted):
        with pytest.raises(SourceError, match=what):
            call(name)


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("Parquet", parquet()),
        ("gzip", gzip.compress(b"a,b\n1,2\n")),
        ("JSON lines", b'{"a": 1, "b": 2}\n{"a": 1, "b": 2}\n'),
    ],
    ids=["parquet", "gzip", "json-lines"],  # not by content: gzip's has the time in it
)
def test_other_formats_named_csv(what: str, content: bytes, here: Path) -> None:
    (here / "x.csv").write_bytes(content)
    with pytest.raises(SourceError, match=what):
        penstock.open("x.csv")


@pytest.mark.parametrize("header", ["ORCID,b", "[a],b", "{a},b", "RDX,GIF8", "PAR1,b", "BZhen,b"])
def test_texts_that_begin_oddly_are_csv(header: str, here: Path) -> None:
    (here / "x.csv").write_text(f"{header}\n1,2\n")
    with penstock.open("x.csv") as source:
        assert source.schema.names == header.split(",")


def test_a_column_of_nothing_but_nan_at_first_may_be_text_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "CHUNK", 200)
    rows: list[Any] = [
        {"g": float("nan"), "x": k, "t": 'say "x": NaN, "y"', "in": {"g": float("nan")}} for k in range(60)
    ]
    rows += [{"g": text, "x": 0.5, "t": "NaN", "in": {"g": text}} for text in ("p", "NaN", '\\": NaN')]
    path = write(Path("late.jsonl"), [*rows, {"g": float("nan"), "x": float("nan"), "t": "u"}])
    table = converted(path)
    assert table.column("g").to_pylist() == [None] * 60 + ["p", "NaN", '\\": NaN', None]
    assert [each and each["g"] for each in table.column("in").to_pylist()] == table.column("g").to_pylist()
    assert table.column("t").to_pylist() == [row["t"] for row in rows] + ["u"]
    assert table.column("x").to_pylist()[:-1] == [float(row["x"]) for row in rows]


def test_nan_is_a_number_among_numbers() -> None:
    table = converted(write(Path("a.jsonl"), [{"a": 1}, {"a": float("nan")}, {"a": 2.5}]))
    assert np.isnan(table.column("a").to_numpy()).tolist() == [False, True, False]


def test_objects_within_rows_are_structs_as_those_of_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_streams, "CHUNK", 300)
    places = [{"city": "uv"[k % 2], "at": {"lat": k if k < 30 else k / 7}} for k in range(60)]
    rows = [{"place": place, "y": k % 2} for k, place in enumerate(places)]
    rows += [{"place": {"note": None, "tags": ["a"]}, "y": 1}, {"place": None, "y": 0}, {"y": 1}]
    table = converted(write(Path("a.jsonl"), rows))
    kinds = {
        "city": pa.string(),
        "at": pa.struct([("lat", pa.float64())]),
        "note": pa.float64(),
        "tags": pa.list_(pa.string()),
    }
    assert table.schema.field("place").type == pa.struct(list(kinds.items()))
    found = table.column("place").to_pylist()
    assert [each["city"] for each in found[:60]] == ["u", "v"] * 30
    assert [each["at"]["lat"] for each in found[:60]] == pytest.approx([place["at"]["lat"] for place in places])
    assert found[60] == {"city": None, "at": None, "note": None, "tags": ["a"]}
    assert found[61:] == [None, None]


def test_features_are_learned_from_within_objects() -> None:
    rows = [{"place": {"city": "uv"[k % 2], "lat": k / 7}, "y": k % 2} for k in range(300)]
    path = write(Path("a.jsonl"), rows)
    pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    told = [
        penstock.LogisticRegression(epochs=2).fit(data, y="y").score("a.parquet", "y") for data in (path, "a.parquet")
    ]
    assert told == [1, 1]
