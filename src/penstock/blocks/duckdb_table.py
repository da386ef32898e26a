"""What a table stored in DuckDB is: its full name, its columns as they are served, its nulls, its row groups.

All of it is asked in SQL over a cursor that is passed in; nothing here opens or keeps one. Names are quoted by `quote_name`
alone, values are bound, and what is written into a statement otherwise are integers made here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from penstock.columns.pairs import PAIRS
from penstock.errors import DataError, SourceNotFoundError, UsageError, nearest, some_of
from penstock.messages import Text, Use

_WHOLE = "TINYINT|SMALLINT|INTEGER|BIGINT|UTINYINT|USMALLINT|UINTEGER|UBIGINT"
_EXACT = r"HUGEINT|UHUGEINT|BIGNUM|DECIMAL\(\d+,\d+\)"
_LIST = re.compile(rf"(?P<inner>(?P<whole>{_WHOLE})|{_EXACT}|FLOAT|DOUBLE)\[(?P<size>\d*)\]")
_PART = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<bare>[^."\s](?:[^."]*[^."\s])?))\s*(?P<more>\.?)')

Kind = Literal["plain", "array", "list", "half", "blob"]
Found = Literal["table", "view", "temporary", "foreign"]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's full name."""

    database: str
    schema: str
    table: str

    @property
    def sql(self) -> str:
        """The name as SQL writes it."""
        return ".".join(map(quote_name, (self.database, self.schema, self.table)))

    def __str__(self) -> str:
        return self.table if self.schema == "main" else f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class DuckDBColumn:
    """A column as it is served: what to select, and the Arrow type that it becomes.

    ``kind`` says how: as it comes, a fixed-size array, a list (``half`` of a sparse pair stays one), or packed bytes.
    """

    name: str
    kind: Kind
    expression: str
    type: pa.DataType

    @property
    def selected(self) -> str:
        """The expression under the column's name."""
        return f"{self.expression} AS {quote_name(self.name)}"

    @property
    def length(self) -> str:
        """SQL for how many values a row has, or bytes."""
        return f"{'octet_length' if self.kind == 'blob' else 'len'}({quote_name(self.name)})"

    def fixed(self, size: int) -> DuckDBColumn:
        """Return the column as a fixed-size list of float32."""
        return replace(self, type=pa.list_(pa.float32(), size))


