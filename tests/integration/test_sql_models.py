"""Models of any kind in SQL, the same text on both engines: learned, kept in the catalogue, and asked."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import ModelFileError, UnknownOptionError, UsageError
from penstock.groups import Boosting, GroupBy, GroupModels, training_run
from penstock.model_kinds import open_model
from penstock.sql import Session
from penstock.testing.executors import InlineExecutor
from tests.servers import Server

ROWS = 1500
TABLE = """
    CREATE TABLE visits AS SELECT i AS id, (ARRAY['FR', 'DE', 'IT'])[1 + i % 3] AS country, x, z, word, x * z > 0 AS clicked,
        CASE WHEN x * z > 0.2 THEN 'high' WHEN x * z < -0.2 THEN 'low' ELSE 'mid' END AS level, x * z + x AS price
    FROM (SELECT i, (i * 37 % 101)::float8 / 50 - 1 AS x, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 ELSE 0.5::float8 END AS z,
        (ARRAY['a', 'b', 'c'])[1 + (i * 13 % 4)] AS word FROM {} AS n(i)) AS t
"""
FEATURES = "country, x, z, word"
BOOST = f"SELECT {FEATURES}, clicked FROM visits TRAIN BY boosting AS trees WITH (label = 'clicked', rounds = 25, num_leaves = 15, workers = 1)"


@pytest.fixture(scope="module", autouse=True)
def inline_workers() -> Iterator[None]:
    """Have "local" workers mean this very process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
        yield


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """What opens a database with the table and boosted trees ``trees`` in it."""
    with tempfile.TemporaryDirectory() as folder:
        if request.param == "duckdb":
            with closing(penstock.connect(f"{folder}/shop.duckdb")) as session:
                session.sql(TABLE.format(f"range({ROWS})") + ";" + BOOST)
            yield f"{folder}/shop.duckdb"
            return
        postgres: Server = request.getfixturevalue("postgres")
        with postgres.database() as address:
            with closing(penstock.connect(address)) as session:
                session.sql(TABLE.format(f"generate_series(0, {ROWS - 1})") + ";" + BOOST)
            yield address


@pytest.fixture
def session(place: str) -> Iterator[Session]:
    with closing(penstock.connect(place)) as session:
        yield session


def rows_of(session: Session) -> pa.Table:
    return session.sql("SELECT * FROM visits ORDER BY id").to_arrow()


SMALL_SHARE = {
    "sparse": "SELECT country, x, z, word, clicked FROM visits TRAIN BY logistic AS s WITH (label = 'clicked'",
    "full passes": "SELECT country, x, z, word, price FROM visits TRAIN BY linear AS s WITH (label = 'price'",
    "search": "SELECT country, x, z, clicked FROM visits TRAIN BY logistic AS s WITH (label = 'clicked', l2 = (1, 0.1), workers = 1",
    "groups": "SELECT country, x, z, clicked FROM visits TRAIN BY logistic AS s WITH (label = 'clicked', workers = 1",
    "trees": f"{BOOST.replace(' AS trees', ' AS s')[:-1]}",
    "on disk": "SELECT country, x, z, clicked FROM visits TRAIN BY svm AS s WITH (label = 'clicked', epochs = 2, model_dir = '{}'",
    "factor": "SELECT id % 31 AS u, id % 17 AS i, x AS r FROM visits TRAIN BY factor AS s WITH (user = 'u', item = 'i', rating = 'r', rank = 2, epochs = 1",
}


@pytest.mark.parametrize("kind", SMALL_SHARE)
def test_a_share_of_few_rows_is_enough(session: Session, tmp_path: Path, kind: str) -> None:
    train = f"{SMALL_SHARE[kind].format(tmp_path / 'model')}, buffer_size = 10%)"
    rows = train.partition(" TRAIN BY")[0]
    session.sql(train + (" GROUP BY country" if kind == "groups" else ""))
    found = session.sql(f"SELECT count(prediction) FROM ({rows} PREDICT BY s) AS p")
    session.sql("DROP MODEL s")
    assert found.rows[0][0] == ROWS


