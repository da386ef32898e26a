"""Models that the server trained: the rest of Penstock loads them, and all predict the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from penstock.batch import Batch, Csr
from penstock.sql import connect
from penstock.sql.catalog import Catalog
from penstock.sql.engines.postgres.engine import PostgresEngine
from tests.postgres_extension.conftest import Fill
from tests.postgres_extension.extension import ExtensionServer

Session = psycopg.Connection[Any]


def points(session: Session) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rows = session.execute("SELECT features_v, label FROM points ORDER BY id").fetchall()
    return np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows], np.float32)


@pytest.mark.parametrize("model", ["logistic", "svm", "linear", "softmax"])
def test_a_model_of_the_server_is_loaded_and_predicts_the_same(clustered: Session, address: str, model: str) -> None:
    clustered.execute(
        "SELECT penstock.train('points', %s, 'm', '{\"epochs\": 3, \"learning_rate\": 0.01, \"validation\": 0}')",
        (model,),
    )
    with PostgresEngine(address) as engine:
        catalog = Catalog(engine)
        loaded, entry = catalog.load("m"), catalog.entries()[0]
    assert (entry.name, entry.kind, entry.label, entry.features, entry.rows) == ("m", model, "label", 8, 20_000)
    assert loaded.recipe.names == tuple(f"features_v[{i}]" for i in range(8))
    assert [row["epoch"] for row in loaded.history] == [1, 2, 3]
    x, y = points(clustered)
    scores = loaded.scores(Batch(x))
    if model != "softmax":
        told = clustered.execute("SELECT penstock.predict('m', features_v) FROM points ORDER BY id").fetchall()
        np.testing.assert_allclose([row[0] for row in told], scores, rtol=1e-4, atol=1e-5)
        one = clustered.execute("""
            SELECT penstock.predict((SELECT coef FROM penstock.models), (SELECT intercept[1] FROM penstock.models), features_v)
            FROM points ORDER BY id""").fetchall()
        assert one == told
    if model != "linear":
        told = clustered.execute("SELECT penstock.predict_class('m', features_v) FROM points ORDER BY id").fetchall()
        assert np.mean(np.array([float(row[0]) for row in told]) == loaded.decide(scores)) > 0.9999
        assert loaded.classes is not None
        assert loaded.classes.tolist() == [0.0, 1.0]
        assert np.mean(loaded.decide(scores) == y) > 0.88
    chances = loaded.probabilities(scores)
    if chances is not None:
        told = clustered.execute(
            "SELECT penstock.predict_probabilities('m', features_v) FROM points ORDER BY id"
        ).fetchall()
        np.testing.assert_allclose([row[0] for row in told], chances, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("model", "solver"), [("linear", "exact"), ("logistic", "lbfgs"), ("svm", "sgd")])
def test_the_shell_knows_models_of_all_solvers(clustered: Session, address: str, model: str, solver: str) -> None:
    clustered.execute("SELECT penstock.train('points', %s, 'm')", (model,))
    with connect(address) as shell:
        told = dict(shell.sql("DESCRIBE MODEL m").rows)
        assert (told["learning_rate"], told["solver"], told["standardize"]) == ("auto", solver, True)
        assert "m" in shell.sql("SHOW MODELS").column("name")
        score = shell.sql("EVALUATE MODEL m ON SELECT * FROM points")
        assert score.column("r2" if model == "linear" else "accuracy")[0] > 0.4


def test_the_shell_and_the_server_use_one_anothers_models(clustered: Session, address: str) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'here', '{\"epochs\": 2}')")
    with connect(address) as shell:
        shell.sql("SELECT features_v, label FROM points TRAIN BY logistic AS there WITH (epochs = 2)")
        found = shell.sql("SELECT id, features_v FROM points PREDICT BY here").rows
    wanted = clustered.execute("SELECT id, penstock.predict_class('here', features_v)::real FROM points").fetchall()
    told = {row[0]: row[-1] for row in found}
    assert sum(told[number] == label for number, label in wanted) > 19_990
    right = clustered.execute(
        "SELECT avg((penstock.predict_class('there', features_v)::real = label)::int) FROM points"
    ).fetchone()
    assert right is not None
    assert right[0] > 0.88


def test_the_shell_and_the_server_make_the_same_table(clustered: Session, address: str) -> None:
    def table() -> list[Any]:
        columns = """SELECT attname, atttypid::regtype, attnotnull, pg_get_expr(adbin, adrelid)
            FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = 'penstock.models'::regclass AND attnum > 0 ORDER BY attnum"""
        keys = (
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'penstock.models'::regclass"
        )
        return [*clustered.execute(columns.encode()).fetchall(), *sorted(clustered.execute(keys.encode()).fetchall())]

    clustered.execute("SELECT penstock.make_catalogue()")
    made_there = table()
    clustered.execute("DROP TABLE penstock.models")
    with connect(address) as shell:
        shell.sql("SELECT features_v, label FROM points TRAIN BY svm WITH (epochs = 1, extension = off)")
    assert table() == made_there


def test_sparse_and_scalar_models_are_loaded(session: Session, fill: Fill, address: str) -> None:
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(300):
        k = np.sort(rng.choice(40, 6, replace=False))
        rows.append((k.tolist(), np.ones(6).tolist(), "up" if (k < 20).sum() > 3 else "down"))
    fill("clicks", "features_k int[], features_v real[], label text", rows)
    session.execute("SELECT penstock.train('clicks', 'logistic', 'sparse')")
    session.execute('CREATE TABLE flat AS SELECT i AS a, -i AS "B b", i > 5 AS label FROM generate_series(1, 10) i')
    session.execute("SELECT penstock.train('flat', 'svm', 'flat')")
    with PostgresEngine(address) as engine:
        sparse, flat = (Catalog(engine).load(name) for name in ("sparse", "flat"))
    assert flat.recipe.names == ("a", "B b")
    assert flat.classes is not None
    assert flat.classes.tolist() == [False, True]
    csr = Csr(
        np.arange(0, 1801, 6, dtype=np.uint64),
        np.concatenate([r[0] for r in rows]).astype(np.uint32),
        np.ones(1800, np.float32),
        40,
    )
    told = session.execute("SELECT penstock.predict('sparse', features_k, features_v) FROM clicks").fetchall()
    np.testing.assert_allclose([row[0] for row in told], sparse.scores(Batch(csr)), rtol=1e-4, atol=1e-5)
    right = session.execute(
        "SELECT avg((penstock.predict_class('sparse', features_k, features_v) = label)::int) FROM clicks"
    ).fetchone()
    assert right is not None
    assert right[0] > 0.9
    # An index that training has not seen is left out; so it is by the rest of Penstock.
    assert session.execute("SELECT penstock.predict('{1,2}', 0.5, ARRAY[0, 9], ARRAY[3, 3])").fetchone() == (3.5,)


def test_predictions_in_any_query(clustered: Session) -> None:
    ask = clustered.execute
    assert ask("SELECT penstock.predict('{1,2}', 0.5, ARRAY[3, 4])").fetchone() == (11.5,)
    assert ask(
        "SELECT penstock.predict('{1,2}', 0.5, ARRAY[3, NULL]), penstock.predict(NULL, 1, ARRAY[1])"
    ).fetchone() == (
        None,
        None,
    )
    assert ask("SELECT penstock.probability(0), penstock.probability(-1000)").fetchone() == (0.5, 0.0)
    with pytest.raises(errors.ArraySubscriptError, match="3 features where there are 2 weights"):
        ask("SELECT penstock.predict('{1,2}', 0.5, ARRAY[3, 4, 5])")
    with pytest.raises(errors.UndefinedObject, match="None has been trained"):
        ask("SELECT penstock.predict('none', ARRAY[1])")
    ask("SELECT penstock.train('points', 'softmax', 'm')")
    with pytest.raises(errors.UndefinedObject, match='no model "none"'):
        ask("SELECT penstock.predict('none', ARRAY[1])")
    with pytest.raises(errors.ArraySubscriptError, match='2 features where model "m" has 8'):
        ask("SELECT penstock.predict_class('m', ARRAY[1, 2])")
    with pytest.raises(errors.FeatureNotSupported, match="a score for each class"):
        ask("SELECT penstock.predict('m', features_v) FROM points")
    ask("CREATE INDEX ON points (penstock.predict('{1,1,1,1,1,1,1,1}', 0, features_v))")  # immutable
    ask("SELECT penstock.train('points', 'svm', 'n')")
    both = ask(
        "SELECT count(DISTINCT penstock.predict_class(m.name, features_v)) FROM points, penstock.models m"
    ).fetchone()
    assert both == (2,)
    count = "SELECT count(*) FROM points WHERE penstock.predict('n', features_v) > 0"
    alone = ask(count).fetchone()
    ask("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0")
    assert any("Gather" in line for (line,) in ask(f"EXPLAIN {count}".encode()).fetchall())
    assert ask(count).fetchone() == alone


def test_classes_are_written_as_the_labels_are(clustered: Session) -> None:
    for name, kind in (("r", "real"), ("d", "double precision"), ("i", "int"), ("b", "boolean"), ("t", "text")):
        clustered.execute(f"CREATE TABLE {name} AS SELECT features_v, label::int::{kind} AS label FROM points".encode())
        clustered.execute("SELECT penstock.train(%s, 'svm', %s, '{\"epochs\": 1}')", (name, name))
        found = clustered.execute(
            f"SELECT avg((penstock.predict_class('{name}', features_v) = label::text)::int) FROM {name}".encode()
        ).fetchone()
        assert found is not None
        assert found[0] > 0.8, kind


def test_features_may_be_arrays_of_any_numbers(clustered: Session) -> None:
    ask = clustered.execute
    for kind in ("smallint", "int", "bigint", "real", "double precision", "numeric"):
        query = f"SELECT penstock.predict('{{1,2}}', 0.5, ARRAY[3, 4]::{kind}[])"
        assert ask(query.encode()).fetchone() == (11.5,)
        query = f"SELECT penstock.predict('{{1,2}}', 0.5, ARRAY[0, 1]::{kind}[], ARRAY[3, 4]::numeric[])"
        assert ask(query.encode()).fetchone() == (11.5,)
    ask("CREATE DOMAIN price AS real")
    assert ask("SELECT penstock.predict('{1,2}', 0.5, ARRAY[3, 4]::price[])").fetchone() == (11.5,)
    ask("SELECT penstock.train('points', 'softmax', 'm', '{\"epochs\": 1}')")
    query = """SELECT count(*) FROM points WHERE
        penstock.predict_class('m', features_v::float8[]) <> penstock.predict_class('m', features_v)
        OR penstock.predict_probabilities('m', features_v::numeric[]) IS NULL"""
    assert ask(query).fetchone() == (0,)
    with pytest.raises(errors.DatatypeMismatch, match="an array of text, not of numbers"):
        ask("SELECT penstock.predict_class('m', ARRAY['a'])")
    with pytest.raises(errors.NumericValueOutOfRange):
        ask("SELECT penstock.predict('{1,2}', 0.5, ARRAY[8589934592], ARRAY[1])")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_row_that_is_not_finite_has_no_prediction(clustered: Session, value: str) -> None:
    for model in ("logistic", "softmax"):
        clustered.execute(
            "SELECT penstock.train('points', %s, %s, '{\"epochs\": 1, \"learning_rate\": 0.01}')", (model, model)
        )
    functions = [
        ("predict", "logistic"),
        *((f"predict_{what}", m) for what in ("class", "probabilities") for m in ("logistic", "softmax")),
    ]
    for function, model in functions:
        query = f"SELECT penstock.{function}('{model}', array_fill('{value}'::real, ARRAY[8]))"
        assert clustered.execute(query.encode()).fetchone() == (None,)


def test_wide_weights_are_unpacked_once_and_right(session: Session) -> None:
    session.execute("CREATE TABLE w AS SELECT array_agg((i % 7)::real) AS coef FROM generate_series(1, 5000) i")
    session.execute("INSERT INTO w SELECT array_agg((i % 5)::real) FROM generate_series(1, 5000) i")
    found = session.execute("""
        SELECT w.coef[1], penstock.predict(w.coef, 0, f.x) FROM w, (SELECT array_agg(1::real) AS x FROM generate_series(1, 5000)) f,
        generate_series(1, 3)""").fetchall()
    assert {row[1] for row in found} == {sum(i % 7 for i in range(1, 5001)), sum(i % 5 for i in range(1, 5001))}


def test_names_are_kept_apart(clustered: Session) -> None:
    few = '{"epochs": 1}'
    clustered.execute("SELECT penstock.train('points', 'svm', 'm', %s)", (few,))
    with pytest.raises(errors.UniqueViolation, match="already"):
        clustered.execute("SELECT penstock.train('points', 'logistic', 'm', %s)", (few,))
    clustered.execute(
        "SELECT penstock.train('points', 'logistic', 'm', %s)", (json.dumps({"epochs": 1, "replace": True}),)
    )
    for _ in range(3):
        clustered.execute("SELECT penstock.train('points', 'svm', options => %s)", (few,))
    found = clustered.execute("SELECT name, kind FROM penstock.models ORDER BY name").fetchall()
    assert found == [
        ("m", "logistic"),
        ("m@1", "svm"),
        *((name, "svm") for name in ("points_svm", "points_svm_2", "points_svm_3")),
    ]
    hostile = 'O\'Brien "x"; DROP TABLE points --'
    clustered.execute(
        'CREATE TABLE "T\'; DROP" AS SELECT features_v AS "f\'""]", label AS "La;bel" FROM points LIMIT 15000'
    )
    options = {"label": "La;bel", "features": ["f'\"]"], "epochs": 1}
    clustered.execute("SELECT penstock.train(%s, 'svm', %s, %s)", ('"T\'; DROP"', hostile, json.dumps(options)))
    assert (
        clustered.execute("SELECT penstock.predict(%s, features_v) FROM points LIMIT 1", (hostile,)).fetchone()
        is not None
    )


def test_models_outlive_the_extension(clustered: Session, extended: ExtensionServer) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'm')")
    clustered.execute("DROP EXTENSION penstock")
    assert clustered.execute("SELECT name FROM penstock.models").fetchall() == [("m",)]
    clustered.execute("CREATE EXTENSION penstock")
    assert clustered.execute("SELECT penstock.predict('m', features_v) FROM points LIMIT 1").fetchone() is not None


def test_a_rollback_takes_the_model_with_it(clustered: Session) -> None:
    with clustered.transaction(force_rollback=True):
        clustered.execute("SELECT penstock.train('points', 'svm', 'm')")
    clustered.execute("SELECT penstock.make_catalogue()")
    assert clustered.execute("SELECT count(*) FROM penstock.models").fetchone() == (0,)


def test_a_replaced_model_is_used_at_once_in_a_function(clustered: Session) -> None:
    clustered.execute("""
        CREATE FUNCTION scores() RETURNS float8[] LANGUAGE plpgsql AS $$
        DECLARE
            given CONSTANT real[] := (SELECT features_v FROM points LIMIT 1);
            found float8[] := '{}';
        BEGIN
            FOR rate IN 1 .. 3 LOOP
                PERFORM penstock.train('points', 'svm', 'm', format('{"epochs": 1, "replace": true, "learning_rate": 0.%s}', rate)::jsonb);
                found := found || penstock.predict('m', given);  -- one expression, in one transaction
            END LOOP;
            -- What is rolled back was not.
            BEGIN
                UPDATE penstock.models SET intercept = '{77}', coef = array_fill(0::real, ARRAY[8]);
                found := found || penstock.predict('m', given);
                RAISE EXCEPTION 'no' USING ERRCODE = 'P0099';
            EXCEPTION WHEN SQLSTATE 'P0099' THEN
                found := found || penstock.predict('m', given);
            END;
            RETURN found;
        END $$
    """)
    found = clustered.execute("SELECT scores()").fetchone()
    assert found is not None
    values = found[0]
    assert len({round(value, 6) for value in values[:3]}) == 3
    # The row that is left is the third, and is what a fresh expression gives.
    now = clustered.execute("SELECT penstock.predict('m', features_v) FROM points LIMIT 1").fetchone()
    assert now == (pytest.approx(values[2]),)
    assert values[-1] == pytest.approx(values[2])


def test_one_expression_in_a_loop_that_is_rolled_back(clustered: Session) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"epochs\": 1}')")
    found = clustered.execute("SELECT penstock.predict('m', array_fill(0::real, ARRAY[8]))").fetchone()
    clustered.execute("""
        CREATE FUNCTION twice() RETURNS float8[] LANGUAGE plpgsql AS $$
        DECLARE seen float8[] := '{}';
        BEGIN
            FOR i IN 1 .. 3 LOOP
                BEGIN
                    IF i = 2 THEN UPDATE penstock.models SET intercept = '{77}'; END IF;
                    seen := seen || penstock.predict('m', array_fill(0::real, ARRAY[8]));
                    IF i = 2 THEN RAISE EXCEPTION '%', seen[2] USING ERRCODE = 'P0099'; END IF;
                EXCEPTION WHEN SQLSTATE 'P0099' THEN
                    NULL;
                END;
            END LOOP;
            RETURN seen;
        END $$
    """)
    seen = clustered.execute("SELECT twice()").fetchone()
    assert found is not None
    assert seen is not None
    assert seen[0] == [found[0], 77, found[0]]


def test_a_model_that_others_replace_is_seen_by_the_next_statement(clustered: Session, address: str) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"epochs\": 1}')")
    clustered.execute(
        "CREATE FUNCTION now_it_is() RETURNS float8 LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN penstock.predict('m', array_fill(0::real, ARRAY[8])); END $$"
    )
    with psycopg.connect(address, autocommit=True) as other, clustered.transaction():
        seen = []
        for value in (5, 6):
            other.execute(f"UPDATE penstock.models SET intercept = '{{{value}}}'".encode())
            seen.append(clustered.execute("SELECT now_it_is()").fetchone())
        other.execute("DELETE FROM penstock.models")
        with pytest.raises(errors.UndefinedObject), clustered.transaction():
            clustered.execute("SELECT now_it_is()")
        clustered.execute("SELECT 1")
    assert seen == [(5.0,), (6.0,)]


def test_a_model_is_gone_with_its_table(clustered: Session) -> None:
    clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"epochs\": 1}')")
    clustered.execute("""CREATE FUNCTION emptied() RETURNS float8 LANGUAGE plpgsql AS $$ DECLARE found float8; BEGIN
        FOR i IN 1 .. 2 LOOP
            found := penstock.predict('m', array_fill(0::real, ARRAY[8]));
            TRUNCATE penstock.models;
        END LOOP; RETURN found; END $$""")
    with pytest.raises(errors.UndefinedObject, match='no model "m"'):
        clustered.execute("SELECT emptied()")
