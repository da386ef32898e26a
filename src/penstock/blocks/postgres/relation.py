"""What a name means to the server: the tables whose pages hold the rows, how large they are, and their columns.

A partitioned table is its leaves, in the order in which they were made: a range of row identifiers asked of the parent
would be read in each of them. Tables that others inherit from are themselves and their heirs. Views, foreign and temporary
tables have no pages that others could read, and are refused; a query of them can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg import errors, sql

from penstock.blocks.postgres.connect import Connection
from penstock.blocks.postgres.qualify import qualified
from penstock.errors import ColumnError, SourceError, SourceNotFoundError, nearest

Kind = Literal["number", "array", "vector", "bytes", "text"]

_PLAIN = ("bool", "int2", "int4", "int8", "float4", "float8", "date", "time", "timestamp", "timestamptz", "interval")
_NUMBERS = {**dict.fromkeys(_PLAIN, ""), "numeric": "float8"}
"""Types sent as numbers, dates and times among them, and what a type is cast to before."""
_ELEMENTS = {
    "bool": "int4",
    "int2": "int4",
    "int4": "",
    "int8": "",
    "float4": "",
    "float8": "",
    "numeric": "float8",
}
_WHAT = {
    "v": "a view",
    "f": "a foreign table",
    "i": "an index",
    "I": "an index",
    "S": "a sequence",
    "c": "a composite type",
    "t": "a TOAST table",
}
_TREE = qualified("""
    WITH RECURSIVE tree (oid, path) AS (
        SELECT %(oid)s::oid, ARRAY[%(oid)s::oid]
        UNION ALL
        SELECT heir.inhrelid, tree.path || heir.inhrelid
        FROM tree JOIN pg_catalog.pg_inherits heir ON heir.inhparent = tree.oid
        WHERE NOT heir.inhdetachpending
    )
    SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, a.amname, c.relispopulated,
        pg_catalog.pg_relation_filenode(c.oid)::int8, pg_catalog.pg_relation_size(c.oid), pg_catalog.pg_table_size(c.oid),
        CASE WHEN c.relpages > 0 AND c.reltuples >= 0 THEN c.reltuples::float8 / c.relpages END
    FROM tree
    JOIN pg_catalog.pg_class c ON c.oid = tree.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
    ORDER BY tree.path
""")
_COLUMNS = qualified("""
    WITH RECURSIVE base (number, type, depth) AS (
        SELECT attnum, atttypid, 0 FROM pg_catalog.pg_attribute
        WHERE attrelid = %(oid)s::oid AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT base.number, t.typbasetype, base.depth + 1
        FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
    )
    SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage <> 'p', base.depth > 0,
        t.typname, n.nspname = 'pg_catalog', e.typname, m.nspname = 'pg_catalog', x.extname, f.nspname, p.proname
    FROM base
    JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s::oid AND a.attnum = base.number
    JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype <> 'd'
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    LEFT JOIN pg_catalog.pg_namespace m ON m.oid = e.typnamespace
    LEFT JOIN pg_catalog.pg_depend d
        ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
    LEFT JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
    LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.typsend
    LEFT JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace
    ORDER BY a.attnum
