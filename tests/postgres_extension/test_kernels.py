"""The server's kernels give the losses of Python's on the same rows in the same order."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest

from penstock.batch import Batch, Csr
from penstock.sgd.loop import Spec, Trainer
from penstock.sgd.losses import linear_models, loss_of
from penstock.sgd.rates import make_rate
from tests.postgres_extension.conftest import Fill

ROWS, WIDTH, CLASSES, EPOCHS = 600, 11, 4, 3
RAW = {"shuffle": "none", "standardize": False, "average": False, "l2": 0, "replace": True}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"l2": 0.01},
    {"l1": 0.001, "l2": 0.001},
    {"batch_size": 7},
    {"batch_size": 32, "l2": 0.01, "l1": 0.001},
    {"rate": "inverse-scaling", "power": 0.3},
    {"rate": "constant", "intercept": False},
]


def labels(model: str, x: np.ndarray[Any, Any], rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], Any]:
    """Return targets as Python's kernels take them, and the labels in the table."""
    noise = rng.standard_normal(len(x)).astype(np.float32)
    if model == "linear":
        y = (x @ np.linspace(-1, 1, x.shape[1]) + 0.1 * noise + 3).astype(np.float32)
        return y, y.tolist()
    if model == "softmax":
        y = (x[:, :CLASSES] + 0.5 * noise[:, None]).argmax(axis=1).astype(np.float32)
        return y, [f"class {int(c)}" for c in y]
    y = np.where(x.sum(axis=1) + noise > 0, 1, -1).astype(np.float32)
    return y, (y > 0).astype(int).tolist()


def trained(model: str, batch: Batch, outputs: int, variant: dict[str, Any]) -> tuple[list[Any], Trainer]:
    options = {"rate": "exponential", "power": 0.25, **variant}
    rate = make_rate(options.pop("rate"), 0.05, power=options.pop("power"))
    trainer = Trainer(Spec(loss_of(model).name, rate, **options), batch.width, outputs=outputs)
    return [trainer.run_epoch([batch], epoch) for epoch in range(EPOCHS)], trainer


def served(session: psycopg.Connection[Any], model: str, variant: dict[str, Any]) -> tuple[list[Any], Any]:
    options = {"epochs": EPOCHS, "learning_rate": 0.05, **RAW, **variant}
    epochs = session.execute("SELECT * FROM penstock.train('t', %s, 'm', %s)", (model, json.dumps(options))).fetchall()
    weights = session.execute("SELECT coef, intercept FROM penstock.models WHERE name = 'm'").fetchone()
    return epochs, weights


def same(found: list[Any], weights: Any, stats: list[Any], trainer: Trainer) -> None:
    assert [row[0] for row in found] == list(range(1, EPOCHS + 1))
    np.testing.assert_allclose([row[1] for row in found], [each.loss for each in stats], rtol=2e-5)
    np.testing.assert_allclose([row[2] for row in found], [each.score for each in stats], rtol=2e-5, atol=1e-9)
    assert [row[5] for row in found] == [each.rows for each in stats]
    settled = trainer.weights.settled()
    np.testing.assert_allclose(weights[0], settled.coef.ravel(), rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(weights[1], settled.intercept, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("model", list(linear_models()))
@pytest.mark.parametrize("width", [WIDTH, 200])
def test_dense_rows_give_pythons_losses(session: psycopg.Connection[Any], fill: Fill, model: str, width: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, width)).astype(np.float32) / np.float32(np.sqrt(width / WIDTH))
    y, told = labels(model, x, rng)
    kind = {"linear": "real", "softmax": "text"}.get(model, "int")
    fill("t", f"features_v real[], label {kind}", list(zip(x.tolist(), told, strict=True)))
    for variant in VARIANTS:
        stats, trainer = trained(model, Batch(x, y), CLASSES if model == "softmax" else 1, variant)
        same(*served(session, model, variant), stats, trainer)


@pytest.mark.parametrize("model", list(linear_models()))
def test_sparse_rows_give_pythons_losses(session: psycopg.Connection[Any], fill: Fill, model: str) -> None:
    rng = np.random.default_rng(2)
    width = 50
    x = (rng.standard_normal((ROWS, width)) * (rng.random((ROWS, width)) < 0.15)).astype(np.float32)
    x[3] = 0  # a row without any feature
    x[0, width - 1] = 1
    y, told = labels(model, x, rng)
    kept = [np.flatnonzero(row).tolist() for row in x]
    rows = [(i, kept[i], x[i, kept[i]].tolist(), told[i]) for i in range(ROWS)]
    kind = {"linear": "real", "softmax": "text"}.get(model, "int")
    fill("t", f"id int, features_k int[], features_v real[], label {kind}", rows)
    # Rows of different lengths are not stored in the order they came in: a short one fills up an earlier page.
    stored = [row[0] for row in session.execute("SELECT id FROM t ORDER BY ctid").fetchall()]
    where = [kept[i] for i in stored]
    indptr = np.concatenate([[0], np.cumsum([len(each) for each in where])]).astype(np.uint64)
    values = np.concatenate([x[i, kept[i]] for i in stored])
    batch = Batch(Csr(indptr, np.concatenate(where).astype(np.uint32), values, width), y[stored])
    for variant in VARIANTS:
        stats, trainer = trained(model, batch, CLASSES if model == "softmax" else 1, variant)
        same(*served(session, model, variant), stats, trainer)


def test_a_small_buffer_changes_nothing_where_nothing_is_shuffled(clustered: psycopg.Connection[Any]) -> None:
    found = [
        clustered.execute(
            "SELECT epoch, progressive_loss, progressive_score, rows FROM penstock.train('points', 'svm', NULL, %s)",
            (json.dumps({"epochs": 2, "shuffle": "none", "batch_size": 50, "buffer_size": size}),),
        ).fetchall()
        for size in ("64kB", "20MB")
    ]
    assert found[0] == found[1]


def test_the_seed_sets_the_order(clustered: psycopg.Connection[Any]) -> None:
    found = [
        clustered.execute(
            "SELECT progressive_loss FROM penstock.train('points', 'svm', NULL, %s)",
            (json.dumps({"epochs": 2, "seed": seed, "buffer_size": "200kB", "block_size": "16kB"}),),
        ).fetchall()
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]


def test_corgipile_does_on_clustered_rows_what_a_full_shuffle_does(clustered: psycopg.Connection[Any]) -> None:
    clustered.execute("CREATE TABLE mixed AS SELECT * FROM points ORDER BY hashint4(id)")
    # Averaged weights would hide what the order of rows does to the last ones.
    options = {"epochs": 2, "learning_rate": 0.1, "average": False, "buffer_size": "200kB", "block_size": "16kB"}

    def accuracy(table: str, shuffle: str) -> float:
        asked = json.dumps({**options, "shuffle": shuffle, "replace": True})
        clustered.execute("SELECT penstock.train(%s, 'logistic', 'm', %s)", (table, asked))
        found = clustered.execute(
            "SELECT avg((penstock.predict_class('m', features_v)::real = label)::int) FROM points"
        ).fetchone()
        return float(found[0]) if found else 0.0

    full = accuracy("mixed", "none")
    assert accuracy("points", "corgipile") > full - 0.01
    assert accuracy("points", "none") < full - 0.05
