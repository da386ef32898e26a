"""Least squares by an aggregate that the server runs in parallel workers and by groups."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.conftest import Fill

Session = psycopg.Connection[Any]
PARALLEL = """SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
    SET max_parallel_workers_per_gather = 2"""
SOLVE = "penstock.least_squares(features_v, label, '{\"l2\": 0}')"
ROWS = 3000


@pytest.fixture
def rows(session: Session, fill: Fill) -> tuple[Any, Any]:
    """Fill a table of rows, and return its features and labels."""
    rng = np.random.default_rng(2)
    x = np.float64(np.float32(rng.standard_normal((ROWS, 5)) * [0.1, 1, 10, 1, 3] + [1, 0, -30, 0, 1e3]))
    y = np.float64(np.float32(x @ [5, 1, 0.1, 0, 0.2] + rng.standard_normal(ROWS)))
    fill(
        "t",
        "features_v real[], label float4, part int",
        [(*each, i % 7) for i, each in enumerate(zip(x.tolist(), y.tolist(), strict=True))],
    )
    session.execute("ANALYZE t")
    return x, y


def best(x: Any, y: Any) -> Any:
    return np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y)[0]


def solved(session: Session, query: str) -> Any:
    found = session.execute(f"SELECT (s).coef, (s).intercept, (s).rows FROM ({query}) AS q".encode()).fetchone()
    assert found is not None
    return [*found[0], *found[1]], found[2]


def test_workers_add_up_what_one_process_does(session: Session, rows: tuple[Any, Any]) -> None:
    query = f"SELECT {SOLVE} AS s FROM t"
    alone, count = solved(session, query)
    np.testing.assert_allclose(alone, best(*rows), rtol=1e-3, atol=2e-3)
    session.execute(PARALLEL)
    plan = "\n".join(line for (line,) in session.execute(f"EXPLAIN {query}".encode()))
    for node in ("Finalize Aggregate", "Gather", "Partial Aggregate", "Parallel Seq Scan"):
        assert node in plan
    together, again = solved(session, query)
    assert count == again == ROWS
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def launched(session: Session) -> int:
    session.execute("SELECT pg_stat_force_next_flush()")
    session.execute("SELECT 1")
    found = session.execute("SELECT parallel_workers_launched FROM pg_stat_database WHERE datname = current_database()")
    return int(found.fetchall()[0][0])


def test_a_training_has_workers(session: Session, rows: tuple[Any, Any]) -> None:
    session.execute(PARALLEL)
    before = launched(session)
    told = session.execute(
        "SELECT * FROM penstock.train('t', 'linear', 'm', '{\"l2\": 0, \"validation\": 0, \"features\": \"features_v\"}')"
    ).fetchall()
    assert launched(session) >= before + 2
    assert [(row[0], row[1], row[5]) for row in told] == [(1, None, ROWS)]
    assert told[0][4] > 0
    coef = session.execute("SELECT coef || intercept FROM penstock.models WHERE name = 'm'").fetchall()[0][0]
    np.testing.assert_allclose(coef, best(*rows), rtol=1e-3, atol=2e-3)
    plan = "\n".join(
        line
        for (line,) in session.execute("SELECT penstock.explain('t', 'linear', '{\"features\": \"features_v\"}', true)")
    )
    assert "Partial Aggregate" in plan
    assert "Workers Launched: 2" in plan


def test_a_model_for_each_group(session: Session, rows: tuple[Any, Any]) -> None:
    for setting in ("SELECT 1", "SET enable_hashagg = off", PARALLEL):
        session.execute(setting.encode())
        found = session.execute(
            f"SELECT part, (s).coef || (s).intercept FROM (SELECT part, {SOLVE} AS s FROM t GROUP BY part) AS q ORDER BY part".encode()
        ).fetchall()
        assert [part for part, _ in found] == list(range(7))
        for part, weights in found:
            np.testing.assert_allclose(weights, best(rows[0][part::7], rows[1][part::7]), rtol=2e-3, atol=5e-3)


def test_partitions_and_queries(session: Session, rows: tuple[Any, Any]) -> None:
    session.execute("""CREATE TABLE parts (LIKE t) PARTITION BY LIST (part); CREATE TABLE a PARTITION OF parts FOR VALUES IN (0, 1, 2);
        CREATE TABLE b PARTITION OF parts DEFAULT; INSERT INTO parts SELECT * FROM t; CREATE VIEW v AS SELECT * FROM t""")
    session.execute(PARALLEL)
    for source in ("parts", "v", "SELECT t.* FROM t JOIN (SELECT DISTINCT part FROM t) AS p USING (part)"):
        session.execute(
            'SELECT penstock.train(%s, \'linear\', \'m\', \'{"l2": 0, "validation": 0, "features": "features_v", "replace": true}\')',
            (source,),
        )
        coef = session.execute("SELECT coef || intercept FROM penstock.models WHERE name = 'm'").fetchall()[0][0]
        np.testing.assert_allclose(coef, best(*rows), rtol=1e-3, atol=2e-3)


def test_wide_rows_are_learnt_by_steps(session: Session) -> None:
    session.execute(
        "CREATE TABLE t AS SELECT array_agg(sin(i * j)::real ORDER BY j) AS features_v, i % 9 AS label FROM generate_series(1, 40) AS i, generate_series(1, 2001) AS j GROUP BY i"
    )
    told = session.execute("SELECT * FROM penstock.train('t', 'linear', 'm', '{\"epochs\": 2}')").fetchall()
    assert len(told) == 2
    plan = "\n".join(line for (line,) in session.execute("SELECT penstock.explain('t', 'linear', '{}', true)"))
    assert "Custom Scan (SGD)" in plan
    with pytest.raises(errors.ProgramLimitExceeded, match="up to 2000 features, not 2001"):
        session.execute("SELECT penstock.train('t', 'linear', 'n', '{\"solver\": \"exact\"}')")
    with pytest.raises(errors.ProgramLimitExceeded, match=r"from which penstock\.least_squares learns"):
        session.execute(
            'SELECT penstock.sgd(features_v, label::real, \'{"model": "linear", "solver": "exact"}\') FROM t'
        )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("features_v[2] = 'NaN'", "feature 2 of 5 is NaN"),
        ("features_v[2] = NULL", "the features are or hold a null"),
        ("features_v = '{1, 2}'", "a row has 2 features where the others have 5"),
        ("features_v = '{{1, 2}}'", "more than one dimension"),
        ("label = 'Infinity'", "a label is not a finite number"),
    ],
)
def test_a_row_that_cannot_be_learnt_from_is_named(
    session: Session, rows: tuple[Any, Any], change: str, match: str
) -> None:
    session.execute(f"UPDATE t SET {change} WHERE ctid = '(3,3)'".encode())
    where = session.execute("SELECT max(ctid) FROM t").fetchall()[0][0]
    for setting in ("SELECT 1", PARALLEL):
        session.execute(setting.encode())
        with pytest.raises(errors.DataException, match=match) as caught:
            session.execute("SELECT penstock.train('t', 'linear', 'm', '{\"features\": \"features_v\"}')")
        if "2 features" not in match:
            assert f'The row is at ctid {where} of "t"' in str(caught.value.diag.message_detail)
    if "null" in match:
        told = session.execute(
            'SELECT rows FROM penstock.train(\'t\', \'linear\', \'m\', \'{"features": "features_v", "nulls": "skip", "validation": 0}\')'
        )
        assert told.fetchall() == [(ROWS - 1,)]


def test_options_that_ask_for_steps_are_refused_and_no_rows_too(session: Session, rows: tuple[Any, Any]) -> None:
    for options in ({"model": "svm"}, {"l1": 1, "model": "linear"}, {"solver": "sgd"}):
        with pytest.raises(errors.InvalidParameterValue, match=r"knows no l1|learns linear models"):
            session.execute("SELECT penstock.least_squares(features_v, label, %s) FROM t", (json.dumps(options),))
    with pytest.raises(errors.NoDataFound):
        session.execute(f"SELECT {SOLVE} FROM t WHERE false".encode())


def test_missing_numbers_and_text_are_encoded_in_workers(session: Session) -> None:
    session.execute(
        "CREATE TABLE t AS SELECT nullif(i % 10, 3) AS a, 'c' || i % 4 AS b, i % 10 * 2.0 + i % 4 AS label FROM generate_series(1, 2000) AS i"
    )
    session.execute(PARALLEL)
    told = session.execute(
        "SELECT held_out_score, rows + held_out_rows FROM penstock.train('t', 'linear', 'm')"
    ).fetchall()
    assert told[0][0] > 0.9
    assert told[0][1] == 2000
