"""Tables of a real PostgreSQL server, and caches of them, pass the shipped conformance suite."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.cached_source import CachedSource
from penstock.blocks.memory import TableSource
from penstock.blocks.postgres import PostgresSource
from penstock.testing.sources import SourceContract
from tests.servers import Server, run

NUMBERS = "SELECT i::float8 AS a, i::int8 * 2 AS b, (i % 7)::float4 AS c FROM generate_series(0, 999) AS i"


class PostgresContract(SourceContract):
    files = False
    statements = f"CREATE TABLE t AS {NUMBERS}"

    @pytest.fixture(scope="class")
    @classmethod
    def address(cls, postgres):
        with postgres.database() as address:
            run(address, cls.statements)
            yield address

    @pytest.fixture
    def opener(self, address):
        return lambda: PostgresSource(address, "t", block_size=8192)


class TestTable(PostgresContract):
    pass


class TestEveryEpochItsSnapshot(PostgresContract):
    @pytest.fixture
    def opener(self, address):
        return lambda: PostgresSource(address, "t", block_size=8192, exact=False)


class TestPartitions(PostgresContract):
    statements = f"""
        CREATE TABLE t (a float8, b int8, c float4) PARTITION BY RANGE (a);
        CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (300);
        CREATE TABLE high PARTITION OF t FOR VALUES FROM (300) TO (1000) PARTITION BY RANGE (a);
        CREATE TABLE nobody PARTITION OF high FOR VALUES FROM (900.5) TO (900.6);
        CREATE TABLE middle PARTITION OF high FOR VALUES FROM (300) TO (600);
        CREATE TABLE top PARTITION OF high FOR VALUES FROM (600) TO (900.5);
        CREATE TABLE last PARTITION OF high FOR VALUES FROM (900.6) TO (1000);
        INSERT INTO t {NUMBERS};
    """


class TestEveryKindOfColumn(PostgresContract):
    statements = f"""
        CREATE TABLE t AS SELECT c, ARRAY[a, b, 1.5]::float4[] AS v, '{{}}'::int[] || b::int AS k, a::numeric AS n,
            b % 3 = 0 AS flag, 'wörd ' || b AS words FROM ({NUMBERS}) AS q
    """

    def table(self):
        numbers = super().table().to_pydict()
        v = [[a, b, 1.5] for a, b in zip(numbers["a"], numbers["b"], strict=True)]
        return pa.table(
            {
                "c": numbers["c"],
                "v": v,
                "k": [[float(b)] for b in numbers["b"]],
                "n": numbers["a"],
                "flag": [b % 3 == 0 for b in numbers["b"]],
                "words": [f"wörd {b}" for b in numbers["b"]],
            }
        )


class TestCached(PostgresContract):
    @pytest.fixture
    def opener(self, address):
        return lambda: CachedSource(PostgresSource(address, "t", block_size=8192), ["a", "b", "c"])


class TestCachedTable(SourceContract):
    files = False

    def make(self, folder):
        return lambda: CachedSource(TableSource.of(self.table(), block_size=1000), ["a", "b", "c"], folder=folder)


@pytest.mark.other_servers
class TestOlderServer:
    """The older of the wheel's two servers: the same rows by the same plan."""

    def test_reads_the_same(self):
        with closing(Server(16)) as server, server.database() as address:
            run(address, TestEveryKindOfColumn.statements)
            with PostgresSource(address, "t", block_size=8192) as source:
                blocks = range(len(source.block_rows))
                found = pa.Table.from_batches([source.read(block) for block in reversed(blocks)])
                assert "Tid Range Scan" in source.explain(1)
                assert sorted(found["n"].to_pylist()) == list(np.arange(1000.0))
                assert len(source.snapshots) == 1
