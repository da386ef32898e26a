"""An SQL engine of your own: SQLite, by the standard library's sqlite3, under addresses such as ``sqlite://shop.db``.

An engine runs statements, gives a query's rows as Arrow, stores rows in temporary tables and keeps models. This one declares
that it packs no features and writes no model as SQL: Penstock computes predictions outside, and brings them back as a
temporary table. `tests/docs/test_own_engine.py` holds it to the conformance suite that DuckDB and PostgreSQL pass.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.closing import Closing
from penstock.errors import DatabaseError, UsageError
from penstock.events import Stream
from penstock.sql.dialect import Dialect, quote_identifier, standard_text
from penstock.sql.engines.base import (
    CatalogRun,
    ModelTable,
    QueryBlocks,
    QueryScan,
    Reading,
    ServerTraining,
    StatementRows,
    blocks_of_copy,
    copy_rows,
    estimate_copy,
    model_columns,
)
from penstock.sql.engines.registry import ENGINES, EngineKind
from penstock.sql.options import PackSettings
from penstock.sql.statements import Query

WHY = "SQLite has no blocks to read in any order"


def literal(value: Any) -> str:
    """Write a constant."""
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).upper()
    return repr(value) if isinstance(value, int | float) else standard_text(str(value))


class SqliteModels:
    """The table of models: weights are blobs."""

    name, created = "penstock_models", "created_at"
    weights_type, header_type = "blob", "text"
    most_weights: int | None = None

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    def exists(self) -> bool:
        return bool(self._engine.run_in_catalog("SELECT 1 FROM sqlite_master WHERE name = $1", [self.name]))

    def create(self) -> None:
        now = "integer NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS integer))"
        self._engine.run_in_catalog(f"CREATE TABLE IF NOT EXISTS {self.name} ({model_columns('blob', 'text', now)})")

    def require_trusted(self) -> None:
        """Do nothing: a file knows no users."""

    def is_conflict(self, error: DatabaseError) -> bool:
        return "locked" in str(error)

    def is_missing(self, error: DatabaseError) -> bool:
        return "no such table" in str(error)

    def refusal(self, error: DatabaseError, rights: str | None) -> None:
        """Return None: there are no rights to ask for."""


class SqliteEngine(Closing):
    """A session on a SQLite file."""

    name = "sqlite"
    dialect = Dialect(title="SQLite", tokenizer="sqlite", literal=literal, case_sensitive=False)
    remote = False
    packs = False
    server_training: ServerTraining | None = None

    def __init__(self, address: str, *, read_only: bool = False) -> None:
        self._path = Path(address.removeprefix("sqlite://")).resolve()
        self._uri = f"{self._path.as_uri()}?mode={'ro' if read_only else 'rwc'}"
        self.place = self._path.name
        self.models: ModelTable = SqliteModels(self)
        self._connection = self._connect()
        self._stored = 0

    def run(self, text: str, parameters: Sequence[Any] = ()) -> StatementRows:
        if text.lstrip().startswith("("):  # no statement of SQLite's begins with a parenthesis
            text = f"SELECT * FROM {text}"
        with self._errors():
            cursor = self._connection.execute(text, _named(parameters))
            if cursor.description is None:
                return StatementRows(status=text.split()[0].upper())
            return StatementRows(tuple(column[0] for column in cursor.description), cursor.fetchall())

    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @contextmanager
    def catalog_transaction(self) -> Iterator[CatalogRun]:
        """Use a savepoint, which is a transaction of its own where none is open."""
        with self._errors():
            self._connection.execute("SAVEPOINT penstock")
            try:
                yield self._fetch
            except BaseException:
                self._connection.execute("ROLLBACK TO penstock")
                raise
            finally:
                self._connection.execute("RELEASE penstock")

    def run_in_catalog(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.catalog_transaction() as run:
            return run(text, parameters)

    def describe(self, query: Query) -> pa.Schema:
        """Return the types of the first rows: a column of SQLite's has none of its own."""
        with self._errors():
            cursor = self._connection.execute(f"SELECT * FROM ({query.alone}\n) LIMIT 1000")
            names, rows = [column[0] for column in cursor.description], cursor.fetchall()
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        kinds = [pa.array(values).type for values in columns]
        return pa.schema([(n, pa.string() if pa.types.is_null(k) else k) for n, k in zip(names, kinds, strict=True)])

    def keys(self, query: Query) -> tuple[str, ...]:
        if query.selected is None:
            return ()
        table = query.selected.table.strip('"')
        return tuple(row[0] for row in self.run("SELECT name FROM pragma_table_info($1) WHERE pk", [table]).rows)

    def open(self, query: Query, columns: Sequence[str], reading: Reading, *, stream: Stream) -> QueryBlocks:
        with self.stream_rows(query) as rows:
            return blocks_of_copy(copy_rows(rows, columns, reading, stream=stream), WHY)

    def estimate(self, query: Query, columns: Sequence[str], reading: Reading) -> QueryScan:
        (rows,) = self.run(f"SELECT count(*) FROM ({query.alone}\n)").rows[0]
        schema = self.describe(query)
        return estimate_copy(WHY, rows, [schema.field(name).type for name in columns])

    def sample(self, query: Query, columns: Sequence[str], reading: Reading) -> None:
        """Return None: there are no blocks to look at a few of."""

    @contextmanager
    def stream_rows(self, query: Query) -> Iterator[pa.RecordBatchReader]:
        schema = self.describe(query)
        with self._errors():
            cursor = self._connection.execute(query.alone)

        def batches() -> Iterator[pa.RecordBatch]:
            while rows := cursor.fetchmany(10_000):
                arrays = [pa.array(v).cast(k) for v, k in zip(zip(*rows, strict=True), schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        yield pa.RecordBatchReader.from_batches(schema, batches())

    def store_rows(self, rows: pa.RecordBatchReader) -> str:
        self._stored += 1
        table = f"temp.penstock_rows_{self._stored}"
        with self._errors():
            self._connection.execute(f"CREATE TABLE {table} ({', '.join(map(self.quote, rows.schema.names))})")
            places = ", ".join("?" * len(rows.schema))
            for batch in rows:
                values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", values)
        return table

    def pack(self, table: str, into: str, chosen: PackSettings, *, stream: Stream) -> int:
        raise UsageError("SQLite has no type for packed features")

    def user(self) -> None:
        """Return None: a file knows no users."""

    def quote(self, name: str) -> str:
        return quote_identifier(name)

    def tables(self) -> list[tuple[str, list[str]]]:
        found = self.run("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").rows
        columns = "SELECT name FROM pragma_table_info($1)"
        return [(name, [row[0] for row in self.run(columns, [name]).rows]) for (name,) in found]

    def cancel(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()

    def _fetch(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows = self._connection.execute(text, _named(parameters)).fetchall()
        return [tuple(np.frombuffer(v, np.float32) if isinstance(v, bytes) else v for v in row) for row in rows]

    def _connect(self) -> sqlite3.Connection:
        with self._errors():
            return sqlite3.connect(self._uri, uri=True, isolation_level=None, check_same_thread=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise DatabaseError(f"{self.place}: {error}") from None


def _named(parameters: Sequence[Any]) -> dict[str, Any]:
    """Return parameters such that $1 is the first; arrays of weights are blobs."""
    values = (value.tobytes() if isinstance(value, np.ndarray) else value for value in parameters)
    return {str(place): value for place, value in enumerate(values, 1)}


ENGINES["sqlite"] = EngineKind(lambda db: str(db).startswith("sqlite://"), SqliteEngine, "a sqlite:// address")


def main() -> None:
    """Train on a table of SQLite's, and count what is predicted right."""
    with tempfile.TemporaryDirectory() as folder, penstock.connect(f"sqlite://{folder}/shop.db") as session:
        session.sql("CREATE TABLE clicks (age integer, clicked integer)")
        session.sql(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)"
            " INSERT INTO clicks SELECT i % 80, i % 80 > 40 FROM n"
        )
        print(session.sql("SELECT * FROM clicks TRAIN BY logistic AS m WITH (label = clicked, epochs = 3)"))
        print(
            session.sql("SELECT count(*) AS n FROM (SELECT * FROM clicks PREDICT BY m) AS p WHERE prediction = clicked")
        )


if __name__ == "__main__":
    main()
