"""Calls inside statements of the engine's: what the holes are, what goes into them, what is refused."""

from __future__ import annotations

import pytest

from penstock.errors import SQLSyntaxError
from penstock.sql.dialect import Dialect
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.grammar import parse
from penstock.sql.statements import (
    ConfusionMatrix,
    Embedded,
    Evaluate,
    ExplainPredict,
    FeatureInfo,
    Plain,
    Predict,
    Query,
    RocCurve,
    TableSelection,
    TrainingInfo,
    WeightsOf,
)

T = Query("SELECT * FROM t", TableSelection("t"))


@pytest.fixture(params=(DUCKDB, POSTGRES), ids=lambda each: each.title)
def dialect(request) -> Dialect:
    return request.param


def one(text: str, dialect: Dialect = DUCKDB) -> Embedded:
    (found,) = parse(text, dialect=dialect)
    assert isinstance(found, Embedded)
    assert len(found.texts) == len(found.calls) + 1
    return found


def filled(found: Embedded) -> str:
    """Return the statement with each hole as ``<model>``."""
    return "".join(
        f"{text}<{call.model}>" for text, call in zip(found.texts, found.calls, strict=False)
    ) + found.texts[-1]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holes"),
    [
        ("SELECT * FROM t PREDICT BY m", "<m>"),
        ("select * from t predict by \"M\" -- done", "<M> -- done"),
        ("/* hint */ SELECT * FROM t PREDICT BY s.m", "/* hint */ <s.m>"),
        ("(SELECT * FROM t PREDICT BY m)", "<m>"),
        ("SELECT * FROM (SELECT * FROM t PREDICT BY m) AS p WHERE p.x", "SELECT * FROM <m> AS p WHERE p.x"),
        ("SELECT (((SELECT * FROM t PREDICT BY m)))", "SELECT ((<m>))"),
        ("SELECT a IN (SELECT * FROM t PREDICT BY m)", "SELECT a IN <m>"),
        ("CREATE TABLE x AS SELECT * FROM t PREDICT BY m", "CREATE TABLE x AS <m>"),
        ("CREATE TABLE x AS (SELECT * FROM t PREDICT BY m)", "CREATE TABLE x AS <m>"),
        ("CREATE TABLE x AS SELECT * FROM t PREDICT BY m WITH NO DATA", "CREATE TABLE x AS <m> WITH NO DATA"),
        ("CREATE OR REPLACE TEMP TABLE x AS TABLE t PREDICT BY m", "CREATE OR REPLACE TEMP TABLE x AS <m>"),
        ("INSERT INTO x SELECT * FROM t PREDICT BY m", "INSERT INTO x <m>"),
        ("INSERT INTO s.x (a, b) SELECT * FROM t PREDICT BY m", "INSERT INTO s.x (a, b) <m>"),
        ("INSERT INTO x (SELECT * FROM t PREDICT BY m)", "INSERT INTO x <m>"),
        ("INSERT INTO predict BY NAME SELECT * FROM t PREDICT BY m", "INSERT INTO predict BY NAME <m>"),
        ("INSERT INTO x SELECT 1 PREDICT BY m ON CONFLICT DO NOTHING", "INSERT INTO x <m> ON CONFLICT DO NOTHING"),
        ("INSERT INTO x SELECT 1 PREDICT BY m RETURNING a", "INSERT INTO x <m> RETURNING a"),
        ("COPY (SELECT * FROM t PREDICT BY m) TO 'f' (FORMAT csv)", "COPY <m> TO 'f' (FORMAT csv)"),
        ("WITH a AS (SELECT * FROM t PREDICT BY m) SELECT * FROM a", "WITH a AS <m> SELECT * FROM a"),
        ("WITH a AS (SELECT 1) SELECT * FROM a PREDICT BY m", "<m>"),
        ("SELECT 1 UNION ALL SELECT 2 PREDICT BY m", "<m>"),
        ("(SELECT 1 PREDICT BY m) UNION ALL (SELECT 2 PREDICT BY n)", "<m> UNION ALL <n>"),
        ("(SELECT 1) PREDICT BY m", "<m>"),
        ("SELECT * FROM ((SELECT 1) PREDICT BY m) x, (SELECT 2 PREDICT BY n) y", "SELECT * FROM <m> x, <n> y"),
        ("INSERT INTO x (SELECT 1) PREDICT BY m RETURNING (SELECT 2), 3", "INSERT INTO x <m> RETURNING (SELECT 2), 3"),
        ("EXPLAIN SELECT * FROM t PREDICT BY m", "EXPLAIN <m>"),
        ("EXPLAIN (FORMAT json) SELECT * FROM t PREDICT BY m", "EXPLAIN (FORMAT json) <m>"),
        ("EXPLAIN ANALYZE VERBOSE (SELECT 1) PREDICT BY m", "EXPLAIN ANALYZE VERBOSE <m>"),
        ("PREPARE p AS SELECT $1, $2 PREDICT BY m", "PREPARE p AS <m>"),
        ("CREATE MACRO f(x) AS TABLE SELECT * FROM t PREDICT BY m", "CREATE MACRO f(x) AS TABLE <m>"),
        ("DECLARE c CURSOR FOR SELECT * FROM t PREDICT BY m", "DECLARE c CURSOR FOR <m>"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t)", "SELECT * FROM <m> AS ml_1"),
        ("SELECT * FROM ml.predict(model m, (SELECT * FROM t)) AS p", "SELECT * FROM <m> AS p"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t) p", "SELECT * FROM <m> p"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t)WHERE a", "SELECT * FROM <m> AS ml_1 WHERE a"),
        ("SELECT (SELECT a FROM ML.PREDICT(MODEL m, TABLE t))", "SELECT (SELECT a FROM <m> AS ml_1)"),
        (
            "SELECT * FROM ML.WEIGHTS(MODEL a), ML.WEIGHTS(MODEL b) JOIN ML.TRAINING_INFO(MODEL c) USING (x)",
            "SELECT * FROM <a> AS ml_1, <b> AS ml_2 JOIN <c> AS ml_3 USING (x)",
        ),
        ("SELECT 1\n;", None),
    ],
)  # fmt: skip
def test_holes(text, holes, dialect):
    if holes is None:
        assert isinstance(parse(text, dialect=dialect)[0], Plain)
    else:
        assert filled(one(text, dialect)) == holes


