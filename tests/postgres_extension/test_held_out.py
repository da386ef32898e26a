"""A trained model is measured on rows that it has not learned from, and says so by its names."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from penstock.sql import connect
from tests.postgres_extension.conftest import Fill

Session = psycopg.Connection[Any]
STEPS = {"learning_rate": 1, "standardize": False, "average": False}
FIGURES = "rows, held_out_rows, held_out_loss, held_out_score, training_score"
RIGHT = "SELECT avg((penstock.predict_class('m', {}) = label::text)::int) FROM {}"
# Each row has a feature of its own, and a label by chance: a model knows those rows alone that it has learned from.
BY_HEART = """CREATE TABLE t AS SELECT ARRAY[i]::int[] AS features_k, '{1}'::real[] AS features_v, hashint4(i) % 2 = 0 AS label
    FROM generate_series(1, 3000) AS i"""


def train(session: Session, source: str, model: str, **options: Any) -> Any:
    query = f"SELECT {FIGURES} FROM penstock.train(%s, %s, 'm', %s)"
    return session.execute(query.encode(), (source, model, json.dumps({"replace": True, **options}))).fetchall()[-1]


@pytest.mark.parametrize(
    "options",
    [{"solver": "lbfgs"}, {"solver": "lbfgs", "buffer_size": "64kB"}, STEPS, {**STEPS, "buffer_size": "64kB"}],
)
def test_rows_held_out_are_not_learned_from(session: Session, options: dict[str, Any]) -> None:
    session.execute(BY_HEART)
    model = "logistic" if "solver" in options else "svm"
    rows, held_out, _, score, training = train(session, "t", model, validation=0.2, l2=1e-6, **options)
    assert rows + held_out == 3000
    assert 500 < held_out < 700
    assert training is None
    assert abs(score - 0.5) < 0.1
    coef = session.execute("SELECT coef FROM penstock.models WHERE name = 'm'").fetchall()[0][0]
    assert np.count_nonzero(np.array(coef[1:]) == 0) == held_out
    rows, held_out, _, score, training = train(session, "t", model, validation=0, l2=1e-6, **options)
    assert (rows, held_out, score) == (3000, None, None)
    assert training > 0.95


@pytest.mark.parametrize("workers", [0, 2])
def test_least_squares_hold_out_the_same_rows_in_workers(session: Session, workers: int) -> None:
    session.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0")
    session.execute(f"SET max_parallel_workers_per_gather = {workers}".encode())
    session.execute("""CREATE TABLE t AS SELECT ARRAY[i % 30, sin(i)]::real[] AS features_v, i % 30 + (i % 10 = 0)::int * 40 AS label
        FROM generate_series(0, 2999) AS i""")
    rows, held_out, loss, score, training = train(session, "t", "linear")
    assert (rows + held_out, training) == (3000, None)
    assert 220 < held_out < 380
    coef, metrics = session.execute("SELECT coef, header->'metrics' FROM penstock.models WHERE name = 'm'").fetchall()[
        0
    ]
    assert (metrics["held_out_rows"], metrics["held_out_r2"]) == (held_out, pytest.approx(score))
    assert loss == pytest.approx(0.5 * 40**2 * 0.09, rel=0.5)
    for setting in ("SELECT 1", "SET max_parallel_workers_per_gather = 0"):
        session.execute(setting.encode())
        assert train(session, "t", "linear")[:4] == (rows, held_out, pytest.approx(loss), pytest.approx(score))
        found = session.execute("SELECT coef FROM penstock.models WHERE name = 'm'").fetchall()[0][0]
        np.testing.assert_allclose(found, coef, rtol=1e-5, atol=1e-5)
    assert train(session, "t", "linear", seed=5)[2] != pytest.approx(loss)


def test_rows_without_a_place_as_those_of_files_are_told_apart(session: Session) -> None:
    found = session.execute("""SELECT (s).rows, (s).held_out_rows FROM (SELECT penstock.least_squares(ARRAY[i % 7]::real[], i % 9, 1,
        '(4294967295,0)', 0, '{"validation": "auto"}') AS s FROM generate_series(1, 2000) AS i) AS q""")
    ((rows, held_out),) = found.fetchall()
    assert (rows + held_out, 140 < held_out < 260) == (2000, True)


def test_what_is_held_out_where_nobody_said_how_much(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT ARRAY[i % 7, sin(i)]::real[] AS features_v, (i % 7 > 3)::int AS label
        FROM generate_series(1, 120000) AS i""")
    session.execute("CREATE VIEW few AS SELECT * FROM t LIMIT 499; CREATE VIEW more AS SELECT * FROM t LIMIT 20000")
    for model in ("logistic", "linear", "svm"):
        rows, held_out, *_, training = train(session, "few", model, classes=None)
        assert (rows, held_out) == (499, None)
        assert training > 0.5
        rows, held_out, *_ = train(session, "more", model)
        assert rows + held_out == 20_000
        assert 1800 < held_out < 2200
        rows, held_out, *_ = train(session, "t", model)
        assert 105_000 < rows < 120_000
        assert 4_500 < held_out <= 10_000
    # The aggregates by themselves learn from all rows.
    query = "SELECT (s).rows, (s).held_out_rows FROM (SELECT penstock.least_squares(features_v, label, '{}') AS s FROM t) AS q"
    assert session.execute(query.encode()).fetchall() == [(120_000, None)]


def test_held_out_rows_come_from_all_blocks(clustered: Session) -> None:
    rows, held_out, _, score, _ = train(clustered, "points", "svm", epochs=2, validation=0.3)
    assert abs(rows - 14_000) < 400
    assert abs(rows + held_out - 20_000) == 0
    right = clustered.execute(RIGHT.format("features_v", "points").encode()).fetchall()[0][0]
    assert score == pytest.approx(float(right), abs=0.02)


@pytest.mark.parametrize("options", [{"validation": 0.95}, {"validation": -0.1}, {"validation": "some"}])
def test_a_share_is_a_share(clustered: Session, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="validation"):
        train(clustered, "points", "svm", **options)


@pytest.mark.parametrize("model", ["svm", "linear", "logistic"])
def test_all_rows_held_out_are_refused(session: Session, fill: Fill, model: str) -> None:
    fill("t", "features_v real[], label int", [([1.0], 0), ([2.0], 1)])
    refused = []
    for seed in range(20):
        try:
            train(session, "t", model, validation=0.9, seed=seed)
        except errors.NoDataFound as error:
            refused.append(str(error))
    assert len(refused) > 5
    assert all("all rows are held out" in message for message in refused)


@pytest.mark.parametrize(("given", "share"), [("", 0.1), (", validation = 0.3", 0.3), (", validation = 0", 0)])
def test_the_shell_trains_and_measures_in_the_server(
    clustered: Session, address: str, given: str, share: float
) -> None:
    with connect(address) as session:
        model = session.sql(f"SELECT * FROM points TRAIN BY logistic AS m WITH (replace = true{given})").model
        assert model is not None
        assert "snapshots" not in dict(session.sql("DESCRIBE MODEL m").rows), "rows were not fetched"
    assert model.metrics.get("held_out_rows", 0) == pytest.approx(20_000 * share, abs=300)
    assert ("training_accuracy" in model.metrics) == (share == 0)
    assert model.metrics["training_accuracy" if share == 0 else "held_out_accuracy"] > 0.85
    assert model.config["validation"] == pytest.approx(share, abs=0.02)
