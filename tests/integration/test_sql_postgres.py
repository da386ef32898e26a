"""The front's engine for PostgreSQL: a session as psql has it, on a real server."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.cached_source import CachedSource
from penstock.errors import ColumnError, DatabaseError, DataError, PenstockError
from penstock.events import Stream
from penstock.sql.engines.base import Reading
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.engines.postgres.table_lookup import find_stored_table
from penstock.sql.options import PackSettings
from penstock.sql.statements import Query, TableSelection
from tests.servers import Server

ROWS = 3000
BOBBY = "Robert'); DROP TABLE x;--"


@pytest.fixture(scope="module")
def address(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        postgres.run(
            f"""
            CREATE TABLE t AS SELECT i AS id, ARRAY[i, 2 * i, 3]::real[] AS features_v, i % 2 AS label
                FROM generate_series(1, {ROWS}) AS i;
            ALTER TABLE t ADD PRIMARY KEY (id);
            CREATE VIEW v AS SELECT * FROM t;
            CREATE MATERIALIZED VIEW mv AS SELECT * FROM t;
            CREATE TABLE parted (id int, x float8, label int) PARTITION BY RANGE (id);
            CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (500);
            CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (500) TO (1000);
            INSERT INTO parted SELECT i, i / 2.0, i % 2 FROM generate_series(0, 999) AS i;
            CREATE SCHEMA away;
            CREATE TABLE away.t AS SELECT 5 AS id, 6 AS label;
            CREATE EXTENSION vector SCHEMA away;
            """,
            at=found,
        )
        yield found


@pytest.fixture
def engine(address: str) -> Iterator[PostgresEngine]:
    with closing(PostgresEngine(address)) as found:
        yield found


def named(table: str, columns: tuple[str, ...] | None = None) -> Query:
    return Query(f"SELECT {', '.join(columns or ('*',))} FROM {table}", TableSelection(table, columns))


def opened(engine: PostgresEngine, query: Query, columns: list[str], **options: Any) -> tuple[Any, pa.Table]:
    with engine.open(query, columns, Reading(**options), stream=Stream()) as found:
        source = found.source
        rows = pa.Table.from_batches([source.read(block) for block in range(len(source.block_rows))])
        return found, rows


def test_statements_of_every_kind(engine: PostgresEngine) -> None:
    assert engine.run("CREATE TEMP TABLE x (a int, b text)").status == "CREATE TABLE"
    assert engine.run("INSERT INTO x VALUES (1, 'a'), ($1, $2)", [2, "100%s"]).status == "INSERT 0 2"
    found = engine.run("SELECT *, '%s %(x)s {}' AS c FROM x ORDER BY a")
    assert (found.columns, found.status) == (("a", "b", "c"), "SELECT 2")
    assert found.rows == [(1, "a", "%s %(x)s {}"), (2, "100%s", "%s %(x)s {}")]
    assert engine.run("UPDATE x SET a = 0 WHERE b LIKE '%a%' RETURNING a").rows == [(0,)]
    assert engine.run("SHOW search_path").columns == ("search_path",)
    assert engine.run("").status == ""
    assert engine.run("SELECT 'infinity'::date, DATE '2020-01-02'").rows == [("infinity", datetime.date(2020, 1, 2))]


def test_transactions_are_the_users_own(engine: PostgresEngine) -> None:
    engine.run("CREATE TEMP TABLE x (a int)")
    for end, rows in (("ROLLBACK", 0), ("COMMIT", 1)):
        engine.run("BEGIN")
        engine.run("INSERT INTO x VALUES (1)")
        engine.run(end)
        assert engine.run("SELECT count(*) FROM x").rows == [(rows,)]
    engine.run("BEGIN")
    with pytest.raises(DatabaseError):
        engine.run("SELECT 1 / 0")
    assert engine.tables() == []
    with pytest.raises(DatabaseError, match="transaction is aborted"):
        engine.run("SELECT 1")
    engine.run("ROLLBACK")


def test_errors_are_the_servers_with_the_place(engine: PostgresEngine) -> None:
    with pytest.raises(DatabaseError) as told:
        engine.run("SELECT id,\n  'é' || labell FROM t")
    first, shown, caret, hint = str(told.value).split("\n")
    assert first == 'line 2, column 10: column "labell" does not exist'
    assert caret.index("^") == shown.index("labell")
    assert hint.startswith("hint: Perhaps")
    assert told.value.code == "42703"
    with pytest.raises(DatabaseError, match="division by zero"):
        engine.run("SELECT 1 / 0")
    with pytest.raises(DatabaseError, match='line 2, column 3: syntax error at or near "form"'):
        engine.describe(Query("SELECT *\n  form t"))


@pytest.mark.parametrize("copy", ["COPY t TO STDOUT", "COPY t FROM STDIN"])
def test_rows_cannot_be_typed_in(engine: PostgresEngine, copy: str) -> None:
    with pytest.raises(DatabaseError, match="cannot be typed in here"):
        engine.run(copy)
    assert engine.run("SELECT count(*) FROM t").rows == [(ROWS,)]


def test_no_password_is_shown(address: str) -> None:
    secret = "s3cr%40t"
    at = address.replace("postgres@", f"postgres:{secret}@")
    with closing(PostgresEngine(at)) as engine:
        assert "s3cr" not in engine.place + repr(engine)
        with pytest.raises(DatabaseError) as told:
            engine.run("SELECT 's3cr@t'::int")
        assert "s3cr" not in str(told.value)
    with pytest.raises(PenstockError) as refused:
        PostgresEngine(at.replace("test_", "nowhere_"))
    assert "s3cr" not in str(refused.value)


def test_describes_without_running(engine: PostgresEngine) -> None:
    engine.run("CREATE TEMP SEQUENCE s")
    engine.run("CREATE DOMAIN pg_temp.share AS numeric CHECK (VALUE >= 0)")
    text = """
        SELECT nextval('s'), 1::int2 AS int2, 1 AS int4, 1::real AS real, 1.5 AS numeric, 1::pg_temp.share AS share, true AS
        bool, 'x' AS text, 'x'::name AS name, '\\x00'::bytea AS bytea, now()::date AS date, now() AS stamp, '{}'::jsonb AS
        json, '{1}'::real[] AS reals, '{1}'::numeric[] AS numerics, '{1}'::bool[] AS bools, '{x}'::text[] AS texts,
        '[1,2]'::away.vector AS vector, '[1,2]'::away.vector(2) AS vector2, NULL AS nothing, 1 AS twice, 2 AS twice -- end"""
    found = engine.describe(Query(text))
    real, double = pa.float32(), pa.float64()
    kinds = [
        pa.int64(),
        pa.int16(),
        pa.int32(),
        real,
        double,
        double,
        pa.bool_(),
        pa.string(),
        pa.string(),
        pa.binary(),
    ]
    kinds += [
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.string(),
        pa.list_(real),
        pa.list_(double),
        pa.list_(pa.bool_()),
    ]
    kinds += [pa.string(), pa.list_(real), pa.list_(real, 2), pa.string(), pa.int32(), pa.int32()]
    assert found.types == kinds
    assert found.names[-2:] == ["twice", "twice"]
    assert engine.run("SELECT nextval('s')").rows == [(1,)]
    with engine.stream_rows(Query(text)) as rows:
        assert rows.schema == found
        assert rows.read_all().num_rows == 1


def test_a_table_that_is_only_named_is_read_in_blocks(engine: PostgresEngine) -> None:
    for table in ("t", "public.t", '"t"', "mv"):
        found, rows = opened(engine, named(table), ["features_v", "label"], connections=2)
        assert isinstance(found.source, CachedSource)
        assert found.scan.title == f"TID Range Scan on public.{'mv' if table == 'mv' else 't'}"
        assert (found.scan.rows, found.scan.exact, found.scan.copied) == (ROWS, True, False)
        assert rows.schema.field("features_v").type == pa.list_(pa.float32(), 3)
        assert sorted(row[0] for row in rows["features_v"].to_pylist()) == list(range(1, ROWS + 1))
    found, rows = opened(engine, named("t"), ["label"], cache=False)
    assert not isinstance(found.source, CachedSource)
    assert "snapshot of its own" in " ".join(found.scan.details)
    found, rows = opened(engine, named("t"), ["label"], cache=10)
    assert ("not kept" in " ".join(found.scan.details), rows.num_rows) == (True, ROWS)
    found, rows = opened(engine, named("parted"), ["x"])
    assert sorted(rows["x"].to_pylist()) == [i / 2 for i in range(1000)]
    assert "2 partitions" in " ".join(found.scan.details)
    sample = engine.sample(named("t"), ["label"], Reading())
    assert sample is not None
    with sample:
        assert (sample.scan.copied, sample.size.nbytes > 50_000, sample.scan.rows) == (False, True, ROWS)


def test_the_sessions_own_names_count(engine: PostgresEngine) -> None:
    engine.run("SET search_path = away, public")
    found, rows = opened(engine, named("t"), ["label"])
    assert (found.scan.title, rows["label"].to_pylist()) == ("TID Range Scan on away.t", [6])
    engine.run("CREATE TEMP TABLE t AS SELECT 7 AS label")
    found, rows = opened(engine, named("t"), ["label"])
    assert "temporary" in found.scan.details[0]
    assert rows["label"].to_pylist() == [7]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (named("v"), "public.v is a view"),
        (Query("SELECT * FROM t WHERE id <= 3000 -- all"), "more than the name"),
        (Query("SELECT a.* FROM t AS a JOIN t AS b USING (id)"), "more than the name"),
    ],
)
def test_other_queries_are_copied(engine: PostgresEngine, query: Query, why: str) -> None:
    found, rows = opened(engine, query, ["features_v", "label"])
    assert found.scan.copied
    assert why in found.scan.details[0]
    assert rows.schema.field("features_v").type.list_size == 3
    assert sorted(row[0] for row in rows["features_v"].to_pylist()) == list(range(1, ROWS + 1))
    foreseen = engine.estimate(query, ["features_v", "label"], Reading())
    assert why in foreseen.details[0]
    assert foreseen.rows > 100
    with pytest.raises(ColumnError, match="no column 'nope'"):
        opened(engine, query, ["nope"])


def test_foreign_tables_are_not_read_in_blocks(engine: PostgresEngine) -> None:
    for text in (
        "BEGIN",
        "CREATE FOREIGN DATA WRAPPER dummy",
        "CREATE SERVER far FOREIGN DATA WRAPPER dummy",
        "CREATE FOREIGN TABLE ft (id int, x float8, label int) SERVER far",
        "CREATE TABLE mixed (id int, x float8, label int) PARTITION BY RANGE (id)",
        "ALTER TABLE mixed ATTACH PARTITION ft FOR VALUES FROM (0) TO (9)",
    ):
        engine.run(text)
    assert find_stored_table(engine._connection, "ft", place="") == (None, "public.ft is a foreign table")
    assert find_stored_table(engine._connection, "mixed", place="")[0] is None
    engine.run("ROLLBACK")


def test_an_open_transaction_is_read_through_itself(engine: PostgresEngine) -> None:
    engine.run("BEGIN")
    engine.run("DELETE FROM t WHERE id > 10")
    found, rows = opened(engine, named("t"), ["label"])
    assert "transaction is open" in found.scan.details[0]
    assert rows.num_rows == 10
    assert engine.run("SELECT count(*) FROM t").rows == [(10,)]  # and it goes on
    engine.run("ROLLBACK")
    assert engine.run("SELECT count(*) FROM t").rows == [(ROWS,)]


def test_rights_are_the_sessions_own(engine: PostgresEngine, address: str, postgres: Server) -> None:
    postgres.run("CREATE ROLE clerk LOGIN; CREATE TABLE own (name text, label int)", at=address)
    postgres.run("INSERT INTO own VALUES ('clerk', 1), ('boss', 2)", at=address)
    postgres.run("CREATE POLICY mine ON own USING (name = current_setting('app.name'))", at=address)
    postgres.run("ALTER TABLE own ENABLE ROW LEVEL SECURITY; GRANT SELECT ON own TO clerk", at=address)
    try:
        engine.run("SET app.name = 'clerk'")
        assert opened(engine, named("own"), ["label"])[1].num_rows == 2  # of a superuser nothing is hidden
        engine.run("SET ROLE clerk")
        assert opened(engine, named("own"), ["label"])[1]["label"].to_pylist() == [1]
        with pytest.raises(DatabaseError, match="permission denied"):
            opened(engine, named("t"), ["label"])
        with closing(PostgresEngine(address.replace("postgres@", "clerk@"))) as other:
            other.run("SET app.name = 'clerk'")  # which other connections know nothing of
            assert opened(other, named("own"), ["label"])[1]["label"].to_pylist() == [1]
    finally:
        postgres.run("DROP OWNED BY clerk; DROP ROLE clerk", at=address)


def test_rows_stream_and_are_kept(engine: PostgresEngine) -> None:
    text = """SELECT i AS id, nullif(i, 3)::int2 AS small, i / 4.0 AS numeric, CASE WHEN i <> 5 THEN i % 2 = 0 END AS odd,
        CASE WHEN i <> 4 THEN 'é' || i END AS text, decode('0a', 'hex') AS raw, DATE '2020-01-31' + i AS day,
        TIMESTAMPTZ '2020-01-01 12:00+00' AS stamp, CASE WHEN i <> 2 THEN array_fill(i::real, ARRAY[i - 1]) END AS list,
        ARRAY[i, nullif(i, 6)]::int8[] AS gaps, ARRAY[i, 0.1]::float8[] AS doubles
        FROM generate_series(1, 500) AS i"""
    with engine.stream_rows(Query(text)) as rows:
        wanted = rows.read_all()
    assert wanted["small"].to_pylist()[:4] == [1, 2, None, 4]
    assert wanted["odd"].to_pylist()[3:6] == [True, None, True]
    assert wanted["day"].to_pylist()[0] == datetime.date(2020, 2, 1)
    assert wanted["list"].to_pylist()[:3] == [[], None, [3.0, 3.0]]
    assert wanted["gaps"].to_pylist()[5] == [6, None]
    assert wanted["doubles"].to_pylist()[1] == [2.0, 0.1]
    with engine.stream_rows(Query(text)) as rows:  # while the rows come they are written over the same connection
        table = engine.store_rows(rows)
    with engine.stream_rows(Query(f"SELECT * FROM {table} ORDER BY id")) as rows:
        assert rows.read_all().equals(wanted)
    with engine.stream_rows(Query("SELECT 1 AS a WHERE false")) as rows:
        assert engine.run(f"SELECT * FROM {engine.store_rows(rows)}").columns == ("a",)
    for odd, told in (("'infinity'::date", "infinity"), ("'{{1},{2}}'::int[]", "2 dimensions")):
        with pytest.raises(DataError, match=told), engine.stream_rows(Query(f"SELECT {odd} AS odd")) as rows:
            rows.read_all()
        engine.run("ROLLBACK")
        engine.run("BEGIN")
        with pytest.raises(DataError, match=told), engine.stream_rows(Query(f"SELECT {odd} AS odd")) as rows:
            rows.read_all()
        with engine.stream_rows(Query("SELECT 1 AS a")) as rows:  # the transaction goes on
            assert rows.read_all().num_rows == 1


def test_nulls_are_counted_or_skipped(engine: PostgresEngine) -> None:
    query = Query("SELECT nullif(id, 7) AS x, features_v FROM t WHERE id < 100 ORDER BY id")
    with pytest.raises(DataError, match="1 row has a null in 'x', the first is row 6"):
        opened(engine, query, ["x", "features_v"], nulls="error")
    _, rows = opened(engine, query, ["x", "features_v"])  # for the recipe to fill
    assert rows.column("x").null_count == 1
    found, rows = opened(engine, query, ["x", "features_v"], nulls="skip")
    assert rows.num_rows == 98
    assert "1 rows with a null are left out" in found.scan.details


def test_primary_keys_and_tables(engine: PostgresEngine) -> None:
    assert engine.keys(named("t")) == ("id",)
    assert engine.keys(named("t", ("label",))) == ()
    assert engine.keys(named("v")) == engine.keys(Query("SELECT 1 AS id")) == ()
    engine.run("CREATE TEMP TABLE mine (a int)")
    found = dict(engine.tables())
    assert list(found["t"]) == ["id", "features_v", "label"]
    assert found["t"]["features_v"] == "real[]"
    assert list(found["away.t"]) == ["id", "label"]
    assert found["mine"] == {"a": "integer"}
    assert not any(name.startswith("pg_") for name in found)


def test_hostile_names(engine: PostgresEngine) -> None:
    quoted = engine.quote(BOBBY)
    columns = ['a"b', "100%s", "back\\slash", "{brace}", "ü ☃", "select", "$1", "c0", "x" * 63]
    made = ", ".join(f"{place} + i AS {engine.quote(name)}" for place, name in enumerate(columns))
    engine.run(f"DROP TABLE IF EXISTS {quoted}")
    engine.run(f"CREATE TABLE {quoted} AS SELECT {made} FROM generate_series(1, 50) AS i")
    try:
        assert engine.describe(named(quoted)).names == columns
        for query in (named(quoted), Query(f"SELECT * FROM {quoted} WHERE true")):
            _, rows = opened(engine, query, columns[::-1], pack=())
            assert [sorted(rows[name].to_pylist())[0] for name in columns] == list(range(1, len(columns) + 1))
        with engine.stream_rows(named(quoted)) as rows:
            assert engine.run(f"SELECT * FROM {engine.store_rows(rows)}").columns == tuple(columns)
        assert engine.run_in_catalog(f"SELECT {engine.quote(columns[1])} FROM public.{quoted} LIMIT 1", []) == [(2,)]
        assert list(dict(engine.tables())[quoted]) == columns
    finally:
        engine.run(f"DROP TABLE {quoted}")


def test_the_catalog_is_part_of_an_open_transaction_only(engine: PostgresEngine) -> None:
    values = np.arange(5, dtype=np.float32)
    for end, kept in (("ROLLBACK", 0), ("COMMIT", 2)):
        engine.run("BEGIN; SET LOCAL search_path = 'public', \"$user\"")
        engine.run_in_catalog("CREATE TABLE public.beside (a real[])")
        for each in (values, np.empty(0, np.float32)):
            found = engine.run_in_catalog("INSERT INTO public.beside VALUES ($1) RETURNING a, '%s'", [each])
            assert np.array_equal(found[0][0], each)
        with pytest.raises(DatabaseError, match="does not exist"):
            engine.run_in_catalog("SELECT * FROM beside")  # names are looked up in pg_catalog alone
        assert engine.run("SELECT a, current_setting('search_path') FROM beside LIMIT 1").rows == [
            (values.tolist(), 'public, "$user"')
        ]
        engine.run(end)
        assert [bool(engine.run("SELECT to_regclass('public.beside')").rows[0][0])] == [bool(kept)]
    assert engine.run_in_catalog("SELECT count(*) FROM public.beside") == [(2,)]
    assert engine.run_in_catalog("DROP TABLE public.beside") == []


def test_notices_come_with_the_statement(engine: PostgresEngine) -> None:
    found = engine.run("DROP TABLE IF EXISTS never_there")
    assert list(found.notices) == ['NOTICE: table "never_there" does not exist, skipping']
    assert list(engine.run("SELECT 1").notices) == []
    said = engine.run("DO $$ BEGIN RAISE WARNING 'mind the %', 'gap'; END $$")
    assert list(said.notices) == ["WARNING: mind the gap"]


def test_a_statement_can_be_stopped(engine: PostgresEngine, address: str) -> None:
    stopped: list[BaseException] = []

    def wait() -> None:
        try:
            engine.run("SELECT pg_sleep(60)")
        except BaseException as error:
            stopped.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with closing(PostgresEngine(address)) as other:
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active'"
        while not other.run(running).rows[0][0]:
            pass
    engine.cancel()
    thread.join()
    assert isinstance(stopped[0], DatabaseError)
    assert "canceling statement" in str(stopped[0])
    assert engine.run("SELECT 1").rows == [(1,)]


def test_a_lost_connection_is_made_anew(engine: PostgresEngine, address: str) -> None:
    number = engine.run("SELECT pg_backend_pid()").rows[0][0]
    with closing(PostgresEngine(address)) as other:
        other.run("SELECT pg_terminate_backend($1)", [number])
    with pytest.raises(DatabaseError):
        engine.run("SELECT 1")
    found = engine.run("SELECT 1")
    assert found.rows == [(1,)]
    assert "made anew" in found.notices[0]


def test_packing(engine: PostgresEngine) -> None:
    engine.run("SET search_path = public, away")
    chosen = PackSettings(("features_v",), ("id", "label"))
    into = engine.quote(BOBBY + "2")
    assert engine.pack("t", into, chosen, stream=Stream()) == ROWS
    _, rows = opened(engine, named(f"public.{into}"), ["features", "id"])
    assert sorted(row[0] for row in rows["features"].to_pylist()) == list(range(1, ROWS + 1))
    engine.run(f"DROP TABLE {into}")
