"""The table of models in a PostgreSQL database.

Its statements are run by `PostgresEngine.run_in_catalog`, which looks names up in pg_catalog alone. Whoever owns a table, or may
put a trigger on it, can have code run with the rights of those who write to it; a view or a policy does the same to those
who read. The table may have been made by anyone who may create schemas, so it is looked at before it is used. The
extension checks the same (``postgres/catalogue.c``).
"""

from __future__ import annotations

from penstock.errors import DatabaseError, WriteError
from penstock.sql.engines.base import Engine, model_columns
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
        return bool(self._engine.run_in_catalog(_TABLES))

    def create(self) -> None:
        """Make the table; the extension makes its own."""
        if self._engine.run_in_catalog(_EXTENSION):
            self._engine.run_in_catalog("SELECT penstock.make_catalogue()")
            return
        # Only where it is missing: who may not make a schema may not ask for one that is there, either.
        if not self._engine.run_in_catalog(_SCHEMAS):
            self._engine.run_in_catalog(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        self._engine.run_in_catalog(f"CREATE TABLE IF NOT EXISTS {self.name} ({model_columns()})")

    def require_trusted(self) -> None:
        """Raise where the table could run code of another user; once it is found sound, only those who are trusted change it.

        In a transaction it is looked at each time: the session may have another role there, and may take back the table.
        """
        within = self._engine.in_transaction()
        if within or not self._trusted:
            require_trusted(self._engine, SCHEMA, TABLE)
            self._trusted = not within and self.exists()

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
        user = self._engine.quote(str(self._engine.user()))
        if rights is not None:
            return WriteError(
                f"this user may not do that with the models of {self._engine.place}; have their owner run:\n"
                f"  GRANT USAGE ON SCHEMA {self._schema} TO {user};\n  GRANT {rights} ON {self.name} TO {user};"
            )
        schema = "" if self._engine.run_in_catalog(_SCHEMAS) else f"CREATE SCHEMA {self._schema}; "
        return WriteError(
            f"{self._engine.place} has no place for models, and this user may not make one; have the database's owner"
            f" run:\n  {schema}CREATE TABLE {self.name} ({model_columns()});\n  GRANT USAGE ON SCHEMA {self._schema} TO {user};"
            f" GRANT {_ALL} ON {self.name} TO {user};"
        )


# Run by `Engine.run_in_catalog`, which looks names up in pg_catalog alone. A superuser is a member of every role, which is no reason to
# trust it: for a superuser only superusers are trusted.
_FAULTS = """
    WITH me AS (SELECT oid, rolsuper FROM pg_roles WHERE rolname = current_user),
    trusted AS (
        SELECT r.oid FROM pg_roles AS r, me WHERE r.rolsuper OR r.oid = me.oid OR (NOT me.rolsuper AND (
            pg_has_role(me.oid, r.oid, 'MEMBER') OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())))
    ),
    place AS (SELECT oid, nspowner FROM pg_namespace WHERE nspname = $1),
    kept AS (SELECT c.* FROM pg_class AS c JOIN place ON c.relnamespace = place.oid WHERE c.relname = $2)
    SELECT 'SCHEMA ' || quote_ident($1) || ' belongs to ' || pg_get_userbyid(nspowner)
    FROM place WHERE nspowner NOT IN (SELECT oid FROM trusted)
    UNION ALL
    SELECT 'TABLE ' || quote_ident($1) || '.' || quote_ident($2) || ' belongs to ' || pg_get_userbyid(relowner)
    FROM kept WHERE relowner NOT IN (SELECT oid FROM trusted)
    UNION ALL
    SELECT what FROM kept, LATERAL (VALUES
        (relkind <> 'r', 'it is not a plain table'),
        (relispartition OR EXISTS (SELECT FROM pg_inherits AS i WHERE kept.oid IN (i.inhrelid, i.inhparent)),
            'it inherits, or is inherited from'),
        (EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = kept.oid AND NOT t.tgisinternal), 'it has a trigger'),
        (relkind = 'r' AND EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = kept.oid), 'it has a rule'),
        (relrowsecurity, 'it has row-level security'),
        (EXISTS (SELECT FROM pg_attrdef AS d WHERE d.adrelid = kept.oid AND pg_get_expr(d.adbin, d.adrelid) <> 'now()'),
            'a column has a default of its own'),
        (EXISTS (SELECT FROM pg_constraint AS k WHERE k.conrelid = kept.oid AND k.contype = 'c'), 'it has a check'),
        (EXISTS (SELECT FROM pg_index AS x WHERE x.indrelid = kept.oid AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL)),
            'it has an index over an expression')
    ) AS fault (holds, what) WHERE holds
"""


def require_trusted(engine: Engine, schema: str, table: str) -> None:
    """Raise where the table of models, or its schema, could run code of another user; one that is not there cannot."""
    faults = [str(row[0]) for row in engine.run_in_catalog(_FAULTS, [schema, table])]
    if not faults:
        return
    owned = next((fault for fault in faults if " belongs to " in fault), None)
    if owned is None:
        raise DatabaseError(
            f"the table {schema}.{table} of {engine.place} is not used: {faults[0]}, and what stands on a table runs with the"
            " rights of whoever uses it; have its owner remove that, or drop the table"
        )
    what, owner = owned.split(" belongs to ", 1)
    raise DatabaseError(
        f"the models of {engine.place} are not used: {what.lower().replace(schema.lower(), schema)} belongs to {owner!r}, who is"
        " neither a superuser nor trusted by this user, and could have code run with this user's rights. Have a superuser look"
        f" at it and run: ALTER {what} OWNER TO CURRENT_USER; or become a member of that role"
    )
