"""Sizes of the buffer, of its windows and of blocks: what meets in a window is what is shuffled."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import psycopg
import pytest

Session = psycopg.Connection[Any]


def told(session: Session, table: str, **options: Any) -> dict[str, float]:
    """Return what EXPLAIN ANALYZE of a training tells of sizes."""
    query = "SELECT penstock.explain(%s, 'softmax', %s, true)"
    text = "\n".join(row[0] for row in session.execute(query, (table, json.dumps({"epochs": 2, **options}))))
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
    score = "SELECT score FROM penstock.train(%s, 'softmax', %s, %s)"
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
            {"epochs": 2, "nulls": "skip", "buffer_size": "64kB", "block_size": "8kB", "shuffle": shuffle}
        )
        rows = session.execute("SELECT rows FROM penstock.train('t', 'svm', NULL, %s)", (options,)).fetchall()
        assert rows == [(999,)] * 2
