"""The optimizers' kernels against their NumPy twins, for every loss, layout, batch size, penalty and weighting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Batch, Csr
from penstock.sgd import kernels
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.losses import LOSSES, find_loss
from penstock.sgd.model import Weights
from penstock.sgd.optimizers import ADAPTIVE
from penstock.sgd.reference import optimize_reference
from penstock.sgd.scalar import GROWN, HITS, LOSS, WEIGHT

CLASSES = 3


def csr_of(x: np.ndarray) -> Csr:
    kept = x != 0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.uint64)
    return Csr(indptr, np.nonzero(kept)[1].astype(np.uint32), x[kept], x.shape[1])


def draw_batch(seed: int, rows: int, width: int, *, loss: str, weighted: bool) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[rng.random(x.shape) > 0.5] = 0
    if loss == "softmax":
        y = rng.integers(0, CLASSES, rows)
    else:
        y = rng.standard_normal(rows) * 20 + 3 if loss == "squared" else rng.choice([-1, 1], rows)
    weight = rng.choice([0, 0.5, 1, 2], rows).astype(np.float32) if weighted else None
    return Batch(x, y.astype(np.float32), weight)


steps = st.fixed_dictionaries(
    {
        "base": st.sampled_from([0.01, 0.1]),
        "power": st.sampled_from([0.0, 0.25]),
        "batch_size": st.sampled_from([1, 2, 5, 7, 1000]),
        "l1": st.sampled_from([0.0, 0.02]),
        "l2": st.sampled_from([0.0, 0.01, 1.0]),
        "intercept": st.booleans(),
        "bound": st.sampled_from([0.0, 0.25, 1.0]),
    }
)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("optimizer", sorted(ADAPTIVE))
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 90),
    width=st.integers(1, 40),
    weighted=st.booleans(),
    options=steps,
    cut=st.integers(0, 90),
)
def test_kernel_equals_reference(
    optimizer: str, loss: str, layout: str, seed: int, rows: int, width: int, weighted: bool, options: dict, cut: int
) -> None:
    if not ADAPTIVE[optimizer].sparsifies:
        options = options | {"l1": 0.0}
    if not ADAPTIVE[optimizer].scheduled:
        options = options | {"power": 0.0}
    batch = draw_batch(seed, rows, width, loss=loss, weighted=weighted)
    step = Step(find_loss(loss), optimizer=optimizer, **options)
    outputs = CLASSES if loss == "softmax" else 1
    weights, totals = Weights.zeros(width, outputs), Totals()
    # Not zeros, whose gradients can be zero but for rounding: steps are as long for the smallest of gradients.
    weights.coef[:] = 0.1 * np.random.default_rng(seed).standard_normal(weights.coef.shape)
    w = np.hstack([weights.coef, weights.intercept[:, None]]).astype(np.float64)
    cells, sums, updates = None, {"loss": 0.0, "weight": 0.0, "hits": 0.0}, 0
    for part in (batch.slice(0, min(cut, rows)), batch.slice(min(cut, rows), rows)):
        given_part = Batch(csr_of(part.x), part.y, part.weight) if layout == "sparse" else part
        assert kernels.train(given_part, weights, step=step, totals=totals) == -1
        if weights.optimizer_state is None:
            assert part.weight is None or not part.weight.any()
            continue
        unit = weights.optimizer_state.unit
        if cells is None:
            cells = np.zeros((*w.shape, ADAPTIVE[optimizer].cells))
            if optimizer == "ftrl":
                cells[..., 0] = -w / step.base
            elif optimizer == "adagrad":
                cells[:] = unit**2
        more = optimize_reference(given_part, w, cells, step=step, updates=updates, unit=unit)
        updates = int(more["updates"])
        sums = {name: value + more[name] for name, value in sums.items()}
    weights.settle()
    scale = max(1.0, np.abs(w).max(initial=0))
    np.testing.assert_allclose(weights.coef, w[:, :-1], atol=3e-3 * scale)
    np.testing.assert_allclose(weights.intercept, w[:, -1], atol=3e-3 * scale)
    assert weights.updates == updates
    found = totals.sums
    assert totals.rows == rows
    assert found[WEIGHT] == pytest.approx(sums["weight"])
    assert found[LOSS] + np.log(found[GROWN]) == pytest.approx(sums["loss"], rel=2e-3, abs=2e-3)
    if loss != "squared":
        # A score within rounding of zero, or of another class's, may fall either way.
        assert abs(found[HITS] - sums["hits"]) <= 4


@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), l1=st.sampled_from([0.0, 0.02]), batch_size=st.sampled_from([1, 5]))
def test_ftrl_learns_from_sparse_rows_what_it_learns_from_dense_ones(
    loss: str, seed: int, l1: float, batch_size: int
) -> None:
    batch = draw_batch(seed, 60, 12, loss=loss, weighted=False)
    step = Step(find_loss(loss), 0.1, l1=l1, l2=0.01, batch_size=batch_size, optimizer="ftrl")
    outputs = CLASSES if loss == "softmax" else 1
    dense, sparse = Weights.zeros(12, outputs), Weights.zeros(12, outputs)
    kernels.train(batch, dense, step=step, totals=Totals())
    kernels.train(Batch(csr_of(batch.x), batch.y), sparse, step=step, totals=Totals())
    sparse.settle()
    scale = max(1.0, np.abs(dense.coef).max())
    np.testing.assert_allclose(sparse.coef, dense.coef, atol=3e-3 * scale)
    np.testing.assert_allclose(sparse.intercept, dense.intercept, atol=3e-3 * scale)
