"""Versions of models, on both engines: what is replaced is kept, named, chosen, renamed and dropped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DatabaseError, DataError, ModelFileError, SQLSyntaxError, UsageError
from penstock.sql import connect
from penstock.sql.catalog import Catalog
from penstock.sql.engines.duckdb.engine import DuckDBEngine
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.session import Session
from tests.servers import Server

ROWS = 400
TABLE = f"CREATE TABLE t AS SELECT i % 2 AS y, (i % 2) * 2.0 - 1 + (i % 7) / 9.0 AS x FROM generate_series(1, {ROWS}) AS g(i)"
TRAIN = "SELECT * FROM t TRAIN BY {} AS m WITH (label = y, epochs = 1, validation = 0{})"
REPLACE = ", replace = true"


@pytest.fixture(scope="module")
def address(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """A session with a table of two columns, and three versions of a model: of the kinds logistic, svm and linear."""
    place = str(tmp_path / "t.duckdb") if request.param == "duckdb" else request.getfixturevalue("address")
    with connect(place) as found:
        found.sql("DROP SCHEMA IF EXISTS penstock CASCADE; DROP TABLE IF EXISTS t")
        found.sql(TABLE)
        for number, kind in enumerate(("logistic", "svm", "linear")):
            found.sql(TRAIN.format(kind, REPLACE if number else ""))
        yield found


def other_engine(session: Session, request: pytest.FixtureRequest) -> Any:
    engine: Any = session.engine
    if engine.name == "duckdb":
        return DuckDBEngine(engine._connection.cursor())
    return PostgresEngine(request.getfixturevalue("address"))


def shown(session: Session, name: str = "m") -> list[tuple[Any, ...]]:
    """Return the versions of a model with their kinds, and which is the default one."""
    found = session.sql(f"SHOW VERSIONS {name}")
    kinds = [dict(session.sql(f'DESCRIBE MODEL "{name}@{n}"').rows)["kind"] for n in found.column("version")]
    return list(zip(found.column("version"), kinds, found.column("is_default"), strict=True))


def test_what_is_replaced_is_kept_with_where_it_comes_from(session: Session) -> None:
    assert shown(session) == [(1, "logistic", False), (2, "svm", False), (3, "linear", True)]
    found = session.sql("SHOW VERSIONS m")
    names = ("version", "is_default", "owner", "created_at", "statement", "snapshot", "rows", "score")
    assert found.columns == names
    assert found.column("statement") == [
        TRAIN.format(kind, REPLACE if number else "") for number, kind in enumerate(("logistic", "svm", "linear"))
    ]
    assert found.column("rows") == [ROWS] * 3
    assert all(found.column("snapshot"))
    assert all(score > 0.9 for score in found.column("score")[:2])
    assert found.column("created_at") == sorted(found.column("created_at"))
    if session.engine.name == "postgresql":
        assert set(found.column("owner")) == {session.sql("SELECT current_user").rows[0][0]}
    models = session.sql("SHOW MODELS")
    assert [models.column(name) for name in ("name", "version", "kind")] == [["m"], [3], ["linear"]]


def test_create_or_replace_and_import_keep_versions_too(session: Session, tmp_path: Path) -> None:
    session.sql(
        "CREATE OR REPLACE MODEL m OPTIONS(model_type='logistic_reg', input_label_cols=['y']) AS SELECT * FROM t"
    )
    file = tmp_path / "two.penstock"
    session.sql(f"EXPORT MODEL m@2 TO '{file}'; IMPORT OR REPLACE MODEL m FROM '{file}'")
    assert penstock.load(file).to_config().model == "svm"
    assert [row[:2] for row in shown(session)] == [*enumerate(("logistic", "svm", "linear", "logistic", "svm"), 1)]
    assert session.sql("SHOW VERSIONS m").column("statement")[4] == f"IMPORT OR REPLACE MODEL m FROM '{file}'"


@pytest.mark.parametrize("name", ["m@2", '"m@2"', "`m@2`", '"m"@2'])
def test_a_version_is_named_wherever_a_model_is(session: Session, name: str) -> None:
    assert session.sql(f"SELECT * FROM t PREDICT BY {name}").columns == ("y", "x", "prediction")
    assert len(session.sql(f"SELECT predicted_y FROM ML.PREDICT(MODEL {name}, TABLE t)")) == ROWS
    assert dict(session.sql(f"DESCRIBE MODEL {name}").rows)["kind"] == "svm"
    assert session.sql(f"EVALUATE MODEL {name} ON SELECT * FROM t").dicts()[0]["rows"] == ROWS
    assert len(session.sql(f"SELECT * FROM ML.EVALUATE(MODEL {name}, TABLE t)")) == 1
    assert len(session.sql(f"SHOW TRAINING {name}")) == 1
    with pytest.raises(ModelFileError, match="no model 'm@7'"):
        session.sql("SELECT * FROM t PREDICT BY m@7")
    assert session.sql("SELECT * FROM t PREDICT BY m@3").rows == session.sql("SELECT * FROM t PREDICT BY m").rows


def test_a_name_of_a_version_is_none_for_a_model(session: Session) -> None:
    with pytest.raises(UsageError, match="means version 2 of the model 'm'"):
        session.sql("SELECT * FROM t TRAIN BY svm AS m@2 WITH (label = y)")
    with pytest.raises(UsageError, match="means version 9 of the model 'n'"):
        session.catalog.rename("m", "n@9")
    for wrong in (
        "SELECT * FROM t PREDICT BY m@0",
        "ALTER MODEL m SET DEFAULT VERSION x",
        "ALTER MODEL m SET VERSION 2",
    ):
        with pytest.raises(SQLSyntaxError):
            session.sql(wrong)


def test_the_default_version_is_chosen(session: Session) -> None:
    svm = session.sql("SELECT * FROM t PREDICT BY m@2").rows
    session.sql("ALTER MODEL m SET DEFAULT VERSION 2")
    assert shown(session) == [(1, "logistic", False), (2, "svm", True), (3, "linear", False)]
    assert session.sql("SELECT * FROM t PREDICT BY m").rows == svm
    assert session.sql("SHOW MODELS").column("version") == [2]
    session.sql("ALTER MODEL m SET DEFAULT VERSION 2")
    session.sql(TRAIN.format("softmax", REPLACE))
    assert shown(session) == [(1, "logistic", False), (2, "svm", False), (3, "linear", False), (4, "softmax", True)]
    with pytest.raises(ModelFileError, match=r"has no version 9; it has: 1, 2, 3, 4; SHOW VERSIONS"):
        session.sql("ALTER MODEL m SET DEFAULT VERSION 9")
    for statement in (
        "ALTER MODEL nowhere SET DEFAULT VERSION 1",
        "SHOW VERSIONS nowhere",
        "ALTER MODEL nowhere RENAME TO k",
    ):
        with pytest.raises(ModelFileError, match="there is no model 'nowhere'"):
            session.sql(statement)


def test_dropping_versions(session: Session) -> None:
    with pytest.raises(UsageError, match=r"is the default one of model 'm'; .*SET DEFAULT VERSION 2; or drop all"):
        session.sql("DROP MODEL m@3")
    session.sql("DROP MODEL m@1; DROP MODEL IF EXISTS m@1")
    assert [row[0] for row in shown(session)] == [2, 3]
    session.sql("ALTER MODEL m SET DEFAULT VERSION 2; DROP MODEL m@3")
    session.sql(TRAIN.format("svm", REPLACE))
    assert [row[0] for row in shown(session)] == [2, 4], "a number is given once"
    session.sql("DROP MODEL m@2; DROP MODEL m@4")
    assert session.engine.run("SELECT count(*) FROM penstock.models").rows == [(0,)]
    session.sql(TRAIN.format("svm", ""))
    session.sql(TRAIN.format("svm", REPLACE))
    session.sql("DROP MODEL m")
    assert session.engine.run("SELECT count(*) FROM penstock.models").rows == [(0,)]


def test_renaming(session: Session) -> None:
    session.sql(TRAIN.format("svm", "").replace("AS m", "AS taken"))
    with pytest.raises(DataError, match="there is a model 'taken'"):
        session.sql("ALTER MODEL m RENAME TO taken")
    session.sql("ALTER MODEL m RENAME TO n")
    assert shown(session, "n") == [(1, "logistic", False), (2, "svm", False), (3, "linear", True)]
    assert session.sql("SHOW MODELS").column("name") == ["n", "taken"]
    session.sql('ALTER MODEL n RENAME TO "The 100% ""best"""')
    session.sql('DROP MODEL "The 100% ""best"""@1')
    assert session.sql('SHOW VERSIONS "The 100% ""best"""').column("version") == [2, 3]


