"""Several connections that see one state of a database.

A connection that does nothing else, the keeper, opens a repeatable-read transaction and exports its snapshot; those that
read import it. Under READ COMMITTED each query would see a state of its own, and a row that is updated meanwhile would be
met twice or not at all. A lost connection is replaced and its work done again; where the keeper is lost, a reader that
lives exports the same snapshot anew; where all are lost, a new snapshot is taken, with a warning.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import psycopg
from psycopg import sql

from penstock.blocks.base import Snapshot
from penstock.blocks.postgres.connect import PINNED, Address, Connection, is_lost
from penstock.closing import Closing
from penstock.errors import ConnectError, SourceError
from penstock.events import log

_T = TypeVar("_T")

WAITS = (0.1, 0.5, 2.0, 5.0)
"""Seconds before each new attempt after a connection was lost; a server that restarts takes a while."""
_FULL = re.compile("too many|connection slots")
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# Training takes as long as it takes; a server's limits on transactions are meant for forgotten ones. Blocks are read in
# the order of their pages by one process, and each query is too short to be worth compiling.
_LOCAL = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "synchronize_seqscans": "off",
    "timezone": "UTC",
    "datestyle": "ISO",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}


class RunQuery(Protocol):
    """Does work with a connection in the snapshot."""

    def __call__(self, work: Callable[[Connection], _T]) -> _T:
        """Return what work makes of a connection."""
        ...


class _Session:
    """A connection, and the generation of the snapshot that its transaction sees; -1 where it has none."""

    __slots__ = ("connection", "generation")

    def __init__(self, connection: Connection) -> None:
        # Parameters are $1, $2: in the usual cursors a percent sign in a name would count as one.
        connection.cursor_factory = psycopg.RawCursor
        self.connection = connection
        self.generation = -1

    def begin(self) -> None:
        """Open a transaction that no limit of the server's ends, and in which no names but the server's own stand unqualified."""
        settings = dict(_LOCAL)
        if self.connection.info.server_version >= 170_000:
            settings["transaction_timeout"] = "0"
        statements = [BEGIN, f"SET LOCAL search_path = {PINNED}"]
        statements += [f"SET LOCAL {name} = '{value}'" for name, value in settings.items()]
        self.connection.execute("; ".join(statements).encode())

    def end(self) -> None:
        """End the transaction, if there is one."""
        self.generation = -1
        if self.connection.info.transaction_status:
            self.connection.execute("ROLLBACK")

    def answer(self) -> None:
        """See whether the server is still there."""
        self.connection.execute("SELECT")

    def close(self) -> None:
        self.generation = -1
        self.connection.close()


class Snapshots(Closing):
    """A pool of connections in one snapshot.

    Parameters
    ----------
    address : Address
        The database.
    connections : int
        How many may read at once, beside the keeper.
    listen : callable, optional
        Is told warnings; they are logged if there is none.

    Attributes
    ----------
    taken : list of Snapshot
        Every snapshot read from, in order.
    warnings : list of str
        What was warned of.
    guard : callable or None
        Is given the keeper's connection once a snapshot is taken: to lock what is to be read, and see that it is there.
    """

    def __init__(self, address: Address, *, connections: int, listen: Callable[[str], None] | None = None) -> None:
        self.address = address
        self.taken: list[Snapshot] = []
        self.warnings: list[str] = []
        self.guard: Callable[[Connection], None] | None = None
        self._most = connections
        self._listen = listen or log.warning
        self._lock = threading.Condition()
        self._idle: list[_Session] = []
        self._busy: set[_Session] = set()
        self._opening = 0
        self._keeper: _Session | None = None
        self._exported: str | None = None
        self._generation = 0
        self._stopped = threading.Event()
        self._process = os.getpid()

    def run(self, work: Callable[[Connection], _T]) -> _T:
        """Return what work makes of a connection in the snapshot; done again on another where that one is lost."""
        self._leave_to_parent()
        lost: BaseException | None = None
        for wait in (*WAITS, None):
            session: _Session | None = None
            try:
                session = self._acquire()
                result = work(session.connection)
            except BaseException as error:
                gone = is_lost(error)
                if session is not None:
                    self._give_back(session, failed=True, lost=gone)
                if not gone or not self.taken:
                    raise
                lost = error
            else:
                self._give_back(session)
                return result
            if wait is not None and self._stopped.wait(wait):
                break
        told = self.address.hide(" ".join(str(lost).split()))
        raise SourceError(
            f"{self.address}: the connection was lost {len(WAITS) + 1} times in a row ({told}); see whether the server is"
            " up, and start again"
        ) from None

    def renew(self) -> None:
        """End the transactions; what is read from now on is read in a new snapshot."""
        self._forget(_Session.end)

    def release(self) -> None:
        """End the transactions and close the connections; reading opens them anew, in a new snapshot."""
        self._forget(_Session.close)

    def close(self) -> None:
        """Close the connections for good; one that is in use is closed when its work is done."""
        self._stopped.set()
        self.release()

    @property
    def open(self) -> bool:
        """Whether a snapshot is being held."""
        return self._exported is not None

    def _acquire(self) -> _Session:
        """Return a connection in the snapshot, opened if none is free and there may be more."""
        session: _Session | None = None
        while session is None:
            with self._lock:
                while not self._idle and len(self._busy) + self._opening >= self._most and not self._stopped.is_set():
                    self._lock.wait()
                if self._stopped.is_set():
                    raise SourceError(f"{self.address} is closed")
                if self._idle:
                    session = self._idle.pop()
                    self._busy.add(session)
                    break
                self._opening += 1
            session = self._another()
        try:
            self._adopt(session)
        except BaseException:
            self._give_back(session, failed=True, lost=True)
            raise
        return session

    def _another(self) -> _Session | None:
        """Open a connection; none where the server has no room for more and those that there are must do."""
        session: _Session | None = None
        try:
            with self._lock:
                self._current()  # the keeper comes first, should there be room for few
            session = _Session(self.address.connect())
        except ConnectError as error:
            with self._lock:
                there = len(self._busy) + len(self._idle) + self._opening - 1
                if not there or not _FULL.search(str(error)):
                    raise
                self._most = there
                told = f"{error}; reading goes on over fewer connections"
                if told not in self.warnings:
                    self._warn(told)
        finally:
            with self._lock:
                self._opening -= 1
                if session is not None:
                    self._busy.add(session)
                self._lock.notify_all()
        return session

    def _adopt(self, session: _Session) -> None:
        """Have a connection see the snapshot; where that is gone with the keeper, from another who holds it."""
        for _ in range(self._most + 2):
            with self._lock:
                if session.generation == self._generation:
                    return
                exported, generation = self._current(), self._generation
            session.end()
            session.begin()
            try:
                self._import(session, exported)
            except psycopg.Error as error:
                if is_lost(error):
                    raise
                session.end()
                self._recover(exported)
            else:
                session.generation = generation
                return
        raise SourceError(f"{self.address}: the snapshot cannot be shared between connections; start again")

    def _import(self, session: _Session, exported: str) -> None:
        session.connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))

    def _current(self) -> str:
        """Return the name of the snapshot, taken now if there is none. The lock is held."""
        if self._exported is None:
            keeper, self._keeper = self._keeper or _Session(self.address.connect()), None
            try:
                keeper.end()
                keeper.begin()
                found = keeper.connection.execute("SELECT pg_current_snapshot()::text, pg_export_snapshot()").fetchone()
                if self.guard is not None:
                    self.guard(keeper.connection)
            except BaseException:
                keeper.close()
                raise
            self._keeper, keeper.generation = keeper, self._generation
            self._exported = str((found or ("", ""))[1])
            self.taken.append(Snapshot(str((found or ("", ""))[0]), datetime.now(UTC)))
        return self._exported

    def _recover(self, exported: str) -> None:
        """Have the snapshot exported by another holder, as its keeper is gone; where there is none, give it up."""
        with self._lock:
            while self._exported == exported:
                held = [s for s in (self._keeper, *self._idle) if s is not None and s.generation == self._generation]
                for session in held:
                    found = self._export(session)
                    if found is None:
                        continue
                    if session is not self._keeper:
                        self._idle.remove(session)
                        if self._keeper is not None:
                            self._keeper.close()
                        self._keeper = session
                    self._exported = found
                    return
                self._drop_closed()
                if any(s.generation == self._generation for s in self._busy):
                    self._lock.wait()  # one that lives will come back from its work
                    continue
                self._exported = None
                self._generation += 1
                self._warn(
                    f"every connection to {self.address} was lost, and the snapshot with them; reading goes on in a new"
                    " one, so rows that were changed in between may differ from those read before"
                )

    def _export(self, session: _Session) -> str | None:
        try:
            found = session.connection.execute("SELECT pg_export_snapshot()").fetchone()
        except psycopg.Error:
            session.close()
            return None
        return str((found or ("",))[0])

    def _give_back(self, session: _Session, *, failed: bool = False, lost: bool = False) -> None:
        with self._lock:
            self._busy.discard(session)
            if lost or self._stopped.is_set():
                session.close()
            elif failed or session.generation != self._generation:
                _try(session, _Session.end)
            if not session.connection.closed:
                self._idle.append(session)
            if lost:  # others may be, too: one attempt is enough to find them all
                for other in self._idle:
                    _try(other, _Session.answer)
                self._drop_closed()
            self._lock.notify_all()

    def _forget(self, part: Callable[[_Session], None]) -> None:
        """Part with the snapshot."""
        self._leave_to_parent()
        with self._lock:
            self._generation += 1
            self._exported = None
            for session in [*self._idle, *([self._keeper] if self._keeper else [])]:
                _try(session, part)
            self._drop_closed()
            self._lock.notify_all()

    def _drop_closed(self) -> None:
        self._idle = [session for session in self._idle if not session.connection.closed]
        if self._keeper is not None and self._keeper.connection.closed:
            self._keeper = None

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        self._listen(message)

    def _leave_to_parent(self) -> None:
        """After a fork, leave the connections to who opened them; the snapshot can be imported while that one lives."""
        if self._process == os.getpid():
            return
        self._lock = threading.Condition()
        self._theirs = [*self._idle, *self._busy, self._keeper]  # kept, as they would be closed with the last reference
        self._idle, self._busy, self._opening, self._keeper = [], set(), 0, None
        self._process = os.getpid()


def _try(session: _Session, do: Callable[[_Session], None]) -> None:
    """Do something with a connection that may be lost, and close it if it is."""
    try:
        do(session)
    except psycopg.Error:
        session.close()
