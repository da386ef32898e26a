"""``penstock compare`` and ``penstock demo``: real child processes on small data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from typer.testing import CliRunner

from penstock.cli import app

pytestmark = pytest.mark.usefixtures("desk")


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


COMPARE = ("compare", "clicks.parquet", "--label", "clicked", "--epochs", "3", "--memory", "3MB")


def test_table_page_and_sentences() -> None:
    result = run(*COMPARE, "--test", "test.parquet", "--shuffles", "none,once,corgipile", "--report", "page.html")
    lines = result.stdout.splitlines()
    assert "clustered by label" in lines[0]
    header = " ".join(result.stdout.split("none ")[0].split())
    for words in ("final", "test", "accuracy", "99", "seconds", "total", "disk", "memory"):
        assert words in header
    rows = [line.split() for line in lines if line.startswith(("none", "once", "corgipile"))]
    assert [row[0] for row in rows] == ["none", "once", "corgipile"]
    accuracy = {row[0]: float(row[1]) for row in rows}
    assert accuracy["none"] < accuracy["corgipile"] - 2
    assert rows[0][3] == "never"
    assert lines[-1] == "wrote page.html"
    page = Path("page.html").read_text()
    assert "1,000 rows stored by label" in page
    assert "blocks of 20 rows, with a buffer of 10 blocks" in page
    assert "clustered by label" in page
    assert page.count("Order of") == 3
    assert not re.search(r"(src|href)=\"http", page)


def test_json_is_a_list_of_runs_and_holds_out_rows_without_a_test_set() -> None:
    found = json.loads(run(*COMPARE, "--shuffles", "once,block-only", "--json").stdout)
    assert [r["shuffle"] for r in found["runs"]] == ["once", "block-only"]
    assert found["out"] == "penstock-compare.html"
    assert found["validation"] == 0.05
    once = found["runs"][0]
    assert len(once["epochs"]) == 3
    assert 18_800 < once["epochs"][0]["rows"] < 19_200
    assert once["held_out_accuracy"] == once["final"] == once["epochs"][-1]["held_out_accuracy"]
    assert once["extra_disk_bytes"] > 500_000
    assert once["prepare_seconds"] > 0
    assert once["epochs_to_99"] == 1
    assert once["failed"] is None
    assert found["runs"][1]["extra_disk_bytes"] == 0
    assert all(r["peak_memory_bytes"] > 50_000_000 for r in found["runs"])


def test_one_strategy_fails_and_the_others_go_on() -> None:
    write_csv(pq.read_table("clicks.parquet"), "clicks.csv")
    result = run("compare", "clicks.csv", *COMPARE[2:-1], "300kB", "--shuffles", "global,corgipile")
    lines = result.stdout.splitlines()
    assert re.match(r"global\s+failed", next(line for line in lines if line.startswith("global")))
    assert any(line.startswith("global failed: shuffle='global' reads single rows") for line in lines)
    assert re.match(r"corgipile\s+9", next(line for line in lines if line.startswith("corgipile")))
    assert "global" in Path("penstock-compare.html").read_text()


def test_what_is_wrong_for_all_is_said_once() -> None:
    table = pa.table({"x": [1.0, 2.0] * 50, "y": [1] * 100})
    pq.write_table(table, "flat.parquet")
    result = run("compare", "flat.parquet", "--label", "y", "--shuffles", "none,corgipile", code=1)
    assert result.stderr.count("error: ") == 1
    assert not Path("penstock-compare.html").exists()
    assert "did you mean 'clicked'?" in run("compare", "clicks.parquet", "--label", "cliked", code=1).stderr
    assert "did you mean 'once'?" in run(*COMPARE, "--shuffles", "none,onc", code=2).stderr
    assert "the smallest that works is" in run(*COMPARE[:-1], "1kB", "--shuffles", "none,mrs", code=2).stderr


def test_regression_compares_r2() -> None:
    found = json.loads(run(*COMPARE, "--model", "linear", "--shuffles", "corgipile", "--json").stdout)
    assert found["runs"][0]["final"] == found["runs"][0]["held_out_r2"]


def test_demo() -> None:
    result = run("demo", "--size", "5MB")
    assert "44,247 rows of 28 features, stored by label" in result.stdout
    assert "h_D" in result.stdout
    table = [line.split() for line in result.stdout.splitlines() if re.match(r"(none|corgipile) .* % ", line)]
    scores = {row[0]: float(row[1]) for row in table}
    assert scores["none"] < scores["corgipile"] - 10
    assert "penstock-demo.html" in result.stdout
    assert "clustered by label" in Path("penstock-demo.html").read_text()
    assert not list(Path().glob("*.arrow"))


def test_demo_keeps_its_data_in_a_folder_given_and_speaks_json() -> None:
    Path("kept").mkdir()
    found = json.loads(run("demo", "--size", "1MB", "--dir", "kept", "--report", "d.html", "--json").stdout)
    assert [r["shuffle"] for r in found["runs"]] == ["none", "sliding-window", "once", "corgipile"]
    assert found["out"] == "d.html"
    assert {p.name for p in Path("kept").iterdir()} == {"clustered.arrow", "test.arrow"}
