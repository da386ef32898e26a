"""Rows put straight into their places: the same files as by sorting, and the same manners."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.batch import Batch
from penstock.blocks.memory import TableSource
from penstock.errors import FeatureError, WriteError
from penstock.events import Stream
from penstock.groups import etl, group_files, row_scatter
from penstock.groups.etl import group
from penstock.groups.group_counts import cheap_twice
from penstock.groups.grouped import Grouped
from penstock.groups.row_scatter import chunk_bytes
from tests.grouped_rows import MEMORY, Interrupting, assert_grouped, rows_table, store


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Put a few kilobytes in place at a time; nothing may be sorted in runs."""
    patch_plan(monkeypatch, scatter=8000)
    monkeypatch.setattr(row_scatter, "LEAST_ROWS", 0)
    monkeypatch.setattr(etl, "Sorter", None)


def patch_plan(monkeypatch, **changes):
    settle = etl.SortingPlan.of

    def of(*args):
        return dataclasses.replace(settle(*args), together=1000, count=1000, **changes)

    monkeypatch.setattr(etl.SortingPlan, "of", of)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def made(table, folder, *, stream=None, **options):
    source = TableSource.of(table, block_size=1000)
    return group(source, "city", folder, label="y", memory=MEMORY, stream=stream, **options)


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("groups", [1, 7, 600])
def test_files_are_those_of_a_sort(groups, weight, tmp_path, monkeypatch):
    monkeypatch.setattr(group_files, "FILE_BYTES", 9_000)
    table = rows_table(groups=groups, weight=weight is not None)
    if groups == 1:
        table = table.set_column(0, "city", pa.array(["Oslo"] * 2000))
    placed = made(table, tmp_path / "placed", weight=weight, block_size="3kB")
    assert_grouped(placed, table, weight=weight)
    assert len(list(placed.folder.glob("rows-*"))) > 2
    monkeypatch.undo()
    monkeypatch.setattr(group_files, "FILE_BYTES", 9_000)
    patch_plan(monkeypatch, scatter=0)
    monkeypatch.setattr(etl, "Scatter", None)
    by_sort = made(table, tmp_path / "sorted", weight=weight, block_size="3kB")
    assert files(placed.folder) == files(by_sort.folder)


def test_places_are_filled_in_any_order(tmp_path):
    table, rng = rows_table(groups=3), np.random.default_rng(0)
    expected = made(table, tmp_path / "g", block_size="3kB")
    counts = expected.rows
    with group_files.GroupedWriter(tmp_path, expected.recipe, most=3000 - 1024) as writer:
        laid = writer.lay(counts)
        pieces = [(g, at, min(at + 70, int(n))) for g, n in enumerate(counts) for at in range(0, int(n), 70)]
        for piece in rng.permutation(len(pieces)):
            number, first, last = pieces[piece]
            rows = Batch.concat(expected.batch(number)).take(np.arange(first, last))
            laid.put(*(np.array([n]) for n in (number, first, last - first)), rows)
        writer.finish(expected.keys, expected.kinds, expected.note)
    assert (tmp_path / "rows-00000.arrow").read_bytes() == (tmp_path / "g" / "rows-00000.arrow").read_bytes()


def interrupted(table, folder):
    """Interrupt grouping when some rows are in place, and return where they are."""
    with pytest.raises(KeyboardInterrupt):
        made(table, folder, stream=Stream([Interrupting("group", after=3)]))
    (scratch,) = folder.parent.glob(f"{folder.name}.tmp-*")
    return scratch


def test_what_was_placed_and_counted_is_not_read_again(tmp_path):
    table = rows_table()
    scratch = interrupted(table, tmp_path / "g")
    assert (scratch / "placed").read_text()
    scanned, placed = Interrupting("scan"), Interrupting("group")
    grouped = made(table, tmp_path / "g", stream=Stream([scanned, placed]))
    assert scanned.amount == 0
    assert 0 < placed.amount < int(TableSource.of(table, block_size=1000).block_bytes.sum())
    assert files(grouped.folder) == files(made(table, tmp_path / "h").folder)
    assert sorted(os.listdir(tmp_path)) == ["g", "h"]


