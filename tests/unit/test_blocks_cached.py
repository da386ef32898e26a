"""A cache of blocks: each is read once, all are kept or none, and nothing is left behind."""

from __future__ import annotations

import errno
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from penstock.batch import Batch
from penstock.blocks import cached_source
from penstock.blocks.cached_source import CachedSource, cached_bytes, fits
from penstock.blocks.memory import TableSource
from penstock.checksum import checksum
from penstock.columns.choose import choose_features
from penstock.errors import ColumnError, DataChangedError, SourceError, UsageError
from penstock.loader.decode import PackedDecoder
from penstock.loader.loader import Loader
from penstock.loader.row_forms import Scaling
from penstock.loader.windows import Feed


class Counting(TableSource):
    """A source that counts what is asked of it."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.asked = []
        self.begun = []
        self.released = 0
        self.fails = False

    def read(self, block, columns=None):
        self.asked.append(block)
        if self.fails:
            raise DataChangedError("gone")
        return super().read(block, columns)

    def begin(self, epoch):
        self.begun.append(epoch)

    def check(self):
        if self.fails:
            raise DataChangedError("gone")

    def release(self):
        self.released += 1


def counting(rows=1000):
    at = np.arange(rows)
    values = pa.array(np.repeat(at, 3).astype(np.float32))
    table = pa.table(
        {
            "v": pa.FixedSizeListArray.from_arrays(values, 3),
            "w": pa.array([f"word {i}" for i in at]),
            "k": pa.array([list(range(i % 4)) for i in at], pa.list_(pa.int32())),
            "y": at % 2,
        }
    )
    return Counting.of(table, block_size=2000), table


def test_each_block_is_read_once():
    inner, table = counting()
    with CachedSource(inner, ["y", "v", "w", "k"]) as source:
        blocks = range(len(source.block_rows))
        first = [source.read(block) for block in blocks]
        assert inner.released == 1
        assert source.complete
        inner.fails = True
        source.check()
        assert [source.read(block) for block in reversed(blocks)] == first[::-1]
        assert pa.Table.from_batches(first).equals(table.select(["y", "v", "w", "k"]))
        assert source.read(1, ["w", "y"]) == first[1].select(["w", "y"])
        assert inner.asked == list(blocks)
        inner.fails = False
        assert (source.fingerprint, source.name) == (inner.fingerprint, inner.name)


def test_only_the_columns_kept_are_there():
    inner, _ = counting()
    with pytest.raises(ColumnError, match="no column 'z'"):
        CachedSource(inner, ["z"])
    with CachedSource(inner, ["y"]) as source:
        assert source.schema.names == ["y"]
        with pytest.raises(ColumnError, match="no column 'w'"):
            source.read(0, ["w"])
    encoded = TableSource.of(pa.table({"d": pa.array(["a", "b"]).dictionary_encode()}))
    with pytest.raises(UsageError, match="dictionary"):
        CachedSource(encoded, ["d"])


def test_threads_that_ask_for_one_block_share_it():
    inner, _ = counting()
    entered, go = threading.Event(), threading.Event()
    plain = inner.read

    def slow(block, columns=None):
        entered.set()
        assert go.wait(10)
        return plain(block, columns)

    inner.read = slow
    with CachedSource(inner, ["v", "y"]) as source, ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(source.read, 2, ["y"]) for _ in range(8)]
        assert entered.wait(10)
        go.set()
        assert len({tuple(task.result()["y"].to_pylist()) for task in tasks}) == 1
        assert inner.asked == [2]


def test_a_failure_reaches_all_who_ask_and_can_be_tried_again():
    inner, _ = counting()
    with CachedSource(inner, ["y"]) as source:
        inner.fails = True
        for _ in range(2):
            with pytest.raises(DataChangedError, match="gone"):
                source.read(0)
        with pytest.raises(DataChangedError):
            source.check()
        inner.fails = False
        assert source.read(0).num_rows
        assert inner.asked == [0, 0, 0]


def test_a_full_disk_turns_the_cache_off(monkeypatch, tmp_path):
    inner, table = counting()
    told = []
    real = os.pwrite

    def full(fd, data, at):
        if at > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, at)

    monkeypatch.setattr(cached_source.os, "pwrite", full)
    with CachedSource(inner, ["y", "v"], folder=tmp_path, listen=told.append) as source:
        blocks = range(len(source.block_rows))
        for _ in range(2):
            found = pa.Table.from_batches([source.read(block) for block in blocks])
            assert found.equals(table.select(["y", "v"]))
        assert os.fstat(source._file.fileno()).st_size == 0, "what was written is given back"
        assert inner.asked == [*blocks, *blocks]
        assert inner.released == 0
        source.begin(3)
        assert inner.begun == [3]
    assert len(told) == 1
    assert "No space left" in told[0]
    assert source.warnings == told


def test_a_limit_found_out_late(caplog):
    inner, _ = counting()
    with CachedSource(inner, ["y", "v"], limit=4000) as source:
        blocks = range(len(source.block_rows))
        for block in [*blocks, *blocks]:
            source.read(block)
        assert not source.complete
        assert len(inner.asked) == 2 * len(blocks)
    assert "4.0 kB allowed" in caplog.text


def test_what_fits(tmp_path):
    inner, _ = counting()
    with CachedSource(inner, ["v", "y"], folder=tmp_path) as source:
        estimate = cached_bytes(inner, ["v", "y"])
        for block in range(len(source.block_rows)):
            source.read(block)
        assert 0.7 * estimate < source.nbytes <= estimate
    assert fits(inner, ["v", "y"], estimate)
    assert not fits(inner, ["v", "y"], estimate - 1)
    assert fits(inner, ["w"], folder=str(tmp_path))
    assert cached_bytes(inner, ["w"]) >= inner.block_bytes.sum()
    with pytest.raises(ColumnError):
        fits(inner, ["z"])


def test_epochs_are_passed_on_only_where_nothing_is_kept():
    inner, _ = counting()
    with CachedSource(inner, ["v", "y"]) as source:
        recipe = choose_features(source.schema, features=["v"], label="y", place="t")
        with Loader(source, recipe, "corgipile", memory="40KB") as loader:
            assert not loader.plan.resident
            for epoch in range(3):
                x = np.concatenate([window.batch.x[:, 0].copy() for window in loader.epoch(epoch)])
                assert sorted(x.tolist()) == list(range(1000))
        assert inner.begun == []
        assert sorted(inner.asked) == list(range(len(source.block_rows)))


def test_nothing_is_left_behind(tmp_path):
    inner, _ = counting()
    source = CachedSource(inner, ["v", "y"], folder=tmp_path)
    source.read(0)
    assert list(tmp_path.iterdir()) == [], "the file has no name, so nothing can leave it behind"
    file = source._file
    source.close()
    source.close()
    assert file.closed
    with pytest.raises(SourceError, match="closed"):
        source.read(0)
    other = CachedSource(counting()[0], ["y"], folder=tmp_path)
    file = other._file
    del other
    gc.collect()
    assert file.closed


def test_a_process_that_was_forked_writes_nothing():
    inner, _ = counting()
    with CachedSource(inner, ["y"]) as source:
        kept = source.read(0)
        child = os.fork()
        if child == 0:
            right = source.read(0) == kept and source.read(1) == TableSource.read(inner, 1, ["y"])
            os._exit(0 if right and source.nbytes == kept.serialize().size else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("memory", ["100%", "8kB", "20kB"])
@pytest.mark.parametrize("weight", [None, "u"])
def test_rows_go_from_the_file_to_their_places_as_they_are(memory, weight):
    rows = 4000
    rng = np.random.default_rng(3)
    flat = pa.array(rng.normal(size=3 * rows).astype(np.float32))
    columns = {"v": pa.FixedSizeListArray.from_arrays(flat, 3), "y": np.arange(rows, dtype=np.int16) % 3}
    plain = TableSource.of(pa.table({**columns, "u": 1 + np.arange(rows) % 2}), block_size=12_000)
    recipe = choose_features(plain.schema, features=["v"], label="y", weight=weight, place="t")
    scaling = Scaling(np.array([1, 0, -1], np.float32), np.array([2, 1, 0.5], np.float32))
    with CachedSource(plain, ["v", "y", "u"]) as source:
        assert source.packed("v", "y", weight) is None, "not all blocks are there"
        for block in range(len(source.block_rows)):
            source.read(block)
        layout = source.packed("v", "y", weight)
        stored = zip(layout.offsets.tolist(), layout.nbytes.tolist(), layout.sums.tolist(), strict=True)
        assert all(checksum(os.pread(layout.fd, size, at), at) == found for at, size, found in stored)
        with Loader(source, recipe, memory=memory, scaling=scaling, stretch=True) as loader:
            assert isinstance(Feed.of(loader.source, recipe, scaling).decoder, PackedDecoder), "also of parts of blocks"
            found = [each.batch.take(np.arange(len(each.batch))) for each in loader.epoch(0)]
            held = loader.plan.held_rows
        with Loader(plain, recipe, "none", memory="1GB", scaling=scaling) as loader:
            (whole,) = [each.batch.take(np.arange(len(each.batch))) for each in loader.epoch(0)]
    together = Batch.concat(found)
    order, expected = np.lexsort(together.x.T), np.lexsort(whole.x.T)
    np.testing.assert_array_equal(together.x[order], whole.x[expected])
    np.testing.assert_array_equal(together.y[order], whole.y[expected])
    if weight:
        np.testing.assert_array_equal(together.weight[order], whole.weight[expected])
    assert held < rows or memory == "100%"
