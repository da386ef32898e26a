"""What stops a training: cancelling, a timeout, a crash; and what it may take, in memory and from others."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

Session = psycopg.Connection[Any]
# One epoch of the first has two billion rows; of the second, rows that take the thread long to learn from.
ENDLESS = {
    "while rows are read": (
        "SELECT penstock.train('SELECT p.* FROM points p, generate_series(1, 100000)', 'svm', 'm',"
        """ '{"classes": [0, 1], "buffer_size": "1MB"}')"""
    ),
    "while a window is learnt from": (
        "SELECT penstock.train('points', 'softmax', 'm', jsonb_build_object('classes',"
        """ (SELECT jsonb_agg(i ORDER BY i) FROM generate_series(0, 9999) i), 'epochs', 1000))"""
    ),
}
endless = pytest.mark.parametrize("query", ENDLESS.values(), ids=list(ENDLESS))


@contextmanager
def running(session: Session, query: str, watch: Session) -> Iterator[list[BaseException]]:
    """Run a query in another thread; go on when its compute thread is there. Give what it failed by, afterwards."""
    failed: list[BaseException] = []
    pid = session.info.backend_pid

    def work() -> None:
        try:
            session.execute(query.encode())
        except psycopg.Error as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 30
    while threads(pid) < 2 and time.monotonic() < until and thread.is_alive():
        watch.execute("SELECT pg_sleep(0.01)")
    assert threads(pid) == 2
    yield failed
    thread.join(30)
    assert not thread.is_alive()


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def unharmed(session: Session) -> None:
    """Check that a session goes on, without a thread or a model left behind."""
    assert threads(session.info.backend_pid) == 1
    session.execute("SELECT penstock.make_catalogue()")
    assert session.execute("SELECT count(*) FROM penstock.models").fetchone() == (0,)
    assert session.execute(
        "SELECT max(rows) FROM penstock.train('points', 'svm', 'after', '{\"validation\": 0}')"
    ).fetchone() == (20_000,)
    assert threads(session.info.backend_pid) == 1


@endless
def test_cancelling_stops_in_the_middle_of_an_epoch(clustered: Session, address: str, query: str) -> None:
    with psycopg.connect(address, autocommit=True) as other:
        with running(clustered, query, other) as failed:
            other.execute("SELECT pg_cancel_backend(%s)", (clustered.info.backend_pid,))
        assert isinstance(failed[0], errors.QueryCanceled)
    unharmed(clustered)


@endless
def test_a_statement_timeout_holds(clustered: Session, query: str) -> None:
    clustered.execute("SET statement_timeout = 300")
    with pytest.raises(errors.QueryCanceled, match="statement timeout"):
        clustered.execute(query.encode())
    clustered.execute("RESET statement_timeout")
    unharmed(clustered)


def test_an_error_in_a_savepoint_leaves_no_thread(clustered: Session) -> None:
    clustered.execute("INSERT INTO points VALUES (-1, '{1}', 0)")
    with clustered.transaction():
        for _ in range(5):
            with pytest.raises(errors.DataException), clustered.transaction():
                clustered.execute("SELECT penstock.train('points', 'svm', 'm', '{\"buffer_size\": \"100kB\"}')")
            assert threads(clustered.info.backend_pid) == 1
    clustered.execute("DELETE FROM points WHERE id = -1")
    unharmed(clustered)


def test_a_cursor_closed_early_leaves_no_thread(clustered: Session) -> None:
    learn = """SELECT penstock.sgd(features_v, label, '{"classes": [0, 1]}') FROM points"""
    with clustered.transaction():
        with clustered.cursor("epochs") as cursor:
            cursor.execute(learn)
            cursor.fetchmany(2)
            assert threads(clustered.info.backend_pid) == 2
        assert threads(clustered.info.backend_pid) == 1
    unharmed(clustered)


def test_terminating_ends_the_backend(clustered: Session, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as other, psycopg.connect(address, autocommit=True) as victim:
        with running(victim, ENDLESS["while a window is learnt from"], other) as failed:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (victim.info.backend_pid,))
        assert failed
    unharmed(clustered)


def test_a_killed_backend_leaves_no_model(clustered: Session, address: str) -> None:
    clustered.execute("SET synchronous_commit = on")  # the tests' servers do without, and would lose it in the crash
    clustered.execute("SELECT penstock.train('points', 'svm', 'kept')")
    with psycopg.connect(address, autocommit=True) as other, psycopg.connect(address, autocommit=True) as victim:
        with running(victim, ENDLESS["while rows are read"], other) as failed:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
        assert isinstance(failed[0], psycopg.OperationalError)
    until = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(address, autocommit=True) as again:
                assert again.execute("SELECT name FROM penstock.models").fetchall() == [("kept",)]
                again.execute("SELECT penstock.train('points', 'svm', 'm')")
                return
        except psycopg.OperationalError:  # the server recovers from the crash
            assert time.monotonic() < until
            time.sleep(0.05)


def test_the_buffer_bounds_memory(clustered: Session) -> None:
    learn = """SELECT penstock.sgd(features_v, label, '{"classes": [0, 1], "buffer_size": "128KiB"}') FROM points"""
    used = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name = 'penstock buffers'"
    with clustered.transaction(), clustered.cursor("epochs") as cursor:
        cursor.execute(learn)
        cursor.fetchmany(2)
        found = clustered.execute(used.encode()).fetchone()
    assert found is not None
    assert 128 << 10 <= found[0] < 160 << 10  # the weights and the thread's own state come on top


@pytest.mark.parametrize("options", [{"batch_size": 5000}, {"batch_size": 19_999, "shuffle": "none"}])
def test_a_buffer_that_cannot_hold_a_batch_is_refused(clustered: Session, options: dict[str, Any]) -> None:
    asked = json.dumps({"buffer_size": "64kB", **options})
    with pytest.raises(errors.ConfigurationLimitExceeded, match="too small"):
        clustered.execute("SELECT penstock.train('points', 'svm', 'm', %s)", (asked,))
    unharmed(clustered)


def test_a_row_that_the_buffer_cannot_hold_is_refused(session: Session) -> None:
    session.execute(
        "CREATE TABLE t AS SELECT array_agg(i::real) AS features_v, 0::real AS label FROM generate_series(1, 20000) i"
    )
    with pytest.raises(errors.ConfigurationLimitExceeded, match="rows of 80008 bytes"):
        session.execute("SELECT penstock.train('t', 'linear', 'm', '{\"buffer_size\": \"100kB\"}')")


def test_a_rate_too_large_is_told(clustered: Session) -> None:
    with pytest.raises(errors.NumericValueOutOfRange, match="left all bounds"):
        clustered.execute("SELECT penstock.train('points', 'linear', 'm', '{\"learning_rate\": 1000}')")
    unharmed(clustered)


def test_two_trainings_at_once(clustered: Session, address: str) -> None:
    start = threading.Barrier(2)
    found: list[Any] = []

    def work() -> None:
        with psycopg.connect(address, autocommit=True) as session:
            start.wait()
            query = (
                "SELECT progressive_loss FROM penstock.train('points', 'svm', NULL, '{\"epochs\": 10, \"seed\": 1}')"
            )
            found.append(session.execute(query).fetchall())

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 2
    assert found[0] == found[1]
    names = clustered.execute("SELECT name FROM penstock.models ORDER BY name").fetchall()
    assert names == [("points_svm",), ("points_svm_2",)]
