"""What models on disk report of themselves: rows held out by default, and figures named by the rows they are of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.bigmodel import LogisticRegression, MatrixFactorization
from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.model import Saved
from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.training import Columns


def clicks(rows, seed=0):
    """Make rows whose label is chance: a model knows the rows it has learned from, and nothing else."""
    rng = np.random.default_rng(seed)
    indices = np.column_stack([rng.integers(0, 5, rows), 10 + np.arange(rows)])
    return pa.table(
        {
            "indices": pa.array(list(indices), pa.list_(pa.int64())),
            "values": pa.array([[1.0, 1.0]] * rows, pa.list_(pa.float32())),
            "y": rng.integers(0, 2, rows),
        }
    )


def fitted(tmp_path, table, **options):
    names = {"memory": "50MB", "epochs": 4, "learning_rate": 0.5, "l2": 0, **options}
    with LogisticRegression(tmp_path / "m", **names) as model:
        model.fit(table, y="y")
        return model.history_[-1], dict(model.model_.metrics)


def test_rows_are_held_out_by_default_and_the_figures_are_honest(tmp_path):
    last, metrics = fitted(tmp_path, clicks(2000))
    assert 150 < metrics["held_out_rows"] < 250
    assert last["rows"] == 2000 - metrics["held_out_rows"]
    assert last["progressive_accuracy"] > 0.8
    assert metrics["held_out_accuracy"] < 0.65
    assert "accuracy" not in last


@pytest.mark.parametrize(("rows", "validation"), [(400, None), (2000, 0.0)])
def test_without_held_out_rows_the_finished_model_is_measured_on_training_rows(tmp_path, rows, validation):
    last, metrics = fitted(tmp_path, clicks(rows), validation=validation)
    assert last["rows"] == rows
    assert not any(name.startswith("held_out") for name in last)
    assert metrics["training_rows"] == rows
    assert metrics["training_accuracy"] > 0.9


def test_a_test_set_is_measured_instead(tmp_path):
    with LogisticRegression(tmp_path / "m", memory="50MB", epochs=1) as model:
        model.fit(clicks(2000), y="y", test=clicks(600, 1))
        metrics = model.model_.metrics
        assert {"test_loss", "test_accuracy", "test_auc"} <= set(metrics)
        assert metrics["test_rows"] == 600
        assert all(name.startswith("test_") for name in metrics)
        assert model.history_[-1]["rows"] == 2000


def test_a_resumed_run_holds_out_the_same_rows(tmp_path):
    found = []
    for name, parts in (("whole", (4,)), ("resumed", (2, 4))):
        for number, epochs in enumerate(parts):
            job = disk_job(
                TableSource.of(clicks(2000)),
                tmp_path / name,
                Config(epochs=epochs, standardize=False),
                columns=Columns(label="y"),
            )
            job.run(resume=number > 0)
        found.append(Saved.read(tmp_path / name).header)
    whole, resumed = found
    assert whole["held_out_share"] == resumed["held_out_share"] == 0.1
    assert whole["metrics"] == resumed["metrics"]


@pytest.mark.parametrize("validation", [None, 0.0])
def test_ratings_are_held_out_by_default(tmp_path, validation):
    rng = np.random.default_rng(0)
    table = pa.table({"user": rng.integers(0, 40, 1500), "item": rng.integers(0, 30, 1500), "rating": rng.random(1500)})
    model = MatrixFactorization(tmp_path / "m", rank=4, memory="2MB", epochs=3, validation=validation).fit(table)
    metrics, last = model.model_.header["metrics"], model.history_[-1]
    assert last["progressive_rmse"] > 0
    if validation is None:
        assert 100 < metrics["held_out_rows"] < 200
        assert metrics["held_out_rmse"] == last["held_out_rmse"]
    else:
        assert metrics["training_rows"] == 1500
        assert 0 < metrics["training_rmse"] < 1
