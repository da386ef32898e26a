"""The three nodes in the server's own plans: what EXPLAIN shows, what is read in blocks, what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest
from psycopg import errors

Session = psycopg.Connection[Any]


def plan(session: Session, query: str) -> str:
    return "\n".join(row[0] for row in session.execute(f"EXPLAIN {query}".encode()).fetchall())


def nodes(text: str) -> list[str]:
    return [re.sub(r" +\(cost.*", "", line).strip(" ->") for line in text.split("\n") if "(cost" in line]


LEARN = """penstock.sgd(features_v, label, '{"model": "svm", "epochs": 3, "classes": [0, 1]}')"""


def test_explain_shows_three_nodes_and_what_they_do(clustered: Session) -> None:
    text = plan(clustered, f"SELECT {LEARN} FROM points")
    assert nodes(text) == ["Custom Scan (SGD)", "Custom Scan (TupleShuffle)", "Custom Scan (BlockShuffle) on points"]
    for told in ("Model: svm", "Epochs: 3", "Batch Size: 1", "Buffer: 8192 kB", "Block Size: 64 kB", "Order: random"):
        assert told in text
    pages = clustered.execute("SELECT pg_relation_size('points') / 8192").fetchone()
    assert pages is not None
    assert f"Blocks: {-(-pages[0] // 8)}" in text


def test_analyze_tells_rows_blocks_and_waits(clustered: Session) -> None:
    options = json.dumps({"epochs": 3, "validation": 0, "block_size": "64kB", "buffer_size": "256kB"})
    text = "\n".join(
        row[0] for row in clustered.execute("SELECT penstock.explain('points', 'logistic', %s, true)", (options,))
    )
    blocks = int(re.findall(r"Blocks: (\d+)", text)[0])
    assert f"Blocks Read: {4 * blocks}" in text  # those of the survey, too
    assert "Rows per Epoch: 20000" in text
    assert re.search(r"BlockShuffle.*rows=20000.* loops=4", text)  # epochs are rescans
    for told in (
        "Waiting for SGD: ",
        "Waiting for Rows: ",
        "Learning: ",
        "Windows: ",
        "Progressive Accuracy: 0.",
        "Progressive Loss: 0.",
        "Training Accuracy: 0.",
    ):
        assert told in text


def test_the_first_statement_of_a_session_finds_the_nodes(clustered: Session, address: str) -> None:
    with psycopg.connect(address) as fresh:
        rows = fresh.execute(f"SELECT (s).epoch, (s).coef FROM (SELECT {LEARN} AS s FROM points) AS q").fetchall()
    assert [row[0] for row in rows] == [1, 2, 3]
    assert [row[1] is None for row in rows] == [True, True, False]


def test_a_stored_query_finds_the_nodes_in_a_fresh_session(clustered: Session, address: str) -> None:
    clustered.execute(
        f"CREATE VIEW runs AS SELECT (s).epoch FROM (SELECT {LEARN} AS s FROM points OFFSET 0) AS q".encode()
    )
    with psycopg.connect(address) as fresh:
        assert fresh.execute("SELECT * FROM runs").fetchall() == [(1,), (2,), (3,)]


def test_options_may_be_a_parameter(clustered: Session) -> None:
    clustered.execute("PREPARE p(penstock.options) AS SELECT (penstock.sgd(features_v, label, $1)).epoch FROM points")
    for _ in range(8):  # after five the server weighs a plan for all values
        assert clustered.execute("""EXECUTE p('{"epochs": 1, "classes": [0, 1]}')""").fetchall() == [(1,)]
    clustered.execute("SET plan_cache_mode = force_generic_plan")
    with pytest.raises(errors.FeatureNotSupported, match="a plan for each value"):
        clustered.execute("""EXECUTE p('{"epochs": 1, "classes": [0, 1]}')""")


def test_expressions_over_and_in_the_aggregate(clustered: Session) -> None:
    learn = LEARN.replace("features_v", "ARRAY[features_v[1], features_v[2] * 2]::real[]")
    rows = clustered.execute(
        f"SELECT ({learn}).epoch + 10, array_length(({learn}).coef, 1) FROM points WHERE id % 2 = 0".encode()
    ).fetchall()
    assert rows == [(11, None), (12, None), (13, 2)]


def test_filters_are_evaluated_where_blocks_are_read(clustered: Session) -> None:
    query = f"SELECT (s).rows FROM (SELECT {LEARN} AS s FROM points WHERE id BETWEEN 9000 AND 10999) AS q"
    assert "Filter: ((id >= 9000) AND (id <= 10999))" in plan(clustered, query)
    assert clustered.execute(query.encode()).fetchall() == [(2000,)] * 3


def test_rows_removed_by_a_filter_are_counted_once(clustered: Session) -> None:
    query = f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT {LEARN} FROM points WHERE id % 4 = 0"
    found = clustered.execute(query.encode()).fetchone()
    assert found is not None
    text = json.dumps(found[0])
    assert text.count("Rows Removed by Filter") == 1
    assert re.search(r'"Rows Removed by Filter": 15000\b', text)


def test_queries_that_are_no_table_are_shuffled_in_the_buffer(clustered: Session) -> None:
    clustered.execute("CREATE TABLE labels AS SELECT id, label FROM points")
    query = "SELECT p.features_v, l.label FROM points p JOIN labels l USING (id)"
    learn = f"SELECT {LEARN} FROM ({query}) AS q"
    text = plan(clustered, learn)
    assert nodes(text)[:2] == ["Custom Scan (SGD)", "Custom Scan (TupleShuffle)"]
    assert "BlockShuffle" not in text
    rows = clustered.execute(
        "SELECT training_score, rows FROM penstock.train(%s, 'svm', 'joined', '{\"validation\": 0}')", (query,)
    ).fetchall()
    assert {row[1] for row in rows} == {20_000}
    assert rows[-1][0] > 0.85


def test_a_correlated_subquery_learns_anew_for_each_row(clustered: Session) -> None:
    query = f"SELECT max((s).rows) FROM (SELECT {LEARN} AS s FROM points WHERE id >= i * 1000) AS q"
    found = clustered.execute(f"SELECT ({query}) FROM generate_series(1, 3) AS i".encode())
    assert found.fetchall() == [(19_000,), (18_000,), (17_000,)]


@pytest.mark.parametrize(
    "call", ["sgd(features_v, label, '{\"classes\": [0, 1]}')", "least_squares(features_v, label, '{}')"]
)
def test_a_solver_of_full_passes_learns_anew_as_well(clustered: Session, call: str) -> None:
    learn = f"(SELECT penstock.{call} AS s FROM points WHERE id >= %s OFFSET 0) AS q"
    score = f"SELECT max((s).training_score) FROM {learn}"
    found = clustered.execute(f"SELECT ({score % 'i * 4000'}) FROM generate_series(1, 2) AS i".encode()).fetchall()
    alone = [clustered.execute((score % first).encode()).fetchone() for first in (4_000, 8_000)]
    assert found == [(pytest.approx(each and each[0]),) for each in alone]
    assert found[0] != found[1]


def test_epochs_are_joined_only_where_the_server_does_not_take_them_for_one_row(clustered: Session) -> None:
    learn = f"SELECT {LEARN} AS s FROM points"
    with pytest.raises(errors.FeatureNotSupported, match="cannot be joined"):
        clustered.execute(f"SELECT * FROM generate_series(1, 2) AS i, ({learn}) AS q".encode())
    query = f"WITH q AS MATERIALIZED ({learn}) SELECT count(*) FROM generate_series(1, 2) AS i, q"
    assert clustered.execute(query.encode()).fetchone() == (6,)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        (f"SELECT {LEARN}, count(*) FROM points", "only aggregate"),
        (f"SELECT {LEARN} FROM points GROUP BY label", "no GROUP BY"),
        (f"SELECT {LEARN} FILTER (WHERE id > 3) FROM points", "no FILTER"),
        (f"SELECT {LEARN} OVER () FROM points", "Leave out OVER"),
        ("SELECT penstock.sgd(features_v, label, NULL) FROM points", "must be a constant"),
        ("""SELECT penstock.sgd(features_v, label, '{"epocs": 3}') FROM points""", 'Did you mean "epochs"?'),
        ("""SELECT penstock.sgd(features_v, label, '{"epochs": 0}') FROM points""", "from 1 to 1000000; it is 0"),
        ("""SELECT penstock.sgd(features_v, label, '{"model": "tree"}') FROM points""", "one of: logistic"),
        ("""SELECT penstock.sgd(features_v, label, '{"block_size": "10 parsecs"}') FROM points""", "10MB"),
        ("""SELECT penstock.sgd(features_v, label, '[]') FROM points""", "JSON object"),
        ("""SELECT penstock.sgd(features_v, label, '{}') FROM points""", "the label 0 is not a target"),
        ("""SELECT penstock.sgd(features_v, label, '{"classes": [1, 2]}') FROM points""", "not one of the classes"),
        ("""SELECT penstock.sgd(features_v, label, '{"model": "softmax"}') FROM points""", "outputs"),
        ("""SELECT penstock.sgd(features_v, label, '{"solver": "exact"}') FROM points""", "for linear models"),
        (
            """SELECT penstock.sgd(features_v, label, '{"model": "linear", "solver": "exact", "l1": 1}') FROM points""",
            "l1",
        ),
        ("""SELECT penstock.sgd(features_v, label, '{"l2": "much"}') FROM points""", '"auto", zero or'),
    ],
)
def test_what_cannot_be_learnt_is_refused(clustered: Session, query: str, told: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        clustered.execute(query.encode())
    assert told in f"{caught.value} {caught.value.diag.message_hint}"
    assert clustered.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("source", "model", "options", "error", "told"),
    [
        ("points", "tree", {}, errors.InvalidParameterValue, "logistic, svm, linear, softmax"),
        ("nowhere", "svm", {}, errors.UndefinedTable, "nowhere is neither a table"),
        ("My Points", "svm", {}, errors.UndefinedTable, 'Write names as in SQL: "My Table"'),
        (None, "svm", {}, errors.InvalidParameterValue, "say what to learn from"),
        ("points", "svm", {"label": "clicked"}, errors.UndefinedColumn, "clicked"),
        ("points", "svm", {"features": ["nothing"]}, errors.UndefinedColumn, "nothing"),
        ("points", "svm", {"features": ["label"]}, errors.InvalidParameterValue, "leave it out"),
        ("points", "svm", {"features": {}}, errors.InvalidParameterValue, 'such as ["age", "income"]; it is {}'),
        ("points", "svm", {"exclude": ["idd"]}, errors.UndefinedColumn, '"idd" to leave out'),
        ("points", "svm", {"exclude": "id", "features": "features_v"}, errors.InvalidParameterValue, "two ways"),
        ("points", "svm", {"label": "id"}, errors.DataException, "classes"),
        ("points", "svm", {"label": "id", "epoch": 3}, errors.InvalidParameterValue, 'Did you mean "epochs"?'),
        ("points", "svm", {"batch_size": 0}, errors.InvalidParameterValue, "it is 0"),
        ("points", "svm", {"epochs": "3"}, errors.InvalidParameterValue, 'it is "3"'),
        ("points", "svm", {"epochs": 1, "max_epoch_num": 2}, errors.InvalidParameterValue, "are one option"),
        ("points", "svm", {"classes": "0,1"}, errors.InvalidParameterValue, "must be an array"),
        ("points", "svm", {"classes": ["a", "b"]}, errors.InvalidTextRepresentation, '"a"'),
        ("points", "svm", 3, errors.InvalidParameterValue, "a JSON object"),
        ("SELECT 1 AS label; DROP TABLE points", "svm", {}, errors.SyntaxError, ""),
        ("SELECT * FROM points WHERE label = 0", "svm", {}, errors.DataException, "a single class"),
        ("SELECT *, 'x'::bytea AS name FROM points", "svm", {"features": "name"}, errors.DatatypeMismatch, "bytea"),
        ("SELECT 'x' AS name, label FROM points", "svm", {}, errors.DataException, "name: one value"),
    ],
)
def test_train_refuses_with_an_error_of_its_kind(
    clustered: Session, source: str | None, model: str, options: Any, error: type[psycopg.Error], told: str
) -> None:
    with pytest.raises(error) as caught:
        clustered.execute("SELECT penstock.train(%s, %s, 'm', %s)", (source, model, json.dumps(options)))
    assert told in f"{caught.value} {caught.value.diag.message_detail} {caught.value.diag.message_hint}"
    assert clustered.execute("SELECT count(*) FROM points").fetchone() == (20_000,)


@pytest.mark.parametrize("source", ["/* all */ SELECT * FROM points", "-- all\nTABLE points;", " points ; "])
def test_comments_and_semicolons_around_a_source_do_no_harm(clustered: Session, source: str) -> None:
    found = clustered.execute(
        "SELECT rows FROM penstock.train(%s, 'svm', NULL, '{\"epochs\": 1, \"validation\": 0}')", (source,)
    ).fetchall()
    assert found == [(20_000,)]


def test_what_is_left_out_is_not_learnt_from(clustered: Session) -> None:
    clustered.execute("CREATE TABLE t AS SELECT features_v, id AS a, id / 2 AS b, label FROM points")
    clustered.execute("SELECT penstock.train('t', 'svm', 'm', '{\"epochs\": 1, \"exclude\": \"features_v, b\"}')")
    assert clustered.execute("SELECT header->'features' FROM penstock.models").fetchone() == (["a"],)


def test_a_primary_key_and_steps_too_large_are_warned_of(clustered: Session) -> None:
    told: list[str] = []
    clustered.add_notice_handler(lambda notice: told.append(f"{notice.severity}: {notice.message_primary}"))
    clustered.execute("CREATE TABLE t AS SELECT id, features_v[1] AS a, label FROM points")
    clustered.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    options = json.dumps({"epochs": 1, "learning_rate": 0.1, "standardize": False})
    clustered.execute("SELECT penstock.train('t', 'logistic', 'm', %s)", (options,))
    assert [line.split(",")[0] for line in told] == [
        'WARNING: "id" is the table\'s primary key',
        next(line for line in told if line.startswith("WARNING: the model is useless: ")).split(",")[0],
        next(line.split(",")[0] for line in told if line.startswith("WARNING: the progressive loss is ")),
        next(line for line in told if line.startswith('NOTICE: model "m" saved in penstock.models; its accuracy on ')),
    ]


def test_reading_alone_can_be_timed(clustered: Session) -> None:
    learn = LEARN.replace("{", '{"read_only": true, ')
    rows = clustered.execute(
        f"SELECT (s).rows, (s).progressive_loss, (s).coef FROM (SELECT {learn} AS s FROM points) AS q".encode()
    )
    assert rows.fetchall() == [(20_000, None, None)] * 3
    with pytest.raises(errors.InvalidParameterValue, match="no model to keep"):
        clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"read_only\": true}')")
