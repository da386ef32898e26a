"""Tables of nulls, text, booleans and dates in SQL: one statement trains, predicts and measures, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.blocks.memory import TableSource
from penstock.errors import DataError
from tests.servers import Server

ROWS = 1200
TABLE = """
    CREATE TABLE t AS SELECT i AS id, CASE WHEN i % 7 <> 0 THEN (i * 37 % 101)::float8 END AS amount,
        CASE WHEN i % 11 <> 0 THEN (ARRAY['red', 'blue', 'green', 'ünï'])[1 + (i * 31 % 4)] END AS color,
        CASE WHEN i % 5 <> 0 THEN (i * 13 % 17) > 8 END AS flag, DATE '2024-01-01' + (i * 7 % 500)::int AS day,
        CASE WHEN i % 13 <> 0 THEN TIMESTAMP '2024-01-01' + (i * 7919 % 100000) * INTERVAL '1 minute' END AS moment,
        CASE WHEN i % 9 <> 0 THEN (i * 53 % 211) * INTERVAL '7 hours' END AS span,
        CASE WHEN i % 3 = 0 THEN '?' ELSE ((i * 17 % 97) / 4.0)::text END AS written,
        CASE WHEN i % 19 <> 0 THEN CASE WHEN (i * 37 % 101) + (i * 31 % 4) * 20 > 80 THEN 'yes' ELSE 'no' END END AS bought
    FROM {} AS g(i)
