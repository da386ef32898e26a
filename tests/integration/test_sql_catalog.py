"""The catalogue of models, on both engines: what is saved is what is loaded, and what is damaged is refused."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import DatabaseError, DataError, ModelFileError, UsageError, WriteError
from penstock.linear import LinearModel
from penstock.sgd.model import Weights
from penstock.sql.catalog import Catalog
from penstock.sql.engines.duckdb.engine import DuckDBEngine
from penstock.sql.engines.postgres import engine as server
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.engines.postgres.model_table import PostgresModelTable
from tests.servers import Server

NAMES = [
    "m",
    'say "x"',
    "Robert'); DROP TABLE penstock.models;--",
    "100%s %(a)s",
    "c:\\new",
    "{0}",
    "größe ☃",
    " ",
    "n" * 300,
]


@pytest.fixture(scope="module")
def address(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture(params=["duckdb", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A database without a catalogue."""
    if request.param == "duckdb":
        opened: Any = DuckDBEngine(tmp_path / "penstock.duckdb")  # the database is then called as the schema is
    else:
        opened = PostgresEngine(request.getfixturevalue("address"))
        opened.run("DROP SCHEMA IF EXISTS penstock CASCADE")
    with closing(opened) as found:
        yield found


def model(kind: str = "svm", *, seed: int = 0, width: int = 3, history: Any = ()) -> LinearModel:
    names = [f"x{place}" for place in range(width)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("clicked", pa.string())])
    recipe = choose_features(schema, label="clicked", features=names)
    classes: dict[str, Any] = {"softmax": (1, 2, 3), "logistic": (False, True), "svm": ("it's", "no %s\0\\")}
    if kind != "linear":
        recipe = recipe.with_labels(LabelMap(classes[kind], binary=kind != "softmax"))
    outputs, rng = 3 if kind == "softmax" else 1, np.random.default_rng(seed)
    weights = Weights(rng.normal(size=(outputs, width)).astype(np.float32), rng.normal(size=outputs).astype(np.float32))
    return LinearModel(kind, weights, recipe, {"epochs": 3}, list(history), "abc", {"held_out_accuracy": 0.75})


def same(one: LinearModel, other: LinearModel) -> bool:
    tensors = zip(one.tensors().values(), other.tensors().values(), strict=True)
    return all(np.array_equal(a, b) for a, b in tensors) and repr(one.header()) == repr(other.header())


