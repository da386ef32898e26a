"""What every source must do, as tests: subclass `SourceContract`, say how to make your source, run pytest.

    class TestMySource(SourceContract):
        def make(self, folder):
            path = write_my_file(folder, self.table())
            return lambda: MySource(path)

`table` is the data to store; override it where the format cannot hold these columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.base import BlockSource, IndexedSource
from penstock.errors import ColumnError, DataChangedError, SourceError


class SourceContract:
    """The suite; ``files`` is false for sources that lie in memory, which cannot change under a reader."""

    files = True
    rows = 1000

    def table(self) -> pa.Table:
        """Return the rows that the source under test holds, in order."""
        at = np.arange(self.rows)
        return pa.table({"a": at.astype(np.float64), "b": at * 2, "c": (at % 7).astype(np.float32)})

    def make(self, folder: Path) -> Callable[[], BlockSource]:
        """Store `table` under the folder and return what opens it; called anew, it opens it anew."""
        raise NotImplementedError

    def stored(self, folder: Path) -> list[Path]:
        """Return the files that `make` wrote."""
        return sorted(path for path in folder.rglob("*") if path.is_file())

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], BlockSource]:
        """What opens the source under test."""
        return self.make(tmp_path)

    def test_is_a_source(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            assert isinstance(source, BlockSource)
            assert isinstance(source.name, str)
            assert isinstance(source.schema, pa.Schema)
            for counts in (source.block_rows, source.block_bytes):
                assert counts.dtype == np.int64
                assert len(counts) == len(source.block_rows)
            assert (source.block_bytes > 0).all()
            if source.units is not None:
                assert (np.diff(source.units) >= 0).all()

    def test_blocks_hold_every_row_once_in_order(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            found = pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))], source.schema)
        assert_same(found, self.table())

    def test_has_several_blocks(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            assert len(source.block_rows) > 2, "make the blocks of the source under test smaller"

    def test_row_counts(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            counts = [source.read(b).num_rows for b in range(len(source.block_rows))]
            assert sum(counts) == self.table().num_rows
            if source.exact_rows:
                assert counts == source.block_rows.tolist()

    def test_columns_are_chosen_and_ordered(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            names = list(reversed(source.schema.names))
            chosen = source.read(1, names)
            assert chosen.schema.names == names
            assert_same(chosen.select(source.schema.names), source.read(1))
            assert source.read(1, names[:1]).schema.names == names[:1]

    def test_a_column_that_is_not_there(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source, pytest.raises(ColumnError, match="no such column"):
            source.read(0, ["no such column"])

    def test_a_block_that_is_not_there(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            for block in (-1, len(source.block_rows)):
                with pytest.raises(IndexError, match=f"no block {block}"):
                    source.read(block)

    def test_reads_from_many_threads(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            blocks = list(range(len(source.block_rows)))
            expected = [source.read(b) for b in blocks]
            asked = np.random.default_rng(0).permutation(np.repeat(blocks, 8)[:400])
            with ThreadPoolExecutor(8) as pool:
                for block, batch in zip(asked, pool.map(lambda b: source.read(int(b)), asked), strict=True):
                    assert batch.equals(expected[block])

    def test_reads_in_any_order(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            blocks = list(range(len(source.block_rows)))
            expected = [source.read(b) for b in blocks]
            for block in [*reversed(blocks), *blocks, *blocks[::2]]:
                assert source.read(block).equals(expected[block])

    def test_fingerprint_is_stable(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as one, opener() as two:
            assert one.fingerprint == two.fingerprint == one.fingerprint
            assert isinstance(one.fingerprint, str)

    def test_fingerprint_changes_with_the_data(self, opener: Callable[[], BlockSource], tmp_path: Path) -> None:
        if not self.files:
            pytest.skip("the data lie in memory")
        with opener() as source:
            before = source.fingerprint
        file = self.stored(tmp_path)[0]
        content = bytearray(file.read_bytes())
        rewrite(file, bytes(content))
        with opener() as source:
            assert source.fingerprint != before, "a rewritten file must tell by its time of change"

    def test_a_change_after_opening_is_noticed(self, opener: Callable[[], BlockSource], tmp_path: Path) -> None:
        if not self.files:
            pytest.skip("the data lie in memory")
        with opener() as source:
            source.read(0)
            file = self.stored(tmp_path)[0]
            with file.open("ab") as out:
                out.write(b"more\n")
            with pytest.raises(DataChangedError, match=file.name):
                source.read(1)

    def test_close(self, opener: Callable[[], BlockSource]) -> None:
        source = opener()
        source.read(0)
        source.close()
        source.close()
        with pytest.raises(SourceError, match="closed"):
            source.read(0)

    def test_take(self, opener: Callable[[], BlockSource]) -> None:
        with opener() as source:
            if not isinstance(source, IndexedSource):
                pytest.skip("rows cannot be read one by one")
            table = self.table()
            rows = np.random.default_rng(1).integers(0, table.num_rows, 50)
            name = source.schema.names[-1]
            taken = source.take(rows, [name])
            assert taken.schema.names == [name]
            assert_same(taken, table.take(pa.array(rows)).select([name]))
            assert source.take(np.empty(0, np.int64)).num_rows == 0
            for row in (-1, table.num_rows):
                with pytest.raises(IndexError, match=f"no row {row}"):
                    source.take(np.array([row]))


def rewrite(file: Path, content: bytes) -> None:
    """Write a file anew, with a later time of change whatever the clock's grain."""
    later = file.stat().st_mtime_ns + 1_000_000
    file.write_bytes(content)
    os.utime(file, ns=(later, later))


def assert_same(found: Any, expected: Any) -> None:
    """Compare rows by value, whatever the chunks and whether a number is an integer or a float."""
    assert found.schema.names == expected.schema.names
    assert found.to_pydict() == expected.to_pydict()
