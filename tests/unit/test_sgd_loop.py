"""The trainer: converges to known solutions, names bad rows, says when it diverges, resumes exactly."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.batch import Batch, Csr
from penstock.errors import DataError, DivergedError, FeatureError, LabelError, ModelFileError, UsageError
from penstock.sgd.faults import Names
from penstock.sgd.loop import EarlyStopping, EpochStats, Spec, Trainer
from penstock.sgd.model import WeightAverage, Weights
from penstock.sgd.rates import Rate, exponential


def csr_of(x: np.ndarray) -> Csr:
    kept = x != 0
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.uint64)
    return Csr(indptr, np.nonzero(kept)[1].astype(np.uint32), x[kept], x.shape[1])


def make(rows: int = 400, width: int = 5, *, loss: str = "logistic", seed: int = 0, sparse: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    if sparse:
        x[rng.random(x.shape) > 0.5] = 0
    plane = x @ rng.standard_normal((width, 3)) + 0.3 * rng.standard_normal((rows, 3))
    if loss == "softmax":
        y = plane.argmax(axis=1)
    else:
        y = plane[:, 0] + 2 if loss == "squared" else np.where(plane[:, 0] > 0, 1, -1)
    return Batch(csr_of(x) if sparse else x, y.astype(np.float32), rows=np.arange(rows) + 1000)


def pieces(batch: Batch, size: int = 150) -> list[Batch]:
    return [batch.slice(i, min(i + size, len(batch))) for i in range(0, len(batch), size)]


def run_epochs(trainer: Trainer, batch: Batch, epochs: int) -> None:
    for epoch in range(epochs):
        trainer.run_epoch([batch], epoch)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_logistic_converges_to_scikit_learn(batch_size: int, sparse: bool) -> None:
    from sklearn.linear_model import LogisticRegression

    batch = make(sparse=sparse)
    x = batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x
    l2 = 0.05
    peer = LogisticRegression(C=1 / (l2 * len(batch)), tol=1e-8).fit(x, batch.y)
    trainer = Trainer(Spec("logistic", exponential(0.5 if batch_size > 1 else 0.1, 0.93), batch_size, l2=l2), 5)
    order = np.random.default_rng(0)
    for epoch in range(80):
        trainer.run_epoch([batch.take(order.permutation(len(batch)))], epoch)
    np.testing.assert_allclose(trainer.weights.coef, peer.coef_, atol=0.02)
    np.testing.assert_allclose(trainer.weights.intercept, peer.intercept_, atol=0.02)
    stats = trainer.evaluate(pieces(batch))
    assert stats.score == pytest.approx(peer.score(x, batch.y), abs=0.01)


@pytest.mark.parametrize("sparse", [False, True])
def test_squared_converges_to_least_squares_and_r2(sparse: bool) -> None:
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score

    batch = make(loss="squared", sparse=sparse)
    x = batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x
    peer = LinearRegression().fit(x, batch.y)
    trainer = Trainer(Spec("squared", exponential(0.05, 0.9)), 5)
    for epoch in range(60):
        trainer.run_epoch(pieces(batch), epoch)
    np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, atol=0.01)
    stats = trainer.evaluate(pieces(batch))
    assert stats.metric == "r2"
    assert stats.score == pytest.approx(r2_score(batch.y, trainer.weights.scores(batch)[:, 0]), abs=1e-4)


def test_softmax_converges_to_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    batch = make(loss="softmax")
    l2 = 0.05
    peer = LogisticRegression(C=1 / (l2 * len(batch)), tol=1e-8).fit(batch.x, batch.y)
    for x in (batch.x, csr_of(batch.x)):
        trainer = Trainer(Spec("softmax", exponential(0.2, 0.93), 4, l2=l2), 5, outputs=3)
        for epoch in range(80):
            trainer.run_epoch([Batch(x, batch.y)], epoch)
        np.testing.assert_allclose(trainer.weights.coef, peer.coef_, atol=0.03)


def test_l1_makes_useless_weights_exactly_zero() -> None:
    batch = make(600, 12, loss="squared")
    batch.y[:] = 2 * batch.x[:, 0] - batch.x[:, 1]
    for x in (batch.x, csr_of(batch.x)):
        trainer = Trainer(Spec("squared", exponential(0.3), batch_size=200, l1=0.3), 12)
        for epoch in range(40):
            trainer.run_epoch([Batch(x, batch.y)], epoch)
        coef = trainer.weights.coef[0]
        assert (coef[2:] == 0).all()
        assert coef[0] == pytest.approx(1.7, abs=0.1)


def test_a_large_mean_of_labels_costs_r2_no_digits() -> None:
    batch = make(loss="squared")
    far = Batch(batch.x, (batch.y + 1e4).astype(np.float32))
    weights = Trainer(Spec("squared"), 5)
    near_truth = np.linalg.lstsq(np.c_[batch.x, np.ones(len(batch))], batch.y, rcond=None)[0]
    weights.weights.coef[0], weights.weights.intercept[0] = near_truth[:5], near_truth[5] + 1e4
    assert weights.evaluate([far]).score > 0.9


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_feature_is_named(loss: str, batch_size: int, sparse: bool, value: float) -> None:
    batch = make(loss=loss)
    batch.x[217, 3] = value
    given = Batch(csr_of(batch.x), batch.y, rows=batch.rows) if sparse else batch
    trainer = Trainer(Spec(loss, batch_size=batch_size), 5, outputs=3 if loss == "softmax" else 1)
    with pytest.raises(FeatureError, match=f"row 1217 has {value} in feature 3; mend such values"):
        trainer.run_epoch(pieces(given), 0)
    with pytest.raises(FeatureError, match=f"row 1217 has {value} in feature 3"):
        Trainer(Spec(loss), 5, outputs=3 if loss == "softmax" else 1).evaluate(pieces(given))


def test_bad_rows_are_named_by_the_names_lent() -> None:
    batch = make()
    batch.x[7, 2] = np.nan
    names = Names(row=lambda b, i: f"clicks.csv line {int(b.rows[i]) + 2}", feature=lambda j: f"column {'abcde'[j]!r}")
    with pytest.raises(FeatureError, match=r"clicks.csv line 1009 has nan in column 'c'"):
        Trainer(Spec(), 5, names=names).run_epoch([batch], 0)
    with pytest.raises(FeatureError, match="row 7 of the batch has nan"):
        Trainer(Spec(), 5).run_epoch([Batch(batch.x, batch.y)], 0)


@pytest.mark.parametrize("loss", ["logistic", "squared", "softmax"])
def test_bad_labels_and_weights_are_named(loss: str) -> None:
    outputs = 3 if loss == "softmax" else 1
    for run in ("run_epoch", "evaluate"):
        args = (0,) if run == "run_epoch" else ()
        batch = make(loss=loss)
        batch.y[5] = np.nan
        with pytest.raises(LabelError, match="row 1005 has nan as its label"):
            getattr(Trainer(Spec(loss), 5, outputs=outputs), run)([batch], *args)
        for weight in (-1.0, np.nan):
            sound = make(loss=loss)
            weighted = Batch(sound.x, sound.y, np.ones(len(sound), np.float32), sound.rows)
            weighted.weight[9] = weight
            with pytest.raises(DataError, match=f"row 1009 has the weight {weight}"):
                getattr(Trainer(Spec(loss), 5, outputs=outputs), run)([weighted], *args)


def test_a_class_out_of_range_and_an_index_past_the_width_are_named() -> None:
    batch = make(loss="softmax")
    batch.y[11] = 3
    with pytest.raises(LabelError, match="row 1011 has class 3, but the model has 3 classes"):
        Trainer(Spec("softmax"), 5, outputs=3).run_epoch([batch], 0)
    sound = make(sparse=True)
    sound.x.indices[int(sound.x.indptr[99])] = 4_000_000_000
    for spec in (Spec(), Spec(batch_size=8)):
        with pytest.raises(FeatureError, match="row 1099 has a value for feature 4000000000, but the model has 5"):
            Trainer(spec, 5).run_epoch([sound], 0)
    with pytest.raises(FeatureError, match="row 1099 has a value for feature 4000000000"):
        Trainer(Spec(), 5).evaluate([sound])
    with pytest.raises(FeatureError, match="feature 4000000000, but the model has 5"):
        Weights.zeros(5).scores(sound)


@pytest.mark.parametrize("sparse", [False, True])
def test_divergence_names_epoch_rate_and_remedy(sparse: bool) -> None:
    batch = make(loss="squared", sparse=sparse)
    trainer = Trainer(Spec("squared", Rate(50.0)), 5)
    with pytest.raises(DivergedError, match=r"epoch 1 at learning rate 50: .* \(try 0\.1\) or standardize=True"):
        run_epochs(trainer, batch, 10)


def test_a_loss_that_explodes_within_finite_numbers_is_divergence() -> None:
    batch = make(40, loss="squared")
    trainer = Trainer(Spec("squared", Rate(3.0), batch_size=40), 5)
    with pytest.raises(DivergedError, match=r"the loss is .* and rising, where no model at all has"):
        run_epochs(trainer, batch, 200)
    assert trainer.weights.is_finite()


def test_weights_not_finite_after_the_last_row_are_divergence() -> None:
    batch = Batch(np.full((1, 1), 3e38, np.float32), np.ones(1, np.float32))
    with pytest.raises(DivergedError, match="a weight is no longer finite"):
        Trainer(Spec("hinge", Rate(1e3)), 1).run_epoch([batch], 0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("cut", ["between", "within"])
def test_resumed_equals_uninterrupted_to_the_last_bit(loss: str, sparse: bool, cut: str) -> None:
    spec = Spec(loss, Rate(0.1, power=0.25), batch_size=3, l1=1e-3, l2=1e-2)
    outputs = 3 if loss == "softmax" else 1
    batches = pieces(make(loss=loss, sparse=sparse), 90)
    whole = Trainer(spec, 5, outputs=outputs)
    expected = [whole.run_epoch(batches, epoch) for epoch in range(3)]

    states = []
    broken = Trainer(spec, 5, outputs=outputs)
    broken.run_epoch(batches, 0)
    if cut == "within":
        seen: list[EpochStats] = []

        def keep(batch: Batch, so_far: EpochStats) -> None:
            seen.append(so_far)
            if len(seen) == 2:
                states.append(broken.state())

        broken.run_epoch(batches, 1, on_batch=keep)
        assert seen[1].rows == 180
    else:
        states.append(broken.state())
    resumed = Trainer(spec, 5, outputs=outputs)
    resumed.restore(states[0])
    found = [resumed.run_epoch(batches[2:] if cut == "within" else batches, 1), resumed.run_epoch(batches, 2)]
    assert found == expected[1:]
    np.testing.assert_array_equal(resumed.weights.coef, whole.weights.coef)
    np.testing.assert_array_equal(resumed.weights.intercept, whole.weights.intercept)
    assert resumed.weights.updates == whole.weights.updates


def test_a_state_is_a_copy_and_a_foreign_one_is_refused() -> None:
    trainer = Trainer(Spec(), 5)
    state = trainer.state()
    trainer.run_epoch([make()], 0)
    assert not state["coef"].any()
    with pytest.raises(ModelFileError, match="1 outputs and 5 features, the trainer of 1 and 6"):
        Trainer(Spec(), 6).restore(state)
    del state["clock"]
    with pytest.raises(ModelFileError, match="lack clock"):
        trainer.restore(state)


def test_an_epoch_needs_no_lazy_state_after_its_end() -> None:
    trainer = Trainer(Spec(l1=1e-3, l2=1e-2), 5)
    batch = make(sparse=True)
    inside = []
    trainer.run_epoch([batch], 0, on_batch=lambda b, s: inside.append(trainer.weights.scores(b)))
    np.testing.assert_allclose(inside[0], trainer.weights.scores(batch), rtol=1e-6)
    assert trainer.weights.clock[1:].tolist() == [1.0, 0.0]


def test_read_only_and_foreign_arrays_are_taken() -> None:
    batch = make()
    expected = Trainer(Spec(), 5)
    expected.run_epoch([batch], 0)
    frozen = Batch(np.asfortranarray(batch.x.astype(np.float64)), batch.y.astype(np.int64))
    frozen.x.flags.writeable = False
    trainer = Trainer(Spec(), 5)
    trainer.run_epoch([frozen], 0)
    np.testing.assert_array_equal(trainer.weights.coef, expected.weights.coef)


def test_empty_data_gives_zero_stats() -> None:
    trainer = Trainer(Spec(), 5)
    assert trainer.run_epoch([], 0).rows == 0
    assert trainer.run_epoch([make().slice(0, 0)], 1).loss == 0.0


def test_wrong_use_is_refused() -> None:
    for options, message in (
        ({"batch_size": 0}, "batch_size=0 must be a whole number from 1"),
        ({"l1": -1.0}, "l1=-1.0 must be zero or a positive"),
        ({"l2": math.nan}, "l2=nan must be zero"),
        ({"loss": "cubic"}, "loss='cubic' is not known"),
    ):
        with pytest.raises(UsageError, match=message):
            Spec(**options)
    with pytest.raises(UsageError, match="outputs=1 does not fit loss='softmax'"):
        Trainer(Spec("softmax"), 5)
    with pytest.raises(UsageError, match="the rows have 5 features but the model has 4"):
        Trainer(Spec(), 4).run_epoch([make()], 0)
    with pytest.raises(LabelError, match="no labels"):
        Trainer(Spec(), 5).run_epoch([Batch(make().x)], 0)


def test_early_stopping_waits_as_long_as_told() -> None:
    watch = EarlyStopping(patience=3, tolerance=0.1)
    stops = []
    for loss in (1.0, 0.5, 0.46, 0.48, 0.2, 0.19, 0.19, math.nan):
        watch = watch.after(loss)
        stops.append(watch.stop)
    assert stops == [False] * 7 + [True]
    assert watch.best == 0.2
    with pytest.raises(UsageError, match="patience=0"):
        EarlyStopping(patience=0)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    code = """