def test_trees_are_those_that_python_learns(session: Session) -> None:
    rows = rows_of(session).select([*FEATURES.split(", "), "clicked"])
    result = GroupBy(rows, by=None).fit(Boosting(rounds=25, num_leaves=15), y="clicked", pooled=False, workers=1)
    found = session.sql("SELECT * FROM visits PREDICT BY trees").to_arrow().sort_by("id")
    own = result.predict(rows)
    assert found["prediction"].to_pylist() == own["prediction"].to_pylist()
    for name in ("probability_False", "probability_True"):
        np.testing.assert_allclose(found[name].to_numpy(), own[name].to_numpy(), atol=1e-6)
    shown = dict(session.sql("SHOW MODEL trees").rows)
    assert shown["held_out_accuracy"] == result.metrics["held_out_accuracy"] > 0.95
    assert (shown["kind"], shown["predicts"], shown["trees"], shown["columns"]) == (
        "boosting",
        "softmax",
        25,
        FEATURES.split(", "),
    )
    (entry,) = (row for row in session.sql("SHOW MODELS").dicts() if row["name"] == "trees")
    assert (entry["kind"], entry["label"], entry["rows"], entry["score"]) == (
        "boosting",
        "clicked",
        ROWS,
        result.metrics["held_out_accuracy"],
    )


def test_measures_and_predictions_wherever_a_query_can_stand(session: Session) -> None:
    share = "SELECT avg((prediction = clicked)::int::float8) FROM (SELECT * FROM visits PREDICT BY trees) AS p"
    measures = session.sql("EVALUATE MODEL trees ON SELECT * FROM visits").dicts()[0]
    assert session.sql(share).rows[0][0] == pytest.approx(measures["accuracy"])
    assert session.sql("EVALUATE MODEL trees").column("held_out_accuracy")[0] > 0.95
    assert session.sql("SELECT accuracy FROM ML.EVALUATE(MODEL trees, TABLE visits)").rows[0][0] == measures["accuracy"]
    assert len(session.sql("SELECT * FROM ML.CONFUSION_MATRIX(MODEL trees, TABLE visits)")) == 2
    assert len(session.sql("SELECT * FROM ML.ROC_CURVE(MODEL trees, TABLE visits)")) > 2
    empty = session.sql("SELECT * FROM visits WHERE false PREDICT BY trees")
    assert (len(empty), empty.columns[-3:]) == (0, ("prediction", "probability_False", "probability_True"))
    session.sql("CREATE TABLE scored AS SELECT id, prediction FROM (SELECT * FROM visits PREDICT BY trees) AS p")
    assert session.sql("SELECT count(prediction) FROM scored").rows == [(ROWS,)]
    session.sql("DROP TABLE scored")


def test_ml_predict_names_columns_as_the_warehouses_do(session: Session) -> None:
    query = "(SELECT * FROM visits ORDER BY id LIMIT 50)"
    plain = session.sql(f"SELECT * FROM {query} AS q PREDICT BY trees").to_arrow().sort_by("id")
    found = session.sql(f"SELECT * FROM ML.PREDICT(MODEL trees, {query})")
    table = found.to_arrow().sort_by("id")
    assert found.columns[-2:] == ("predicted_clicked", "predicted_clicked_probs")
    assert table["predicted_clicked"].to_pylist() == plain["prediction"].to_pylist()
    first = found.dicts()[0]["predicted_clicked_probs"]
    pairs = json.loads(first) if isinstance(first, str) else first
    assert [pair["label"] for pair in pairs] == [False, True]
    likely = plain["probability_True"].to_numpy()
    limit = float(np.sort(likely)[30])
    at = session.sql(f"SELECT * FROM ML.PREDICT(MODEL trees, {query}, STRUCT({limit!r} AS threshold))").to_arrow()
    assert at.sort_by("id")["predicted_clicked"].to_pylist() == (likely > limit).tolist()


