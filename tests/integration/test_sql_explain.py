"""EXPLAIN of a training looks at a few blocks of a table, however large it is, and runs nothing of a query."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.errors import UsageError
from penstock.sql import Session, connect
from tests.servers import Server

COLUMNS = """
    i AS id, CAST(i % 2 AS integer) AS label, CAST(i % 97 - 48 + 40 * (i % 2) AS real) AS x, CAST(i % 53 AS real) AS y,
    'level ' || (i % 7) AS kind, repeat('x', 100) AS rest
"""


def make(name: str, rows: int, *, duck: bool) -> str:
    series = f"range({rows}) AS r(i)" if duck else f"generate_series(0, {rows - 1}) AS r(i)"
    return f"CREATE TABLE {name} AS SELECT {COLUMNS} FROM {series}"


def tree(session: Session, text: str) -> str:
    return "\n".join(session.sql(f"EXPLAIN {text}").lines())


@pytest.fixture(scope="module")
def large(postgres: Server) -> Iterator[str]:
    """A database with a small table, and one of 40 times its size."""
    with postgres.database() as address:
        for name, rows in (("small", 5_000), ("large", 200_000)):
            postgres.run(f"{make(name, rows, duck=False)}; ANALYZE {name}", at=address)
        yield address


def pages(postgres: Server, address: str, name: str) -> int:
    """Return how many pages of a table were asked for so far, when all who asked have gone and have said so."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while postgres.run(others, at=address)[0][0]:
        time.sleep(0.01)
    return int(postgres.run(f"SELECT pg_stat_get_blocks_fetched('{name}'::regclass)", at=address)[0][0])


def pages_read(postgres: Server, address: str, name: str, text: str) -> int:
    before = pages(postgres, address, name)
    with connect(address) as session:
        assert "predicted" in tree(session, text)
    return pages(postgres, address, name) - before


def test_a_table_is_looked_at_in_a_few_places_whatever_its_size(postgres: Server, large: str) -> None:
    text = "SELECT * FROM {} TRAIN BY logistic"
    read = {name: pages_read(postgres, large, name, text.format(name)) for name in ("small", "large")}
    whole = int(postgres.run("SELECT pg_relation_size('large') / 8192", at=large)[0][0])
    assert whole > 3_000
    assert read["large"] < whole / 3  # four blocks of a 64th of the table each, counted and fetched


def test_times_with_a_zone_need_no_package_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)  # as if it were not installed
    with connect(":memory:") as session:
        hours = "TIMESTAMPTZ '2024-01-01' + i * INTERVAL 1 HOUR"
        session.sql(
            f"CREATE TABLE hours AS SELECT {hours} AS t, [{hours}] AS ts, i % 2 AS label FROM range(3000) AS r(i)"
        )
        assert "predicted" in tree(session, "SELECT t, ts, label FROM hours TRAIN BY logistic")
        assert "predicted" in tree(
            session, "ANALYZE SELECT t, label FROM hours WHERE t > '2024-02-01' TRAIN BY logistic"
        )


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x, y, label FROM large WHERE y > 5",
        "SELECT a.x, b.y, a.label FROM large AS a JOIN large AS b USING (id)",
        "SELECT kind, label, avg(x) AS x FROM large GROUP BY kind, label ORDER BY x",
        "SELECT * FROM seen",
    ],
)
def test_nothing_of_a_query_is_run_on_postgresql(postgres: Server, large: str, query: str) -> None:
    postgres.run("CREATE OR REPLACE VIEW seen AS SELECT DISTINCT x, y, label FROM large", at=large)
    assert pages_read(postgres, large, "large", f"{query} TRAIN BY logistic") == 0


def test_what_is_expected_of_a_query_is_the_servers_estimate(large: str) -> None:
    with connect(large) as session:
        told = tree(session, "SELECT x, y, label FROM large WHERE id < 100000 TRAIN BY svm")
        plan = session.sql("EXPLAIN SELECT x, y, label FROM large WHERE id < 100000").rows[0][0]
    rows = int(plan.split("rows=")[1].split()[0])
    assert f"about {rows:,} rows" in told
    assert "to prepare (copy " in told


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[tuple[Session, list[int]]]:
    """A session on DuckDB, and a list that grows whenever a query's rows are asked for: by a function in the query."""
    calls: list[int] = []

    def noted(value: int) -> int:
        calls.append(value)
        return value

    connection = duckdb.connect(str(tmp_path / "shop.duckdb"))
    connection.execute(make("small", 5_000, duck=True))
    connection.execute(make("large", 400_000, duck=True))
    connection.create_function("noted", noted, ["BIGINT"], "BIGINT", side_effects=True)  # type: ignore[arg-type]  # of names
    with connect(connection) as session:
        yield session, calls
    connection.close()