def fetch_rows(cursor: Any, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement; a cursor with rows left to fetch would take no other one."""
    rows: list[tuple[Any, ...]] = cursor.execute(text, list(parameters)).fetchall()
    return rows


def quote_name(name: str) -> str:
    """Write a name as an identifier.

    Examples
    --------
    >>> quote_name('the "best"; table')
    '"the ""best""; table"'
    """
    if not name or "\0" in name:
        raise UsageError(f"{name!r} is no name for a table or column")
    return '"' + name.replace('"', '""') + '"'


def split_name(text: str) -> tuple[str, ...]:
    """Take a name as written in SQL apart, quotes removed.

    Examples
    --------
    >>> split_name('shop."my ""best"" table"')
    ('shop', 'my "best" table')
    """
    parts: list[str] = []
    at = 0
    while at < len(text) or not parts:
        found = _PART.match(text, at)
        if found is None or (found.end() == len(text)) == bool(found["more"]):
            raise UsageError(f'{text!r} is no name of a table; write it as in SQL, such as main.higgs or "my table"')
        parts.append(found["quoted"].replace('""', '"') if found["quoted"] else found["bare"])
        at = found.end()
    return tuple(parts)


def find_table(cursor: Any, name: str | Sequence[str], *, place: str) -> tuple[TableName, Found]:
    """Look a table or view up by its name, or by the parts of its name; a string is a name, or one written as in SQL."""
    rows = tables_in(cursor)
    given: list[tuple[str, ...]] = [(name,) if isinstance(name, str) else tuple(name)]
    if isinstance(name, str) and re.search(r'[."]', name):
        with suppress(UsageError):
            given.append(split_name(name))
    database, schemas = fetch_rows(cursor, "SELECT current_database(), current_schemas(false)")[0]
    for parts in given:
        ranked = sorted(
            (
                (rank, found, kind)
                for found, kind in rows
                if (rank := _rank(found, parts, database, schemas)) is not None
            ),
            key=lambda each: each[0],
        )
        if ranked:
            return ranked[0][1:]
    names = [str(found) for found, kind in rows if kind in ("table", "view") and found.database == database]
    shown = name if isinstance(name, str) else ".".join(name)
    told = f"it has: {some_of(names)}{nearest(shown, names)}" if names else "it has none"
    raise SourceNotFoundError(f"{place} has no table {shown!r} that can be read here; {told}")


def tables_in(cursor: Any) -> list[tuple[TableName, Found]]:
    """Return all tables and views, those of attached databases too, and what each is."""
    found = fetch_rows(
        cursor,
        "SELECT database_name, schema_name, name, kind, type FROM ("
        " SELECT database_name, schema_name, table_name AS name, if(temporary, 'temporary', 'table') AS kind"
        " FROM duckdb_tables() WHERE NOT internal"
        " UNION ALL SELECT database_name, schema_name, view_name, 'view' FROM duckdb_views() WHERE NOT internal"
        ") JOIN duckdb_databases() USING (database_name) ORDER BY ALL",
    )
    return [
        (TableName(database, schema, name), "foreign" if kind == "table" and engine != "duckdb" else kind)
        for database, schema, name, kind, engine in found
    ]


def stored_columns(cursor: Any, query: str) -> list[tuple[str, str]]:
    """Return the names and types of what a table's name or a query in parentheses selects, without running it."""
    return [(name, kind) for name, kind, *_ in fetch_rows(cursor, f"DESCRIBE SELECT * FROM {query}")]


def served_columns(cursor: Any, columns: Sequence[tuple[str, str]]) -> list[DuckDBColumn]:
    """Say how columns of these names and types are served; lists and bytes are not fixed in size yet."""
    names = [name for name, _ in columns]
    pair = next((pair for pair in PAIRS if all(name in names for name in pair)), ())
    out = [_serve(name, kind, pair.index(name) if name in pair else None) for name, kind in columns]
    if not out:
        return []
    # Types alone are asked for: a query, even without rows, might run what it calls.
    nothing = ", ".join("NULL" if kind == '"NULL"' else f"CAST(NULL AS {kind})" for _, kind in out)
    schema = cursor.sql(f"SELECT {nothing} WHERE false").to_arrow_table().schema
    return [replace(column, type=plain_type(field.type)) for (column, _), field in zip(out, schema, strict=True)]


def null_conditions(
    cursor: Any, table: str, columns: Sequence[DuckDBColumn], listed: Collection[str]
) -> dict[str, str]:
    """Return, for columns that hold nulls, the SQL that says whether a row's value is or holds one.

    ``listed`` are the columns whose lists may hold nulls inside.
    """
    inside = {
        c.name: f"list_count({quote_name(c.name)}) <> len({quote_name(c.name)})" for c in columns if c.name in listed
    }
    asked = [f"count({quote_name(c.name)})" for c in columns] + [
        f"count(*) FILTER (WHERE {each})" for each in inside.values()
    ]
    total, *counts = fetch_rows(cursor, f"SELECT count(*), {', '.join(asked)} FROM {table}")[0]
    found: dict[str, list[str]] = {c.name: [] for c in columns}
    for column, count in zip(columns, counts):
        found[column.name] += [f"{quote_name(column.name)} IS NULL"] if count < total else []
    for name, count in zip(inside, counts[len(columns) :]):
        found[name] += [inside[name]] if count else []
    return {name: " OR ".join(each) for name, each in found.items() if each}


def refuse_nulls(cursor: Any, table: str, conditions: dict[str, str], *, place: str) -> None:
    """Raise for rows with nulls, with how many there are and the first one's rowid."""
    if not conditions:
        return
    where = " OR ".join(f"({each})" for each in conditions.values())
    count, first = fetch_rows(cursor, f"SELECT count(*), min(rowid) FROM {table} WHERE {where}")[0]
    raise DataError(
        f"{count} {'row has' if count == 1 else 'rows have'} a null in "
        f"{some_of(map(repr, conditions), 8)}, the first at rowid {first}",
        place=place,
        fixes=[
            "fill or delete such rows",
            Text("leave them out with ", Use("nulls", "skip")),
            Text("leave the columns out: ", Use("exclude", list(conditions)[:8])),
        ],
    )


def fix_lengths(
    cursor: Any, table: str, columns: Sequence[DuckDBColumn], where: str, *, place: str, strict: bool
) -> list[DuckDBColumn]:
    """Return columns with lists and bytes of one length made fixed in size; other lists are refused, unless not ``strict``."""
    asked = [c for c in columns if c.kind in ("list", "blob")]
    if not asked:
        return list(columns)
    parts = [f"min({c.length}), max({c.length}), bool_or({quote_name(c.name)} IS NULL)" for c in asked]
    found = fetch_rows(cursor, f"SELECT {', '.join(parts)} FROM {table} WHERE {where}")[0]
    fixed = {}
    for at, column in enumerate(asked):
        least, most, nulls = found[3 * at : 3 * at + 3]
        unit = 4 if column.kind == "blob" else 1
        if least is None or (nulls and not strict):  # no rows, or some of no length: as they come
            continue
        if least == most and least and least % unit == 0:
            fixed[column.name] = column.fixed(least // unit)
        elif strict and column.kind == "list":  # bytes that are no packed numbers are bytes
            raise _unequal(cursor, table, column, where, place=place)
    return [fixed.get(column.name, column) for column in columns]


def _rank(found: TableName, parts: tuple[str, ...], database: str, schemas: Sequence[str]) -> int | None:
    """Return how near a table is to what a name means, or None if it is not meant; DuckDB tells no case apart."""
    have = tuple(part.lower() for part in (found.database, found.schema, found.table))
    want = tuple(part.lower() for part in parts)
    if len(want) > 3 or have[3 - len(want) :] != want:
        # A name of two parts may also be a database's, whose tables are in the schema main.
        return 1 if len(want) == 2 and (have[0], have[2]) == want and have[1] == "main" else None
    if len(want) == 3:
        return 0
    if len(want) == 2:
        return 0 if have[0] == database.lower() else None
    if have[0] == "temp":
        return 0
    lower = [schema.lower() for schema in (*schemas, "main")]
    return 1 + lower.index(have[1]) if have[0] == database.lower() and have[1] in lower else None


def _serve(name: str, kind: str, half: int | None) -> tuple[DuckDBColumn, str]:
    """Return a column, its Arrow type yet to be told, and the type in DuckDB of what is selected."""
    listed, target = _LIST.fullmatch(kind), kind
    how: Kind = "blob" if kind == "BLOB" else "plain"
    if listed is not None:
        size = "" if half is not None else listed["size"]
        target = f"{'FLOAT' if half != 0 else listed['whole'] or 'BIGINT'}[{size}]"
        how = "half" if half is not None else "array" if size else "list"
    elif re.fullmatch(_EXACT, kind):
        target = "DOUBLE"
    elif kind.startswith("ENUM("):
        target = "VARCHAR"
    return DuckDBColumn(
        name, how, quote_name(name) if target == kind else f"CAST({quote_name(name)} AS {target})", pa.null()
    ), target


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type as Arrow itself names it: DuckDB gives the values of lists names of its own."""
    if pa.types.is_fixed_size_list(kind) and not pa.types.is_nested(kind.value_type):
        return pa.list_(kind.value_type, kind.list_size)
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return pa.list_(kind.value_type)
    return kind


def _unequal(cursor: Any, table: str, column: DuckDBColumn, where: str, *, place: str) -> DataError:
    first, size = fetch_rows(
        cursor, f"SELECT rowid, {column.length} FROM {table} WHERE {where} ORDER BY rowid LIMIT 1"
    )[0]
    others = fetch_rows(
        cursor,
        f"SELECT rowid, {column.length} FROM {table} WHERE {where} AND {column.length} <> {size} ORDER BY rowid LIMIT 1",
    )
    if not others:
        return DataError(
            f"{place}: column {column.name!r} has {size} values in every row; there is nothing to learn from in it"
        )
    return DataError(
        f"{place}: column {column.name!r} has {size} values at rowid {first} but {others[0][1]} at rowid {others[0][0]}; features are"
        " equally many in every row: mend such rows, leave the column out, or give sparse rows as two columns of lists,"
        " 'indices' and 'values'"
    )
