"""Any data to rows by group: the same rows whatever the source, the memory and the interruptions."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.batch import Batch, Csr
from penstock.blocks import choose, convert
from penstock.blocks.memory import TableSource
from penstock.errors import (
    BudgetError,
    ColumnError,
    CorruptFileError,
    DataError,
    LabelError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
    WriteError,
)
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups import etl, merging, scattering, sorting, writing
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.keys import to_text

MEMORY = "100MB"


def rows_table(rows=2000, *, groups=7, seed=0, weight=False):
    """Return rows whose feature ``row`` is their number."""
    rng = np.random.default_rng(seed)
    names = [None, *(f"city {n}/{n}" for n in range(groups - 1))]
    columns = {
        "city": pa.array([names[n] for n in rng.integers(0, groups, rows)], pa.string()),
        "row": pa.array(np.arange(rows), pa.float32()),
        "x": pa.array(rng.random(rows, np.float32)),
        "y": pa.array(rng.choice(["no", "yes"], rows)),
    }
    if weight:
        columns["w"] = pa.array(rng.random(rows, np.float32))
    return pa.table(columns)


def whole(grouped, number):
    """Return all rows of a group."""
    parts = grouped.batch(number)
    return Batch.concat(parts)


def assert_grouped(grouped, table, by=("city",), *, label="y", weight=None):
    """Compare with a plain GROUP BY: every row once, in stored order, in its own group."""
    keys = list(zip(*(table.column(name).to_pylist() for name in by)))
    expected: dict[tuple, list[int]] = {}
    for row, key in enumerate(keys):
        expected.setdefault(key, []).append(row)
    assert grouped.keys == list(expected)
    assert grouped.texts == [to_text(key) for key in expected]
    assert grouped.rows.tolist() == [len(rows) for rows in expected.values()]
    y = np.array([{"no": -1.0, "yes": 1.0}.get(value, value) for value in table.column(label).to_pylist()], np.float32)
    for number, rows in enumerate(expected.values()):
        found = whole(grouped, number)
        x = found.x.to_dense() if isinstance(found.x, Csr) else found.x
        place = (grouped.encoder.names or ("row",)).index("row")
        assert x[:, place].tolist() == rows
        assert found.y.tolist() == y[rows].tolist()
        assert (found.weight is None) == (weight is None)
        if weight is not None:
            assert found.weight.tolist() == table.column(weight).to_numpy()[rows].tolist()
        blocks = grouped.blocks(number)
        assert (grouped.block_group[blocks] == number).all()
        assert (
            grouped.block_first[blocks].tolist()
            == (np.cumsum(grouped.block_rows[blocks]) - grouped.block_rows[blocks]).tolist()
        )


@pytest.fixture
def small_runs(monkeypatch):
    """Sort a few kilobytes at a time, so that small data make many runs."""
    settle = etl.Plan.of

    def of(*args):
        room = merging.Room(args[3] - 1024, min(args[3] - 1024, 2000), 2)
        return dataclasses.replace(settle(*args), chunk=8000, together=1000, room=room, scatter=0)

    monkeypatch.setattr(etl.Plan, "of", of)


@pytest.fixture
def small_chunks(monkeypatch):
    """Put a few kilobytes in place at a time, where rows need no sorting."""
    settle = etl.Plan.of

    def of(*args):
        plan = settle(*args)
        return dataclasses.replace(plan, chunk=8000, together=1000, count=1000, scatter=min(plan.scatter, 8000))

    monkeypatch.setattr(etl.Plan, "of", of)
    monkeypatch.setattr(scattering, "LEAST_ROWS", 0)


@pytest.fixture(params=["small_runs", "small_chunks"])
def in_parts(request):
    """Do a little at a time, in both ways."""
    request.getfixturevalue(request.param)
    return request.param


def store(kind, table, folder):
    """Write a table as one kind of data."""
    if kind == "table":
        return table
    if kind == "small blocks":
        return TableSource.of(table, block_size=1000)
    path = folder / f"data.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=300)
    elif kind == "csv":
        from pyarrow import csv

        csv.write_csv(table, path)
    else:
        convert(table, path, label="y", keep=["city"], block_size=1000)
    return path


@pytest.mark.parametrize("kind", ["table", "small blocks", "parquet", "csv", "arrow"])
@pytest.mark.usefixtures("in_parts")
def test_every_source_gives_the_same_rows(kind, tmp_path):
    table = rows_table() if kind != "csv" else rows_table().filter(pa.compute.is_valid(rows_table()["city"]))
    if kind == "csv":
        table = table.set_column(1, "row", pa.array(np.arange(len(table)), pa.float32()))
    grouped = group(store(kind, table, tmp_path), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert_grouped(grouped, table)
    assert grouped.width == 2
    assert grouped.encoder.labels.classes == ("no", "yes")


@pytest.mark.usefixtures("in_parts")
def test_weights_and_several_columns(tmp_path):
    table = rows_table(weight=True).append_column("day", pa.array(np.arange(2000) % 3 == 0))
    source = TableSource.of(table, block_size=1000)
    grouped = group(source, ["day", "city"], tmp_path / "g", label="y", weight="w", memory=MEMORY)
    assert_grouped(grouped, table, ["day", "city"], weight="w")
    assert grouped.texts[0].startswith("true/")
    assert grouped.width == 2


def test_the_label_of_a_regression_is_a_number(tmp_path):
    table = rows_table().set_column(3, "y", pa.array(np.linspace(-5, 5, 2000)))
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY, model="linear")
    assert grouped.encoder.labels is None
    assert_grouped(grouped, table)


@pytest.mark.parametrize("memory", ["small", "large"])
def test_sparse_rows(memory, tmp_path, request):
    if memory == "small":
        request.getfixturevalue("small_runs")
    rng = np.random.default_rng(0)
    lists = [sorted({0, *rng.integers(1, 50, n % 9).tolist()}) for n in range(1000)]
    values = [[float(n), *rng.random(len(each) - 1).astype(np.float32).tolist()] for n, each in enumerate(lists)]
    table = pa.table(
        {
            "city": pa.array(rng.choice(["a", "b", "c"], 1000, p=[0.8, 0.1, 0.1])),
            "indices": pa.array(lists, pa.list_(pa.int64())),
            "values": pa.array(values, pa.list_(pa.float32())),
            "y": pa.array(rng.choice(["no", "yes"], 1000)),
        }
    )
    source = TableSource.of(table, block_size=2000)
    grouped = group(source, "city", tmp_path / "g", label="y", memory=MEMORY, block_size="6kB")
    assert grouped.width == 50
    assert (grouped.block_rows > 0).all()
    assert len(grouped.block_rows) > 10
    for number, (key,) in enumerate(grouped.keys):
        rows = np.flatnonzero(np.array(table["city"]) == key)
        found = whole(grouped, number).x
        assert found.width == 50
        ends = found.indptr.astype(int)
        for k, row in enumerate(rows.tolist()):
            assert found.indices[ends[k] : ends[k + 1]].tolist() == lists[row]
            assert found.values[ends[k] : ends[k + 1]].tolist() == values[row]
    sizes = [grouped.read(block).x.nbytes for block in range(len(grouped.block_rows))]
    assert max(sizes) <= 6000


def test_text_can_be_hashed_the_grouping_column_too(tmp_path):
    table = rows_table(200)
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY, hash=["city:2^4"])
    assert grouped.width == 2 + 16
    assert isinstance(grouped.read(0).x, Csr)


def test_grouping_columns_are_features_only_when_named(tmp_path):
    table = rows_table(300).append_column("day", pa.array(np.arange(300) % 2))
    plain = group(table, "day", tmp_path / "a", label="y", memory=MEMORY, exclude=["city"])
    assert plain.encoder.names == ("row", "x")
    named = group(table, "day", tmp_path / "b", label="y", memory=MEMORY, features=["row", "day"])
    assert named.encoder.names == ("row", "day")


@pytest.mark.parametrize("small", [None, "small_runs", "small_chunks"])
def test_one_group_with_all_the_rows_is_cut_into_blocks(small, tmp_path, request):
    if small:
        request.getfixturevalue(small)
    table = rows_table().set_column(0, "city", pa.array(["Oslo"] * 2000))
    source = TableSource.of(table, block_size=1000)
    grouped = group(source, "city", tmp_path / "g", label="y", memory=MEMORY, block_size="5kB")
    assert_grouped(grouped, table)
    fits = (5000 - 1024) // 12
    assert grouped.block_rows.tolist() == [fits] * (2000 // fits) + [2000 % fits]


@pytest.mark.usefixtures("in_parts")
def test_many_groups_of_three_rows(tmp_path):
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(2000), 3))
    table = rows_table(6000).set_column(0, "city", pa.array(order))
    grouped = group(TableSource.of(table, block_size=5000), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert_grouped(grouped, table)
    assert len(grouped.block_rows) == len(grouped) == 2000


def test_as_many_groups_as_rows(tmp_path):
    table = rows_table(50).set_column(0, "city", pa.array(np.arange(50) / 4))
    assert_grouped(group(table, "city", tmp_path / "g", label="y", memory=MEMORY), table)


def test_blocks_do_not_hang_on_the_memory(tmp_path, request):
    table = rows_table(groups=3)

    def made(name):
        source = TableSource.of(table, block_size=1000)
        return group(source, "city", tmp_path / name, label="y", memory=MEMORY, block_size="4kB")

    large = made("large")
    for name in ("small_chunks", "small_runs"):
        request.getfixturevalue(name)
        found = made(name)
        for file in ("rows-00000.arrow", "blocks.parquet", "groups.parquet"):
            assert (found.folder / file).read_bytes() == (large.folder / file).read_bytes()


@pytest.mark.usefixtures("small_runs")
def test_more_runs_than_can_be_merged_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "FAN", 3)
    merges = []
    merge = etl.merge_runs
    monkeypatch.setattr(
        etl, "merge_runs", lambda runs, *args, **kw: merges.append(len(runs)) or merge(runs, *args, **kw)
    )
    table = rows_table(weight=True)
    grouped = group(
        TableSource.of(table, block_size=1000),
        "city",
        tmp_path / "g",
        label="y",
        weight="w",
        memory=MEMORY,
        block_size="2kB",
    )
    assert_grouped(grouped, table, weight="w")
    assert len(merges) > 3
    assert max(merges) == 3
    assert os.listdir(tmp_path) == ["g"]


def test_files_end_at_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "FILE_BYTES", 10_000)
    table = rows_table()
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert len(list(grouped.folder.glob("rows-*.arrow"))) > 2
    assert_grouped(grouped, table)


def test_rows_open_as_any_arrow_file(tmp_path):
    table = rows_table(weight=True)
    grouped = group(table, "city", tmp_path / "g", label="y", weight="w", memory=MEMORY)
    with penstock.open(grouped.folder / "rows-00000.arrow") as source:
        encoder = choose(source.schema, label="y", weight="weight")
        assert encoder.names == ("row", "x")
        found = Batch.concat([encoder.encode(source.read(block)) for block in range(len(source.block_rows))])
    expected = Batch.concat([grouped.read(block) for block in range(len(grouped.block_rows))])
    for name in ("x", "y", "weight"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))


def test_reading_copies_nothing(tmp_path):
    table = rows_table(weight=True)
    with group(table, "city", tmp_path / "g", label="y", weight="w", memory=MEMORY) as grouped:
        found = grouped.read(1)
        stored = np.frombuffer(grouped._map(0), np.uint8)
        for array in (found.x, found.y, found.weight):
            assert np.shares_memory(array, stored)
            assert not array.flags.writeable
        assert np.shares_memory(grouped.read(1).x, found.x)
    assert found.x.shape == (grouped.rows[1], 2)  # rows stay when the folder is closed


def _sums(grouped):
    return [float(grouped.read(block).x.sum(dtype=np.float64)) for block in range(len(grouped.block_rows))]


def test_several_processes_read_at_once(tmp_path):
    grouped = group(rows_table(), "city", tmp_path / "g", label="y", memory=MEMORY)
    expected = _sums(grouped)
    assert _sums(pickle.loads(pickle.dumps(grouped))) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_sums, [grouped, grouped]) == [expected, expected]


def test_groups_are_found_by_text_or_values(tmp_path):
    grouped = group(rows_table(), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert grouped.keys[grouped.number("city 3%2F3")] == ("city 3/3",)
    assert grouped.number((None,)) == grouped.number("%null")
    with pytest.raises(UsageError, match=r"no group 'city 3%2F' by city; it has: .*did you mean 'city 3%2F3'"):
        grouped.number("city 3%2F")
    for wrong in (lambda: grouped.blocks(7), lambda: grouped.read(7), lambda: grouped.read(-1)):
        with pytest.raises(UsageError, match="it has 7"):
            wrong()


def test_some_blocks_of_a_group(tmp_path):
    grouped = group(rows_table(groups=2), "city", tmp_path / "g", label="y", memory=MEMORY, block_size="4kB")
    parts = grouped.batch(0)
    assert len(parts) > 3
    assert [len(part) for part in grouped.batch(0, 1, 3)] == [len(part) for part in parts[1:3]]


@pytest.mark.parametrize("name", ["rows-00000.arrow", "blocks.parquet", "grouped.json"])
def test_a_damaged_folder_is_told(name, tmp_path):
    table = rows_table()
    folder = group(table, "city", tmp_path / "g", label="y", memory=MEMORY).folder
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError):
        Grouped.open(folder)
    assert_grouped(group(table, "city", tmp_path / "g", label="y", memory=MEMORY), table)  # and is made anew


def test_what_is_no_grouped_folder_is_told(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"grouped\.json"):
        Grouped.open(tmp_path)
    (tmp_path / "grouped.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(DataError, match="99"):
        Grouped.open(tmp_path)


def test_groups_made_before_are_used_again(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    table = rows_table()
    pq.write_table(table, path)
    first = group(path, "city", tmp_path / "g", label="y", memory=MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(etl, "scan", None)  # nothing of the data is read
        group(str(path), ["city"], str(tmp_path / "g"), label="y", memory="1GB")
    assert (first.folder / "grouped.json").stat().st_ino == (tmp_path / "g" / "grouped.json").stat().st_ino
    with pytest.raises(UsageError, match="rows by city of other columns"):
        group(path, "city", tmp_path / "g", label="y", memory=MEMORY, features=["row"])
    with pytest.raises(UsageError, match="holds rows by city, not by row"):
        group(path, "row", tmp_path / "g", label="y", memory=MEMORY, features=["x"])
    pq.write_table(table.slice(500), path)
    assert group(path, "city", tmp_path / "g", label="y", memory=MEMORY).rows.sum() == 1500
    assert sorted(os.listdir(tmp_path)) == ["g", "t.parquet"]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="something else"):
        group(rows_table(), "city", tmp_path / "mine", label="y", memory=MEMORY)
    with pytest.raises(UsageError, match="is a file"):
        group(rows_table(), "city", tmp_path / "mine" / "letter.txt", label="y", memory=MEMORY)
    (tmp_path / "empty").mkdir()
    group(rows_table(), "city", tmp_path / "empty", label="y", memory=MEMORY)


class Interrupting:
    """A listener that interrupts a task after so many steps, and counts them."""

    def __init__(self, task, after=math.inf):
        self.task, self.after, self.steps, self.amount = task, after, 0, 0

    def __call__(self, event):
        if isinstance(event, Advanced) and event.task.startswith(self.task):
            self.steps += 1
            self.amount += 0 if event.note else event.amount
            if self.steps > self.after:
                raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("way", "task", "after"),
    [("small_runs", "group", 20), ("small_runs", "write groups", 3), ("small_chunks", "group", 3)],
)
def test_interrupted_work_is_taken_up_again(way, task, after, tmp_path, request):
    request.getfixturevalue(way)
    table = rows_table()
    path = store("arrow", table, tmp_path)
    listen = Interrupting(task, after)
    with pytest.raises(KeyboardInterrupt):
        group(path, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([listen]))
    (scratch,) = (name for name in os.listdir(tmp_path) if name.startswith("g"))
    assert scratch.startswith("g.tmp-")  # no half-written folder
    kept = "run-*.bin" if way == "small_runs" else "placed"
    assert list((tmp_path / scratch).glob(kept))
    listen = Interrupting("group")
    grouped = group(path, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([listen]))
    assert_grouped(grouped, table)
    with penstock.open(path) as source:
        total = int(source.block_bytes.sum())
    assert listen.amount < total if task == "group" else listen.amount == 0  # the rest was not read again
    fresh = group(path, "city", tmp_path / "h", label="y", memory=MEMORY)
    for file in ("rows-00000.arrow", "blocks.parquet", "groups.parquet"):
        assert (grouped.folder / file).read_bytes() == (fresh.folder / file).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["data.arrow", "g", "h"]


@pytest.mark.usefixtures("small_runs")
def test_merged_runs_are_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "FAN", 4)
    table = rows_table()
    source = TableSource.of(table, block_size=1000)
    with pytest.raises(KeyboardInterrupt):
        group(source, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([Interrupting("write", after=2)]))
    listen = Interrupting("group")
    monkeypatch.setattr(etl, "merge_runs", None)
    assert_grouped(group(source, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([listen])), table)
    assert listen.amount == 0


@pytest.mark.usefixtures("small_runs")
def test_runs_that_cannot_be_trusted_are_made_again(tmp_path):
    table = rows_table()
    source = TableSource.of(table, block_size=1000)
    with pytest.raises(KeyboardInterrupt):
        group(source, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([Interrupting("write", after=2)]))
    (scratch,) = tmp_path.iterdir()
    runs = sorted(scratch.glob("run-*.bin"))
    runs[3].write_bytes(runs[3].read_bytes()[:-1])
    note = json.loads(runs[6].with_suffix(".json").read_text())
    runs[6].with_suffix(".json").write_text(json.dumps({**note, "boot": "another"}))
    (scratch / "run-x.bin.tmp").write_bytes(b"half")
    assert_grouped(group(source, "city", tmp_path / "g", label="y", memory=MEMORY), table)


@pytest.mark.parametrize(("scatter", "tasks"), [(0, ["scan", "group", "write"]), (64_000_000, ["scan", "group"])])
def test_an_interruption_before_anything_is_done_leaves_nothing(scatter, tasks, tmp_path, monkeypatch):
    settle = etl.Plan.of
    monkeypatch.setattr(etl.Plan, "of", lambda *args: dataclasses.replace(settle(*args), scatter=scatter))
    source = TableSource.of(rows_table(), block_size=1000)
    for task in tasks:
        with pytest.raises(KeyboardInterrupt):
            group(
                source, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([Interrupting(task, after=0)])
            )
        assert os.listdir(tmp_path) == []


KILLED = """
import dataclasses, os, sys
from penstock.events import Advanced, Stream
from penstock.groups import etl
settle = etl.Plan.of
etl.Plan.of = lambda *args: dataclasses.replace(settle(*args), chunk=8000, together=1000, scatter=int(sys.argv[3]))
seen = []
def die(event):
    if isinstance(event, Advanced) and event.task.startswith("group"):
        seen.append(event)
        if len(seen) > 15:
            os.kill(os.getpid(), 9)
