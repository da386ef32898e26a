"""Training by full passes: scikit-learn's weights, figures of the best weights, early ends, exact resume, clear refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from sklearn import linear_model
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import penstock
from penstock.batch import Batch, Csr, Floats
from penstock.blocks import convert
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.errors import DataError, DivergedError, FeatureError, LabelError, ModelFileError, UsageError
from penstock.evaluation import evaluate
from penstock.events import Epoch, Event, Stream, Warned
from penstock.memory_learner import LinearJob, linear_job
from penstock.sgd.full import sums
from penstock.sgd.loop import EpochStats, Spec
from penstock.sgd.losses import find_loss
from penstock.sgd.model import Weights
from penstock.sgd.passes import FullTrainer
from penstock.sgd.rates import Rate
from penstock.shuffle import ORDERS
from penstock.training import Columns
from tests import kinds

EXACT: dict[str, Any] = {"solver": "lbfgs", "epochs": 500, "tolerance": 1e-7}
WIDTH = 6


def draw(rows: int = 2000, *, loss: str = "logistic", seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    score = x @ np.array([1.5, -1, 0.5, 0.2, 0, 0]) + rng.standard_normal(rows) + 0.4
    return x, (score if loss == "squared" else np.where(score > 0, 1, -1)).astype(np.float32)


def csr_of(x: Floats, *, width: int | None = None) -> Csr:
    rows = sp.csr_matrix(x)
    return Csr(
        rows.indptr.astype(np.uint64), rows.indices.astype(np.uint32), rows.data, x.shape[1] if width is None else width
    )


def trainer_of(loss: str = "logistic", *, rate: float = 1.0, solver: str = "lbfgs", **spec: Any) -> FullTrainer:
    return FullTrainer(Spec(loss, Rate(rate), **spec), WIDTH, solver=solver, tolerance=1e-6)


def run(trainer: FullTrainer, batches: list[Batch], most: int = 200) -> list[EpochStats]:
    told: list[EpochStats] = []
    while not trainer.done and len(told) < most:
        told.append(trainer.run_epoch(batches, len(told)))
    return told


def peer_of(l2: float, rows: int) -> linear_model.LogisticRegression:
    return linear_model.LogisticRegression(C=1 / (l2 * rows) if l2 else np.inf, tol=1e-10, max_iter=100_000)


class TestWeights:
    @pytest.mark.parametrize("l2", [0.0, 1e-3, 1e-1])
    @pytest.mark.parametrize("kind", ["arrays", "sparse", "file", "parquet"])
    def test_they_are_scikit_learns(self, l2: float, kind: str, tmp_path: Path) -> None:
        x, y = draw(30_000)
        x = StandardScaler().fit_transform(x).astype(np.float32)
        peer = peer_of(l2, len(y)).fit(x.astype(float), y)
        model = penstock.LogisticRegression(l2=l2, validation=0, **EXACT)
        if kind == "arrays":
            model.fit(x, y)
        elif kind == "sparse":
            model.fit(sp.csr_matrix(x), y)
        else:
            columns = pa.table({**{f"f{j}": x[:, j] for j in range(WIDTH)}, "label": y})
            path = tmp_path / ("a.arrow" if kind == "file" else "a.parquet")
            if kind == "file":
                convert(columns, path, label="label", block_size=4000)
            else:
                parquet.write_table(columns, path, row_group_size=200)
            memory = 100_000 if kind == "file" else 719_300
            assert x.nbytes + y.nbytes > memory
            model.set_params(memory=memory).fit(path, y="label")
            assert min(row["bytes"] for row in model.history_) > 100_000  # read anew in every epoch
        np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-4)
        np.testing.assert_allclose(model.intercept_, peer.intercept_, atol=1e-4)
        assert model.n_iter_ < 40

    @pytest.mark.parametrize("l2", [1e-3, 1e-2])
    def test_they_are_scikit_learns_where_features_go_together(self, l2: float) -> None:
        x, y = load_breast_cancer(return_X_y=True)
        x = StandardScaler().fit_transform(x)
        peer = peer_of(l2, len(y)).fit(x, y)
        model = penstock.LogisticRegression(l2=l2, **EXACT).fit(x, y)
        np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-4)
        assert model.score(x, y) == peer.score(x, y)

    def test_standardised_ones_come_back_in_the_features_own_units(self) -> None:
        x, y = draw()
        x = x * np.array([1, 10, 0.1, 100, 1, 5], np.float32) + np.array([0, 50, 0, -300, 2, 0], np.float32)
        scaler = StandardScaler().fit(x.astype(float))
        peer = peer_of(0.01, len(y)).fit(scaler.transform(x.astype(float)), y)
        model = penstock.LogisticRegression(l2=0.01, standardize=True, **EXACT).fit(x, y)
        np.testing.assert_allclose(model.coef_ * scaler.scale_, peer.coef_, atol=1e-4)
        np.testing.assert_allclose(
            model.decision_function(x), peer.decision_function(scaler.transform(x)), rtol=1e-3, atol=1e-3
        )

    @pytest.mark.parametrize("solver", ["lbfgs", "gd"])
    @pytest.mark.parametrize("intercept", [True, False])
    def test_linear_ones_are_ridges(self, solver: str, intercept: bool) -> None:
        x, y = draw(loss="squared")
        peer = linear_model.Ridge(alpha=0.05 * len(y), fit_intercept=intercept).fit(x.astype(float), y)
        options = {**EXACT, "solver": solver, "learning_rate": 0.5, "intercept": intercept, "standardize": False}
        model = penstock.LinearRegression(l2=0.05, **{**options, "tolerance": 1e-6}).fit(x, y)
        np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-4)
        assert model.intercept_ == pytest.approx(peer.intercept_, abs=1e-4)
        assert model.score(x, y) == pytest.approx(peer.score(x, y), abs=1e-5)
        assert bool(model.intercept_) == intercept

    @pytest.mark.parametrize("solver", ["lbfgs", "gd"])
    def test_l1_leaves_features_out_as_the_lasso_does(self, solver: str) -> None:
        x, y = draw(loss="squared")
        peer = linear_model.Lasso(alpha=0.1, tol=1e-10).fit(x.astype(float), y)
        trainer = trainer_of("squared", l1=0.1, solver=solver, rate=1.0 if solver == "lbfgs" else 0.5)
        run(trainer, [Batch(x, y)])
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, atol=1e-4)
        assert (trainer.weights.coef[0] == 0).tolist() == (peer.coef_ == 0).tolist()
        assert (peer.coef_ == 0).any()

    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_a_weight_of_two_is_the_row_twice_and_none_is_no_row(self, loss: str, sparse: bool) -> None:
        x, y = draw(loss=loss)
        x = np.where(np.abs(x) > 0.5, x, 0).astype(np.float32)
        weight = np.random.default_rng(1).integers(0, 4, len(y))
        spoilt = x.copy()
        spoilt[weight == 0] = np.inf
        first, second = trainer_of(loss, l2=0.01), trainer_of(loss, l2=0.01)
        told = run(first, [Batch(csr_of(spoilt) if sparse else spoilt, y, weight.astype(np.float32))])
        more, whole = x.repeat(weight, axis=0), y.repeat(weight)
        expected = run(second, [Batch(csr_of(more) if sparse else more, whole)])
        np.testing.assert_allclose(first.weights.coef, second.weights.coef, atol=1e-4)
        assert told[-1].score == pytest.approx(expected[-1].score, abs=1e-4)
        assert told[-1].loss == pytest.approx(expected[-1].loss, rel=1e-5)
        assert (told[-1].weight, told[-1].rows) == (weight.sum(), len(y))

    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_the_sums_told_are_those_of_the_groups(self, loss: str, sparse: bool, monkeypatch: Any) -> None:
        x, y = draw(5000, loss=loss)
        weight = np.random.default_rng(1).random(len(y)).astype(np.float32)
        given: Any = csr_of(x) if sparse else x
        trainer = trainer_of(loss, l2=0.1)
        tell, heard = trainer._search.tell, []
        monkeypatch.setattr(trainer._search, "tell", lambda told: (heard.append(told), tell(told)))
        for epoch in range(4):
            asked = trainer._search.ask()
            batch = Batch(given, y, weight)
            trainer.run_epoch([batch.slice(0, 700), batch.slice(700, 701), batch.slice(701, 5000)], epoch)
            expected = sums(given, y, at=asked, loss=loss, weight=weight)
            assert heard[-1].loss == pytest.approx(expected.loss, rel=1e-6)
            assert heard[-1].weight == pytest.approx(expected.weight)
            np.testing.assert_allclose(heard[-1].gradient, expected.gradient, rtol=1e-5, atol=1e-3)

    def test_how_rows_come_in_batches_makes_no_difference_but_of_rounding(self) -> None:
        x, y = draw(5000)
        whole, parts = trainer_of(l2=0.01), trainer_of(l2=0.01)
        run(whole, [Batch(x, y)])
        run(parts, [Batch(x, y).slice(at, at + 77) for at in range(0, 5000, 77)])
        np.testing.assert_allclose(parts.weights.coef, whole.weights.coef, atol=1e-5)

    def test_sparse_rows_may_be_narrower_than_the_model(self) -> None:
        x, y = draw()
        x[:, 3:] = 0
        narrow, full = trainer_of(l2=0.01), trainer_of(l2=0.01)
        run(narrow, [Batch(csr_of(x, width=3), y)])
        run(full, [Batch(csr_of(x), y)])
        np.testing.assert_array_equal(narrow.weights.coef, full.weights.coef)


class TestFigures:
    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_they_are_of_all_rows_at_the_best_weights(self, loss: str, sparse: bool) -> None:
        x, y = draw(loss=loss)
        y = y + 100 if loss == "squared" else y
        trainer = trainer_of(loss, rate=30.0)  # bold enough to be stepped back from
        batch, repeated, last = Batch(csr_of(x) if sparse else x, y), 0, math.inf
        for epoch in range(25):
            told = trainer.run_epoch([batch], epoch)
            measured = trainer.evaluate([batch])
            assert told.loss == pytest.approx(measured.loss, rel=1e-5)
            assert told.score == pytest.approx(measured.score, abs=1e-5)
            assert (told.rows, told.weight, told.metric) == (measured.rows, measured.weight, measured.metric)
            assert told.loss <= last
            repeated += told.loss == last
            last = told.loss
        assert repeated > 0
        assert 10 < told.updates <= 25

    def test_the_first_are_of_a_model_that_knows_nothing(self) -> None:
        x, y = draw()
        told = trainer_of().run_epoch([Batch(x, y)], 0)
        assert told.loss == pytest.approx(math.log(2))
        assert told.score == pytest.approx((y < 0).mean())

    def test_what_is_heard_on_the_way_is_of_this_epochs_weights(self) -> None:
        x, y = draw()
        heard: list[tuple[int, float]] = []
        batches = [Batch(x, y).slice(0, 500), Batch(x, y).slice(500, 2000)]
        trainer = trainer_of()
        for epoch in range(2):
            told = trainer.run_epoch(
                batches, epoch, on_batch=lambda batch, stats: heard.append((len(batch), stats.loss))
            )
        assert [rows for rows, _ in heard] == [500, 1500, 500, 1500]
        assert heard[-1][1] == pytest.approx(told.loss)
        assert heard[0][1] == pytest.approx(math.log(2))

    def test_a_fall_too_small_for_sums_of_float32_is_seen_by_its_slopes(self) -> None:
        x, y = draw(300)
        trainer = trainer_of()
        told = run(trainer, [Batch(x, y)])
        w = np.append(trainer.weights.coef[0], trainer.weights.intercept).astype(float)
        slope = find_loss("logistic").slope(x.astype(float) @ w[:-1] + w[-1], y.astype(float)) / len(y)
        assert np.abs(np.append(slope @ x, slope.sum())).max() < 1e-5
        falls = -np.diff([each.loss for each in told])
        assert (falls[-2:] > 0).all()
        assert 0 < falls[-1] < 1e-7


class TestClasses:
    def trainer(self, outputs: int, width: int = WIDTH, **spec: Any) -> FullTrainer:
        return FullTrainer(Spec("softmax", Rate(1.0), **spec), width, outputs=outputs, tolerance=1e-6)

    def test_plain_descent_comes_to_the_same(self) -> None:
        x, y = draw(600)
        batch, found = Batch(x, np.digitize(x[:, 0] + y, [-1, 1]).astype(np.float32)), []
        for solver in ("lbfgs", "gd"):
            spec = Spec("softmax", Rate(1.0), l1=0.01, l2=0.05)
            trainer = FullTrainer(spec, WIDTH, outputs=3, solver=solver, tolerance=1e-5)
            run(trainer, [batch], most=500)
            assert trainer.done
            found.append(trainer.weights)
        np.testing.assert_allclose(found[0].coef, found[1].coef, atol=1e-3)

    @pytest.mark.parametrize("load", [load_iris, load_wine])
    def test_weights_are_scikit_learns(self, load: Any) -> None:
        x, y = load(return_X_y=True)
        x = StandardScaler().fit_transform(x).astype(np.float32)
        peer = linear_model.LogisticRegression(tol=1e-7, max_iter=1000).fit(x.astype(float), y)
        trainer = self.trainer(y.max() + 1, x.shape[1], l2=1 / len(y))
        told = run(trainer, [Batch(x, y.astype(np.float32))])
        assert trainer.done
        np.testing.assert_allclose(trainer.weights.coef, peer.coef_, atol=1e-3 * np.abs(peer.coef_).max())
        np.testing.assert_allclose(np.ptp(trainer.weights.intercept), np.ptp(peer.intercept_), rtol=1e-3)
        assert told[-1].loss == pytest.approx(log_loss(y, peer.predict_proba(x)), abs=1e-5)
        assert told[-1].score == peer.score(x, y)

    @pytest.mark.parametrize("intercept", [True, False])
    def test_sparse_rows_dense_rows_and_rows_by_weight_give_the_same(self, intercept: bool) -> None:
        x, y = draw(1500)
        x = np.where(np.abs(x) > 0.7, x, 0).astype(np.float32)
        y = np.digitize(x @ np.arange(WIDTH) + y, [-2, 2]).astype(np.float32)
        weight = np.random.default_rng(1).integers(0, 3, len(y))
        spoilt = np.where(weight[:, None] == 0, np.float32(np.nan), x)
        batches = [
            Batch(x.repeat(weight, axis=0), y.repeat(weight)),
            Batch(spoilt, y, weight.astype(np.float32)),
            Batch(csr_of(spoilt), y, weight.astype(np.float32)),
        ]
        found = []
        for batch in batches:
            trainer = self.trainer(3, l2=0.01, intercept=intercept)
            told = run(trainer, [batch.slice(0, 500), batch.slice(500, len(batch))])
            measured = trainer.evaluate([batch])
            assert told[-1].loss == pytest.approx(measured.loss, rel=1e-5)
            assert told[-1].score == pytest.approx(measured.score, abs=1e-6)
            assert trainer.weights.intercept.any() == intercept
            found.append(trainer.weights)
        for other in found[1:]:
            np.testing.assert_allclose(other.coef, found[0].coef, atol=2e-4)
            np.testing.assert_allclose(other.intercept, found[0].intercept, atol=2e-4)

    def test_l1_leaves_features_out_and_intercepts_free(self) -> None:
        x, y = draw(1500)
        y = np.digitize(x[:, 0] + y, [-3, 1]).astype(np.float32)
        trainer = self.trainer(3, l1=0.1)
        run(trainer, [Batch(x, y)])
        assert (trainer.weights.coef[:, 1:] == 0).mean() > 0.5
        assert trainer.weights.intercept.all()
        huge = self.trainer(3, l1=10.0)
        told = run(huge, [Batch(x, y)])
        share = np.bincount(y.astype(int)) / len(y)
        assert not huge.weights.coef.any()
        assert told[-1].loss == pytest.approx(-(share @ np.log(share)), rel=1e-4)

    def test_a_restored_trainer_goes_on_to_the_same_weights_bit_for_bit(self) -> None:
        for loss, outputs, l1 in (("softmax", 3, 0.0), ("softmax", 3, 0.01), ("hinge", 1, 0.0)):
            x, y = draw(600)
            batch = Batch(x, np.digitize(x[:, 0], [-1, 1]).astype(np.float32) if outputs > 1 else y)
            one, other = (
                FullTrainer(Spec(loss, Rate(1.0), l1=l1, l2=0.001), WIDTH, outputs=outputs, tolerance=1e-6)
                for _ in range(2)
            )
            run(one, [batch], most=5)
            other.restore(one.state())
            assert run(other, [batch]) == run(one, [batch])
            np.testing.assert_array_equal(other.weights.coef, one.weights.coef)
            np.testing.assert_array_equal(other.weights.intercept, one.weights.intercept)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_what_cannot_be_used_is_named(self, sparse: bool) -> None:
        x, y = draw()
        y = np.digitize(y, [0]).astype(np.float32)
        bad = y.copy()
        bad[611] = 3
        with pytest.raises(LabelError, match="row 611 of the batch has class 3, but the model has 3 classes"):
            self.trainer(3).run_epoch([Batch(csr_of(x) if sparse else x, bad)], 0)
        x[7, 2] = np.inf
        with pytest.raises(FeatureError, match="row 7 of the batch has inf in feature 2"):
            self.trainer(3).run_epoch([Batch(csr_of(x) if sparse else x, y)], 0)
        with pytest.raises(UsageError, match="the rows have 2 features but the model has 6"):
            self.trainer(3).run_epoch([Batch(x[:, :2].copy(), y)], 0)


class TestHinge:
    def test_it_is_as_good_as_a_support_vector_machine(self) -> None:
        x, y = load_breast_cancer(return_X_y=True)
        x, y = StandardScaler().fit_transform(x).astype(np.float32), (2 * y - 1).astype(np.float32)
        l2 = 0.01
        peer = LinearSVC(loss="hinge", C=1 / (l2 * len(y)), max_iter=100_000, intercept_scaling=10).fit(x, y)
        trainer = FullTrainer(Spec("hinge", Rate(1.0), l2=l2), x.shape[1])
        told = run(trainer, [Batch(x, y)])
        assert trainer.done
        best = np.maximum(1 - y * peer.decision_function(x), 0).mean() + l2 / 2 * (peer.coef_**2).sum()
        assert told[-1].loss + l2 / 2 * (trainer.weights.coef**2).sum() < 1.02 * best
        assert told[-1].score == pytest.approx(peer.score(x, y), abs=0.005)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_figures_are_of_the_true_loss(self, sparse: bool) -> None:
        x, y = draw()
        weight = np.random.default_rng(1).random(len(y)).astype(np.float32)
        batch = Batch(csr_of(x) if sparse else x, y, weight)
        trainer = trainer_of("hinge", l2=0.01)
        told = run(trainer, [batch], most=9)[-1]
        measured = trainer.evaluate([batch])
        assert told.loss == pytest.approx(measured.loss, rel=1e-5)
        assert told.score == pytest.approx(measured.score, abs=1e-6)


class TestStart:
    def test_the_weights_of_another_run_are_gone_on_from(self) -> None:
        x, y = draw()
        first, second = trainer_of(l2=0.01), trainer_of(l2=0.01)
        run(first, [Batch(x, y)])
        second.start(first.weights)
        np.testing.assert_array_equal(second.weights.coef, first.weights.coef)
        assert len(run(second, [Batch(x, y)])) < 4
        np.testing.assert_allclose(second.weights.coef, first.weights.coef, atol=1e-5)

    def test_intercepts_at_the_class_shares_start_with_their_loss(self) -> None:
        x, y = draw()
        y = np.digitize(y * x[:, 0], [-1, 1]).astype(np.float32)
        share = np.bincount(y.astype(int)) / len(y)
        trainer = FullTrainer(Spec("softmax", Rate(1.0)), WIDTH, outputs=3)
        trainer.start(Weights(np.zeros((3, WIDTH), np.float32), np.log(share).astype(np.float32)))
        assert trainer.run_epoch([Batch(x, y)], 0).loss == pytest.approx(-(share @ np.log(share)), rel=1e-5)

    def test_what_cannot_be_a_start_is_refused(self) -> None:
        x, y = draw(100)
        trainer = trainer_of()
        with pytest.raises(UsageError, match="2 outputs and 6 features"):
            trainer.start(Weights.zeros(WIDTH, 2))
        with pytest.raises(UsageError, match="not finite"):
            trainer.start(Weights(np.full((1, WIDTH), np.nan, np.float32), np.zeros(1, np.float32)))
        with pytest.raises(UsageError, match="without one"):
            trainer_of(intercept=False).start(Weights(np.zeros((1, WIDTH), np.float32), np.ones(1, np.float32)))
        trainer.run_epoch([Batch(x, y)], 0)
        with pytest.raises(UsageError, match="before the first epoch"):
            trainer.start(trainer.weights)


class TestJobs:
    def train(self, source: Any, *, listeners: Any = (), test: Any = None, **options: Any) -> Any:
        config = Config(**{"solver": "lbfgs", "epochs": 100, "memory": "10MB", **options})
        return linear_job(source, config, Columns(label="label"), test=test, stream=Stream(list(listeners))).run()

    def test_an_optimiser_that_is_done_ends_the_epochs(self) -> None:
        heard: list[Event] = []
        model = self.train(ArraySource(*draw()), l2=0.01, listeners=[heard.append])
        assert 5 < len(model.history) < 30
        assert [row["epoch"] for row in model.history] == list(range(1, len(model.history) + 1))
        assert not [event for event in heard if isinstance(event, Warned)]
        assert "progressive_accuracy" in model.history[-1]

    def test_one_that_is_not_done_in_its_epochs_says_so(self) -> None:
        heard: list[Event] = []
        self.train(ArraySource(*draw()), epochs=3, listeners=[heard.append])
        (warning,) = [event.message for event in heard if isinstance(event, Warned)]
        assert warning.startswith("lbfgs has not converged in 3 epochs; allow more")

    @pytest.mark.parametrize("patience", [None, 2])
    def test_held_out_rows_and_test_sets_are_measured_by_the_weights_of_the_row(self, patience: int | None) -> None:
        x, y = draw()
        test = ArraySource(*draw(500, seed=1))
        model = self.train(ArraySource(x, y), test=test, validation=0, patience=patience)
        told = evaluate(model, test)
        assert model.metrics["test_accuracy"] == pytest.approx(told["accuracy"], abs=1e-6)
        assert model.metrics["test_loss"] == pytest.approx(told["loss"], rel=1e-6)
        if patience:
            assert model.metrics["test_loss"] == min(row["test_loss"] for row in model.history)
        held = self.train(ArraySource(x, y), validation=0.25, patience=patience)
        assert 1400 < held.history[0]["rows"] < 1600
        assert held.metrics["held_out_accuracy"] > 0.75

    def test_no_epochs_give_a_model_that_knows_nothing(self) -> None:
        model = self.train(ArraySource(*draw()), epochs=0)
        assert not model.weights.coef.any()
        assert model.history == []

    @pytest.mark.parametrize("shuffle", ORDERS)
    def test_rows_are_read_as_stored_whatever_the_order(self, shuffle: str, tmp_path: Path) -> None:
        x, y = draw(600)
        source = ArraySource(x, y, block_size=800)
        plain = self.train(source, shuffle="none", memory="30kB")
        model = self.train(source, shuffle=shuffle, memory="30kB")
        np.testing.assert_array_equal(model.weights.coef, plain.weights.coef)
        assert model.config["shuffle"] == "none"

    @pytest.mark.parametrize("kind", ["packed", "csv", "parquet", "packed-sparse"])
    @pytest.mark.parametrize("memory", ["small", "large"])
    def test_what_is_not_finite_is_named_by_its_row_and_column(self, kind: str, memory: str, tmp_path: Path) -> None:
        x, y = kinds.rows(800)
        x[:, 0] /= 1000
        x[611, 2] = np.inf
        with kinds.store(kind, tmp_path, x, y) as source:
            recipe = kinds.recipe(source)
            size = "10MB" if memory == "large" else kinds.small_memory(source, recipe, "none")
            name = "feature 2" if recipe.sparse else recipe.names[2]  # type: ignore[index]
            with pytest.raises(
                FeatureError,
                match=rf"row 611 of {source.name} has inf in {name}|'{name}' is not a finite number in row 611",
            ):
                self.train(source, memory=size, standardize=False)

    def test_a_bad_weight_is_named(self) -> None:
        x, y = draw()
        weight = np.ones(len(y), np.float32)
        for value in (-1, np.nan, np.inf):
            weight[7] = value
            with pytest.raises(DataError, match=rf"row 7 of the batch has the weight {value:.1f}"):
                trainer_of().run_epoch([Batch(x, y, weight)], 0)


class TestResume:
    class KilledError(Exception):
        pass

    def job(self, tmp_path: Path, x: Any, y: Any, *, after: int | None = None, **options: Any) -> LinearJob:
        def listen(event: Event) -> None:
            if after is not None and isinstance(event, Epoch) and event.epoch == after + 1:
                raise self.KilledError

        config = Config(**{"epochs": 40, "memory": "30kB", "tolerance": 1e-6, **options})
        source = ArraySource(x, y, block_size=800)
        return linear_job(
            source, config, Columns(label="label"), checkpoint=tmp_path / "c", stream=Stream([listen]), scratch=tmp_path
        )

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize(
        "options",
        [
            {"solver": "lbfgs"},
            {"solver": "lbfgs", "l1": 0.01, "standardize": True, "learning_rate": 20.0},
            {"solver": "lbfgs", "model": "linear", "l2": 0.01, "validation": 0.2, "patience": 3},
            {"solver": "gd", "learning_rate": 0.5, "l1": 0.01},
        ],
    )
    def test_it_goes_on_to_the_same_weights_bit_for_bit(
        self, options: dict[str, Any], sparse: bool, tmp_path: Path
    ) -> None:
        x, y = draw(600, loss="squared" if options.get("model") == "linear" else "logistic")
        given: Any = sp.csr_matrix(np.where(np.abs(x) > 0.5, x, 0)) if sparse else x
        whole = self.job(tmp_path, given, y, **options).run()
        (tmp_path / "c").unlink()
        assert len(whole.history) > 6
        for after in (0, 3, 5):
            with pytest.raises(self.KilledError):
                self.job(tmp_path, given, y, after=after, **options).run(resume=True)
        for _ in range(2):  # the second time there is nothing left to do
            resumed = self.job(tmp_path, given, y, **options).run(resume=True)
            np.testing.assert_array_equal(resumed.weights.coef, whole.weights.coef)
            np.testing.assert_array_equal(resumed.weights.intercept, whole.weights.intercept)
            names = ("epoch", "progressive_loss", "progressive_accuracy", "progressive_r2", "test_loss", "rows")
            rows = [[{name: row.get(name) for name in names} for row in each.history] for each in (resumed, whole)]
            assert rows[0] == rows[1]
            assert resumed.metrics == whole.metrics

    def test_more_epochs_may_be_asked_for(self, tmp_path: Path) -> None:
        x, y = draw(600)
        whole = self.job(tmp_path, x, y, solver="lbfgs", epochs=8).run()
        (tmp_path / "c").unlink()
        self.job(tmp_path, x, y, solver="lbfgs", epochs=4).run()
        further = self.job(tmp_path, x, y, solver="lbfgs", epochs=8).run(resume=True)
        np.testing.assert_array_equal(further.weights.coef, whole.weights.coef)

    def test_another_solver_is_refused(self, tmp_path: Path) -> None:
        x, y = draw(600)
        self.job(tmp_path, x, y, solver="lbfgs", epochs=2).run()
        with pytest.raises(UsageError, match="made with solver='lbfgs', this run has 'gd'"):
            self.job(tmp_path, x, y, solver="gd", epochs=2).run(resume=True)

    def test_a_state_of_before_the_hinge_was_descended_goes_on(self) -> None:
        x, y = draw(600)
        whole, older = trainer_of(l2=0.01), trainer_of(l2=0.01)
        run(whole, [Batch(x, y)], most=5)
        older.restore({name: array for name, array in whole.state().items() if name != "value"})
        assert run(older, [Batch(x, y)]) == run(whole, [Batch(x, y)])

    def test_states_of_something_else_are_refused(self) -> None:
        x, y = draw(100)
        trainer, other = trainer_of(), FullTrainer(Spec(), WIDTH + 1)
        trainer.run_epoch([Batch(x, y)], 0)
        with pytest.raises(ModelFileError, match="resume with the data and configs it was saved with"):
            other.restore(trainer.state())
        state = trainer.state()
        del state["totals"]
        with pytest.raises(ModelFileError, match="resume with the solver it was saved with"):
            trainer_of().restore(state)


class TestRefusals:
    def test_a_rate_too_high_for_plain_descent_is_told(self) -> None:
        x, y = draw(loss="squared")
        with pytest.raises(DivergedError, match=r"diverged in epoch \d+ at learning rate 50: .*\(try 0\.1\)"):
            run(trainer_of("squared", solver="gd", rate=50.0), [Batch(x, y)])

    def test_labels_past_all_bounds_are_told(self) -> None:
        x, _ = draw()
        with pytest.raises(DivergedError, match=r"epoch 1 .*the loss is not finite at the start"):
            run(trainer_of("squared"), [Batch(x, np.full(len(x), 1e30, np.float32))])

    def test_a_rate_past_all_bounds_is_told(self) -> None:
        x, y = draw()
        with pytest.raises(DivergedError, match=r"epoch \d\d at learning rate 1e\+30: no step led to a lower loss"):
            run(trainer_of(rate=1e30), [Batch(x, y)])

    @pytest.mark.parametrize("scale", [1e-3, 1e3, 1e17])
    def test_features_of_any_size_are_learnt_from(self, scale: float) -> None:
        x, y = draw()
        trainer = trainer_of("squared")
        told = run(trainer, [Batch(x * np.float32(scale), y)])
        assert told[-1].score > 0.45

    def test_a_slope_too_small_to_see_is_the_end_and_no_failure(self) -> None:
        x, y = draw()
        trainer = FullTrainer(Spec("logistic", Rate(1.0), intercept=False), WIDTH, tolerance=0.0)
        told = run(trainer, [Batch(x * np.float32(1e-7), y)])
        assert trainer.done
        assert told[-1].loss == pytest.approx(math.log(2))

    def test_no_rows_and_no_weight_are_nothing_to_learn_from(self) -> None:
        x, y = draw(5)
        with pytest.raises(DataError, match="0 rows of no weight"):
            trainer_of().run_epoch([], 0)
        with pytest.raises(DataError, match="5 rows of no weight"):
            trainer_of().run_epoch([Batch(x, y, np.zeros(5, np.float32))], 0)

    def test_rows_without_labels_or_of_another_width(self) -> None:
        x, y = draw(5)
        with pytest.raises(LabelError, match="has no labels"):
            trainer_of().run_epoch([Batch(x)], 0)
        with pytest.raises(UsageError, match="the rows have 2 features but the model has 6"):
            trainer_of().run_epoch([Batch(x[:, :2].copy(), y)], 0)
        with pytest.raises(FeatureError, match="row 0 of the batch has a value for feature 6, but the model has 6"):
            trainer_of().run_epoch([Batch(csr_of(np.ones((5, 7), np.float32), width=6), y)], 0)

    def test_losses_and_solvers_that_cannot_be(self) -> None:
        with pytest.raises(UsageError, match="outputs=1 does not fit loss='softmax'"):
            FullTrainer(Spec("softmax"), 3)
        with pytest.raises(UsageError, match="outputs=2 does not fit loss='hinge'"):
            FullTrainer(Spec("hinge"), 3, outputs=2)
        with pytest.raises(UsageError, match="solver='newton' is not known; choose one of: gd, lbfgs"):
            FullTrainer(Spec(), 3, solver="newton")


def test_a_file_is_read_as_it_lies(tmp_path: Path) -> None:
    """Windows are mapped and read-only; nothing of a pass may write to them."""
    x, y = draw(600)
    convert(pa.table({**{f"f{j}": x[:, j] for j in range(WIDTH)}, "label": y}), tmp_path / "a.arrow", label="label")
    before = (tmp_path / "a.arrow").read_bytes()
    with open_source(tmp_path / "a.arrow") as source:
        linear_job(source, Config(solver="lbfgs", epochs=5), Columns(label="label")).run()
    assert (tmp_path / "a.arrow").read_bytes() == before