def test_what_the_calls_are(dialect):
    text = (
        "SELECT * FROM (SELECT * FROM t PREDICT BY A) x, ML.PREDICT(MODEL b, TABLE t), ML.PREDICT(MODEL `s.c`, (SELECT 1 /* k */)),"
        ' ML.EVALUATE(MODEL d), ML.EVALUATE(MODEL e, TABLE s."T"), ML.TRAINING_INFO(MODEL f), ML.WEIGHTS(MODEL g)'
    )
    assert one(text, dialect).calls == (
        Predict("a", T),
        Predict("b", T, warehouse=True),
        Predict("s.c", Query("SELECT 1"), warehouse=True),
        Evaluate("d", None, warehouse=True),
        Evaluate("e", Query('SELECT * FROM s."T"', TableSelection('s."T"')), warehouse=True),
        TrainingInfo("f"),
        WeightsOf("g"),
    )


def test_settings_of_functions(dialect):
    text = (
        "SELECT * FROM ML.PREDICT(MODEL a, TABLE t, STRUCT(0.5 AS threshold)), ml.evaluate(model b, table t,struct(.25 as THRESHOLD)),"
        " ML . CONFUSION_MATRIX (MODEL c\n, STRUCT(1e-3 AS threshold)), ML.ROC_CURVE(MODEL d, TABLE t), ML.FEATURE_INFO(MODEL `E`),"
        ' ML.EXPLAIN_PREDICT(MODEL "F", (SELECT 1), STRUCT(3 AS top_k_features, 0.1 AS threshold))'
    )
    calls = one(text, dialect).calls
    settings = [{name: each.value for name, each in getattr(call, "options", {}).items()} for call in calls]
    assert [type(call) for call in calls] == [Predict, Evaluate, ConfusionMatrix, RocCurve, FeatureInfo, ExplainPredict]
    assert [call.model for call in calls] == ["a", "b", "c", "d", "E", "F"]
    expected = [
        {"threshold": 0.5},
        {"threshold": 0.25},
        {"threshold": 0.001},
        {},
        {},
        {"top_k_features": 3, "threshold": 0.1},
    ]
    assert settings == expected
    assert calls[5].query == Query("SELECT 1")


