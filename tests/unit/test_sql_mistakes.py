"""Mistakes in our statements: each is told with its line and column, what was expected, and a caret under the token."""

from __future__ import annotations

import re

import pytest

from penstock.errors import SQLSyntaxError
from penstock.sql.dialect import Dialect
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.grammar import parse


@pytest.fixture(params=(DUCKDB, POSTGRES))
def dialect(request) -> Dialect:
    return request.param


def refused(text: str, dialect: Dialect = DUCKDB) -> tuple[str, str]:
    """Return what a syntax error tells, and what of the script its caret points at."""
    with pytest.raises(SQLSyntaxError) as caught:
        parse(text, dialect=dialect)
    told, line, caret = str(caught.value).split("\n")
    assert len(caret) <= len(line) + 1
    place, told = told.split(": ", 1)
    number, column = map(int, re.fullmatch(r"line (\d+), column (\d+)", place).groups())
    assert text.split("\n")[number - 1][column - 1 :][:20].rstrip("\r") == line[len(caret) - 1 :][:20]
    return told, line[len(caret) - 1 :]


@pytest.mark.parametrize(
    ("text", "told", "at"),
    [
        ("SELECT 1 TRAIN BY", "expected a model: logistic, svm, linear, softmax, boosting, factor, torch, found the end", ""),
        ("SELECT 1 TRAIN BY 'svm'", "expected a model", "'svm'"),
        ("SELECT 1;\n\tSELECT 2 TRAIN BY svn", "svn is not a model; .* svm, .*did you mean 'svm'", "svn"),
        ("SELECT 1 TRAIN BY svm AS", "expected a model's name, found the end", ""),
        ("SELECT 1 TRAIN BY svm AS WITH (a = 1)", "expected a model's name, found WITH", "WITH (a = 1)"),
        ('SELECT 1 TRAIN BY svm AS ""', "must not be empty", '""'),
        ("SELECT 1 TRAIN BY svm WHERE x", r"expected AS name, WITH \(…\), or the end of the statement", "WHERE x"),
        ("SELECT 1 TRAIN BY svm AS m LIMIT 1", r"expected WITH \(…\), or the end", "LIMIT 1"),
        ("SELECT 1 TRAIN BY svm WITH (a = 1) x", "expected the end of the statement, found x", "x"),
        ("SELECT 1 TRAIN BY svm WITH", "expected an option's name, found the end", ""),
        ("SELECT 1 TRAIN BY svm WITH (1)", "expected an option's name", "1)"),
        ("SELECT 1 TRAIN BY svm WITH (a 1)", "expected = and the value of a, found 1", "1)"),
        ("SELECT 1 TRAIN BY svm WITH (a = )", "expected the value of a", ")"),
        ("SELECT 1 TRAIN BY svm WITH (a = 1 b = 2)", r"expected , or \) after the value of a, found b", "b = 2)"),
        ("SELECT 1 TRAIN BY svm WITH (a = [1, 2)", "expected , or ] in the value of a", ")"),
        ("SELECT 1 TRAIN BY svm WITH (a = [[1]])", "expected the value of a", "[1]])"),
        ("SELECT 1 TRAIN BY svm WITH (a = 1, A = 2)", "a is given twice", "A = 2)"),
        ("SELECT 1 TRAIN BY svm WITH (a = 1e)", "expected the value of a", "1e)"),
        ("TRAIN BY svm", "TRAIN BY ends a statement of its own", "TRAIN BY svm"),
        ("CREATE TABLE x AS SELECT 1 TRAIN BY svm", "a statement of its own", "TRAIN BY svm"),
        ("SELECT * FROM (SELECT 1 TRAIN BY svm) x", "a statement of its own", "TRAIN BY svm) x"),
        ("SELECT (1 TRAIN BY svm", "no partner in its query", "(1 TRAIN BY svm"),
        ("SELECT 1 PREDICT BY m TRAIN BY svm", "training on predictions", "SELECT 1 PREDICT"),
        ("SELECT * FROM (SELECT 1 PREDICT BY m) p TRAIN BY svm", "training on predictions", "(SELECT 1 PREDICT BY m) p"),
        ("SELECT * FROM ML.PREDICT(MODEL m, TABLE t) TRAIN BY svm", "training on predictions", "ML.PREDICT"),
        ("EVALUATE MODEL m ON SELECT * FROM ML.WEIGHTS(MODEL m)", "evaluating on predictions", "ML.WEIGHTS"),
        ("EXPLAIN (ANALYZE, VERBOSE) SELECT 1 TRAIN BY svm", r"takes \(ANALYZE\) and nothing", "(ANALYZE, VERBOSE)"),
        ("EXPLAIN VERBOSE SELECT 1 TRAIN BY svm", "expected ANALYZE or a query", "VERBOSE"),
        ("CREATE MODEL", "expected a model's name, found the end", ""),
        ("CREATE MODEL m AS SELECT 1", r"expected OPTIONS\(model_type='logistic_reg', …\) or USING", "AS SELECT 1"),
        ("CREATE MODEL m OPTIONS(a = 1) AS SELECT 1", "must say the model_type", "OPTIONS(a = 1)"),
        ("CREATE MODEL m OPTIONS(x=1, model_type='kmeans') AS SELECT 1", "kmeans is not a model", "'kmeans')"),
        ("CREATE MODEL m OPTIONS AS SELECT 1", r"expected \( and the options", "AS SELECT 1"),
        ("CREATE MODEL m TRANSFORM(a + 1) USING svm AS SELECT 1", r"needs a name: a \+ 1 AS name", "a + 1"),
        ("CREATE MODEL m TRANSFORM(a, b c) USING svm AS SELECT 1", "needs a name: b c AS name", "b c"),
        ("CREATE MODEL m TRANSFORM() USING svm AS SELECT 1", "expected an expression with its name", ") USING"),
        ("CREATE MODEL m TRANSFORM a USING svm AS SELECT 1", r"expected \( and the expressions", "a USING"),
        ("CREATE MODEL m TRANSFORM(a, * BUT b) USING svm AS SELECT 1", r"expected EXCEPT \(…\), or a comma", "BUT b"),
        ("CREATE MODEL m TRANSFORM(* EXCEPT ()) USING svm AS SELECT 1", "expected a column", "))"),
        (
            "CREATE MODEL m TRANSFORM(ML.STANDARD_SCALER(a) OVER() AS s) USING svm AS SELECT 1",
            "ML.STANDARD_SCALER is not supported in TRANSFORM; name the column alone",
            "ML.STANDARD_SCALER",
        ),
        ("CREATE MODEL m TRANSFORM(ml.bucketize(a, [1, 2]) AS s) USING svm AS SELECT 1", "write the limits: CASE", "ml.bucketize"),
        ("CREATE MODEL m TRANSFORM(ML.WHAT(a) AS s) USING svm AS SELECT 1", "ML.WHAT is not supported.*write it in SQL", "ML.WHAT"),
        ("CREATE MODEL m TRANSFORM(a - avg(a) OVER () AS s) USING svm AS SELECT 1", "a window function sees other rows", "OVER"),
        ("CREATE MODEL m TRANSFORM(a, getenv('HOME') AS s) USING svm AS SELECT 1", "takes no function getenv", "getenv"),
        ("CREATE MODEL m TRANSFORM((SELECT max(b) FROM u) AS s) USING svm AS SELECT 1", "not queries", "(SELECT max"),
        ("CREATE OR REPLACE MODEL IF NOT EXISTS m USING svm AS SELECT 1", "exclude one another", "IF NOT EXISTS"),
        ("CREATE MODEL m USING svm SELECT 1", r"expected WITH \(…\) or AS and a query, found SELECT", "SELECT 1"),
        ("CREATE MODEL m USING svm WITH a = 1 AS SELECT 1", r"expected \( and the options", "a = 1"),
        ("CREATE MODEL m USING svm AS", "expected a query", ""),
        ("CREATE MODEL m USING svm AS t", "expected a query, such as SELECT", "t"),
        ("CREATE MODEL m USING svm AS SELECT 1 TRAIN BY svm", "cannot stand inside", "TRAIN BY svm"),
        ("SHOW MODELS LIKE 'a'", "expected the end", "LIKE 'a'"),
        ("DESCRIBE MODEL 5", "expected a model's name", "5"),
        ("DROP MODEL a, b", "expected the end", ", b"),
        ("DROP MODEL `a", "quote", "`a"),
        ("EVALUATE m", "expected MODEL", "m"),
        ("EVALUATE MODEL m SELECT 1", "expected ON and a query", "SELECT 1"),
        ("EVALUATE MODEL m ON t", "expected a query", "t"),
        ("IMPORT MODEL m", "expected FROM 'file', found the end", ""),
        ("IMPORT MODEL m FROM file", "the file's path in quotes", "file"),
        ("EXPORT MODEL m FROM 'x'", "expected TO 'file'", "FROM 'x'"),
        ("PACK t", "expected INTO", ""),
        ("PACK t INTO 'u'", "expected a table's name", "'u'"),
        ("SELECT 'abc;\nSELECT 1", "the quote that opens here is not closed", "'abc;"),
        ("SELECT 1; -- '\n /* a /* b */", "the comment that opens here is not closed", "/* a /* b */"),
        ("SELECT $x$ a $y$", "the quote that opens here", "$x$ a $y$"),
    ],
)  # fmt: skip
def test_mistakes_are_pointed_at(text, told, at, dialect):
    found, place = refused(text, dialect)
    assert re.search(told, found)
    assert place.startswith(at)


def test_the_caret_stands_under_the_token():
    with pytest.raises(SQLSyntaxError) as caught:
        parse("SELECT 1;\n\tSELECT é TRAIN BY svn AS m", dialect=DUCKDB)
    told, line, caret = str(caught.value).split("\n")
    assert told.startswith("line 2, column 20: svn is not a model")
    assert (line, caret) == ("    \tSELECT é TRAIN BY svn AS m", "    \t" + " " * 18 + "^")


def test_of_a_long_line_only_the_part_around_is_shown():
    text = f"SELECT {'a, ' * 500} b TRAIN BY svn WITH ({'x = 1, ' * 100})"
    with pytest.raises(SQLSyntaxError) as caught:
        parse(text, dialect=DUCKDB)
    _, line, caret = str(caught.value).split("\n")
    assert len(line) <= 104
    assert line[len(caret) - 1 :].startswith("svn")
