"""What happens to a table and its readers in the middle of training: writers, lost connections, rewritten tables."""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.blocks.cached_source import CachedSource
from penstock.blocks.postgres import PostgresSource, snapshots
from penstock.columns.choose import choose_features
from penstock.errors import DataChangedError, DataError, SourceError
from penstock.loader.loader import Loader
from tests.servers import run

MINE = "datname = current_database() AND application_name = 'penstock'"


@pytest.fixture
def table(database):
    run(database, "CREATE TABLE t AS SELECT i AS id, i::real AS x, i % 2 AS y FROM generate_series(0, 4999) i")
    return database


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(snapshots, "WAITS", (0.0,) * 4)


def ids(source, blocks=None):
    blocks = range(len(source.block_rows)) if blocks is None else blocks
    return [i for block in blocks for i in source.read(int(block), ["id"])["id"].to_pylist()]


def sessions(address, *, keeper=None):
    """The server's processes that serve us; only the one that keeps the snapshot, or all but that, if so asked."""
    found = run(address, f"SELECT pid, query FROM pg_stat_activity WHERE {MINE}")
    return [pid for pid, query in found if keeper is None or ("filenode" in query and "ctid" not in query) is keeper]


def kill(address, pids):
    for pid in pids:
        run(address, f"SELECT pg_terminate_backend({pid}, 5000)")


