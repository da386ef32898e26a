"""Rows that count by a weight of their own: what the server learns is what a few lines of NumPy do, and what Python does."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from penstock.sql import connect
from tests.postgres_extension.conftest import Fill
from tests.postgres_extension.test_defaults import (
    KINDS,
    MODELS,
    ROWS,
    SGD,
    Doubles,
    slopes,
    targets,
    train,
    trained,
    weights,
)

Session = psycopg.Connection[Any]
WEIGHT = {"weight": "counts"}


def some_weights(rng: np.random.Generator) -> Doubles:
    """Return weights of a mean that is not 1."""
    return np.float64(np.float32(rng.choice([0.5, 1, 7], ROWS) * 3))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [6, 170])
def test_dense_rows(session: Session, fill: Fill, model: str, width: int) -> None:
    rng = np.random.default_rng(width)
    x = np.float64(np.float32(rng.standard_normal((ROWS, width)) + np.linspace(-2, 3, width)))
    y, labels = targets(model, x, rng)
    weight = some_weights(rng)
    rows = list(zip(x.tolist(), labels, weight.tolist(), strict=True))
    fill("t", f"features_v real[], label {KINDS[model]}, counts float8", rows)
    balanced: Any = () if model == "linear" else ({"class_weight": "balanced"},)
    for options in ({}, {"batch_size": 7}, *balanced):
        found = train(session, model, **SGD, **WEIGHT, **options)
        coef, intercept = weights(session)
        w, b = trained(model, x, y, sparse=False, weight=weight, **options)
        spread, center = x.std(axis=0), x.mean(axis=0)
        np.testing.assert_allclose(coef.reshape(w.shape) * spread, w * spread, rtol=2e-3, atol=5e-4)
        np.testing.assert_allclose(intercept + coef.reshape(w.shape) @ center, b + w @ center, rtol=1e-3, atol=5e-3)
        if model == "svm":
            assert found[-1][3] == pytest.approx(
                np.average((x @ w.T + b > 0) == (y > 0), weights=weight[:, None]), abs=0.01
            )


@pytest.mark.parametrize("model", MODELS)
def test_sparse_rows(session: Session, fill: Fill, model: str) -> None:
    rng = np.random.default_rng(9)
    x = np.float64(np.float32(rng.standard_normal((ROWS, 12)) * (rng.random((ROWS, 12)) < 0.4)))
    y, labels = targets(model, x, rng)
    weight = some_weights(rng)
    rows = [(i, np.flatnonzero(x[i]).tolist(), x[i][x[i] != 0].tolist(), labels[i], weight[i]) for i in range(ROWS)]
    fill("t", f"id int, features_k int[], features_v real[], label {KINDS[model]}, counts float8", rows)
    stored = [row[0] for row in session.execute("SELECT id FROM t ORDER BY ctid").fetchall()]
    for options in ({}, {"batch_size": 7}):
        train(session, model, **SGD, **WEIGHT, **options)
        coef, intercept = weights(session)
        w, b = trained(model, x[stored], y[stored], sparse=True, weight=weight[stored], **options)
        np.testing.assert_allclose(coef.reshape(w.shape), w, rtol=2e-3, atol=5e-4)
        np.testing.assert_allclose(intercept, b, rtol=2e-3, atol=5e-4)


@pytest.mark.parametrize("standardize", [True, False])
def test_least_squares(session: Session, fill: Fill, standardize: bool) -> None:
    rng = np.random.default_rng(2)
    x = np.float64(np.float32(rng.standard_normal((ROWS, 4)) * [0.1, 1, 10, 1] + [1, 0, -30, 0]))
    y = np.float64(np.float32(x @ [5, 1, 0.1, 0] + rng.standard_normal(ROWS)))
    weight = some_weights(rng)
    rows = list(zip(x.tolist(), y.tolist(), weight.tolist(), strict=True))
    fill("t", "features_v real[], label float8, counts float8", rows)
    score = train(session, "linear", l2=0, standardize=standardize, **WEIGHT)[-1][3]
    coef, intercept = weights(session)
    design, root = np.column_stack([x, np.ones(ROWS)]), np.sqrt(weight)
    best = np.linalg.lstsq(design * root[:, None], y * root)[0]
    np.testing.assert_allclose([*coef, *intercept], best, rtol=1e-4, atol=1e-5)
    apart = np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)
    assert score == pytest.approx(1 - np.average((y - design @ best) ** 2, weights=weight) / apart, abs=1e-5)


@pytest.mark.parametrize("model", ["logistic", "softmax"])
@pytest.mark.parametrize("buffer", ["8MB", "64kB"])
def test_the_minimum(session: Session, fill: Fill, model: str, buffer: str) -> None:
    rng = np.random.default_rng(4)
    x = np.float64(np.float32(rng.standard_normal((8 * ROWS, 6))))
    y, labels = targets(model, x, rng)
    weight = np.tile(some_weights(rng), 8)
    rows = list(zip(x.tolist(), labels, weight.tolist(), strict=True))
    fill("t", f"features_v real[], label {KINDS[model]}, counts float8", rows)
    assert train(session, model, validation=0, buffer_size=buffer, **WEIGHT)[0][1] is None
    coef, intercept = weights(session)
    coef = coef.reshape(len(intercept), -1)
    mass = (weight / weight.mean())[:, None]
    spread = np.sqrt((mass * (x - (mass * x).mean(axis=0)) ** 2).mean(axis=0))
    slope = mass * slopes(model, x @ coef.T + intercept, y)
    gradient = slope.T @ (x - (mass * x).mean(axis=0)) / spread / len(x) + coef * spread / len(x)
    assert abs(gradient).max() < 3e-4
    assert abs(slope.mean(axis=0)).max() < 3e-4


def test_a_weight_of_two_is_a_row_twice_and_of_none_no_row(session: Session) -> None:
    session.execute("""CREATE TABLE s AS SELECT ARRAY[i % 7, sin(i)]::real[] AS features_v, i % 7 + sin(i * i) > 3 AS label,
        i % 3 AS counts FROM generate_series(1, 900) AS i""")
    session.execute("UPDATE s SET features_v = '{NaN, 5, 8}' WHERE counts = 0")
    session.execute("CREATE TABLE twice AS SELECT s.* FROM s, generate_series(1, counts)")
    found = []
    for table, options, rows in (("s", WEIGHT, 600), ("twice", {}, 900)):
        session.execute(f"CREATE OR REPLACE VIEW t AS SELECT * FROM {table}".encode())
        assert train(session, "logistic", l2=0, validation=0, **options)[-1][5] == rows
        found.append(weights(session))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-3)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        ("-1", "the weight is -1"),
        ("'NaN'", "the weight is NaN"),
        ("'Infinity'", "the weight is Infinity"),
        ("NULL", "the weight is null"),
    ],
)
def test_what_is_no_weight_is_refused_by_its_row(session: Session, weight: str, match: str) -> None:
    session.execute(
        "CREATE TABLE t AS SELECT ARRAY[i]::real[] AS features_v, i > 50 AS label, i::float8 AS w FROM generate_series(1, 99) AS i"
    )
    session.execute(f"UPDATE t SET w = {weight} WHERE w = 7".encode())
    with pytest.raises(errors.DataException, match=match) as caught:
        train(session, "svm", weight="w")
    assert 'of "t"' in str(caught.value.diag.message_detail)
    session.execute("UPDATE t SET w = 0")
    with pytest.raises(errors.NoDataFound, match="a weight of 0"):
        train(session, "svm", weight="w")


def test_the_column_of_weights_must_be_one(session: Session) -> None:
    session.execute(
        "CREATE TABLE t AS SELECT i AS a, i > 50 AS label, i AS w, 'x' AS said FROM generate_series(1, 99) AS i"
    )
    for options, error, match in (
        ({"weight": "z"}, errors.UndefinedColumn, 'no column "z" of weights'),
        ({"weight": "label"}, errors.InvalidParameterValue, "is the label"),
        ({"weight": "said"}, errors.DatatypeMismatch, "is text, not a number"),
        ({"weight": "w", "features": ["a", "w"]}, errors.InvalidParameterValue, "is the weight"),
    ):
        with pytest.raises(error, match=match):
            train(session, "svm", **options)
    train(session, "svm", weight="W", exclude="said")
    told = session.execute(
        "SELECT header->'features', header->'encoder'->>'weight', header->'encoder'->'weight_mean' FROM penstock.models WHERE name = 'm'"
    )
    assert told.fetchall() == [(["a"], "w", 50)]


def test_the_shell_has_the_server_weigh_rows_and_measures_by_them(address: str, session: Session, fill: Fill) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((ROWS, 3))
    labels = ["yes" if value > 1 else "no" for value in x.sum(axis=1) + rng.standard_normal(ROWS)]
    counts = np.where(x[:, 0] > 0, 9.0, 2.0)
    fill(
        "t",
        "a real, b real, c real, label text, counts float8",
        [(*row, label, count) for row, label, count in zip(x.tolist(), labels, counts.tolist(), strict=True)],
    )
    with connect(address) as shell:
        for server in ("off", "on"):
            shell.sql(
                f"SELECT * FROM t TRAIN BY logistic AS m_{server} WITH (weight = 'counts', validation = 0, extension = {server})"
            )
        assert "snapshots" not in dict(shell.sql("DESCRIBE MODEL m_on").rows)
        here, there = (shell.catalog.load(f"m_{server}") for server in ("off", "on"))
        np.testing.assert_allclose(there.weights.coef, here.weights.coef, rtol=0.01, atol=0.01)
        assert (there.recipe.weight, there.recipe.weight_mean) == ("counts", pytest.approx(here.recipe.weight_mean))
        measured = [
            shell.sql(f"EVALUATE MODEL m_{server} ON SELECT * FROM t").column("accuracy")[0] for server in ("off", "on")
        ]
        assert measured[0] == pytest.approx(measured[1], abs=0.01)
