"""Features of models on disk are scaled, in bounded memory, and weights and scores are in the units of the data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.batch import Batch, Csr
from penstock.bigmodel import LinearRegression, LogisticRegression
from penstock.bigmodel.chunks import PositionScale
from penstock.bigmodel.model import Saved

SIZES = np.array([1e-3, 1.0, 1e4, 30.0, 0.2])


def table(rows=3000, *, offset=0):
    """Make sparse rows of features of very different sizes, each of which says the same of the label."""
    rng = np.random.default_rng(offset)
    x = rng.normal(size=(rows, len(SIZES))) * (rng.random((rows, len(SIZES))) < 0.7)
    y = (x.sum(axis=1) + 0.5 * rng.logistic(size=rows) > 0).astype(np.int64)
    kept = [np.flatnonzero(row) for row in x]
    return pa.table(
        {
            "indices": [(at * 10**6).tolist() for at in kept],
            "values": [(row * SIZES)[at].tolist() for row, at in zip(x, kept, strict=True)],
            "y": y,
        }
    ).sort_by("y")


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("memory", ["20MB", "200kB"])
def test_features_of_any_size_are_learned_from(tmp_path, optimizer, memory):
    train, test = table(), table(offset=1)
    found = {}
    for scaled in (True, False):
        options = {"memory": memory, "optimizer": optimizer, "standardize": scaled, "epochs": 20}
        with LogisticRegression(tmp_path / f"{scaled}", **options) as model:
            model.fit(train, y="y")
            found[scaled] = model.evaluate(test, y="y")["accuracy"]
            with LogisticRegression.load(tmp_path / f"{scaled}", memory=memory) as again:
                assert again.evaluate(test, y="y")["accuracy"] == found[scaled]
    assert found[True] > 0.83
    assert found[True] > found[False] + 0.05


def test_weights_are_for_values_as_they_are(tmp_path):
    with LogisticRegression(tmp_path / "m", epochs=20) as model:
        model.fit(table(), y="y")
        weights = model.weights(np.arange(len(SIZES)) * 10**6)
        assert np.ptp(np.log(weights * SIZES)) < 0.5, "each feature says the same, in its own unit"
        scores = model.decision_function(pa.table({"indices": [[0, 2 * 10**6]], "values": [[2e-3, 3e4]]}))
        expected = model.intercept_[0] + weights[0] * 2e-3 + weights[2] * 3e4
        assert scores[0] == pytest.approx(expected, rel=1e-4)


def test_training_goes_on_with_the_same_scale(tmp_path):
    rows = table()
    for name, parts in (("whole", (6,)), ("parts", (2, 6))):
        for number, epochs in enumerate(parts):
            LogisticRegression(tmp_path / name, memory="200kB", epochs=epochs).fit(
                rows, y="y", resume=number > 0
            ).close()
    first, second = (Saved.read(tmp_path / name) for name in ("whole", "parts"))
    assert first.scale is not None
    np.testing.assert_array_equal(first.scale.factors, second.scale.factors)
    with LogisticRegression.load(tmp_path / "whole") as whole, LogisticRegression.load(tmp_path / "parts") as parts:
        np.testing.assert_array_equal(whole.weights([0, 10**6]), parts.weights([0, 10**6]))


def test_flags_are_left_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 100, (800, 3))
    rows = pa.table({"indices": list(indices), "values": [[1.0] * 3] * 800, "y": indices.min(axis=1) < 20})
    weights = []
    for scaled in (True, False):
        with LogisticRegression(tmp_path / f"{scaled}", epochs=2, standardize=scaled) as model:
            weights.append(model.fit(rows, y="y").weights(np.arange(100)))
    np.testing.assert_array_equal(*weights)
    assert Saved.read(tmp_path / "True").scale is None


def test_a_regression_agrees_with_the_one_in_memory(tmp_path):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4000, 4)) * [1, 100, 0.01, 5]
    y = x @ [1, 0.02, 150, -0.3] + 0.1 * rng.normal(size=4000)
    rows = pa.table({"indices": [[0, 1, 2, 3]] * 4000, "values": list(x.astype(np.float32)), "y": y})
    with LinearRegression(tmp_path / "m", memory="20MB") as model:
        model.fit(rows, y="y")
        exact = penstock.LinearRegression().fit(x, y)
        np.testing.assert_allclose(model.weights(np.arange(4)), exact.coef_.ravel(), rtol=0.05)


def test_rare_features_share_a_factor():
    indices = np.concatenate([np.zeros(50), np.ones(50), [2, 3, 900, 4_000_000_000]]).astype(np.uint32)
    values = np.concatenate([np.full(50, 2.0), np.full(50, -0.5), [10.0, 10.0, 10.0, 0.0]]).astype(np.float32)
    batch = Batch(Csr(np.arange(len(values) + 1, dtype=np.uint64), indices, values, 0))
    scale = PositionScale.of([batch], 3)
    assert scale is not None
    np.testing.assert_allclose(scale.factors, [0.5, 2.0, 0.1, 0.1])
    np.testing.assert_allclose(scale.values(indices, values), [*[1.0] * 50, *[-1.0] * 50, 1, 1, 1, 0])
    assert (
        PositionScale.of([Batch(Csr(np.array([0, 1], np.uint64), indices[:1], np.ones(1, np.float32), 0))], 3) is None
    )