@contextmanager
def waiting(address, statement):
    """Run a statement that has to wait until we let go of the table; it is done when the block ends."""
    with psycopg.connect(address, autocommit=True) as connection:
        thread = threading.Thread(target=connection.execute, args=(statement.encode(),))
        thread.start()
        while not run(address, "SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert thread.is_alive(), "it did not have to wait"
        yield
        thread.join(30)
        assert not thread.is_alive()


def update_between_blocks(source, address):
    """Read all blocks; half way, every row is updated, which moves it to another page."""
    half = len(source.block_rows) // 2
    found = ids(source, range(half))
    run(address, "UPDATE t SET x = x + 1")
    return found + ids(source, range(half, len(source.block_rows)))


def test_an_update_meanwhile_loses_and_doubles_no_row(table):
    with PostgresSource(table, "t", block_size=8192, connections=2) as source:
        assert update_between_blocks(source, table) == list(range(5000))
        assert source.read(0, ["x"])["x"].to_pylist()[:2] == [0.0, 1.0], "rows are as they were when they were counted"
        assert ids(source) == list(range(5000))


def test_without_a_snapshot_rows_are_lost_or_doubled(table, monkeypatch):
    monkeypatch.setattr(snapshots, "BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
    monkeypatch.setattr(snapshots.Snapshots, "_import", lambda self, session, exported: None)
    with PostgresSource(table, "t", block_size=8192, exact=False) as source:
        found = update_between_blocks(source, table)
    assert sorted(found) != list(range(5000)), "else the test above shows nothing"


def test_every_epoch_sees_the_latest_rows(table):
    with PostgresSource(table, "t", block_size=8192, exact=False) as source:
        assert ids(source) == list(range(5000))
        run(table, "INSERT INTO t SELECT i, i, 0 FROM generate_series(5000, 5999) i; DELETE FROM t WHERE id < 100")
        assert ids(source) == list(range(5000))
        source.begin(1)
        source.begin(1)
        assert ids(source) == list(range(100, 6000)), "new pages belong to the last block"
        assert len(source.snapshots) == 2
        assert source.snapshots[0].name != source.snapshots[1].name
        assert source.snapshots[0].at < source.snapshots[1].at
        source.begin(0)
        assert len(source.snapshots) == 2
    with PostgresSource(table, "t", exact=True) as source:
        run(table, "DELETE FROM t WHERE id < 200")
        source.begin(1)
        assert ids(source) == list(range(100, 6000)), "where rows are counted, they stay"


@pytest.mark.parametrize("exact", [True, False])
def test_a_loader_takes_the_rows_of_each_epoch(table, exact):
    with PostgresSource(table, "t", block_size=8192, exact=exact) as source:
        recipe = choose_features(source.schema, features=["id", "x"], label="y", place="t")
        with Loader(source, recipe, "corgipile", memory="150KB", seed=3) as loader:
            assert not loader.plan.resident
            for epoch in range(3):
                x = np.concatenate([window.batch.x[:, 0].copy() for window in loader.epoch(epoch)])
                first = 0 if exact else 100 * epoch
                assert sorted(x.tolist()) == list(range(first, 5000))
                run(table, f"DELETE FROM t WHERE id < {100 * (epoch + 1)}")
        assert len(source.snapshots) == (1 if exact else 3)


@pytest.mark.parametrize(
    "statement", ["TRUNCATE t", "VACUUM FULL t", "DROP TABLE t", "ALTER TABLE t ALTER x TYPE float8"]
)
def test_a_table_rewritten_between_epochs(table, statement):
    with PostgresSource(table, "t", block_size=8192, exact=False) as source:
        source.read(0)
        with waiting(table, statement):  # a snapshot holds the table against it
            source.read(1)
            source.begin(1)
        with pytest.raises(DataChangedError, match=r"public\.t in .*start afresh"):
            source.read(0)
        with pytest.raises(DataChangedError, match=r"public\.t"):
            source.read(1)


def test_a_table_rewritten_while_no_one_held_it(table):
    with PostgresSource(table, "t", block_size=8192, columns=["id", "x"]) as source:
        source.read(0)
        kill(table, sessions(table))
        run(table, "VACUUM FULL t")
        with pytest.raises(DataChangedError, match="truncated, rewritten"):
            source.read(1)
        with pytest.raises(DataChangedError, match="truncated, rewritten"):
            source.read(1)
    with PostgresSource(table, "t", block_size=8192, columns=["id", "x"]) as source:
        source.release()
        source.check()
        run(table, "VACUUM FULL t")
        source._pool.guard = None  # each block looks for itself, too
        with pytest.raises(DataChangedError, match="truncated, rewritten"):
            source.read(1)
        with pytest.raises(DataChangedError, match="truncated, rewritten"):
            source.check()
    with PostgresSource(table, "t", block_size=8192, columns=["id", "x"]) as source:
        source.release()
        run(table, "ALTER TABLE t RENAME x TO z")
        assert source.read(0, ["id"]).num_rows
        with pytest.raises(DataChangedError, match='column "x" does not exist'):
            source.read(0)


@pytest.mark.parametrize("keeper", [True, False])
def test_lost_connections_are_replaced_within_the_snapshot(table, keeper):
    with PostgresSource(table, "t", block_size=8192, connections=2) as source:
        half = len(source.block_rows) // 2
        found = ids(source, range(half))
        run(table, "DELETE FROM t")  # a new snapshot would see nothing
        kill(table, sessions(table, keeper=keeper))
        found += ids(source, range(half, half + 3))
        if keeper:  # now that another keeps it, those that were there before may go
            kill(table, sessions(table)[:1])
        found += ids(source, range(half + 3, len(source.block_rows)))
        assert found == list(range(5000))
        assert len(source.snapshots) == 1
        assert source.warnings == []


def test_a_reader_hands_the_snapshot_on_where_the_keeper_is_lost(table):
    with PostgresSource(table, "t", block_size=8192, connections=2) as source, ThreadPoolExecutor(2) as pool:
        source.read(0)
        run(table, "DELETE FROM t")
        kill(table, [*sessions(table, keeper=True), *sessions(table, keeper=False)[1:]])
        assert len(sessions(table)) == 1
        entered, go = threading.Event(), threading.Event()

        def count(connection):
            entered.set()
            assert go.wait(10)
            return connection.execute("SELECT count(*) FROM public.t").fetchone()[0]

        one = pool.submit(source._run, count)  # on the one connection that is left
        assert entered.wait(10)
        two = pool.submit(source._run, count)  # needs another, and who has the snapshot is busy
        while len(source._pool._busy) < 2:
            assert not two.done()
        go.set()
        assert (one.result(), two.result()) == (5000, 5000)
        assert ids(source) == list(range(5000))
        assert len(source.snapshots) == 1  # the deleted rows are seen: that of the connection that was left


def test_a_connection_that_ends_without_a_word(table):
    with PostgresSource(table, "t", block_size=8192) as source:
        source.read(0)
        run(table, "DELETE FROM t")
        for session in source._pool._idle:
            with socket.socket(fileno=os.dup(session.connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        assert ids(source) == list(range(5000))
        assert len(source.snapshots) == 1


def test_where_all_connections_are_lost_a_new_snapshot_is_taken_and_told(table):
    told = []
    with PostgresSource(table, "t", block_size=8192, listen=told.append) as source:
        found = ids(source, [0])
        kill(table, sessions(table))
        found += ids(source, range(1, len(source.block_rows)))
        assert found == list(range(5000))
        assert len(source.snapshots) == 2
        assert len(told) == 1
        assert "every connection" in told[0]
        assert source.warnings == told
        run(table, "DELETE FROM t WHERE id = 4321")
        kill(table, sessions(table))
        with pytest.raises(DataChangedError, match=r"rows where .* were counted"):
            ids(source)
    with PostgresSource(table, "t", block_size=8192, exact=False, listen=told.append) as source:
        run(table, "DELETE FROM t WHERE id = 1234")
        kill(table, sessions(table))
        assert len(ids(source)) == 4998


def test_a_server_that_does_not_come_back(table, monkeypatch):
    with PostgresSource(table, "t", block_size=8192) as source:
        kill(table, sessions(table))
        monkeypatch.setitem(source._pool.address.settings, "host", "/nowhere")
        with pytest.raises(SourceError, match=r"lost 5 times in a row .*start again"):
            source.read(0)
    with pytest.raises(SourceError, match="closed"):
        source.read(0)


def test_a_server_without_room_for_more_connections(table):
    role, address = "penstock_narrow", table.replace("postgres@", "penstock_narrow@")
    run(table, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3; GRANT SELECT ON t TO {role}")
    try:
        told = []
        with PostgresSource(address, "t", block_size=8192, connections=8, listen=told.append) as source:
            threads = [threading.Thread(target=ids, args=(source,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert ids(source) == list(range(5000))
        assert len(told) == 1
        assert "goes on over fewer connections" in told[0]
    finally:
        run(table, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_limits_of_the_server_do_not_end_our_transactions(table):
    name = table.rpartition("/")[0] and run(table, "SELECT current_database()")[0][0]
    limits = ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"]
    for limit in limits:
        run(table, f"ALTER DATABASE {name} SET {limit} = '10s'")
    with PostgresSource(table, "t") as source:
        for limit in limits:
            assert source._run(lambda c, limit=limit: c.execute(f"SHOW {limit}").fetchone()) == ("0",)
        assert source._run(lambda c: c.execute("SHOW transaction_isolation").fetchone()) == ("repeatable read",)
        assert source._run(lambda c: c.execute("SHOW transaction_read_only").fetchone()) == ("on",)


def test_vacuum_is_not_held_back_once_all_blocks_are_cached(table):
    held = f"SELECT count(*) FROM pg_stat_activity WHERE {MINE} AND backend_xmin IS NOT NULL"
    inner = PostgresSource(table, "t", block_size=8192)
    with CachedSource(inner, ["id", "x"]) as source:
        found = ids(source, range(len(source.block_rows) - 1))
        assert run(table, held)[0][0] >= 1
        found += ids(source, [len(source.block_rows) - 1])
        assert source.complete
        assert found == list(range(5000))
        while run(table, held)[0][0]:  # a process of the server's takes a moment to end
            pass
        run(table, "DROP TABLE t")  # nor is the table locked
        source.check()
        source.begin(1)
        assert ids(source) == list(range(5000))
        assert source.fingerprint == inner.fingerprint
        assert len(inner.snapshots) == 1


def test_values_that_cannot_be_read_are_told_by_their_row(database):
    run(
        database,
        """CREATE TABLE t AS SELECT i AS id, ARRAY[1, 2]::float8[] AS v, '1'::numeric AS n, '{1,2}'::int[] AS w
        FROM generate_series(0, 99) i;
        UPDATE t SET v = '{1,1e300}' WHERE id = 50; UPDATE t SET n = '1e-400' WHERE id = 60""",
    )
    (large,), (small,) = run(database, "SELECT ctid::text FROM t WHERE id IN (50, 60) ORDER BY id")
    with PostgresSource(database, "t") as source:
        with pytest.raises(
            DataError, match=re.escape(f"1e+300 is beyond the range of a float32 in the row at ctid {large}")
        ):
            source.read(0, ["id", "v"])
        with pytest.raises(DataError, match=rf"out of range .* in the row at ctid {re.escape(small)}"):
            source.read(0, ["n", "id"])
        assert source.read(0, ["id", "w"]).num_rows == 100
    for value, words in {
        "'{1}'": "has other than 2 values",
        "'{{1,2},{3,4}}'": "has more than one dimension",
        "'{1,NULL}'": "holds a NULL",
        "NULL": "is NULL",
    }.items():
        with PostgresSource(database, "t", exact=False, columns=["id", "w"]) as source:
            run(database, f"UPDATE t SET w = {value} WHERE id = 70")  # not there when the rows were counted
            source.begin(1)
            with pytest.raises(DataError, match=rf"column 'w' {words}.* in the row at ctid \(\d+,\d+\)"):
                source.read(0)
        run(database, "UPDATE t SET w = '{1,2}' WHERE id = 70")
    run(database, "UPDATE t SET w = '{{1,2}}' WHERE id < 3")
    with pytest.raises(DataError, match=r"column 'w' has more than one dimension in 3 rows"):
        PostgresSource(database, "t", columns=["w"])


def test_a_process_that_was_forked_reads_in_the_same_snapshot(table):
    with PostgresSource(table, "t", block_size=8192) as source:
        source.read(0)
        run(table, "DELETE FROM t")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, pa.array(ids(source, [3])).cast(pa.int32()).to_numpy().tobytes())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            found = np.frombuffer(pipe.read(), np.int32).tolist()
        os.waitpid(child, 0)
        assert found == ids(source, [3])
        assert ids(source) == list(range(5000))


def test_connections_end_with_the_source_also_where_nobody_closes_it(table):
    source = PostgresSource(table, "t")
    source.read(0)
    assert sessions(table)
    del source
    gc.collect()
    while sessions(table):  # a process of the server's takes a moment to end
        pass