@pytest.mark.parametrize("kind", ["logistic", "svm", "linear", "softmax"])
def test_what_is_saved_is_loaded(engine: Any, kind: str) -> None:
    history = [
        {
            "epoch": 1,
            "progressive_loss": math.nan,
            "rows": 70,
            "a": [math.inf, -math.inf],
            "b": 1e22,
            "c": -0.0,
            "d": 5e-324,
        }
    ]
    catalog, saved = Catalog(engine), model(kind, history=history)
    assert catalog.entries() == []
    assert catalog.save("m", saved)
    assert same(catalog.load("m"), saved)
    entry = catalog.entries()[0]
    assert (entry.name, entry.kind, entry.label, entry.features) == ("m", kind, "clicked", 3)
    assert (entry.rows, entry.score) == (70, 0.75)
    assert abs(entry.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_names_of_any_kind(engine: Any) -> None:
    catalog = Catalog(engine)
    for seed, name in enumerate(NAMES):
        assert name not in catalog
        catalog.save(name, model(seed=seed))
    for seed, name in enumerate(NAMES):
        assert name in catalog
        assert same(catalog.load(name), model(seed=seed))
        assert catalog.free_name(name) == f"{name}_2"
    assert sorted(entry.name for entry in catalog.entries()) == sorted(NAMES)
    for name in NAMES[1:]:
        catalog.drop(name)
    assert [entry.name for entry in catalog.entries()] == ["m"]
    for name in ("", "a\0b"):
        with pytest.raises(UsageError, match="cannot be called"):
            catalog.save(name, model())


def test_a_name_that_is_taken(engine: Any) -> None:
    catalog = Catalog(engine)
    catalog.save("m", model(seed=1))
    stamp = catalog.find("m")[1]
    assert stamp is not None
    with pytest.raises(DataError, match=r"there is a model 'm' in .* already.*OR REPLACE"):
        catalog.save("m", model(seed=2))
    assert not catalog.save("m", model(seed=2), exists="skip")
    assert same(catalog.load("m"), model(seed=1))
    assert catalog.save("m", model("softmax", seed=2), exists="replace")
    assert same(catalog.load("m"), model("softmax", seed=2))
    later = catalog.find("m")[1]
    assert later is not None
    assert later.made > stamp.made
    catalog.save("m_2", model())
    assert catalog.free_name("m") == "m_3"
    assert catalog.free_name("other") == "other"


def test_models_that_are_not_there(engine: Any) -> None:
    catalog = Catalog(engine)
    for _ in range(2):  # without the table, and with it
        for use in (catalog.load, catalog.drop):
            with pytest.raises(ModelFileError, match=r"there is no model 'hig' in .*; SHOW MODELS lists them") as told:
                use("hig")
        assert not catalog.drop("hig", missing="skip")
        assert engine.place in str(told.value)
        catalog.save("higgs", model(), exists="skip")
        with pytest.raises(ModelFileError, match="did you mean 'higgs'"):
            catalog.load("hogs")
        catalog.drop("higgs")


def test_models_are_part_of_the_open_transaction(engine: Any) -> None:
    catalog = Catalog(engine)
    engine.run("BEGIN")
    catalog.save("m", model())  # the table, too, is made in it
    assert same(catalog.load("m"), model())
    engine.run("ROLLBACK")
    assert catalog.entries() == []
    catalog.save("m", model())
    engine.run("BEGIN")
    catalog.save("m", model(seed=1), exists="replace")
    catalog.save("n", model(seed=2))
    catalog.drop("n")
    assert same(catalog.load("m"), model(seed=1))
    engine.run("ROLLBACK")
    assert same(catalog.load("m"), model())
    engine.run("BEGIN")
    catalog.save("n", model(seed=2))
    engine.run("COMMIT")
    assert [entry.name for entry in catalog.entries()] == ["m", "n"]


def test_a_transaction_sees_the_models_of_its_own_snapshot(engine: Any, request: pytest.FixtureRequest) -> None:
    other: Any = (
        DuckDBEngine(engine._connection.cursor())
        if engine.name == "duckdb"
        else PostgresEngine(request.getfixturevalue("address"))
    )
    catalog = Catalog(engine)
    with closing(other):
        catalog.save("m", model())
        engine.run("BEGIN" if engine.name == "duckdb" else "BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert "m" in catalog
        Catalog(other).save("later", model())
        with pytest.raises(ModelFileError, match="no model 'later'"):
            catalog.load("later")
        engine.run("ROLLBACK")
        assert "later" in catalog


def test_a_failed_transaction_is_not_gone_around(engine: Any) -> None:
    catalog = Catalog(engine)
    catalog.save("m", model())
    engine.run("BEGIN")
    with pytest.raises(DatabaseError):
        engine.run("SELECT CAST(x AS integer) FROM (VALUES ('a')) AS t(x)")
    for use in (lambda: catalog.save("n", model()), catalog.entries):
        with pytest.raises(DatabaseError, match="aborted"):
            use()
    engine.run("ROLLBACK")
    assert [entry.name for entry in catalog.entries()] == ["m"]


def test_a_refusal_leaves_an_open_transaction_as_it_was(engine: Any) -> None:
    catalog = Catalog(engine)
    catalog.save("m", model())
    engine.run("BEGIN")
    engine.run("CREATE TABLE t (a integer)")
    with pytest.raises(DataError, match="already"):
        catalog.save("m", model())
    with pytest.raises(ModelFileError, match="no model 'n'"):
        catalog.drop("n")
    engine.run("COMMIT")
    assert engine.run("SELECT count(*) FROM t").rows == [(0,)]


def test_another_session_that_holds_a_model_is_not_waited_for_long(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LOCKED", 50)
    with closing(PostgresEngine(address)) as engine, closing(PostgresEngine(address)) as other:
        catalog = Catalog(engine)
        catalog.save("m", model(), exists="replace")
        other.run("BEGIN")
        other.run("DELETE FROM penstock.models")
        with pytest.raises(DatabaseError, match="another session's transaction holds it: COMMIT or ROLLBACK"):
            catalog.save("m", model(), exists="replace")
        Catalog(other).save("m", model(), exists="replace")  # a session does not wait for itself


def test_wide_models(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = choose_features(pa.schema({"x": pa.list_(pa.float32(), 100_000), "y": pa.float32()}), label="y")
    weights = Weights(np.random.default_rng(0).normal(size=(1, 100_000)).astype(np.float32), np.zeros(1, np.float32))
    saved, catalog = LinearModel("linear", weights, recipe), Catalog(engine)
    catalog.save("wide", saved)
    assert np.array_equal(catalog.load("wide").weights.coef, weights.coef)
    monkeypatch.setattr(PostgresModelTable, "most_weights", 99_999)
    if engine.name == "postgresql":
        with pytest.raises(UsageError, match=r"100,000 weights .* penstock\.bigmodel"):
            catalog.save("wider", saved)
    weights.coef[0, 7] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        catalog.save("odd", saved)
    assert "odd" not in catalog


def _damages(header: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "coef", [1.0]
    yield "coef", [1.0, None, 1.0]
    yield "coef", [1.0, math.nan, 1.0]
    yield "intercept", [1.0, 2.0]
    yield "width", 2
    yield "outputs", 0
    yield "kind", "linear"
    for part in ("encoder", "kind", "history", "metrics"):
        yield "header", {key: value for key, value in header.items() if key != part}
        yield "header", {**header, part: 5}
        yield "header", {**header, part: [["x"]]}
    yield "header", {**header, "encoder": {**header["encoder"], "labels": None}}
    yield "header", {**header, "encoder": {**header["encoder"], "parts": header["encoder"]["parts"][:2]}}
    yield "header", []
    yield "header", "text"


def test_rows_that_are_damaged(engine: Any) -> None:
    catalog, saved = Catalog(engine), model()
    for column, value in _damages(saved.header()):
        catalog.save("m", saved, exists="replace")
        kind = {"coef": "::float4[]", "intercept": "::float4[]", "header": "::json"}.get(column, "")
        given = json.dumps(value) if column == "header" else value
        engine.run(f"UPDATE {catalog.table} SET {column} = $1{kind} WHERE name = 'm'", [given])
        with pytest.raises(ModelFileError, match=r"model 'm' in .* is damaged.*dropped and trained"):
            catalog.load("m")
        assert [entry.name for entry in catalog.entries()] == ["m"]
        assert catalog.drop("m")


def test_a_later_format_is_refused(engine: Any) -> None:
    catalog = Catalog(engine)
    catalog.save("m", model())
    engine.run(f"UPDATE {catalog.table} SET format = 4, penstock_version = '9.9'")
    with pytest.raises(ModelFileError, match=r"newer Penstock \(9.9: format 4, this one reads up to 3\)"):
        catalog.load("m")


def test_sessions_that_make_it_at_the_same_time(engine: Any, request: pytest.FixtureRequest) -> None:
    count = 6
    if engine.name == "postgresql":
        others: list[Any] = [PostgresEngine(request.getfixturevalue("address")) for _ in range(count)]
    else:
        others = [DuckDBEngine(engine._connection.cursor()) for _ in range(count)]
    barrier, failed = threading.Barrier(count), []

    def save(number: int) -> None:
        catalog = Catalog(others[number])
        barrier.wait()
        try:
            catalog.save(f"m{number}", model(seed=number))
            catalog.save("shared", model(), exists="replace")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(Catalog(engine).entries()) == count + 1
    for other in others:
        other.close()


def test_it_stays_where_it_was_opened() -> None:
    with closing(DuckDBEngine()) as engine:
        catalog = Catalog(engine)
        catalog.save("m", model())
        engine.run("ATTACH ':memory:' AS \"other\"")
        engine.run("USE other")
        assert "m" in catalog
        catalog.drop("m")


@pytest.fixture
def poor(database: str, postgres: Server) -> Iterator[tuple[str, str]]:
    """A database, and its address for a user with no rights there; the name is a hostile one."""
    name = 'po"or; --'
    quoted = psycopg.sql.Identifier(name).as_string(None)
    postgres.run(f"CREATE ROLE {quoted} LOGIN")
    with psycopg.connect(database) as connection:
        place = connection.info.dbname
    yield database, psycopg.conninfo.make_conninfo(postgres.address(place), user=name)
    postgres.run(f"DROP OWNED BY {quoted}", at=database)
    postgres.run(f"DROP ROLE {quoted}")


def test_a_user_without_rights_is_told_what_to_ask_for(poor: tuple[str, str], postgres: Server) -> None:
    database, address = poor
    with closing(PostgresEngine(address)) as engine:
        catalog = Catalog(engine)
        assert catalog.entries() == []
        with pytest.raises(WriteError, match="this user may not make one") as told:
            catalog.save("m", model())
        asked = str(told.value).split("\n")[1:]
        assert len(asked) == 2
        postgres.run("\n".join(asked), at=database)  # as the message says
        catalog.save("m", model())
        assert same(catalog.load("m"), model())


def test_a_user_who_may_only_look(poor: tuple[str, str], postgres: Server) -> None:
    database, address = poor
    with closing(PostgresEngine(database)) as owner:
        Catalog(owner).save("m", model())
    with closing(PostgresEngine(address)) as engine:
        catalog = Catalog(engine)
        with pytest.raises(WriteError, match="GRANT USAGE ON SCHEMA") as told:
            catalog.load("m")
        postgres.run("\n".join(str(told.value).split("\n")[1:]), at=database)
        assert same(catalog.load("m"), model())
        with pytest.raises(WriteError, match="INSERT, UPDATE, DELETE") as told:
            catalog.save("n", model())
        with pytest.raises(WriteError, match="INSERT, UPDATE, DELETE"):
            catalog.drop("m")
        postgres.run("\n".join(str(told.value).split("\n")[1:]), at=database)
        catalog.save("n", model())
        catalog.drop("m")


def test_other_errors_are_passed_on(engine: Any) -> None:
    catalog = Catalog(engine)
    engine.run(f"CREATE SCHEMA {'penstock.penstock' if engine.name == 'duckdb' else 'penstock'}")
    engine.run(f"CREATE TABLE {catalog.table} (kind text)")
    with pytest.raises(DatabaseError, match='"name"'):
        catalog.save("m", model())