etl.group(sys.argv[1], "city", sys.argv[2], label="y", memory="100MB", stream=Stream([die]))
"""


def test_killed_work_is_taken_up_again(tmp_path, in_parts):
    table = rows_table()
    path = store("arrow", table, tmp_path)
    asked = [path, tmp_path / "g", "0" if in_parts == "small_runs" else "2000"]
    done = subprocess.run([sys.executable, "-c", KILLED, *asked], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "g").exists()
    listen = Interrupting("group")
    assert_grouped(group(path, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([listen])), table)
    with penstock.open(path) as source:
        assert listen.amount < int(source.block_bytes.sum())
    assert sorted(os.listdir(tmp_path)) == ["data.arrow", "g"]


@pytest.mark.usefixtures("small_runs")
def test_what_was_left_of_other_data_is_removed(tmp_path):
    stream = Stream([Interrupting("write", after=1)])
    with pytest.raises(KeyboardInterrupt):
        group(
            TableSource.of(rows_table(seed=1), block_size=1000),
            "city",
            tmp_path / "g",
            label="y",
            memory=MEMORY,
            stream=stream,
        )
    table = rows_table(seed=2)
    assert_grouped(
        group(TableSource.of(table, block_size=1000), "city", tmp_path / "g", label="y", memory=MEMORY), table
    )
    assert os.listdir(tmp_path) == ["g"]


@pytest.mark.usefixtures("in_parts")
def test_data_that_cannot_be_used_leave_nothing(tmp_path):
    table = rows_table().set_column(3, "y", pa.array([*range(1999), None], pa.float64()))
    source = TableSource.of(table, block_size=1000, name="here")
    with pytest.raises(LabelError, match=r"here: 'y' is missing \(null\) in row 1999"):
        group(source, "city", tmp_path / "g", label="y", memory=MEMORY, model="linear")
    assert os.listdir(tmp_path) == []


def test_two_processes_do_not_make_the_same_folder(tmp_path):
    table = rows_table()
    locks = []

    def hold(event):
        if isinstance(event, Started) and event.task.startswith("group"):
            with pytest.raises(UsageError, match="another process is grouping the same data"):
                group(table, "city", tmp_path / "g", label="y", memory=MEMORY)
            locks.append(event)

    group(table, "city", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([hold]))
    assert locks
    # What another process is still at work on is not removed.
    busy = tmp_path / "g.tmp-0123"
    busy.mkdir()
    with open(busy / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        group(table.slice(1), "city", tmp_path / "g", label="y", memory=MEMORY)
        assert busy.exists()
    group(table.slice(2), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert not busy.exists()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be made"):
        group(rows_table(), "city", tmp_path / "file" / "g", label="y", memory=MEMORY)


def test_a_failure_to_write_a_run_is_raised_and_leaves_nothing(tmp_path, monkeypatch, small_runs):
    def full(fd, view, at):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorting.os, "pwrite", full)
    with pytest.raises(WriteError, match="the disk is full"):
        group(TableSource.of(rows_table(), block_size=1000), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("way", "tasks"), [("small_runs", ["group table", "write groups"]), ("small_chunks", ["scan", "group table"])]
)
def test_progress_is_told(way, tasks, tmp_path, request):
    request.getfixturevalue(way)
    heard = []
    group(
        TableSource.of(rows_table(), block_size=1000),
        "city",
        tmp_path / "g",
        label="y",
        memory=MEMORY,
        stream=Stream([heard.append]),
    )
    for task in tasks:
        (begun,) = (e for e in heard if isinstance(e, Started) and e.task == task)
        assert sum(e.amount for e in heard if isinstance(e, Advanced) and e.task == task) == begun.total
        assert Finished(task) in heard


def hive(folder, table, by):
    """Write a table partitioned as Hive does it."""
    import pyarrow.dataset as ds

    kinds = pa.schema([table.schema.field(name) for name in by])
    ds.write_dataset(
        table,
        folder,
        format="parquet",
        partitioning=ds.partitioning(kinds, flavor="hive"),
        max_rows_per_group=100,
        max_rows_per_file=100,
    )
    return folder


def partitioned_rows(grouped):
    return {text: whole(grouped, n).x[:, 0].tolist() for n, text in enumerate(grouped.texts)}


@pytest.mark.parametrize("by", [["city"], ["day"], ["day", "city"]])
def test_partitioned_folders_need_no_sorting(by, tmp_path, monkeypatch):
    table = rows_table().append_column("day", pa.array(np.arange(2000) % 2))
    folder = hive(tmp_path / "data", table, ["city", "day"])
    monkeypatch.setattr(etl, "Sorter", None)
    monkeypatch.setattr(etl, "Scatter", None)
    grouped = group(folder, by, tmp_path / "g", label="y", memory=MEMORY, block_size="2kB")
    monkeypatch.undo()
    expected = partitioned_rows(group(table, by, tmp_path / "h", label="y", memory=MEMORY, features=["row", "x"]))
    assert {text: sorted(rows) for text, rows in partitioned_rows(grouped).items()} == expected
    assert grouped.encoder.names == ("row", "x")
    assert (np.diff(grouped.block_group) >= 0).all()
    assert int(grouped.rows.sum()) == 2000
    assert grouped.kinds[0] == (pa.string() if by == ["city"] else pa.int64())
    fits = (2000 - 1024) // 12
    assert grouped.block_rows.max() == fits


@pytest.mark.usefixtures("small_runs")
def test_columns_of_paths_and_of_files_together(tmp_path):
    table = rows_table().append_column("day", pa.array(np.arange(2000) % 3))
    folder = hive(tmp_path / "data", table, ["city"])
    grouped = group(folder, ["city", "day"], tmp_path / "g", label="y", memory=MEMORY)
    expected = partitioned_rows(group(table, ["city", "day"], tmp_path / "h", label="y", memory=MEMORY))
    assert {text: sorted(rows) for text, rows in partitioned_rows(grouped).items()} == expected


def test_a_changed_partition_is_grouped_anew(tmp_path):
    table = rows_table(groups=3)
    folder = hive(tmp_path / "data", table, ["city"])
    group(folder, "city", tmp_path / "g", label="y", memory=MEMORY)
    for name in ("city=new%2Ftown", "city=empty"):
        (tmp_path / "data" / name).mkdir()
    extra = tmp_path / "data" / "city=new%2Ftown"
    pq.write_table(table.drop_columns(["city"]).slice(0, 0), tmp_path / "data" / "city=empty" / "part-0.parquet")
    pq.write_table(table.drop_columns(["city"]).slice(0, 5), extra / "part-0.parquet")
    grouped = group(folder, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert int(grouped.rows[grouped.number(("new/town",))]) == 5
    assert "empty" not in grouped.texts  # a group has rows


def test_thousands_of_partitions_do_not_stay_open(tmp_path):
    table = rows_table(10).drop_columns(["city"])
    for n in range(60):
        (tmp_path / "data" / f"city={n:03d}").mkdir(parents=True)
        pq.write_table(table, tmp_path / "data" / f"city={n:03d}" / "a.parquet")
    before = len(os.listdir("/proc/self/fd"))
    most = []
    stream = Stream([lambda event: most.append(len(os.listdir("/proc/self/fd")))])
    grouped = group(tmp_path / "data", "city", tmp_path / "g", label="y", memory=MEMORY, stream=stream)
    assert max(most) - before < 20
    assert grouped.texts[:2] == ["000", "001"]  # leading zeros: text, not numbers
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"by": "cty"}, ColumnError, r"no column to group by 'cty'; it has: .*did you mean 'city'"),
        ({"by": []}, UsageError, "by names no column"),
        ({"by": ["city", "city"]}, UsageError, "twice"),
        ({"by": "y"}, UsageError, "'y' is given as the label and to group by"),
        ({"by": "x", "weight": "x"}, UsageError, "'x' is given as the weight"),
        ({"label": "z"}, ColumnError, "no label column 'z'"),
        ({"model": "forest"}, UnknownOptionError, "logistic"),
        ({"label": "row", "exclude": ["y"]}, UsageError, "2000 classes.*--model lightgbm"),
        ({"memory": "10%"}, UsageError, "memory='10%'"),
        ({"memory": "20MB"}, BudgetError, "give at least .* or a smaller block_size"),
    ],
)
def test_what_cannot_be_done_is_refused(given, error, match, tmp_path):
    asked = {"by": "city", "label": "y", "memory": MEMORY, **given}
    with pytest.raises(error, match=match):
        group(rows_table(), asked.pop("by"), tmp_path / "g", **asked)
    assert os.listdir(tmp_path) == []


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        group(rows_table().slice(0, 0), "city", tmp_path / "g", label="y", memory=MEMORY)


def test_lists_do_not_name_groups(tmp_path):
    table = rows_table(3).append_column("tags", pa.array([[1], [2], [3]]))
    with pytest.raises(ColumnError, match="'tags' is list"):
        group(table, "tags", tmp_path / "g", label="y", memory=MEMORY, features=["x"])


def test_a_group_of_bad_numbers_is_kept_for_training_to_judge(tmp_path):
    table = rows_table(10).set_column(2, "x", pa.array([math.nan, *range(9)], pa.float32()))
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert np.isnan(whole(grouped, 0).x[0, 1])