def test_what_trees_have_not_is_refused_with_what_there_is(session: Session) -> None:
    for function in ("WEIGHTS(MODEL trees)", "FEATURE_INFO(MODEL trees)", "EXPLAIN_PREDICT(MODEL trees, TABLE visits)"):
        with pytest.raises(UsageError, match="boosting model; DESCRIBE MODEL trees"):
            session.sql(f"SELECT * FROM ML.{function}")
    with pytest.raises(UsageError, match="CREATE TABLE"):
        session.sql("CREATE VIEW v AS SELECT * FROM visits PREDICT BY trees")
    with pytest.raises(UnknownOptionError, match="num_leaves"):
        session.sql("SELECT * FROM visits TRAIN BY boosting WITH (label = 'clicked', num_leafs = 3)")
    with pytest.raises(UsageError, match="rounds = 0 is out of range; choose 1 or more"):
        session.sql("SELECT * FROM visits TRAIN BY boosting WITH (label = 'clicked', rounds = 0)")
    with pytest.raises(UsageError, match="TRANSFORM is for linear"):
        session.sql(
            "CREATE MODEL n TRANSFORM (x, clicked) USING boosting WITH (label = 'clicked') AS SELECT * FROM visits"
        )
    with pytest.raises(UsageError, match="leave out FOR"):
        session.sql("DESCRIBE MODEL trees FOR ('FR')")


def test_values_are_tried_and_shown(session: Session) -> None:
    session.sql(BOOST.replace("AS trees", "AS tried").replace("rounds = 25", "rounds = (1, 25)"))
    shown = session.sql("SHOW TRAINING tried")
    assert shown.column("param_rounds") == [1, 25]
    assert dict(session.sql("DESCRIBE MODEL tried").rows)["trees"] == 25
    session.sql("DROP MODEL tried")


def test_numbers_several_classes_and_the_warehouses_words(session: Session) -> None:
    session.sql(f"SELECT {FEATURES}, price FROM visits TRAIN BY boosting AS price WITH (label = 'price', rounds = 60)")
    assert session.sql("EVALUATE MODEL price ON SELECT * FROM visits").column("r2")[0] > 0.9
    predicted = session.sql("SELECT * FROM ML.PREDICT(MODEL price, TABLE visits)")
    assert predicted.columns[-1] == "predicted_price"
    options = "OPTIONS (model_type = 'boosted_tree_classifier', input_label_cols = ['level'], max_iterations = 20, subsample = 0.9)"
    session.sql(f"CREATE MODEL level {options} AS SELECT {FEATURES}, level FROM visits")
    assert session.sql("EVALUATE MODEL level ON SELECT * FROM visits").column("accuracy")[0] > 0.8
    options = "OPTIONS (model_type = 'boosted_tree_regressor', input_label_cols = ['id'], max_iterations = 5)"
    session.sql(f"CREATE MODEL number {options} AS SELECT x, z, id FROM visits")
    assert "classes" in dict(session.sql("SHOW MODEL number").rows)
    assert dict(session.sql("SHOW MODEL number").rows)["predicts"] == "linear"
    session.sql("DROP MODEL price; DROP MODEL level; DROP MODEL number")


def test_trees_of_groups(session: Session) -> None:
    text = "SELECT x, z, country, clicked FROM visits TRAIN BY boosting AS local WITH (label = 'clicked', rounds = 10, workers = 1{}) GROUP BY country"
    session.sql(text.format(""))
    found = session.sql("SELECT * FROM visits PREDICT BY local").to_arrow().sort_by("id")
    model: Any = session.catalog.load("local")
    rows = rows_of(session)
    with model:
        assert found["prediction"].to_pylist() == model.predict(rows)["prediction"].to_pylist()
    assert sorted(session.sql("SHOW MODEL local").column("country")) == ["DE", "FR", "IT"]
    assert dict(session.sql("DESCRIBE MODEL local FOR ('FR')").rows)["trees"] == 10
    (entry,) = (row for row in session.sql("SHOW MODELS").dicts() if row["name"] == "local")
    assert (entry["kind"], entry["groups"], entry["rows"]) == ("boosting", 3, ROWS)
    other = "SELECT x, z, 'XX' AS country FROM visits PREDICT BY local"
    assert session.sql(f"SELECT count(prediction) FROM ({other}) AS p").rows == [(ROWS,)]
    session.sql(text.format(", replace = true, unseen = null"))
    assert session.sql(f"SELECT count(prediction) FROM ({other}) AS p").rows == [(0,)]
    assert session.sql(f"SELECT count(prediction) FROM ({other}@1) AS p").rows == [(ROWS,)]
    assert session.sql("EVALUATE MODEL local ON SELECT * FROM visits").column("rows_without_model") == [0]
    session.sql("DROP MODEL local")


