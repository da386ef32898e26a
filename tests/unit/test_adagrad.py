"""AdaGrad for sparse rows against its twin; it learns, touches its own features alone, and stops at bad rows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.batch import Batch, Csr, Floats
from penstock.sgd.adagrad import adagrad_rows
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.linear import sparse_scores
from penstock.sgd.losses import find_loss
from penstock.sgd.reference import adagrad_reference
from penstock.sgd.scalar import CLOCK, STEP

WIDTH = 40


def rows_of(rows: int, *, loss: str = "logistic", seed: int = 0, twice: bool = False, weighted: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, rows)
    picks = [rng.choice(WIDTH, n, replace=twice) for n in counts]
    indices = np.concatenate(picks).astype(np.uint32)
    values = rng.standard_normal(len(indices)).astype(np.float32)
    x = Csr(np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64), indices, values, WIDTH)
    plane = x.to_dense() @ rng.standard_normal(WIDTH) + 0.5
    y = plane if loss == "squared" else np.where(plane > 0, 1, -1)
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], rows).astype(np.float32) if weighted else None
    return Batch(x, y.astype(np.float32), weight)


class Model:
    """What the kernel changes."""

    def __init__(self) -> None:
        self.cells = np.zeros((WIDTH, 2), np.float32)
        self.intercept = np.zeros(2, np.float32)
        self.clock = np.zeros(CLOCK)
        self.totals = Totals()

    def train(self, batch: Batch, step: Step) -> int:
        assert isinstance(batch.x, Csr)
        assert batch.y is not None
        weight = np.zeros(0, np.float32) if batch.weight is None else batch.weight
        self.totals.start(batch)
        rows = (batch.x.indptr, batch.x.indices, batch.x.values, batch.y, weight)
        state = (self.cells, self.intercept, self.clock, self.totals.sums)
        free = np.float32(step.intercept)
        return int(adagrad_rows(*rows, *state, step.loss, step.base, step.power, step.l2, free))


@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared"])
@pytest.mark.parametrize(
    ("power", "l2", "free", "twice", "weighted"),
    [
        (0.0, 0.0, True, False, False),
        (0.25, 0.05, True, False, True),
        (0.0, 0.05, False, True, False),
        (0.5, 0.0, False, True, True),
    ],
)
def test_matches_the_twin(loss: str, power: float, l2: float, free: bool, twice: bool, weighted: bool) -> None:
    step = Step(find_loss(loss), base=0.1, power=power, l2=l2, intercept=free)
    model, cells, intercept, updates = Model(), np.zeros((WIDTH, 2)), np.zeros(2), 0
    expected: dict[str, float] = {"loss": 0.0, "weight": 0.0, "hits": 0.0}
    for seed in range(2):
        batch = rows_of(150, loss=loss, seed=seed, twice=twice, weighted=weighted)
        assert model.train(batch, step) == -1
        sums = adagrad_reference(batch, cells, intercept, step=step, updates=updates)
        updates = int(sums["updates"])
        expected = {name: expected[name] + sums[name] for name in expected}
    np.testing.assert_allclose(model.cells[:, 0], cells[:, 0], atol=2e-4)
    np.testing.assert_allclose(model.cells[:, 1], cells[:, 1], rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(model.intercept, intercept, rtol=1e-3, atol=1e-4)
    assert model.clock[STEP] == updates
    assert model.totals.weight == expected["weight"]
    assert model.totals.loss() == pytest.approx(expected["loss"] / expected["weight"], rel=1e-4)


def test_the_loss_falls() -> None:
    batch, model, losses = rows_of(600), Model(), []
    for _ in range(5):
        model.totals = Totals()
        assert model.train(batch, Step(find_loss("logistic"), base=0.3)) == -1
        losses.append(model.totals.loss())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.6 * losses[0]
    assert model.totals.score(find_loss("logistic")) > 0.9


def test_features_outside_the_rows_stay_as_they_are() -> None:
    batch, model = rows_of(30), Model()
    assert isinstance(batch.x, Csr)
    half = Batch(Csr(batch.x.indptr, batch.x.indices // 2, batch.x.values, WIDTH), batch.y)
    model.cells[:] = 1
    before = model.cells.copy()
    assert model.train(half, Step(find_loss("logistic"), base=0.1, l2=0.5)) == -1
    assert np.array_equal(model.cells[WIDTH // 2 :], before[WIDTH // 2 :])
    assert (model.cells[np.unique(batch.x.indices // 2), 1] > 1).all()


def test_values_of_zero_and_rows_without_entries_do_no_harm() -> None:
    x = Csr(np.array([0, 1, 1], np.uint64), np.array([3], np.uint32), np.zeros(1, np.float32), WIDTH)
    model = Model()
    assert model.train(Batch(x, np.array([1, -1], np.float32)), Step(find_loss("hinge"), base=0.1)) == -1
    assert not model.cells.any()
    assert model.clock[STEP] == 2


@pytest.mark.parametrize("where", ["value", "label", "weight", "negative weight"])
def test_stops_at_a_row_it_cannot_use(where: str) -> None:
    batch, model = rows_of(100, weighted=True), Model()
    assert isinstance(batch.x, Csr)
    assert batch.y is not None
    assert batch.weight is not None
    row = int(np.flatnonzero((np.diff(batch.x.indptr) > 0) & (batch.weight > 0))[40])
    at, bad = {
        "value": (batch.x.values, np.nan),
        "label": (batch.y, np.inf),
        "weight": (batch.weight, np.nan),
        "negative weight": (batch.weight, -1),
    }[where]
    at[int(batch.x.indptr[row]) if where == "value" else row] = bad
    assert model.train(batch, Step(find_loss("logistic"), base=0.1)) == row


def test_stops_before_an_index_past_the_width() -> None:
    batch, model = rows_of(10), Model()
    assert isinstance(batch.x, Csr)
    batch.x.indices[3] = WIDTH
    assert model.train(batch, Step(find_loss("logistic"), base=0.1)) == 0
    assert not model.cells.any()


def test_scores_come_from_the_weights_alone() -> None:
    batch, model = rows_of(50), Model()
    assert isinstance(batch.x, Csr)
    model.train(batch, Step(find_loss("logistic"), base=0.1))
    out: Floats = np.empty((len(batch), 1), np.float32)
    stopped = sparse_scores(
        batch.x.indptr, batch.x.indices, batch.x.values, model.cells[:, :1], model.intercept[:1], out
    )
    assert stopped == -1
    expected = batch.x.to_dense() @ model.cells[:, 0] + model.intercept[0]
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-4, atol=1e-5)
