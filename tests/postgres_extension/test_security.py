"""Attacks by users of the same database: objects that stand in the way of names, and a schema that was made beforehand.

Each runs on the oldest and the newest server at hand, where everyone may create objects in the schema ``public``, which was the
default up to 14.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.extension import ExtensionServer, missing, version_params, versions
from tests.servers import LATEST

Session = psycopg.Connection[Any]
ROWS = """
    CREATE TABLE {0} AS SELECT i % 7 AS a, (i > 300)::int AS b, i > 300 AS yes, CASE WHEN i > 300 THEN 'ja' ELSE 'nein' END AS label,
        ARRAY[i % 7, (i > 300)::int]::real[] AS features_v FROM generate_series(1, 600) AS i
"""
FUNCTIONS = [
    ("array_position", "text[], text", "int"),
    ("array_position", "name[], name", "int"),
    ("array_length", "text[], int", "int"),
    ("array_to_string", "text[], text", "text"),
    ("unnest", "text[]", "SETOF text"),
    ("to_jsonb", "text", "jsonb"),
    ("to_jsonb", "boolean", "jsonb"),
    ("jsonb_build_object", "text, text", "jsonb"),
    ("jsonb_build_object", "text, jsonb", "jsonb"),
    ("jsonb_build_array", "text", "jsonb"),
    ("format", "text, text", "text"),
    ("format", "text, text, text", "text"),
    ("generate_series", "int, bigint", "SETOF bigint"),
    ("date_part", "text, timestamp", "float8"),
    ("date_part", "text, timestamptz", "float8"),
    ("timezone", "text, timestamptz", "timestamp"),
    ("trunc", "int", "float8"),
    ("trunc", "bigint", "float8"),
    ("greatest", "float8, int", "float8"),
    ("concat", "text, text, text", "text"),
    ("jsonb_build_object", "text, bigint", "jsonb"),
    ("jsonb_build_array", "text, int, boolean", "jsonb"),
    ("to_jsonb", "jsonb[]", "jsonb"),
    ("log", "int, numeric", "numeric"),
]
OPERATORS = [
    ("=", "text[]", "text[]"),
    ("=", "regtype", "regtype"),
    ("<>", "regtype", "regtype"),
    ("@>", "text[]", "text[]"),
    ("||", "text", "int"),
    ("||", "text", "bigint"),
    ("->", "jsonb", "name"),
    (">", "real", "int"),
    ("*", "int", "real"),
    ("<", "float8", "float8"),
    (">", "float8", "float8"),
    ("/", "float8", "float8"),
    ("<<", "int", "int"),
    ("=", "int", "float8"),
    ("=", "bigint", "float8"),
    ("||", "text[]", "varchar"),
    ("<@", "regtype[]", "regtype[]"),
    ("-", "jsonb", "text[]"),
    ("*", "numeric", "int"),
    ("+", "float8", "int"),
    ("/", "float8", "bigint"),
]


COLUMNS = """name text PRIMARY KEY, kind text NOT NULL, outputs int NOT NULL, width bigint NOT NULL, coef float4[] NOT NULL,
    intercept float4[] NOT NULL, header json NOT NULL, format int NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    penstock_version text NOT NULL"""
ESCALATE = """LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE mallory SUPERUSER; END IF; RETURN {}; END $$"""
TRIGGER = (
    f"CREATE FUNCTION public.trap() RETURNS trigger {ESCALATE.format('NEW')};"
    "CREATE TRIGGER trap BEFORE INSERT ON penstock.models FOR EACH ROW EXECUTE FUNCTION public.trap()"
)
TRUTH = f"CREATE FUNCTION public.truth() RETURNS boolean {ESCALATE.format('true')}"
MADE = {
    "a trigger": TRIGGER,
    "a rule": f"{TRUTH}; CREATE RULE trap AS ON INSERT TO penstock.models WHERE public.truth() DO ALSO NOTHING",
    "row-level security": f"{TRUTH}; ALTER TABLE penstock.models ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY trap ON penstock.models USING (public.truth()) WITH CHECK (public.truth())",
    "checks": f"{TRUTH}; ALTER TABLE penstock.models ADD CHECK (public.truth())",
    "defaults": f"CREATE FUNCTION public.name() RETURNS text {ESCALATE.format('NULL')};"
    "ALTER TABLE penstock.models ADD extra text DEFAULT public.name()",
    "index": f"CREATE FUNCTION public.keyed(text) RETURNS text IMMUTABLE {ESCALATE.format('$1')};"
    "CREATE INDEX ON penstock.models (public.keyed(name))",
    "inherited": "CREATE TABLE public.heir () INHERITS (penstock.models)",
    "plain table": f"{TRUTH}; DROP TABLE penstock.models; CREATE VIEW penstock.models AS SELECT ''::text AS name WHERE public.truth()",
}
"""What the owner of the table can put on it to have code run by others, and the word by which it is refused."""


@pytest.fixture(scope="module", params=version_params(min(versions()), LATEST))
def server(request: pytest.FixtureRequest) -> Iterator[ExtensionServer]:
    """Give a server, and the role mallory, who may create objects in databases and in ``public``."""
    why = missing(request.param)
    if why:
        pytest.skip(why)
    with closing(ExtensionServer(request.param)) as server:
        server.run("CREATE ROLE mallory LOGIN")
        server.run("CREATE ROLE ann LOGIN")
        yield server


class Place:
    """A database, as seen by its users."""

    def __init__(self, server: ExtensionServer, address: str) -> None:
        self._server = server
        self.address = address
        self.name = address.split("/")[3].split("?")[0]

    @contextmanager
    def session(self, user: str = "postgres") -> Iterator[Session]:
        with psycopg.connect(self._server.address(self.name, user=user), autocommit=True) as session:
            yield session

    def run(self, query: str, user: str = "postgres") -> list[Any]:
        with self.session(user) as session:
            cursor = session.execute(query.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def is_taken(self) -> bool:
        """Whether mallory has become a superuser."""
        return bool(self.run("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")[0][0])


@pytest.fixture
def place(server: ExtensionServer) -> Iterator[Place]:
    with server.database() as address:
        place = Place(server, address)
        place.run("GRANT CREATE ON SCHEMA public TO PUBLIC")
        place.run(f"GRANT CREATE ON DATABASE {place.name} TO mallory, ann")
        try:
            yield place
        finally:
            place.run("DROP EXTENSION IF EXISTS penstock CASCADE; DROP OWNED BY mallory, ann CASCADE")
            place.run(f"REVOKE ALL ON DATABASE {place.name} FROM mallory, ann; ALTER ROLE mallory NOSUPERUSER")


def traps() -> str:
    """Return what mallory creates in ``public``: matches that are nearer than those of pg_catalog."""
    made = []
    for name, arguments, result in FUNCTIONS:
        value = "" if result.startswith("SETOF") else "NULL"
        made.append(f"CREATE FUNCTION public.{name}({arguments}) RETURNS {result} {ESCALATE.format(value)}")
    for number, (name, left, right) in enumerate(OPERATORS):
        made.append(f"CREATE FUNCTION public.trap_{number}({left}, {right}) RETURNS boolean {ESCALATE.format('NULL')}")
        made.append(
            f"CREATE OPERATOR public.{name} (FUNCTION = public.trap_{number}, LEFTARG = {left}, RIGHTARG = {right})"
        )
    return ";".join(made)


def test_no_name_of_others_is_called(place: Place) -> None:
    place.run("CREATE EXTENSION penstock")
    place.run(ROWS.format("clicks"))
    place.run(traps(), user="mallory")
    for options in (
        '{"features": ["a", "b"]}',
        "{}",
        '{"features": "a, b", "label": "yes"}',
        '{"classes": ["ja", "nein"]}',
    ):
        for model in ("svm", "softmax"):
            found = place.run(
                f"SELECT max(rows) FROM penstock.train('clicks', '{model}', 'm', '{options}'::jsonb || '{{\"replace\": true, \"validation\": 0}}')"
            )
            assert found == [(600,)]
            place.run(f"SELECT penstock.explain('clicks', '{model}', '{options}', true)")
        place.run(
            "SELECT penstock.predict_class('m', ARRAY[a, b]), penstock.predict_probabilities('m', ARRAY[a, b]) FROM clicks"
        )
    place.run("""CREATE TABLE mixed AS SELECT a, nullif(a, 3)::float8 AS c, pg_catalog.concat('v', a) AS text, '2026-01-01'::date + b * 40 + a AS day,
        now() AS at, row_number() OVER () AS id, label FROM clicks""")
    assert not place.is_taken(), "by the test itself"
    for options in ("{}", '{"nulls": "skip"}'):
        place.run(f"SELECT penstock.train('mixed', 'logistic', 'mixed', '{options}'::jsonb || '{{\"replace\": true}}')")
    place.run("SET search_path = public, pg_catalog; SELECT penstock.train('mixed', 'svm', 'again')")
    by = ("text", "day", "at", "c", "b")
    place.run("ALTER TABLE mixed ADD b boolean; UPDATE mixed SET b = (a % 2)::text = '1', day = '2026-01-01'::date + a")
    assert not place.is_taken(), "by the test itself"
    for path in ("public", "public, pg_catalog"):
        place.run(
            f"SET search_path = {path}; SELECT penstock.train('mixed', 'logistic', group_by => '{{{','.join(by)}}}', "
            "options => '{\"l2\": [1, 0.1], \"replace\": true}', name => 'groups')"
        )
    place.run(
        "SELECT penstock.predict('mixed', m), penstock.explain('mixed', 'svm', '{}', true) FROM mixed AS m LIMIT 5"
    )
    place.run('SELECT penstock.train(\'clicks\', \'linear\', NULL, \'{"label": "yes", "features": ["a"]}\')')
    with pytest.raises(errors.UndefinedColumn):
        place.run("SELECT penstock.train('clicks', 'svm', 'n', '{\"exclude\": [\"nothing\"]}')")
    assert not place.is_taken()


def test_the_callers_own_path_still_decides_what_their_query_means(place: Place) -> None:
    place.run("CREATE EXTENSION penstock; CREATE SCHEMA shop; CREATE SCHEMA other")
    with place.session() as session:
        session.execute("SET search_path = shop, public")
        session.execute(ROWS.format("clicks").encode())
        session.execute("CREATE TYPE answer AS ENUM ('no', 'yes')")
        session.execute("CREATE FUNCTION half(real[]) RETURNS real[] LANGUAGE sql IMMUTABLE AS 'SELECT $1[2:2]'")
        # A function that finds its tables by the path that is set as it runs.
        session.execute("CREATE TABLE factor AS SELECT 2::real AS f")
        session.execute(
            "CREATE FUNCTION scaled(real[]) RETURNS real[] LANGUAGE plpgsql AS $$ BEGIN"
            " RETURN ARRAY[$1[1] * (SELECT f FROM factor)]; END $$"
        )
        session.execute("CREATE TEMPORARY TABLE mine AS SELECT * FROM clicks LIMIT 500")
        query = (
            "SELECT scaled(half(features_v)) AS features_v, (ARRAY['no', 'yes'])[1 + b]::answer AS label FROM clicks"
        )
        for source, rows in (("clicks", 600), (query, 600), ("mine", 500)):
            train = 'SELECT max(rows) FROM penstock.train(%s, \'svm\', NULL, \'{"features": "features_v", "validation": 0}\')'
            assert session.execute(train, (source,)).fetchone() == (rows,)
            plan = session.execute(
                "SELECT penstock.explain(%s, 'svm', '{\"features\": \"features_v\"}', true)", (source,)
            )
            assert "SGD" in plan.fetchall()[0][0]
        assert session.execute("SHOW search_path").fetchone() == ("shop, public",)
        # Inside a function, the path of that function.
        session.execute(
            "CREATE FUNCTION train_here() RETURNS bigint LANGUAGE plpgsql SET search_path = shop AS"
            " $$ BEGIN RETURN (SELECT max(rows) FROM penstock.train('clicks', 'svm', NULL, '{\"features\": \"features_v\", \"validation\": 0}')); END $$"
        )
        session.execute("SET search_path = other")
        assert session.execute("SELECT shop.train_here()").fetchone() == (600,)
        with pytest.raises(errors.UndefinedTable):
            session.execute("SELECT penstock.train('clicks')")


def test_a_schema_of_another_user_is_not_taken_over(place: Place) -> None:
    place.run(f"CREATE SCHEMA penstock; CREATE TABLE penstock.models ({COLUMNS}); {TRIGGER}", user="mallory")
    for user in ("postgres", "ann"):
        with pytest.raises(errors.DuplicateSchema, match="mallory"):
            place.run("CREATE EXTENSION penstock", user=user)
    assert place.run("SELECT FROM pg_extension WHERE extname = 'penstock'") == []
    assert not place.is_taken()


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ("GRANT CREATE ON SCHEMA penstock TO mallory", errors.InsufficientPrivilege),
        ("CREATE FUNCTION penstock.train(text) RETURNS int LANGUAGE sql AS 'SELECT 1'", errors.DuplicateObject),
        ("CREATE OPERATOR penstock.= (FUNCTION = int4eq, LEFTARG = text[], RIGHTARG = int)", errors.DuplicateObject),
        ("CREATE TYPE penstock.mood AS ENUM ('x')", errors.DuplicateObject),
        (
            f"CREATE TABLE penstock.models ({COLUMNS}); ALTER TABLE penstock.models OWNER TO mallory",
            errors.DuplicateTable,
        ),
    ],
)
def test_a_schema_that_holds_objects_of_others_is_refused(place: Place, made: str, error: type[psycopg.Error]) -> None:
    if "OPERATOR" in made:
        made = f"CREATE FUNCTION public.eq(text[], int) RETURNS bool LANGUAGE sql AS 'SELECT true'; {made.replace('int4eq', 'public.eq')}"
    place.run(f"CREATE SCHEMA penstock; {made}")
    with pytest.raises(error):
        place.run("CREATE EXTENSION penstock")


@pytest.mark.parametrize("made", MADE)
def test_a_table_of_models_that_runs_code_is_refused(place: Place, made: str) -> None:
    # By an installation, though mallory installs it, and owns all of it.
    place.run(f"CREATE SCHEMA penstock; CREATE TABLE penstock.models ({COLUMNS}); {MADE[made]}", user="mallory")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match=made):
        place.run("CREATE EXTENSION penstock", user="mallory")
    # By whoever trains or predicts where it came later.
    place.run("DROP SCHEMA penstock CASCADE; CREATE EXTENSION penstock")
    place.run(ROWS.format("clicks"))
    train = "SELECT penstock.train('clicks', 'svm', 'm', '{\"features\": \"a, b\", \"replace\": true}')"
    place.run(train)
    place.run("DROP OWNED BY mallory CASCADE; GRANT USAGE, CREATE ON SCHEMA penstock TO mallory")
    place.run("ALTER TABLE penstock.models OWNER TO mallory")
    place.run(MADE[made], user="mallory")
    for query in (train, "SELECT penstock.predict('m', ARRAY[1, 2])"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match=made):
            place.run(query)
    assert not place.is_taken()


def test_the_owner_of_the_table_must_be_trusted(place: Place) -> None:
    place.run("CREATE EXTENSION penstock")
    place.run(ROWS.format("clicks") + "; GRANT SELECT ON clicks TO mallory, ann")
    train = "SELECT penstock.train('clicks', 'svm', 'm', '{\"features\": \"a, b\", \"replace\": true}')"
    place.run(train)
    place.run("GRANT USAGE ON SCHEMA penstock TO mallory, ann; GRANT ALL ON penstock.models TO ann")
    place.run("ALTER TABLE penstock.models OWNER TO mallory")
    for user in ("postgres", "ann"):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="mallory"):
            place.run(train, user=user)
    place.run(train, user="mallory")
    place.run("GRANT mallory TO ann")
    try:
        place.run(train, user="ann")
    finally:
        place.run("REVOKE mallory FROM ann")


def test_who_installs_it_does_not_own_what_others_call(place: Place) -> None:
    place.run("CREATE EXTENSION penstock", user="mallory")
    place.run(ROWS.format("rows"), user="mallory")
    place.run("SELECT penstock.train('rows', 'svm', 'm', '{\"features\": \"a, b\"}')", user="mallory")
    for trap in ("CREATE FUNCTION penstock.train(text) RETURNS int LANGUAGE sql AS 'SELECT 1'", TRIGGER):
        with pytest.raises(errors.InsufficientPrivilege):
            place.run(trap, user="mallory")
    # What they may do is use it, and let others.
    place.run("GRANT USAGE ON SCHEMA penstock TO ann; GRANT SELECT ON penstock.models TO ann", user="mallory")
    assert place.run("SELECT count(*) FROM penstock.models", user="ann") == [(1,)]
    place.run("DELETE FROM penstock.models; DROP EXTENSION penstock", user="mallory")


def test_models_made_before_the_extension_are_kept(place: Place) -> None:
    place.run(f"CREATE SCHEMA penstock; CREATE TABLE penstock.models ({COLUMNS})", user="ann")
    place.run(
        "INSERT INTO penstock.models VALUES ('old', 'linear', 1, 1, '{2}', '{1}', '{}', 1, now(), '0.1.0')", user="ann"
    )
    place.run("CREATE EXTENSION penstock", user="ann")
    assert place.run("SELECT penstock.predict('old', ARRAY[3])", user="ann") == [(7.0,)]
    owners = "SELECT DISTINCT r.rolsuper FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = 'penstock.models'::regclass"
    assert place.run(owners) == [(True,)]
    place.run("DELETE FROM penstock.models", user="ann")


def described(place: Place) -> list[Any]:
    """Return all that the extension has, as the server would write it."""
    members = place.run("""
        SELECT pg_describe_object(d.classid, d.objid, d.objsubid) AS object, obj_description(d.objid, d.classid::regclass::text),
            CASE WHEN d.classid = 'pg_proc'::regclass AND p.prokind = 'f' THEN pg_get_functiondef(d.objid) END,
            p.proconfig, p.prosecdef, p.provolatile, p.proparallel, p.proowner::regrole::text, p.proacl::text, p.prosupport::text
        FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'penstock'
        LEFT JOIN pg_proc AS p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
        WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass ORDER BY 1
    """)
    columns = place.run("""
        SELECT c.relname, a.attname, a.attnum, a.atttypid::regtype::text FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind = 'c' ORDER BY 1, 3
    """)
    schema = place.run("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'penstock'")
    return [*members, *columns, *schema]


@pytest.mark.parametrize("user", ["postgres", "ann"])
def test_an_update_gives_what_an_installation_does(place: Place, user: str) -> None:
    place.run("CREATE EXTENSION penstock", user=user)
    fresh = described(place)
    place.run("DROP EXTENSION penstock; DROP SCHEMA penstock")
    place.run("CREATE EXTENSION penstock VERSION '0.1.0'", user=user)
    place.run("SELECT penstock.make_catalogue()", user=user)
    place.run("CREATE VIEW scores AS SELECT penstock.predict('{1}', 0, ARRAY[2])", user=user)
    place.run("ALTER EXTENSION penstock UPDATE", user=user)
    assert described(place) == fresh
    assert place.run("SELECT * FROM scores", user=user) == [(2.0,)]
    place.run(ROWS.format("rows"), user=user)
    place.run("SELECT penstock.train('rows', 'svm', 'm', '{\"features\": \"a, b\"}')", user=user)


def test_a_library_newer_than_its_functions_says_so(place: Place) -> None:
    place.run("CREATE EXTENSION penstock VERSION '0.1.0'")
    place.run(ROWS.format("clicks"))
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="ALTER EXTENSION penstock UPDATE"):
        place.run("SELECT penstock.train('clicks', 'svm', 'm', '{\"features\": \"a, b\"}')")


def test_an_update_refuses_what_others_have_put_beside_it(place: Place) -> None:
    place.run("CREATE EXTENSION penstock VERSION '0.1.0'", user="mallory")
    place.run("CREATE FUNCTION penstock.train(text) RETURNS int LANGUAGE sql AS 'SELECT 1'", user="mallory")
    with pytest.raises(errors.DuplicateObject, match="train"):
        place.run("ALTER EXTENSION penstock UPDATE")


def test_every_function_has_a_path_of_its_own_or_was_read_when_it_was_made(place: Place) -> None:
    place.run("CREATE EXTENSION penstock")
    found = place.run("""
        SELECT p.proname FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
        WHERE p.pronamespace = 'penstock'::regnamespace AND l.lanname NOT IN ('c', 'internal')
            AND p.prosqlbody IS NULL AND p.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']
    """)
    assert found == []