""")
_NAMES = qualified("""
    SELECT pg_catalog.quote_ident(c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = ANY ('{r,p,m,v,f}') AND n.nspname <> ALL ('{pg_catalog,information_schema}')
""")
_FORBIDDEN = qualified("""
    SELECT leaf.number, name FROM unnest(%s::oid[]) WITH ORDINALITY AS leaf (oid, number), unnest(%s::text[]) AS name
    WHERE NOT pg_catalog.has_column_privilege(leaf.oid, name, 'SELECT') ORDER BY leaf.number LIMIT 1
""")
VECTORS = qualified("""
    SELECT n.nspname FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector' AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
""")


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column: what the server calls its type, and how its values travel.

    Attributes
    ----------
    name, type : str
        As the server writes them.
    kind : str
        ``number`` (or a date or time), ``array`` (of numbers), ``vector`` (pgvector's), ``bytes``, or ``text`` for all else.
    base : str
        The type of a number, or of an array's elements, after the cast.
    cast : str
        What values are cast to before they are sent; none if empty.
    required : bool
        Whether the table forbids nulls.
    wide : bool
        Whether values may be stored beside the table's own pages.
    send : tuple of str
        The function that sends a vector: schema and name.
    """

    name: str
    type: str
    kind: Kind
    base: str
    cast: str = ""
    required: bool = False
    wide: bool = False
    send: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table with pages: its names, the file that holds it, and its bytes without and with what is stored beside.

    ``page_rows`` is how many rows the server's statistics have for a page; None where the table was never analyzed.
    """

    oid: int
    schema: str
    name: str
    file: int
    nbytes: int
    all_bytes: int
    page_rows: float | None = None

    @property
    def identifier(self) -> sql.Identifier:
        """The name as SQL."""
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table that can be read in blocks.

    Attributes
    ----------
    oid, name : int, str
        Which it is; the name with its schema.
    leaves : tuple of Leaf
        The tables whose pages hold its rows.
    columns : tuple of StoredColumn
        All of them, in their order.
    page : int
        Bytes of a page.
    vectors : str or None
        The schema of pgvector, where the database has it.
    """

    oid: int
    name: str
    leaves: tuple[Leaf, ...]
    columns: tuple[StoredColumn, ...]
    page: int
    vectors: str | None = None

    def choose(self, names: Sequence[str] | None, *, place: str) -> tuple[StoredColumn, ...]:
        """Return the columns named, in that order, or all."""
        if names is None:
            return self.columns
        known = {column.name: column for column in self.columns}
        for name in names:
            if name not in known:
                raise ColumnError.missing(name, known, place=place)
        return tuple(known[name] for name in dict.fromkeys(names))


def look_up(connection: Connection, table: str, *, place: str) -> Relation:
    """Find a table by its name, as the server itself would: in the search path, with or without schema and quotes."""
    oid = _find(connection, table, place)
    rows = connection.execute(_TREE, {"oid": oid}).fetchall()
    first = f"{rows[0][1]}.{rows[0][2]}"
    leaves: dict[int, Leaf] = {}
    for number, schema, name, kind, persistence, method, populated, file, nbytes, all_bytes, page_rows in rows:
        if kind == "p":
            continue
        shown = f"{schema}.{name}"
        part = "" if number == oid else f", a part of {first},"
        if kind not in ("r", "m") or persistence == "t":
            what = _WHAT.get(kind, "no table") if kind not in ("r", "m") else "a temporary table"
            raise SourceError(
                f"{shown}{part} in {place} is {what}, which has no pages that can be read in blocks; train on a query of it"
                " (penstock sql), which copies its rows once, or make a table of it: CREATE TABLE … AS TABLE …"
            )
        if method != "heap":
            raise SourceError(
                f"{shown}{part} in {place} is stored by {method!r}; only tables stored by 'heap' are read in blocks: train"
                " on a query of it (penstock sql), or make a plain table of it"
            )
        if not populated:
            raise SourceError(f"{shown} in {place} has not been filled yet; run REFRESH MATERIALIZED VIEW first")
        leaves.setdefault(number, Leaf(number, schema, name, file, nbytes, all_bytes, page_rows))
    columns = tuple(_column(*row) for row in connection.execute(_COLUMNS, {"oid": oid}))
    page = connection.execute(qualified("SELECT current_setting('block_size')::int4")).fetchone()
    vectors = connection.execute(VECTORS).fetchone()
    return Relation(
        oid, first, tuple(leaves.values()), columns, page[0] if page else 8192, vectors[0] if vectors else None
    )


def require_rights(connection: Connection, relation: Relation, columns: Sequence[StoredColumn], *, place: str) -> None:
    """Raise unless the user may read these columns of every leaf, and the rows' identifiers."""
    oids = [leaf.oid for leaf in relation.leaves]
    row = connection.execute(_FORBIDDEN, (oids, ["ctid", *(column.name for column in columns)])).fetchone()
    if row:
        leaf = relation.leaves[row[0] - 1]
        name = f"{leaf.schema}.{leaf.name}"
        part = "" if leaf.oid == relation.oid else f", a part of {relation.name}, whose parts are read one by one,"
        raise SourceError(
            f"column {row[1]!r} of {name}{part} in {place} may not be read by {connection.info.user!r}; have its owner run:"
            f" GRANT SELECT ON {leaf.identifier.as_string(connection)} TO"
            f" {sql.Identifier(connection.info.user).as_string(connection)}"
        )


def files(connection: Connection, leaves: Sequence[Leaf]) -> dict[int, int | None]:
    """Return the file that holds each leaf now; none for those that are gone."""
    query = qualified("SELECT oid::int8, pg_relation_filenode(oid)::int8 FROM unnest($1::oid[]) AS oid")
    return dict(connection.execute(query, ([leaf.oid for leaf in leaves],)).fetchall())


def _find(connection: Connection, table: str, place: str) -> int:
    row: Any = None
    try:
        row = connection.execute(qualified("SELECT to_regclass(%s)::oid::int8"), (table,)).fetchone()
    except (errors.InvalidName, errors.SyntaxError, errors.FeatureNotSupported, errors.DataError):
        pass  # no name at all; later servers find nothing then
    except errors.InsufficientPrivilege as error:
        raise SourceError(f"table {table!r} in {place} may not be read: {error.diag.message_primary}") from None
    if row is None or row[0] is None:
        names = [found[0] for found in connection.execute(_NAMES)]
        raise SourceNotFoundError(
            f"{place} has no table {table!r}{nearest(table.rpartition('.')[2], names)}; name it as in a query there: with"
            " its schema if that is not in the search path, in double quotes where it is not plain lower case"
        )
    return int(row[0])


def _column(
    name: str,
    shown: str,
    required: bool,
    wide: bool,
    domain: bool,
    base: str,
    builtin: bool,
    element: str | None,
    element_builtin: bool | None,
    extension: str | None,
    send_schema: str | None,
    send: str | None,
) -> StoredColumn:
    """Say how a column's values travel."""
    more: dict[str, Any] = {"required": required, "wide": wide}
    if builtin and base in _NUMBERS:
        cast = _NUMBERS[base] or (base if domain else "")
        return StoredColumn(name, shown, "number", _NUMBERS[base] or base, cast, **more)
    if element_builtin and element in _ELEMENTS:
        to = _ELEMENTS[element] or element
        return StoredColumn(name, shown, "array", to, f"{to}[]" if domain or to != element else "", **more)
    if builtin and base == "bytea":
        return StoredColumn(name, shown, "bytes", base, "bytea" if domain else "", **more)
    if extension == "vector" and base == "vector" and send_schema and send:
        return StoredColumn(name, shown, "vector", "float4", send=(send_schema, send), **more)
    return StoredColumn(name, shown, "text", base, "" if builtin and base == "text" and not domain else "text", **more)
