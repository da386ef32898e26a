"""The table of models in a PostgreSQL database.

Its statements are run by `PostgresEngine.run_apart`, which looks names up in pg_catalog alone.
"""

from __future__ import annotations

from penstock.errors import DatabaseError, WriteError
from penstock.sql.engines.base import Engine, model_columns
from penstock.sql.engines.postgres.catalog_trust import require_trusted
from penstock.sql.engines.postgres.predictions import CREATED

SCHEMA, TABLE = "penstock", "models"
# Not by to_regclass, which refuses those who may not look into the schema; nor by information_schema, which hides it.
_SCHEMAS = f"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{SCHEMA}'"
_TABLES = f"""
    SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = '{SCHEMA}' AND c.relname = '{TABLE}'
"""
_EXTENSION = "SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'penstock'"
_CONFLICTS = ("23505", "40001", "42710", "42P06", "42P07", "XX000")
_FORBIDDEN, _UNDEFINED = "42501", "42P01"
_ALL = "SELECT, INSERT, UPDATE, DELETE"


class PostgresModelTable:
    """``penstock.models``."""

    created = CREATED
    weights_type, header_type = "float4[]", "json"
    most_weights: int | None = 125_000_000
    """A weight travels as eight bytes, and a field holds 1 GB."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._schema = engine.quote(SCHEMA)
        self.name = f"{self._schema}.{engine.quote(TABLE)}"
        self._trusted = False

    def exists(self) -> bool:
        """Return whether the table is there."""
        return bool(self._engine.run_apart(_TABLES))

    def create(self) -> None:
        """Make the table; the extension makes its own."""
        if self._engine.run_apart(_EXTENSION):
            self._engine.run_apart("SELECT penstock.make_catalogue()")
            return
        # Only where it is missing: who may not make a schema may not ask for one that is there, either.
        if not self._engine.run_apart(_SCHEMAS):
            self._engine.run_apart(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        self._engine.run_apart(f"CREATE TABLE IF NOT EXISTS {self.name} ({model_columns()})")

    def require_trusted(self) -> None:
        """Raise where the table could run code of another user; once it is found sound, only those who are trusted change it."""
        if not self._trusted:
            require_trusted(self._engine, SCHEMA, TABLE)
            self._trusted = self.exists()

    def is_conflict(self, error: DatabaseError) -> bool:
        """Return whether another session did the same at the same time."""
        return error.code in _CONFLICTS

    def is_missing(self, error: DatabaseError) -> bool:
        """Return whether the table was not seen."""
        return error.code == _UNDEFINED

    def refusal(self, error: DatabaseError, rights: str | None) -> WriteError | None:
        """Return what the owner has to grant, or to make where ``rights`` is None; None for other errors."""
        if error.code != _FORBIDDEN:
            return None
        user = self._engine.quote(str(self._engine.run_apart("SELECT current_user")[0][0]))
        if rights is not None:
            return WriteError(
                f"this user may not do that with the models of {self._engine.place}; have their owner run:\n"
                f"  GRANT USAGE ON SCHEMA {self._schema} TO {user};\n  GRANT {rights} ON {self.name} TO {user};"
            )
        schema = "" if self._engine.run_apart(_SCHEMAS) else f"CREATE SCHEMA {self._schema}; "
        return WriteError(
            f"{self._engine.place} has no place for models, and this user may not make one; have the database's owner"
            f" run:\n  {schema}CREATE TABLE {self.name} ({model_columns()});\n  GRANT USAGE ON SCHEMA {self._schema} TO {user};"
            f" GRANT {_ALL} ON {self.name} TO {user};"
        )