def test_models_go_out_and_come_back(session: Session, place: str, tmp_path: Path) -> None:
    session.sql(f"EXPORT MODEL trees TO '{tmp_path}/trees.txt'; IMPORT MODEL again FROM '{tmp_path}/trees.txt'")
    same = "SELECT count(*) FROM (SELECT id, prediction AS a FROM (SELECT * FROM visits PREDICT BY trees) AS p) AS p JOIN (SELECT id, prediction AS b FROM (SELECT * FROM visits PREDICT BY again) AS q) AS q USING (id) WHERE a = b"
    assert session.sql(same).rows == [(ROWS,)]
    with open_model(tmp_path / "trees.txt") as model:
        assert model.word == "boosting"
    session.sql("DROP MODEL again")
    with closing(penstock.connect(place)) as other, other.catalog.load("trees") as model:
        assert model.columns == tuple(FEATURES.split(", "))


def test_what_it_will_take_is_told(session: Session) -> None:
    told = "\n".join(row[0] for row in session.sql(f"EXPLAIN {BOOST}").rows)
    assert "25 trees at most: 1 model" in told


def test_a_damaged_row_is_told(session: Session) -> None:
    table = session.catalog.table
    whole = session.sql(f"SELECT CAST(header AS text) FROM {table} WHERE name = 'trees'").rows[0][0]
    broken = [
        (lambda saved: saved["files"]["."].update(text="tree\n"), "checksum"),
        (lambda saved: saved.update(kind="nothing"), "not known here"),
        (lambda saved: saved["files"].update({"../x": saved["files"]["."]}), "outside of the model"),
        (lambda saved: saved.pop("files"), "header cannot be read"),
    ]
    for breaks, message in broken:
        header = json.loads(whole)
        breaks(header["saved"])
        text = json.dumps(header).replace("'", "''")
        if "duckdb" in place_of(session):
            session.engine.run(
                f"INSERT INTO {table} BY NAME SELECT * REPLACE ('bad' AS name, '{text}' AS header) FROM {table} WHERE name = 'trees'"
            )
        else:
            columns = "kind, outputs, width, coef, intercept, format, created_at, penstock_version"
            session.engine.run(
                f"INSERT INTO {table} (name, header, {columns}) SELECT 'bad', $${json.dumps(header)}$$, {columns} FROM {table} WHERE name = 'trees'"
            )
        with pytest.raises(ModelFileError, match=message):
            session.sql("SELECT * FROM visits PREDICT BY bad")
        session.sql("DROP MODEL bad")


def place_of(session: Session) -> str:
    return session.engine.dialect.title.lower()


def test_a_model_per_group_of_trees_is_a_folder_outside(session: Session, tmp_path: Path) -> None:
    session.sql(
        "SELECT x, z, country, clicked FROM visits TRAIN BY boosting AS g WITH (label = 'clicked', rounds = 3, workers = 1) GROUP BY country"
    )
    session.sql(f"EXPORT MODEL g TO '{tmp_path}/g'")
    with GroupModels.open(tmp_path / "g") as models:
        assert models.groups == ["FR", "DE", "IT"]
    session.sql(f"IMPORT OR REPLACE MODEL g FROM '{tmp_path}/g'; DROP MODEL g")
