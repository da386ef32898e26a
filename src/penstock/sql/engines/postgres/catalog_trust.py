"""Checks that a table of models in PostgreSQL can be used: nothing on it runs code, and its owner is trusted.

Whoever owns a table, or may put a trigger on it, can have code run with the rights of those who write to it; a view or a
policy does the same to those who read. The table may have been made by anyone who may create schemas, so it is looked at
before it is used. The extension checks the same (``postgres/catalogue.c``).
"""

from __future__ import annotations

from penstock.errors import DatabaseError
from penstock.sql.engines.base import Engine

# Run by `Engine.run_apart`, which looks names up in pg_catalog alone. A superuser is a member of every role, which is no reason to
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
    faults = [str(row[0]) for row in engine.run_apart(_FAULTS, [schema, table])]
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
