"""Least squares by the normal equations: scikit-learn's weights, smallest norms, figures without a second pass, refusals."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import linear_model
from sklearn.datasets import load_diabetes

from penstock.batch import Batch, Csr, Floats
from penstock.errors import DataError, DivergedError, FeatureError, LabelError, ModelFileError, UsageError
from penstock.sgd import exact
from penstock.sgd.exact import WIDEST, ExactTrainer
from penstock.sgd.faults import Names
from penstock.sgd.loop import EpochStats, Spec

WIDTH = 6


def draw(rows: int = 1000, *, width: int = WIDTH, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    return x, (x @ rng.standard_normal(width) + rng.standard_normal(rows) + 0.4).astype(np.float32)


def csr_of(x: Floats, *, width: int | None = None) -> Csr:
    rows = sp.csr_matrix(x)
    return Csr(
        rows.indptr.astype(np.uint64), rows.indices.astype(np.uint32), rows.data, x.shape[1] if width is None else width
    )


def fit(x: Any, y: Floats, weight: Floats | None = None, *, cut: int = 300, **spec: Any) -> tuple[Any, EpochStats]:
    batch = Batch(x, y, weight)
    trainer = ExactTrainer(Spec("squared", **spec), batch.width)
    told = trainer.run_epoch([batch.slice(0, cut), batch.slice(cut, len(batch))], 0)
    assert trainer.done
    return trainer, told


class TestWeights:
    @pytest.mark.parametrize("intercept", [True, False])
    @pytest.mark.parametrize("l2", [0.0, 1e-3, 0.5])
    @pytest.mark.parametrize("layout", ["dense", "sparse", "nearly empty"])
    def test_they_are_ridges(self, l2: float, intercept: bool, layout: str) -> None:
        x, y = draw()
        if layout != "dense":
            x[np.random.default_rng(1).random(x.shape) < (0.5 if layout == "sparse" else 0.9)] = 0
        weight = np.random.default_rng(2).random(len(y)).astype(np.float32)
        peer = linear_model.Ridge(alpha=l2 * weight.sum(dtype=float), fit_intercept=intercept)
        peer.fit(x.astype(float), y, weight)
        trainer, told = fit(x if layout == "dense" else csr_of(x), y, weight, l2=l2, intercept=intercept)
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, rtol=1e-5, atol=1e-6)
        assert trainer.weights.intercept[0] == pytest.approx(peer.intercept_, abs=1e-5)
        assert told.score == pytest.approx(peer.score(x, y, weight), abs=1e-6)

    @pytest.mark.parametrize("l2", [0.0, 1 / 442])
    def test_they_are_scikit_learns_on_a_table_in_its_own_units(self, l2: float) -> None:
        x, y = load_diabetes(return_X_y=True, scaled=False)
        x = x.astype(np.float32)
        peer = linear_model.Ridge(alpha=l2 * len(y)).fit(x.astype(float), y)
        trainer, _ = fit(x, y.astype(np.float32), l2=l2)
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, rtol=1e-4)
        assert trainer.weights.intercept[0] == pytest.approx(peer.intercept_, rel=1e-4)

    def test_large_means_cost_no_digits(self) -> None:
        x, y = draw()
        far = np.round(x * 8) / 8 + np.float32(100_000)
        peer = linear_model.LinearRegression().fit(far.astype(float) - 100_000, y.astype(float))
        trainer, told = fit(far, y + np.float32(1000))
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, atol=2e-5)
        assert told.score == pytest.approx(peer.score(far.astype(float) - 100_000, y), abs=1e-4)

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("l2", [0.0, 0.01])
    def test_a_weight_of_two_is_the_row_twice_and_none_is_no_row(self, sparse: bool, l2: float) -> None:
        x, y = draw()
        x = np.where(np.abs(x) > 1.5, x, 0).astype(np.float32)
        weight = np.random.default_rng(1).integers(0, 4, len(y))
        spoilt = x.copy()
        spoilt[weight == 0] = np.inf
        weight[:301] *= np.arange(301) > 299  # a first batch of no weight
        first, told = fit(csr_of(spoilt) if sparse else spoilt, y, weight.astype(np.float32), l2=l2)
        more, whole = x.repeat(weight, axis=0), y.repeat(weight)
        second, expected = fit(csr_of(more) if sparse else more, whole, l2=l2)
        np.testing.assert_allclose(first.weights.coef, second.weights.coef, atol=1e-6)
        assert told.loss == pytest.approx(expected.loss, rel=1e-6)
        assert told.score == pytest.approx(expected.score, abs=1e-6)
        assert (told.weight, told.rows) == (weight.sum(), len(y))

    def test_how_rows_come_in_batches_makes_no_difference_but_of_rounding(self) -> None:
        x, y = draw()
        trainer = ExactTrainer(Spec("squared"), WIDTH)
        order = np.argsort(y)
        batch = Batch(x[order], y[order])
        trainer.run_epoch([batch.slice(at, min(at + 77, 1000)) for at in range(0, 1000, 77)], 0)
        np.testing.assert_allclose(trainer.weights.coef, fit(x, y)[0].weights.coef, atol=1e-6)

    def test_sparse_rows_may_be_narrower_than_the_model(self) -> None:
        x, y = draw()
        x[:, 3:] = 0
        narrow = ExactTrainer(Spec("squared"), WIDTH)
        narrow.run_epoch([Batch(csr_of(x, width=3), y)], 0)
        np.testing.assert_allclose(narrow.weights.coef, fit(x, y)[0].weights.coef, atol=1e-6)

    @pytest.mark.parametrize("width", [40, 2])
    def test_a_feature_named_twice_in_a_row_is_the_sum(self, width: int) -> None:
        rng = np.random.default_rng(0)
        values, indices = rng.standard_normal(4000).astype(np.float32), rng.integers(0, 2, 4000).astype(np.uint32)
        x = Csr(np.arange(0, 4001, 4).astype(np.uint64), indices, values, width)
        y = rng.standard_normal(1000).astype(np.float32)
        np.testing.assert_allclose(fit(x, y)[0].weights.coef, fit(x.to_dense(), y)[0].weights.coef, atol=1e-6)


class TestDependentFeatures:
    @pytest.mark.parametrize("scale", [1.0, 1000.0])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_of_all_solutions_it_is_that_of_smallest_norm(self, scale: float, sparse: bool) -> None:
        x, y = draw()
        x = np.column_stack([x, x[:, 1], x[:, 0] + x[:, 2], np.full(len(y), 3.0), np.zeros(len(y))]).astype(np.float32)
        x[:, 4] *= np.float32(scale)
        peer = linear_model.LinearRegression().fit(x.astype(float), y)
        trainer, told = fit(csr_of(x) if sparse else x, y)
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, rtol=1e-4, atol=1e-6)
        assert trainer.weights.coef[0, -2:].tolist() == [0, 0]
        assert told.score == pytest.approx(peer.score(x, y), abs=1e-6)

    @pytest.mark.parametrize("l2", [0.0, 1 / 20])
    def test_fewer_rows_than_features(self, l2: float) -> None:
        x, y = draw(20, width=50)
        peer = (linear_model.Ridge(alpha=l2 * 20) if l2 else linear_model.LinearRegression()).fit(x.astype(float), y)
        trainer, told = fit(x, y, cut=7, l2=l2)
        np.testing.assert_allclose(trainer.weights.coef[0], peer.coef_, rtol=1e-4, atol=1e-6)
        assert told.score == pytest.approx(peer.score(x, y), abs=1e-6)

    def test_features_of_very_different_size_are_not_taken_for_dependent(self) -> None:
        x, y = draw()
        size = np.array([1e-8, 1, 1e8, 1e4, 1, 1], np.float32)
        np.testing.assert_allclose(fit(x * size, y)[0].weights.coef * size, fit(x, y)[0].weights.coef, rtol=1e-5)

    def test_one_row_and_no_features_give_the_mean(self) -> None:
        x, y = draw()
        trainer, told = fit(x[:1], y[:1], cut=0)
        assert not trainer.weights.coef.any()
        assert trainer.weights.intercept.tolist() == [y[0]]
        assert (told.loss, told.score) == (0, 1)
        trainer, told = fit(np.zeros((1000, 0), np.float32), y)
        assert trainer.weights.intercept[0] == pytest.approx(y.mean())
        assert told.score == pytest.approx(0, abs=1e-6)


class TestFigures:
    @pytest.mark.parametrize("layout", ["dense", "sparse"])
    @pytest.mark.parametrize("intercept", [True, False])
    def test_they_are_those_of_another_pass(self, layout: str, intercept: bool) -> None:
        x, y = draw()
        weight = np.random.default_rng(2).random(len(y)).astype(np.float32)
        given: Any = x if layout == "dense" else csr_of(x)
        trainer, told = fit(given, y + 20, weight, l2=0.1, intercept=intercept)
        measured = trainer.evaluate([Batch(given, y + 20, weight)])
        assert told.loss == pytest.approx(measured.loss, rel=1e-5)
        assert told.score == pytest.approx(measured.score, rel=1e-5, abs=1e-5)
        assert (told.rows, told.metric, told.updates) == (measured.rows, measured.metric, 1)
        assert told.weight == pytest.approx(measured.weight)

    def test_what_is_heard_on_the_way_is_of_the_best_constant(self) -> None:
        x, y = draw()
        heard: list[EpochStats] = []
        batches = [Batch(x[:400], y[:400]), Batch(x[400:], y[400:])]
        trainer = ExactTrainer(Spec("squared"), WIDTH)
        trainer.run_epoch(batches, 0, on_batch=lambda batch, stats: heard.append(stats))
        assert [stats.rows for stats in heard] == [400, 1000]
        assert heard[-1].loss == pytest.approx(y.var(dtype=float) / 2)
        assert heard[-1].score == pytest.approx(0, abs=1e-9)


class TestState:
    def test_a_restored_solution_is_the_same_bit_for_bit(self) -> None:
        x, y = draw()
        trainer, _ = fit(x, y, l2=0.01)
        other = ExactTrainer(Spec("squared", l2=0.01), WIDTH)
        assert not other.done
        other.restore(other.state())
        assert not other.done
        other.restore(trainer.state())
        assert other.done
        np.testing.assert_array_equal(other.weights.coef, trainer.weights.coef)
        np.testing.assert_array_equal(other.weights.intercept, trainer.weights.intercept)
        for name, array in trainer.state().items():
            np.testing.assert_array_equal(other.state()[name], array)

    def test_states_of_something_else_are_refused(self) -> None:
        trainer, _ = fit(*draw())
        with pytest.raises(ModelFileError, match="resume with the data it was saved with"):
            ExactTrainer(Spec("squared"), WIDTH + 1).restore(trainer.state())
        state = trainer.state()
        del state["solved"]
        with pytest.raises(ModelFileError, match="resume with the solver it was saved with"):
            trainer.restore(state)


class TestRefusals:
    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_what_is_not_finite_is_named_by_its_row_and_feature(self, sparse: bool, value: float) -> None:
        x, y = draw()
        names = Names(feature=lambda index: f"column {'abcdef'[index]!r}")
        for cell in ((0, 2), (611, 2)):
            spoilt = x.copy()
            spoilt[cell] = value
            trainer = ExactTrainer(Spec("squared"), WIDTH, names=names)
            with pytest.raises(FeatureError, match=f"row {cell[0]} of the batch has {value} in column 'c'"):
                trainer.run_epoch([Batch(csr_of(spoilt) if sparse else spoilt, y)], 0)
        y[7] = value
        with pytest.raises(LabelError, match="row 7 of the batch"):
            fit(csr_of(x) if sparse else x, y)

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("value", [-1, np.nan, np.inf])
    def test_a_bad_weight_is_named(self, sparse: bool, value: float) -> None:
        x, y = draw()
        x[np.random.default_rng(1).random(x.shape) < 0.9] = 0
        weight = np.ones(len(y), np.float32)
        weight[7] = value
        with pytest.raises(DataError, match=rf"row 7 of the batch has the weight {value:.1f}"):
            fit(csr_of(x) if sparse else x, y, weight)

    def test_no_rows_and_no_weight_are_nothing_to_learn_from(self) -> None:
        x, y = draw(5)
        with pytest.raises(DataError, match="0 rows of no weight"):
            ExactTrainer(Spec("squared"), WIDTH).run_epoch([], 0)
        with pytest.raises(DataError, match="5 rows of no weight"):
            fit(x, y, np.zeros(5, np.float32), cut=2)

    def test_rows_without_labels_or_of_another_width(self) -> None:
        x, y = draw(5)
        trainer = ExactTrainer(Spec("squared"), WIDTH)
        with pytest.raises(LabelError, match="has no labels"):
            trainer.run_epoch([Batch(x)], 0)
        with pytest.raises(UsageError, match="the rows have 2 features but the model has 6"):
            trainer.run_epoch([Batch(x[:, :2].copy(), y)], 0)
        with pytest.raises(UsageError, match="5 rows came with 4 labels"):
            trainer.run_epoch([Batch(x, y[:4])], 0)
        with pytest.raises(FeatureError, match="row 0 of the batch has a value for feature 6, but the model has 6"):
            trainer.run_epoch([Batch(csr_of(np.ones((5, 7), np.float32), width=6), y)], 0)

    def test_a_solution_past_float32(self) -> None:
        x, y = draw()
        with pytest.raises(DivergedError, match="too large for float32"):
            fit(x * np.float32(1e-30), y * np.float32(1e20))

    def test_what_has_no_exact_solution(self) -> None:
        with pytest.raises(UsageError, match="loss='logistic'"):
            ExactTrainer(Spec("logistic"), 3)
        with pytest.raises(UsageError, match=r"l1=0\.1"):
            ExactTrainer(Spec("squared", l1=0.1), 3)
        with pytest.raises(UsageError, match=f"{WIDEST + 1} features"):
            ExactTrainer(Spec("squared"), WIDEST + 1)


@pytest.mark.parametrize(
    ("kind", "rows", "width"),
    [("independent", 800, 300), ("dependent", 800, 300), ("sparse", 800, 300), ("sparse", 20_000, 20)],
)
def test_memory_is_bounded_by_the_square_of_the_features(kind: str, rows: int, width: int) -> None:
    x, y = draw(rows, width=width)
    if kind == "dependent":
        x[:, width // 2 :] = x[:, : width // 2]
    batch = Batch(csr_of(x) if kind == "sparse" else x, y)
    fit(x[:, :2].copy(), y)  # imports and compiles
    tracemalloc.start()
    try:
        ExactTrainer(Spec("squared"), width).run_epoch([batch], 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Five matrices as large as the products, for features that depend on one another, and four arrays as large as a tile,
    # for sparse rows that are nearly full.
    columns = width + 2
    assert peak < 8 * (5 * columns**2 + 4 * max(1 << 18, 512 * columns))


def test_kernels_are_their_twins() -> None:
    x, y = draw(50)
    x[np.random.default_rng(1).random(x.shape) < 0.7] = 0
    share = np.random.default_rng(2).choice([0.0, 0.5, 2.0], 50).astype(np.float32)
    pivot = np.arange(WIDTH + 1, dtype=float)
    found, expected = np.ones((60, WIDTH + 2)), np.ones((60, WIDTH + 2))
    exact.lay_rows(x, y, share, pivot, found)
    exact.lay_rows_reference(x, y, share, pivot, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    sums, wanted = np.zeros((WIDTH + 2, WIDTH + 2)), np.zeros((WIDTH + 2, WIDTH + 2))
    rows = csr_of(x)
    exact.add_pairs(rows.indptr, rows.indices, rows.values, y, share, 0.5, sums)
    exact.add_pairs_reference(rows, y, share, 0.5, wanted)
    np.testing.assert_allclose(sums, wanted, atol=1e-12)
