"""What commands take as DATA: several files, folders whose names are columns, JSON lines and compressed text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
