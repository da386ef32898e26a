"""One SQL front on two engines: the same statements, the same answers, on DuckDB and on a real PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import (
    DatabaseError,
    DataError,
    ModelFileError,
    PenstockError,
    SQLSyntaxError,
    UsageError,
)
from penstock.events import Warned
from penstock.linear import LinearModel
from penstock.sql import Session, connect

ROWS = 1200
# Two features and a label, clustered: all of label 0 come first. The same numbers on either engine.
MAKE = f"""
CREATE TABLE points AS
SELECT i AS id, CAST(CASE WHEN i < {ROWS // 2} THEN 0 ELSE 1 END AS integer) AS label,
       CAST((i * 37 % 101) / 50.0 - 1 + CASE WHEN i < {ROWS // 2} THEN -0.8 ELSE 0.8 END AS real) AS x,
       CAST((i * 53 % 97) / 48.0 - 1 AS real) AS y
"""
SERIES = {"duckdb": f"FROM range({ROWS}) AS r(i)", "postgresql": f"FROM generate_series(0, {ROWS - 1}) AS r(i)"}
TRAIN = "SELECT x, y, label FROM points TRAIN BY logistic AS m WITH (max_epoch_num = 3, learning_rate = 0.05)"


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    db = str(tmp_path / "shop.duckdb") if request.param == "duckdb" else request.getfixturevalue("database")
    with connect(db) as opened:
        opened.sql(MAKE + SERIES[request.param])
        yield opened


def rows(session: Session, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(text).rows]


def test_training_gives_a_row_for_each_epoch_and_keeps_the_model(session: Session) -> None:
    found = session.sql(TRAIN)
    assert found.columns == (
        "epoch",
        "progressive_loss",
        "progressive_accuracy",
        "held_out_loss",
        "held_out_accuracy",
        "seconds",
        "prepare_seconds",
        "rows",
    )
    assert found.column("epoch") == [1, 2, 3]
    (learned,) = set(found.column("rows"))
    assert 0.85 * ROWS < learned < 0.95 * ROWS, "a tenth of the rows is held out"
    assert session.catalog.load("m").metrics["held_out_rows"] == ROWS - learned
    assert found.column("held_out_accuracy")[-1] > 0.85
    assert "PREDICT BY m" in found.notes[-1]
    assert found.notes[0].startswith("held-out accuracy 0.")
    assert session.sql("show models").column("name") == ["m"]


@pytest.mark.parametrize(("condition", "opening"), [("", "survey_seconds"), (" WHERE id >= 0", "copy_seconds")])
def test_what_comes_before_the_first_epoch_is_counted(session: Session, condition: str, opening: str) -> None:
    began = time.perf_counter()
    found = session.sql(TRAIN.replace("points", f"points{condition}"))
    whole = time.perf_counter() - began
    prepared, *later = found.column("prepare_seconds")
    assert later == [None] * 2
    metrics = session.catalog.load("m").metrics
    assert prepared == pytest.approx(metrics[opening] + metrics["scan_seconds"])
    assert min(metrics[opening], metrics["scan_seconds"]) > 0
    assert prepared + sum(found.column("seconds")) < whole
    assert any(" to prepare (" in note and " in all" in note for note in found.notes)


def test_both_engines_and_a_file_learn_the_same(session: Session, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = "solver = gd, epochs = 5, standardize = false, validation = 0"
    session.sql(f"SELECT x, y, label FROM points TRAIN BY linear AS m WITH ({options})")
    data = np.array(rows(session, "SELECT x, y, label FROM points ORDER BY id"), np.float32)
    pq.write_table(pa.table({name: data[:, k] for k, name in enumerate(("x", "y", "label"))}), tmp_path / "p.parquet")
    same = penstock.LinearRegression(solver="gd", epochs=5, standardize=False, validation=0)
    same.fit(tmp_path / "p.parquet", y="label")
    found = session.catalog.load("m").weights
    np.testing.assert_allclose(found.coef[0], same.coef_, rtol=1e-5)
    np.testing.assert_allclose(found.intercept[0], same.intercept_, rtol=1e-5)


def test_predictions_agree_with_the_model_itself(session: Session) -> None:
    session.sql(TRAIN)
    model = session.catalog.load("m")
    found = np.array(
        rows(session, "SELECT x, y, prediction, probability_1 FROM (SELECT * FROM points PREDICT BY m) AS p")
    )
    scores = found[:, :2].astype(np.float32) @ model.weights.coef[0] + model.weights.intercept[0]
    np.testing.assert_allclose(found[:, 3], 1 / (1 + np.exp(-scores)), atol=1e-5)
    sure = np.abs(scores) > 1e-4
    assert (found[sure, 2] == (scores[sure] > 0)).all()


def test_predictions_stand_wherever_a_query_can(session: Session) -> None:
    session.sql(TRAIN)
    right = "SELECT count(*) FROM {} WHERE prediction = label"
    session.sql("CREATE TABLE scored AS SELECT * FROM points PREDICT BY m")
    (count,) = rows(session, right.format("scored"))[0]
    assert count > 0.85 * ROWS
    session.sql("CREATE VIEW live AS SELECT * FROM points PREDICT BY m")
    assert rows(session, right.format("live")) == [(count,)]
    session.sql("INSERT INTO scored SELECT * FROM points PREDICT BY m")
    assert rows(session, right.format("scored")) == [(2 * count,)]
    text = "WITH p AS (SELECT * FROM points PREDICT BY m) SELECT count(*) FROM p JOIN points USING (id) WHERE prediction = p.label"
    assert rows(session, text) == [(count,)]
    text = "WITH few AS (SELECT * FROM points WHERE id < 9) SELECT count(*) FROM (SELECT * FROM few PREDICT BY m) AS p"
    assert rows(session, text) == [(9,)], "a query may use the names of the statement around it"
    assert session.sql("SELECT id, x, y FROM points WHERE id < 3 PREDICT BY m").columns == (
        *("id", "x", "y", "prediction", "probability_0", "probability_1"),
    )


def test_the_warehouses_dialect(session: Session) -> None:
    session.sql(
        "CREATE OR REPLACE MODEL m OPTIONS (model_type = 'logistic_reg', input_label_cols = ['label'], max_iterations = 3,"
        " data_split_method = 'no_split', learn_rate = 0.05) AS SELECT x, y, label FROM points"
    )
    got = session.sql("SELECT * FROM ML.EVALUATE(MODEL m, TABLE points)").dicts()[0]
    assert list(got) == ["precision", "recall", "accuracy", "f1_score", "log_loss", "roc_auc"]
    assert got["accuracy"] > 0.85
    assert session.sql("SELECT iteration FROM ML.TRAINING_INFO(MODEL m) ORDER BY 1").column("iteration") == [0, 1, 2]
    named = session.sql("SELECT processed_input FROM ML.WEIGHTS(MODEL m)").column("processed_input")
    assert named == ["x", "y", "__INTERCEPT__"]
    found = session.sql("SELECT * FROM ML.PREDICT(MODEL m, (SELECT * FROM points WHERE id < 2)) ORDER BY id")
    assert found.columns == ("id", "label", "x", "y", "predicted_label", "predicted_label_probs")
    assert len(found) == 2
    nothing = session.sql("CREATE MODEL IF NOT EXISTS m OPTIONS (model_type = 'svm') AS SELECT x, y, label FROM points")
    assert "nothing was trained" in nothing.status
    assert session.catalog.load("m").kind == "logistic"


def test_logistic_reg_of_several_classes_is_a_softmax(session: Session) -> None:
    session.sql(
        "CREATE MODEL m OPTIONS (model_type = 'logistic_reg', label = 'third', max_iterations = 2)"
        " AS SELECT x, y, id % 3 AS third FROM points"
    )
    assert session.catalog.load("m").kind == "softmax"
    found = session.sql("SELECT x, y FROM points WHERE id < 5 PREDICT BY m")
    assert found.columns == ("x", "y", "prediction", "probability_0", "probability_1", "probability_2")
    assert set(found.column("prediction")) <= {0, 1, 2}


def test_views_joins_and_conditions_are_copied_once(session: Session) -> None:
    session.sql("CREATE VIEW half AS SELECT x, y, label FROM points WHERE id % 2 = 0")
    found = session.sql("SELECT * FROM half TRAIN BY svm AS h WITH (epochs = 2, validation = 0)")
    assert found.column("rows") == [ROWS // 2] * 2
    joined = "SELECT a.x, b.y, a.label FROM points AS a JOIN points AS b USING (id)"
    session.sql(f"{joined} TRAIN BY svm AS j WITH (epochs = 2)")
    assert session.catalog.load("j").recipe.names == ("x", "y")
    assert len(session.sql("SELECT * FROM points PREDICT BY j")) == ROWS


def test_a_table_of_the_sessions_own_transaction_can_be_learnt_from(session: Session) -> None:
    session.sql("BEGIN; DELETE FROM points WHERE id % 2 = 1")
    assert session.sql(TRAIN.replace("WITH (", "WITH (validation = 0, ")).column("rows") == [ROWS // 2] * 3
    assert session.sql("SHOW MODELS").column("name") == ["m"]
    session.sql("ROLLBACK")
    assert session.sql("SHOW MODELS").column("name") == []
    session.sql("CREATE TEMPORARY TABLE mine AS SELECT x, y, label FROM points")
    assert session.sql("SELECT * FROM mine TRAIN BY svm AS t WITH (epochs = 1, validation = 0)").column("rows") == [
        ROWS
    ]


def test_explain(session: Session) -> None:
    plan = str(
        session.sql("EXPLAIN SELECT x, y, label FROM points TRAIN BY svm WITH (epochs = 2, buffer_size = '1MB')")
    )
    places = [plan.index(word) for word in ("SGD svm", "TupleShuffle", "BlockShuffle", "points")]
    assert places == sorted(places)
    assert "predicted" in plan
    assert "measured" not in plan
    assert session.sql("SHOW MODELS").rows == []
    copied = str(session.sql("EXPLAIN SELECT x, y, label FROM points WHERE id > 5 TRAIN BY svm"))
    assert "cop" in copied
    assert "temporary" in copied
    analyzed = str(session.sql("EXPLAIN ANALYZE SELECT x, y, label FROM points TRAIN BY svm WITH (epochs = 2)"))
    assert "measured" in analyzed
    assert "the model's held-out accuracy is" in analyzed
    assert f"{ROWS:,} rows" in analyzed
    assert analyzed.count(" to prepare (survey ") == 2, "predicted, and measured"
    assert " to prepare (copy " in copied
    assert session.sql("SHOW MODELS").rows == []
    assert "L-BFGS svm" in str(session.sql("EXPLAIN SELECT x, y, label FROM points TRAIN BY svm"))
    assert "SGD" not in str(session.sql("EXPLAIN SELECT * FROM points"))


def test_advice_is_in_the_words_of_a_statement(session: Session) -> None:
    session.sql("CREATE TABLE texts AS SELECT 'a' || id AS city, 'b' AS kind, x, label FROM points")
    session.sql("SELECT * FROM texts TRAIN BY svm AS plain WITH (epochs = 1)")
    assert set(session.catalog.load("plain").recipe.left_out) == {"city", "kind"}
    with pytest.raises(DataError) as caught:
        session.sql("SELECT nullif(x, 1) AS x, label FROM texts TRAIN BY svm WITH (nulls = error)")
    assert "WITH (nulls = 'skip')" in str(caught.value)
    assert "--" not in str(caught.value)
    session.sql("SELECT * FROM texts TRAIN BY svm AS m WITH (epochs = 1, hash = 'city:2^10, kind:2^10')")
    told = dict(session.sql("DESCRIBE MODEL m").rows)
    assert (told["hash"], told["learning_rate"]) == (["city:2^10", "kind:2^10"], 0.1)


def test_evaluate_describe_and_drop(session: Session) -> None:
    session.sql(TRAIN.replace("WITH (", "WITH (test_fraction = 0.2, "))
    got = session.sql("EVALUATE MODEL m ON SELECT * FROM points").dicts()[0]
    assert got["rows"] == ROWS
    assert got["accuracy"] > 0.85
    held_out = session.sql("EVALUATE MODEL m").columns
    assert {"held_out_loss", "held_out_accuracy", "held_out_rows", "held_out_auc"} <= set(held_out or ())
    told = dict(session.sql("DESCRIBE MODEL m").rows)
    assert told["kind"] == "logistic"
    assert told["columns"] == ["x", "y"]
    assert told["epochs"] == 3
    assert told["standardize"] is True
    with pytest.raises(DataError, match="no row with a label"):
        session.sql("EVALUATE MODEL m ON SELECT * FROM points WHERE id < 0")
    assert session.sql("DROP MODEL m").status == "DROP MODEL"
    with pytest.raises(ModelFileError, match="no model 'm'"):
        session.sql("SELECT * FROM points PREDICT BY m")
    session.sql("DROP MODEL IF EXISTS m")


def test_models_travel_between_files_and_the_database(session: Session, tmp_path: Path) -> None:
    session.sql(TRAIN)
    session.sql(f"EXPORT MODEL m TO '{tmp_path}/m.penstock'")
    exported = LinearModel.load(tmp_path / "m.penstock")
    np.testing.assert_array_equal(exported.weights.coef, session.catalog.load("m").weights.coef)
    session.sql(f"IMPORT MODEL again FROM '{tmp_path}/m.penstock'")
    found = [
        rows(session, f"SELECT id, prediction FROM (SELECT * FROM points PREDICT BY {name}) AS p ORDER BY id")
        for name in ("m", "again")
    ]
    assert found[0] == found[1]
    with pytest.raises(DataError, match="already"):
        session.sql(f"IMPORT MODEL again FROM '{tmp_path}/m.penstock'")
    session.sql(f"IMPORT OR REPLACE MODEL again FROM '{tmp_path}/m.penstock'")


def test_names_are_not_taken_twice_unless_asked(session: Session) -> None:
    session.sql(TRAIN)
    with pytest.raises(DataError, match="OR REPLACE"):
        session.sql(TRAIN)
    session.sql(TRAIN.replace("WITH (", "WITH (replace = true, "))
    session.sql(TRAIN.replace("AS m ", ""))
    session.sql(TRAIN.replace("AS m ", ""))
    assert session.sql("SHOW MODELS").column("name") == ["m", "points_logistic", "points_logistic_2"]


HOSTILE = """Robert'); DROP TABLE points;-- "x" % {} \\ é"""


def test_hostile_names(session: Session) -> None:
    table, column, model = (session.engine.quote(f"{kind} {HOSTILE}") for kind in ("t", "c", "m"))
    session.sql(f"CREATE TABLE {table} AS SELECT x AS {column}, y, label FROM points")
    session.sql(f"SELECT * FROM {table} TRAIN BY svm AS {model} WITH (epochs = 1)")
    found = session.sql(f"SELECT * FROM {table} PREDICT BY {model}")
    assert found.columns == (f"c {HOSTILE}", "y", "label", "prediction")
    assert len(found) == ROWS
    session.sql(f"SELECT * FROM {table} WHERE y > 0 TRAIN BY svm AS {model} WITH (epochs = 1, replace = true)")
    assert session.sql(f"EVALUATE MODEL {model} ON SELECT * FROM {table}").dicts()[0]["rows"] == ROWS
    assert dict(session.sql(f"DESCRIBE MODEL {model}").rows)["columns"][0] == f"c {HOSTILE}"
    session.sql(f"DROP MODEL {model}")
    assert rows(session, "SELECT count(*) FROM points") == [(ROWS,)]


def test_a_primary_key_among_the_features_is_told_of(session: Session) -> None:
    heard: list[Any] = []
    session.stream._listeners.append(heard.append)
    session.sql("ALTER TABLE points ADD PRIMARY KEY (id)")
    session.sql("SELECT * FROM points TRAIN BY svm AS m WITH (epochs = 1, learning_rate = 1e-9)")
    assert any(isinstance(event, Warned) and "exclude = 'id'" in event.message for event in heard)
    heard.clear()
    session.sql("SELECT * FROM points TRAIN BY svm AS n WITH (epochs = 1, exclude = 'id')")
    assert not [event for event in heard if isinstance(event, Warned)]


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("SELECT * FROM points TRAIN BY forest", SQLSyntaxError, "logistic"),
        ("SELECT * FROM points TRAIN BY svm WITH (lerning_rate = 1)", UsageError, "learning_rate"),
        ("SELECT * FROM points TRAIN BY svm WITH (label = 'lable')", PenstockError, "did you mean 'label'"),
        ("SELECT * FROM nowhere TRAIN BY svm", DatabaseError, "nowhere"),
        ("SELECT * FROM points PREDICT BY nothing", ModelFileError, "no model 'nothing'"),
        ("SELECT x, label FROM points WHERE id < 0 TRAIN BY svm", DataError, "no rows"),
        ("SELECT id, label FROM points WHERE label = 1 TRAIN BY svm", DataError, "class"),
        ("SELEC 1", DatabaseError, "SELEC"),
    ],
)
def test_what_is_wrong_is_told(session: Session, text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        session.sql(text)
    assert rows(session, "SELECT count(*) FROM points") == [(ROWS,)], "the session goes on"


def test_nulls_are_filled_or_refused_by_number_or_left_out(session: Session) -> None:
    session.sql("UPDATE points SET y = NULL WHERE id IN (7, 11, 500)")
    with pytest.raises(DataError, match="3"):
        session.sql(TRAIN.replace("WITH (", "WITH (nulls = error, "))
    assert session.sql(TRAIN.replace("WITH (", "WITH (validation = 0, ")).column("rows") == [ROWS] * 3
    session.sql("DROP MODEL m")
    assert session.sql(TRAIN.replace("WITH (", "WITH (nulls = skip, validation = 0, ")).column("rows") == [ROWS - 3] * 3
    found = rows(session, "SELECT prediction FROM (SELECT * FROM points PREDICT BY m) AS p WHERE y IS NULL")
    assert all(prediction in (0, 1) for (prediction,) in found)


def test_hashed_text_is_scored_here(session: Session) -> None:
    session.sql(
        "ALTER TABLE points ADD COLUMN city varchar; UPDATE points SET city = CASE WHEN label = 1 THEN 'Rome' ELSE 'Oslo' END"
    )
    session.sql("SELECT city, label FROM points TRAIN BY logistic AS m WITH (hash = 'city:2^10', epochs = 2)")
    text = "SELECT label, prediction, count(*) FROM (SELECT * FROM points PREDICT BY m) AS p GROUP BY 1, 2 ORDER BY 1"
    assert rows(session, text) == [(0, 0, ROWS // 2), (1, 1, ROWS // 2)]
    with pytest.raises(UsageError, match="cannot be written as SQL"):
        session.sql("CREATE VIEW v AS SELECT * FROM points PREDICT BY m")


def test_options_that_change_nothing_are_told_of(session: Session) -> None:
    heard: list[Any] = []
    session.stream._listeners.append(heard.append)
    session.sql(TRAIN.replace("WITH (", "WITH (connections = 2, "))
    told = [event.message for event in heard if isinstance(event, Warned) and event.message.startswith("connections")]
    assert len(told) == (session.engine.name == "duckdb")


def test_packing(session: Session) -> None:
    if session.engine.name == "duckdb":
        with pytest.raises(UsageError, match="pgvector"):
            session.sql("PACK points INTO packed WITH (features = ('x', 'y'), to = 'vector')")
    session.sql("PACK points INTO packed WITH (features = ('x', 'y'), label = 'label')")
    assert session.sql("SELECT * FROM packed").columns == ("id", "label", "features")
    found = session.sql("SELECT features, label FROM packed TRAIN BY logistic AS m WITH (epochs = 3)")
    assert found.column("held_out_accuracy")[-1] > 0.85
    right = rows(session, "SELECT count(*) FROM (SELECT * FROM packed PREDICT BY m) AS p WHERE prediction = label")
    assert right[0][0] > 0.85 * ROWS
    with pytest.raises(DatabaseError, match="packed"):
        session.sql("PACK points INTO packed WITH (features = ('x', 'y'))")


@pytest.mark.parametrize(("cache", "epochs"), [("on", 1), ("off", 3)])
def test_the_snapshots_of_a_training_are_recorded(database: str, cache: str, epochs: int) -> None:
    with connect(database) as session:
        session.sql(MAKE + SERIES["postgresql"])
        # A small buffer: rows that all fit in it would be read once, whatever the cache.
        session.sql(TRAIN.replace("WITH (", f"WITH (cache = {cache}, buffer_size = 100kB, block_size = 8kB, "))
        told = dict(session.sql("DESCRIBE MODEL m").rows)
        assert len(told["snapshots"]) == epochs
        assert all(snapshot.count(":") == 2 for snapshot in told["snapshots"])
