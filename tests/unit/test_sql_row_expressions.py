"""Expressions of TRANSFORM: those over a row's values pass, and all that could do or see more is refused, with its place."""

from __future__ import annotations

import pytest

from penstock.errors import SQLSyntaxError
from penstock.sql.dialect import Dialect
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.grammar import parse
from penstock.sql.row_expressions import FUNCTIONS, checked_expression
from penstock.sql.statements import Train


@pytest.fixture(params=(DUCKDB, POSTGRES), ids=lambda each: each.title)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@pytest.mark.parametrize(
    "text",
    [
        "a",
        '"Strange ""name"""',
        "a + b * -2.5e-3 / (c - 1) % 7",
        "a*-b",
        "ln(greatest(price, 1))",
        "CASE WHEN a < 10 AND b IS NOT NULL THEN 'low' ELSE 'high' END",
        "a || '_' || lower(b)",
        "a::double precision",
        "CAST(a AS numeric(6, 2)) + a::int",
        "extract(month FROM day)",
        "day - DATE '2024-01-01'",
        "a IN (1, 2) OR NOT (b BETWEEN 1 AND 2)",
        "coalesce(nullif(a, 0), 1)",
        "items[1]",
        "a <> b",
        "name LIKE 'a%'",
        "'it''s; -- SELECT'",
        "moment AT TIME ZONE 'UTC'",
        "trim(both ' ' from word)",
    ],
)
def test_expressions_over_a_row_pass(text: str, dialect: Dialect) -> None:
    assert checked_expression(text, dialect) == text
    (train,) = parse(f"CREATE MODEL m TRANSFORM ({text} AS x) USING svm AS SELECT 1", dialect=dialect)
    assert isinstance(train, Train)
    assert train.transform[0].text == text


def test_comments_are_left_out(dialect: Dialect) -> None:
    text = "CREATE MODEL m TRANSFORM (a /* b */ + -- c\n 1 AS x -- d\n, b) USING svm AS SELECT 1"
    (train,) = parse(text, dialect=dialect)
    assert isinstance(train, Train)
    assert [" ".join(item.text.split()) for item in train.transform] == ["a + 1", "b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pg_read_file('/etc/passwd')", "no function pg_read_file"),
        ("getenv('HOME')", "no function getenv"),
        ('"lower"(a)', "no function"),
        ("avg(a)", "no function avg"),
        ("unnest(a)", "no function unnest"),
        ("public.lower(a)", "names columns without their table"),
        ("a.lower()", "names columns without their table"),
        ("q.secret", "names columns without their table"),
        ("sum(a) OVER (ORDER BY b)", "window function"),
        ("(SELECT max(a) FROM t)", "not queries"),
        ("(TABLE t)", "not queries"),
        ("(FROM t)", "not queries"),
        ("(VALUES (1))", "not queries"),
        ("(WITH a AS (SELECT 1) TABLE a)", "not queries"),
        ("a::public_type", "the engine's own types alone"),
        ("CAST(a AS mine)", "the engine's own types alone"),
        ("mine 'text'", "no constant of type mine"),
        ("a <-> b", "SQL's own operators"),
        ("a OPERATOR(public.+) b", "no function OPERATOR"),
        ("a @@ b", "SQL's own operators"),
        ("$1", "SQL's own operators"),
        ("E'a\\'' || b", "no backslash"),
        ("a; DROP TABLE t", "one expression"),
        ("a) FROM t --", "."),
        ("a -- b", "."),
        ("a /* b */ + 1", "holds a comment"),
        ("a)", "no partner"),
        ("a, b) AS x FROM (SELECT 1", "."),
        ("", "."),
    ],
)
def test_all_else_is_refused_in_a_saved_model(text: str, told: str, dialect: Dialect) -> None:
    with pytest.raises(SQLSyntaxError, match=told):
        checked_expression(text, dialect)


def test_an_expression_is_one_column() -> None:
    with pytest.raises(SQLSyntaxError):
        checked_expression("a, b", DUCKDB)


def test_functions_are_written_in_lower_case() -> None:
    assert all(name == name.lower() for name in FUNCTIONS)
