"""PostgreSQL behind the front: a session as psql has it, and nothing installed on the server.

A stored table that is only named is read in blocks, over connections of their own that share a snapshot, into a local
cache. Every other query is run once through the session itself, which sees its temporary tables, its open transaction,
its role and settings, and is copied to a file. Models are read and written in the session's transaction where one is open, and
otherwise over a connection of their own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.blocks.postgres.connect import PINNED, Address, driver
from penstock.blocks.postgres.qualify import qualified
from penstock.budget import show_bytes
from penstock.closing import Closing
from penstock.columns.base import is_number
from penstock.errors import ColumnError, DatabaseError, SQLSyntaxError, UsageError
from penstock.events import Stream, Warned
from penstock.sql.dialect import Dialect, quote_identifier
from penstock.sql.engines import base
from penstock.sql.engines.postgres.cursor_rows import (
    LOOK_UP,
    QueryColumn,
    column_definitions,
    copied_values,
    query_columns,
    stream_query,
)
from penstock.sql.engines.postgres.model_table import PostgresModelTable
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.engines.postgres.result_types import result_types
from penstock.sql.engines.postgres.server_training import ExtensionTraining
from penstock.sql.engines.postgres.table_lookup import KEYS, NAMED, TABLES, TO_BE_NAMED, StoredTable, find_stored_table
from penstock.sql.engines.postgres.value_adapters import adapt_arrays, end_copy, load_unknown_as_text
from penstock.sql.query_copy import QueryCopy
from penstock.sql.statements import Query

if TYPE_CHECKING:
    from penstock.sql.options import PackSettings

_SCAN = "TID Range Scan on {}"
_CACHE = 20_000_000_000
_COST_SECONDS = 4e-6
"""About the seconds of a unit of the server's costs, which is a page of 8 kB read in order; in memory it takes no longer."""
_IDLE, _IN_TRANSACTION = 0, 2
_VERSION = qualified("SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'penstock'")
_PATH, _SET_PATH = (
    "SELECT pg_catalog.current_setting('search_path')",
    "SELECT pg_catalog.set_config('search_path', %s, true)",
)
_LOCKED = 10_000
"""Milliseconds that a statement on the table of models waits for others, outside of a transaction of the session."""


def open_postgres(db: str, *, read_only: bool = False) -> PostgresEngine:
    """Open a session on a server."""
    if read_only:
        raise UsageError("read-only is for DuckDB files; for PostgreSQL, connect as a user that may only read")
    return PostgresEngine(db)


