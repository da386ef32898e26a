"""The conformance suite for SQL engines: what `penstock.connect` and ``penstock sql`` rely on.

Subclass `EngineContract` in a test file and say what opens a database; pytest collects the rest::

    class TestMine(EngineContract):
        def make(self, folder):
            return f"mine://{folder / 'shop.db'}"

What an engine declares that it cannot do is left out: predictions as SQL, ``PACK``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.columns.base import is_number
from penstock.errors import ColumnError, DataError, ModelFileError, PenstockError, UsageError
from penstock.events import Stream
from penstock.sql.catalog import Catalog
from penstock.sql.dialect import Dialect
from penstock.sql.engines.base import CatalogRun, Engine, Reading
from penstock.sql.session import Session
from penstock.sql.statements import Query, TableSelection

_ROWS = 200
_TABLE = Query("SELECT * FROM t", TableSelection("t"))


class EngineContract:
    """The suite; each test has an empty database with the table ``t`` (id, x, y), whose label y says whether x > 0."""

    def make(self, folder: Path) -> Any:
        """Return what `penstock.connect` opens: the address of an empty database, which may lie in the folder."""
        raise NotImplementedError

    def rows(self) -> list[tuple[int, float, int]]:
        """Return the rows of the table, in the order of ``id``."""
        x = np.random.default_rng(5).normal(size=_ROWS)
        return [(at, float(value), int(value > 0)) for at, value in enumerate(x)]

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        """A session on the database."""
        with Session(self.make(tmp_path)) as session:
            session.sql("CREATE TABLE t (id integer PRIMARY KEY, x double precision, y integer)")
            session.sql(f"INSERT INTO t VALUES {', '.join(f'({i}, {x!r}, {y})' for i, x, y in self.rows())}")
            yield session

    @pytest.fixture
    def engine(self, session: Session) -> Engine:
        """The engine under test."""
        return session.engine

    def test_declares_its_abilities(self, engine: Engine) -> None:
        assert isinstance(engine.remote, bool)
        assert isinstance(engine.packs, bool)
        assert isinstance(engine.dialect, Dialect)
        assert engine.server_training is None or callable(engine.server_training.accepts)
        assert engine.name
        assert engine.place

    def test_runs_statements(self, engine: Engine) -> None:
        found = engine.run("SELECT id, y FROM t WHERE id < $1 ORDER BY id", [3])
        assert found.columns == ("id", "y")
        assert [tuple(row) for row in found.rows] == [(i, y) for i, _, y in self.rows()[:3]]
        assert engine.run("UPDATE t SET y = y").columns == ()

    def test_writes_constants_and_names(self, engine: Engine) -> None:
        values = [None, True, 3, -0.1, "it's 100%s \\ $1 {x}", 2**40]
        names = ['a"b', "Mixed Case", "select", "x'); --", "größe", "f"]
        text = ", ".join(
            f"{engine.dialect.literal(v)} AS {engine.quote(n)}" for v, n in zip(values, names, strict=True)
        )
        found = engine.run(f"SELECT {text}")
        assert found.columns == tuple(names)
        assert list(found.rows[0]) == values

    def test_tells_errors_and_goes_on(self, engine: Engine) -> None:
        for wrong in ("SELECT nothing FROM nowhere", "SELEC 1"):
            with pytest.raises(PenstockError):
                engine.run(wrong)
        with pytest.raises(PenstockError):
            engine.run_in_catalog("SELECT nothing FROM nowhere")
        assert list(engine.run("SELECT count(*) FROM t").rows[0]) == [_ROWS]

    def test_describes_queries(self, engine: Engine) -> None:
        schema = engine.describe(Query("SELECT y, x * 2 AS double_x, 'a' AS word FROM t -- a comment"))
        assert schema.names == ["y", "double_x", "word"]
        assert pa.types.is_integer(schema.field("y").type)
        assert pa.types.is_floating(schema.field("double_x").type)
        assert not is_number(schema.field("word").type)

    def test_knows_primary_keys_and_tables(self, engine: Engine) -> None:
        assert engine.keys(_TABLE) == ("id",)
        assert engine.keys(Query("SELECT x FROM t WHERE x > 0")) == ()
        assert list(dict(engine.tables())["t"]) == ["id", "x", "y"]

    @pytest.mark.parametrize("query", [_TABLE, Query("SELECT * FROM t WHERE id >= 0")])
    def test_opens_rows_as_blocks(self, engine: Engine, query: Query) -> None:
        sample = engine.sample(query, ["x", "y"], Reading())
        if sample is None:
            estimate = engine.estimate(query, ["x", "y"], Reading())
            assert estimate.title
            assert estimate.copied
        else:
            with sample:
                assert sample.scan.title
                assert sample.size.rows >= int(sample.source.block_rows.sum()) > 0
                assert len(sample.source.read(0, ["x", "y"]))
        with engine.open(query, ["x", "y"], Reading(), stream=Stream()) as opened:
            source = opened.source
            assert set(source.schema.names) == {"x", "y"}
            blocks = [source.read(block, ["x", "y"]) for block in range(len(source.block_rows))]
            assert opened.scan.rows == sum(map(len, blocks)) == _ROWS
            assert opened.scan.copied == (sample is None)
        found = pa.Table.from_batches(blocks)
        assert sorted(zip(*found.to_pydict().values(), strict=True)) == sorted((x, y) for _, x, y in self.rows())

    def test_keeps_refuses_or_skips_nulls(self, engine: Engine) -> None:
        query = Query("SELECT CASE WHEN id <> 3 THEN x END AS x, y FROM t")
        with pytest.raises(DataError, match="null"):
            engine.open(query, ["x", "y"], Reading(nulls="error"), stream=Stream())
        with engine.open(query, ["x", "y"], Reading(), stream=Stream()) as opened:  # for the recipe to fill
            source = opened.source
            found = [source.read(block, ["x"]).column("x").null_count for block in range(len(source.block_rows))]
            assert sum(found) == 1
        with engine.open(query, ["x", "y"], Reading(nulls="skip"), stream=Stream()) as opened:
            assert opened.source.block_rows.sum() == _ROWS - 1
        with pytest.raises(ColumnError):
            engine.open(query, ["z"], Reading(), stream=Stream())

    def test_streams_and_stores_rows(self, engine: Engine) -> None:
        query = Query("SELECT x, y FROM t")
        with engine.stream_rows(query) as rows:
            assert rows.schema.types == engine.describe(query).types
            stored = engine.store_rows(rows)  # over the same session that the rows come from
        again = engine.store_rows(pa.table({"a": pa.array([], pa.int64())}).to_reader())
        assert stored != again
        assert sorted(tuple(row) for row in engine.run(f"SELECT * FROM {stored}").rows) == sorted(
            (x, y) for _, x, y in self.rows()
        )
        empty = engine.run(f"SELECT * FROM {again}")
        assert (empty.columns, len(empty.rows)) == (("a",), 0)

    def test_keeps_models_in_the_open_transaction(self, session: Session, engine: Engine) -> None:
        train = "SELECT x, y FROM t TRAIN BY logistic AS {} WITH (label = y, epochs = 2)"
        for end in ("ROLLBACK", "COMMIT"):
            assert not engine.in_transaction()
            engine.run("BEGIN")
            assert engine.in_transaction()
            session.sql(train.format("m"))
            assert session.sql("SHOW MODELS").column("name") == ["m"]
            assert len(session.sql("SELECT * FROM t PREDICT BY m")) == _ROWS
            engine.run(end)
            assert session.sql("SHOW MODELS").column("name") == ([] if end == "ROLLBACK" else ["m"])
        engine.run("BEGIN")
        session.sql("DROP MODEL m")
        engine.run("ROLLBACK")
        assert "m" in session.catalog

    def test_writes_to_the_catalog_as_a_whole(self, engine: Engine) -> None:
        engine.run("CREATE TABLE notes (a integer)")
        insert = f"INSERT INTO {'public.' if engine.remote else ''}notes VALUES ($1)"
        with pytest.raises(PenstockError), engine.catalog_transaction() as run:
            _run_all(run, [(insert, [6]), ("SELECT nothing FROM nowhere", ())])
        with engine.catalog_transaction() as run:
            run(insert, [7])
        assert [tuple(row) for row in engine.run("SELECT a FROM notes").rows] == [(7,)]
        weights = np.array([0.5, -1.25], np.float32)
        (found,) = engine.run_in_catalog(f"SELECT CAST($1 AS {engine.models.weights_type})", [weights])
        assert np.array_equal(np.asarray(found[0], np.float32), weights)

    def test_keeps_models(self, session: Session, engine: Engine) -> None:
        catalog = Catalog(engine)
        assert catalog.entries() == []
        assert "m" not in catalog
        session.sql("SELECT x, y FROM t TRAIN BY logistic AS m WITH (label = y, epochs = 2)")
        model = catalog.load_linear("m", "this")
        assert catalog.save("n", model)
        assert not catalog.save("n", model, exists="skip")
        assert catalog.save("n", model, exists="replace")
        with pytest.raises(DataError, match="already"):
            catalog.save("n", model)
        assert [(entry.name, entry.label, entry.features) for entry in catalog.entries()] == [
            ("m", "y", 1),
            ("n", "y", 1),
        ]
        assert np.array_equal(catalog.load_linear("n", "this").weights.coef, model.weights.coef)
        assert catalog.load_linear("n", "this").header() == model.header()
        versions = [(version.number, version.is_default) for version, _ in catalog.versions("n")]
        assert versions == [(1, False), (2, True)]
        assert np.array_equal(catalog.load_linear("n@1", "this").weights.coef, model.weights.coef)
        catalog.set_default("n", 1)
        catalog.rename("n", "k")
        assert [(version.number, version.is_default) for version, _ in catalog.versions("k")] == [(1, True), (2, False)]
        catalog.rename("k", "n")
        assert catalog.drop("n")
        with pytest.raises(ModelFileError, match="no model 'n'"):
            catalog.load("n")

    def test_trains_predicts_and_evaluates(self, session: Session) -> None:
        history = session.sql("SELECT x, y FROM t TRAIN BY logistic AS m WITH (label = y, epochs = 3)")
        assert history.column("epoch") == [1, 2, 3]
        found = session.sql("SELECT * FROM (SELECT * FROM t PREDICT BY m) AS p ORDER BY id")
        assert found.columns == ("id", "x", "y", "prediction", "probability_0", "probability_1")
        x = np.array([[x] for _, x, _ in self.rows()], np.float32)
        model = session.catalog.load_linear("m", "this")
        chances = 1 / (1 + np.exp(-(x @ model.weights.coef[0] + model.weights.intercept[0])))
        np.testing.assert_allclose(found.column("probability_1"), chances, rtol=1e-4, atol=1e-6)
        assert np.mean(np.array(found.column("prediction")) == np.array(found.column("y"))) > 0.9
        assert len(session.sql("SELECT * FROM t PREDICT BY m")) == _ROWS
        assert session.sql("EVALUATE MODEL m ON SELECT * FROM t").column("rows") == [_ROWS]
        assert session.sql("SELECT * FROM ML.WEIGHTS(MODEL m)").column("processed_input") == ["x", "__INTERCEPT__"]
        assert len(session.sql("SELECT * FROM ML.TRAINING_INFO(MODEL m)")) == 3
        assert session.sql("SHOW MODELS").column("name") == ["m"]
        plan = session.sql("EXPLAIN SELECT x, y FROM t TRAIN BY svm WITH (label = y)")
        assert plan.columns == ("QUERY PLAN",)
        assert "svm" in plan.rows[0][0]

    def test_writes_predictions_as_sql_where_it_can(self, session: Session, engine: Engine) -> None:
        session.sql("SELECT x, y FROM t TRAIN BY logistic AS m WITH (label = y, epochs = 2)")
        view = "CREATE VIEW v AS SELECT * FROM t PREDICT BY m"
        if engine.dialect.predictions is None:
            with pytest.raises(UsageError, match="cannot be written as SQL"):
                session.sql(view)
            return
        session.sql(view)
        session.sql("DELETE FROM t WHERE id > 9")
        assert len(session.sql("SELECT prediction, probability_1 FROM v")) == 10
        assert len(session.sql("SELECT predicted_y FROM ML.PREDICT(MODEL m, TABLE t)")) == 10

    def test_packs_features_where_it_can(self, session: Session, engine: Engine) -> None:
        statement = "PACK t INTO packed WITH (features = [id, x], label = y)"
        if not engine.packs:
            with pytest.raises(UsageError, match="PACK is not supported"):
                session.sql(statement)
            return
        assert session.sql(statement).status == f"PACK {_ROWS}"
        assert session.sql("PACK t INTO single WITH (features = x, label = y)").status == f"PACK {_ROWS}"
        assert len(session.sql("SELECT * FROM packed TRAIN BY svm AS p WITH (label = y, epochs = 1)")) == 1

    def test_closing_twice_is_closing_once(self, engine: Engine) -> None:
        engine.close()
        engine.close()


def _run_all(run: CatalogRun, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
    for text, parameters in statements:
        run(text, parameters)
