"""Tables of DuckDB pass the suite that every source does; what a changed file means is told by changing the table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks import duckdb_blocks
from penstock.blocks.duckdb import DuckDBSource, connect_duckdb
from penstock.errors import DataChangedError
from penstock.testing.sources import SourceContract


def store(connection, table, name="t"):
    connection.register("given", table)
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    connection.unregister("given")
    return connection


class DuckDBContract(SourceContract):
    """The suite over an open connection, which its tests share until one changes the table."""

    rows = 1000
    name = "t"
    block_size = 2000
    options: dict[str, str] = {}  # noqa: RUF012 - never changed
    shared = None

    def fill(self, connection, folder):
        """Store the table as ``t``."""
        store(connection, self.table())

    def make(self, folder):
        owner = type(self)
        if owner.shared is None:
            owner.shared = connect_duckdb(":memory:")
            self.fill(owner.shared, folder)
        return lambda: DuckDBSource(owner.shared, self.name, block_size=self.block_size, **self.options)

    @pytest.fixture
    def change(self, opener):
        """What changes the table, by SQL."""
        yield lambda text: type(self).shared.execute(text)
        type(self).shared = None

    def test_fingerprint_changes_with_the_data(self, opener, change):
        with opener() as source:
            before = source.fingerprint
        change("UPDATE t SET b = b + 1 WHERE a = 3")
        with opener() as source:
            assert source.fingerprint != before

    def test_a_change_after_opening_is_noticed(self, opener, change):
        with opener() as source:
            source.read(0)
            change("DELETE FROM t WHERE a BETWEEN 5 AND 800")
            with pytest.raises(DataChangedError, match="t was changed while it was in use: block 1 "):
                source.read(1)
            with pytest.raises(DataChangedError, match=f"it had {self.rows} rows, now {self.rows - 796}"):
                source.check()


class TestFile(DuckDBContract):
    """Nobody else can write while the file is open; this process, where it has it open itself, shares it."""

    def make(self, folder):
        self.path = folder / "shop.duckdb"
        with connect_duckdb(self.path) as connection:
            store(connection, self.table())
        return lambda: DuckDBSource(self.path, "t", block_size=2000)

    @pytest.fixture
    def change(self, opener):
        with connect_duckdb(self.path) as connection:
            yield connection.execute


class TestVectors(DuckDBContract):
    """Blocks of whole vectors, in row groups of which some are partial and some have gaps."""

    rows = 12_000
    name = ("small", "main", "t")
    block_size = 20 * 2048

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(duckdb_blocks, "ROW_GROUP", 4096)

    def fill(self, connection, folder):
        connection.execute(f"ATTACH '{folder / 'small.duckdb'}' AS small (ROW_GROUP_SIZE 4096)")
        connection.execute("USE small")
        table = self.table()
        store(connection, table.slice(0, 5000))
        for part in (table.slice(5000, 3000), table.slice(8000)):
            connection.register("given", part)
            connection.execute("INSERT INTO t SELECT * FROM given")
            connection.execute("INSERT INTO t SELECT -1, -1, -1 FROM range(700)")
        connection.execute("DELETE FROM t WHERE a < 0")

    def test_a_change_after_opening_is_noticed(self, opener, change):
        with opener() as source:
            change("DELETE FROM t WHERE a BETWEEN 4500 AND 4600")
            with pytest.raises(DataChangedError, match="block 2 "):
                source.read(2)


class TestNullsSkipped(DuckDBContract):
    options = {"nulls": "skip"}  # noqa: RUF012 - never changed

    def fill(self, connection, folder):
        store(connection, self.table(), "whole")
        connection.execute(
            "CREATE TABLE t AS SELECT if(n = 1, NULL, a) AS a, if(n = 2, NULL, b) AS b, c FROM whole, range(3) r(n)"
            " ORDER BY whole.rowid, n"
        )


class TestLists(DuckDBContract):
    """Features in one column, however stored, are served as a fixed-size list of float32."""

    block_size = 4000

    def table(self):
        x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4)
        return pa.table({"features": features, "a": np.arange(1000), "b": np.arange(1000) % 2})

    def fill(self, connection, folder):
        store(connection, self.table(), "given_rows")
        connection.execute("CREATE TABLE t AS SELECT features::DOUBLE[] AS features, a, b FROM given_rows")

    def test_type(self, opener):
        with opener() as source:
            assert source.schema.field("features").type == pa.list_(pa.float32(), 4)
            assert source.read(0).schema == source.schema


class TestPackedBytes(TestLists):
    def fill(self, connection, folder):
        rows = self.table()["features"].combine_chunks().flatten().to_numpy().reshape(1000, 4)
        packed = pa.array([row.astype("<f4").tobytes() for row in rows], pa.binary())
        store(connection, self.table().set_column(0, "features", packed))


class TestSparsePair(DuckDBContract):
    def table(self):
        at = np.arange(self.rows)
        offsets = pa.array(np.concatenate([[0], np.cumsum(at % 4)]).astype(np.int32))
        count = offsets[-1].as_py()
        return pa.table(
            {
                "a": at,
                "features_k": pa.ListArray.from_arrays(offsets, pa.array(np.arange(count, dtype=np.int32) % 11)),
                "features_v": pa.ListArray.from_arrays(offsets, pa.array(np.arange(count, dtype=np.float32))),
                "b": at % 2,
            }
        )

    def test_lists_stay_lists(self, opener):
        with opener() as source:
            assert source.schema.field("features_k").type == pa.list_(pa.int32())
            assert source.schema.field("features_v").type == pa.list_(pa.float32())
