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
    for told in ("Model: svm", "Epochs: 3", "Batch Size: 1", "Buffer: 8192 kB", "Block Size: 256 kB", "Order: random"):
        assert told in text
    pages = clustered.execute("SELECT pg_relation_size('points') / 8192").fetchone()
    assert pages is not None
    assert f"Blocks: {-(-pages[0] // 32)}" in text


def test_analyze_tells_rows_blocks_and_waits(clustered: Session) -> None:
    options = json.dumps({"epochs": 3, "block_size": "64kB", "buffer_size": "256kB"})
    text = "\n".join(
        row[0] for row in clustered.execute("SELECT penstock.explain('points', 'logistic', %s, true)", (options,))
    )
    blocks = int(re.findall(r"Blocks: (\d+)", text)[0])
    assert f"Blocks Read: {3 * blocks}" in text
    assert "Rows per Epoch: 20000" in text
    assert re.search(r"BlockShuffle.*rows=20000.* loops=3", text)  # epochs are rescans
    for told in ("Waiting for SGD: ", "Waiting for Rows: ", "Learning: ", "Windows: ", "Accuracy: 0.", "Loss: 0."):
        assert told in text


@pytest.mark.parametrize("batch_size", [1, 64])
def test_all_windows_are_of_about_the_same_size(clustered: Session, batch_size: int) -> None:
    # A window holds 20,000 / 3.1 rows: filled to the brim, three of them would leave a fourth of a few hundred, of one label.
    room = int(20_000 / 3.1 * 4 * (8 + 2) * 2)
    options = json.dumps({"epochs": 2, "buffer_size": room, "block_size": "8kB", "batch_size": batch_size})
    clustered.execute("ANALYZE points")
    text = "\n".join(
        row[0] for row in clustered.execute("SELECT penstock.explain('points', 'svm', %s, true)", (options,))
    )
    found = {name: int(count) for name, count in re.findall(r"(Windows|Smallest Window|Largest Window): (\d+)", text)}
    assert found["Windows"] == 2 * 4
    assert 4_700 < found["Smallest Window"] <= 5_000 <= found["Largest Window"] < 5_100


def test_the_first_statement_of_a_session_finds_the_nodes(clustered: Session, address: str) -> None:
    with psycopg.connect(address) as fresh:
        rows = fresh.execute(f"SELECT (s).epoch, (s).coef FROM (SELECT {LEARN} AS s FROM points) AS q").fetchall()
    assert [row[0] for row in rows] == [1, 2, 3]
    assert [row[1] is None for row in rows] == [True, True, False]


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


def test_queries_that_are_no_table_are_shuffled_in_the_buffer(clustered: Session) -> None:
    clustered.execute("CREATE TABLE labels AS SELECT id, label FROM points")
    query = "SELECT p.features_v, l.label FROM points p JOIN labels l USING (id)"
    learn = f"SELECT {LEARN} FROM ({query}) AS q"
    text = plan(clustered, learn)
    assert nodes(text)[:2] == ["Custom Scan (SGD)", "Custom Scan (TupleShuffle)"]
    assert "BlockShuffle" not in text
    rows = clustered.execute("SELECT score, rows FROM penstock.train(%s, 'svm', 'joined')", (query,)).fetchall()
    assert {row[1] for row in rows} == {20_000}
    assert rows[-1][0] > 0.85


def test_a_correlated_subquery_learns_anew_for_each_row(clustered: Session) -> None:
    query = f"SELECT max((s).rows) FROM (SELECT {LEARN} AS s FROM points WHERE id >= i * 1000) AS q"
    found = clustered.execute(f"SELECT ({query}) FROM generate_series(1, 3) AS i".encode())
    assert found.fetchall() == [(19_000,), (18_000,), (17_000,)]


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
        (f"SELECT {LEARN} OVER () FROM points", "without OVER"),
        ("SELECT penstock.sgd(features_v, label, NULL) FROM points", "must be a constant"),
        ("""SELECT penstock.sgd(features_v, label, '{"epocs": 3}') FROM points""", "no option"),
        ("""SELECT penstock.sgd(features_v, label, '{"epochs": 0}') FROM points""", "number of epochs"),
        ("""SELECT penstock.sgd(features_v, label, '{"model": "tree"}') FROM points""", "one of: logistic"),
        ("""SELECT penstock.sgd(features_v, label, '{"block_size": "10 parsecs"}') FROM points""", "10MB"),
        ("""SELECT penstock.sgd(features_v, label, '[]') FROM points""", "JSON object"),
        ("""SELECT penstock.sgd(features_v, label, '{}') FROM points""", "the label 0 is not a target"),
        ("""SELECT penstock.sgd(features_v, label, '{"classes": [1, 2]}') FROM points""", "not one of the classes"),
        ("""SELECT penstock.sgd(features_v, label, '{"model": "softmax"}') FROM points""", "outputs"),
    ],
)
def test_what_cannot_be_learnt_is_refused(clustered: Session, query: str, told: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        clustered.execute(query.encode())
    assert told in f"{caught.value} {caught.value.diag.message_hint}"
    assert clustered.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("source", "model", "options", "error"),
    [
        ("points", "tree", {}, errors.InvalidParameterValue),
        ("nowhere", "svm", {}, errors.UndefinedTable),
        ("points", "svm", {"label": "clicked"}, errors.UndefinedColumn),
        ("points", "svm", {"features": ["nothing"]}, errors.UndefinedColumn),
        ("points", "svm", {"features": ["label"]}, errors.InvalidParameterValue),
        ("points", "svm", {"label": "id"}, errors.DataException),
        ("points", "svm", {"batch_size": 0}, errors.InvalidParameterValue),
        ("SELECT 1 AS label; DROP TABLE points", "svm", {}, errors.SyntaxError),
        ("SELECT * FROM points WHERE label = 0", "svm", {}, errors.DataException),
        ("SELECT *, 'x' AS name FROM points", "svm", {"features": "name"}, errors.DatatypeMismatch),
    ],
)
def test_train_refuses_with_an_error_of_its_kind(
    clustered: Session, source: str, model: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        clustered.execute("SELECT penstock.train(%s, %s, 'm', %s)", (source, model, json.dumps(options)))
    assert clustered.execute("SELECT count(*) FROM points").fetchone() == (20_000,)


def test_reading_alone_can_be_timed(clustered: Session) -> None:
    learn = LEARN.replace("{", '{"read_only": true, ')
    rows = clustered.execute(
        f"SELECT (s).rows, (s).loss, (s).coef FROM (SELECT {learn} AS s FROM points) AS q".encode()
    )
    assert rows.fetchall() == [(20_000, None, None)] * 3
    with pytest.raises(errors.InvalidParameterValue, match="no model to keep"):
        clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"read_only\": true}')")
