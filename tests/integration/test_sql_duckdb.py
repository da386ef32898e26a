"""DuckDB as the front's engine: what is read in blocks, what is copied, and a model trained over either."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.blocks.duckdb import connect_duckdb
from penstock.blocks.memory import TableSource
from penstock.blocks.write import BlockWriter
from penstock.config import Config
from penstock.errors import ColumnError, DatabaseError, DataError, UsageError, WriteError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import LinearModel
from penstock.memory_learner import linear_job
from penstock.outputs import write_failure
from penstock.sql import connect
from penstock.sql.engines.base import Engine, Reading
from penstock.sql.engines.duckdb.engine import DuckDBEngine
from penstock.sql.options import PackSettings
from penstock.sql.query_copy import as_features, copy_rows
from penstock.sql.statements import Query, TableSelection
from penstock.training import Columns

HOSTILE = 'drop "table" students;-- é'
QUOTED = '"' + HOSTILE.replace('"', '""') + '"'


def named(table, *columns):
    return Query(f"SELECT {', '.join(columns) or '*'} FROM {table}", TableSelection(table, columns or None))


@pytest.fixture
def engine():
    with DuckDBEngine() as engine:
        engine.run("CREATE TABLE t AS SELECT i AS id, i * 0.5 AS a, -i AS b, i % 2 AS label FROM range(5000) r(i)")
        yield engine


def opened(engine, query, columns, **reading):
    return engine.open(query, columns, Reading(**reading), stream=Stream())


def rows(found, columns=None):
    source = found.source
    blocks = [source.read(b, columns) for b in range(len(source.block_rows))]
    return pa.Table.from_batches(blocks).to_pydict() if blocks else {}


def test_is_an_engine(engine):
    checked: Engine = engine
    assert (checked.name, checked.dialect.title, checked.place) == ("duckdb", "DuckDB", "memory")
    assert engine.quote(HOSTILE) == QUOTED


def test_statements(engine):
    assert engine.run("SELECT $2 || 'x' AS s, $1 AS n", [3, HOSTILE]).rows == [(HOSTILE + "x", 3)]
    assert engine.run("INSERT INTO t SELECT 1, 2, 3, 4").status == "INSERT 1"
    assert engine.run("INSERT INTO t SELECT 1, 2, 3, 4 RETURNING id").columns == ("id",)
    assert engine.run("CREATE VIEW v AS SELECT 1 AS a").columns == ()
    assert engine.run("SELECT true AS Success").rows == [(True,)]
    assert (engine.run("SET threads = 2").columns, engine.run("BEGIN").status) == ((), "TRANSACTION")
    with pytest.raises(DatabaseError, match=r"Table with name nope does not exist!(.|\n)*LINE 1: SELECT \* FROM nope"):
        engine.run("SELECT * FROM nope")
    engine.run("ROLLBACK")
    text = pa.table({"a": [1]})  # a variable is no table
    assert text.num_rows
    with pytest.raises(DatabaseError, match="text does not exist"):
        engine.run("SELECT * FROM text")


def test_columns_without_running(engine):
    query = Query(
        "SELECT a, [a, b]::FLOAT[2] AS v, [b] AS l, 1::HUGEINT AS h, 'x'::BLOB AS p, nextval('s') AS n FROM t -- the end"
    )
    engine.run("CREATE SEQUENCE s")
    schema = engine.describe(query)
    assert schema.names == ["a", "v", "l", "h", "p", "n"]
    wanted = [pa.float64(), pa.list_(pa.float32(), 2), pa.list_(pa.float32()), pa.float64(), pa.binary(), pa.int64()]
    assert schema.types == wanted
    assert engine.run("SELECT nextval('s')").rows == [(1,)]
    assert engine.describe(Query("SELECT a, b AS a FROM t")).names == ["a", "a"]
    with pytest.raises(DatabaseError, match="nope"):
        engine.describe(Query("SELECT nope FROM t"))


def test_a_stored_table_is_read_in_blocks(engine):
    with opened(engine, named("t", "id", "label"), ["id", "label"], block_size=20_000) as found:
        assert found.scan.title == "Scan of row groups of main.t"
        assert (found.scan.rows, found.scan.copied, found.scan.exact) == (5000, False, True)
        assert len(found.source.block_rows) > 2
        assert rows(found)["id"] == list(range(5000))
    with engine.sample(named("t"), ["id", "label"], Reading(block_size=20_000)) as sample:
        assert (sample.scan.rows, sample.size.rows, sample.scan.copied) == (5000, 5000, False)
    engine.run(f"CREATE SCHEMA {QUOTED}; CREATE TABLE {QUOTED}.{QUOTED} AS SELECT 1 AS {QUOTED}; USE {QUOTED}")
    for name in (QUOTED, f"{QUOTED}.{QUOTED}", f"memory.{QUOTED}.{QUOTED}"):
        with opened(engine, named(name), [HOSTILE]) as found:
            assert not found.scan.copied
            assert rows(found) == {HOSTILE: [1]}


def test_what_is_copied(engine, tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    engine.run("CREATE VIEW v AS SELECT a FROM t WHERE id < 3; CREATE TEMP TABLE mine AS SELECT 1 AS a")
    engine.run("CREATE TABLE r AS SELECT 4 AS rowid; CREATE SCHEMA s; CREATE TABLE s.u AS SELECT 9 AS a")
    cases = {
        "v is a view": (named("v"), [0.0, 0.5, 1.0]),
        "mine is a temporary table": (named("mine"), [1]),
        "it is no stored table": (named(f"'{tmp_path}/x.parquet'"), [1, 2]),
        "it is more than the name of a table": (Query("SELECT x.a FROM t AS x JOIN s.u ON x.id = u.a -- join"), [4.5]),
    }
    for why, (query, expected) in cases.items():
        with opened(engine, query, ["a"], folder=str(tmp_path)) as found:
            assert rows(found) == {"a": expected}
            assert found.scan.copied
            assert why in found.scan.details[0]
            (left,) = tmp_path.glob(".penstock-query-*")
            assert found.scan.nbytes == sum(file.stat().st_size for file in left.iterdir())
        assert engine.estimate(query, ["a"], Reading()).copied
        assert not list(tmp_path.glob(".penstock-query-*"))
    with opened(engine, named("r"), ["rowid"]) as found:
        assert rows(found) == {"rowid": [4]}
    with pytest.raises(ColumnError, match="the query has no column 'zzz'"):
        opened(engine, Query("SELECT 1 AS a"), ["zzz"])


def test_an_open_transaction_sees_its_own_rows(engine):
    engine.run("BEGIN")
    engine.run("DELETE FROM t WHERE id >= 10")
    with opened(engine, named("t"), ["id"]) as found:
        assert "a transaction is open" in found.scan.details[0]
        assert rows(found)["id"] == list(range(10))
    engine.run("ROLLBACK")
    with opened(engine, named("t"), ["id"]) as found:
        assert (found.scan.rows, found.scan.copied) == (5000, False)


def test_a_copy_is_foreseen(engine):
    query = Query("SELECT a, b FROM t WHERE id < 100")
    foreseen = engine.estimate(query, ["a", "b"], Reading())
    assert foreseen.copied
    assert not foreseen.exact
    assert 0 < foreseen.rows < 5000
    assert foreseen.nbytes == foreseen.rows * 16
    joined = engine.estimate(Query("SELECT x.a FROM t AS x, t AS y WHERE x.id = y.id"), ["a"], Reading())
    assert joined.rows > 1000


def test_keys_and_tables(engine):
    engine.run('CREATE TABLE "Order" (b INTEGER, a INTEGER, c TEXT, PRIMARY KEY (b, a)); CREATE SCHEMA s')
    engine.run("CREATE VIEW s.v AS SELECT 1 AS x; CREATE TEMP TABLE mine AS SELECT 1 AS z")
    assert engine.keys(named('"Order"')) == ("b", "a")
    assert engine.keys(named('"Order"', "a", "c")) == ("a",)
    assert engine.keys(named("t")) == engine.keys(Query("SELECT 1")) == engine.keys(named("nope")) == ()
    found = dict(engine.tables())
    names = {name: list(columns) for name, columns in found.items()}
    assert names == {"t": ["id", "a", "b", "label"], '"Order"': ["b", "a", "c"], "s.v": ["x"], "mine": ["z"]}
    assert found['"Order"'] == {"b": "INTEGER", "a": "INTEGER", "c": "VARCHAR"}


def test_nulls_and_lengths_in_a_copy(engine):
    engine.run(
        "CREATE TABLE n AS SELECT i, if(i % 4 = 1, NULL, i) AS a, if(i = 8, [1, NULL], [1, i])::FLOAT[] AS v FROM range(10) r(i)"
    )
    query = Query("SELECT * FROM n WHERE i >= 0")
    with pytest.raises(DataError, match=r"4 rows have a null in 'a', 'v', the first is row 1 of the result"):
        opened(engine, query, ["a", "v"], nulls="error")
    with pytest.raises(DataError, match=r"1 row has a null in 'v', the first is row 8 of the result"):
        opened(engine, query, ["a", "v"])
    with opened(engine, query, ["a", "i"]) as found:  # for the recipe to fill
        assert rows(found)["a"] == [None if i % 4 == 1 else i for i in range(10)]
    with opened(engine, query, ["a", "v"], nulls="skip") as found:
        assert rows(found)["a"] == [0, 2, 3, 4, 6, 7]
        assert found.source.schema.field("v").type.list_size == 2
        assert "4 rows with a null are left out" in found.scan.details
    engine.run("UPDATE n SET v = [1, 2, 3] WHERE i = 6; DELETE FROM n WHERE i = 8")
    with pytest.raises(DataError, match=r"'v' holds 3 values in row 8 where the rows before have 2"):
        opened(engine, query, ["v"])
    with pytest.raises(DataError, match=r"'v' has 2 values at rowid 0 but 3 at rowid"):
        opened(engine, named("n"), ["v"])
    with opened(engine, Query("SELECT * FROM n WHERE i > 99"), ["v"]) as found:
        assert found.scan.rows == 0


def test_a_copy_tells_its_progress_and_leaves_nothing(engine, tmp_path, monkeypatch):
    heard = []
    engine.run("CREATE VIEW v AS SELECT * FROM t")
    engine.open(named("v"), ["a"], Reading(folder=str(tmp_path)), stream=Stream([heard.append])).close()
    assert heard[0] == Started("copy", None, "rows")
    assert heard[-1] == Finished("copy")
    assert sum(each.amount for each in heard if isinstance(each, Advanced)) == 5000
    assert not list(tmp_path.iterdir())

    def stop(event):
        if isinstance(event, Advanced):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.open(named("v"), ["a"], Reading(folder=str(tmp_path)), stream=Stream([stop]))
    assert not list(tmp_path.iterdir())

    def full(self):
        raise write_failure(self.path, OSError(28, "No space left on device"))

    monkeypatch.setattr(BlockWriter, "_flush", full)
    with pytest.raises(WriteError, match=r"the query cannot be copied to .*: the disk is full .*choose another folder"):
        opened(engine, named("v"), ["a"], folder=str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert engine.run("SELECT 1").rows == [(1,)]  # the connection is free again
    with pytest.raises(WriteError, match="No such file"):
        opened(engine, named("v"), ["a"], folder=str(tmp_path / "none"))


def test_what_a_killed_program_left_is_removed(tmp_path):
    stale = tmp_path / ".penstock-query-999999999-x"
    stale.mkdir()
    (stale / "rows.arrow").write_bytes(b"x")
    copied = copy_rows(pa.table({"a": [1.0]}).to_reader(), ["a"], Reading(folder=str(tmp_path)))
    assert not stale.exists()
    (own,) = tmp_path.iterdir()
    assert str(os.getpid()) in own.name
    del copied
    assert not own.exists()


def test_packed_bytes_and_pairs_in_a_copy(engine):
    packed = [np.array([i, 2], "<f4").tobytes() for i in range(6)]
    pairs = [[0, i] for i in range(6)]
    table = pa.table({"p": pa.array(packed), "features_k": pairs, "features_v": [[1.0] * 2] * 6, "d": [1] * 6})
    with copy_rows(table.to_reader(), ["p", "d"], Reading()) as copied:
        assert copied.source.read(0).column("p").to_pylist()[5] == [5.0, 2.0]
    pack = ("features_k", "features_v")
    with copy_rows(table.to_reader(), [*pack, "d"], Reading(pack=pack)) as copied:
        recipe = Columns(label="d", features=pack).recipe(copied.source)
        assert (recipe.sparse, recipe.width) == (True, 6)
        assert Columns(label="d").recipe(copied.source).width == 6


def test_columns_conform_to_a_model():
    kinds = pa.schema({"v": pa.list_(pa.float64()), "p": pa.binary()})
    rows = pa.RecordBatch.from_pylist([{"v": [1, 2], "p": np.float32([3, 4]).tobytes()}], kinds)
    for some, expected in ((rows, [[3.0, 4.0]]), (rows.slice(0, 0), [])):  # no rows, but told how wide
        found = as_features(some, ["p", "v"], widths={"v": 2, "p": 2})
        assert {each.list_size for each in found.schema.types} == {2}
        assert found.column("p").to_pylist() == expected
    assert as_features(rows.slice(0, 0), ["v"]).schema.field("v").type == pa.list_(pa.float64())
    bad = pa.RecordBatch.from_pylist([{"v": [1, 2]}, {"v": None}], kinds)
    with pytest.raises(DataError, match="'v' is or holds a null in row 8"):
        as_features(bad, ["v"], first_row=7)


def test_memory_is_bounded_by_small_pieces():
    seen = []
    table = pa.table({f"f{i}": np.arange(20_000.0) for i in range(8)})
    names, reading = table.column_names, Reading(pack=tuple(table.column_names), memory=200_000)
    with copy_rows(table.to_reader(), names, reading, stream=Stream([seen.append])) as copied:
        assert copied.rows == 20_000
        assert max(copied.source.block_bytes) < 80_000
    most = max(each.amount for each in seen if isinstance(each, Advanced))
    assert most * 64 <= 50_000


def test_a_model_of_a_packed_copy_scores_the_querys_own_columns(engine):
    query = Query(
        "SELECT a / 2500 AS a, b / 5000 AS b, (id > 2500)::INT AS label FROM t JOIN (SELECT 1 AS one) ON true"
    )
    with opened(engine, query, ["a", "b", "label"], pack=("a", "b")) as found:
        assert found.source.schema.names == ["features", "label"]
        assert found.source.packed("features", "label", None) is not None
        for features in (None, ["a", "b"]):
            columns = Columns(label="label", features=features)
            model = linear_job(found.source, Config(epochs=3, seed=1, memory="8MB"), columns).run()
            assert model.recipe.names == ("a", "b")
    fitted = model.recipe.for_schema(engine.describe(query), place="q", scored=True)
    assert [part.columns for part in fitted.parts] == [("a",), ("b",)]
    saved = LinearModel.of(model.tensors(), model.header(), place="here")
    source = TableSource.of(pa.table({"b": [-0.9, -0.1], "other": ["x", "y"], "a": [0.9, 0.1]}))
    assert [row["prediction"] for batch in saved.predictions(source) for row in batch.to_pylist()] == [1, 0]


def test_packing(engine):
    def pack(*features, kept=("label",), into="p", **options):
        return engine.pack("t", into, PackSettings(features, kept, **options), stream=Stream())

    engine.run("ALTER TABLE t ADD COLUMN l DOUBLE[]; UPDATE t SET l = [a, b]")
    assert pack("a", "b", into=f"memory.main.{QUOTED}") == 5000
    assert engine.describe(named(QUOTED)).field("features").type == pa.list_(pa.float32(), 2)
    assert pack("l", kept=("label", "id")) == pack("a", "b", "label", kept=(), replace=True) == 5000
    assert engine.run("SELECT features[3] FROM p WHERE rowid = 1").rows == [(1.0,)]
    with pytest.raises(DatabaseError, match='"p" already exists'):
        pack("a", "b")
    with pytest.raises(UsageError, match="not both together"):
        pack("a", "l", replace=True)
    engine.run("UPDATE t SET l = [1] WHERE id = 4; UPDATE t SET a = NULL WHERE id < 3")
    with pytest.raises(DataError, match="from 1 to 2 values a row"):
        pack("l", replace=True)
    with pytest.raises(DataError, match="3 rows have a null among the features"):
        pack("a", "b", replace=True)


def test_rows_pass_through_python_and_back(engine):
    engine.run("BEGIN; DELETE FROM t WHERE id >= 40000; INSERT INTO t SELECT i, 1, 1, 1 FROM range(5000, 40000) r(i)")
    with engine.stream_rows(Query("SELECT id, [a, b] AS v FROM t")) as reader:
        assert reader.schema.field("v").type == pa.list_(pa.float32())
        doubled = (batch.append_column("n", batch.column("id")) for batch in reader)
        first = next(doubled)
        kept = engine.store_rows(pa.RecordBatchReader.from_batches(first.schema, iter([first, *doubled])))
    assert engine.run(f"SELECT count(*), sum(n - id), min(len(v)) FROM {kept}").rows == [(40000, 0, 2)]
    engine.run("ROLLBACK")
    assert [name for name, _ in engine.tables()] == ["t"]
    empty = engine.store_rows(pa.table({"x": pa.array([], pa.int8())}).to_reader())
    assert engine.run(f"SELECT count(*) FROM {empty}").rows == [(0,)]


def test_a_statement_is_cancelled_from_another_thread(engine):
    begun = threading.Event()

    def cancel():
        begun.wait()
        while not done.is_set():  # the statement may not have begun yet
            engine.cancel()
            done.wait(0.01)

    done = threading.Event()
    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        begun.set()
        with pytest.raises(DatabaseError, match="Interrupted"):
            engine.run("SELECT count(*) FROM range(1000000000000) r(i) WHERE i * 3 % 7 = 8")
    finally:
        done.set()
        thread.join()


def test_a_connection_of_the_users_own():
    with connect_duckdb(":memory:") as connection:
        connection.execute("SET python_enable_replacements = true; CREATE TABLE t AS SELECT 1 AS a")
        with DuckDBEngine(connection) as engine, opened(engine, named("t"), ["a"]) as found:
            assert rows(found) == {"a": [1]}
        assert connection.execute("SELECT current_setting('python_enable_replacements')").fetchall() == [(True,)]


def test_reading_alone(tmp_path):
    path = str(tmp_path / "shop.duckdb")
    with DuckDBEngine(path) as engine:
        engine.run("CREATE TABLE t AS SELECT 1 AS a")
    with DuckDBEngine(path, read_only=True) as engine:
        assert engine.place == path
        with pytest.raises(DatabaseError, match="read-only"):
            engine.run_in_catalog("INSERT INTO t VALUES (2)")
        with engine.stream_rows(named("t")) as reader:
            assert reader.read_all().to_pydict() == {"a": [1]}
    assert Path(path).exists()


@pytest.mark.parametrize("stored", ["table", "view"])
def test_training_on_a_table_clustered_by_label(engine, stored):
    rng = np.random.default_rng(0)
    y = np.arange(24_000) // 12_000
    x = (rng.standard_normal((24_000, 8)) + 0.8 * (2 * y[:, None] - 1) * (np.arange(8) < 4)).astype(np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 8)
    table = pa.table({"x": features, "label": y})
    kept = engine.store_rows(table.to_reader())
    engine.run(f"CREATE TABLE data AS SELECT * FROM {kept}; CREATE VIEW seen AS SELECT * FROM data")
    test, score = TableSource.of(table, block_size=8_000), {}
    query = named("data" if stored == "table" else "seen")
    with opened(engine, query, ["x", "label"], block_size=8_000 if stored == "table" else None) as found:
        assert found.source.schema.field("x").type.list_size == 8
        for shuffle in ("none", "corgipile", "once"):
            config = Config(epochs=4, shuffle=shuffle, seed=3, memory="700kB", average=False)
            model = linear_job(found.source, config, Columns(label="label"), test=test).run()
            score[shuffle] = model.history[-1]["test_accuracy"]
    assert score["corgipile"] == pytest.approx(score["once"], abs=0.01)  # once: a full shuffle, written to a copy
    assert score["none"] < score["corgipile"] - 0.2


def test_rows_that_do_not_fit_in_memory_are_read_once(tmp_path: Path) -> None:
    """Later epochs come from a local file; the model is the same, to the last bit, as without it."""
    models = []
    with connect(str(tmp_path / "shop.duckdb")) as session:
        session.sql(
            "CREATE TABLE t AS SELECT [i % 97, i % 53, 60 * (i * 7919 % 2)]::FLOAT[3] AS v, i * 7919 % 2 AS label FROM range(60000) r(i)"
        )
        session.sql("CALL enable_logging('QueryLog')")
        asked = []
        for epochs, cache in ((2, "on"), (4, "on"), (4, "off")):
            session.sql("CALL truncate_duckdb_logs()")
            session.sql(
                f"SELECT * FROM t TRAIN BY svm AS m WITH (learning_rate = 0.01, epochs = {epochs}, buffer_size = '200kB',"
                f" cache = {cache}, scratch = '{tmp_path}', replace = true)"
            )
            models.append(session.catalog.load("m"))
            found = session.sql("SELECT message FROM duckdb_logs WHERE type = 'QueryLog' AND message LIKE '%rowid >=%'")
            asked.append(len(found))
    assert asked[0] == asked[1] < asked[2]
    assert np.array_equal(models[1].weights.coef, models[2].weights.coef)
