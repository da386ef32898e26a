"""Results of statements as Arrow, pandas and polars tables: rows, names, and the engine's own types."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.errors import MissingExtraError
from penstock.sql import Result, Session, connect

# Values that both engines write alike, with the type that they have as Arrow.
COLUMNS = {
    "'1'::smallint": pa.int16(),
    "'1'::integer": pa.int32(),
    "'1'::bigint": pa.int64(),
    "'1'::real": pa.float32(),
    "'1'::double precision": pa.float64(),
    "'1.50'::numeric(6, 2)": pa.decimal128(6, 2),
    "true": pa.bool_(),
    "'x'::text": pa.string(),
    "'2024-02-29'::date": pa.date32(),
    "'2024-02-29 12:30:00'::timestamp": pa.timestamp("us"),
    "'10:00:00'::time": pa.time64("us"),
    "'2 days'::interval": pa.month_day_nano_interval(),
    "'499b79ad-0083-4e0a-998d-73438e174801'::uuid": pa.string(),
    "NULL::integer": pa.int32(),
}


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    db = str(tmp_path / "shop.duckdb") if request.param == "duckdb" else request.getfixturevalue("database")
    with connect(db) as opened:
        yield opened


@pytest.mark.parametrize("rows", ["", " WHERE false"])
def test_types_of_columns_are_the_engines(session: Session, rows: str) -> None:
    names = [f"c{at}" for at in range(len(COLUMNS))]
    found = session.sql(f"SELECT {', '.join(f'{value} AS {name}' for value, name in zip(COLUMNS, names))}{rows}")
    table = found.to_arrow()
    assert dict(zip(COLUMNS, table.schema.types, strict=True)) == COLUMNS
    assert table.schema.names == names
    assert table.num_rows == len(found) == (0 if rows else 1)
    if not rows:
        assert table.to_pylist()[0]["c12"] == "499b79ad-0083-4e0a-998d-73438e174801"


def test_times_with_a_zone_are_those_moments(session: Session) -> None:
    found = session.sql(
        "SELECT TIMESTAMPTZ '2026-03-01 12:00:00+02' AS t, 1 AS one UNION ALL SELECT NULL, 2 ORDER BY one"
    )
    assert found.rows == [(datetime.datetime(2026, 3, 1, 10, tzinfo=datetime.UTC), 1), (None, 2)]


def test_lists_and_names_that_stand_twice(session: Session) -> None:
    array = "[1.5, 2]::real[]" if session.engine.name == "duckdb" else "'{1.5,2}'::real[]"
    table = session.sql(f"SELECT {array} AS a, 1 AS a").to_arrow()
    assert table.schema.names[0] == "a"
    assert table.column(0).to_pylist() == [[1.5, 2.0]]
    assert table.column(0).type.value_type == pa.float32()


def test_a_numeric_of_any_size_is_a_double(database: str) -> None:
    with connect(database) as session:
        table = session.sql("SELECT x FROM (VALUES (1.25::numeric), ('NaN'), (NULL)) AS t(x)").to_arrow()
        assert table.column("x").type == pa.float64()
        assert table.column("x").to_pylist()[0] == 1.25
        assert session.sql("SELECT ARRAY[1.5::numeric] AS x").to_arrow().column("x").to_pylist() == [[1.5]]
        assert session.sql("SELECT '{\"a\": 1}'::jsonb AS x").to_arrow().column("x").to_pylist() == ['{"a": 1}']


def test_a_result_is_iterated_by_rows(session: Session) -> None:
    found = session.sql("SELECT x, x * 2 AS y FROM (VALUES (1), (2)) AS t(x) ORDER BY x")
    assert [tuple(row) for row in found] == [(1, 2), (2, 4)]
    assert len(found) == 2
    frame = found.df()
    assert list(frame.columns) == ["x", "y"]
    assert frame["y"].tolist() == found.to_df()["y"].tolist() == [2, 4]


def test_statements_without_rows_have_no_columns(session: Session) -> None:
    for text in ("CREATE TABLE t (a integer)", "INSERT INTO t VALUES (1)", "DROP MODEL IF EXISTS m", ""):
        found = session.sql(text)
        assert (found.columns, len(found), list(found)) == ((), 0, [])
        assert found.to_arrow().num_columns == 0
    assert session.sql("SELECT a FROM t WHERE false").columns == ("a",)


def test_our_own_results_are_tables_too(session: Session) -> None:
    assert session.sql("SHOW MODELS").to_arrow().schema.names[:2] == ["name", "version"]
    assert Result(("value",), [("logistic",), (3,), ([0, 1],), (None,)]).to_arrow().column("value").to_pylist() == [
        "logistic",
        "3",
        "[0, 1]",
        None,
    ]


def test_polars_gets_the_arrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(("x",), [(1,), (2,)])
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: table.to_pydict()))
    assert result.pl() == {"x": [1, 2]}
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match="pip install polars"):
        result.pl()


def test_the_rows_of_a_model_are_those_that_it_learned_from_in_the_end(session: Session) -> None:
    session.sql("CREATE TABLE t AS SELECT x::float8 AS x, x % 7 < 3 AS y FROM generate_series(1, 800) AS g(x)")
    trained = session.sql("SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'y')")
    assert "800 rows in all" in "\n".join(session.catalog.load("m").describe().lines)
    assert session.sql("SHOW MODELS").column("rows") == session.sql("SHOW VERSIONS m").column("rows") == [800]
    assert trained.status == "TRAIN 800"
    session.sql("SELECT * FROM t TRAIN BY logistic AS n WITH (label = 'y', test_fraction = 0.25)")
    learned = session.catalog.load("n").history[-1]["rows"]
    assert 500 < learned < 700
    assert [row["rows"] for row in session.sql("SHOW MODELS").dicts() if row["name"] == "n"] == [learned]
