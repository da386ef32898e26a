"""Every place that evaluates a model reports the same measures, weighted, and they equal those of scikit-learn."""

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
from penstock import bigmodel, groups
from penstock.bigmodel.model import BigLinearModel
from penstock.cli import app
from penstock.sql import connect

NAMES = ("accuracy", "log_loss", "auc", "precision", "recall", "f1", "brier")


def table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    y = x[:, 0] + 0.5 * x[:, 1] + rng.normal(size=rows)
    columns = {f"c{i}": x[:, i] for i in range(3)}
    weight = rng.integers(1, 5, rows).astype(float)
    return pa.table({**columns, "w": weight, "country": rng.choice(["DE", "FR"], rows), "label": y > 0.3})


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(900, 0), "train.parquet", row_group_size=100)
    pq.write_table(table(400, 1), "test.parquet", row_group_size=100)


def expected(predictions: pa.Table, rows: pa.Table) -> dict[str, Any]:
    y, w = (rows[name].to_numpy() for name in ("label", "w"))
    chance = predictions["probability_True"].to_numpy()
    said = chance > 0.5
    return {
        "accuracy": metrics.accuracy_score(y, said, sample_weight=w),
        "log_loss": metrics.log_loss(y, chance.astype(float), sample_weight=w),
        "auc": metrics.roc_auc_score(y, chance, sample_weight=w),
        "precision": metrics.precision_score(y, said, sample_weight=w),
        "recall": metrics.recall_score(y, said, sample_weight=w),
        "f1": metrics.f1_score(y, said, sample_weight=w),
        "brier": metrics.brier_score_loss(y, chance.astype(float), sample_weight=w),
        "confusion_matrix": metrics.confusion_matrix(y, said, sample_weight=w).tolist(),
    }


def require_equal(got: Any, want: dict[str, Any], kind: str = "") -> None:
    assert {name: got[kind + name] for name in NAMES} == pytest.approx({name: want[name] for name in NAMES}, rel=1e-5)
    assert np.allclose(got[kind + "confusion_matrix"], want["confusion_matrix"])


def command(*args: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


COLUMNS = ("--label", "label", "--weight", "w", "--exclude", "country")


def test_the_command_line_and_the_estimator() -> None:
    trained = command("train", "train.parquet", *COLUMNS, "--epochs", "2", "--test", "test.parquet")
    command("predict", "model.penstock", "test.parquet")
    want = expected(pq.read_table("predictions.parquet"), pq.read_table("test.parquet"))
    found = command("evaluate", "model.penstock", "test.parquet")
    require_equal(found, want)
    assert found["classes"] == [False, True]
    require_equal(trained, want, "test_")
    assert trained["test_rows"] == 400
    model = penstock.load("model.penstock")
    require_equal(model.evaluate("test.parquet"), want)
    require_equal(model.model_.metrics, want, "test_")
    text = CliRunner().invoke(app, ["evaluate", "model.penstock", "test.parquet"]).stdout
    assert f"AUC {want['auc']:.4f}, precision {want['precision']:.4f}" in text
    assert "confusion matrix" in text


def test_a_regression() -> None:
    trained = command(
        "train", "train.parquet", "--label", "c0", "--exclude", "country,label", "--model", "linear", "--keep-anyway"
    )
    assert {"held_out_r2", "held_out_rmse", "held_out_mae"} <= set(trained)
    found = command("evaluate", "model.penstock", "train.parquet")
    command("predict", "model.penstock", "train.parquet")
    said, y = (
        pq.read_table(f)[c].to_numpy() for f, c in (("predictions.parquet", "prediction"), ("train.parquet", "c0"))
    )
    assert found["r2"] == found["test_r2"] == pytest.approx(metrics.r2_score(y, said), abs=1e-6)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, said), rel=1e-5)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, said), rel=1e-5)


def test_a_model_on_disk() -> None:
    for name in ("train", "test"):
        rows = pq.read_table(f"{name}.parquet")
        x = np.column_stack([rows[f"c{i}"].to_numpy() for i in range(3)]).astype(np.float32)
        lists = {"indices": pa.array([[0, 1, 2]] * len(x), pa.list_(pa.int64())), "values": pa.array(list(x))}
        pq.write_table(pa.table({**lists, "w": rows["w"], "label": rows["label"]}), f"{name}_sparse.parquet")
    with bigmodel.LogisticRegression("disk", epochs=2, validation=0.2) as model:
        model.fit("train_sparse.parquet", y="label", sample_weight="w", test="test_sparse.parquet")
    with BigLinearModel("disk") as saved:
        with penstock.open("test_sparse.parquet") as source:
            want = expected(pa.Table.from_batches(list(saved.predictions(source))), pq.read_table("test.parquet"))
        require_equal(saved.metrics, want, "test_")
        assert {f"held_out_{name}" for name in NAMES} <= set(saved.metrics)
    require_equal(command("evaluate", "disk", "test_sparse.parquet"), want)


@pytest.mark.usefixtures("inline")
def test_groups() -> None:
    model = penstock.LogisticRegression(solver="lbfgs", epochs=20)
    rows = groups.GroupBy("train.parquet", by="country", weight="w")
    result = rows.fit(model, y="label", validation=0.2, out="models")
    want = expected(result.predict("test.parquet"), pq.read_table("test.parquet"))
    require_equal(result.evaluate("test.parquet"), want)
    assert result.score("test.parquet") == pytest.approx(want["accuracy"])
    found = command("groups", "evaluate", "models", "test.parquet")
    require_equal(found, want)
    assert (found["rows"], found["rows_without_model"]) == (400, 0)
    summary = result.summary()
    assert {f"held_out_{name}" for name in NAMES} <= set(summary)
    assert {f"held_out_{name}" for name in NAMES} <= set(summary["pooled"])
    other = pq.read_table("test.parquet").set_column(4, "country", pa.array(["FR", "NO"] * 200))
    assert result.evaluate(other)["rows_without_model"] == 200


def test_sql() -> None:
    with connect(":memory:") as session:
        for name in ("train", "test"):
            session.sql(f"CREATE TABLE {name}_rows AS SELECT * EXCLUDE country FROM '{name}.parquet'")
        session.sql(
            "SELECT * FROM train_rows TRAIN BY logistic AS m WITH (label = 'label', weight = 'w', max_epoch_num = 2)"
        )
        held_out = session.sql("EVALUATE MODEL m")
        assert {f"held_out_{name}" for name in NAMES} <= set(held_out.columns or ())
        predicted = pa.Table.from_batches(list(session.catalog.load("m").predictions(penstock.open("test.parquet"))))
        want = expected(predicted, pq.read_table("test.parquet"))
        found = session.sql("EVALUATE MODEL m ON SELECT * FROM test_rows")
        got = dict(zip(found.columns or (), found.rows[0]))
        require_equal({**got, "confusion_matrix": json.loads(got["confusion_matrix"])}, want)
        area = session.sql("SELECT roc_auc FROM ML.EVALUATE(MODEL m, TABLE test_rows)").rows[0][0]
        assert area == pytest.approx(want["auc"])
