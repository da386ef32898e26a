"""The SQL engines, by the address of a database: `ENGINES` has one line for each."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.blocks.open import split_table
from penstock.errors import UsageError
from penstock.sql.engines.base import Engine


@dataclass(frozen=True, slots=True)
class EngineKind:
    """How an engine is recognized and opened.

    Attributes
    ----------
    matches : callable
        Whether a database (a path, an address or an open connection) is for this engine.
    opener : str or callable
        What opens it, as a function or as ``module:function``, called with the database and ``read_only``.
    example : str
        What messages say that a database can be.
    read_only : bool
        Whether it can be opened for reading only.
    """

    matches: Callable[[Any], bool]
    opener: str | Callable[..., Engine]
    example: str
    read_only: bool = True

    def open(self, db: Any, *, read_only: bool) -> Engine:
        """Open a database."""
        if callable(self.opener):
            return self.opener(db, read_only=read_only)
        engine: Engine = pkgutil.resolve_name(self.opener)(db, read_only=read_only)
        return engine


def _is_postgres(db: Any) -> bool:
    schemes = ("postgresql://", "postgres://")
    return isinstance(db, str) and (db.startswith(schemes) or "dbname=" in db or "host=" in db)


def _is_duckdb(db: Any) -> bool:
    return not isinstance(db, str | os.PathLike) or "://" not in os.fspath(db)


_ROOM = "penstock.sql.engines"
ENGINES: dict[str, EngineKind] = {
    "postgresql": EngineKind(
        _is_postgres, f"{_ROOM}.postgres.engine:open_postgres", "a postgresql:// address", read_only=False
    ),
    "duckdb": EngineKind(_is_duckdb, f"{_ROOM}.duckdb.engine:open_duckdb", "a DuckDB file, :memory:"),
}
"""The engines by name; DuckDB opens what no other one recognizes."""


def engine_kind(db: Any) -> EngineKind:
    """Return the engine that a database is for."""
    for kind in sorted(ENGINES.values(), key=lambda each: each is ENGINES["duckdb"]):
        if kind.matches(db):
            return kind
    *examples, last = (kind.example for kind in reversed(ENGINES.values()))
    fix = f"give {', '.join(examples)} or {last}"
    raise UsageError("is not known", option="db", value=str(db).split("@")[-1], fixes=[fix])


def open_engine(db: Any = ":memory:", *, read_only: bool = False) -> Engine:
    """Open a database: a DuckDB file, ``:memory:``, an open DuckDB connection, or a PostgreSQL address."""
    named = split_table(db)
    if named is not None:
        raise UsageError(f"{named[1]!r} is a table; name the database alone here, and the table in a statement")
    return engine_kind(db).open(db, read_only=read_only)
