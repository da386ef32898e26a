"""Any text at all: nothing but our own errors, the engine's statements put together again, quotes never entered."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import SQLSyntaxError
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.grammar import is_complete, parse
from penstock.sql.statements import Embedded, Plain, Train

quick = settings(max_examples=150, deadline=None)
dialects = st.sampled_from([DUCKDB, POSTGRES])

words = st.sampled_from(
    [
        "SELECT",
        "*",
        "FROM",
        "t",
        "WHERE",
        "WITH",
        "a",
        "AS",
        "(",
        ")",
        ",",
        ";",
        ".",
        "[",
        "]",
        "{",
        "}",
        "=",
        "'x;'",
        '"q;"',
        "`b`",
        "$$d;$$",
        "$1",
        "$x",
        "$t$",
        "'",
        '"',
        "--",
        "/*",
        "*/",
        "\n",
        "\t",
        "é",
        "1",
        "1.5",
        "MB",
        "%",
        "-",
        "TRAIN",
        "BY",
        "PREDICT",
        "svm",
        "logistic",
        "m",
        "MODEL",
        "MODELS",
        "CREATE",
        "OR",
        "REPLACE",
        "TABLE",
        "VIEW",
        "INSERT",
        "INTO",
        "EXPLAIN",
        "ANALYZE",
        "EVALUATE",
        "ON",
        "ML",
        "PREDICT(",
        "ML.PREDICT(MODEL",
        "ML.WEIGHTS(MODEL",
        "OPTIONS(",
        "model_type='svm'",
        "USING",
        "AS",
        "VALUES",
        "DROP",
        "SHOW",
        "DESCRIBE",
        "IMPORT",
        "EXPORT",
        "PACK",
        "UNION",
        "RETURNING",
        "BEGIN",
        "ATOMIC",
        "CASE",
        "END",
        "RECURSIVE",
        "\\",
        "E'",
        "U&'",
        "{#",
        "/*/*",
        "*/*",
        "\ue000",
        "\ufeff",
    ]
)
scripts = st.lists(st.tuples(words, st.sampled_from(["", " ", " ", "\n"])), max_size=25).map(
    lambda parts: "".join(word + gap for word, gap in parts)
)


@quick
@given(st.one_of(st.text(), scripts), dialects)
def test_only_our_own_errors_come_out(script, dialect):
    complete = is_complete(script, dialect=dialect)
    assert isinstance(complete, bool)
    try:
        found = parse(script, dialect=dialect)
    except SQLSyntaxError:
        return
    for each in found:
        if isinstance(each, Plain):
            assert each.text in script
        elif isinstance(each, Train):
            assert each.query.text in script
        elif isinstance(each, Embedded):
            assert len(each.texts) == len(each.calls) + 1


# Pieces of the engine's own statements, each whole in itself.
pieces = st.sampled_from(
    [
        "SELECT train",
        "predict",
        "model",
        "FROM t",
        "'TRAIN BY svm; it''s'",
        '"PREDICT BY ""m"";"',
        "$$ TRAIN BY svm; $$",
        "$b$ $$ ; PREDICT BY m $b$",
        "/* TRAIN BY svm; /* PREDICT BY m */ ; */",
        "/*/* ; */ TRAIN BY svm */",
        "-- PREDICT BY m;\n",
        "(1, 2)",
        "$1,$2",
        "é",
        "+",
        "E'a\\'; TRAIN BY svm'",
        "GROUP BY",
    ]
)
statements = st.lists(pieces, min_size=1, max_size=8).map(" ".join)


def bare(text: str) -> str:
    return "".join(character for character in text if character != ";" and not character.isspace())


@quick
@given(st.lists(statements, min_size=1, max_size=4), dialects)
def test_the_engines_statements_put_together_are_the_script(parts, dialect):
    script = "SELECT 0;\n" + " ;\n".join(f"SELECT 1 {part}" for part in parts)
    found = parse(script, dialect=dialect)
    assert all(isinstance(each, Plain) for each in found)
    assert len(found) == len(parts) + 1
    assert bare("".join(each.text for each in found)) == bare(script)


hidden = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("'\"$/*-;"), max_size=20
)


@quick
@given(
    hidden, hidden, st.sampled_from(["TRAIN BY svm", "PREDICT BY m", "; SHOW MODELS;", "ML.WEIGHTS(MODEL m)"]), dialects
)
def test_nothing_inside_quotes_or_comments_is_ours(before, after, clause, dialect):
    inside = f"{before} {clause} {after}"
    tag = "q" * (1 + max((len(run) for run in inside.split("q") if not run), default=0)) + "z"
    for text in (
        "SELECT '{}'".format(inside.replace("'", "''")),
        'SELECT "{}" FROM t'.format(inside.replace('"', '""')),
        "SELECT 1 /* {} */ + 1".format(inside.replace("*", "").replace("/", "")),
        "SELECT 1 -- {}\n + 1".format(" ".join(inside.split()).replace("\x0b", "")),
        f"SELECT ${tag}${inside.replace('$', '')}${tag}$",
    ):
        assert parse(text, dialect=dialect) == [Plain(text)]
        (train,) = parse(f"{text} TRAIN BY svm AS m;", dialect=dialect)
        assert train.query.text == text


@quick
@given(hidden.filter(str.strip), dialects)
def test_any_quoted_name_and_string_comes_through(name, dialect):
    quoted = '"{}"'.format(name.replace('"', '""'))
    string = "'{}'".format(name.replace("'", "''"))
    (train,) = parse(f"TABLE t TRAIN BY svm AS {quoted} WITH (a = {string}, b = {quoted})", dialect=dialect)
    assert (train.name, train.options["a"].value, train.options["b"].value) == (name, name, name)


@pytest.mark.parametrize("opening", ["(", "[", "SELECT (", "TABLE t TRAIN BY svm WITH (a = ["])
def test_deep_nesting_is_no_trouble(opening):
    with contextlib.suppress(SQLSyntaxError):
        parse(opening * 5000, dialect=DUCKDB)
