"""A share of small data that is too little to work with is raised, and one notice names what is used instead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.budget import SMALL
from penstock.cli.application import app
from penstock.errors import BudgetError
from penstock.torch import CorgiPileDataset

USED = "32.0 MB are used instead"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file whose row groups take more than a tenth of what all rows do."""
    drawn = np.random.default_rng(0)
    columns = {f"x{k}": drawn.normal(size=6000) for k in range(6)}
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    table = pa.table({**columns, "kind": drawn.choice(["a", "b"], 6000), "y": columns["x0"] > 0})
    pq.write_table(table, path, row_group_size=3000)
    return path


def run(*words: Any) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.stderr
    return done


@pytest.mark.parametrize("solver", ["sgd", "lbfgs"])
def test_a_share_of_a_small_file_is_raised_by_the_command_line(rows: Path, tmp_path: Path, solver: str) -> None:
    words = ["--label", "y", "--memory", "10%", "--solver", solver, "--epochs", "5"]
    done = run("train", rows, *words, "--out", tmp_path / "m.penstock")
    assert done.stderr.count("are used instead") == 1
    assert "warning: --memory 10% of" in done.stderr
    assert USED in done.stderr


def test_a_size_that_is_too_small_stays_refused(rows: Path) -> None:
    with pytest.raises(BudgetError, match="the smallest that works is"):
        penstock.LogisticRegression(memory="60kB").fit(rows, y="y")


@pytest.mark.parametrize(("memory", "raised"), [("10%", True), ("95%", False)])
def test_estimators_raise_only_a_share_that_is_too_little(
    rows: Path, memory: str, raised: bool, caplog: pytest.LogCaptureFixture
) -> None:
    penstock.LogisticRegression(memory=memory, epochs=1).fit(rows if raised else pq.read_table(rows), y="y")
    assert (USED in caplog.text) == raised


def test_a_plan_tells_what_a_share_is_raised_to(rows: Path) -> None:
    found = penstock.explain(rows, label="y", memory="10%", measure=False)
    assert found.memory_bytes == SMALL
    assert [each for each in found.warnings if USED in each]


@pytest.mark.parametrize("model", ["linear", "logistic"])
@pytest.mark.parametrize("solver", ["", ", solver = 'sgd'", ", solver = 'lbfgs'"])
def test_a_tenth_of_a_small_table_is_enough_in_duckdb(model: str, solver: str) -> None:
    with penstock.connect(":memory:") as session:
        session.sql(
            "CREATE TABLE houses AS SELECT i % 2 AS y, sin(i) AS a, cos(i) AS b, i % 7 AS c, sin(2 * i) AS d FROM range(16000) r(i)"
        )
        options = f"label = 'y', buffer_size = 10%, max_epoch_num = 1{solver}"
        assert session.sql(f"SELECT * FROM houses TRAIN BY {model} AS m WITH ({options})").rows


def test_loaders_raise_a_share_and_say_so(rows: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), penstock.batches(rows, 100, memory="10%") as batches:
        assert sum(len(batch["y"]) for batch in batches) == 6000
        assert batches.plan.memory == SMALL
    [notice] = caplog.messages
    assert notice.startswith(f"memory='10%' of {rows} is ")
    assert notice.endswith(USED)


def test_a_share_that_processes_divide_is_told_as_their_part(rows: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = CorgiPileDataset(rows, memory="10%", columns=("x0", "y"), rank=0, world=2)
    assert sum(1 for _ in dataset) == 3000
    [notice] = caplog.messages
    assert notice.startswith("memory='5%' of ")
    assert notice.endswith(f"{USED} (for each of 2 processes, which share the memory)")


def test_a_share_of_a_few_grouped_rows_is_raised(rows: Path, tmp_path: Path) -> None:
    words = ["--by", "kind", "--label", "y", "--memory", "10%", "--out", tmp_path / "groups"]
    assert "--memory 10% of" in run("groups", "train", rows, *words).stderr


def test_a_share_of_a_small_model_on_disk_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{i % 9 // 5} {1 + i % 9}:1 {10 + i % 7}:2\n" for i in range(2000)))
    words = ["train", path, "--model-dir", tmp_path / "model", "--memory", "10%", "--epochs", "1"]
    assert f"--model-memory 10% of the model is 409 B, which is too little; {USED}" in run(*words).stderr
    told = run("explain", path, "--model-dir", tmp_path / "other", "--memory", "10%").stdout
    assert USED in told


def test_a_share_of_a_small_factorization_is_raised(tmp_path: Path) -> None:
    drawn, path = np.random.default_rng(0), tmp_path / "ratings.parquet"
    users = drawn.integers(0, 50, 3000)
    table = {"u": users, "i": drawn.integers(0, 40, 3000), "r": users % 5}
    pq.write_table(pa.table(table), path)
    named = ["--user", "u", "--item", "i", "--rating", "r", "--rank", "2", "--memory", "10%"]
    words = ["train", path, "--model", "factor", "--model-dir", tmp_path / "model", *named, "--epochs", "1"]
    assert f"--memory 10% of the model is 108 B, which is too little; {USED}" in run(*words).stderr