import numpy as np
from penstock.batch import Batch
from penstock.sgd import linear
from penstock.sgd.loop import Spec, Trainer
Trainer(Spec(), 2).run_epoch([Batch(np.ones((3, 2), np.float32), np.ones(3, np.float32))], 0)
print(sum(linear.dense_ahead.stats.cache_hits.values()), sum(linear.dense_ahead.stats.cache_misses.values()))
"""
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": source}
    found = [
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert found == [["0", "1"], ["1", "0"]]


def test_later_epochs_count_more_in_the_mean_of_the_weights():
    weights, average = Weights.zeros(1), WeightAverage(interval=1)
    for value in (0.0, 3.0, 6.0):
        weights.coef[:] = value
        average.advance(1, weights)
        average.end_epoch(weights)
    assert average.weights(weights).coef == pytest.approx((1 * 0 + 2 * 3 + 3 * 6) / 6)


def test_an_average_is_the_same_after_it_was_saved_in_the_middle_of_an_epoch():
    numbers = np.random.default_rng(0).normal(size=40)

    def run(average, some):
        weights = Weights.zeros(1)
        for number, value in some:
            weights.coef[:] = value
            average.advance(1, weights)
            if number % 8 == 7:
                average.end_epoch(weights)
        return average

    steps = list(enumerate(numbers))
    whole = run(WeightAverage(interval=2, first=3), steps)
    resumed = WeightAverage.from_arrays(run(WeightAverage(interval=2, first=3), steps[:21]).arrays())
    assert resumed is not None
    run(resumed, steps[21:])
    np.testing.assert_array_equal(whole.weights(Weights.zeros(1)).coef, resumed.weights(Weights.zeros(1)).coef)
