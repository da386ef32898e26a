"""TRANSFORM of CREATE MODEL on both engines: the expressions go with the model, and are applied to raw rows wherever it predicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.cli.application import app
from penstock.errors import ColumnError, DatabaseError, SQLSyntaxError, UsageError
from penstock.sql import Session, connect

SERIES = {"duckdb": "range(900) AS r(i)", "postgresql": "generate_series(0, 899) AS r(i)"}
MAKE = """
CREATE TABLE homes AS
SELECT id, area, rooms, city, CASE WHEN area * area / 20.0 + CASE city WHEN 'Rome' THEN 40 ELSE 0 END > 60 THEN 1 ELSE 0 END AS sold
FROM (SELECT i AS id, CAST((i * 37 % 101) - 50 AS double precision) AS area, i % 5 AS rooms,
    CASE i * 13 % 3 WHEN 0 THEN 'Rome' ELSE 'Oslo' END AS city FROM {series}) AS h
"""
# The square of the area decides, under the name of the raw column; the last expression is of the raw one.
ITEMS = 'area * area AS area, UPPER(city) AS "Big City", rooms, area + 1 AS next, sold'
CREATE = f"CREATE MODEL m TRANSFORM ({ITEMS}) OPTIONS(model_type='logistic_reg', input_label_cols=['sold']) AS SELECT * FROM homes"


@pytest.fixture(params=["duckdb", pytest.param("postgresql", marks=pytest.mark.servers)])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    with ExitStack() as stack:
        db = str(tmp_path / "shop.duckdb")
        if request.param == "postgresql":
            db = stack.enter_context(request.getfixturevalue("postgres").database())
        opened = stack.enter_context(connect(db))
        opened.sql(MAKE.format(series=SERIES[request.param]))
        yield opened


def test_expressions_are_applied_to_raw_rows(session: Session) -> None:
    options = "USING logistic WITH (label = 'sold', validation = 0)"
    session.sql(f"CREATE MODEL m TRANSFORM ({ITEMS}) {options} AS SELECT * FROM homes")
    model = session.catalog.load("m")
    assert [part.columns[0] for part in model.recipe.parts] == ["area", "Big City", "rooms", "next"]
    # What the model says of columns made by hand is what it says of the raw ones.
    session.sql(f"CREATE TABLE made AS SELECT id, {ITEMS} FROM homes")
    session.sql(f'CREATE MODEL by_hand {options} AS SELECT area, "Big City", rooms, next, sold FROM made')
    by_hand = session.sql(
        "SELECT id, prediction, probability_1 FROM (SELECT * FROM made PREDICT BY by_hand) AS p ORDER BY id"
    )
    found = session.sql("SELECT id, prediction, probability_1 FROM (SELECT * FROM homes PREDICT BY m) AS p ORDER BY id")
    assert found.column("prediction") == by_hand.column("prediction")
    assert found.column("probability_1") == pytest.approx(by_hand.column("probability_1"), abs=1e-3)
    truth = session.sql("SELECT sold FROM homes ORDER BY id").column("sold")
    assert np.mean(np.array(truth) == found.column("prediction")) > 0.95, "the area alone would say nothing"


def test_raw_columns_keep_their_names_and_values_and_no_label_is_needed(session: Session) -> None:
    session.sql(CREATE)
    raw = session.sql("SELECT id, area, city, rooms FROM homes ORDER BY id LIMIT 3")
    found = session.sql(
        "SELECT * FROM (SELECT id, area, city, rooms FROM homes WHERE id < 3 PREDICT BY m) AS p ORDER BY id"
    )
    assert found.columns == ("id", "area", "city", "rooms", "prediction", "probability_0", "probability_1")
    assert [tuple(row)[:4] for row in found] == [tuple(row) for row in raw]
    text = "WITH few AS (SELECT * FROM homes WHERE id < 3) SELECT * FROM ML.PREDICT(MODEL m, (SELECT area, city, rooms FROM few))"
    assert session.sql(text).columns == ("area", "city", "rooms", "predicted_sold", "predicted_sold_probs")
    with pytest.raises(DatabaseError, match="city"):
        session.sql("SELECT area, rooms FROM homes PREDICT BY m")
    with pytest.raises(UsageError, match="has a column 'prediction' already"):
        session.sql("SELECT *, 1 AS prediction FROM homes PREDICT BY m")


def test_measures_explanations_and_views_take_raw_rows(session: Session) -> None:
    session.sql(CREATE)
    accuracy = session.sql(
        "SELECT avg(CASE WHEN prediction = sold THEN 1.0 ELSE 0 END) FROM (SELECT * FROM homes PREDICT BY m) AS p"
    )
    assert session.sql("EVALUATE MODEL m ON SELECT * FROM homes").column("accuracy")[0] == pytest.approx(
        float(accuracy.rows[0][0])
    )
    assert session.sql("EVALUATE MODEL m ON SELECT *, sold AS sale FROM homes WITH (label = 'sale')").column(
        "rows"
    ) == [900]
    warehouse = session.sql("SELECT accuracy FROM ML.EVALUATE(MODEL m, TABLE homes)").rows[0][0]
    assert warehouse == pytest.approx(float(accuracy.rows[0][0]))
    counts = session.sql("SELECT _0, _1 FROM ML.CONFUSION_MATRIX(MODEL m, TABLE homes)").rows
    assert sum(map(sum, counts)) == 900
    assert len(session.sql("SELECT * FROM ML.ROC_CURVE(MODEL m, TABLE homes, [0.5])")) == 1
    row = session.sql("SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, (SELECT * FROM homes WHERE id = 5))").dicts()[0]
    assert {each["feature"] for each in row["top_feature_attributions"]} == {"area", "Big City", "rooms", "next"}
    assert row["area"] == 5 * 37 % 101 - 50
    session.sql("CREATE VIEW scored AS SELECT * FROM homes PREDICT BY m")
    session.sql("INSERT INTO homes VALUES (900, 50, 1, 'Rome', 1)")
    assert session.sql("SELECT prediction FROM scored WHERE id = 900").rows[0][0] == 1
    assert session.sql("SELECT input FROM ML.FEATURE_INFO(MODEL m)").column("input") == [
        "area",
        "Big City",
        "rooms",
        "next",
    ]
    properties = dict(session.sql("DESCRIBE MODEL m").rows)
    assert properties["transform"]["area"] == "area * area"


def test_all_columns_but_some(session: Session) -> None:
    session.sql(
        "CREATE MODEL m transform(* except (ID, area), abs(area) AS size) USING logistic WITH (label = 'sold')"
        " AS SELECT * FROM homes"
    )
    assert {part.columns[0] for part in session.catalog.load("m").recipe.parts} == {"rooms", "city", "size"}
    assert len(session.sql("SELECT * FROM homes PREDICT BY m")) == 900
    with pytest.raises(ColumnError, match="'aera'"):
        session.sql(
            "CREATE MODEL n TRANSFORM (* EXCEPT (aera)) USING linear WITH (label = 'sold') AS SELECT * FROM homes"
        )
    with pytest.raises(UsageError, match="TRANSFORM makes the column 'area' more than once"):
        session.sql(
            "CREATE MODEL n TRANSFORM (*, area / 2 AS area) USING linear WITH (label = 'sold') AS SELECT * FROM homes"
        )


def test_what_is_hashed_is_scored_in_the_client_from_raw_rows(session: Session) -> None:
    session.sql(
        "CREATE MODEL m TRANSFORM (city || '!' AS city, area * area AS area, sold) USING logistic"
        " WITH (label = 'sold', hash = 'city') AS SELECT * FROM homes"
    )
    found = session.sql("SELECT * FROM homes PREDICT BY m")
    assert found.columns[:5] == ("id", "area", "rooms", "city", "sold")
    assert set(found.column("city")) == {"Rome", "Oslo"}
    assert np.mean(np.array(found.column("prediction")) == found.column("sold")) > 0.95
    rows = session.sql("SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, (SELECT * FROM homes WHERE id < 4))")
    assert len(rows) == 4


def test_explain_plans_the_transformed_query(session: Session) -> None:
    plan = "\n".join(session.sql(f"EXPLAIN {CREATE}").lines())
    assert "Copy of the query's result" in plan


def test_rows_from_elsewhere_are_refused(session: Session, tmp_path: Path) -> None:
    session.sql(CREATE)
    file, data = tmp_path / "m.penstock", tmp_path / "homes.csv"
    session.sql(f"EXPORT MODEL m TO '{file}'")
    data.write_text("area,Big City,rooms,next,sold\n1,ROME,2,3,1\n")
    for command in ("predict", "evaluate"):
        more = ["--out", str(tmp_path / "p.parquet")] if command == "predict" else []
        refused = CliRunner().invoke(app, [command, str(file), str(data), *more])
        assert refused.exit_code == 2
        assert "predict in that database" in refused.stderr
    session.sql(f"IMPORT MODEL again FROM '{file}'")
    assert len(session.sql("SELECT * FROM homes PREDICT BY again")) == 900


def test_expressions_of_another_engine_are_refused(database: str, tmp_path: Path) -> None:
    file = tmp_path / "m.penstock"
    with connect() as session:
        session.sql(MAKE.format(series=SERIES["duckdb"]))
        session.sql(f"{CREATE}; EXPORT MODEL m TO '{file}'")
    with connect(database) as session:
        session.sql(MAKE.format(series=SERIES["postgresql"]))
        session.sql(f"IMPORT MODEL m FROM '{file}'")
        with pytest.raises(UsageError, match="TRANSFORM on duckdb, whose expressions PostgreSQL may read otherwise"):
            session.sql("SELECT * FROM homes PREDICT BY m")


def test_a_saved_expression_that_could_do_more_is_not_run(session: Session) -> None:
    session.sql(CREATE)
    model = session.catalog.load("m")
    assert model.transform is not None
    columns = {**model.transform.columns, "area": "pg_sleep(1)"}
    session.catalog.save("m", replace(model, transform=replace(model.transform, columns=columns)), exists="replace")
    for text in (
        "SELECT * FROM homes PREDICT BY m",
        "SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, TABLE homes)",
        "EVALUATE MODEL m ON SELECT * FROM homes",
    ):
        with pytest.raises(SQLSyntaxError, match=r"no function pg_sleep.*drop the model"):
            session.sql(text)
