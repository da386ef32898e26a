"""Standardising within each group: the rows stay as they are, and the models are those of scaled rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

import penstock
from penstock.batch import Batch, Csr
from penstock.groups import GroupBy
from penstock.groups.scale import Moments, Scale
from penstock.sgd.full import sums


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
    found = Moments.of(Batch(x, None, weight), hold)
    np.testing.assert_allclose(found.weight, mass.sum(), rtol=1e-6)
    np.testing.assert_allclose(found.total, mass @ dense, rtol=1e-5)
    np.testing.assert_allclose(found.squares, mass @ dense.astype(np.float64) ** 2, rtol=1e-5)


def test_sums_at_raw_weights_are_those_of_scaled_rows():
    x, _ = rows()
    y = np.where(np.arange(len(x)) % 3 == 0, 1, -1).astype(np.float32)
    scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    at = np.random.default_rng(2).normal(size=(5, 3))
    there = sums(scale.rows(x), y, at=at)
    here = scale.scaled(sums(x, y, at=scale.raw(at)))
    np.testing.assert_allclose(here.loss, there.loss, rtol=1e-4)
    np.testing.assert_allclose(here.gradient, there.gradient, rtol=1e-3, atol=1e-2)


def test_a_feature_that_does_not_vary_is_left_as_it_is():
    x = np.full((10, 1), 7.0, np.float32)
    scale = Scale.of(Moments.of(Batch(x), None), shift=True)
    assert (scale.mean.tolist(), scale.spread.tolist()) == ([0.0], [1.0])


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
        losses[standardize] = np.array(result.frame["held_loss"])
    assert (losses[True] < 0.2).all()
    assert (losses[True] < losses[False] / 2).all()
    found = np.array(result.predict(table)["prediction"])
    assert (found == np.array(table["y"])).mean() > 0.95
