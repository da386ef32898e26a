"""Rows stored by class, in memory so small that most windows have no row of a rare class: its probability stays right."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import penstock

ROWS, WIDTH = 40_000, 10


def make_rows(seed, levels):
    """Return features and classes that follow a softmax model of which the first class is by far the largest."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    weights = np.random.default_rng(9).standard_normal((WIDTH, len(levels))) * 0.7
    scores = x @ weights + np.array(levels) + rng.gumbel(size=(ROWS, len(levels)))
    return x, scores.argmax(axis=1)


@pytest.fixture(scope="module", params=[(0.0, -6.0), (0.0, -5.0, -6.0)], ids=["two classes", "three classes"])
def clustered(request, tmp_path_factory):
    x, y = make_rows(1, request.param)
    order = np.argsort(y, kind="stable")
    path = tmp_path_factory.mktemp("rare") / "rows.parquet"
    pq.write_table(pa.table({**{f"x{j}": x[order, j] for j in range(WIDTH)}, "y": y[order]}), path)
    stored = path.with_suffix(".arrow")
    penstock.convert(path, stored, label="y")
    return stored, x, y, *make_rows(2, request.param)


def columns_of(x):
    return pa.table({f"x{j}": x[:, j] for j in range(WIDTH)})


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["400kB", "1MB"])
def test_rare_classes_are_predicted_as_often_as_they_occur(clustered, memory):
    stored, x, y, test_x, test_y = clustered
    probabilities = penstock.LogisticRegression(memory=memory).fit(stored, y="y").predict_proba(columns_of(test_x))
    rival = LogisticRegression(C=1e6, max_iter=1000).fit(x, y).predict_proba(test_x)
    assert probabilities.mean(axis=0) == pytest.approx(rival.mean(axis=0), rel=0.08)
    assert log_loss(test_y, probabilities) <= 1.02 * log_loss(test_y, rival)


@pytest.mark.slow
def test_a_finished_run_that_is_resumed_keeps_its_intercepts(clustered, tmp_path):
    stored, *_ = clustered
    options = {"y": "y", "checkpoint": tmp_path / "run.checkpoint"}
    first = penstock.LogisticRegression(memory="400kB", epochs=3).fit(stored, **options)
    again = penstock.LogisticRegression(memory="400kB", epochs=3).fit(stored, **options, resume=True)
    np.testing.assert_array_equal(first.intercept_, again.intercept_)
    np.testing.assert_array_equal(first.coef_, again.coef_)