@pytest.mark.parametrize(
    ("text", "thresholds"),
    [
        ("GENERATE_ARRAY(0, 1)", [0, 1]),
        ("generate_array(0.1, 0.5, 0.2)", [0.1, 0.3, 0.5]),
        ("GENERATE_ARRAY(0, 0.9, 0.5)", [0, 0.5]),
        ("[0.5, .25]", [0.5, 0.25]),
    ],
)
def test_thresholds_of_a_curve(text, thresholds, dialect):
    (call,) = one(f"SELECT * FROM ML.ROC_CURVE(MODEL d, TABLE t, {text})", dialect).calls
    assert call.options["thresholds"].value == thresholds


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("SELECT * FROM t PREDICT BY m", False),
        ("WITH a AS (SELECT * FROM t PREDICT BY m) SELECT 1", False),
        ("EXPLAIN SELECT * FROM t PREDICT BY m", False),
        ("FROM ML.WEIGHTS(MODEL m)", False),
        ("CREATE TABLE view AS SELECT * FROM t PREDICT BY m", False),
        ("CREATE VIEW v AS SELECT * FROM t PREDICT BY m", True),
        ("CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM t PREDICT BY m", True),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM t PREDICT BY m", True),
        ("CREATE OR REPLACE MACRO f() AS TABLE SELECT * FROM t PREDICT BY m", True),
        ("PREPARE p AS SELECT * FROM t PREDICT BY m", True),
        ("INSERT INTO x SELECT * FROM t PREDICT BY m", False),
        ("INSERT INTO x SELECT * FROM t PREDICT BY m RETURNING *", False),
        ("WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM a PREDICT BY m", False),
        ("UPDATE x SET a = 1 FROM (SELECT * FROM t PREDICT BY m) p", False),
        ("COPY (SELECT * FROM t PREDICT BY m) TO 'f'", False),
    ],
)
def test_whether_it_is_stored(text, view, dialect):
    assert one(text, dialect).view == view


def test_names_of_with_clauses_go_along(dialect):
    text = """
        WITH a AS (SELECT 1), "B" (x) AS MATERIALIZED (SELECT * FROM a), c AS (SELECT * FROM "B" PREDICT BY m)
        SELECT * FROM c, (WITH RECURSIVE d AS (SELECT 2) SELECT * FROM (SELECT * FROM d, a PREDICT BY n) x) y
    """
    found = one(text, dialect)
    outer = 'WITH a AS (SELECT 1), "B" (x) AS MATERIALIZED (SELECT * FROM a)'
    assert found.calls[0].query == Query('SELECT * FROM "B"', scope=(outer,))
    assert found.calls[0].query.alone == f'{outer} SELECT * FROM (SELECT * FROM "B") AS q'
    assert found.calls[1].query == Query("SELECT * FROM d, a", scope=(outer, "WITH RECURSIVE d AS (SELECT 2)"))
    assert found.calls[1].query.alone == (
        f"{outer} SELECT * FROM (WITH RECURSIVE d AS (SELECT 2) SELECT * FROM (SELECT * FROM d, a) AS q) AS q"
    )
    insert = one("WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM a PREDICT BY m", dialect)
    assert insert.calls[0].query == Query("SELECT * FROM a", scope=("WITH a AS (SELECT 1)",))
    table = one("WITH a AS (SELECT 1) SELECT * FROM ML.PREDICT(MODEL m, TABLE a)", dialect)
    assert table.calls[0].query == Query("SELECT * FROM a", scope=("WITH a AS (SELECT 1)",))


def test_two_models_can_be_compared_by_name(dialect):
    text = "WITH a AS (SELECT * FROM t PREDICT BY m), b AS (SELECT a, b FROM u PREDICT BY n) SELECT * FROM a JOIN b USING (id)"
    assert filled(one(text, dialect)) == "WITH a AS <m>, b AS <n> SELECT * FROM a JOIN b USING (id)"


