"""Outputs of every door: an address of another machine, or a folder that is missing, is refused before data are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock import bigmodel, groups
from penstock.cli import app
from penstock.config import Config
from penstock.errors import PenstockError, UsageError, WriteError
from penstock.events import Stream
from penstock.linear import LinearModel
from penstock.memory_learner import linear_job
from penstock.outputs import local_path
from penstock.sql.session import Session
from penstock.training import Columns

ADDRESSES = ["s3://bucket/x", "gs://bucket/x", "https://host/x", "hdfs://host/x", "file:///tmp/x"]
# The data of these commands are not there: what refuses the output has looked at nothing else.
COMMANDS = {
    "train": ["train", "none.parquet", "--label", "y", "--out"],
    "model-dir": ["train", "none.svm", "--model-dir"],
    "factor": [
        "train",
        "none.parquet",
        "--model",
        "factor",
        "--user",
        "u",
        "--item",
        "i",
        "--rating",
        "r",
        "--model-dir",
    ],
    "scratch": ["train", "none.parquet", "--label", "y", "--scratch"],
    "predict": ["predict", "none.penstock", "none.parquet", "--out"],
    "evaluate": ["evaluate", "none.penstock", "none.parquet", "--report"],
    "convert": ["convert", "none.csv"],
    "compare": ["compare", "none.parquet", "--label", "y", "--report"],
    "compare scratch": ["compare", "none.parquet", "--label", "y", "--scratch"],
    "groups": ["groups", "train", "none.parquet", "--by", "a", "--label", "y", "--out"],
    "groups rows": ["groups", "train", "none.parquet", "--by", "a", "--label", "y", "--out", "o", "--rows"],
    "groups page": ["groups", "train", "none.parquet", "--by", "a", "--label", "y", "--out", "o", "--report"],
    "groups report": ["groups", "report", "none", "--out"],
    "groups show": ["groups", "show", "none", "--csv"],
    "groups predict": ["groups", "predict", "none", "none.parquet", "--out"],
    "demo": ["demo", "--size", "1MB", "--report"],
    "demo data": ["demo", "--size", "1MB", "--report", "p.html", "--dir"],
}
FOLDERS = {"model-dir", "factor", "groups", "groups rows", "demo data"}  # made where they are missing
SCRATCH = {"scratch", "compare scratch"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_addresses(command: str, here: Path) -> None:
    for address in ADDRESSES[: 5 if command == "train" else 1]:
        found = CliRunner().invoke(app, [*COMMANDS[command], address])
        assert (found.exit_code, found.stdout) == (2, "")
        assert address in found.stderr
        assert "on this machine only" in found.stderr
    assert not list(here.iterdir())


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - FOLDERS - SCRATCH))
def test_commands_refuse_missing_folders(command: str, here: Path) -> None:
    found = CliRunner().invoke(app, [*COMMANDS[command], "missing/out.arrow"])
    assert (found.exit_code, found.stdout) == (1, "")
    assert "no folder missing" in found.stderr
    assert not list(here.iterdir())


@pytest.mark.parametrize("command", sorted(FOLDERS))
def test_commands_refuse_folders_below_a_file(command: str, here: Path) -> None:
    (here / "file").touch()
    found = CliRunner().invoke(app, [*COMMANDS[command], "file/out"])
    assert (found.exit_code, found.stdout) == (1, "")
    assert "file is a file" in found.stderr
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.parametrize("command", sorted(SCRATCH))
def test_commands_refuse_a_folder_for_copies_that_is_missing(command: str, here: Path) -> None:
    found = CliRunner().invoke(app, [*COMMANDS[command], "missing"])
    assert (found.exit_code, found.stdout) == (1, "")
    assert "copies of the data to missing: there is no such folder" in found.stderr
    assert not list(here.iterdir())


def fitted() -> penstock.LogisticRegression:
    return penstock.LogisticRegression(epochs=1).fit(table(), y="y")


def table() -> pa.Table:
    x = np.linspace(-1, 1, 100)
    return pa.table({"a": np.arange(100) % 2, "x": x, "y": (x > 0).astype(int)})


def factors(folder: Any) -> Any:
    return bigmodel.MatrixFactorization(folder)


CALLS: dict[str, Callable[[Any], Any]] = {
    "save": lambda out: fitted().save(out),
    "predict": lambda out: fitted().predict("none.parquet", out=out),
    "convert": lambda out: penstock.convert("none.parquet", out),
    "bigmodel": lambda out: bigmodel.LogisticRegression(out).fit("none.svm"),
    "factor": lambda out: factors(out).fit("none.parquet"),
    "groups": lambda out: groups.GroupBy("none.parquet", by="a").fit(
        penstock.LinearRegression(solver="lbfgs"), y="y", out=out
    ),
    "groups rows": lambda out: groups.GroupBy("none.parquet", by="a", rows=out).fit(
        penstock.LinearRegression(solver="lbfgs"), y="y"
    ),
    "scratch": lambda out: linear_job(penstock.open(table()), Config(), Columns("y"), scratch=out).run(),
    "checkpoint": lambda out: linear_job(penstock.open(table()), Config(), Columns("y"), checkpoint=out).run(),
    "model": lambda out: LinearModel.save(fitted().model_, out),
}


@pytest.mark.parametrize("call", CALLS)
def test_calls_refuse_addresses(call: str, here: Path) -> None:
    for address in ("s3://bucket/x.arrow", Path("s3://bucket/x.arrow")):
        with pytest.raises(UsageError, match="on this machine only"):
            CALLS[call](address)
    assert not list(here.iterdir())


def test_a_checkpoint_in_a_missing_folder_is_refused_before_training() -> None:
    events: list[Any] = []
    with pytest.raises(WriteError, match="no folder missing"):
        linear_job(
            penstock.open(table()), Config(), Columns("y"), checkpoint="missing/x", stream=Stream([events.append])
        ).run()
    assert not events


@pytest.mark.usefixtures("inline")
def test_results_of_groups_refuse_addresses(here: Path) -> None:
    result = groups.GroupBy(table(), by="a").fit(penstock.LinearRegression(solver="lbfgs"), y="y", workers=1)
    with pytest.raises(UsageError, match="on this machine only"):
        result.save("s3://bucket/x")
    with pytest.raises(UsageError, match="on this machine only"):
        result.predict("none.parquet", out="s3://bucket/x")
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "statement", ["EXPORT MODEL m TO 's3://bucket/x'", "TABLE t TRAIN BY svm WITH (folder = 's3://b')"]
)
def test_statements_refuse_addresses(statement: str, here: Path) -> None:
    with Session() as session:
        session.sql("CREATE TABLE t AS SELECT i % 2 AS label, (i % 2) * 2.0 - 1 AS x FROM range(100) r(i)")
        session.sql("CREATE VIEW v AS SELECT * FROM t ORDER BY x")
        session.sql("SELECT * FROM t TRAIN BY svm AS m WITH (epochs = 1)")
        with pytest.raises(PenstockError, match="on this machine only"):
            session.sql(statement.replace("TABLE t", "SELECT label, x FROM v WHERE x < 2"))
    assert not list(here.iterdir())


def test_local_paths_pass() -> None:
    pq.write_table(table(), "x.parquet")
    for path in ("out", "./s3:/x", "/a:/b", "a:b", "C:/x", Path("dir/x"), "a b://c"):
        assert local_path(path) == Path(path)
