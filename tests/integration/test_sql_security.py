"""What other users of a PostgreSQL database can do to one who runs ``penstock sql``: nothing.

They may create objects in a schema of the user's search path, and may have made the schema ``penstock`` before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.blocks.postgres.qualify import qualified
from penstock.errors import DatabaseError
from penstock.sql import connect
from penstock.sql.catalog import Catalog
from penstock.sql.dialect import quote_identifier
from penstock.sql.engines.base import model_columns
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.stand_in_rows import stand_in_query
from tests.servers import Server

# Types that statements of ours compare or combine, for which pg_catalog has no operator of its own.
PAIRS = [
    *((left, right) for left in ("int", "bigint", "smallint", "numeric") for right in ("float8", "real")),
    *((right, left) for left in ("int", "bigint", "numeric") for right in ("float8", "real")),
    *(("oid", kind) for kind in ("regclass", "regproc")),
    ("real[]", "real[]"),
    ("int[]", "int[]"),
    ("numeric", "int"),
    ("text", "name"),
    ("name", "unknown"),
]
FUNCTIONS = {
    "cardinality": ("real[]", "int[]", "text[]"),
    "array_ndims": ("real[]", "int[]"),
    "array_position": ("real[], real", "int[], int", "text[], text"),
    "array_agg": ("real[]",),
    "unnest": ("oid[]", "real[]", "int[]", "text[]"),
    "to_jsonb": ("jsonb[]",),
    "jsonb_build_object": ("text, text, text, float8", "text, bigint, text, float8"),
    "left": ("name, int",),
    "array_send": ("real[]",),
    "sum": ("int",),
    "abs": ("double precision",),
    "jsonb_agg": ("jsonb",),
}
TRAP = """LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN ALTER ROLE mallory SUPERUSER; END IF;
    RETURN {}; END $$"""


def traps() -> list[str]:
    """Return what mallory creates in ``public``: nearer matches than those of pg_catalog, where there can be any."""
    made = []
    for name, arguments in FUNCTIONS.items():
        for each in arguments:
            result = "SETOF " + each.removesuffix("[]") if name == "unnest" else "int"
            value = "" if name == "unnest" else "NULL"
            made.append(f"CREATE FUNCTION public.{name}({each}) RETURNS {result} {TRAP.format(value)}")
    for number, (left, right) in enumerate(PAIRS):
        if "unknown" in (left, right):
            continue
        for place, sign in enumerate(("=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||")):
            function = f"public.trap_{number}_{place}"
            result = "boolean" if sign in ("=", "<>", "<", ">", "<=", ">=") else "float8"
            made.append(f"CREATE FUNCTION {function}({left}, {right}) RETURNS {result} {TRAP.format('NULL')}")
            made.append(f"CREATE OPERATOR public.{sign} (FUNCTION = {function}, LEFTARG = {left}, RIGHTARG = {right})")
    return made


@pytest.fixture
def shared(database: str, postgres: Server) -> Iterator[tuple[str, str]]:
    """Give a database where everyone may create objects, as seen by a superuser and by mallory."""
    with psycopg.connect(database) as connection:
        name = connection.info.dbname
    postgres.run("CREATE ROLE mallory LOGIN")
    postgres.run(f"GRANT CREATE ON DATABASE {name} TO mallory")
    postgres.run("GRANT CREATE ON SCHEMA public TO PUBLIC", at=database)
    yield database, postgres.address(name, user="mallory")
    postgres.run("DROP SCHEMA IF EXISTS penstock CASCADE; DROP OWNED BY mallory CASCADE", at=database)
    postgres.run("DROP ROLE mallory")


def is_taken(postgres: Server) -> bool:
    return bool(postgres.run("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")[0][0])


def test_no_function_or_operator_of_others_is_called(shared: tuple[str, str], postgres: Server) -> None:
    address, mallory = shared
    postgres.run(
        """CREATE TABLE rows AS SELECT i AS id, i % 7 AS a, (i % 5)::float8 AS b, (i % 3)::numeric AS c, i % 2 = 0 AS d, (i % 11)::bigint AS e,
            ARRAY[i % 7, i % 5]::real[] AS f, ARRAY[i % 7, i % 5] AS g, (ARRAY['x', 'y', 'z'])[1 + i % 3] AS kind, nullif(i % 7, 2)::float8 AS h,
            '2024-01-01'::date + i AS day, '2024-01-01'::timestamptz + i * '5 hours'::interval AS moment, (i / 4.0)::text AS digits, (i % 7 > 3)::int AS label
            FROM generate_series(1, 400) AS i;
        CREATE TABLE wide AS SELECT (SELECT array_agg((i % j)::real) FROM generate_series(2, 1103) AS j) AS f, i % 2 AS label
            FROM generate_series(1, 60) AS i;
        CREATE TABLE sparse AS SELECT ARRAY[i % 7, 7 + i % 3] AS indices, '{1,1}'::real[] AS values, (i % 7 > 3)::int AS label
            FROM generate_series(1, 200) AS i""",
        at=address,
    )
    postgres.run(";".join(traps()), at=mallory)
    with closing(connect(address)) as session:
        sources = {
            "numbers": "SELECT a, b, c, d, e, label FROM rows",
            "list": "SELECT f, label FROM rows",
            "whole": "SELECT g, label FROM rows",
            "many": "SELECT f, kind AS label FROM rows",
            "broad": "SELECT * FROM wide",
            "pairs": "SELECT * FROM sparse",
            "mixed": "SELECT a, kind, h, day, moment, digits, label FROM rows",
        }
        for name, query in sources.items():
            kind = "softmax" if name == "many" else "logistic"
            session.sql(f"{query} TRAIN BY {kind} AS {name} WITH (epochs = 1, learning_rate = 0.001, label = label)")
            found = session.sql(f"{query} PREDICT BY {name}")
            assert all(value is not None for value in found.column("prediction"))
            session.sql(f"EVALUATE MODEL {name} ON ({query})")
            session.sql(f"EXPLAIN {query} TRAIN BY {kind}")
            session.sql(f"SELECT * FROM ML.PREDICT(MODEL {name}, ({query}))")
            session.sql(f"SELECT * FROM ML.EXPLAIN_PREDICT(MODEL {name}, ({query}))")
            session.sql(f"SELECT * FROM ML.CONFUSION_MATRIX(MODEL {name}, ({query}))")
            session.sql(f"SELECT * FROM ML.FEATURE_INFO(MODEL {name})")
            if kind == "logistic":
                session.sql(f"SELECT * FROM ML.ROC_CURVE(MODEL {name}, ({query}))")
                session.sql(f"SELECT * FROM ML.PREDICT(MODEL {name}, ({query}), STRUCT(0.25 AS threshold))")
        session.sql("SELECT a, b, label FROM rows TRAIN BY linear AS line WITH (epochs = 1, learning_rate = 0.001)")
        session.sql("SELECT a, b FROM rows PREDICT BY line")
        session.sql("SHOW MODELS; DESCRIBE MODEL numbers; DROP MODEL numbers")
        session.sql("PACK rows INTO packed WITH (features = f)")
        session.sql("SELECT features, label FROM packed TRAIN BY svm AS small WITH (epochs = 1)")
        session.sql("SELECT features FROM packed PREDICT BY small")
    assert not is_taken(postgres)


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ("CREATE TRIGGER trap BEFORE INSERT ON penstock.models FOR EACH ROW EXECUTE FUNCTION public.trap()", "trigger"),
        ("CREATE RULE trap AS ON INSERT TO penstock.models WHERE public.truth() DO ALSO NOTHING", "rule"),
        (
            "ALTER TABLE penstock.models ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON penstock.models USING (public.truth())",
            "row-level security",
        ),
        ("ALTER TABLE penstock.models ADD CHECK (public.truth())", "a check"),
        ("ALTER TABLE penstock.models ADD extra boolean DEFAULT public.truth()", "default"),
        (
            "ALTER TABLE penstock.models RENAME TO kept; CREATE VIEW penstock.models AS SELECT * FROM penstock.kept",
            "plain table",
        ),
    ],
)
def test_a_table_of_models_that_runs_code_is_refused(
    shared: tuple[str, str], postgres: Server, made: str, word: str
) -> None:
    address, mallory = shared
    postgres.run("CREATE TABLE rows AS SELECT i % 7 AS a, i % 2 AS label FROM generate_series(1, 50) AS i", at=address)
    functions = f"""CREATE FUNCTION public.trap() RETURNS trigger {TRAP.format("NEW")};
        CREATE FUNCTION public.truth() RETURNS boolean {TRAP.format("true")}"""
    postgres.run(
        f"CREATE SCHEMA penstock; CREATE TABLE penstock.models ({model_columns()}); {functions}; {made}", at=mallory
    )

    def refused(match: str) -> None:
        with closing(connect(address)) as session:
            for statement in ("SELECT * FROM rows TRAIN BY svm AS m", "SELECT a FROM rows PREDICT BY m", "SHOW MODELS"):
                with pytest.raises(DatabaseError, match=match):
                    session.sql(statement)

    refused("mallory")
    # One who has given the table away may still have left something on it.
    postgres.run("ALTER SCHEMA penstock OWNER TO postgres; ALTER TABLE penstock.models OWNER TO postgres", at=address)
    refused(word)
    assert not is_taken(postgres)


def test_models_of_an_ordinary_user_are_used_by_those_who_trust_them(shared: tuple[str, str], postgres: Server) -> None:
    address, mallory = shared
    with closing(PostgresEngine(mallory)) as engine:
        catalog = Catalog(engine)
        assert catalog.entries() == []
        catalog.require_writable()
    with closing(PostgresEngine(mallory)) as engine:
        assert Catalog(engine).entries() == []
    postgres.run("CREATE ROLE friend LOGIN; GRANT USAGE ON SCHEMA penstock TO friend", at=address)
    postgres.run("GRANT SELECT ON penstock.models TO friend", at=address)
    friend = mallory.replace("//mallory@", "//friend@")
    try:
        with closing(PostgresEngine(friend)) as engine:
            with pytest.raises(DatabaseError, match="mallory"):
                Catalog(engine).entries()
            postgres.run("GRANT mallory TO friend")
            assert Catalog(engine).entries() == []
    finally:
        postgres.run("DROP OWNED BY friend; DROP ROLE friend", at=address)


def test_qualified_leaves_nothing_to_the_search_path() -> None:
    text = qualified("SELECT coalesce(max(a.x), 0)::int8 FROM t AS a WHERE a.x = ANY ($1::oid[]) AND a.y || 'z' <> 'q'")
    assert not re.search(r"(?<!\.)\b(max|int8|oid)\b", text)
    assert re.sub(r"OPERATOR\(pg_catalog\.\S+\)", "", text).count("=") == 0
    for unclear in ("SELECT 1 WHERE a IN (1, 2)", "SELECT CASE a WHEN 1 THEN 2 END", "SELECT a LIKE 'x'"):
        with pytest.raises(ValueError, match="search path"):
            qualified(unclear)


def test_types_in_casts_are_qualified() -> None:
    assert qualified("SELECT CAST(j AS text) AS city, CAST(CAST(max(k) AS int8) AS float8) FROM k, j") == (
        "SELECT CAST(j AS pg_catalog.text) AS city,"
        " CAST(CAST(pg_catalog.max(k) AS pg_catalog.int8) AS pg_catalog.float8) FROM k, j"
    )
    assert qualified("CAST(x AS pg_catalog.text)") == "CAST(x AS pg_catalog.text)"
    with pytest.raises(ValueError, match="search path"):
        qualified("CAST((((x))) AS text)")
    schema = pa.schema({"a": pa.int64(), "city": pa.string(), "v": pa.list_(pa.float32(), 3), "y": pa.bool_()})
    engine: Any = SimpleNamespace(dialect=POSTGRES, quote=quote_identifier)
    text = stand_in_query(schema, schema.names, "y", engine, rows=400).text
    assert text.count(" AS pg_catalog.") == text.count("CAST(") >= 2
    assert not re.search(r"::(?!pg_catalog\.)", text)
