"""A share of the rows set apart for a test: drawn over all of them, not learned from, and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import metrics
from typer.testing import CliRunner

import penstock
from penstock.bigmodel.model import Saved
from penstock.cli import app
from penstock.errors import UsageError
from penstock.loader.holdout import RowSplit

ROWS = 2000


def table() -> pa.Table:
    """Return rows sorted by label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    y = (x[:, 0] + rng.normal(size=ROWS) > 0).astype(int)
    rows = pa.table({"id": np.arange(ROWS), "a": x[:, 0], "b": x[:, 1], "y": y})
    return rows.sort_by("y")


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(), "data.parquet", row_group_size=100)


def command(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def set_apart() -> pa.Table:
    """Return the rows that seed 0 sets apart."""
    part = RowSplit(seed=0, test_share=0.2).test
    assert part is not None
    return table().filter(pa.array(part.has(np.int64(0), np.arange(ROWS))))


@pytest.mark.parametrize("memory", ["512MB", "30kB"])
def test_the_model_is_measured_on_the_rows_set_apart(memory: str) -> None:
    model = penstock.LogisticRegression(epochs=2, memory=memory)
    model.fit("data.parquet", y="y", exclude=["id"], test_share=0.2)
    found, rows = model.model_.metrics, set_apart()
    assert found["test_rows"] == len(rows) == ROWS - model.history_[-1]["rows"]
    assert 0.15 * ROWS < len(rows) < 0.25 * ROWS
    assert abs(np.mean(rows["y"].to_numpy()) - 0.5) < 0.1  # of both classes, though the rows are sorted
    said = model.predict_proba(rows)[:, 1]
    assert found["test_auc"] == pytest.approx(metrics.roc_auc_score(rows["y"], said))
    assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(rows["y"], said > 0.5))
    assert "held_out_loss" not in found


def test_rows_can_be_held_out_beside_it() -> None:
    found = command(
        "train", "data.parquet", "--label", "y", "--test-share", "0.2", "--validation", "0.1", "--epochs", "1"
    )
    assert found["epochs"][0]["rows"] + found["held_out_rows"] + found["test_rows"] == ROWS
    assert found["test_rows"] == len(set_apart())
    assert 0.05 * ROWS < found["held_out_rows"] < 0.15 * ROWS


def test_a_model_on_disk() -> None:
    rows = table()
    lists = {
        "indices": pa.array([[0, 1]] * ROWS, pa.list_(pa.int64())),
        "values": pa.array(np.column_stack([rows["a"], rows["b"]]).astype(np.float32).tolist(), pa.list_(pa.float32())),
    }
    pq.write_table(pa.table({**lists, "y": rows["y"]}), "sparse.parquet", row_group_size=100)
    args = ("train", "sparse.parquet", "--label", "y", "--model-dir", "m", "--test-share", "0.2")
    found = command(*args, "--epochs", "1")
    assert found["epochs"][0]["rows"] + found["test_rows"] == ROWS
    assert found["test_auc"] > 0.75
    assert Saved.read("m").header["metrics"]["test_auc"] == found["test_auc"]
    assert "test_share" in command(*args[:-2], "--epochs", "2", "--resume")["error"].replace(
        "--test-share", "test_share"
    )


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="test_share"):
        penstock.LogisticRegression().fit("data.parquet", y="y", test="data.parquet", test_share=0.2)
    with pytest.raises(UsageError, match=r"test_share=1\.5"):
        penstock.LogisticRegression().fit("data.parquet", y="y", test_share=1.5)
    with pytest.raises(UsageError, match="leave no rows"):
        penstock.LogisticRegression(validation=0.5).fit("data.parquet", y="y", test_share=0.5)
    assert "--test-share 2" in command("train", "data.parquet", "--label", "y", "--test-share", "2")["error"]