@pytest.mark.parametrize("clause", ["", " WHERE y > 5", " ORDER BY y"])
def test_nothing_of_a_query_is_run_on_duckdb(duck: tuple[Session, list[int]], clause: str) -> None:
    session, calls = duck
    query = f"SELECT noted(id) AS n, x, y, label FROM small{clause}"
    assert "predicted" in tree(session, f"{query} TRAIN BY logistic")
    session.sql("CREATE VIEW seen AS SELECT noted(id) AS n, x, y, label FROM small")
    assert "to prepare (copy " in tree(session, "SELECT * FROM seen TRAIN BY logistic")
    assert not calls
    session.sql(f"{query} TRAIN BY logistic AS m WITH (epochs = 1)")
    assert len(calls) > 1_000


def test_the_warehouses_dialect_does_not_look_for_classes(duck: tuple[Session, list[int]]) -> None:
    session, calls = duck
    options = "OPTIONS (model_type = 'logistic_reg', input_label_cols = ['n'])"
    assert "logistic" in tree(session, f"CREATE MODEL m {options} AS SELECT noted(id % 3) AS n, x, y FROM small")
    assert not calls
    session.sql("CREATE TABLE t AS SELECT id % 3 AS n, x, y FROM small")
    assert "softmax" in tree(session, f"CREATE MODEL m {options} AS SELECT * FROM t"), (
        "a table's blocks tell the classes"
    )


def test_as_many_statements_for_a_large_table_as_for_a_small_one(duck: tuple[Session, list[int]]) -> None:
    session, _ = duck
    session.sql("CALL enable_logging('QueryLog')")
    counts = []
    for name in ("small", "large"):
        session.sql("CALL truncate_duckdb_logs()")
        assert "predicted" in tree(session, f"SELECT * FROM {name} TRAIN BY logistic")
        asked = [row[0] for row in session.sql("SELECT message FROM duckdb_logs WHERE type = 'QueryLog'").rows]
        of_rows = [text for text in asked if f'"{name}"' in text and "rowid >=" in text]
        assert of_rows
        counts.append(len(of_rows))
    assert counts[1] <= counts[0] + 30, "a bounded number of ranges"


def test_analyze_trains_and_keeps_nothing(duck: tuple[Session, list[int]]) -> None:
    session, calls = duck
    told = tree(session, "ANALYZE SELECT noted(id) AS n, x, y, label FROM small TRAIN BY logistic WITH (epochs = 1)")
    assert len(calls) == 5_000
    assert told.count("to prepare (copy ") == 2, "predicted, and measured"
    assert session.sql("SHOW MODELS").rows == []


def test_rows_of_every_type_can_be_stood_in_for(duck: tuple[Session, list[int]], large: str) -> None:
    typed: dict[str, Any] = {
        "bool": "i % 2 = 0",
        "day": "DATE '2024-01-01'",
        "moment": "TIMESTAMP '2024-01-01 00:00:00'",
        "number": "CAST(i AS numeric)",
        "small": "CAST(i % 100 AS smallint)",
        "words": "'a' || i",
        "list": "ARRAY[i, 1, 2]",
        "packed": "CAST('?abc' AS bytea)",
    }
    for session, series in ((duck[0], "range(50) AS r(i)"), (connect(large), "generate_series(0, 49) AS r(i)")):
        with session:
            for name, value in typed.items():
                query = f'SELECT {value} AS "{name}(1) = 2", i * 2 AS other, i % 2 AS label FROM {series}'
                assert "predicted" in tree(session, f"{query} TRAIN BY svm"), name


def test_a_small_share_of_memory_is_told_of(duck: tuple[Session, list[int]]) -> None:
    session, _ = duck
    told = tree(session, "SELECT * FROM large TRAIN BY svm WITH (learning_rate = 0.1, memory = '10%')")
    assert "windows of about" in told
    with pytest.raises(UsageError):
        tree(session, "SELECT x, y FROM large TRAIN BY svm")
