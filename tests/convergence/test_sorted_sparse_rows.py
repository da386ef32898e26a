"""Sparse rows sorted by label are learned as well as shuffled ones: files, hashed text, models on disk and ratings."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from penstock.bigmodel import MatrixFactorization
from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.model import Saved
from penstock.bigmodel.storage import Storage
from penstock.blocks import convert
from penstock.blocks.memory import TableSource
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.loader.loader import Loader
from penstock.training import Columns

ROWS, ENTRIES, FEATURES = 30_000, 12, 400


@functools.cache
def world() -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of rows whose values are all 1, and their labels, sorted by label."""
    rng = np.random.default_rng(1)
    indices = np.sort(rng.permuted(np.tile(np.arange(1, FEATURES), (ROWS, 1)), axis=1)[:, :ENTRIES], axis=1)
    y = (rng.standard_normal(FEATURES)[indices].sum(1) + 0.5 * rng.standard_normal(ROWS) > 0).astype(np.int64)
    by_label = np.argsort(y, kind="stable")
    return indices[by_label], y[by_label]


def table() -> pa.Table:
    indices, y = world()
    ones = [np.ones(ENTRIES, np.float32)] * ROWS
    return pa.table(
        {"indices": pa.array(list(indices), pa.list_(pa.int64())), "values": pa.array(ones), "label": pa.array(y)}
    )


def write_libsvm(path: Path) -> None:
    lines = (" ".join([str(label), *(f"{i}:1" for i in row)]) for row, label in zip(*(a.tolist() for a in world())))
    path.write_text("\n".join(lines) + "\n")


def write_text(path: Path) -> None:
    indices, y = world()
    words = [" ".join(f"w{i}" for i in row) for row in indices.tolist()]
    pyarrow.csv.write_csv(pa.table({"words": words, "label": y}), path)


WRITERS = {
    "a.svm": write_libsvm,
    "c.arrow": lambda path: convert(table(), path, label="label"),
    "text.csv": write_text,
}


@pytest.mark.parametrize("memory", ["10%", "2%"])
@pytest.mark.parametrize("name", WRITERS)
def test_windows_of_sorted_sparse_rows_are_of_equal_size_and_hold_both_classes(tmp_path, name, memory):
    WRITERS[name](tmp_path / name)
    with open_source(tmp_path / name) as source:
        recipe = Columns(label="label", hash=["words:2^10:words"] if name == "text.csv" else []).recipe(source)
        with Loader(source, recipe, memory=memory) as loader:
            windows = [(len(window.batch), float(np.mean(window.batch.y > 0))) for window in loader.epoch(0)]
            assert not loader.plan.warning
    sizes, shares = map(np.array, zip(*windows))
    assert sizes.sum() == ROWS
    assert len(sizes) > 5
    assert sizes.min() > 0.5 * sizes.max()
    assert 0.05 < shares.min() <= shares.max() < 0.95


@pytest.mark.parametrize("memory", ["10%", "2%"])
def test_models_on_disk_learn_sorted_rows(tmp_path, memory):
    found = []
    for name, given in (("all", "50MB"), ("some", memory)):
        config = Config(model="logistic", memory=given, epochs=2, solver="sgd", standardize=False)
        job = disk_job(
            TableSource.of(table()),
            tmp_path / name,
            config,
            Storage(model_memory="1MB"),
            columns=Columns(label="label"),
        )
        job.run()
        found.append(Saved.read(tmp_path / name).header["metrics"]["held_out_accuracy"])
    assert found[1] > found[0] - 0.02


@pytest.mark.parametrize("by", ["rating", "user"])
def test_factors_learn_sorted_ratings(tmp_path, by):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 120, 12_000), rng.integers(0, 80, 12_000)
    rating = np.einsum("ij,ij->i", rng.standard_normal((120, 2))[user], rng.standard_normal((80, 2))[item])
    rating += rng.standard_normal(len(rating))
    ratings = pa.table({"user": user, "item": item, "rating": rating.astype(np.float32)})
    found = []
    for name, rows in (("mixed", ratings), ("sorted", ratings.sort_by(by))):
        options = {"rank": 4, "memory": "200kB", "epochs": 10, "learning_rate": 0.05}
        with MatrixFactorization(tmp_path / name, **options) as model:
            found.append(model.fit(rows).model_.header["metrics"]["held_out_rmse"])
    assert found[1] < 1.1 * found[0]
    assert found[0] < 0.9 * rating.std()
