"""Scripts into statements: ours are read to the letter, the engine's pass untouched, mistakes are pointed at."""

from __future__ import annotations

import builtins
import sys

import pytest

from penstock.errors import MissingExtraError, SQLSyntaxError
from penstock.messages import Location
from penstock.sql import tokens
from penstock.sql.dialect import Dialect
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.grammar import is_complete, keywords, parse
from penstock.sql.statements import (
    DescribeModel,
    DropModel,
    Evaluate,
    Explain,
    ExportModel,
    ImportModel,
    Pack,
    Plain,
    Query,
    ShowModel,
    ShowModels,
    ShowTraining,
    TableSelection,
    Train,
)

DIALECTS = (DUCKDB, POSTGRES)


@pytest.fixture(params=DIALECTS)
def dialect(request) -> Dialect:
    return request.param


def one(text: str, dialect: Dialect = DUCKDB):
    (found,) = parse(text, dialect=dialect)
    return found


def values(options) -> dict:
    return {name: option.value for name, option in options.items()}


def test_the_papers_form(dialect):
    text = "SELECT * FROM higgs TRAIN BY svm WITH learning_rate = 0.1, max_epoch_num = 20, block_size = 10MB"
    found = one(text, dialect)
    assert found.query == Query("SELECT * FROM higgs", TableSelection("higgs"))
    assert (found.model, found.name, found.exists, found.warehouse) == ("svm", None, "error", False)
    assert values(found.options) == {"learning_rate": 0.1, "max_epoch_num": 20, "block_size": "10MB"}
    assert text[found.options["block_size"].at :] == "block_size = 10MB"
    assert found.options["block_size"].place == Location(line=1, character=80)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t",
        "select a, b from s.t where x > 0 group by 1 order by 2 limit 3",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "TABLE t",
        "(SELECT * FROM t)",
        "FROM t",
        "VALUES (1, 2)",
        "SELECT 'TRAIN BY svm', \"TRAIN BY\", $$ TRAIN BY x $$ /* TRAIN BY y */ -- TRAIN BY z\nFROM t",
        "SELECT 'é€𝄞', \"ü\" -- ключ\n /* 漢字 */ , 1 FROM tåble",
        "SELECT\n\t*\r\nFROM   t /* kept */ WHERE a='it''s;'",
        "SELECT train, by FROM train",
        "SELECT $1, $2 FROM t WHERE a = $x",
        "SELECT E'a\\'; TRAIN BY svm' FROM t",
    ],
)
@pytest.mark.parametrize("tail", [" TRAIN BY svm", "\n  train\tBy /* c */ SVM AS m;", " -- end\n TRAIN BY svm -- done"])
def test_the_query_is_kept_word_for_word(query, tail, dialect):
    found = one(f"  {query}{tail}", dialect)
    assert isinstance(found, Train)
    assert found.query.text == query


@pytest.mark.parametrize(
    ("word", "model"),
    [
        ("Logistic", "logistic"), ("lr", "logistic"), ("LOGISTIC_REG", "logistic"), ("logistic_regression", "logistic"),
        ("svm", "svm"), ("svc", "svm"), ("linear", "linear"), ("linear_reg", "linear"), ("ols", "linear"),
        ("softmax", "softmax"), ("multinomial", "softmax"),
    ],
)  # fmt: skip
def test_models_have_other_names(word, model):
    assert one(f"TABLE t TRAIN BY {word}").model == model


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Churn", "churn"), ('"Churn"', "Churn"), ('"a ""b"";"', 'a "b";'), ("`Churn.v1`", "Churn.v1"),
        ("shop.Churn", "shop.churn"), ('Shop."Churn"', "shop.Churn"), ("Größe", "größe"), ("models", "models"),
        ('"$1,$2/*/*"', "$1,$2/*/*"),
    ],
)  # fmt: skip
def test_names_fold_to_lower_case_unless_quoted(written, name, dialect):
    assert one(f"TABLE t TRAIN BY svm AS {written}", dialect).name == name
    assert one(f"DROP MODEL {written}", dialect) == DropModel(name)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1), ("-3", -3), ("+3", 3), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("1e-3", 0.001), ("-1.5E+2", -150.0),
        ("10MB", "10MB"), ("1.5GB", "1.5GB"), ("512 kB", "512kB"), ("10 %", "10%"), ("10%", "10%"), ("64KiB", "64KiB"),
        ("corgipile", "corgipile"), ("sliding-window", "sliding-window"), ("'it''s'", "it's"), ("E'a\\'b'", "a'b"),
        ('"A b"', "A b"), ("true", True), ("FALSE", False), ("Null", None), ("off", "off"), ("$$a b$$", "a b"),
        ("['a', b, 1]", ["a", "b", 1]), ("('a','b')", ["a", "b"]), ("[]", []), ("'$HOME/a'", "$HOME/a"),
        ("Clicked", "Clicked"), ("5M", "5M"),
    ],
)  # fmt: skip
def test_values_of_options(written, value, dialect):
    found = one(f"TABLE t TRAIN BY svm WITH (a = {written}, b = 2)", dialect)
    assert values(found.options) == {"a": value, "b": 2}
    assert type(found.options["a"].value) is type(value)


