"""Sizes of the buffer, of its windows and of blocks: what meets in a window is what is shuffled."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import psycopg
import pytest

Session = psycopg.Connection[Any]


# Nothing of this needs a pass over the rows before the first epoch, whose windows would be counted too.
UNSURVEYED = {"solver": "sgd", "standardize": False, "average": False, "l2": 0}


def told(session: Session, table: str, **options: Any) -> dict[str, float]:
    """Return what EXPLAIN ANALYZE of a training tells of sizes."""
    options = {"epochs": 2, **UNSURVEYED, **options}
    query = "SELECT penstock.explain(%s, 'softmax', %s, true)"
    text = "\n".join(row[0] for row in session.execute(query, (table, json.dumps(options))))
    names = "Windows|Smallest Window|Largest Window|Blocks|Block Size|Buffer|Blocks Read|Blocks per Page"
    return {name: int(count) for name, count in re.findall(rf"({names}): (\d+)", text)}


@pytest.mark.parametrize("batch_size", [1, 64])
def test_all_windows_are_of_about_the_same_size(clustered: Session, batch_size: int) -> None:
    # A window holds 20,000 / 3.1 rows: filled to the brim, three of them would leave a fourth of a few hundred, of one label.
    room = int(20_000 / 3.1 * 4 * (8 + 2) * 2)
    found = told(clustered, "points", buffer_size=room, block_size="8kB", batch_size=batch_size)
    assert found["Windows"] == 2 * 4
    assert 4_500 < found["Smallest Window"] <= 5_000 <= found["Largest Window"] < 5_500


@pytest.fixture
def sorted_classes(session: Session) -> Session:
    """Give a table of 10 classes in a row, 6,000 rows of 500 features that are stored in a tenth of the space, or apart."""
    rng = np.random.default_rng(5)
    session.execute("CREATE TABLE wide (features_v real[], label int)")
    session.execute("CREATE TABLE apart (features_v real[], label int)")
    session.execute("ALTER TABLE apart ALTER features_v SET STORAGE EXTERNAL")
    with session.cursor() as cursor, cursor.copy("COPY wide FROM STDIN") as copy:
        for label in range(10):
            for _ in range(600):
                row = np.zeros(500, int)
                row[rng.integers(0, 500, 20)] = 1
                row[50 * label : 50 * label + 50 : 5] = rng.random(10) < 0.5
                copy.write_row((row.tolist(), label))
    session.execute("INSERT INTO apart SELECT * FROM wide")
    return session


@pytest.mark.parametrize("table", ["wide", "apart"])
def test_blocks_are_as_large_as_their_rows_are_when_unpacked(sorted_classes: Session, table: str) -> None:
    size = sorted_classes.execute("SELECT pg_relation_size(%s)", (table,)).fetchone()
    assert size is not None
    assert size[0] < 6_000 * 2_000 / 3
    found = told(sorted_classes, table, buffer_size="4MB")
    windows = found["Windows"] / 2
    assert windows >= 5
    assert found["Blocks"] / windows >= 14, "rows of few blocks would be shuffled together"
    assert table == "wide" or found["Blocks per Page"] > 1, "rows stored apart are many to a page"
    score = "SELECT training_score FROM penstock.train(%s, 'softmax', %s, %s)"
    options = {"epochs": 3, "learning_rate": 0.02, "buffer_size": "4MB"}
    sorted_classes.execute(score.encode(), (table, table, json.dumps(options)))
    right = sorted_classes.execute(
        f"SELECT avg((penstock.predict_class('{table}', features_v) = label::text)::int) FROM {table}".encode()
    ).fetchone()
    assert right is not None
    assert right[0] > 0.9


def test_the_default_buffer_counts_rows_unpacked(sorted_classes: Session) -> None:
    sorted_classes.execute("CREATE TABLE more AS SELECT w.* FROM wide AS w, generate_series(1, 10)")
    found = told(sorted_classes, "more", epochs=1)
    assert found["Buffer"] * 1024 == pytest.approx(60_000 * 502 * 4 / 10, rel=0.05)


def test_a_buffer_for_few_blocks_is_warned_of(sorted_classes: Session) -> None:
    heard: list[str] = []
    sorted_classes.add_notice_handler(lambda notice: heard.append(f"{notice.message_primary} {notice.message_hint}"))
    told(sorted_classes, "wide", buffer_size="1MB", block_size="64kB")
    assert len(heard) == 1
    assert "fewer than 4 blocks" in heard[0]
    assert "a smaller block_size" in heard[0]
    told(sorted_classes, "wide", buffer_size="1MB")
    assert len(heard) == 1


def test_a_plan_that_is_not_run_says_that_sizes_are_guesses(clustered: Session) -> None:
    def plan(options: dict[str, Any]) -> str:
        query = "SELECT string_agg(line, chr(10)) FROM penstock.explain('points', 'svm', %s) AS line"
        found = clustered.execute(query, (json.dumps(options),)).fetchone()
        return str(found and found[0])

    assert "Sizes: guessed" in plan({})
    assert "Sizes: guessed" not in plan({"buffer_size": "1MB", "block_size": "8kB"})


def test_a_window_of_nothing_but_nulls_ends_no_epoch(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT CASE WHEN i BETWEEN 500 AND 19500 THEN NULL ELSE ARRAY[i % 7, 1]::real[] END
        AS features_v, i % 2 AS label FROM generate_series(1, 20000) AS i""")
    for shuffle in ("corgipile", "none"):
        options = json.dumps(
            {
                "epochs": 2,
                "validation": 0,
                "nulls": "skip",
                "buffer_size": "64kB",
                "block_size": "8kB",
                "shuffle": shuffle,
            }
        )
        rows = session.execute("SELECT rows FROM penstock.train('t', 'svm', NULL, %s)", (options,)).fetchall()
        assert rows == [(999,)] * 2


