"""Who may do what: the nodes read what the caller may SELECT, and nothing that row-level security hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.extension import ExtensionServer

Session = psycopg.Connection[Any]
LEARN = """SELECT penstock.sgd(features_v, label, '{"epochs": 1, "classes": [0, 1]}') AS s FROM points"""


@pytest.fixture
def guest(clustered: Session, extended: ExtensionServer) -> Iterator[Session]:
    """Give a session of a user who may use models, and nothing else; ``clustered`` is the owner's."""
    clustered.execute("SELECT penstock.make_catalogue()")
    clustered.execute("CREATE ROLE guest LOGIN")
    clustered.execute("GRANT USAGE ON SCHEMA penstock TO guest")
    clustered.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO guest")
    name = clustered.info.dbname
    try:
        with psycopg.connect(extended.address(name, user="guest"), autocommit=True) as session:
            yield session
    finally:
        clustered.execute("DROP OWNED BY guest")
        clustered.execute("DROP ROLE guest")


def test_a_table_that_may_not_be_selected_from_is_not_read(clustered: Session, guest: Session) -> None:
    for query in ("SELECT penstock.train('points')", LEARN, "SELECT penstock.explain('points', 'svm', '{}', true)"):
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied for table points"):
            guest.execute(query.encode())
    clustered.execute("GRANT SELECT (id, label) ON points TO guest")
    with pytest.raises(errors.InsufficientPrivilege):
        guest.execute(LEARN)
    clustered.execute("GRANT SELECT (features_v) ON points TO guest")
    assert len(guest.execute(LEARN).fetchall()) == 1
    train = "SELECT rows FROM penstock.train('SELECT features_v, label FROM points', options => '{\"validation\": 0}')"
    assert guest.execute(train).fetchall() == [(20_000,)]


def test_row_level_security_hides_rows_from_training(clustered: Session, guest: Session) -> None:
    clustered.execute("""
        GRANT SELECT ON points TO guest;
        CREATE TABLE visible AS SELECT generate_series(0, 19999, 5) AS id;
        GRANT SELECT ON visible TO guest;
        ALTER TABLE points ENABLE ROW LEVEL SECURITY;
        CREATE POLICY fifth ON points USING (id IN (SELECT id FROM visible));
    """)
    rows = f"SELECT (s).rows FROM ({LEARN}) AS q".encode()
    assert guest.execute(rows).fetchone() == (4000,)
    assert guest.execute(
        "SELECT max(rows) FROM penstock.train('points', 'svm', options => '{\"validation\": 0}')"
    ).fetchone() == (4000,)
    assert clustered.execute(rows).fetchone() == (20_000,)
    # A function of the user's own that would tell what it sees is asked only after the policy.
    guest.execute("""
        CREATE FUNCTION pg_temp.tell(int) RETURNS boolean COST 0.0001 LANGUAGE plpgsql
        AS $$ BEGIN IF $1 % 5 <> 0 THEN RAISE 'saw %', $1; END IF; RETURN true; END $$
    """)
    assert guest.execute(f"SELECT (s).rows FROM ({LEARN} WHERE pg_temp.tell(id)) AS q".encode()).fetchone() == (4000,)
    guest.execute("SET row_security = off")
    with pytest.raises(errors.InsufficientPrivilege):
        guest.execute(LEARN)


def test_partitions_of_a_policy_are_hidden_too(clustered: Session, guest: Session) -> None:
    clustered.execute("""
        CREATE TABLE parts (LIKE points) PARTITION BY LIST (label);
        CREATE TABLE part_0 PARTITION OF parts FOR VALUES IN (0);
        CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1);
        INSERT INTO parts SELECT * FROM points;
        GRANT SELECT ON parts TO guest;
        ALTER TABLE parts ENABLE ROW LEVEL SECURITY;
        CREATE POLICY few ON parts USING (id % 10 = 0);
    """)
    assert guest.execute(
        "SELECT max(rows) FROM penstock.train('parts', 'svm', options => '{\"validation\": 0}')"
    ).fetchone() == (2000,)


def test_no_superuser_is_needed_to_install_it(extended: ExtensionServer) -> None:
    extended.run("CREATE ROLE owner LOGIN")
    try:
        with extended.database() as address:
            name = address.split("/")[3].split("?")[0]
            extended.run(f"GRANT CREATE ON DATABASE {name} TO owner")
            extended.run("GRANT CREATE ON SCHEMA public TO owner", at=address)
            with psycopg.connect(extended.address(name, user="owner"), autocommit=True) as session:
                session.execute("CREATE EXTENSION penstock")
                session.execute(
                    "CREATE TABLE t AS SELECT ARRAY[i::real] AS features_v, i > 50 AS label FROM generate_series(1, 99) i"
                )
                session.execute("SELECT penstock.train('t', 'svm', 'mine')")
                assert session.execute("SELECT name FROM penstock.models").fetchall() == [("mine",)]
                session.execute("DROP EXTENSION penstock")
                session.execute("DROP TABLE t")
            extended.run("DROP OWNED BY owner", at=address)
    finally:
        extended.run("DROP OWNED BY owner")
        extended.run("DROP ROLE owner")


def test_who_may_not_keep_models_is_told_what_to_ask_for(clustered: Session, guest: Session) -> None:
    clustered.execute("DROP TABLE penstock.models")
    clustered.execute("GRANT SELECT ON points TO guest")
    with pytest.raises(errors.InsufficientPrivilege, match="may not keep models") as caught:
        guest.execute("SELECT penstock.train('points')")
    assert "GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO guest" in str(caught.value.diag.message_hint)
    assert guest.execute(LEARN).fetchone() is not None


def test_what_could_not_be_kept_is_not_trained(clustered: Session, guest: Session) -> None:
    clustered.execute("REVOKE INSERT, UPDATE ON penstock.models FROM guest")
    clustered.execute("GRANT SELECT ON points TO guest")
    # Were a row of the table read first, its label would be refused before the rights.
    train = "SELECT penstock.train('SELECT features_v, 1 / (id - id) AS label FROM points', 'svm', 'm', '{}')"
    with pytest.raises(errors.InsufficientPrivilege, match="GRANT SELECT, INSERT, UPDATE, DELETE"):
        guest.execute(train.encode())
    clustered.execute("GRANT INSERT ON penstock.models TO guest")
    with pytest.raises(errors.DivisionByZero):
        guest.execute(train.encode())
    with pytest.raises(errors.InsufficientPrivilege):
        guest.execute(train.replace("{}", '{"replace": true}').encode())
    clustered.execute("SET default_transaction_read_only = on")
    with pytest.raises(errors.ReadOnlySqlTransaction, match="read-only"):
        clustered.execute(train.encode())
    clustered.execute("RESET default_transaction_read_only")