def test_explain_of_a_training(dialect):
    train = one("SELECT 1 TRAIN BY svm AS m", dialect)
    assert one("EXPLAIN SELECT 1 TRAIN BY svm AS m", dialect) == Explain(train)
    for words in ("ANALYZE", "analyse", "(ANALYZE)"):
        assert one(f"explain {words} SELECT 1 TRAIN BY svm AS m", dialect) == Explain(train, analyze=True)
    found = one("EXPLAIN ANALYZE CREATE MODEL m USING svm AS SELECT 1", dialect)
    assert found == Explain(Train(Query("SELECT 1"), "svm", "m"), analyze=True)
    assert one("EXPLAIN (SELECT 1) TRAIN BY svm", dialect).train.query.text == "(SELECT 1)"


def test_create_model_as_the_warehouses_write_it(dialect):
    text = "CREATE OR REPLACE MODEL `shop.churn` OPTIONS(Model_Type='LOGISTIC_REG', input_label_cols=['y'])\nAS SELECT * FROM t"
    found = one(text, dialect)
    assert (found.name, found.model, found.exists, found.warehouse) == ("shop.churn", "logistic", "replace", True)
    assert values(found.options) == {"input_label_cols": ["y"]}
    assert found.query == Query("SELECT * FROM t", TableSelection("t"))
    assert one("CREATE MODEL IF NOT EXISTS m OPTIONS(model_type='svm') AS (SELECT 1)").exists == "skip"


def test_create_model_in_our_words(dialect):
    found = one("CREATE MODEL m USING softmax WITH (epochs = 3) AS WITH a AS (SELECT 1) SELECT * FROM a", dialect)
    assert (found.name, found.model, found.exists, found.warehouse) == ("m", "softmax", "error", False)
    assert values(found.options) == {"epochs": 3}
    assert found.query.text == "WITH a AS (SELECT 1) SELECT * FROM a"


def test_the_small_statements(dialect):
    script = """
        SHOW MODELS; DESC MODEL "X"; describe model m; DROP MODEL m; DROP MODEL IF EXISTS m;
        IMPORT MODEL m FROM 'a/b.penstock'; IMPORT OR REPLACE MODEL m FROM 'it''s'; EXPORT MODEL m TO 'c';
        EVALUATE MODEL m ON SELECT * FROM t; EVALUATE MODEL m ON TABLE t WITH (label = y); EVALUATE MODEL m;
        EVALUATE MODEL m ON WITH a AS (SELECT 1) SELECT * FROM a WITH (label = y);
        PACK t INTO u; PACK TABLE s."T" INTO x.y.z WITH (to = vector)
    """
    found = parse(script, dialect=dialect)
    assert found[:8] == [
        ShowModels(),
        DescribeModel("X"),
        DescribeModel("m"),
        DropModel("m"),
        DropModel("m", "skip"),
        ImportModel("m", "a/b.penstock"),
        ImportModel("m", "it's", "replace"),
        ExportModel("m", "c"),
    ]
    table = Query("TABLE t", TableSelection("t"))
    assert found[8] == Evaluate("m", Query("SELECT * FROM t", TableSelection("t")))
    assert (found[9].query, values(found[9].options)) == (table, {"label": "y"})
    assert found[10] == Evaluate("m", None)
    assert found[11].query == Query("WITH a AS (SELECT 1) SELECT * FROM a")
    assert found[12] == Pack("t", "u")
    assert (found[13].table, found[13].into, values(found[13].options)) == ('s."T"', "x.y.z", {"to": "vector"})


