"""How far a training is can be seen from another session, and whose it is decides by whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.extension import ExtensionServer
from tests.servers import LATEST

Session = psycopg.Connection[Any]
SHOWN = "SELECT pid, model, kind, phase, epoch, epochs, windows, rows, rows_total, loss, eta FROM penstock.progress"
# So many epochs that it never ends by itself.
ENDLESS = (
    """SELECT penstock.train('points', 'svm', 'mine', '{"epochs": 1000000, "buffer_size": "200kB", "validation": 0}')"""
)

pytestmark = pytest.mark.skipif(LATEST < 17, reason="the server has no progress of extensions")


@contextmanager
def running(address: str, statement: str) -> Iterator[int]:
    """Run a statement in another session until the block ends; give its process."""
    with psycopg.connect(address, autocommit=True) as session, psycopg.connect(address, autocommit=True) as other:

        def work() -> None:
            with suppress(errors.QueryCanceled):
                session.execute(statement.encode())

        thread = threading.Thread(target=work)
        thread.start()
        yield session.info.backend_pid
        while thread.is_alive():
            other.execute("SELECT pg_cancel_backend(%s)", (session.info.backend_pid,))
            thread.join(0.1)


def until(session: Session, wanted: str) -> Any:
    """Return the row of progress once there is one of which that holds."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = session.execute(f"{SHOWN} WHERE {wanted}".encode()).fetchall()
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"no training came so far: {wanted}")


def test_a_training_is_seen_from_elsewhere_while_it_runs(clustered: Session, address: str) -> None:
    assert clustered.execute(SHOWN.encode()).fetchall() == []
    with running(address, ENDLESS) as pid:
        pid_seen, model, kind, phase, epoch, epochs, windows, rows, total, loss, eta = until(
            clustered, "epoch > 3 AND windows > 1"
        )
        assert (pid_seen, model, kind, phase, epochs, total) == (pid, "mine", "svm", "sgd", 1_000_000, 20_000)
        assert 1 < windows < 40
        assert 0 < rows <= 20_000
        assert 0 < loss < 1
        assert eta.total_seconds() > 0
        later = until(clustered, f"epoch > {epoch}")
        assert later[0] == pid
    assert clustered.execute(SHOWN.encode()).fetchall() == []


def test_a_training_that_fails_or_ends_leaves_no_place_taken(clustered: Session) -> None:
    for _ in range(70):  # more than there are places
        with pytest.raises(errors.DataException, match="not a target"):
            clustered.execute("SELECT penstock.sgd('{1}'::real[], 2::real, '{}')")
    clustered.execute("SELECT penstock.train('points', 'logistic', 'm')")
    assert clustered.execute(SHOWN.encode()).fetchall() == []


def test_what_others_learn_is_told_to_those_who_may_read_their_statistics(
    clustered: Session, extended: ExtensionServer, address: str
) -> None:
    clustered.execute("CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA penstock TO guest")
    try:
        with running(address, ENDLESS) as pid:
            until(clustered, "epoch > 0")
            with psycopg.connect(extended.address(clustered.info.dbname, user="guest"), autocommit=True) as guest:
                assert guest.execute(SHOWN.encode()).fetchall() == [(pid, *[None] * 10)]
                found = guest.execute("SELECT datname, usename FROM penstock.progress").fetchall()
                assert found == [(clustered.info.dbname, clustered.info.user)]
                clustered.execute("GRANT pg_read_all_stats TO guest")
                assert until(guest, "epoch > 0")[1] == "mine"
    finally:
        clustered.execute("DROP OWNED BY guest; DROP ROLE guest")