@pytest.fixture
def misjudged(clustered: Session) -> Session:
    """Give a query ``q`` of the sorted rows of which the planner expects a few hundred, and which is no table's."""
    clustered.execute("""CREATE FUNCTION misjudged() RETURNS SETOF points LANGUAGE plpgsql ROWS 300
        AS $$ BEGIN RETURN QUERY SELECT * FROM points ORDER BY label, id; END $$""")
    return clustered


QUERY = "SELECT features_v, label FROM misjudged()"


def accuracy(session: Session, model: str) -> float:
    query = "SELECT avg((penstock.predict_class(%s, features_v)::real = label)::int) FROM points"
    found = session.execute(query, (model,)).fetchone()
    assert found is not None
    return float(found[0])


def test_a_guess_of_the_planner_ends_no_window(misjudged: Session) -> None:
    # All rows fit into half the buffer: one window, however few are expected.
    found = told(misjudged, QUERY, buffer_size="8MB")
    assert (found["Windows"], found["Smallest Window"]) == (2, 20_000)
    misjudged.execute("SELECT penstock.train(%s, 'logistic', 'm', '{\"epochs\": 3}')", (QUERY,))
    assert accuracy(misjudged, "m") > 0.85


@pytest.mark.parametrize(("windows", "batch_size"), [(1.1, 1), (1.6, 1), (2.3, 64), (3.05, 1)])
def test_windows_of_a_query_are_full_and_the_last_two_even(misjudged: Session, windows: float, batch_size: int) -> None:
    full = 20_000 / windows
    found = told(misjudged, QUERY, buffer_size=int(full * 4 * (8 + 2) * 2), batch_size=batch_size)
    assert found["Windows"] == 2 * int(np.ceil(windows))
    assert found["Smallest Window"] > 0.49 * full
    assert found["Largest Window"] <= full + 1
    rows = misjudged.execute(
        'SELECT rows FROM penstock.train(%s, \'svm\', NULL, \'{"epochs": 2, "validation": 0, "buffer_size": "400kB"}\')',
        (QUERY,),
    )
    assert rows.fetchall() == [(20_000,)] * 2


def test_sparse_rows_of_a_query_differ_in_length(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT i, (SELECT array_agg(j) FROM generate_series(0, i % 40) AS j) AS features_k, i % 2 AS label
        FROM generate_series(1, 9000) AS i""")
    query = "SELECT features_k, array_fill(1::real, ARRAY[cardinality(features_k)]) AS features_v, label FROM t ORDER BY i LIMIT 9000"
    for size in ("100kB", "300kB", "700kB"):
        options = json.dumps({"epochs": 2, "validation": 0, "buffer_size": size, "learning_rate": 0.001})
        rows = session.execute("SELECT rows FROM penstock.train(%s, 'svm', NULL, %s)", (query, options)).fetchall()
        assert rows == [(9000,)] * 2


def test_a_guess_by_some_pages_ends_no_window_of_a_table(clustered: Session) -> None:
    # A filter that leaves rows on a few pages only, which the pages that are looked at first hardly meet.
    query = "SELECT features_v, label FROM points WHERE id BETWEEN 9000 AND 11000"
    found = told(clustered, query, buffer_size="500kB", epochs=1)
    assert found["Windows"] == 1
    assert found["Smallest Window"] == 2001


@pytest.mark.parametrize("shuffle", ["corgipile", "none"])
def test_the_score_is_that_of_the_finished_model(clustered: Session, shuffle: str) -> None:
    options = json.dumps({"epochs": 1, "shuffle": shuffle, "learning_rate": 0.1, **UNSURVEYED})
    rows = clustered.execute(
        "SELECT progressive_score, training_score FROM penstock.train('points', 'svm', 'm', %s)", (options,)
    ).fetchall()
    right = accuracy(clustered, "m")
    assert rows[0][1] == pytest.approx(right, abs=0.03)
    assert shuffle == "corgipile" or rows[0][0] > right + 0.05, "the progressive score flatters"
    header = clustered.execute("SELECT header->'metrics' FROM penstock.models WHERE name = 'm'").fetchone()
    assert header is not None
    assert header[0]["training_accuracy"] == rows[0][1]
    assert "accuracy" not in header[0]


@pytest.mark.parametrize("model", ["logistic", "softmax", "linear"])
def test_the_score_is_measured_on_rows_from_everywhere(session: Session, model: str) -> None:
    # Of sparse rows too, more than a sample holds, and on constant features.
    session.execute("""CREATE TABLE t AS SELECT ARRAY[i % 50, 50, 51 + i % 3] AS features_k, '{1,2,1}'::real[] AS features_v,
        (i % 50 >= 25)::int AS label FROM generate_series(1, 30000) AS i""")
    options = json.dumps({"epochs": 2, "validation": 0})
    rows = session.execute("SELECT training_score FROM penstock.train('t', %s, 'm', %s)", (model, options)).fetchall()
    assert rows[0] == (None,)
    assert rows[1][0] > 0.9
    learnt = 'SELECT (s).sample_rows FROM (SELECT penstock.sgd(features_k, features_v, label::real, \'{"classes": [0, 1], "solver": "sgd"}\') AS s FROM t) AS q'
    kept = session.execute(learnt.encode()).fetchall()[-1][0]
    assert 4_000 < kept <= 10_000
