"""Standardising within each group: the rows stay as they are, and the models are those of scaled rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

import penstock
from penstock.batch import Batch, Csr
from penstock.groups import GroupBy, training_run
from penstock.groups.scale import Moments, Scale
from penstock.sgd.full import sums
from penstock.testing.executors import InlineExecutor


@pytest.fixture
def inline(monkeypatch):
    """Work in this process, which takes no time to start."""
    monkeypatch.setitem(
        training_run.EXECUTORS, "local", lambda make, workers=None: InlineExecutor(make, workers=workers or 1)
    )


def rows(n=300, *, sparse=False):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(n, 4)) * [1, 100, 0.01, 5] + [0, 500, 0, -3]).astype(np.float32)
    if sparse:
        x *= rng.random(x.shape) < 0.4
        held = sp.csr_array(x)
        return Csr(held.indptr.astype(np.uint64), held.indices.astype(np.uint32), held.data.astype(np.float32), 4), x
    return x, x


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_rows_to_learn_from(sparse, weighted):
    x, dense = rows(sparse=sparse)
    rng = np.random.default_rng(1)
    hold = rng.random(len(dense)) < 0.2
    weight = rng.random(len(dense)).astype(np.float32) if weighted else None
    mass = np.where(hold, 0, 1 if weight is None else weight)
    found = Moments.of(Batch(x, None, weight), hold.astype(np.uint8))
    np.testing.assert_allclose(found.weight, mass.sum(), rtol=1e-6)
    mean = mass @ dense.astype(np.float64) / mass.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.squares, mass @ (dense - mean) ** 2, rtol=1e-5)
    half = Moments.of_parts(
        [(Batch(x, None, weight).slice(a, b), hold[a:b].astype(np.uint8)) for a, b in ((0, 120), (120, 300))], 4
    )
    np.testing.assert_allclose(half.squares, found.squares, rtol=1e-9)


def test_sums_at_raw_weights_are_those_of_scaled_rows():
    x, _ = rows()
    y = np.where(np.arange(len(x)) % 3 == 0, 1, -1).astype(np.float32)
    scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    at = np.random.default_rng(2).normal(size=(5, 3))
    there = sums(scale.rows(x), y, at=at)
    here = scale.scaled(sums(x, y, at=scale.raw(at)))
    np.testing.assert_allclose(here.loss, there.loss, rtol=1e-4)
    np.testing.assert_allclose(here.gradient, there.gradient, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("value", [7.0, 2013.0, 0.1, -1e9, 0.0])
def test_a_feature_that_does_not_vary_becomes_0(value):
    x = np.full((100_003, 1), value, np.float32)
    x[7] = np.nextafter(x[7], np.float32(np.inf))  # rounding
    scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    if value:
        assert not scale.rows(x).any()
    assert scale.raw(np.ones((2, 1)))[0, 0] == (0 if value else pytest.approx(1 / scale.spread[0]))
    np.testing.assert_allclose(scale.mean, value, rtol=1e-6, atol=1e-9)


def constant_in_groups(label):
    """Rows of two groups, one larger, in whose rows a year is the same, and another column within rounding so."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2))
    group = np.where(np.arange(3000) < 2500, "large", "small")
    year = np.where(group == "large", 2013.0, 2014.0)
    third = (np.float32(0.1) + rng.choice([0, 7e-9], 3000)).astype(np.float32)
    score = 3 * x[:, 0] - 3 * x[:, 1] + rng.normal(size=3000) / 3
    target = {"y": score > 0} if label == "class" else {"y": 100 + score}
    return pa.table({"g": group, "year": year, "third": third, "a": x[:, 0], "b": x[:, 1], **target})


@pytest.mark.parametrize(
    "model",
    [
        penstock.LogisticRegression(solver="lbfgs", epochs=10, standardize=True),
        penstock.LogisticRegression(solver="gd", epochs=10, standardize=True),
        penstock.LogisticRegression(epochs=5, standardize=True),
        penstock.LinearRegression(solver="lbfgs", epochs=10),
        penstock.LinearRegression(epochs=5, learning_rate=0.01),
    ],
    ids=str,
)
def test_a_constant_feature_does_not_ruin_its_groups_model(model, inline):
    linear = isinstance(model, penstock.LinearRegression)
    table = constant_in_groups("number" if linear else "class")
    result = GroupBy(table, by="g").fit(model, y="y", workers=2)  # one group split, one whole
    assert min(result.frame["held_out_r2" if linear else "held_out_accuracy"].to_pylist()) > 0.9
    assert (result.best("large").weights.coef[0, :2] == 0).all()


def test_a_constant_feature_does_not_ruin_its_groups_module(inline):
    pytest.importorskip("torch")
    import torch

    from penstock.torch import TorchModel

    def network(config):
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def adam(module, config):
        return torch.optim.Adam(module.parameters(), lr=0.02)

    table = constant_in_groups("class")
    result = GroupBy(table, by="g").fit(TorchModel(network, adam, epochs=3, standardize=True), y="y", workers=1)
    assert min(result.frame["held_out_accuracy"].to_pylist()) > 0.9
    other = table.set_column(1, "year", pa.array(np.full(3000, 1950.0)))  # which no model has learnt from
    same = np.array(result.predict(other)["prediction"]) == np.array(result.predict(table)["prediction"])
    assert same.all()
    assert (np.array(result.predict(table)["prediction"]) == np.array(table["y"])).mean() > 0.9


@pytest.mark.parametrize("workers", [1, 2])
def test_features_of_unequal_size_need_it(workers):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2))
    group = np.where(np.arange(4000) < 3500, "large", "small")  # split on two workers, and whole
    table = pa.table({"g": group, "a": 1000 + 300 * x[:, 0], "b": x[:, 1] / 50, "y": x[:, 0] + x[:, 1] > 0})
    losses = {}
    for standardize in (False, True):
        model = penstock.LogisticRegression(solver="lbfgs", epochs=8, standardize=standardize)
        result = GroupBy(table, by="g").fit(model, y="y", search={"l2": [1e-5]}, workers=workers)
        losses[standardize] = np.array(result.frame["held_out_loss"])
    assert (losses[True] < 0.2).all()
    assert (losses[True] < losses[False] / 2).all()
    found = np.array(result.predict(table)["prediction"])
    assert (found == np.array(table["y"])).mean() > 0.95


@pytest.mark.parametrize("width", [4, 3000])
def test_of_many_sparse_features_only_the_values_that_are_not_zero_set_the_scale(width):
    x, dense = rows(sparse=True)
    wide = Csr(x.indptr, x.indices, x.values, width)
    halves = [(Batch(wide).slice(a, b), None) for a, b in ((0, 120), (120, 300))]
    scale = Scale.of(Moments.of_parts(halves, width), shift=False)
    counts = len(dense) if width == 4 else (dense != 0).sum(axis=0)
    np.testing.assert_allclose(
        scale.spread[:4], np.sqrt((dense.astype(np.float64) ** 2).sum(axis=0) / counts), rtol=1e-5
    )
    assert not scale.mean.any()
