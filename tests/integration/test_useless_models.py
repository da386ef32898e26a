"""A model that is no better than a constant prediction is told in every door: by the last line, in JSON, by the exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app


def run(*args: str, code: int) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make labels and ratings that are chance."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    rows = 1500
    y = (rng.random(rows) < 0.1).astype(int)
    dense = {f"x{j}": rng.normal(size=rows) for j in range(40)}
    pq.write_table(pa.table({**dense, "g": np.arange(rows) % 2, "y": y}), "dense.parquet")
    indices = [np.unique(rng.integers(0, 500, 20)) for _ in range(rows)]
    pq.write_table(
        pa.table({"indices": indices, "values": [np.ones(len(each)) for each in indices], "y": y}), "sparse.parquet"
    )
    users, items = rng.integers(0, 100, rows), rng.integers(0, 80, rows)
    pq.write_table(pa.table({"u": users, "i": items, "r": rng.normal(size=rows)}), "ratings.parquet")


SPARSE = ("train", "sparse.parquet", "--label", "y", "--model-dir", "m", "--learning-rate", "1", "--epochs", "3")
FACTOR = (
    *("train", "ratings.parquet", "--model", "factor", "--user", "u", "--item", "i", "--rating", "r"),
    *("--rank", "4", "--model-dir", "f", "--learning-rate", "0.2", "--epochs", "5"),
)
GROUPS = (
    "groups",
    "train",
    "dense.parquet",
    "--by",
    "g",
    "--label",
    "y",
    "--workers",
    "1",
    "--out",
    "g",
    "--try",
    "learning_rate=5",
)


@pytest.mark.parametrize("line", [SPARSE, FACTOR, GROUPS], ids=["on disk", "factor", "groups"])
def test_the_last_line_the_json_and_the_exit_status_tell(line: tuple[str, ...]) -> None:
    told = run(*line, code=1)
    assert "useless" in told.stdout.splitlines()[-1]
    assert "no better than predicting" in told.stdout.splitlines()[-1]
    found = json.loads(run(*line, "--resume", "--json", code=1).stdout)
    assert "no better than predicting" in found["useless"]
    run(*line, "--resume", "--keep-anyway", code=0)


STATEMENT = "SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'y', exclude = 'g', learning_rate = 5, epochs = 1)"


def test_sql_tells() -> None:
    run("sql", "CREATE TABLE t AS SELECT * FROM 'dense.parquet'", "--db", "d.duckdb", code=0)
    found = json.loads(run("sql", STATEMENT, "--db", "d.duckdb", "--json", code=1).stdout)["results"][0]
    assert "no better than predicting" in found["useless"]
    assert "useless" in found["notes"][-1]
    with penstock.connect("d.duckdb") as session:
        assert session.sql(STATEMENT.replace(" AS m", " AS other")).useless is not None


def test_a_good_model_is_not_told_so() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    pq.write_table(pa.table({"x": x, "y": (x + 0.1 * rng.normal(size=1000) > 0).astype(int)}), "good.parquet")
    statements = "CREATE TABLE t AS SELECT * FROM 'good.parquet'; SELECT * FROM t TRAIN BY logistic WITH (label = 'y')"
    found = json.loads(run("sql", statements, "--json", code=0).stdout)["results"][1]
    assert found["useless"] is None
