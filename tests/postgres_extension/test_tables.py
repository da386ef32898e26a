"""Tables as they come: dead rows, TOAST, nulls, partitions, dropped columns, views, none at all, and ones that change."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import errors

from tests.postgres_extension.conftest import Fill

Session = psycopg.Connection[Any]


def train(session: Session, source: str, model: str = "logistic", **options: Any) -> list[Any]:
    asked = json.dumps({"epochs": 2, "validation": 0, **options})
    return session.execute(
        "SELECT progressive_loss, coalesce(training_score, progressive_score), rows FROM penstock.train(%s, %s, NULL, %s)",
        (source, model, asked),
    ).fetchall()


def test_dead_rows_and_changed_ones_are_seen_as_any_query_sees_them(clustered: Session) -> None:
    clustered.execute("DELETE FROM points WHERE id % 4 = 0")
    clustered.execute("UPDATE points SET label = 1 - label WHERE id % 4 = 1")
    assert [row[2] for row in train(clustered, "points")] == [15_000] * 2
    clustered.execute("CREATE TABLE same AS SELECT * FROM points")
    none = {"shuffle": "none", "learning_rate": 0.01}
    np.testing.assert_allclose(train(clustered, "points", **none), train(clustered, "same", **none), rtol=0.2)


def test_rows_of_the_own_transaction_are_learnt_from(clustered: Session) -> None:
    with clustered.transaction():
        clustered.execute("INSERT INTO points SELECT id + 20000, features_v, label FROM points WHERE id < 5")
        assert train(clustered, "points")[0][2] == 20_005


def test_a_snapshot_hides_what_others_do_while_training_goes_on(clustered: Session, address: str) -> None:
    learn = """SELECT (s).epoch, (s).rows FROM (SELECT penstock.sgd(features_v, label,
        '{"epochs": 40, "classes": [0, 1]}') AS s FROM points) AS q"""
    stop = threading.Event()
    failures: list[BaseException] = []

    def disturb() -> None:
        try:
            with psycopg.connect(address, autocommit=True) as other:
                number = 0
                while not stop.is_set():
                    number += 1
                    other.execute("UPDATE points SET label = 1 - label WHERE id %% 50 = %s", (number % 50,))
                    other.execute("INSERT INTO points SELECT -1, features_v, label FROM points LIMIT 100")
                    other.execute("VACUUM points")
        except BaseException as error:  # told to the test, which fails by it
            failures.append(error)

    other = threading.Thread(target=disturb)
    with clustered.transaction(), clustered.cursor("epochs") as cursor:
        other.start()
        rows: list[Any] = []
        cursor.execute(learn)
        while len(rows) < 40:  # an epoch at a time, so that others get in between
            rows += cursor.fetchmany(1)
        stop.set()
        other.join()
    assert not failures
    assert len({count for _, count in rows}) == 1
    assert rows[0][1] >= 20_000


def test_wide_rows_are_fetched_from_toast(session: Session, fill: Fill) -> None:
    rng = np.random.default_rng(4)
    y = np.repeat([0, 1], 60)
    x = (rng.standard_normal((120, 2000)) + np.outer(2 * y - 1, np.full(2000, 0.1))).astype(np.float32)
    fill("wide", "features_v real[], label int", list(zip(x.tolist(), y.tolist(), strict=True)))
    toast = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'wide'"
    found = session.execute(toast.encode()).fetchone()
    assert found is not None
    assert found[0] > 0
    rows = train(session, "wide", learning_rate=0.01, epochs=3)
    assert rows[-1][1] > 0.9
    assert rows[-1][2] == 120
    assert session.execute("SELECT width FROM penstock.models").fetchone() == (2000,)


def test_compressed_and_short_arrays_are_read(session: Session, fill: Fill) -> None:
    fill("flat", "features_v real[], label int", [([float(i % 2)] * 1500, i % 2) for i in range(50)])
    assert train(session, "flat", learning_rate=0.001)[-1][2] == 50
    fill("short", "features_v real[], label int", [([float(i % 2)], i % 2) for i in range(50)])
    assert train(session, "short")[-1][2] == 50


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (("{1,2}", None), "the label is null"),
        ((None, 1), "the features are or hold a null"),
        (("{1,NULL}", 1), "the features are or hold a null"),
        (("{1,NaN}", 1), "feature 2 of 2 is NaN, not a finite number"),
        (("{1,Infinity}", 1), "feature 2 of 2 is Infinity, not a finite number"),
        (("{1,2,3}", 1), "a row has 3 features where the others have 2"),
        (("{{1,2},{3,4}}", 1), "more than one dimension"),
    ],
)
def test_a_row_that_cannot_be_learnt_from_is_named(session: Session, fill: Fill, row: Any, told: str) -> None:
    fill("t", "features_v real[], label int", [("{1,2}", 0), ("{3,4}", 1), row])
    with pytest.raises(errors.DataException, match=told) as caught:
        train(session, "t", shuffle="none")
    assert caught.value.diag.message_detail == 'The row is at ctid (0,3) of "t".'


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_not_finite_is_found_at_any_width(session: Session, value: str) -> None:
    for width in (1, 3, 4, 5, 8, 17, 40):
        row = f"(SELECT array_agg((i + j) % 7) FROM generate_series(1, {width}) AS j)::real[]"
        session.execute(
            f"CREATE TABLE t AS SELECT i, {row} AS features_v, i % 2 AS label FROM generate_series(1, 50) AS i".encode()
        )
        session.execute(f"UPDATE t SET features_v[{width}] = '{value}' WHERE i = 33".encode())
        with pytest.raises(errors.DataException, match=f"feature {width} of {width} is {value}") as caught:
            train(session, "SELECT features_v, label FROM t")
        assert 'of "t"' in str(caught.value.diag.message_detail)
        columns = ", ".join(f"features_v[{place + 1}] AS x{place}" for place in range(width))
        with pytest.raises(errors.DataException, match=f'the column "x{width - 1}" is {value}') as caught:
            train(session, f"SELECT {columns}, label FROM t ORDER BY i LIMIT 40", nulls="error")
        assert "number 33 " in str(caught.value.diag.message_detail)
        session.execute("DROP TABLE t")


def test_a_null_is_named_by_its_column(session: Session, fill: Fill) -> None:
    fill("t", 'a int, "B b" float8, label int', [(1, 2, 0), (3, None, 1)])
    with pytest.raises(errors.DataException, match='the column "B b" is null') as caught:
        train(session, "t", nulls="error")
    assert caught.value.diag.message_detail == 'The row is at ctid (0,2) of "t".'


def test_a_sparse_value_that_is_not_finite_is_named_by_its_index(session: Session, fill: Fill) -> None:
    rows: list[Any] = [("{0,7,9}", "{1,1,1}", 0), ("{1,3,8}", "{1,2,Infinity}", 1)]
    fill("t", "features_k int[], features_v real[], label int", rows)
    with pytest.raises(errors.DataException, match="the feature of index 8 is Infinity") as caught:
        train(session, "t")
    assert caught.value.diag.message_detail == 'The row is at ctid (0,2) of "t".'


def test_nulls_can_be_left_out(session: Session, fill: Fill) -> None:
    good: list[Any] = [("{1,2}", 0), ("{3,4}", 1)]
    fill("t", "features_v real[], label int", [*good, ("{1,2}", None), (None, 1), ("{NULL,1}", 1)])
    assert train(session, "t", nulls="skip")[-1][2] == 2
    session.execute("DELETE FROM t WHERE features_v = '{1,2}' OR features_v = '{3,4}'")
    session.execute("INSERT INTO t VALUES ('{NULL,1}', 0)")
    with pytest.raises(errors.NoDataFound, match="all rows have nulls"):
        train(session, "t", nulls="skip")


@pytest.mark.parametrize("kind", ["text", "int", "date"])
def test_labels_beyond_the_classes_are_no_nulls(clustered: Session, kind: str) -> None:
    label = {"text": "'c' || label::int", "int": "label::int", "date": "DATE '2026-01-01' + label::int"}[kind]
    clustered.execute(f"CREATE TABLE t AS SELECT features_v, {label} AS label FROM points".encode())
    classes = {"text": ["c1", "c2"], "int": [1, 2], "date": ["2026-01-02", "2026-01-03"]}[kind]
    for nulls in ("error", "skip"):
        options = json.dumps({"classes": classes, "nulls": nulls})
        with pytest.raises(errors.DataException, match="is not one of the classes"):
            clustered.execute("SELECT penstock.train('t', 'svm', 'm', %s)", (options,))


def test_domains_are_what_they_are_over(clustered: Session) -> None:
    clustered.execute("CREATE DOMAIN amounts AS real[]; CREATE DOMAIN sign AS int CHECK (VALUE IN (0, 1))")
    clustered.execute("CREATE TABLE t AS SELECT features_v::amounts AS f, label::int::sign AS s FROM points")
    options = json.dumps({"features": "f", "label": "s", "epochs": 2})
    clustered.execute("SELECT penstock.train('t', 'svm', 'm', %s)", (options,))
    query = (
        "SELECT min(header->>'classes'), avg((penstock.predict_class('m', f)::int = s)::int) FROM t, penstock.models"
    )
    found = clustered.execute(query).fetchone()
    assert found is not None
    assert (found[0], found[1] > 0.8) == ("[0, 1]", True)


def test_sparse_rows_are_checked(session: Session, fill: Fill) -> None:
    fill("t", "features_k int[], features_v real[], label int", [("{0,7}", "{1,1}", 0), ("{1}", "{1,2}", 1)])
    with pytest.raises(errors.DataException, match="1 indices and 2 values"):
        train(session, "t")
    session.execute("UPDATE t SET features_k = '{-1,3}' WHERE label = 1")
    with pytest.raises(errors.DataException, match="the index -1"):
        train(session, "t")
    session.execute("UPDATE t SET features_k = '{1,2000000000}' WHERE label = 1")
    with pytest.raises(errors.ProgramLimitExceeded, match="more than 125000000 weights"):
        train(session, "t")


@pytest.mark.parametrize("model", ["logistic", "linear"])
def test_an_empty_table_is_refused(session: Session, model: str) -> None:
    session.execute("CREATE TABLE t (features_v real[], label real)")
    with pytest.raises(errors.NoDataFound, match="no rows to learn from"):
        train(session, "t", model)


def test_blocks_of_all_partitions_come_in_one_order(clustered: Session) -> None:
    clustered.execute("""
        CREATE TABLE parts (id int, label real, dropped int, features_v real[]) PARTITION BY LIST (label);
        CREATE TABLE part_0 PARTITION OF parts FOR VALUES IN (0);
        CREATE TABLE part_1 (features_v real[], label real, id int, dropped int);
        ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES IN (1);
        CREATE TABLE part_2 PARTITION OF parts FOR VALUES IN (2);
        ALTER TABLE parts DROP COLUMN dropped;
        INSERT INTO parts (id, label, features_v) SELECT id, label, features_v FROM points;
    """)
    small = {"buffer_size": "200kB", "block_size": "16kB"}
    lines = clustered.execute("SELECT penstock.explain('parts', 'svm', %s)", (json.dumps(small),)).fetchall()
    text = "\n".join(line[0] for line in lines)
    assert text.count("Custom Scan (BlockShuffle)") == 4
    assert "BlockShuffle) on part_1" in text
    rows = train(clustered, "parts", "logistic", **small)
    assert [row[2] for row in rows] == [20_000] * 2
    assert abs(rows[-1][1] - train(clustered, "points", "logistic", **small)[-1][1]) < 0.01
    rows = train(clustered, "SELECT * FROM parts WHERE id > 5000 AND label < 2", "logistic", **small)
    assert rows[-1][2] == 14_999


def test_inherited_tables_are_read_too(clustered: Session) -> None:
    clustered.execute("CREATE TABLE more (extra text) INHERITS (points)")
    clustered.execute("INSERT INTO more SELECT *, 'x' FROM points WHERE id < 100")
    assert train(clustered, "points")[-1][2] == 20_100
    assert train(clustered, "SELECT * FROM ONLY points")[-1][2] == 20_000


def test_dropped_and_added_columns_do_not_matter(clustered: Session) -> None:
    clustered.execute("ALTER TABLE points DROP COLUMN id, ADD COLUMN extra real DEFAULT 7")
    assert train(clustered, "points")[-1][2] == 20_000
    rows = train(clustered, "SELECT ARRAY[extra, features_v[1]] AS features_v, label FROM points")
    assert rows[-1][2] == 20_000


def test_views_are_read_in_blocks_where_the_planner_sees_through_them(clustered: Session) -> None:
    clustered.execute("CREATE VIEW seen AS SELECT features_v, label FROM points WHERE id < 15000")
    text = "\n".join(row[0] for row in clustered.execute("SELECT penstock.explain('seen')").fetchall())
    assert "BlockShuffle) on points" in text
    assert train(clustered, "seen")[-1][2] == 15_000
    clustered.execute(
        "CREATE VIEW grouped AS SELECT label, array_agg(id::real) AS features_v FROM points WHERE id % 10000 < 5 GROUP BY label"
    )
    assert train(clustered, "grouped", learning_rate=1e-6)[-1][2] == 2
    clustered.execute("CREATE MATERIALIZED VIEW kept AS SELECT * FROM points")
    assert train(clustered, "kept")[-1][2] == 20_000


def test_labels_and_features_of_many_types(clustered: Session) -> None:
    clustered.execute("""
        CREATE TYPE mood AS ENUM ('sad', 'glad');
        CREATE TABLE kinds AS SELECT features_v[1] AS a, features_v[2]::float8 AS b, (features_v[3] * 100)::int AS "C c",
            features_v[4] > 0 AS d, features_v[5]::numeric AS e,
            label = 1 AS boolean, CASE label WHEN 1 THEN 'ja''s' ELSE 'nein' END AS text, label::int8 + 10000000000 AS bigint,
            label::float8 + 0.1 AS double, label::numeric AS numeric, label::int AS integer,
            (CASE label WHEN 1 THEN 'sad' ELSE 'glad' END)::mood AS enum FROM points
    """)
    features = ["a", "b", "C c", "d", "e"]
    for label in ("boolean", "text", "bigint", "double", "numeric", "integer", "enum"):
        rows = train(clustered, "kinds", "svm", label=label, features=features, learning_rate=0.001)
        assert rows[-1][1] > 0.7, label
    rows = train(clustered, "kinds", "linear", label="boolean", features=features, learning_rate=1e-5)
    assert rows[-1][2] == 20_000
    rows = train(clustered, "SELECT a, b, text AS label FROM kinds", "softmax")
    assert rows[-1][1] > 0.65


def test_labels_that_are_not_finite_are_no_classes(session: Session, fill: Fill) -> None:
    fill("t", "features_v real[], label float8", [("{1}", 0), ("{2}", "NaN"), ("{3}", "Infinity")])
    with pytest.raises(errors.DataException, match="not a finite number") as caught:
        train(session, "t", "softmax")
    assert caught.value.diag.message_detail == 'The first is at ctid (0,2) of "t".'
    with pytest.raises(errors.DataException, match="not a finite number") as caught:
        train(session, "SELECT * FROM t ORDER BY features_v LIMIT 9", "softmax")
    assert "number 2 " in str(caught.value.diag.message_detail)
    with pytest.raises(errors.DataException, match="a label is not a finite number") as caught:
        train(session, "t", "linear", shuffle="none")
    assert caught.value.diag.message_detail == 'The row is at ctid (0,2) of "t".'


def test_temporary_and_unlogged_tables_are_read_in_blocks(clustered: Session) -> None:
    for kind in ("TEMPORARY", "UNLOGGED"):
        clustered.execute(f"CREATE {kind} TABLE other AS SELECT * FROM points".encode())
        text = "\n".join(row[0] for row in clustered.execute("SELECT penstock.explain('other')").fetchall())
        assert "BlockShuffle) on other" in text
        assert train(clustered, "other", block_size="16kB")[-1][2] == 20_000
        clustered.execute("DROP TABLE other")


def test_a_query_that_is_no_table_says_what_shuffling_it_gets(clustered: Session) -> None:
    notices: list[str] = []
    clustered.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    train(clustered, "SELECT * FROM points ORDER BY id LIMIT 5000 OFFSET 8000", buffer_size="1MiB")
    assert notices[0].startswith("rows of this query are shuffled in a buffer of 1024 kB only")
