"""What workers compute of groups: the same models by either way, and sums that do not hang on how groups are cut."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.preprocessing import StandardScaler

from penstock.batch import Batch
from penstock.groups.etl import group
from penstock.groups.patterns import algebraic as patterns
from penstock.groups.patterns import base
from penstock.groups.patterns.algebraic import Algebraic, AlgebraicWorker, Partial
from penstock.groups.patterns.base import Fit, Targets
from penstock.sgd import terms
from penstock.sgd.full import Sums

SIZES = (400, 90, 23)
WIDTH = 5


def rows_of(kind: str, seed: int = 0) -> pa.Table:
    """Return rows of three groups; ``kind`` is dense, sparse or weighted, and linear where the target is a number."""
    rng = np.random.default_rng(seed)
    rows = sum(SIZES)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    score = x @ np.array([1, -2, 0.5, 0, 0]) + 0.3 + rng.standard_normal(rows)
    columns: dict[str, Any] = {"g": rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))}
    columns |= {f"x{place}": x[:, place] for place in range(WIDTH)}
    if "sparse" in kind:
        words = rng.integers(0, 30, (rows, 4))
        columns["words"] = [" ".join(f"w{word}" for word in each) for each in words]
        score = score + (words == 3).sum(1)
    columns["y"] = score if "linear" in kind else score > 0
    if "weighted" in kind:
        columns["w"] = rng.choice([0.0, 0.5, 1.0, 2.0], rows)
    return pa.table(columns)


def written(folder: Path, kind: str, table: pa.Table | None = None) -> str:
    """Write rows by group in several blocks a group."""
    made = group(
        rows_of(kind) if table is None else table,
        "g",
        folder / "rows",
        label="y",
        memory="100MB",
        block_size=4000,
        weight="w" if "weighted" in kind else None,
        hash=["words:2^10:words"] if "sparse" in kind else (),
        model="linear" if "linear" in kind else "logistic",
    )
    assert len(made.blocks(0)) > 1
    made.close()
    return os.fspath(folder / "rows")


def job_of(folder: str, **options: Any) -> Algebraic:
    configs = max((np.size(value) for value in options.values()), default=1)
    options = {"loss": "logistic", "solver": "lbfgs", "validation": 0.2, "seed": 3} | options
    for name, default in (("l1", 0.0), ("l2", 1e-2), ("rate", 1.0), ("tolerance", 1e-6)):
        options[name] = np.broadcast_to(np.asarray(options.get(name, default), np.float64), configs).copy()
    options["epochs"] = np.broadcast_to(np.asarray(options.get("epochs", 200), np.int64), configs).copy()
    return Algebraic(folder, **options)


GRID = {"l2": [1e-1, 1e-2, 1e-2, 1e-3], "l1": [0.0, 0.0, 1e-2, 0.0], "rate": [1.0, 0.5, 1.0, 0.1]}
KINDS = ("dense", "weighted", "sparse", "sparse weighted", "linear", "linear sparse weighted")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("rows"), kind)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("dense"), "dense")


def loss_of(kind: str) -> str:
    return "squared" if "linear" in kind else "logistic"


def group_rows(worker: AlgebraicWorker, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return all of a group: features, targets, weights, and the part of each row."""
    batch = Batch.concat(worker.grouped.batch(number))
    x = batch.x if isinstance(batch.x, np.ndarray) else batch.x.to_dense()
    assert batch.y is not None
    weight = np.ones(len(batch), np.float32) if batch.weight is None else batch.weight
    parts = worker.parts(number, 0, len(batch))
    return x, batch.y, weight, np.zeros(len(batch), np.uint8) if parts is None else parts


def same_fit(one: Fit, two: Fit, *, close: float = 5e-3) -> None:
    """Compare two fits that went to convergence."""
    assert (one.group, one.reason, one.targets.rows, one.targets.selection_rows) == (
        two.group,
        two.reason,
        two.targets.rows,
        two.targets.selection_rows,
    )
    assert one.weights is not None
    assert two.weights is not None
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-5)
    np.testing.assert_allclose(one.weights, two.weights, atol=close)
    np.testing.assert_allclose(one.selection_loss, two.selection_loss, rtol=max(close, 1e-3))
    np.testing.assert_allclose(one.selection_score, two.selection_score, atol=0.03)


