"""Models on disk that stop early have the weights of the best epoch by the held-out loss, in bounded disk."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.bigmodel import LogisticRegression, MatrixFactorization
from penstock.bigmodel.factor_model import FactorModel
from penstock.bigmodel.model import Saved
from penstock.bigmodel.store import SIDES, PageStore

FEATURES = 30_000


def clicks(rows=1500, seed=0):
    """Make rows of a little signal and many features of chance, by which the held-out loss soon rises again."""
    rng = np.random.default_rng(seed)
    indices = [np.unique(rng.integers(0, FEATURES, 30)) for _ in range(rows)]
    y = rng.integers(0, 2, rows)
    hints = np.where(rng.random(rows) < 0.8, y, 1 - y) + FEATURES
    return pa.table(
        {
            "indices": [[*each, hint] for each, hint in zip(indices, hints, strict=True)],
            "values": [[1.0] * (len(each) + 1) for each in indices],
            "y": y,
        }
    )


def ratings(rows=3000):
    """Make ratings of little but chance: factors soon know those they have learned from, and no others."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 400, rows), rng.integers(0, 300, rows)
    return pa.table({"user": user, "item": item, "rating": 3 + 0.01 * (item - 150) + rng.normal(0, 1, rows)})


def best_of(history):
    return 1 + int(np.argmin([row["held_out_loss"] for row in history]))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("memory", ["20MB", "300kB"])
def test_a_linear_model_has_the_weights_of_its_best_epoch(tmp_path, memory, optimizer):
    options = {"memory": memory, "learning_rate": {"sgd": 0.5, "adagrad": 0.2}[optimizer], "optimizer": optimizer}
    table, wanted = clicks(), np.arange(FEATURES + 2)
    with LogisticRegression(tmp_path / "a", epochs=8, patience=2, **options) as model:
        model.fit(table, y="y")
        best = best_of(model.history_)
        assert best < len(model.history_) < 8
        weights, figures = model.weights(wanted), dict(model.model_.metrics)
    assert figures["held_out_loss"] == pytest.approx(model.history_[best - 1]["held_out_loss"])
    with LogisticRegression(tmp_path / "b", epochs=best, **options) as short:
        np.testing.assert_array_equal(short.fit(table, y="y").weights(wanted), weights)
    with LogisticRegression.load(tmp_path / "a", memory=memory) as loaded:
        np.testing.assert_array_equal(loaded.weights(wanted), weights)
    size = Saved.read(tmp_path / "a").storage.model_bytes(Saved.read(tmp_path / "a").layout.features)
    assert sum((tmp_path / "a" / name).stat().st_size for name in SIDES) <= 3 * size + 3 * 65536


def test_training_goes_on_from_the_last_weights_and_keeps_the_best(tmp_path):
    table, wanted = clicks(), np.arange(FEATURES + 2)
    found = []
    for name, parts in (("whole", (7,)), ("parts", (3, 7))):
        for number, epochs in enumerate(parts):
            with LogisticRegression(
                tmp_path / name, memory="300kB", learning_rate=0.5, epochs=epochs, patience=4
            ) as model:
                model.fit(table, y="y", resume=number > 0)
                found.append((model.weights(wanted), [row["held_out_loss"] for row in model.history_]))
    np.testing.assert_array_equal(found[0][0], found[2][0])
    assert found[0][1] == pytest.approx(found[2][1])
    assert len(found[1][1]) == 3


def test_left_open_epochs_stop_early_and_given_ones_do_not(tmp_path):
    with LogisticRegression(tmp_path / "open", memory="20MB") as model:
        assert len(model.fit(clicks(), y="y").history_) < 100
    with LogisticRegression(tmp_path / "given", memory="20MB", epochs=12, learning_rate=0.5) as model:
        assert len(model.fit(clicks(), y="y").history_) == 12


@pytest.mark.parametrize("memory", ["20MB", "100kB"])
def test_a_factorisation_has_the_factors_of_its_best_epoch(tmp_path, memory):
    options = {"rank": 8, "memory": memory, "learning_rate": 0.05, "l2": 0.0}
    table, pairs = ratings(), (np.arange(300), np.arange(300))
    model = MatrixFactorization(tmp_path / "a", **options).fit(table)
    best = best_of(model.history_)
    assert best < len(model.history_) < 20
    assert model.model_.header["metrics"]["held_out_rmse"] == model.history_[best - 1]["held_out_rmse"]
    short = MatrixFactorization(tmp_path / "b", epochs=best, **options).fit(table)
    np.testing.assert_array_equal(model.predict(pairs), short.predict(pairs))
    np.testing.assert_array_equal(MatrixFactorization.load(tmp_path / "a").predict(pairs), short.predict(pairs))
    again = MatrixFactorization(tmp_path / "a", **options).fit(table, resume=True)
    assert len(again.history_) == len(model.history_)
    assert FactorModel.load(tmp_path / "a").header["best_epoch"] == best


def test_a_factorisation_runs_for_all_epochs_that_are_given(tmp_path):
    options = {"rank": 8, "memory": "20MB", "learning_rate": 0.05, "l2": 0.0}
    assert len(MatrixFactorization(tmp_path / "m", epochs=12, **options).fit(ratings()).history_) == 12
    assert len(MatrixFactorization(tmp_path / "p", epochs=12, patience=1, **options).fit(ratings()).history_) < 12


def test_pages_of_the_best_epoch_outlive_later_ones(tmp_path):
    buffer, saved = np.zeros((3, 1024), np.float32), {}
    pages = np.arange(3)
    with PageStore(tmp_path, pages=3, page_floats=1024) as store:
        for epoch in range(1, 6):
            buffer[:2] = epoch  # page 2 is never written
            store.write(pages[:2], pages[:2], buffer)
            store.sync()
            if epoch == 2:
                store.keep_best()
            saved = store.arrays()
            store.committed()
    with PageStore(tmp_path, pages=3, page_floats=1024, saved=saved) as store:
        store.read(pages, pages, buffer)
        assert buffer[:, 0].tolist() == [5, 5, 0]
        store.show_best()
        store.read(pages, pages, buffer)
        assert buffer[:, 0].tolist() == [2, 2, 0]
    with PageStore(tmp_path, pages=3, page_floats=1024, saved=saved, writable=False) as store:
        store.read(pages, pages, buffer)
        assert buffer[:, 0].tolist() == [2, 2, 0]
    with PageStore(tmp_path, pages=3, page_floats=1024):
        assert not (tmp_path / SIDES[2]).exists()
