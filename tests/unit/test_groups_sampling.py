"""Boosting of groups: the same trees as LightGBM by itself, whatever is shared, and nothing of it on the screen."""

from __future__ import annotations

import importlib.util
import os
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score, log_loss, r2_score

from benchmarks.rivals.group_tasks import joined, only
from penstock.batch import Batch, Csr
from penstock.errors import MissingExtraError, UnknownOptionError, UsageError
from penstock.groups.boosting import Boosting
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Fit
from penstock.groups.patterns.lightgbm_rows import Rows, quiet
from penstock.groups.patterns.sampling import Boosted, BoostWorker, booster_of
from penstock.groups.patterns.worker_watch import FOLLOWED, Door, Lines, machines
from penstock.groups.search_space import Search
from penstock.sgd import terms

SIZES = (900, 300, 60)
KINDS = ("binary", "binary weighted", "binary sparse", "regression", "regression weighted sparse", "multiclass")
GRID = [{"learning_rate": rate, "num_leaves": leaves} for rate in (0.5, 0.1) for leaves in (4, 15)]


def rows_of(kind: str) -> pa.Table:
    """Return rows of three groups; some features are missing, and the last group has not all of the classes."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    x = rng.standard_normal((len(owner), 5)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + x[:, 2] + rng.standard_normal(len(owner)) / 2
    columns: dict[str, Any] = {"g": owner}
    if "sparse" in kind:
        words = rng.integers(0, 12, (len(owner), 4))
        columns["words"] = [" ".join(f"w{word}" for word in each) for each in words]
        score = score + 2 * (words == 3).sum(1)
    else:
        x[rng.random(x.shape) < 0.1] = np.nan
    columns |= {f"x{place}": x[:, place] for place in range(5)}
    labels: Any = score if "regression" in kind else score > 0
    if "multiclass" in kind:
        labels = np.array(["high", "low", "mid"])[np.digitize(score, [-0.7, 0.7])]
        labels[(owner == 2) & (labels == "low")] = "mid"
    columns["y"] = labels
    if "weighted" in kind:
        columns["w"] = rng.choice([0.0, 0.5, 1.0, 2.0], len(owner))
    return pa.table(columns)


def written(folder: Path, kind: str, table: pa.Table | None = None) -> Grouped:
    """Write rows by group in several blocks a group."""
    model = {"regression": "linear", "multiclass": "softmax"}.get(kind.split()[0], "logistic")
    made = group(
        rows_of(kind) if table is None else table,
        "g",
        folder / "rows",
        label="y",
        memory="100MB",
        block_size=5000,
        weight="w" if "weighted" in kind else None,
        hash=["words:2^10:words"] if "sparse" in kind else (),
        model=model,
    )
    assert len(made.blocks(0)) > 1 or table is not None
    return made


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def grouped(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Grouped:
    return written(tmp_path_factory.mktemp("rows"), kind)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Grouped:
    return written(tmp_path_factory.mktemp("dense"), "binary")


def job_of(grouped: Grouped, choices: list[dict[str, Any]] | None = None, **options: Any) -> Boosted:
    objective = "regression" if grouped.recipe.labels is None else None
    validation = options.pop("validation", 0.1)
    model = Boosting(objective, **{"rounds": 12, "seed": 3} | options)
    return model.job(grouped, GRID if choices is None else choices, validation=validation)


def whole(worker: BoostWorker, number: int) -> tuple[Any, Any, Any, Any]:
    """Return all of a group: features, targets, weights, and the part of each row."""
    batch = Batch.concat(worker.grouped.batch(number))
    x = batch.x.to_dense() if isinstance(batch.x, Csr) else batch.x
    parts = worker.parts(number, 0, len(batch))
    assert batch.y is not None
    y = (batch.y > 0).astype(int) if worker.job.objective == "binary" else batch.y
    return x, y, batch.weight, np.zeros(len(batch), np.uint8) if parts is None else parts


def alone(worker: BoostWorker, number: int, config: int, **more: Any) -> Any:
    """Train one config of a group by LightGBM itself."""
    x, y, weight, parts = whole(worker, number)
    if weight is not None:
        weight = weight / weight[(parts == 0) & (weight > 0)].mean(dtype=np.float64)
    params = {**worker.job.common, **worker.job.settings[config]}
    sides = [(x[side], y[side], None if weight is None else weight[side]) for side in (parts == 0, parts == 1)]
    rows = lightgbm.Dataset(*sides[0][:2], weight=sides[0][2], params=params)
    if more.get("callbacks"):
        more["valid_sets"] = [lightgbm.Dataset(*sides[1][:2], weight=sides[1][2], reference=rows)]
    return lightgbm.train(params, rows, num_boost_round=int(worker.job.epochs[config]), **more)


def test_the_same_trees_as_by_lightgbm_itself(grouped: Grouped, kind: str) -> None:
    worker = BoostWorker(job_of(grouped))
    for number in range(len(SIZES)):
        fit = worker.solve(number)
        assert not fit.reason
        assert fit.trees is not None
        x, y, weight, parts = whole(worker, number)
        for config in range(len(GRID)):
            booster, text = alone(worker, number, config), fit.trees[config]
            assert text is not None
            mine = booster_of(text)
            names = mine.feature_name()
            columns = x[:, [int(name[1:]) for name in names]] if "sparse" in kind else x
            answers = booster.predict(x)
            np.testing.assert_allclose(mine.predict(columns), answers, rtol=1e-5, atol=1e-7)
            for at, side, own in ((fit.loss, parts == 0, None), (fit.selection_loss, parts == 1, fit.selection_score)):
                given = {} if weight is None else {"sample_weight": weight[side]}
                if "regression" in kind:
                    squares = np.average((answers[side] - y[side]) ** 2, weights=given.get("sample_weight"))
                    assert at[config] == pytest.approx(squares / 2, rel=1e-5)
                    score = r2_score(y[side], answers[side], **given)
                else:
                    labels = [0, 1] if answers.ndim == 1 else [0, 1, 2]
                    assert at[config] == pytest.approx(
                        log_loss(y[side], answers[side], labels=labels, **given), rel=1e-5
                    )
                    right = answers[side] > 0.5 if answers.ndim == 1 else answers[side].argmax(axis=1)
                    score = accuracy_score(y[side], right, **given)
                assert own is None or own[config] == pytest.approx(score, rel=1e-5)
        assert (fit.epochs == 12).all()
        assert (fit.status == terms.SPENT).all()


def same(one: Fit, two: Fit) -> None:
    assert one.trees == two.trees
    for name in ("loss", "selection_loss", "selection_score", "epochs", "status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("patience", [None, 3])
def test_what_is_shared_changes_nothing(dense: Grouped, patience: int | None) -> None:
    choices = [
        {"rounds": 12, "max_bin": 15},
        {"rounds": 4},
        {"rounds": 12},
        {"rounds": 12, "bagging_fraction": 0.5, "feature_fraction": 0.5},
        {"rounds": 4, "max_bin": 15},
        {"rounds": 12, "min_child_samples": 5, "max_bin": 15},
    ]
    job = job_of(dense, choices, patience=patience)
    assert sum(len(lanes) for _, lanes in job.lanes()) == (4 if patience is None else 6)
    assert len(job.lanes()) == 2, "configs with the same bins share them"
    assert job.settings[3]["bagging_freq"] == 1
    worker = BoostWorker(job)
    same(worker.solve(1), joined([only(worker, config).solve(1) for config in range(len(choices))]))
    same(worker.solve(1), BoostWorker(pickle.loads(pickle.dumps(job))).solve(1))


def test_patience_goes_back_to_the_best_round(dense: Grouped) -> None:
    choices = [{"learning_rate": 1.0}, {"learning_rate": 0.02}]
    worker = BoostWorker(job_of(dense, choices, rounds=40, patience=4))
    fit = worker.solve(0)
    assert fit.trees is not None
    assert fit.status.tolist() == [terms.CONVERGED, terms.SPENT]
    for config in range(2):
        stop = lightgbm.early_stopping(4, first_metric_only=True, verbose=False)
        booster = alone(worker, 0, config, callbacks=[stop])
        assert booster_of(fit.trees[config] or "").num_trees() == booster.best_iteration
        assert fit.selection_loss[config] == pytest.approx(booster.best_score["valid_0"]["binary_logloss"])
        assert fit.epochs[config] == min(40, booster.best_iteration + 4)
    assert fit.epochs[0] < 40


def test_without_rows_held_out(dense: Grouped) -> None:
    fit = BoostWorker(job_of(dense, validation=0.0)).solve(0)
    assert np.isfinite(fit.loss).all()
    assert np.isnan([fit.selection_loss, fit.selection_score]).all()
    with pytest.raises(UsageError, match="patience=2 needs rows held out"):
        job_of(dense, validation=0.0, patience=2)


def test_rows_are_not_copied_where_all_are_learnt_from(dense: Grouped) -> None:
    worker = BoostWorker(job_of(dense, validation=0.0))
    parts = list(worker.rows(0))
    rows = Rows.of(parts, False, 2, None)
    assert all(np.shares_memory(x, batch.x) for x, (batch, _) in zip(rows.x, parts, strict=True))
    assert Rows.of(parts, True, 2, None).count == 0


def test_groups_that_cannot_be_learnt_from(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"g": ["a"] * 300 + ["b"] * 20 + ["c"], "x": np.arange(321.0), "y": [0, 1] * 150 + [1] * 21})
    worker = BoostWorker(job_of(written(tmp_path, "binary", table)))
    assert worker.solve(1).reason == "only one class among its rows"
    assert worker.solve(2).reason.startswith("too few rows")
    assert not worker.solve(0).reason
    assert capfd.readouterr() == ("", "")


def test_features_that_tell_nothing_give_a_constant(tmp_path: Path) -> None:
    table = pa.table({"g": np.zeros(900), "x": np.ones(900), "y": [True, False, True] * 300})
    fit = BoostWorker(job_of(written(tmp_path, "binary", table))).solve(0)
    assert not fit.reason
    assert fit.loss == pytest.approx(np.full(4, 0.6365), abs=0.02)


def test_what_lightgbm_refuses_is_told_and_not_shown(
    dense: Grouped, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = [{}, {"is_unbalance": True, "scale_pos_weight": 2.0}]
    worker = BoostWorker(job_of(dense, choices))
    fit = worker.solve(0)
    assert fit.status.tolist() == [terms.SPENT, terms.FAILED]
    assert fit.trees is not None
    assert fit.trees[1] is None
    assert fit.reasons is not None
    assert "LightGBM: Cannot set is_unbalance and scale_pos_weight at the same time" in fit.reasons[1]
    assert not fit.reasons[0]

    def refuse(self: Any) -> Any:
        raise lightgbm.basic.LightGBMError("no room\n")

    monkeypatch.setattr(lightgbm.Dataset, "construct", refuse)
    assert worker.solve(0).reason == "LightGBM: no room"
    assert capfd.readouterr() == ("", "")


def test_quiet_gives_the_screen_back(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        os.write(1, b"unheard")
        os.write(2, b"unheard")
    os.write(1, b"one")
    os.write(2, b"two")
    assert capfd.readouterr() == ("one", "two")


def test_the_face(dense: Grouped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Boosting(each).kind for each in (None, "binary", "multiclass", "regression")] == [
        "softmax",
        "logistic",
        "softmax",
        "linear",
    ]
    assert repr(Boosting(patience=3, num_leaves=7)) == "Boosting(patience=3, num_leaves=7)"
    assert Boosting(rounds=7, max_bin=31).fixed() == {
        "objective": None,
        "rounds": 7,
        "patience": None,
        "seed": 0,
        "max_bin": 31,
    }
    job = Boosting("binary", reg_lambda=1)
    merged = job.job(dense, [{"lambda_l2": 2.0}, {"n_estimators": 5}], validation=0.1)
    assert [each["lambda_l2"] for each in merged.settings] == [2.0, 1.0]
    assert merged.epochs.tolist() == [100, 5]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[ray\]'"):
        job.job(dense, [{}], validation=0.1)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: Boosting("binry"), UnknownOptionError, "did you mean 'binary'"),
        (lambda: Boosting(num_leafs=3), UnknownOptionError, "did you mean 'num_leaves'"),
        (lambda: Boosting(num_leaves=1), UsageError, "num_leaves=1 is out of range"),
        (lambda: Boosting(rounds=0), UsageError, "rounds=0"),
        (lambda: Boosting(patience=0), UsageError, "patience=0"),
        (lambda: Boosting(seed=-1), UsageError, "seed=-1"),
        (lambda: Boosting(n_estimators=5), UsageError, "write rounds=5"),
        (lambda: Boosting(subsample=0.5, bagging_fraction=0.4), UsageError, "give one of the two"),
        (lambda: Search.grid({"num_leave": [3]}).choices(Boosting.known), UnknownOptionError, "'num_leaves'"),
        (lambda: Search.grid({"learning_rate": [0]}).choices(Boosting.known), UsageError, "above 0"),
    ],
)
def test_what_is_refused_at_once(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_an_objective_that_does_not_fit_the_label(dense: Grouped, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"objective='regression' does not fit the label 'y', .* 2 classes"):
        Boosting("regression").job(dense, [{}], validation=0.1)
    several = written(tmp_path, "multiclass")
    with pytest.raises(UsageError, match="use objective='multiclass'"):
        Boosting("binary").job(several, [{}], validation=0.1)
    assert Boosting("multiclass").job(dense, [{}], validation=0.1).objective == "multiclass"


def test_a_model_cut_short_is_refused_quietly(dense: Grouped, capfd: pytest.CaptureFixture[str]) -> None:
    text = (BoostWorker(job_of(dense)).solve(0).trees or [""])[0] or ""
    for damaged in ("", "rubbish", text[:400]):
        with pytest.raises(ValueError, match="not a whole model of LightGBM"):
            booster_of(damaged)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="LightGBM: Model file doesn't specify the number of classes"):
        booster_of(text.replace("num_class=1\n", ""))


def test_a_line_that_breaks_ends_whoever_holds_it() -> None:
    left: list[int] = []
    gone = threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        gone.set()

    here, there = Door(), Door()
    addresses = machines([here.address, there.address])
    with Lines([addresses[1]], leave=leave):
        pass
    assert not left, "an end in peace is no death"
    with Lines([addresses[1]], leave=leave):
        there.close()
        assert gone.wait(60)
    assert left == [FOLLOWED]
    with pytest.raises(OSError, match="refused"), Lines([addresses[1]], leave=leave):
        pass
    here.close()


def test_a_port_is_kept_until_it_is_given() -> None:
    with Door() as door:
        port = door.address.port
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        door.give()
        with socket.socket() as other:
            other.bind(("", port))