@pytest.mark.parametrize("what", ["file gone", "file short", "file long", "count", "boot", "pyarrow", "placed"])
def test_what_cannot_be_trusted_is_done_again(what, tmp_path):
    table = rows_table()
    scratch = interrupted(table, tmp_path / "g")
    rows = scratch / "out" / "rows-00000.arrow"
    data = rows.read_bytes()
    rows.write_bytes(bytes(len(data)))  # what is trusted is not put there again: the zeros would stay
    if what.startswith("file"):
        rows.write_bytes(data[:-1] if what == "file short" else data + b"x")
        if what == "file gone":
            rows.unlink()
    elif what == "count":
        (scratch / "numbers.bin").write_bytes(bytes(10))
    elif what == "placed":
        (scratch / "placed").write_bytes(b"")  # killed between opening and writing it
    else:
        note = scratch / "counted.json"
        note.write_text(json.dumps({**json.loads(note.read_text()), what: "another"}))
    assert_grouped(made(table, tmp_path / "g"), table)
    assert os.listdir(tmp_path) == ["g"]


def test_values_that_arrow_copies_are_not_taken_for_placed_ones(tmp_path, monkeypatch):
    """Where blank values do not come as they were given, they are written over what is in the file."""
    table = rows_table()
    interrupted(table, tmp_path / "g")
    write = row_scatter.HollowFile.write
    monkeypatch.setattr(row_scatter.HollowFile, "write", lambda self, data: write(self, bytes(data)))
    assert_grouped(made(table, tmp_path / "g"), table)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("when", ["laid", "put", "synced"])
