"""DuckDB behind the front: a file, a database in memory, or a connection that is already open.

A stored table that is only named is read in blocks, over cursors of the session's connection. Cursors see neither its
temporary tables nor its open transaction, and know no blocks of a view: all of these, and every other query, are run
once on the session's own connection and copied to a file.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.blocks.duckdb import (
    MEMORY,
    SETTLED,
    DuckDBSource,
    connect_duckdb,
    database_name,
    first_line,
    translated_errors,
)
from penstock.blocks.duckdb_table import (
    DuckDBColumn,
    TableName,
    fetch_rows,
    find_table,
    quote_name,
    served_columns,
    split_name,
    stored_columns,
    tables_in,
)
from penstock.closing import Closing
from penstock.errors import ColumnError, DatabaseError, DataError, PenstockError, UsageError, nearest, some_of
from penstock.events import Stream
from penstock.sql.dialect import Dialect
from penstock.sql.engines import base
from penstock.sql.engines.duckdb.predictions import CREATED, DUCKDB
from penstock.sql.query_copy import QueryCopy
from penstock.sql.statements import Query

if TYPE_CHECKING:
    from penstock.sql.options import PackSettings

_PIECE = 16_384
"""Rows of a batch that is streamed."""
_ROW_SECONDS = 2e-8
"""About what DuckDB takes for a row that passes through a node of a plan; it has no estimate of its own."""
_COLUMNS = (
    "SELECT database_name, schema_name, table_name, column_name, data_type FROM duckdb_columns() ORDER BY column_index"
)
_RESERVED_WORDS = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
_KEYS = """
    SELECT constraint_column_names FROM duckdb_constraints()
    WHERE constraint_type = 'PRIMARY KEY' AND (database_name, schema_name, table_name) = ($1, $2, $3)
