"""``penstock sql`` lets the server train where it has the extension, and does so itself where that cannot be asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest

from penstock.errors import DatabaseError
from penstock.events import Event, Finished, Started
from penstock.sql import connect

TRAIN = "SELECT * FROM points TRAIN BY logistic AS {} WITH (max_epoch_num = 3, learning_rate = 0.05, shuffle = 'none', average = false, validation = 0{})"


def test_the_server_trains(clustered: psycopg.Connection[Any], address: str) -> None:
    with connect(address) as session:
        found = session.sql(TRAIN.format("inside", ""))
        assert found.columns == ("epoch", "progressive_loss", "progressive_accuracy", "seconds", "rows")
        assert found.column("rows") == [20_000] * 3
        here = session.sql(TRAIN.format("here", ", extension = off"))
        np.testing.assert_allclose(found.column("progressive_loss"), here.column("progressive_loss"), rtol=1e-3)
        told = dict(session.sql("DESCRIBE MODEL inside").rows)
        assert "snapshots" not in told, "rows were not fetched"
        assert "snapshots" in dict(session.sql("DESCRIBE MODEL here").rows)
        count = "SELECT count(*) FROM (SELECT * FROM points PREDICT BY {}) AS p WHERE prediction = label"
        assert abs(session.sql(count.format("inside")).rows[0][0] - session.sql(count.format("here")).rows[0][0]) < 20
        session.sql("SELECT features_v, label FROM points WHERE id % 2 = 0 TRAIN BY svm WITH (epochs = 1)")
        assert session.sql("SHOW MODELS").column("name") == ["here", "inside", "model_svm"]
        with pytest.raises(DatabaseError, match="nowhere"):
            session.sql("SELECT * FROM nowhere TRAIN BY svm")


def test_a_training_in_the_server_is_told_of_while_it_runs(clustered: psycopg.Connection[Any], address: str) -> None:
    heard: list[Event] = []
    with connect(address, listeners=[heard.append]) as session:
        session.sql("SELECT * FROM points TRAIN BY svm AS m WITH (epochs = 1)")
        clustered.execute("UPDATE points SET label = NULL WHERE id = 7")
        session.sql(
            "SELECT * FROM points TRAIN BY svm AS m WITH (epochs = 1, replace = true)"
        )  # which the server refuses
        assert [event.task for event in heard if isinstance(event, Started)][:2] == ["train in the server"] * 2
        assert [event.task for event in heard if isinstance(event, Finished)][:2] == ["train in the server"] * 2
        session.sql("SELECT * FROM points TRAIN BY svm AS n WITH (epochs = 1, init = m)")
        assert "snapshots" in dict(session.sql("DESCRIBE MODEL n").rows)


def test_warnings_of_the_server_are_heard(clustered: psycopg.Connection[Any], address: str) -> None:
    heard: list[str] = []
    with connect(address, listeners=[lambda event: heard.append(getattr(event, "message", ""))]) as session:
        session.sql("SELECT features_v, label FROM points TRAIN BY svm WITH (learning_rate = 1e6, epochs = 1)")
    assert any("worse than a guess" in text for text in heard)


def test_the_server_says_so_where_logistic_becomes_softmax(clustered: psycopg.Connection[Any], address: str) -> None:
    clustered.execute("CREATE TABLE t AS SELECT features_v, id % 3 AS label FROM points")
    heard: list[str] = []
    with connect(address, listeners=[lambda event: heard.append(getattr(event, "message", ""))]) as session:
        session.sql("SELECT * FROM t TRAIN BY logistic AS m WITH (epochs = 1, validation = 0)")
        told = dict(session.sql("DESCRIBE MODEL m").rows)
    assert (told["kind"], "snapshots" in told) == ("softmax", False)
    assert any("3 classes, so the model is softmax" in text for text in heard)


def test_the_plan_is_the_servers(clustered: psycopg.Connection[Any], address: str) -> None:
    with connect(address) as session:
        for word in ("EXPLAIN", "EXPLAIN ANALYZE"):
            plan = str(session.sql(f"{word} SELECT * FROM points TRAIN BY svm WITH (epochs = 2)"))
            places = [plan.index(f"Custom Scan ({name})") for name in ("SGD", "TupleShuffle", "BlockShuffle")]
            assert places == sorted(places)
        assert session.sql("SHOW MODELS").rows == []
        assert "TID" in str(session.sql("EXPLAIN SELECT * FROM points TRAIN BY svm WITH (extension = off)"))


@pytest.mark.parametrize(
    "column",
    [
        "nullif(id % 7, 3)",
        "nullif(id % 7, 3)::float8",
        "CASE WHEN id % 9 = 0 THEN 'NaN'::float8 ELSE id % 7 END",
        "(ARRAY['a', 'b'])[1 + id % 2]",
        "nullif(id % 3, 1) = 2",
        "'2024-01-01'::date + id % 40",
    ],
)
def test_text_dates_and_missing_numbers_are_learnt_from_in_the_server(
    clustered: psycopg.Connection[Any], address: str, column: str
) -> None:
    clustered.execute(
        f"CREATE TABLE t AS SELECT features_v[1] AS a, {column} AS b, label FROM points WHERE id % 20 = 0".encode()
    )
    with connect(address) as session:
        plan = str(session.sql("EXPLAIN ANALYZE SELECT * FROM t TRAIN BY logistic WITH (epochs = 1)"))
        assert "Custom Scan (SGD)" in plan
        session.sql("SELECT * FROM t TRAIN BY logistic AS m")
        session.sql("SELECT * FROM t TRAIN BY logistic AS here WITH (extension = off)")
        assert ["snapshots" in dict(session.sql(f"DESCRIBE MODEL {m}").rows) for m in ("m", "here")] == [False, True]
        chances = [[row[-1] for row in session.sql(f"SELECT * FROM t PREDICT BY {m}").rows] for m in ("m", "here")]
        np.testing.assert_allclose(*np.array(chances, float), atol=0.05)


def test_arrays_without_a_label_are_left_out_here(clustered: psycopg.Connection[Any], address: str) -> None:
    clustered.execute("UPDATE points SET label = NULL WHERE id % 100 = 0")
    with connect(address) as session:
        assert "TID" in str(session.sql("EXPLAIN ANALYZE SELECT * FROM points TRAIN BY logistic WITH (epochs = 1)"))


def test_columns_of_many_rare_features_are_learnt_here(clustered: psycopg.Connection[Any], address: str) -> None:
    clustered.execute("""CREATE TABLE t AS SELECT concat_ws(' ', 'w' || id % 53, 'x' || id % 59, 'y' || id % 61, 'z' || id / 10000) AS said, label
        FROM points WHERE id % 10 = 0""")
    heard: list[str] = []
    with connect(address, listeners=[lambda event: heard.append(getattr(event, "message", ""))]) as session:
        session.sql("SELECT * FROM t TRAIN BY logistic AS m WITH (validation = 0, epochs = 1)")
        assert "snapshots" in dict(session.sql("DESCRIBE MODEL m").rows)
        assert any("more than 2000 features" in text for text in heard)
        clustered.execute("SELECT penstock.train('t', 'logistic', 'inside')")
        told = dict(session.sql("DESCRIBE MODEL inside").rows)
    assert (told["solver"], told["held_out_accuracy"]) == ("lbfgs", 1)


@pytest.mark.parametrize("asked", ["patience = 3", "solver = gd", "shuffle = 'once'"])
def test_what_the_server_does_not_know_is_learnt_here(
    clustered: psycopg.Connection[Any], address: str, asked: str
) -> None:
    with connect(address) as session:
        session.sql(f"SELECT * FROM points TRAIN BY logistic AS m WITH (epochs = 1, {asked})")
        assert "snapshots" in dict(session.sql("DESCRIBE MODEL m").rows)


def test_in_a_transaction_the_server_trains_and_the_model_is_part_of_it(
    clustered: psycopg.Connection[Any], address: str
) -> None:
    train = "SELECT * FROM points TRAIN BY svm AS m WITH (epochs = 1, validation = 0{})"
    with connect(address) as session:
        for extra in ("", ", extension = off"):
            session.sql("BEGIN; DELETE FROM points WHERE id % 2 = 1")
            assert session.sql(train.format(extra)).column("rows") == [10_000]
            assert session.sql("SHOW MODELS").column("name") == ["m"]
            session.sql("ROLLBACK")
            assert session.sql("SHOW MODELS").column("name") == []
        plan = session.sql("BEGIN; EXPLAIN SELECT * FROM points TRAIN BY svm")
        assert "Custom Scan (SGD)" in str(plan)
        session.sql(train.format(""))
        session.sql("COMMIT")
        assert session.sql("SHOW MODELS").column("name") == ["m"]


def test_rows_that_the_server_refuses_do_not_end_a_transaction(
    clustered: psycopg.Connection[Any], address: str
) -> None:
    clustered.execute("UPDATE points SET label = NULL WHERE id % 100 = 0")
    with connect(address) as session:
        session.sql("BEGIN; CREATE TABLE kept AS SELECT 1 AS a")
        session.sql("SELECT * FROM points TRAIN BY logistic AS m WITH (epochs = 1)")  # is learnt from here
        session.sql("COMMIT")
        assert session.sql("SELECT a FROM kept").rows == [(1,)]
        assert session.sql("SHOW MODELS").column("name") == ["m"]