@pytest.mark.parametrize(
    ("query", "selected"),
    [
        ("SELECT * FROM t", TableSelection("t")),
        ('select /* c */ a , "B c"\nfrom -- d\n s . "T"', TableSelection('s."T"', ("a", '"B c"'))),
        ("SELECT a FROM db.s.t", TableSelection("db.s.t", ("a",))),
        ("TABLE s.t", TableSelection("s.t")),
        ("SELECT a.b FROM t", None),
        ("SELECT * FROM a.b.c.d", None),
        ("SELECT * FROM t x", None),
        ("SELECT * FROM t AS x", None),
        ("SELECT * FROM t, u", None),
        ("SELECT * FROM t WHERE a", None),
        ("SELECT * FROM t LIMIT 1", None),
        ("SELECT DISTINCT a FROM t", None),
        ("SELECT a b FROM t", None),
        ("SELECT a, a FROM t", None),
        ('SELECT a, "A" FROM t', None),
        ("SELECT null FROM t", None),
        ("SELECT current_date FROM t", None),
        ("SELECT 1 FROM t", None),
        ("SELECT a + b FROM t", None),
        ("SELECT *, a FROM t", None),
        ("SELECT * FROM f()", None),
        ("SELECT * FROM 'f.parquet'", None),
        ("SELECT * FROM ONLY t", None),
        ("SELECT * FROM (SELECT 1) t", None),
        ("(SELECT * FROM t)", None),
        ("SELECT 1", None),
        ("VALUES (1)", None),
    ],
)
def test_a_query_that_only_names_a_table(query, selected, dialect):
    assert one(f"{query} TRAIN BY svm", dialect).query == Query(query, selected)


def test_from_first_names_a_table_in_duckdb_alone():
    assert one("FROM s.t TRAIN BY svm", DUCKDB).query.selected == TableSelection("s.t")
    assert one("FROM s.t TRAIN BY svm", POSTGRES).query.selected is None


ENGINES_OWN = [
    "SELECT train FROM t",
    "SELECT 1 AS predict",
    "SELECT train.by FROM train",
    "SELECT model, ml.predict(model), ml.predict(model, 1), ml.evaluate(x) FROM models",
    'SELECT "TRAIN" BY FROM t',
    "SELECT 'TRAIN BY svm; PREDICT BY m', \"PREDICT BY m\"",
    "SELECT $$TRAIN BY svm;$$, $t$ ; PREDICT BY m $t$",
    "SELECT 1 -- TRAIN BY svm",
    "SELECT 1 /* TRAIN BY svm; /* PREDICT BY */ ML.PREDICT(MODEL m, TABLE t) */",
    "SELECT 1 /*/* PREDICT BY m */ TRAIN BY svm; */",
    "SELECT count(*) FROM t GROUP BY train ORDER BY predict",
    "SELECT predict OVER (PARTITION BY train) FROM t",
    "INSERT INTO train BY NAME SELECT * FROM t",
    "INSERT INTO s.predict BY POSITION SELECT 1",
    "INSERT INTO t VALUES ($1,$2)",
    "PREPARE p AS SELECT $1,$2",
    "CREATE TABLE model (a int)",
    "CREATE TABLE models AS SELECT 1",
    "CREATE VIEW evaluate AS SELECT 1",
    "CREATE OR REPLACE TABLE model AS SELECT 1",
    "SHOW TABLES",
    'SHOW "models"',
    "SHOW ALL",
    "DESCRIBE t",
    "DESCRIBE model",
    "DESCRIBE model.t",
    "DESC SELECT 1",
    "DROP TABLE models",
    "DROP TABLE IF EXISTS model",
    "ALTER TABLE train RENAME TO predict",
    "IMPORT DATABASE 'x'",
    "IMPORT FOREIGN SCHEMA s FROM SERVER x INTO y",
    "EXPORT DATABASE 'x'",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT train FROM t",
    "EXPLAIN (FORMAT json) SELECT 1",
    "COPY train FROM 'a.csv'",
    "UPDATE train SET predict = 1",
    "DELETE FROM predict",
    "tra\u0131n",  # in upper case it is TRAIN
    "SELECT 1 FROM t tra\u0131n BY x",
    "SELECT {#1} FROM t",
    "SELECT {{ a }} {% b %}",
    "SELECT 1 & 2 | 3 # 4 <@ 5 ?| 6 @> 7 ~ 8",
    "SET x = 'a;b'",
    "BEGIN",
    "SELECT (1; 2)",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN 1 END; SELECT 2; END",
    "SELECT 1)",
    "SELECT 'it''s' , E'it\\'s;' , U&'d\\0061;' , x'1G' , b'012'",
]