def test_a_group_is_solved_alike_in_one_call_and_by_sums(
    folder: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = AlgebraicWorker(job_of(folder, loss=loss_of(kind), **GRID))
    called: list[int] = []
    solve = patterns.solve_small
    monkeypatch.setattr(patterns, "solve_small", lambda *args, **named: (called.append(1), solve(*args, **named))[1])
    small = [worker.solve(number) for number in range(len(SIZES))]
    assert len(called) == len(SIZES)
    monkeypatch.setattr(patterns, "_SMALL", -1)
    large = [worker.solve(number) for number in range(len(SIZES))]
    assert len(called) == len(SIZES)
    for one, two in zip(small, large, strict=True):
        # With more features than rows, and L1, the bottom is flat: the objective agrees sooner than the weights.
        same_fit(one, two, close=3e-2 if "sparse" in kind else 5e-3)
        assert one.weights is not None
        assert one.weights.shape == (worker.grouped.width + 1, len(GRID["l2"]))
        assert one.weights.dtype == np.float32


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_features_are_scaled_within_each_group(tmp_path: Path, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "dense" if loss == "logistic" else "linear"
    table = rows_of(kind)
    for place, (name, scale) in enumerate((("x0", 100.0), ("x1", 0.01))):
        column = table[name].to_numpy() * np.float32(scale) + np.float32(50 * scale * place)
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    worker = AlgebraicWorker(job_of(written(tmp_path, kind, table), loss=loss, l2=[1e-1, 1e-2], standardize=True))
    for small in (patterns._SMALL, -1):
        monkeypatch.setattr(patterns, "_SMALL", small)
        fit = worker.solve(0)
        x, y, _, parts = group_rows(worker, 0)
        scaler = StandardScaler().fit(x[parts == 0].astype(np.float64))
        for config, l2 in enumerate((1e-1, 1e-2)):
            rows = (parts == 0).sum()
            theirs: Any = Ridge(alpha=l2 * rows)
            if loss == "logistic":
                theirs = LogisticRegression(C=1 / (l2 * rows), tol=1e-8, max_iter=5000)
            theirs.fit(scaler.transform(x[parts == 0]), y[parts == 0])
            assert fit.weights is not None
            mine = fit.weights[:-1, config] * scaler.scale_
            np.testing.assert_allclose(mine, np.ravel(theirs.coef_), atol=3e-3)


@pytest.mark.parametrize("ways", [1, 2, 3, 7])
def test_sums_of_shards_add_up_wherever_they_are_cut(folder: str, kind: str, ways: int) -> None:
    worker = AlgebraicWorker(job_of(folder, loss=loss_of(kind), **GRID))
    rng = np.random.default_rng(ways)
    at = rng.standard_normal((worker.grouped.width + 1, 4)) / 10
    for number, size in enumerate(worker.grouped.rows.tolist()):
        found = worker.partial(number, 0, size, at, True)
        whole, targets = found.sums, found.targets
        assert found.seconds >= 0
        borders = np.unique([0, *rng.integers(1, size, ways - 1), size])
        total, seen = Sums.zeros(worker.grouped.width, 4), Targets()
        for first, end in itertools.pairwise(borders.tolist()):
            part = worker.partial(number, first, end - first, at, True)
            total, seen = total + part.sums, seen + part.targets
        for name in ("loss", "gradient", "weight", "held_loss", "held_right", "held_weight"):
            np.testing.assert_allclose(getattr(total, name), getattr(whole, name), rtol=1e-5, atol=1e-4, err_msg=name)
        assert (seen.rows, seen.selection_rows, seen.least, seen.most) == (
            targets.rows,
            targets.selection_rows,
            targets.least,
            targets.most,
        )
        np.testing.assert_allclose(seen.selection_squares, targets.selection_squares)


def test_shards_are_cut_inside_blocks(dense: str) -> None:
    # What the test above promises is nothing unless borders fall there.
    worker = AlgebraicWorker(job_of(dense))
    firsts = worker.grouped.block_first[worker.grouped.blocks(0)].tolist()
    assert len(firsts) > 2
    parts = list(worker.rows(0, firsts[1] - 3, 5))
    assert [len(batch) for batch, _ in parts] == [3, 2]


def test_targets_are_looked_at_only_when_asked(dense: str) -> None:
    worker = AlgebraicWorker(job_of(dense))
    assert worker.partial(0, 0, 50, np.zeros((WIDTH + 1, 1)), False).targets == Targets()


def test_the_same_rows_are_held_out_however_a_group_is_cut(dense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(dense)
    whole = AlgebraicWorker(job).parts(0, 0, 400)
    assert whole is not None
    assert 40 < (whole == 2).sum() < 120
    for kept in (1 << 16, 1):  # the second remembers every mask
        monkeypatch.setattr(base, "_KEPT", kept)
        worker = AlgebraicWorker(job)
        for borders in ([0, 400], [0, 1, 77, 78, 300, 400], [0, 199, 400]):
            for _ in range(2):
                found = [
                    hold for first, end in itertools.pairwise(borders) for _, hold in worker.rows(0, first, end - first)
                ]
                np.testing.assert_array_equal(np.concatenate(found), whole)  # type: ignore[arg-type]  # none is None


def test_other_groups_and_seeds_hold_out_other_rows(dense: str) -> None:
    job = job_of(dense)
    masks = [
        AlgebraicWorker(job).parts(0, 0, 400),
        AlgebraicWorker(job).parts(1, 0, 400),
        AlgebraicWorker(job_of(dense, seed=4)).parts(0, 0, 400),
    ]
    assert len({mask.tobytes() for mask in masks if mask is not None}) == 3


def test_nothing_held_out(dense: str) -> None:
    worker = AlgebraicWorker(job_of(dense, validation=0.0))
    assert worker.parts(0, 0, 400) is None
    fit = worker.solve(0)
    assert fit.targets.rows == SIZES[0]
    assert fit.targets.selection_rows == 0
    assert np.isnan(fit.selection_loss).all()
    assert np.isnan(fit.selection_score).all()
    assert np.isfinite(fit.loss).all()


def test_groups_against_scikit_learn(kind: str, folder: str) -> None:
    (compare_linear if "linear" in kind else compare_logistic)(folder)


def compare_logistic(folder: str) -> None:
    worker = AlgebraicWorker(job_of(folder, l2=[1e-1, 1e-2]))
    for number in range(2):
        fit = worker.solve(number)
        x, y, weight, parts = group_rows(worker, number)
        for config, l2 in enumerate((1e-1, 1e-2)):
            theirs = LogisticRegression(C=1 / (l2 * weight[parts == 0].sum()), tol=1e-8, max_iter=5000)
            theirs.fit(x[parts == 0], y[parts == 0], sample_weight=weight[parts == 0])
            assert fit.weights is not None
            np.testing.assert_allclose(fit.weights[:-1, config], theirs.coef_[0], atol=2e-3)
            np.testing.assert_allclose(fit.weights[-1, config], theirs.intercept_[0], atol=2e-3)
            chances = theirs.predict_proba(x[parts == 1])
            expected = log_loss(y[parts == 1], chances, sample_weight=weight[parts == 1], labels=[-1, 1])
            assert fit.selection_loss[config] == pytest.approx(expected, abs=2e-3)
            expected = accuracy_score(y[parts == 1], theirs.predict(x[parts == 1]), sample_weight=weight[parts == 1])
            assert fit.selection_score[config] == pytest.approx(expected, abs=1e-6)


def compare_linear(folder: str) -> None:
    worker = AlgebraicWorker(job_of(folder, loss="squared", l2=[1e-1, 1e-3]))
    for number in range(2):
        fit = worker.solve(number)
        x, y, weight, parts = group_rows(worker, number)
        for config, l2 in enumerate((1e-1, 1e-3)):
            theirs = Ridge(alpha=l2 * weight[parts == 0].sum(), tol=1e-10, solver="cholesky")
            theirs.fit(x[parts == 0].astype(np.float64), y[parts == 0], sample_weight=weight[parts == 0])
            assert fit.weights is not None
            np.testing.assert_allclose(fit.weights[:-1, config], theirs.coef_, atol=5e-3)
            expected = r2_score(y[parts == 1], theirs.predict(x[parts == 1]), sample_weight=weight[parts == 1])
            assert fit.selection_score[config] == pytest.approx(expected, abs=5e-3)


def test_plain_descent(dense: str) -> None:
    worker = AlgebraicWorker(job_of(dense, solver="gd", l2=[1e-1, 1e-2], epochs=400, tolerance=1e-5))
    expected = AlgebraicWorker(job_of(dense, l2=[1e-1, 1e-2])).solve(0)
    same_fit(worker.solve(0), expected, close=2e-2)


def test_without_an_intercept(dense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = AlgebraicWorker(job_of(dense, intercept=False))
    one = worker.solve(0)
    monkeypatch.setattr(patterns, "_SMALL", -1)
    two = worker.solve(0)
    for fit in (one, two):
        assert fit.weights is not None
        assert (fit.weights[-1] == 0).all()
    same_fit(one, two)


def test_configs_have_epochs_of_their_own(dense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = AlgebraicWorker(job_of(dense, l2=[1e-5] * 3, epochs=[1, 3, 200]))
    for small in (patterns._SMALL, -1):
        monkeypatch.setattr(patterns, "_SMALL", small)
        fit = worker.solve(0)
        assert fit.epochs[:2].tolist() == [1, 3]
        assert 3 < fit.epochs[2] < 200
        assert fit.loss[0] > fit.loss[1] > fit.loss[2]
        assert fit.status.tolist()[:2] == [terms.SPENT] * 2


def test_a_config_that_fails_leaves_the_others_alone(dense: str) -> None:
    worker = AlgebraicWorker(job_of(dense, solver="gd", l2=[1e-2, 1e-2], rate=[1.0, 1e9], epochs=50))
    fit = worker.solve(0)
    assert (fit.status == terms.FAILED).tolist() == [False, True]
    assert fit.weights is not None
    assert np.isfinite(fit.weights[:, 0]).all()
    assert np.isnan(fit.weights[:, 1]).all()


def test_several_things_at_once(dense: str) -> None:
    worker = AlgebraicWorker(job_of(dense))
    found = worker.run([("solve", 1), ("partial", 0, 10, 20, np.zeros((WIDTH + 1, 1)), True), ("solve", 2)])
    assert [type(each) for each in found] == [Fit, Partial, Fit]
    assert (found[0].group, found[2].group) == (1, 2)
    assert found[1].targets.rows + found[1].targets.held_out_rows == 20


def test_jobs_and_fits_can_travel(dense: str) -> None:
    job = pickle.loads(pickle.dumps(job_of(dense, **GRID)))
    assert job.configs == 4
    fit = AlgebraicWorker(job).solve(0)
    same_fit(pickle.loads(pickle.dumps(fit)), fit, close=0)


def test_a_wide_sparse_group_is_cut_down_to_its_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows x features past what is spread out, and so many features that an optimiser of all would not fit in memory.
    rng = np.random.default_rng(0)
    words = rng.integers(0, 3000, (500, 6))
    text = [" ".join(f"w{word}" for word in each) for each in words]
    table = pa.table({"g": np.zeros(500, np.int64), "words": text, "y": (words < 700).sum(1) > 1})
    group(table, "g", tmp_path / "r", label="y", memory="200MB", hash=["words:2^20:words"], block_size=8000).close()
    worker = AlgebraicWorker(job_of(os.fspath(tmp_path / "r"), l2=[1e-2, 1e-3]))
    widths: list[int] = []
    optimiser = Algebraic.optimiser
    monkeypatch.setattr(
        Algebraic, "optimiser", lambda self, start, *rest: (widths.append(len(start)), optimiser(self, start, *rest))[1]
    )
    spread = worker.solve(0)
    monkeypatch.setattr(patterns, "_SPREAD", 1000)
    summed = worker.solve(0)
    assert len(widths) == 1
    assert widths[0] <= 3000
    for fit in (spread, summed):
        assert fit.weights is not None
        assert fit.weights.shape == ((1 << 20) + 1, 2)
        assert 0 < len(np.flatnonzero(fit.weights[:-1, 0])) <= widths[0]
    same_fit(spread, summed)


def test_sparse_rows_without_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"g": [0] * 40, "words": [""] * 40, "y": [True, True, True, False] * 10})
    group(table, "g", tmp_path / "r", label="y", memory="100MB", hash=["words:2^4:words"]).close()
    worker = AlgebraicWorker(job_of(os.fspath(tmp_path / "r"), validation=0.0))
    for small in (patterns._SMALL, -1):
        monkeypatch.setattr(patterns, "_SMALL", small)
        fit = worker.solve(0)
        assert fit.weights is not None
        np.testing.assert_allclose(fit.weights[-1], np.log(3), atol=1e-3)
        assert (fit.weights[:-1] == 0).all()


class TestTargets:
    def of(self, y: Any, weight: Any = None, hold: Any = None) -> Targets:
        weight = None if weight is None else np.asarray(weight, np.float32)
        return Targets.of(np.asarray(y, np.float32), weight, None if hold is None else np.asarray(hold, np.uint8))

    def test_nothing_wrong(self) -> None:
        assert self.of([1, -1, 1]).flaw("logistic") == ""
        assert self.of([1.5, 2.5]).flaw("squared") == ""
        assert self.of([2, 2, 2]).flaw("squared") == "", "a constant can be learnt"

    @pytest.mark.parametrize("y", [[1, 1, 1], [-1, -1]])
    def test_one_class(self, y: list[int]) -> None:
        assert self.of(y).flaw("logistic") == "only one class among its rows"

    def test_one_class_but_for_rows_held_out(self) -> None:
        assert "one class" in self.of([1, 1, -1], hold=[0, 0, 1]).flaw("logistic")

    def test_one_class_but_for_rows_of_no_weight(self) -> None:
        assert "one class" in self.of([1, 1, -1], weight=[1, 2, 0]).flaw("logistic")

    def test_two_classes_in_two_shards(self) -> None:
        assert (self.of([1, 1]) + self.of([-1, -1])).flaw("logistic") == ""

    def test_too_few_rows(self) -> None:
        assert self.of([]).flaw("logistic") == "too few rows: 0 to learn from"
        assert self.of([1]).flaw("squared") == "too few rows: 1 to learn from"
        assert "too few rows: 1" in self.of([1, -1, -1], hold=[0, 1, 1]).flaw("logistic")
        assert "too few rows: 1" in self.of([1, -1, -1], weight=[1, 0, 0]).flaw("logistic")

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_target_that_is_not_finite_in_any_shard(self, value: float, place: int) -> None:
        shards = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        shards[place][1] = value
        for start in (Targets(), Targets.of(np.zeros(2, np.float32), None, None)):
            seen = start
            for shard in shards:
                seen = seen + self.of(shard)
            assert seen.flaw("squared") == "a target is not a finite number"

    def test_scores(self) -> None:
        y, hold = np.array([0.0, 1.0, 4.0, 9.0]), [0, 1, 1, 1]
        weight = [1.0, 1.0, 2.0, 0.5]
        guess = np.array([1.5, 3.0, 9.5])
        right = np.array([np.sum(np.array(weight[1:]) * (y[1:] - guess) ** 2)])
        expected = r2_score(y[1:], guess, sample_weight=weight[1:])
        assert self.of(y, weight, hold).score("squared", right)[0] == pytest.approx(expected)
        assert self.of(y, weight, hold).score("logistic", np.array([1.75]))[0] == 0.5

    def test_no_score_of_rows_that_are_all_alike(self) -> None:
        assert not np.isfinite(self.of([1, 2, 2], hold=[0, 1, 1]).score("squared", np.array([0.5])))[0]

    def test_no_score_of_no_rows(self) -> None:
        assert not np.isfinite(self.of([1, 2]).score("logistic", np.zeros(2))).any()
