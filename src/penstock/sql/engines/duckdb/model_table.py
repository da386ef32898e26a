"""The table of models in a DuckDB database."""

from __future__ import annotations

import re

from penstock.errors import DatabaseError
from penstock.sql.engines.base import Engine, model_columns
from penstock.sql.engines.duckdb.predictions import CREATED

_SCHEMAS = "SELECT 1 FROM information_schema.schemata WHERE schema_name = 'penstock' AND catalog_name = $1"
_TABLES = """
    SELECT 1 FROM information_schema.tables
    WHERE table_schema = 'penstock' AND table_name = 'models' AND table_catalog = $1
"""
# DuckDB's errors have no codes.
_CONFLICT = re.compile("[Cc]onflict|[Dd]uplicate key")
_MISSING = re.compile("Table with name models does not exist")


class DuckDBModelTable:
    """``penstock.models`` of the database that a session begins with."""

    created = CREATED
    weights_type, header_type = "float4[]", "json"
    most_weights: int | None = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By its full name: the database itself may be called penstock, and the session may leave it.
        self._database = str(engine.run_apart("SELECT current_database()")[0][0])
        self._schema = f"{engine.quote(self._database)}.{engine.quote('penstock')}"
        self.name = f"{self._schema}.{engine.quote('models')}"

    def exists(self) -> bool:
        """Return whether the table is there."""
        return bool(self._engine.run_apart(_TABLES, [self._database]))

    def create(self) -> None:
        """Make the table, and its schema."""
        if not self._engine.run_apart(_SCHEMAS, [self._database]):
            self._engine.run_apart(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        self._engine.run_apart(f"CREATE TABLE IF NOT EXISTS {self.name} ({model_columns()})")

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
