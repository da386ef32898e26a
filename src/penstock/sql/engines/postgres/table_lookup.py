"""Looks up what a name in a query means to a session: a stored table that can be read in blocks, or why not.

These statements run in the session itself, whose search path decides what a name means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.blocks.postgres.qualify import qualified
from penstock.errors import SourceError

_FIND = qualified("""
    SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), c.relkind::text, c.relpersistence::text,
        pg_catalog.row_security_active(c.oid), current_user = session_user, c.oid::int8
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass(%s)
""")
_LEAVES = qualified("""
    SELECT count(*) FILTER (WHERE c.relkind <> 'p')
    FROM pg_catalog.pg_partition_tree(%s::oid::regclass) AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.relid
    WHERE t.isleaf
""")
KEYS = qualified("""
    SELECT a.attname FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_attribute AS a
        ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = pg_catalog.to_regclass($1) AND i.indisprimary ORDER BY a.attnum
""")
NAMED = qualified("""
    SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass($1)
""")
TO_BE_NAMED = qualified("""
    SELECT coalesce(parts[cardinality(parts) - 1], current_schema()), parts[cardinality(parts)]
    FROM pg_catalog.parse_ident($1) AS parts
""")
TABLES = qualified("""
    SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN quote_ident(c.relname)
            ELSE format('%I.%I', n.nspname, c.relname) END,
        ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
        ARRAY(SELECT pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind = ANY ('{r,p,m,v,f}') AND n.nspname <> ALL ('{pg_catalog,information_schema}')
        AND n.nspname !~ '^pg_toast' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
        AND (n.nspname !~ '^pg_temp_' OR n.oid = pg_catalog.pg_my_temp_schema())
        AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT')
    ORDER BY 1
""")
_WHAT = {"v": "a view", "f": "a foreign table"}


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A stored table: its name, quoted with its schema, and its leaves."""

    name: str
    leaves: int


def find_stored_table(connection: Any, name: str, *, place: str) -> tuple[StoredTable | None, str]:
    """Return the stored table that a session means by a name, to read in blocks; or why there is none."""
    from penstock.blocks.postgres.relation import look_up

    found = connection.execute(_FIND, [name]).fetchone()
    if found is None:
        return None, "it is no stored table"
    full, kind, persistence, secured, own, oid = found
    leaves = 1
    if kind not in ("r", "p", "m"):
        return None, f"{full} is {_WHAT.get(kind, 'no table')}"
    if persistence == "t":
        return None, f"{full} is a temporary table"
    if secured:
        return None, f"{full} shows each user rows of their own (row security)"
    if not own:
        return None, "another role was set, which only this session has"
    if kind == "p":
        leaves = connection.execute(_LEAVES, [oid]).fetchone()[0]
    try:
        look_up(connection, full, place=place)
    except SourceError:
        return None, f"{full}, or a part of it, is not stored in pages that can be read"
    return StoredTable(full, int(leaves)), ""