@pytest.mark.parametrize(
    ("text", "told", "at"),
    [
        ("SELECT * FROM t PREDICT BY", "expected a model's name, found the end", ""),
        ("SELECT * FROM t PREDICT BY 7", "expected a model's name, found 7", "7"),
        ("SELECT * FROM t PREDICT BY m ORDER BY 1", "SELECT * FROM (… PREDICT BY m) AS p ORDER BY 1", "ORDER"),
        ("SELECT * FROM (SELECT 1 PREDICT BY m LIMIT 5) x", "(… PREDICT BY m) AS p LIMIT 5", "LIMIT 5) x"),
        ("SELECT 1 PREDICT BY m UNION SELECT 2", "AS p UNION SELECT 2", "UNION"),
        ("INSERT INTO x SELECT 1 PREDICT BY m WHERE a", "AS p WHERE a", "WHERE a"),
        ("CREATE TABLE x AS SELECT 1 PREDICT BY m WITH (a = 1)", "AS p WITH (a = 1)", "WITH"),
        ("SELECT 1 PREDICT BY m, n", "PREDICT BY ends its query", ", n"),
        ("SELECT 1 PREDICT BY m)", "PREDICT BY ends its query", ")"),
        ("SELECT * FROM (SELECT 1 PREDICT BY m", "expected ), found the end", ""),
        ("SELECT 1) PREDICT BY m", "no partner", ") PREDICT"),
        ("PREDICT BY m", "PREDICT BY follows a query", "PREDICT BY m"),
        ("UPDATE t SET a = 1 PREDICT BY m", "PREDICT BY follows a query", "PREDICT"),
        ("SELECT f(a PREDICT BY m)", "PREDICT BY follows a query", "PREDICT"),
        ("SELECT * FROM (SELECT 1 PREDICT BY m) x PREDICT BY n", "predictions of predictions", "(SELECT 1 PREDICT"),
        ("WITH a AS (SELECT 1 PREDICT BY m) SELECT * FROM (SELECT * FROM a PREDICT BY n) x", "of predictions", "a PREDICT BY n"),
        ("SELECT * FROM ML.PREDICT(MODEL m, (SELECT 1 PREDICT BY n))", "of predictions", "PREDICT BY n"),
        ("SELECT * FROM ML.PREDICT(MODEL m, (SELECT * FROM ML.WEIGHTS(MODEL n)))", "of predictions", "ML.WEIGHTS"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t, STRUCT(5 AS top_k))", "ML.PREDICT has no setting 'top_k'; it has: threshold", "top_k"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t, STRUCT(0.5))", "expected AS and the setting's name", "))"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t, STRUCT(1 AS threshold, 2 AS threshold))", "given twice", "threshold))"),
        ("SELECT * FROM ML.PREDICT(MODEL m, STRUCT(0.5 AS threshold), TABLE t)", "and the rows", ", TABLE"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t, TABLE u)", "expected ) or STRUCT(… AS …)", "TABLE u"),
        ("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t, [0.5])", "or STRUCT(… AS …), found [", "[0.5]"),
        ("SELECT * FROM ML.ROC_CURVE(MODEL m)", "and the rows: TABLE t", ")"),
        ("SELECT * FROM ML.ROC_CURVE(MODEL m, TABLE t, [0.5, 2])", "from 0 to 1", "[0.5"),
        ("SELECT * FROM ML.ROC_CURVE(MODEL m, TABLE t, ['a'])", "thresholds are numbers", "['a'"),
        ("SELECT * FROM ML.ROC_CURVE(MODEL m, TABLE t, GENERATE_ARRAY(0, 1, 0))", "a step above 0", "GENERATE_ARRAY"),
        ("SELECT * FROM ML.FEATURE_INFO(MODEL m, TABLE t)", "expected ), found TABLE", "TABLE t"),
        ("SELECT * FROM ML.PREDICT(MODEL m)", "expected , and the rows: TABLE t or (SELECT …), found )", ")"),
        ("SELECT * FROM ML.PREDICT(MODEL m, t)", "expected TABLE t or (SELECT …), found t", "t)"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t x)", "expected ), found x", "x)"),
        ("SELECT * FROM ML.PREDICT(MODEL m, (t))", "expected a query", "t))"),
        ("SELECT * FROM ML.PREDICT(MODEL m, (SELECT 1", "parenthesis is not closed", "(SELECT 1"),
        ("SELECT * FROM ML.WEIGHTS(MODEL m, TABLE t)", "expected ), found TABLE", "TABLE t)"),
        ("SELECT * FROM ML.PREDIKT(MODEL m, TABLE t)", "choose one of: ML.CONFUSION_MATRIX, ML.EVALUATE", "PREDIKT"),
        ("SELECT * FROM ML.PREDIKT(MODEL m, TABLE t)", "did you mean 'ML.PREDICT'?", "PREDIKT"),
        ("SELECT ML.PREDICT(MODEL m, TABLE t)", "stands where a table does", "ML.PREDICT"),
        ("ML.PREDICT(MODEL m, TABLE t)", "stands where a table does", "ML.PREDICT"),
    ],
)  # fmt: skip
def test_mistakes(text, told, at, dialect):
    with pytest.raises(SQLSyntaxError) as caught:
        parse(text, dialect=dialect)
    said, line, caret = str(caught.value).split("\n")
    assert told in said
    assert line[len(caret) - 1 :].startswith(at)
