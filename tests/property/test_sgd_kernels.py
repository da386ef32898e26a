"""Every kernel against its NumPy twin, for every loss, layout, batch size, penalty, weighting and intercept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Batch, Csr
from penstock.sgd import kernels, linear
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.losses import LOSSES, find_loss
from penstock.sgd.model import Weights
from penstock.sgd.reference import measure_reference, scores_reference, train_reference
from penstock.sgd.scalar import GROWN, HITS, LOSS, WEIGHT

CLASSES = 3


def csr_of(x: np.ndarray) -> Csr:
    kept = x != 0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.uint64)
    return Csr(indptr, np.nonzero(kept)[1].astype(np.uint32), x[kept], x.shape[1])


def draw_batch(seed: int, rows: int, width: int, *, loss: str, weighted: bool, density: float = 0.5) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[rng.random(x.shape) > density] = 0
    if loss == "softmax":
        y = rng.integers(0, CLASSES, rows)
    else:
        y = rng.standard_normal(rows) + 3 if loss == "squared" else rng.choice([-1, 1], rows)
    weight = rng.choice([0, 0.5, 1, 2], rows).astype(np.float32) if weighted else None
    return Batch(x, y.astype(np.float32), weight)


steps = st.fixed_dictionaries(
    {
        "base": st.sampled_from([0.01, 0.1]),
        "power": st.sampled_from([0.0, 0.25]),
        "batch_size": st.sampled_from([1, 2, 5, 7, 1000]),
        "l1": st.sampled_from([0.0, 0.02]),
        "l2": st.sampled_from([0.0, 0.01, 5.0]),
        "intercept": st.booleans(),
        "bound": st.sampled_from([0.0, 0.25, 1.0]),
    }
)


@pytest.mark.parametrize("layout", ["dense", "wide", "sparse"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 90),
    width=st.integers(1, 40),
    weighted=st.booleans(),
    options=steps,
    cut=st.integers(0, 90),
)
def test_kernel_equals_reference(
    loss: str, layout: str, seed: int, rows: int, width: int, weighted: bool, options: dict, cut: int
) -> None:
    batch = draw_batch(seed, rows, width, loss=loss, weighted=weighted)
    step = Step(find_loss(loss), **options)
    outputs = CLASSES if loss == "softmax" else 1
    weights, totals = Weights.zeros(width, outputs), Totals()
    coef, intercept, sums = np.zeros((outputs, width)), np.zeros(outputs), {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    updates = 0
    narrow = linear.NARROW
    linear.NARROW = 0 if layout == "wide" else narrow  # the kernel for wide rows, on rows that are not
    try:
        for part in (batch.slice(0, min(cut, rows)), batch.slice(min(cut, rows), rows)):
            given_part = Batch(csr_of(part.x), part.y, part.weight) if layout == "sparse" else part
            assert kernels.train(given_part, weights, step=step, totals=totals) == -1
            more = train_reference(part, coef, intercept, step=step, updates=updates)
            updates = int(more["updates"])
            sums = {name: value + more[name] for name, value in sums.items()}
    finally:
        linear.NARROW = narrow
    weights.settle()
    scale = max(1.0, np.abs(coef).max(initial=0))
    np.testing.assert_allclose(weights.coef, coef, atol=2e-4 * scale)
    np.testing.assert_allclose(weights.intercept, intercept, atol=2e-4 * scale)
    assert weights.updates == updates
    assert totals.rows == rows
    found = totals.sums
    assert found[WEIGHT] == pytest.approx(sums["weight"])
    assert found[LOSS] + np.log(found[GROWN]) == pytest.approx(sums["loss"], rel=1e-3, abs=1e-3)
    if loss != "squared":
        # A score within rounding of zero, or of another class's, may fall either way.
        assert abs(found[HITS] - sums["hits"]) <= 4


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 90), width=st.integers(1, 40), weighted=st.booleans())
def test_scores_and_measures_equal_reference(
    loss: str, layout: str, seed: int, rows: int, width: int, weighted: bool
) -> None:
    batch = draw_batch(seed, rows, width, loss=loss, weighted=weighted)
    rng = np.random.default_rng(seed + 1)
    weights = Weights.zeros(width, CLASSES if loss == "softmax" else 1)
    weights.coef[:] = rng.standard_normal(weights.coef.shape)
    weights.intercept[:] = rng.standard_normal(weights.intercept.shape)
    given_batch = Batch(csr_of(batch.x), batch.y, batch.weight) if layout == "sparse" else batch
    expected = scores_reference(batch, weights.coef, weights.intercept)
    np.testing.assert_allclose(weights.scores(given_batch), expected, atol=1e-4)
    totals = Totals()
    assert kernels.measure(given_batch, weights, loss=find_loss(loss), totals=totals) == -1
    sums = measure_reference(batch, weights.coef, weights.intercept, loss=find_loss(loss))
    assert totals.sums[LOSS] == pytest.approx(sums["loss"], rel=1e-4, abs=1e-4)
    assert totals.weight == pytest.approx(sums["weight"])
    assert abs(totals.sums[HITS] - sums["hits"]) <= 2


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), l1=st.sampled_from([0.0, 0.05]), l2=st.sampled_from([0.0, 0.1, 5.0]))
def test_sparse_equals_dense(loss: str, batch_size: int, seed: int, l1: float, l2: float) -> None:
    # A fifth of the features in a row, and an L2 strong enough to fold the factor in several times.
    batch = draw_batch(seed, 120, 25, loss=loss, weighted=True, density=0.2)
    step = Step(find_loss(loss), base=0.1, batch_size=batch_size, l1=l1, l2=l2)
    trained = []
    for x in (batch.x, csr_of(batch.x)):
        weights = Weights.zeros(25, CLASSES if loss == "softmax" else 1)
        assert kernels.train(Batch(x, batch.y, batch.weight), weights, step=step, totals=Totals()) == -1
        weights.settle()
        trained.append(weights)
    scale = max(1.0, np.abs(trained[0].coef).max())
    np.testing.assert_allclose(trained[0].coef, trained[1].coef, atol=1e-4 * scale)
    np.testing.assert_allclose(trained[0].intercept, trained[1].intercept, atol=1e-4 * scale)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), batch_size=st.sampled_from([1, 3]), l1=st.sampled_from([0.0, 0.01]))
def test_rows_of_weight_zero_are_as_if_not_there(loss: str, layout: str, seed: int, batch_size: int, l1: float) -> None:
    batch = draw_batch(seed, 60, 8, loss=loss, weighted=True)
    batch.x[batch.weight == 0] = np.nan
    step = Step(find_loss(loss), base=0.1, batch_size=batch_size, l1=l1, l2=0.01)
    trained = []
    for part in (batch, batch.take(np.flatnonzero(batch.weight))):
        given_part = Batch(csr_of(part.x), part.y, part.weight) if layout == "sparse" else part
        weights, totals = Weights.zeros(8, CLASSES if loss == "softmax" else 1), Totals()
        assert kernels.train(given_part, weights, step=step, totals=totals) == -1
        weights.settle()
        trained.append((weights, totals))
    np.testing.assert_array_equal(trained[0][0].coef, trained[1][0].coef)
    assert trained[0][0].updates == trained[1][0].updates
    assert trained[0][1].sums[LOSS] == trained[1][1].sums[LOSS]