def test_a_failure_to_write_is_told_and_leaves_nothing(when, number, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(number, os.strerror(number))

    if when == "synced":
        monkeypatch.setattr(group_files, "_sync", fail)
    elif when == "put":
        monkeypatch.setattr(row_scatter.Laid, "_move_pieces", fail)
    elif number == errno.ENOSPC:
        monkeypatch.setattr(row_scatter.os, "posix_fallocate", fail)
    else:
        monkeypatch.setattr(row_scatter.os, "pwrite", fail)
    told = "the disk is full" if number == errno.ENOSPC else "cannot be written: Input/output error"
    with pytest.raises(WriteError, match=told):
        made(rows_table(), tmp_path / "g")
    assert os.listdir(tmp_path) == []


def test_a_system_that_sets_no_room_aside(tmp_path, monkeypatch):
    table = rows_table()
    expected = files(made(table, tmp_path / "a").folder)
    monkeypatch.delattr(row_scatter.os, "posix_fallocate")
    assert files(made(table, tmp_path / "b").folder) == expected


class Watched(TableSource):
    """A table that notes which blocks of features were read, and fails at one."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.reads, self.fails, self.lock, self.reading = [], None, threading.Lock(), 0

    def read(self, block, columns=None):
        features = columns is not None and "x" in columns
        if features:
            with self.lock:
                self.reads.append(block)
                self.reading += 1
                assert self.threads != 1 or self.reading == 1
        if block == self.fails:
            raise FeatureError("here: a feature is missing")
        rows = super().read(block, columns)
        if features:
            with self.lock:
                self.reading -= 1
        return rows


@pytest.mark.parametrize("threads", [1, None])
def test_blocks_that_must_be_read_in_order_are(threads, tmp_path):
    table = rows_table()
    source = Watched.of(table, block_size=500)
    source.threads = threads
    assert_grouped(group(source, "city", tmp_path / "g", label="y", memory=MEMORY), table)
    blocks = len(source.block_rows)  # features are read to fit the recipe, and to be put in place
    assert sorted(source.reads[:blocks]) == sorted(source.reads[blocks:]) == list(range(blocks))
    if threads == 1:
        assert source.reads == [*range(blocks), *range(blocks)]


@pytest.mark.parametrize("threads", [1, None])
def test_a_failure_to_read_is_raised_and_nothing_waits(threads, tmp_path):
    source = Watched.of(rows_table(), block_size=500)
    source.threads, source.fails = threads, 20
    with pytest.raises(FeatureError, match="a feature is missing"):
        group(source, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert os.listdir(tmp_path) == []


def test_row_groups_in_parts(tmp_path):
    table = rows_table(weight=True)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    grouped = group(tmp_path / "t.parquet", "city", tmp_path / "g", label="y", weight="w", memory=MEMORY)
    assert_grouped(grouped, table, weight="w")


def test_the_label_of_a_regression_is_a_number(tmp_path):
    table = rows_table().set_column(3, "y", pa.array(np.linspace(-5, 5, 2000)))
    assert_grouped(made(table, tmp_path / "g", model="linear"), table)


def test_a_column_to_group_by_may_be_a_feature_too(tmp_path):
    table = rows_table(300).append_column("day", pa.array(np.arange(300) % 3))
    source = TableSource.of(table, block_size=1000)
    grouped = group(source, "day", tmp_path / "g", label="y", memory=MEMORY, features=["row", "day"])
    assert [part.x[:, 1].tolist() for part in grouped.batch(2)] == [[2.0] * 100]


def test_chunks_grow_with_the_groups_and_end_with_the_memory():
    assert chunk_bytes(64_000_000, groups=280, row_bytes=164) == 16_000_000
    assert chunk_bytes(64_000_000, groups=3000, row_bytes=164) == 64 * 3000 * 164
    assert chunk_bytes(2_000_000, groups=280, row_bytes=164) == 2_000_000


def test_rows_of_too_many_groups_are_sorted(tmp_path, monkeypatch):
    monkeypatch.undo()
    patch_plan(monkeypatch, scatter=8000, chunk=8000)
    assert chunk_bytes(8000, groups=600, row_bytes=12) == 0
    monkeypatch.setattr(etl, "Scatter", None)
    monkeypatch.setattr(etl, "coded", None)  # groups are not looked up twice
    table = rows_table(groups=600)
    stream = Stream([Interrupting("write", after=0)])
    with pytest.raises(KeyboardInterrupt):
        made(table, tmp_path / "g", stream=stream)
    listen = [Interrupting("scan"), Interrupting("group")]
    assert_grouped(made(table, tmp_path / "g", stream=Stream(listen)), table)
    assert [each.amount for each in listen] == [0, 0]  # runs and counts were taken up again
    assert os.listdir(tmp_path) == ["g"]


@pytest.mark.parametrize(("before", "after"), [(8000, 0), (0, 8000)])
def test_the_other_way_can_end_what_one_began(before, after, tmp_path, monkeypatch):
    monkeypatch.undo()
    table = rows_table()
    with monkeypatch.context() as patch:
        patch_plan(patch, scatter=before, chunk=8000)
        with pytest.raises(KeyboardInterrupt):
            made(table, tmp_path / "g", stream=Stream([Interrupting("group", after=20 if after else 3)]))
        assert list(tmp_path.iterdir())
    patch_plan(monkeypatch, scatter=after, chunk=8000)
    assert_grouped(made(table, tmp_path / "g"), table)
    assert os.listdir(tmp_path) == ["g"]


@pytest.mark.parametrize(("kind", "expected"), [("table", True), ("arrow", True), ("parquet", True), ("csv", False)])
def test_what_is_parsed_or_fetched_is_read_once(kind, expected, tmp_path, monkeypatch):
    source = penstock.open(store(kind, rows_table(), tmp_path))
    assert cheap_twice(source) == expected
    monkeypatch.setattr(source, "name", "s3://bucket/rows")
    assert not cheap_twice(source)
    source.close()


def test_open_files_do_not_grow_with_those_written(tmp_path, monkeypatch):
    monkeypatch.setattr(group_files, "FILE_BYTES", 1_000)
    before, most = len(os.listdir("/proc/self/fd")), []
    stream = Stream([lambda event: most.append(len(os.listdir("/proc/self/fd")))])
    grouped = made(rows_table(groups=60), tmp_path / "g", stream=stream)
    assert len(list(grouped.folder.glob("rows-*"))) > 15
    assert max(most) - before < 12
    assert isinstance(grouped, Grouped)
