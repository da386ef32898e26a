"""Versions of models that the server trained: kept, predicted by, and chosen as those of all of Penstock."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import errors

from penstock.sql import connect

Session = psycopg.Connection[Any]
TRAIN = "SELECT penstock.train('points', %s, 'm', %s)"
FEW = json.dumps({"epochs": 1})
AGAIN = json.dumps({"epochs": 1, "replace": True})


def kinds(session: Session) -> list[tuple[Any, ...]]:
    return session.execute("SELECT name, kind FROM penstock.models ORDER BY name").fetchall()


def test_a_replaced_model_is_kept_as_a_version(clustered: Session, address: str) -> None:
    for number, kind in enumerate(("svm", "logistic", "linear")):
        clustered.execute(TRAIN, (kind, AGAIN if number else FEW))
    assert kinds(clustered) == [("m", "linear"), ("m@1", "svm"), ("m@2", "logistic")]
    with connect(address) as session:
        found = session.sql("SHOW VERSIONS m")
        assert found.column("version") == [1, 2, 3]
        assert found.column("is_default") == [False, False, True]
        assert set(found.column("owner")) == {clustered.info.user}
        assert found.column("statement")[1] == f"SELECT * FROM penstock.train('points', 'logistic', 'm', '{AGAIN}')"
        assert all(found.column("snapshot"))
        assert session.sql("SHOW MODELS").column("version") == [3]
        train = "SELECT * FROM points TRAIN BY svm AS m WITH (epochs = 1, replace = true{})"
        for extra in ("", ", extension = off"):
            session.sql(train.format(extra))
        assert session.sql("SHOW VERSIONS m").column("statement")[3:] == [
            train.format(""),
            train.format(", extension = off"),
        ]
        clustered.execute(TRAIN, ("softmax", AGAIN))
        assert [dict(session.sql(f"DESCRIBE MODEL m@{n}").rows)["kind"] for n in (3, 4, 5, 6)] == [
            "linear",
            "svm",
            "svm",
            "softmax",
        ]
        session.sql("ALTER MODEL m SET DEFAULT VERSION 2; DROP MODEL m@6")
        clustered.execute(TRAIN, ("svm", AGAIN))
        assert session.sql("SHOW VERSIONS m").column("version") == [1, 2, 3, 4, 5, 7]


def test_models_of_groups_have_versions_too(clustered: Session, address: str) -> None:
    by = "SELECT penstock.train('SELECT features_v, label, id %% 2 AS part FROM points', 'logistic', '{part}'::text[], %s, 'm')"
    for options in ("{}", '{"replace": true}'):
        clustered.execute(by, (options,))
    with connect(address) as session:
        found = session.sql("SHOW VERSIONS m")
        assert found.column("version") == [1, 2]
        assert (
            "penstock.train('SELECT features_v, label, id % 2 AS part FROM points', 'logistic', '{part}'::text[],"
            in found.column("statement")[1]
        )
        assert len(session.sql("SHOW MODEL m@1")) == 2


def test_functions_predict_by_a_version(clustered: Session) -> None:
    score = "SELECT penstock.predict(%s, features_v) FROM points WHERE id = 1"
    found = []
    for number, kind in enumerate(("svm", "logistic")):
        clustered.execute(TRAIN, (kind, AGAIN if number else FEW))
        found.append(clustered.execute(score, ("m",)).fetchone())
    assert found[0] != found[1]
    assert [clustered.execute(score, (f"m@{number}",)).fetchone() for number in (1, 2)] == found
    for name in ("m@3", "m@02", "@1", "n@1"):
        with pytest.raises(errors.UndefinedObject, match=f'no model "{name}"'):
            clustered.execute(score, (name,))
    with pytest.raises(errors.InvalidParameterValue, match='cannot be called "m@3"'):
        clustered.execute("SELECT penstock.train('points', 'svm', 'm@3')")


def test_another_default_version_is_used_at_once(clustered: Session, address: str) -> None:
    for number, kind in enumerate(("svm", "logistic")):
        clustered.execute(TRAIN, (kind, AGAIN if number else FEW))
    for name in ("m", "m@2"):
        clustered.execute(
            f'CREATE FUNCTION "by_{name}"() RETURNS float8 LANGUAGE plpgsql AS'
            f" $$ BEGIN RETURN penstock.predict('{name}', array_fill(1::real, ARRAY[8])); END $$".encode()
        )
    ask = "SELECT by_m(), \"by_m@2\"(), penstock.predict('m@1', array_fill(1::real, ARRAY[8]))"
    with connect(address) as session, clustered.transaction():
        m, second, first = clustered.execute(ask).fetchone() or ()
        assert m == second != first
        session.sql("ALTER MODEL m SET DEFAULT VERSION 1")
        assert clustered.execute(ask).fetchone() == (first, second, first)
        session.sql("DROP MODEL m@2")
        with pytest.raises(errors.UndefinedObject, match='no model "m@2"'), clustered.transaction():
            clustered.execute(ask)
        assert clustered.execute("SELECT by_m()").fetchone() == (first,)


def test_a_model_of_before_there_were_versions_is_the_first(clustered: Session, address: str) -> None:
    clustered.execute(TRAIN, ("svm", FEW))
    score = "SELECT penstock.predict(%s, features_v) FROM points WHERE id = 1"
    plain = "UPDATE penstock.models SET header = (header::jsonb - 'version')::json"
    clustered.execute(plain)
    found = clustered.execute(score, ("m",)).fetchone()
    assert clustered.execute(score, ("m@1",)).fetchone() == found
    clustered.execute(TRAIN, ("linear", AGAIN))
    assert kinds(clustered) == [("m", "linear"), ("m@1", "svm")]
    assert clustered.execute(score, ("m@1",)).fetchone() == found
    with connect(address) as session:
        assert session.sql("SHOW VERSIONS m").column("version") == [1, 2]
    for damaged in ("[]", "{}", '"text"'):  # what cannot be read is replaced all the same
        clustered.execute("UPDATE penstock.models SET header = %s WHERE name = 'm'", (damaged,))
        clustered.execute(TRAIN, ("svm", AGAIN))
    assert kinds(clustered)[0] == ("m", "svm")


def test_sessions_that_replace_at_the_same_time_lose_no_version(clustered: Session, address: str) -> None:
    clustered.execute(TRAIN, ("svm", FEW))
    with psycopg.connect(address, autocommit=True) as other:
        with clustered.transaction():
            clustered.execute("SELECT FROM penstock.models WHERE name = 'm' FOR UPDATE")
            other.pgconn.send_query(
                b"SELECT penstock.train('points', 'linear', 'm', '{\"epochs\": 1, \"replace\": true}')"
            )
            clustered.execute("SELECT pg_sleep(0.5)")
            clustered.execute(TRAIN, ("logistic", AGAIN))
        while other.pgconn.get_result() is not None:
            pass
    assert kinds(clustered) == [("m", "linear"), ("m@1", "svm"), ("m@2", "logistic")]
