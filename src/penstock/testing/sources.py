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

from penstock.blocks.base import BlockSource
from penstock.errors import ColumnError, DataChangedError, DataError, SourceError


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
        assert_same_batches(found, self.table())

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
            assert_same_batches(chosen.select(source.schema.names), source.read(1))
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

    @pytest.mark.parametrize("rows", [1, 7, 64])
    def test_smaller_blocks_hold_the_same_rows(self, opener: Callable[[], BlockSource], rows: int) -> None:
        with opener() as source:
            finer = source.refine(rows, 4 * rows)
            if finer is None:
                pytest.skip("blocks are read as they are stored")
            blocks = list(range(len(finer.block_rows)))
            expected = [finer.read(block) for block in blocks]
            assert_same_batches(pa.Table.from_batches(expected, finer.schema), self.table())
            assert finer.fingerprint == source.fingerprint
            assert len(finer.block_bytes) == len(blocks) >= len(source.block_rows) - 1
            if finer.exact_rows:
                assert [batch.num_rows for batch in expected] == finer.block_rows.tolist()
            for block in [*reversed(blocks[-40:]), *blocks[:40]]:
                assert finer.read(block).equals(expected[block])
            for count in (2, 5):
                found = finer.read_many(blocks[:count])
                assert all(one.equals(other) for one, other in zip(found, expected[:count], strict=True))
            finer.close()
            source.read(0)

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
        content, times = file.read_bytes(), file.stat()
        rewrite_file(file, content)
        with opener() as source:
            assert source.fingerprint == before, "a restored file, of another time of change, must be known again"
        # Another value, in a file as long and as old as before; what cannot be read any more has told, too.
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        file.write_bytes(changed)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        try:
            with opener() as source:
                if source.fingerprint == before:
                    for block in range(len(source.block_rows)):
                        source.read(block)
                    raise AssertionError("a changed file must be told from the one it was")
        except (SourceError, DataError):
            pass

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


def rewrite_file(file: Path, content: bytes) -> None:
    """Write a file anew, with a later time of change whatever the clock's grain."""
    later = file.stat().st_mtime_ns + 1_000_000
    file.write_bytes(content)
    os.utime(file, ns=(later, later))


def assert_same_batches(found: Any, expected: Any) -> None:
    """Compare rows by value, whatever the chunks and whether a number is an integer or a float."""
    assert found.schema.names == expected.schema.names
    assert found.to_pydict() == expected.to_pydict()
