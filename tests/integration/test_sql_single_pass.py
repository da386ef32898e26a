"""TRAIN BY over a connection asks for every page of a table once: rows are counted as they come, and kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from penstock.blocks.cached_source import CachedSource
from penstock.blocks.postgres.source import PostgresSource
from penstock.errors import DataChangedError, DataError
from penstock.sql import connect
from tests.integration.test_sql_explain import pages
from tests.servers import Server

ROWS = 60_000
MAKE = f"""
    CREATE TABLE t AS SELECT i AS id, (i * 7919 % 2)::int4 AS label, (i % 97 - 48 + 40 * (i * 7919 % 2))::real AS x,
        CASE WHEN i BETWEEN 20000 AND 20100 THEN NULL ELSE (i % 53)::real END AS y,
        CASE WHEN i = 31000 THEN ARRAY[1, 2]::real[] ELSE ARRAY[i % 7, i % 3, 40 * (i * 7919 % 2)]::real[] END AS odd,
        CASE WHEN i = 31000 THEN ARRAY[1, NULL, 2]::real[] ELSE ARRAY[i % 7, 1, 2]::real[] END AS gap,
        ARRAY[i % 7, i % 3, i * 7919 % 2]::real[] AS v, repeat('x', 60) AS rest
    FROM generate_series(0, {ROWS - 1}) AS r(i)
"""
WITH = "WITH (features = '{}', block_size = '64kB'{})"


@pytest.fixture(scope="module")
def address(postgres: Server) -> Iterator[str]:
    with postgres.database() as address:
        postgres.run(MAKE, at=address)
        yield address


def count_pages(postgres: Server, address: str) -> int:
    return int(postgres.run("SELECT pg_relation_size('t') / 8192", at=address)[0][0])


@pytest.mark.parametrize("features", ["x", "x,y", "v"])
def test_every_page_is_asked_for_once(postgres: Server, address: str, features: str) -> None:
    before, whole = pages(postgres, address, "t"), count_pages(postgres, address)
    with connect(address) as session:
        found = session.sql(f"SELECT * FROM t TRAIN BY logistic AS {features[-1]} {WITH.format(features, '')}")
    # What is filled shows late, where no block that was looked at first has nulls: then all blocks are looked at.
    most = 2.6 if features == "x,y" else 1.3
    assert pages(postgres, address, "t") - before < most * whole
    assert found.column("rows")[0] > 0.8 * ROWS


def test_the_model_is_that_of_a_counted_table(address: str) -> None:
    with connect(address) as session:
        more = ", learning_rate = 0.1, epochs = 2, buffer_size = '1MB', validation = 0"
        rows = []
        for cache in ("on", "off"):
            session.sql(
                f"SELECT * FROM t TRAIN BY svm AS m {WITH.format('x,y', f'{more}, cache = {cache}, replace = true')}"
            )
            rows.append(session.catalog.load("m"))
        assert [model.history[0]["rows"] for model in rows] == [ROWS] * 2
        assert rows[0].metrics["training_accuracy"] == pytest.approx(rows[1].metrics["training_accuracy"], abs=0.01)
        assert rows[0].recipe.parts == rows[1].recipe.parts


@pytest.mark.parametrize(
    ("features", "more", "match"),
    [
        ("x,y", ", nulls = 'error'", r"'y' is NULL in 101 rows, the first at ctid"),
        ("gap", "", r"'gap' holds a NULL in 1 row, the first at ctid"),
        ("odd", "", r"'odd' has other than 3 values in the row at ctid"),
    ],
)
def test_what_a_few_blocks_did_not_show_is_told_as_ever(address: str, features: str, more: str, match: str) -> None:
    with connect(address) as session, pytest.raises(DataError, match=match):
        session.sql(f"SELECT * FROM t TRAIN BY logistic AS n {WITH.format(features, more)}")


def test_blocks_without_rows_and_rows_of_every_block_are_counted_as_they_come(postgres: Server, address: str) -> None:
    with postgres.database() as other:
        postgres.run(MAKE, at=other)
        postgres.run("DELETE FROM t WHERE id BETWEEN 5000 AND 30000 OR id % 3 = 0", at=other)
        columns = ["id", "x", "label"]
        with PostgresSource(other, "t", columns=columns, block_size=64_000) as counted:
            ids = np.concatenate([counted.read(b, ["id"]).column(0) for b in range(len(counted.block_rows))])
        inner = PostgresSource(other, "t", columns=columns, block_size=64_000, counted=False)
        with CachedSource(inner, columns) as source:
            guessed = source.block_rows
            assert not source.exact_rows
            found = [source.read(block) for block in range(len(guessed))]
            assert source.exact_rows
            assert source.block_rows.tolist() == [batch.num_rows for batch in found]
            assert source.block_rows.min() == 0
            assert not np.array_equal(guessed, source.block_rows)
            assert np.array_equal(np.concatenate([batch.column("id") for batch in found]), ids)
            assert inner.fingerprint == counted.fingerprint
        with connect(other) as session:
            text = f"SELECT * FROM t TRAIN BY logistic AS m {WITH.format('x', ', validation = 0, replace = true{}')}"
            for more in ("", ", learning_rate = 0.1, epochs = 2, buffer_size = '500kB'"):
                assert session.sql(text.format(more)).column("rows")[0] == len(ids)
            postgres.run("DELETE FROM t", at=other)
            with pytest.raises(DataError):
                session.sql(text.format(""))


def test_blocks_of_two_states_are_not_mixed(postgres: Server, address: str) -> None:
    with PostgresSource(address, "t", columns=["x"], block_size=64_000, counted=False) as source:
        source.read(0)
        source.release()
        with pytest.raises(DataChangedError, match="is gone"):
            source.read(1)