"""
COLUMNS = "amount, color, flag, day, moment, span, written"


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "duckdb":
        with closing(penstock.connect(":memory:")) as session:
            run(session, TABLE.format(f"range({ROWS})"))
            yield session
        return
    postgres: Server = request.getfixturevalue("postgres")
    with postgres.database() as address, closing(penstock.connect(address)) as session:
        run(session, TABLE.format(f"generate_series(0, {ROWS - 1})"))
        yield session


def run(session: Any, text: str) -> Any:
    return list(session.execute(text))[-1]


@pytest.mark.parametrize("query", ["SELECT * FROM t", "SELECT * FROM t WHERE id >= 0"])
def test_one_line_trains_on_columns_of_every_type(session: Any, query: str) -> None:
    run(session, f"{query} TRAIN BY logistic AS m WITH (label = 'bought', seed = 1)")
    model = session.catalog.load("m")
    assert set(model.recipe.left_out) == {"id"}
    assert {(part.column, part.kind) for part in model.recipe.parts} == {
        *((name, "number") for name in ("amount", "flag", "span", "written")),
        *((name, "date") for name in ("day", "moment")),
        *((name, "category") for name in ("color", "day", "moment")),
    }
    assert model.metrics["held_out_accuracy"] > 0.85
    found = run(session, "EVALUATE MODEL m ON SELECT * FROM t WHERE bought IS NOT NULL")
    assert dict(zip(found.columns, found.rows[0]))["accuracy"] > 0.85


def test_explain_plans_for_such_columns(session: Any) -> None:
    for word in ("EXPLAIN", "EXPLAIN ANALYZE"):
        plan = str(run(session, f"{word} SELECT * FROM t TRAIN BY logistic WITH (label = 'bought')"))
        assert "logistic" in plan


def test_rows_without_a_label_are_predicted_as_the_model_does(session: Any) -> None:
    run(session, "SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'bought')")
    found = run(
        session,
        f"SELECT id, probability_yes FROM (SELECT id, {COLUMNS} FROM t WHERE bought IS NULL PREDICT BY m) AS p ORDER BY id",
    )
    with session.engine.stream_rows(
        penstock.sql.statements.Query("SELECT * FROM t WHERE bought IS NULL ORDER BY id")
    ) as rows:
        source = TableSource.of(rows.read_all())
    wanted = [
        p for batch in session.catalog.load("m").predictions(source) for p in batch["probability_yes"].to_pylist()
    ]
    assert [row[1] for row in found.rows] == pytest.approx(wanted, abs=1e-5)


def test_new_levels_and_nulls_are_predicted(session: Any) -> None:
    run(session, "SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'bought')")
    nothing = "NULL::float8 AS amount, NULL::text AS color, NULL::boolean AS flag, NULL::date AS day, NULL::timestamp AS moment, NULL::interval AS span"
    other = f"SELECT {nothing}, 'NA' AS written UNION ALL SELECT 1, 'mauve', true, DATE '2031-05-05', NULL, INTERVAL '1 month', '3'"
    found = run(session, f"SELECT prediction FROM ({other} PREDICT BY m) AS p")
    assert all(row[0] in ("yes", "no") for row in found.rows)
    run(session, f"CREATE VIEW v AS SELECT prediction FROM (SELECT {COLUMNS} FROM t PREDICT BY m) AS p")
    assert run(session, "SELECT count(prediction) FROM v").rows == [(ROWS,)]


@pytest.mark.parametrize("statement", ["EVALUATE MODEL m ON {}", "SELECT * FROM ML.EVALUATE(MODEL m, ({}))"])
def test_measures_warn_of_values_that_training_did_not_see(
    session: Any, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(
        session,
        "SELECT color, flag, bought FROM t WHERE color IS NOT NULL TRAIN BY logistic AS m WITH (label = 'bought')",
    )
    caplog.clear()
    run(session, statement.format("SELECT 'mauve' AS color, flag, bought FROM t WHERE id < 10"))
    assert "10 rows have levels of 'color' that training did not see" in caplog.messages


def test_columns_of_untyped_nulls_are_missing_in_every_row(session: Any) -> None:
    run(session, f"SELECT bought, {COLUMNS} FROM t TRAIN BY logistic AS m WITH (label = 'bought', seed = 1)")
    for name in COLUMNS.split(", "):
        rest = ", ".join(each for each in COLUMNS.split(", ") if each != name)
        untyped, typed = (
            f"SELECT id, bought, {rest}, {null} AS {name} FROM t" for null in ("NULL", f"nullif({name}, {name})")
        )
        for select in (
            "SELECT prediction, probability_yes FROM ({} PREDICT BY m) AS p ORDER BY id",
            "EVALUATE MODEL m ON {}",
        ):
            found, expected = (run(session, select.format(rows)).rows for rows in (untyped, typed))
            assert found == expected, (name, select)
            assert None not in found[0]


def test_warehouses_statements_do_the_same(session: Any) -> None:
    run(session, "CREATE MODEL w OPTIONS(model_type='logistic_reg', input_label_cols=['bought']) AS SELECT * FROM t")
    assert session.catalog.load("w").kind == "logistic"  # a null is no third class
    found = run(session, f"SELECT predicted_bought FROM ML.PREDICT(MODEL w, (SELECT {COLUMNS} FROM t))")
    assert {row[0] for row in found.rows} == {"yes", "no"}
    measured = run(session, "SELECT * FROM ML.EVALUATE(MODEL w, (SELECT * FROM t WHERE bought IS NOT NULL))")
    assert dict(zip(measured.columns, measured.rows[0]))["roc_auc"] > 0.9


def test_many_levels_are_looked_up(session: Any) -> None:
    series = "range(20000)" if session.engine.name == "duckdb" else "generate_series(0, 19999)"
    run(
        session,
        f"CREATE TABLE wide AS SELECT 'level ' || (i % 1500) AS name, i % 1500 < 700 AS y FROM {series} AS g(i)",
    )
    run(session, "SELECT * FROM wide TRAIN BY logistic AS m WITH (label = 'y')")
    assert session.catalog.load("m").recipe.width == 1500
    assert run(session, "SELECT count(*) FROM (SELECT * FROM wide PREDICT BY m) AS p WHERE prediction <> y").rows == [
        (0,)
    ]


def test_hashed_text_is_predicted_outside(session: Any) -> None:
    run(
        session,
        "SELECT color, amount, bought FROM t TRAIN BY logistic AS m WITH (label = 'bought', hash = 'color:2^8')",
    )
    found = run(session, "SELECT prediction FROM (SELECT color, amount FROM t PREDICT BY m) AS p")
    assert len(found.rows) == ROWS
    assert {row[0] for row in found.rows} == {"yes", "no"}


def test_rows_with_nulls_are_refused_or_left_out_where_asked(session: Any) -> None:
    with pytest.raises(DataError, match=r"null|NULL"):
        run(session, "SELECT amount, bought FROM t TRAIN BY logistic AS m WITH (label = 'bought', nulls = 'error')")
    run(
        session,
        "SELECT amount, bought FROM t TRAIN BY logistic AS m WITH (label = 'bought', nulls = 'skip', test_fraction = 0)",
    )
    whole = sum(i % 7 != 0 and i % 19 != 0 for i in range(ROWS))
    assert session.catalog.load("m").history[-1]["rows"] == whole


@pytest.mark.parametrize("query", ["SELECT {} FROM t", "SELECT {} FROM t WHERE id >= 0"])
def test_numbers_alone_are_filled_too(session: Any, query: str) -> None:
    run(session, query.format("amount, flag, bought") + " TRAIN BY logistic AS m WITH (label = 'bought')")
    amount, flag = session.catalog.load("m").recipe.parts
    assert amount.missing
    assert flag.missing
    values = [i * 37 % 101 for i in range(ROWS) if i % 7 and i % 19]
    assert amount.fill == pytest.approx(np.mean(values), abs=0.01)


@pytest.mark.parametrize("query", ["SELECT {} FROM numbers", "SELECT {} FROM numbers WHERE a >= 0"])
def test_numbers_that_were_never_missing_are_filled_in_rows_to_come(session: Any, query: str) -> None:
    run(session, "CREATE TABLE numbers AS SELECT id * 31 % 7 AS a, id % 5 AS b, id * 31 % 7 > 3 AS y FROM t")
    run(session, query.format("*") + " TRAIN BY logistic AS m WITH (label = 'y')")
    a, _ = session.catalog.load("m").recipe.parts
    assert a.fill == pytest.approx(np.mean([i * 31 % 7 for i in range(ROWS)]), abs=0.01)
    assert run(session, "SELECT prediction FROM (SELECT 6 AS a, NULL::int AS b PREDICT BY m) AS p").rows == [(True,)]


def test_members_of_a_struct_are_features() -> None:
    with closing(penstock.connect(":memory:")) as session:
        run(
            session,
            "CREATE TABLE s AS SELECT {'size': i % 10, 'in': {'color': ['red', 'blue'][1 + i % 2]}} AS item, i % 2 AS y"
            " FROM range(600) g(i)",
        )
        run(session, "SELECT * FROM s TRAIN BY logistic AS m WITH (label = 'y')")
        assert run(session, "SELECT count(*) FROM (SELECT * FROM s PREDICT BY m) AS p WHERE prediction <> y").rows == [
            (0,)
        ]
        found = run(session, "EVALUATE MODEL m ON SELECT * FROM s")
        assert dict(zip(found.columns, found.rows[0]))["accuracy"] == 1


@pytest.mark.parametrize("query", ["SELECT * FROM d", "SELECT * FROM d WHERE x < 2000"])
def test_dates_written_as_numbers_are_told(query: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(penstock.connect(":memory:")) as session:
        days = "20220100 + i % 12 * 100 + 1 + i % 28"
        run(session, f"CREATE TABLE d AS SELECT {days} AS day, i % 1000 AS x, i % 3 = 0 AS y FROM range(2000) AS g(i)")
        run(session, f"{query} TRAIN BY logistic AS m WITH (label = 'y')")
    told = [text for text in caplog.messages if "dates written as numbers" in text and "'day'" in text]
    assert len(told) == 1
    assert "WITH (exclude = 'day')" in told[0]
