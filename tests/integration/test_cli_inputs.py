"""What commands take as DATA: several files, folders whose names are columns, JSON lines and compressed text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import app


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


def clicks(rows: int = 900) -> pa.Table:
    rng = np.random.default_rng(3)
    age, country = rng.normal(size=rows), rng.choice(["FR", "IT", "NO"], rows)
    clicked = (age + 2 * (country == "FR") + rng.normal(0, 0.3, rows) > 0.7).astype(int)
    return pa.table({"age": age, "country": country, "clicked": clicked})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_several_files_are_one_table(place):
    """What the shell makes of ``*`` is taken by every command that reads rows."""
    table = clicks()
    pq.write_table(table.slice(0, 500), "a.parquet")
    pq.write_table(table.slice(500), "b.parquet")
    trained = as_json("train", "a.parquet", "b.parquet", "--label", "clicked", "--out", "m")
    assert trained["data"] == "a.parquet and 1 more"
    assert as_json("evaluate", "m", "a.parquet", "b.parquet")["rows"] == 900
    assert as_json("predict", "m", "b.parquet", "a.parquet", "--out", "p.parquet")["rows"] == 900
    assert as_json("explain", "a.parquet", "b.parquet", "--label", "clicked", "--no-storage")["shape"]["rows"] == 900
    made = as_json(
        *("groups", "train", "a.parquet", "b.parquet", "--by", "country", "--label", "clicked", "--out", "g"),
        *("--workers", "1", "--report", "g.html"),
    )
    assert (made["groups"], made["data"]) == (3, "a.parquet and 1 more")
    assert as_json("groups", "evaluate", "g", "a.parquet", "b.parquet")["rows"] == 900


def test_files_of_several_formats_are_refused(place):
    pq.write_table(clicks(), "a.parquet")
    Path("b.csv").write_text("age,country,clicked\n1,FR,1\n")
    assert "several formats" in run("train", "a.parquet", "b.csv", "--label", "clicked", code=2).stderr


def write_hive(table: pa.Table, root: Path) -> None:
    for country in ("FR", "IT", "NO"):
        part = table.filter(pa.compute.equal(table["country"], country)).drop_columns("country")
        (root / f"country={country}").mkdir(parents=True)
        pq.write_table(part, root / f"country={country}" / "part-0.parquet")


@pytest.mark.parametrize("named", ["hive", "hive/country=*/*.parquet"])
def test_columns_in_the_names_of_folders_are_features(place, named):
    """A column that stands in the paths is learned from and found again for predictions."""
    table = clicks()
    write_hive(table, place / "hive")
    pq.write_table(table, "flat.parquet")
    as_json("train", named, "--label", "clicked", "--out", "m")
    without = as_json("train", named, "--label", "clicked", "--exclude", "country", "--out", "n")
    found = as_json("evaluate", "m", named)
    assert found["accuracy"] > as_json("evaluate", "n", named)["accuracy"] + 0.1
    assert without["features"] == 1
    assert as_json("evaluate", "m", "flat.parquet")["accuracy"] == found["accuracy"]
    run("predict", "m", named, "--out", "p.parquet", "--keep", "country")
    assert set(pq.read_table("p.parquet").column("country").to_pylist()) == {"FR", "IT", "NO"}
    assert as_json("explain", named, "--label", "clicked", "--no-storage")["shape"]["rows"] == 900


def test_a_column_in_the_names_of_folders_can_be_the_label(place):
    write_hive(clicks(), place / "hive")
    trained = as_json("train", "hive", "--label", "country", "--out", "m")
    assert trained["model"] == "softmax"


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.csv.gz"])
def test_json_lines_and_compressed_text_are_trained_on(place, name):
    """They are copied to the scratch folder, which is said, and the copy does not stay."""
    rows = clicks(600).to_pylist()
    if "jsonl" in name:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        text = "age,country,clicked\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    Path("scratch").mkdir()
    told = run("train", name, "--label", "clicked", "--scratch", "scratch", "--out", "m")
    assert f"{name} cannot be read in blocks, and was copied to scratch" in told.stderr
    assert not list(Path("scratch").iterdir())
    assert as_json("evaluate", "m", name)["rows"] == 600
    assert as_json("predict", "m", name, "--out", "p.parquet", "--keep", "country")["rows"] == 600
    made = as_json("groups", "train", name, "--by", "country", "--label", "clicked", "--out", "g", "--workers", "1")
    assert made["groups"] == 3


def test_folders_of_compressed_files_keep_their_columns(place):
    for country in ("FR", "IT"):
        folder = place / "hive" / f"country={country}"
        folder.mkdir(parents=True)
        rows = "".join(f"{i % 7},{int(country == 'FR')}\n" for i in range(60))
        (folder / "part.csv.gz").write_bytes(gzip.compress(f"a,y\n{rows}".encode()))
    as_json("train", "hive", "--label", "y", "--out", "m")
    assert as_json("evaluate", "m", "hive")["accuracy"] == 1.0
