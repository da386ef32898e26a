"""Parquet: sub-blocks through cursors, several files, damage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.blocks.parquet import ParquetSource
from penstock.columns.choose import choose_features
from penstock.errors import CorruptFileError, SchemaError, SourceNotFoundError
from penstock.loader.loader import Loader


def table(rows=1000):
    at = np.arange(rows)
    text = pa.array([f"{i}" * (i % 50) for i in range(rows)])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 4, dtype=np.float32)), 4)
    return pa.table({"x": at.astype(np.float64), "s": text, "d": text.dictionary_encode(), "l": lists})


@pytest.mark.parametrize("page", [64, 1000, 1 << 20])
@pytest.mark.parametrize("size", [1, 100, 3000])
def test_sub_blocks_are_aligned(tmp_path, page, size):
    pq.write_table(table(500), tmp_path / "a.parquet", row_group_size=170, data_page_size=page, write_batch_size=7)
    with ParquetSource(tmp_path / "a.parquet", size) as source:
        for unit in np.unique(source.units):
            rows = source.block_rows[source.units == unit]
            assert len(set(rows[:-1])) <= 1
            assert rows[-1] <= rows[0]
        read = pa.Table.from_batches([source.read(b, ["x", "l", "s"]) for b in range(len(source.block_rows))])
        assert read.to_pydict() == table(500).select(["x", "l", "s"]).to_pydict()


def counting(source):
    decodes = []
    decode = source._decode
    source._decode = lambda *args: decodes.append(args) or decode(*args)
    return decodes


def test_a_row_group_read_in_ascending_order_is_decoded_once(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=250)
    with ParquetSource(tmp_path / "a.parquet", 1000) as source:
        decodes = counting(source)
        by_unit = [np.flatnonzero(source.units == unit) for unit in range(4)]
        assert min(map(len, by_unit)) > 3
        # Interleaved over the row groups, as a window takes them.
        for step in range(max(map(len, by_unit))):
            for blocks in by_unit:
                if step < len(blocks):
                    first = int(source.block_rows[: blocks[step]].sum())
                    assert source.read(int(blocks[step]), ["x"])["x"][0].as_py() == first
                    source.read(int(blocks[step]), ["s"])
        assert len(decodes) == 8  # each of four row groups, once for each set of columns
        assert not source._cursors


def test_no_more_cursors_than_allowed(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=100)
    with ParquetSource(tmp_path / "a.parquet", 500, max_open=3) as source:
        for unit in range(10):
            source.read(int(np.flatnonzero(source.units == unit)[0]))
            assert len(source._cursors) <= 3


def test_whole_row_groups_are_blocks_where_they_are_small(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=250)
    with ParquetSource(tmp_path / "a.parquet", 10_000_000) as source:
        assert source.block_rows.tolist() == [250] * 4
        assert source.units.tolist() == [0, 1, 2, 3]
        assert source.unit_bytes > 0


def test_small_data_are_cut_into_many_blocks_and_large_ones_into_blocks_of_256_kib(tmp_path):
    x = np.random.default_rng(0).random((40_000, 20))
    pq.write_table(pa.table({f"c{i}": x[:, i] for i in range(20)}), tmp_path / "a.parquet", compression="none")
    with ParquetSource(tmp_path / "a.parquet") as source:
        assert 350 <= len(source.block_rows) <= 450  # 6.4 MB in blocks of 16 KiB
        assert len(set(source.units.tolist())) == 1


def test_empty_files_and_row_groups(tmp_path):
    pq.write_table(table(1).slice(0, 0), tmp_path / "0.parquet")
    with ParquetSource(tmp_path / "0.parquet") as source:
        assert len(source.block_rows) == 0
        assert source.schema.names == ["x", "s", "d", "l"]
    pq.write_table(table(10), tmp_path / "1.parquet")
    with ParquetSource(tmp_path) as source:
        assert source.block_rows.tolist() == [10]
        assert source.read(0).num_rows == 10


def test_files_that_disagree(tmp_path):
    pq.write_table(pa.table({"x": [1.0], "z": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": ["a"], "y": [1]}), tmp_path / "2.parquet")
    with pytest.raises(SchemaError, match=r"1\.parquet and .*2\.parquet .*'x' .*'z' \(int64 against missing\).*'y'"):
        ParquetSource(tmp_path)


@pytest.mark.parametrize("left", [0, 3, 100, -1])
def test_truncated(tmp_path, left):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptFileError, match=r"a\.parquet"):
        ParquetSource(path)


def test_damaged_pages(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[100:4000] = bytes(3900)
    path.write_bytes(bytes(content))
    with ParquetSource(path) as source, pytest.raises(CorruptFileError, match="block 0 cannot be decoded"):
        source.read(0)


def test_a_glob_that_matches_nothing(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"no file matches .*\*\.parquet"):
        ParquetSource(str(tmp_path / "*.parquet"))


def test_long_text_stored_by_dictionary_is_cut_by_what_it_decodes_to(tmp_path):
    texts = pa.array(["x" * 400, "y" * 400] * 5000)
    pq.write_table(pa.table({"text": texts, "n": np.arange(10_000)}), tmp_path / "a.parquet")
    with ParquetSource(tmp_path / "a.parquet", 100_000) as source:
        assert max(source.read(block).nbytes for block in range(len(source.block_rows))) < 150_000


def test_what_a_half_read_row_group_holds_is_told_by_its_columns_and_pages(tmp_path):
    rng = np.random.default_rng(0)
    words = {f"c{i}": pa.array([f"{v:016d}" for v in rng.integers(0, 10**15, 20_000)]) for i in range(4)}
    pq.write_table(pa.table({**words, "n": np.arange(20_000)}), tmp_path / "a.parquet", compression="zstd")
    with ParquetSource(tmp_path / "a.parquet", 20_000) as source:
        before = pa.total_allocated_bytes()
        source.read(0)
        held = pa.total_allocated_bytes() - before
        assert held <= source.unit_bytes <= 2 * held
        assert source.unit_bytes_of(["n"]) < source.unit_bytes_of(["c0"]) < source.unit_bytes / 3


def test_a_loader_leaves_the_number_of_open_row_groups_as_it_was(tmp_path):
    pq.write_table(pa.table({"x": np.arange(4000.0), "y": np.arange(4000) % 2}), tmp_path / "a.parquet")
    with ParquetSource(tmp_path / "a.parquet", 500) as source:
        recipe = choose_features(source.schema, label="y")
        opened = source.max_open
        with Loader(source, recipe, memory=1, stretch=True) as loader:
            assert loader.plan.units < opened
            for _ in loader.epoch(0):
                assert source.max_open == loader.plan.units
        assert source.max_open == opened
