"""A session: a database, its models, and the statements run on them one after another."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from functools import singledispatchmethod
from typing import Any

from penstock.blocks.open import split_table
from penstock.closing import Closing
from penstock.errors import ModelFileError, PenstockError, UsageError
from penstock.events import Listener, Stream
from penstock.linear import LinearModel
from penstock.modelfile import atomic_path
from penstock.sql import filling, learning, tree
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.grammar import parse
from penstock.sql.options import pack_settings
from penstock.sql.result import Result
from penstock.sql.statements import (
    DescribeModel,
    DropModel,
    Embedded,
    Evaluate,
    Explain,
    ExportModel,
    ImportModel,
    Pack,
    Plain,
    Query,
    Selected,
    ShowModels,
    Statement,
    Train,
)
from penstock.sql.wording import reword

SCHEMES = ("postgresql://", "postgres://")


def open_engine(db: Any = ":memory:", *, read_only: bool = False) -> Engine:
    """Open a database: a DuckDB file, ``:memory:``, an open DuckDB connection, or a PostgreSQL address."""
    named = split_table(db)
    if named is not None:
        raise UsageError(f"{named[1]!r} is a table; name the database alone here, and the table in a statement")
    if is_server(db):
        if read_only:
            raise UsageError("read-only is for DuckDB files; for PostgreSQL, connect as a user that may only read")
        from penstock.sql.engines.postgres import PostgresEngine

        return PostgresEngine(db)
    if isinstance(db, str) and "://" in db:
        raise UsageError(
            f"db={db.split('@')[-1]!r} is not known; give a DuckDB file, :memory: or a postgresql:// address"
        )
    from penstock.sql.engines.duckdb import DuckDBEngine

    path = os.fspath(db) if isinstance(db, (str, os.PathLike)) else None
    if path is not None and os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            if file.read(12)[8:] != b"DUCK":  # DuckDB would read data of other formats, and keep no model
                raise UsageError(f"{path} is not a DuckDB file; read it in a statement: SELECT * FROM '{path}'")
    return DuckDBEngine(db if path is None else path, read_only=read_only)


def is_server(db: Any) -> bool:
    """Whether a database is named by a PostgreSQL address."""
    return isinstance(db, str) and (db.startswith(SCHEMES) or "dbname=" in db or "host=" in db)


class Session(Closing):
    """Runs SQL on a database, with ``TRAIN BY`` and its kin beside what the engine knows.

    Parameters
    ----------
    db : path, address or connection
        A DuckDB file (made if it is not there), ``":memory:"``, an open DuckDB connection, or ``postgresql://…``.
    read_only : bool
        Open a DuckDB file for reading alone; models can then not be saved.
    listeners : sequence of callables
        Hear of progress, epochs and warnings.

    Examples
    --------
    >>> with Session() as session:
    ...     session.sql("CREATE TABLE t AS SELECT i % 2 AS label, (i % 2) * 2.0 - 1 AS x FROM range(100) r(i)").status
    ...     found = session.sql("SELECT * FROM t TRAIN BY svm AS m WITH (epochs = 2)")
    ...     found.column("accuracy")[-1], session.sql("SHOW MODELS").column("name")
    'CREATE 100'
    (1.0, ['m'])
    """

    def __init__(self, db: Any = ":memory:", *, read_only: bool = False, listeners: Sequence[Listener] = ()) -> None:
        self.engine = open_engine(db, read_only=read_only)
        self.catalog = Catalog(self.engine)
        self.stream = Stream(list(listeners))

    def execute(self, script: str) -> Iterator[Result]:
        """Run a script's statements one after another, and yield what each gives back.

        All of it is parsed before the first statement runs.
        """
        statements = parse(script, dialect=self.engine.dialect)
        return map(self._run, statements)

    def sql(self, script: str) -> Result:
        """Run a script, and return what its last statement gives back."""
        found = deque(self.execute(script), maxlen=1)
        return found[0] if found else Result(None)

    @singledispatchmethod
    def run(self, statement: Statement) -> Result:
        """Run one statement."""
        raise UsageError(f"{type(statement).__name__} is not a statement")

    @run.register
    def _(self, statement: Plain) -> Result:
        return self._rows(statement.text)

    @run.register
    def _(self, statement: Train) -> Result:
        return learning.train(statement, self.engine, self.catalog, stream=self.stream)

    @run.register
    def _(self, statement: Explain) -> Result:
        return tree.explain(statement, self.engine, stream=self.stream)

    @run.register
    def _(self, statement: Embedded) -> Result:
        with filling.filled(statement, self.engine, self.catalog, stream=self.stream) as text:
            return self._rows(text)

    @run.register
    def _(self, statement: Evaluate) -> Result:
        return filling.evaluate(statement, self.engine, self.catalog, stream=self.stream)

    @run.register
    def _(self, statement: ShowModels) -> Result:
        names = ("name", "kind", "label", "features", "rows", "score", "created_at")
        rows = [tuple(getattr(entry, name) for name in names) for entry in self.catalog.entries()]
        return Result(names, rows)

    @run.register
    def _(self, statement: DescribeModel) -> Result:
        return filling.describe(self.catalog.load(statement.model), statement.model)

    @run.register
    def _(self, statement: DropModel) -> Result:
        self.catalog.drop(statement.model, missing=statement.missing)
        return Result(None, status="DROP MODEL")

    @run.register
    def _(self, statement: ImportModel) -> Result:
        if os.path.isdir(statement.path):
            raise ModelFileError(
                f"{statement.path} is a folder; models whose weights live on disk stay there: penstock predict"
                f" {statement.path} DATA"
            )
        self.catalog.save(statement.model, LinearModel.load(statement.path), exists=statement.exists)
        return Result(None, status="IMPORT MODEL")

    @run.register
    def _(self, statement: ExportModel) -> Result:
        with atomic_path(statement.path) as temporary:
            self.catalog.load(statement.model).save(temporary)
        return Result(None, status="EXPORT MODEL")

    @run.register
    def _(self, statement: Pack) -> Result:
        query = Query(f"SELECT * FROM {statement.table}", Selected(statement.table))
        chosen = pack_settings(statement, self.engine.describe(query), keys=self.engine.keys(query))
        rows = self.engine.pack(statement.table, statement.into, chosen, stream=self.stream)
        return Result(None, status=f"PACK {rows}")

    def cancel(self) -> None:
        """Stop what the engine is doing; to be called from a signal handler or another thread."""
        self.engine.cancel()

    def close(self) -> None:
        """Close the database."""
        self.engine.close()

    def _run(self, statement: Statement) -> Result:
        try:
            return self.run(statement)
        except PenstockError as error:
            reword(error)
            raise

    def _rows(self, text: str) -> Result:
        found = self.engine.run(text)
        return Result(found.columns, found.rows, found.status, tuple(found.notices))
