"""What `explain` says a model would reach: a quick fit on sampled rows, and the solver and scaling that training takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app

ROWS = 4000


def table(*, rows: int = ROWS, signal: float = 1.0) -> pa.Table:
    """Make rows sorted by label, of features of very different scales."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 5))
    score = signal * (2 * x[:, 0] - x[:, 1]) + rng.logistic(size=rows) + 1
    columns = {f"x{j}": x[:, j] * 10.0**j for j in range(5)}
    made = pa.table({**columns, "y": (score > 0).astype(np.int64), "z": score})
    return made.sort_by("y")


def test_the_fit_is_near_what_training_reaches_beside_the_largest_class() -> None:
    rows = table()
    found = penstock.explain(rows, label="y", exclude=["z"], measure=False)
    fit = found.fit
    assert fit is not None
    assert fit.metric == "accuracy"
    assert fit.better
    share = rows["y"].to_numpy().mean()
    assert fit.constant == pytest.approx(max(share, 1 - share), abs=0.03)
    model = penstock.LogisticRegression(validation=0.25).fit(rows, y="y", exclude=["z"])
    assert fit.score == pytest.approx(model.model_.metrics["held_out_accuracy"], abs=0.05)
    assert fit.rows + fit.tested_rows == ROWS
    assert f"accuracy {fit.score:.3f} on {fit.tested_rows:,} others" in str(found)
    assert found.recommendation.solver == model.model_.config["solver"] == "lbfgs"
    assert "mean 0 and spread 1" in found.recommendation.scaling
    assert "--shuffle" not in found.recommendation.command


def test_one_row_group_sorted_by_label_is_sampled_to_its_end(tmp_path: Path) -> None:
    rows = table(rows=60_000)
    pq.write_table(rows, tmp_path / "sorted.parquet", row_group_size=len(rows))
    found = penstock.explain(tmp_path / "sorted.parquet", label="y", exclude=["z"], measure=False)
    share = rows["y"].to_numpy().mean()
    assert found.fit.constant == pytest.approx(max(share, 1 - share), abs=0.05)
    assert not any("beginning" in str(warning) for warning in found.warnings)


def test_row_groups_too_large_to_be_sampled_to_their_ends_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.explanation.sample._DECODED_BYTES", 0)  # a file of 400 MB would take long to write
    rows = table(rows=60_000)
    pq.write_table(rows, tmp_path / "sorted.parquet", row_group_size=len(rows))
    found = penstock.explain(tmp_path / "sorted.parquet", label="y", exclude=["z"], measure=False)
    assert any("the beginning of row groups" in str(warning) for warning in found.warnings)


def test_a_regression_is_told_by_r2() -> None:
    found = penstock.explain(table(), label="z", exclude=["y"], model="linear", measure=False)
    assert found.fit is not None
    assert (found.fit.metric, found.fit.constant) == ("r2", 0.0)
    assert 0.3 < found.fit.score < 0.9
    assert found.recommendation.solver == "exact"


def test_features_that_tell_nothing_are_warned_of() -> None:
    found = penstock.explain(table(signal=0.0), label="y", exclude=["z"], measure=False)
    assert found.fit is not None
    assert not found.fit.better
    assert any("no better than a constant prediction" in warning for warning in found.warnings)


def test_sparse_rows_of_any_width_are_fitted() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 2000)
    indices = [[int(label) + 5, 10 + int(rng.integers(0, 2**30))] for label in y]
    rows = pa.table({"indices": indices, "values": [[1.0, 1.0]] * len(y), "y": y})
    found = penstock.explain(rows, label="y", measure=False)
    assert found.fit is not None
    assert found.fit.score > 0.95
    assert found.recommendation.solver == "sgd"
    assert "not centered" in found.recommendation.scaling


def test_too_few_rows_are_said_so() -> None:
    found = penstock.explain(table(rows=60), label="y", exclude=["z"], measure=False)
    assert found.fit is None
    assert "too few" in found.fit_note
    assert found.fit_note in str(found)


def test_json_has_it_and_the_line_trains_by_that_solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(), "rows.parquet")
    line = ["explain", "rows.parquet", "--label", "y", "--exclude", "z", "--no-storage", "--json"]
    told = json.loads(CliRunner().invoke(app, line).stdout)
    assert set(told["fit"]) == {"metric", "score", "constant", "rows", "tested_rows", "better"}
    trained = CliRunner().invoke(app, [*shlex.split(told["recommendation"]["command"])[1:], "--out", "m.penstock"])
    assert trained.exit_code == 0, trained.stderr
    assert penstock.load("m.penstock").model_.config["solver"] == told["recommendation"]["solver"]


def test_explain_in_sql_tells_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = table()
    pq.write_table(rows.append_column("k", pa.array(np.digitize(rows["z"].to_numpy(), [0, 2]))), "rows.parquet")
    with penstock.connect("t.duckdb") as session:
        session.sql("CREATE TABLE t AS SELECT * FROM 'rows.parquet'")
    for label, others, node in (("y", "['z', 'k']", "L-BFGS logistic"), ("k", "['z', 'y']", "L-BFGS softmax")):
        statement = f"EXPLAIN SELECT * FROM t TRAIN BY logistic WITH (label = '{label}', exclude = {others})"
        with penstock.connect("t.duckdb") as session:
            lines = str(session.sql(statement))
        assert lines.startswith(node)
        assert "a quick fit on 3,000 sampled rows: accuracy 0." in lines