"""


def open_duckdb(db: Any, *, read_only: bool = False) -> DuckDBEngine:
    """Open a DuckDB file, ``:memory:`` or a connection that is open already."""
    path = os.fspath(db) if isinstance(db, (str, os.PathLike)) else None
    if path is not None and os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            if file.read(12)[8:] != b"DUCK":  # DuckDB would read data of other formats, and keep no model
                raise UsageError(f"{path} is not a DuckDB file; read it in a statement: SELECT * FROM '{path}'")
    return DuckDBEngine(db if path is None else path, read_only=read_only)


class DuckDBEngine(Closing):
    """A session on a DuckDB database.

    Parameters
    ----------
    database : path, ``":memory:"`` or open DuckDB connection
        A file is made if it is not there; a connection stays open when the engine is closed.
    read_only : bool
        Open a file for reading alone.

    Examples
    --------
    >>> with DuckDBEngine() as engine:
    ...     engine.run("CREATE TABLE t AS SELECT range AS a, [range, 1]::FLOAT[2] AS v FROM range(3)").status
    ...     engine.describe(Query("SELECT v FROM t WHERE a > 1")).field("v").type
    'CREATE 3'
    FixedSizeListType(fixed_size_list<item: float>[2])
    """

    name = "duckdb"
    dialect: Dialect = DUCKDB
    remote = False
    packs = True
    server_training: base.ServerTraining | None = None

    def __init__(self, database: Any = MEMORY, *, read_only: bool = False) -> None:
        path = os.fspath(database) if isinstance(database, (str, os.PathLike)) else None
        self._own = path is not None
        self._connection = database if path is None else connect_duckdb(path, read_only=read_only)
        self._kept = 0
        self._types: dict[str, pa.DataType] = {}
        with self._errors():
            self.place = path if path not in (None, MEMORY) else database_name(self._connection)
            self._before = self._fetch("SELECT current_setting('python_enable_replacements')")[0][0]
            self._connection.execute(SETTLED)
        self.models: base.ModelTable = DuckDBModelTable(self)

    def run(self, text: str, parameters: Sequence[Any] = ()) -> base.StatementRows:
        """Run one statement; rows come back as Python values."""
        with self._errors(whole=True):
            kinds = [each.type.name for each in self._connection.extract_statements(text)]
            found = self._connection.execute(text, list(parameters))
            kind = kinds[-1] if kinds else ""
            described = [(str(name), str(kind)) for name, kind, *_ in found.description or ()]
            touched, rows = found.rowcount, _python_rows(found, [kind for _, kind in described])
            names = tuple(name for name, _ in described)
        # Statements without rows of their own give back a count, or whether they succeeded.
        if touched < 0 and names and kind != "CREATE" and (kind == "SELECT" or names != ("Success",)):
            return base.StatementRows(names, rows, f"SELECT {len(rows)}", types=self._arrow_types(described))
        return base.StatementRows(status=kind if touched < 0 else f"{kind} {touched}")

    def describe(self, query: Query) -> pa.Schema:
        """Return a query's columns as Arrow types, without running it."""
        with self._errors():
            found = self._fetch(f"DESCRIBE {query.alone}")
            columns = served_columns(self._connection, stored_columns(self._connection, _as_table(query)))
        # In parentheses a name that stands twice gets a number; what it was called is told before.
        return pa.schema([(row[0], column.type) for row, column in zip(found, columns, strict=True)])

    def keys(self, query: Query) -> tuple[str, ...]:
        """Return the columns of a stored table's primary key that the query selects."""
        if query.selected is None:
            return ()
        with self._errors(), suppress(PenstockError):
            table, _ = find_table(self._connection, split_name(query.selected.table), place=self.place)
            constraints = self._fetch(_KEYS, (table.database, table.schema, table.table))
            names = set(self.describe(query).names)
            return tuple(name for row in constraints for name in row[0] if name in names)
        return ()

    def open(self, query: Query, columns: Sequence[str], reading: base.Reading, *, stream: Stream) -> base.QueryBlocks:
        """Open a query's rows as blocks."""
        with self._errors():
            table, why = self._way(query)
            if table is not None:
                parts = (table.database, table.schema, table.table)
                size, nulls = reading.block_size, reading.nulls
                source = DuckDBSource(self._connection, parts, columns=columns, block_size=size, nulls=nulls)
                scan = self._scan(table, int(source.block_rows.sum()), int(source.block_bytes.sum()))
                return base.QueryBlocks(source, scan)
            return base.blocks_of_copy(self._copied(query, columns, reading, stream), why)

    def estimate(self, query: Query, columns: Sequence[str], reading: base.Reading) -> base.QueryScan:
        """Say how `open` would copy a query, by what DuckDB estimates of it."""
        with self._errors():
            _, why = self._way(query)
            schema = self.describe(query)
            plan = json.loads(self._fetch(f"EXPLAIN (FORMAT JSON) {query.alone}")[0][1])
        rows = max((_estimated(node) for node in plan), default=0)
        kinds = [schema.field(name).type for name in columns]
        return base.estimate_copy(why, rows, kinds, seconds=_ROW_SECONDS * sum(map(_passed, plan)))

    def sample(self, query: Query, columns: Sequence[str], reading: base.Reading) -> base.QuerySample | None:
        """Open a few blocks of a stored table; None for what would be copied."""
        with self._errors():
            table, _ = self._way(query)
            if table is None:
                return None
            parts, began = (table.database, table.schema, table.table), time.perf_counter()
            source = DuckDBSource(
                self._connection,
                parts,
                columns=columns,
                block_size=reading.block_size,
                nulls=reading.nulls,
                sample=base.SAMPLED_BLOCKS,
            )
        seconds = time.perf_counter() - began + source.survey_seconds
        return base.QuerySample(
            source, source.whole, self._scan(table, source.whole.rows, source.whole.nbytes), seconds
        )

    @contextmanager
    def stream_rows(self, query: Query) -> Iterator[pa.RecordBatchReader]:
        """Give a query's rows as a stream; the connection can be used between its batches."""
        with self._errors():
            # A stream straight from DuckDB would keep the connection from everything else.
            held = self._temporary(f"SELECT * FROM {_as_table(query)}")
            columns = served_columns(self._connection, stored_columns(self._connection, held))
        schema = pa.schema([(column.name, column.type) for column in columns])
        selected = ", ".join(column.selected for column in columns)

        def batches() -> Iterator[pa.RecordBatch]:
            # In a transaction they begin far up.
            first, last = self._fetch(f"SELECT min(rowid), max(rowid) FROM {held}")[0]
            for at in range(0, 0) if first is None else range(first, last + 1, _PIECE):
                text = f"SELECT {selected} FROM {held} WHERE rowid >= {at} AND rowid < {at + _PIECE}"
                with self._errors():
                    piece = self._connection.sql(text).to_arrow_table()
                yield from piece.cast(schema).to_batches()

        try:
            yield pa.RecordBatchReader.from_batches(schema, batches())
        finally:
            with suppress(DatabaseError), self._errors():
                self._connection.execute(f"DROP TABLE IF EXISTS {held}")

    def store_rows(self, rows: pa.RecordBatchReader) -> str:
        """Put rows into a new temporary table, and return its quoted name."""
        with self._errors():
            table = ""
            view = f"penstock_given_{id(self)}"
            for batch in chain([pa.RecordBatch.from_pylist([], rows.schema)], rows):
                self._connection.register(view, pa.Table.from_batches([batch]))
                try:
                    if table:
                        self._connection.execute(f"INSERT INTO {table} SELECT * FROM {quote_name(view)}")
                    else:
                        table = self._temporary(f"SELECT * FROM {quote_name(view)}")
                finally:
                    self._connection.unregister(view)
            return table

    def pack(self, table: str, into: str, chosen: PackSettings, *, stream: Stream) -> int:
        """Copy a table with its features as one column, a ``FLOAT[n]``: what DuckDB reads fastest."""
        if chosen.to == "vector":
            reason = "to = vector is for PostgreSQL's pgvector; on DuckDB features are packed as FLOAT[n]: leave it out"
            raise UsageError(reason)
        source, target = (".".join(map(quote_name, split_name(name))) for name in (table, into))
        with self._errors():
            stored = dict(stored_columns(self._connection, source))
            features = served_columns(self._connection, [(name, stored[name]) for name in chosen.features])
            names = [quote_name(column.name) for column in features]
            missing = " OR ".join(f"{name} IS NULL" for name in names)
            nulls = self._fetch(f"SELECT count(*) FROM {source} WHERE {missing}")[0][0]
            if nulls:
                raise DataError(
                    f"{table}: {nulls} rows have a null among the features; fill or delete them before packing"
                )
            if len(features) == 1 and features[0].kind != "plain":
                size = self._width(features[0], source, place=table)
                packed = f"CAST({names[0]} AS FLOAT[{size}])"
            elif all(column.kind == "plain" for column in features):
                packed = f"CAST([{', '.join(f'CAST({name} AS FLOAT)' for name in names)}] AS FLOAT[{len(names)}])"
            else:
                raise UsageError(f"{table}: either numbers are packed into one column, or one list; not both together")
            made = "CREATE OR REPLACE TABLE" if chosen.replace else "CREATE TABLE"
            kept = "".join(f"{quote_name(name)}, " for name in chosen.kept)
            found = self._connection.execute(f"{made} {target} AS SELECT {kept}{packed} AS features FROM {source}")
            return int(found.fetchall()[0][0])

    def in_transaction(self) -> bool:
        """Return whether a transaction is open: statements outside of one have one each."""
        with self._errors():
            return len({self._fetch("SELECT txid_current()")[0][0] for _ in range(2)}) == 1

    @contextmanager
    def catalog_transaction(self) -> Iterator[base.CatalogRun]:
        """Give what runs statements in the open transaction, or else in one of a connection of their own."""
        if self.in_transaction():
            with self._errors():
                yield self._fetch
            return
        with self._errors():
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN")
                yield partial(fetch_rows, cursor)
                cursor.execute("COMMIT")
            finally:
                cursor.close()  # which takes back what is not committed

    def run_in_catalog(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on the table of models."""
        with self.catalog_transaction() as run:
            return run(text, parameters)

    def user(self) -> str | None:
        """Return the user of the machine: DuckDB knows none."""
        try:
            return getpass.getuser()
        except (OSError, KeyError):  # one without a name, as in a container
            return None

    def quote(self, name: str) -> str:
        """Write a name as an identifier."""
        return quote_name(name)

    def tables(self) -> list[tuple[str, dict[str, str]]]:
        """Return tables and views with their columns and types, named as a statement can."""
        with self._errors():
            found: dict[TableName, dict[str, str]] = {name: {} for name, _ in tables_in(self._connection)}
            listed = self._fetch(_COLUMNS)
            database, schemas = self._fetch("SELECT current_database(), current_schemas(false)")[0]
            words = {row[0] for row in self._fetch(_RESERVED_WORDS)}
        for *parts, column, kind in listed:
            found.get(TableName(*parts), {})[column] = kind
        near = {(database, schema) for schema in (*schemas, "main")} | {("temp", "main")}

        def shown(name: TableName) -> str:
            parts = [name.table] if (name.database, name.schema) in near else [name.schema, name.table]
            parts = parts if len(parts) == 1 or name.database == database else [name.database, *parts]
            plain = re.compile(r"[a-z_][a-z0-9_]*")
            return ".".join(part if plain.fullmatch(part) and part not in words else quote_name(part) for part in parts)

        return [(shown(name), columns) for name, columns in found.items()]

    def cancel(self) -> None:
        """Stop the statement that is running on the session's connection."""
        self._connection.interrupt()

    def close(self) -> None:
        """Close the connection, where it was opened here."""
        if self._own:
            self._connection.close()
            return
        with suppress(DatabaseError), self._errors():
            self._connection.execute(f"SET python_enable_replacements = {'true' if self._before else 'false'}")

    def _way(self, query: Query) -> tuple[TableName | None, str]:
        """Return the stored table to read in blocks, or why there is none."""
        if query.selected is None:
            return None, "it is more than the name of a table"
        if self.in_transaction():
            return None, "a transaction is open, and only its own connection sees what it changed"
        try:
            table, kind = find_table(self._connection, split_name(query.selected.table), place=self.place)
        except PenstockError:
            return None, "it is no stored table"
        if kind != "table":
            what = {"view": "a view", "temporary": "a temporary table", "foreign": "a table of another engine"}
            return None, f"{table} is {what[kind]}"
        if any(name.lower() == "rowid" for name, _ in stored_columns(self._connection, table.sql)):
            return None, f"{table} has a column named rowid"
        plan = json.loads(self._fetch(f"EXPLAIN (FORMAT JSON) SELECT * FROM {query.selected.table}")[0][1])
        meant = plan[0].get("extra_info", {}).get("Table") if plan else None
        if meant is not None and split_name(meant) != (table.database, table.schema, table.table):
            return None, f"its name means {meant} here"
        return table, ""

    def _scan(self, table: TableName, rows: int, nbytes: int, *, exact: bool = True) -> base.QueryScan:
        details = ("rowid ranges inside row groups, read as Arrow by several cursors",)
        return base.QueryScan(f"Scan of row groups of {table.schema}.{table.table}", details, rows, nbytes, exact=exact)

    def _copied(self, query: Query, columns: Sequence[str], reading: base.Reading, stream: Stream) -> QueryCopy:
        inner = _as_table(query)
        present = dict(stored_columns(self._connection, inner))
        for name in columns:
            if name not in present:
                raise ColumnError.missing(name, present, place="the query")
        chosen = served_columns(self._connection, [(name, present[name]) for name in columns])
        text = f"SELECT {', '.join(column.selected for column in chosen)} FROM {inner}"
        reader = self._connection.sql(text).to_arrow_reader(_PIECE)
        try:
            return base.copy_rows(reader, columns, reading, stream=stream)
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, PenstockError):
                raise
            raise DatabaseError(first_line(error)) from None
        finally:
            reader.close()

    def _width(self, column: DuckDBColumn, source: str, *, place: str) -> int:
        """Return how many values each row of a list has, or raise where these are not equally many."""
        if column.kind == "blob":
            raise UsageError(f"{place}: column {column.name!r} is packed already")
        least, most = self._fetch(f"SELECT min({column.length}), max({column.length}) FROM {source}")[0]
        if least is None or least != most or not least:
            counts = f"from {least} to {most} values a row"
            raise DataError(f"{place}: column {column.name!r} has {counts}; make them equally many")
        return int(least)

    def _temporary(self, query: str) -> str:
        """Make a temporary table of a query's rows, and return its quoted name."""
        taken = {found.table for found, kind in tables_in(self._connection) if found.database == "temp"}
        while f"penstock_rows_{self._kept}" in taken:
            self._kept += 1
        name = f"temp.main.{quote_name(f'penstock_rows_{self._kept}')}"
        self._connection.execute(f"CREATE TEMPORARY TABLE {name} AS {query}").fetchall()
        self._kept += 1
        return name

    def _arrow_types(self, described: Sequence[tuple[str, str]]) -> tuple[pa.DataType, ...]:
        """Return the Arrow types of columns; what DuckDB made of a type before is not asked again."""
        unknown = list(dict.fromkeys(kind for _, kind in described if kind not in self._types))
        if unknown:
            nulls = ", ".join("NULL" if kind == '"NULL"' else f"CAST(NULL AS {kind})" for kind in unknown)
            with self._errors():
                schema = self._connection.sql(f"SELECT {nulls} WHERE false").to_arrow_table().schema
            self._types |= dict(zip(unknown, schema.types, strict=True))
        return tuple(self._types[kind] for _, kind in described)

    def _fetch(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return fetch_rows(self._connection, text, parameters)

    @contextmanager
    def _errors(self, *, whole: bool = False) -> Iterator[None]:
        """Tell DuckDB's errors as ours, in its own words; ``whole`` with the statement, where it is the user's own."""
        with translated_errors(lambda told, error: self._refusal(told, str(error).strip() if whole else told)):
            yield

    def _refusal(self, told: str, shown: str) -> DatabaseError:
        """Return the error for what DuckDB refuses, in its own words but where it leaves out what to do."""
        if unwritten := _READ_ONLY.search(told):
            reason = f"the database {unwritten[1]!r} is open read-only, and this writes to it"
            return DatabaseError(reason, fixes=["open it for writing"])
        missing = _NO_TABLE.search(told)
        if missing is None or shown != told or _MISSING.search(told):
            return DatabaseError(shown)
        try:
            names = [name for name, _ in self.tables() if not name.startswith("penstock.")]
        except DatabaseError:  # in a transaction that cannot go on
            return DatabaseError(shown)
        present = f"it has: {some_of(names)}{nearest(missing[1], names)}" if names else "it has none"
        return DatabaseError(f"{self.place} has no table {missing[1]!r}; {present}")


def _python_rows(found: Any, kinds: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return a result's rows as Python values; DuckDB itself makes times with a zone only where pytz is installed."""
    zoned = any("TIME ZONE" in kind or "TIMESTAMPTZ" in kind for kind in kinds)
    if zoned and find_spec("pytz") is None:
        with warnings.catch_warnings(action="ignore"):  # that it makes a copy
            table = found.to_arrow_table()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    rows: list[tuple[Any, ...]] = found.fetchall()
    return rows


def _as_table(query: Query) -> str:
    # The line break ends a comment that the query may end with.
    return f"({query.alone}\n) AS q"


def _estimated(node: dict[str, Any]) -> int:
    """Return the rows that a plan's node is expected to give, or else those of its children."""
    told = node.get("extra_info", {}).get("Estimated Cardinality")
    if told is not None:
        return int(told)
    return max((_estimated(child) for child in node.get("children", ())), default=0)


def _passed(node: dict[str, Any]) -> int:
    """Return the rows that all nodes of a plan are expected to give, one after another."""
    told = node.get("extra_info", {}).get("Estimated Cardinality")
    return int(told or 0) + sum(map(_passed, node.get("children", ())))


_SCHEMAS = "SELECT 1 FROM information_schema.schemata WHERE schema_name = 'penstock' AND catalog_name = $1"
_TABLES = """
    SELECT 1 FROM information_schema.tables
    WHERE table_schema = 'penstock' AND table_name = 'models' AND table_catalog = $1
"""
# DuckDB's errors have no codes.
_CONFLICT = re.compile("[Cc]onflict|[Dd]uplicate key")
_NO_TABLE = re.compile(r"Table with name (.+) does not exist!")
_READ_ONLY = re.compile(r'on database "(.+)" which is attached in read-only mode')
_MISSING = re.compile(r'Table with name "?(penstock\.)?models"? does not exist')


class DuckDBModelTable:
    """``penstock.models`` of the database that a session begins with."""

    created = CREATED
    weights_type, header_type = "float4[]", "json"
    most_weights: int | None = None

    def __init__(self, engine: base.Engine) -> None:
        self._engine = engine
        # By its full name: the database itself may be called penstock, and the session may leave it.
        self._database = str(engine.run_in_catalog("SELECT current_database()")[0][0])
        self._schema = f"{engine.quote(self._database)}.{engine.quote('penstock')}"
        self.name = f"{self._schema}.{engine.quote('models')}"

    def exists(self) -> bool:
        """Return whether the table is there."""
        return bool(self._engine.run_in_catalog(_TABLES, [self._database]))

    def create(self) -> None:
        """Make the table, and its schema."""
        if not self._engine.run_in_catalog(_SCHEMAS, [self._database]):
            self._engine.run_in_catalog(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        self._engine.run_in_catalog(f"CREATE TABLE IF NOT EXISTS {self.name} ({base.model_columns()})")

    def require_trusted(self) -> None:
        """Do nothing: a file of DuckDB's knows no users."""

    def is_conflict(self, error: DatabaseError) -> bool:
        """Return whether another session wrote at the same time."""
        return bool(_CONFLICT.search(str(error)))

    def is_missing(self, error: DatabaseError) -> bool:
        """Return whether the table was not seen."""
        return bool(_MISSING.search(str(error)))

    def refusal(self, error: DatabaseError, rights: str | None) -> None:
        """Return None: there are no rights to ask for."""