def test_all_of_it_is_part_of_a_transaction(session: Session) -> None:
    before = session.engine.run("SELECT name, CAST(created_at AS text) FROM penstock.models ORDER BY name").rows
    session.sql("BEGIN")
    session.sql(TRAIN.format("svm", REPLACE))
    session.sql(TRAIN.format("logistic", REPLACE))
    session.sql("ALTER MODEL m SET DEFAULT VERSION 4; DROP MODEL m@1; ALTER MODEL m RENAME TO n")
    assert shown(session, "n") == [(2, "svm", False), (3, "linear", False), (4, "svm", True), (5, "logistic", False)]
    session.sql("ROLLBACK")
    assert session.engine.run("SELECT name, CAST(created_at AS text) FROM penstock.models ORDER BY name").rows == before
    assert shown(session) == [(1, "logistic", False), (2, "svm", False), (3, "linear", True)]


def test_a_model_of_before_there_were_versions_is_the_first(session: Session) -> None:
    session.sql("DROP MODEL m")
    session.sql(TRAIN.format("svm", ""))
    header = json.loads(str(session.engine.run("SELECT CAST(header AS text) FROM penstock.models").rows[0][0]))
    del header["version"]
    text = "UPDATE penstock.models SET header = CAST($1 AS json), name = $2"
    session.engine.run(text, [json.dumps(header), "m"])
    assert shown(session) == [(1, "svm", True)]
    assert session.sql("SHOW VERSIONS m").column("statement") == [None]
    session.sql(TRAIN.format("linear", REPLACE))
    assert shown(session) == [(1, "svm", False), (2, "linear", True)]
    session.sql("DROP MODEL m")
    # One that was called as versions are now stays a model of its own.
    session.sql(TRAIN.format("svm", ""))
    session.engine.run(text, [json.dumps(header), "m@1"])
    session.sql(TRAIN.format("linear", ""))
    session.sql(TRAIN.format("logistic", REPLACE))
    assert session.sql("SHOW MODELS").column("name") == ["m", "m@1"]
    assert shown(session) == [(2, "linear", False), (3, "logistic", True)]
    assert dict(session.sql("DESCRIBE MODEL m@1").rows)["kind"] == "svm"
    session.sql("DROP MODEL m")
    assert session.sql("SHOW MODELS").column("name") == ["m@1"]
    session.sql("DROP MODEL m@1")


def test_sessions_that_replace_a_model_at_the_same_time_lose_no_version(
    session: Session, request: pytest.FixtureRequest
) -> None:
    count = 4
    model = session.catalog.load("m")
    others = [other_engine(session, request) for _ in range(count)]
    barrier, failed = threading.Barrier(count), []

    def save(engine: Any) -> None:
        barrier.wait()
        try:
            Catalog(engine).save("m", model, exists="replace")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(engine,)) for engine in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in others:
        engine.close()
    assert not failed
    assert [version.number for version, _ in session.catalog.versions("m")] == list(range(1, count + 4))


def test_a_transaction_that_was_overtaken_says_so(session: Session, request: pytest.FixtureRequest) -> None:
    other = other_engine(session, request)
    model = session.catalog.load("m")
    session.sql("BEGIN" if session.engine.name == "duckdb" else "BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert "m" in session.catalog
    Catalog(other).save("m", model, exists="replace")
    with pytest.raises(DatabaseError, match=r"(?i)conflict|could not serialize"):
        session.catalog.save("m", model, exists="replace")
    session.sql("ROLLBACK")
    assert len(session.sql("SHOW VERSIONS m")) == 4
    other.close()
