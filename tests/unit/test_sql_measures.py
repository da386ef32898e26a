"""The measures of ML.EVALUATE: those of scikit-learn, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics

from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.errors import DataError
from penstock.linear import LinearModel
from penstock.memory_learner import linear_job
from penstock.sql import warehouse as measures
from penstock.sql.warehouse import measure_for_warehouse
from penstock.training import Columns


def trained(model: str, classes: int, rows: int = 600) -> tuple[LinearModel, TableSource, Any, pa.Table]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    z = x @ rng.normal(size=(3, max(classes, 1))) + rng.normal(size=(rows, max(classes, 1)))
    y = z[:, 0] if not classes else (z[:, 0] > 0).astype(int) if classes == 2 else z.argmax(axis=1)
    source = TableSource.of(pa.table({**{f"c{i}": x[:, i] for i in range(3)}, "label": y}), block_size=2000)
    found = linear_job(source, Config(model=model, epochs=2), Columns(label="label")).run()
    return found, source, y, pa.Table.from_batches(list(found.predictions(source)))


@pytest.mark.parametrize(("model", "classes"), [("logistic", 2), ("svm", 2), ("softmax", 3)])
def test_classes(model: str, classes: int) -> None:
    found, source, y, table = trained(model, classes)
    said, average = table["prediction"].to_numpy(), "binary" if classes == 2 else "macro"
    got = measure_for_warehouse(found, source)
    assert list(got) == ["precision", "recall", "accuracy", "f1_score", "log_loss", "roc_auc"]
    assert got["precision"] == pytest.approx(metrics.precision_score(y, said, average=average))
    assert got["recall"] == pytest.approx(metrics.recall_score(y, said, average=average))
    assert got["f1_score"] == pytest.approx(metrics.f1_score(y, said, average=average))
    assert got["accuracy"] == pytest.approx(metrics.accuracy_score(y, said))
    if model == "svm":
        assert got["log_loss"] is None
        assert got["roc_auc"] is not None
        assert got["roc_auc"] > 0.5
        return
    chances = np.column_stack([table[f"probability_{k}"].to_numpy() for k in range(classes)])
    assert got["log_loss"] == pytest.approx(metrics.log_loss(y, chances), rel=1e-5)
    ranked = chances[:, 1] if classes == 2 else chances
    assert got["roc_auc"] == pytest.approx(metrics.roc_auc_score(y, ranked, multi_class="ovr"), rel=1e-5)


def test_numbers() -> None:
    found, source, y, table = trained("linear", 0)
    said, got = table["prediction"].to_numpy(), measure_for_warehouse(found, source)
    assert got["mean_absolute_error"] == pytest.approx(metrics.mean_absolute_error(y, said), rel=1e-5)
    assert got["mean_squared_error"] == pytest.approx(metrics.mean_squared_error(y, said), rel=1e-5)
    assert got["median_absolute_error"] == pytest.approx(metrics.median_absolute_error(y, said), rel=1e-5)
    assert got["r2_score"] == pytest.approx(metrics.r2_score(y, said), rel=1e-5)
    assert got["explained_variance"] == pytest.approx(metrics.explained_variance_score(y, said), rel=1e-5)
    assert got["mean_squared_log_error"] is None  # there are numbers below -1


def test_the_median_of_many_rows_is_that_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    found, source, _, _ = trained("linear", 0, rows=4000)
    exact = measure_for_warehouse(found, source)["median_absolute_error"]
    monkeypatch.setattr(measures, "_MOST", 500)  # four million rows would take too long here
    sampled = measure_for_warehouse(found, source)["median_absolute_error"]
    assert sampled != exact
    assert sampled == pytest.approx(exact, rel=0.2)


def test_nothing_to_measure_on() -> None:
    found, source, _, _ = trained("logistic", 2)
    with pytest.raises(DataError, match="has no row with a label"):
        measure_for_warehouse(found, TableSource.of(source.read(0).slice(0, 0)))


def test_one_class_only_has_no_area() -> None:
    found, source, y, _ = trained("logistic", 2)
    table = pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))]).filter(pa.array(y == 1))
    got = measure_for_warehouse(found, TableSource.of(table))
    assert got["roc_auc"] is None
    assert got["precision"] == 1.0