class PostgresEngine(Closing):
    """A session on a PostgreSQL database, 14 or later.

    Parameters
    ----------
    address : str
        ``postgresql://user@host/database``, or libpq's ``key=value`` words.

    Attributes
    ----------
    notices : list of str
        What the server had to say beside results, since `drain` was last called.
    """

    name = "postgresql"
    dialect: Dialect = POSTGRES
    remote = True
    packs = True

    def __init__(self, address: str) -> None:
        self._address = Address.parse(address)
        self.place = str(self._address)
        self.notices: list[str] = []
        self._kept = 0
        self._connection = self._connect()
        self.models: base.ModelTable = PostgresModelTable(self)
        self.server_training: base.ServerTraining | None = ExtensionTraining(self)

    def run(self, text: str, parameters: Sequence[Any] = ()) -> base.StatementRows:
        """Run one statement; rows come back as Python values."""
        with self._session(text) as connection, driver().RawCursor(connection) as cursor:
            cursor.execute(text.encode(), list(parameters) or None)
            status = cursor.statusmessage or ""
            if cursor.description is None:
                return base.StatementRows(status=status, notices=self.drain())
            names = tuple(column.name for column in cursor.description)
            types = result_types(cursor)
            return base.StatementRows(names, cursor.fetchall(), status, self.drain(), types)

    def describe(self, query: Query) -> pa.Schema:
        """Return a query's columns as Arrow types, without running it."""
        return pa.schema([column.field for column in self._columns(query)])

    def keys(self, query: Query) -> tuple[str, ...]:
        """Return the columns of a stored table's primary key that the query selects."""
        if query.selected is None:
            return ()
        present = set(self.describe(query).names)
        return tuple(row[0] for row in self._ask(KEYS, [query.selected.table]) if row[0] in present)

    def open(self, query: Query, columns: Sequence[str], reading: base.Reading, *, stream: Stream) -> base.QueryBlocks:
        """Open a query's rows as blocks."""
        table, why = self._way(query)
        if table is not None:
            source, details = self._blocks(table, columns, reading, stream)
            rows, nbytes = int(source.block_rows.sum()), int(source.block_bytes.sum())
            scan = base.QueryScan(_SCAN.format(table.name), tuple(details), rows, nbytes, exact=source.exact_rows)
            return base.QueryBlocks(source, scan)
        return base.blocks_of_copy(self._copied(query, columns, reading, stream), why)

    def estimate(self, query: Query, columns: Sequence[str], reading: base.Reading) -> base.QueryScan:
        """Say how `open` would copy a query, by what the server estimates of it."""
        _, why = self._way(query)
        plan = self._ask(f"EXPLAIN (FORMAT JSON) {query.alone}")[0][0][0]["Plan"]
        schema = self.describe(query)
        kinds = [schema.field(name).type for name in columns]
        return base.estimate_copy(why, int(plan["Plan Rows"]), kinds, seconds=_COST_SECONDS * float(plan["Total Cost"]))

    def sample(self, query: Query, columns: Sequence[str], reading: base.Reading) -> base.QuerySample | None:
        """Open a few blocks of a stored table; None for what would be copied."""
        table, _ = self._way(query)
        if table is None:
            return None
        from penstock.blocks.cached_source import CachedSource
        from penstock.blocks.postgres.source import PostgresSource
        from penstock.blocks.sampled_source import SampledSource

        began = time.perf_counter()
        source = PostgresSource(
            self._address,
            table.name,
            columns=columns,
            block_size=reading.block_size,
            nulls=reading.nulls,
            connections=reading.connections,
            listen=lambda warning: None,
            sample=base.SAMPLED_BLOCKS,
        )
        seconds, size = time.perf_counter() - began, source.whole
        limit = self._cache_limit(SampledSource(source, size), columns, reading)
        if limit is None or not reading.scanned:  # or rows are counted by the scan
            seconds += source.survey_seconds
        scan = base.QueryScan(
            _SCAN.format(table.name),
            tuple(_details(table, source.threads, reading, limit)),
            size.rows,
            size.nbytes,
            exact=False,
        )
        rows = source if limit is None else CachedSource(source, list(columns), folder=reading.folder)
        return base.QuerySample(rows, size, scan, seconds, exact=limit is not None)

    @contextmanager
    def stream_rows(self, query: Query) -> Iterator[pa.RecordBatchReader]:
        """Give a query's rows as a stream; the session can be used between its batches."""
        columns, text = self._columns(query), query.alone
        kept = range(len(columns))
        with self._session(text) as connection, stream_query(connection, text, columns, kept) as rows:
            yield rows

    def store_rows(self, rows: pa.RecordBatchReader) -> str:
        """Put rows into a new temporary table, and return its quoted name."""
        self._kept += 1
        name = f"pg_temp.{quote_identifier(f'penstock_rows_{self._kept}')}"
        with self._session() as connection:
            connection.execute(f"CREATE TEMPORARY TABLE {name} ({column_definitions(rows.schema)})".encode())
            for batch in rows:  # a COPY to each, so that the connection is free while the next is fetched
                columns = [copied_values(column) for column in batch.columns]
                with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN".encode()) as copying:
                    for row in zip(*columns, strict=True):
                        copying.write_row(row)
        return name

    def pack(self, table: str, into: str, chosen: PackSettings, *, stream: Stream) -> int:
        """Copy a table with its features as one packed column; return its rows."""
        from penstock.blocks.postgres.packing import pack

        identifier = driver().sql.Identifier
        found = self._ask(NAMED, [table])
        new = self._ask(TO_BE_NAMED, [into])[0]
        schema = self.describe(Query(f"SELECT * FROM {table}"))
        return pack(
            self._address,
            identifier(*found[0]) if found else driver().sql.SQL(table),
            identifier(*new),
            features=chosen.features,
            kept=chosen.kept,
            number=is_number(schema.field(chosen.features[0]).type),
            to=chosen.to,
            replace=chosen.replace,
            stream=stream,
        )

    def in_transaction(self) -> bool:
        """Return whether a transaction is open, failed ones included."""
        return not self._connection.closed and self._connection.info.transaction_status != _IDLE

    @contextmanager
    def catalog_transaction(self) -> Iterator[base.CatalogRun]:
        """Give what runs statements; float4[] are NumPy arrays on either side.

        Names are looked up in pg_catalog alone, so that nobody's functions or operators come before the server's.
        """
        if self.in_transaction():
            with self.savepoint() as connection:
                path = connection.execute(_PATH).fetchone()[0]
                connection.execute(f"SET LOCAL search_path = {PINNED}".encode())
                yield partial(self._run_binary, connection)
                connection.execute(_SET_PATH, [path])
            return
        with self._address.connect() as connection, self._errors(""), connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {_LOCKED}; SET LOCAL search_path = {PINNED}".encode())
            yield partial(self._run_binary, connection)

    def run_in_catalog(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on the table of models."""
        with self.catalog_transaction() as run:
            return run(text, parameters)

    @contextmanager
    def savepoint(self) -> Iterator[Any]:
        """Give the session's connection; a block that raises leaves an open transaction as it was before."""
        with self._session() as connection, connection.transaction():
            yield connection

    def extension(self) -> str | None:
        """Return the extension's version."""
        found = self.run(_VERSION).rows
        return str(found[0][0]) if found else None

    def user(self) -> str:
        """Return the role that models are written as."""
        return str(self.run_in_catalog("SELECT current_user")[0][0])

    def quote(self, name: str) -> str:
        """Write a name as an identifier."""
        return quote_identifier(name)

    def tables(self) -> list[tuple[str, dict[str, str]]]:
        """Return tables and views with their columns and types, named as a statement can; none while a transaction has failed."""
        if self._connection.closed or self._connection.info.transaction_status not in (_IDLE, _IN_TRANSACTION):
            return []
        return [(name, dict(zip(columns, types, strict=True))) for name, columns, types in self._ask(TABLES)]

    def drain(self) -> list[str]:
        """Return what the server had to say since the last time."""
        found, self.notices = self.notices, []
        return found

    def cancel(self) -> None:
        """Stop the statement that is running on the session's connection."""
        if not self._connection.closed:
            self._connection.cancel_safe(timeout=10)

    def close(self) -> None:
        """Close the session's connection."""
        self._connection.close()

    def _run_binary(self, connection: Any, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors(text), driver().RawCursor(connection) as cursor:
            adapt_arrays(cursor)
            cursor.execute(text.encode(), list(parameters) or None, binary=True)
            return list(cursor.fetchall()) if cursor.description else []

    def _connect(self) -> Any:
        connection = self._address.connect()
        connection.add_notice_handler(lambda note: self.notices.append(f"{note.severity}: {note.message_primary}"))
        load_unknown_as_text(connection)
        return connection

    @contextmanager
    def _session(self, text: str = "", *, shift: int = 0) -> Iterator[Any]:
        """Give the session's connection, made anew where it was lost; tell the server's errors as ours.

        ``text`` is what the user wrote, to show where the server found fault; it began ``shift`` characters into what was sent.
        """
        if self._connection.closed:
            self._connection = self._connect()
            self.notices.append(
                "WARNING: the connection was lost and has been made anew; an open transaction, temporary tables and settings"
                " went with it"
            )
        connection = self._connection
        with self._errors(text, shift):
            try:
                yield connection
            except driver().Error:
                end_copy(connection)
                raise

    @contextmanager
    def _errors(self, text: str, shift: int = 0) -> Iterator[None]:
        psycopg = driver()
        try:
            yield
        except psycopg.Error as error:
            failure = DatabaseError(self._address.hide(_words(error, text, shift, self.place)))
            failure.code = error.sqlstate or ""
            raise failure from None

    def _ask(self, text: str, parameters: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        return self.run(text, parameters).rows

    def _columns(self, query: Query) -> list[QueryColumn]:
        before = "SELECT * FROM (\n"
        with self._session(query.alone, shift=len(before)) as connection, driver().RawCursor(connection) as cursor:
            cursor.execute(f"{before}{query.alone}\n) AS q LIMIT 0".encode())
            result, columns = cursor.pgresult, cursor.description or ()
            described = [(column.name, column.type_code, result.fmod(at)) for at, column in enumerate(columns)]
            found = cursor.execute(LOOK_UP.encode(), [sorted({each[1] for each in described})]).fetchall()
        return query_columns(described, {row[0]: tuple(row[1:]) for row in found})

    def _way(self, query: Query) -> tuple[StoredTable | None, str]:
        """Return the stored table to read in blocks, or why there is none."""
        if query.selected is None:
            return None, "it is more than the name of a table"
        with self._session() as connection:
            if self.in_transaction():
                return None, "a transaction is open, and only its own connection sees what it changed"
            return find_stored_table(connection, query.selected.table, place=self.place)

    def _blocks(
        self, table: StoredTable, columns: Sequence[str], reading: base.Reading, stream: Stream
    ) -> tuple[BlockSource, list[str]]:
        """Open a table in blocks: cached where there is room, or else with a snapshot for each epoch."""
        from penstock.blocks.cached_source import CachedSource
        from penstock.blocks.postgres.source import PostgresSource

        def listen(warning: str) -> None:
            stream.emit(Warned(warning))

        connect = partial(PostgresSource, self._address, table.name, columns=columns, block_size=reading.block_size)
        connect = partial(connect, nulls=reading.nulls, connections=reading.connections, listen=listen)
        if reading.cache:
            source = connect(exact=True, counted=not reading.scanned)
            limit = self._cache_limit(source, columns, reading)
            if limit is not None:
                kept = CachedSource(source, list(columns), folder=reading.folder, limit=limit, listen=listen)
                return kept, _details(table, source.threads, reading, limit)
            source.close()
        source = connect(exact=False)
        return source, _details(table, source.threads, reading, None)

    def _cache_limit(self, source: BlockSource, columns: Sequence[str], reading: base.Reading) -> int | None:
        """Return the most bytes that a local file of a table's rows may take; None where they are not to be kept, or do not fit."""
        from penstock.blocks.cached_source import fits

        limit = _most_kept(reading)
        return limit if reading.cache and fits(source, list(columns), limit, folder=reading.folder) else None

    def _copied(self, query: Query, columns: Sequence[str], reading: base.Reading, stream: Stream) -> QueryCopy:
        present = self._columns(query)
        names = [column.name for column in present]
        for name in columns:
            if name not in names:
                raise ColumnError.missing(name, names, place="the query")
        kept = [names.index(name) for name in columns]
        with self._session() as connection, stream_query(connection, query.alone, present, kept) as rows:
            return base.copy_rows(rows, columns, reading, stream=stream)


def _most_kept(reading: base.Reading) -> int:
    """Return the most bytes that a local file may take."""
    limit = reading.cache if not isinstance(reading.cache, bool) else _CACHE
    return min(limit, shutil.disk_usage(reading.folder or tempfile.gettempdir()).free // 2)


def _details(table: StoredTable, connections: int | None, reading: base.Reading, limit: int | None) -> list[str]:
    """Return in words how a table's rows are read; ``limit`` is of the local file in which they are kept, if they are."""
    details = [f"{table.leaves} partitions, one after another"] if table.leaves > 1 else []
    if limit is not None:
        return [*details, f"kept in a local file from the first epoch on, over {connections} connections"]
    if reading.cache:
        details.append(f"not kept: a local file of it would take more than {show_bytes(_most_kept(reading))}")
    return [*details, f"every epoch over {connections} connections, in a snapshot of its own"]


def _words(error: Any, text: str, shift: int, place: str) -> str:
    """Return what the server says of a statement: its message with the place, details and a hint."""
    diag = error.diag
    if diag.message_primary is None:
        message = " ".join(str(error).split())
        if "COPY" in message:
            return f"{message.split(';')[0]}: rows cannot be typed in here; use psql's \\copy, or a file on the server"
        return f"{place}: {message}"
    message = str(diag.message_primary)
    at = int(diag.statement_position or 0) - 1 - shift
    if 0 <= at <= len(text):
        message = str(SQLSyntaxError.of(message, text, at))
    hint = diag.message_hint
    if error.sqlstate == "55P03":
        hint = "another session's transaction holds it: COMMIT or ROLLBACK that first"
    more = [("detail", diag.message_detail), ("hint", hint)]
    return "\n".join([message, *(f"{word}: {each}" for word, each in more if each)])