@pytest.mark.parametrize("text", ENGINES_OWN)
def test_what_is_the_engines_stays_word_for_word(text, dialect):
    assert parse(text, dialect=dialect) == [Plain(text)]
    assert parse(f" \n{text}\n ; SHOW MODELS;; -- end", dialect=dialect) == [Plain(text), ShowModels()]


def test_backticks_quote_names_in_duckdb():
    text = "SELECT `a; TRAIN BY svm` FROM t"
    assert parse(text, dialect=DUCKDB) == [Plain(text)]


def test_statements_are_cut_at_semicolons_and_keep_their_comments(dialect):
    script = "\ufeff-- first\nSELECT 1; ;; /* two */ SELECT ';' -- 2\n;\n-- nothing more\n"
    assert parse(script, dialect=dialect) == [Plain("-- first\nSELECT 1"), Plain("/* two */ SELECT ';' -- 2")]
    assert parse("", dialect=dialect) == parse(" ;; -- x", dialect=dialect) == []


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True), ("  -- note", True), ("SELECT 1", False), ("SELECT 1;", True), ("SELECT 1; -- done", True),
        ("SELECT 1; SELECT 2", False), ("SELECT (1;", False), ("SELECT (1);", True), ("SELECT ';", False),
        ("SELECT 1; /* ;", False), ('SELECT "a;', False), ("SELECT $$ ;", False), ("SELECT $$ ; $$;", True),
        ("CREATE FUNCTION f() BEGIN ATOMIC SELECT 1;", False), ("SELECT $1,$2;", True), ("SELECT 1); SELECT 2;", True),
    ],
)  # fmt: skip
def test_whether_a_prompt_can_run_what_was_typed(text, complete, dialect):
    assert is_complete(text, dialect=dialect) is complete


def test_keywords_are_words_that_statements_begin_or_go_on_with():
    assert {"TRAIN BY", "PREDICT BY", "SHOW MODELS", "svm"} <= set(keywords())


def test_without_sqlglot_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def fake(name, *args, **kwargs):
        if name.startswith("sqlglot"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("sqlglot")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", fake)
    tokens._tokenizer.cache_clear()
    try:
        with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[sql\]'"):
            parse("SELECT 1", dialect=DUCKDB)
    finally:
        tokens._tokenizer.cache_clear()


def test_groups_and_values_to_try(dialect):
    found = one(
        'SELECT * FROM t TRAIN BY logistic AS m WITH (label = y, l2 = (1, 0.1)) GROUP BY country, "De vice"', dialect
    )
    assert (found.by, values(found.options)) == (("country", "De vice"), {"label": "y", "l2": [1, 0.1]})
    assert one("SELECT a FROM t GROUP BY a TRAIN BY svm GROUP BY b", dialect).by == ("b",)
    text = (
        "CREATE MODEL m OPTIONS (model_type = 'svm', l2_reg = HPARAM_CANDIDATES([1, 2])) GROUP BY a AS SELECT * FROM t"
    )
    assert (one(text, dialect).by, values(one(text, dialect).options)) == (("a",), {"l2_reg": [1, 2]})
    assert one("DESCRIBE MODEL m FOR ('FR', 3, null)", dialect) == DescribeModel("m", ("FR", 3, None))
    assert one("DESCRIBE MODEL m FOR 'FR'", dialect) == DescribeModel("m", ("FR",))
    assert one("SHOW MODEL m", dialect) == ShowModel("m")
    assert one("SHOW TRAINING m", dialect) == ShowTraining("m")
    for wrong in (
        "TRAIN BY svm GROUP country",
        "TRAIN BY svm GROUP BY",
        "TRAIN BY svm GROUP BY a,",
        "TRAIN BY svm GROUP BY a WITH (l2 = 1)",
    ):
        with pytest.raises(SQLSyntaxError):
            one(f"SELECT * FROM t {wrong}", dialect)
