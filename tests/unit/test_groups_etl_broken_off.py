"""Sorting by group that is broken off is taken up again, and leaves nothing half done."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.blocks.memory import TableSource
from penstock.errors import (
    LabelError,
    UsageError,
    WriteError,
)
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups import etl, external_sort, sorted_runs
from penstock.groups.etl import group
from tests.grouped_rows import MEMORY, Interrupting, assert_grouped, rows_table, store


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
    monkeypatch.setattr(external_sort, "FAN", 4)
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


@pytest.mark.parametrize(
    ("way", "names"),
    [("small_runs", ("run-*.bin", "run-*.json")), ("small_chunks", ("numbers.bin", "counted.json", "placed", "out/*"))],
)
def test_a_changed_bit_in_what_is_taken_up_again_changes_no_rows(way, names, tmp_path, request):
    request.getfixturevalue(way)
    table, folder = rows_table(), tmp_path / "here"
    folder.mkdir()
    path = store("arrow", table, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        group(path, "city", folder / "g", label="y", memory=MEMORY, stream=Stream([Interrupting("group", 6)]))
    (scratch,) = folder.iterdir()
    kept, chance = tmp_path / "kept", np.random.default_rng(0)
    scratch.rename(kept)
    for name in names:
        files = sorted(kept.glob(name))
        assert files
        for _ in range(12):
            shutil.rmtree(folder)
            shutil.copytree(kept, scratch)
            damaged = scratch / files[chance.integers(len(files))].relative_to(kept)
            content = bytearray(damaged.read_bytes())
            content[chance.integers(len(content))] ^= 1 << int(chance.integers(8))
            damaged.write_bytes(content)
            assert_grouped(group(path, "city", folder / "g", label="y", memory=MEMORY), table)


@pytest.mark.parametrize(("scatter", "tasks"), [(0, ["fit", "group", "write"]), (64_000_000, ["fit", "scan", "group"])])
def test_an_interruption_before_anything_is_done_leaves_nothing(scatter, tasks, tmp_path, monkeypatch):
    settle = etl.SortingPlan.of
    monkeypatch.setattr(etl.SortingPlan, "of", lambda *args: dataclasses.replace(settle(*args), scatter=scatter))
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
settle = etl.SortingPlan.of
etl.SortingPlan.of = lambda *args: dataclasses.replace(settle(*args), chunk=8000, together=1000, scatter=int(sys.argv[3]))
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
        group(source, "city", tmp_path / "g", label="y", memory=MEMORY, model="linear", missing="refuse")
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
    with pytest.raises(WriteError, match="cannot make the directory"):
        group(rows_table(), "city", tmp_path / "file" / "g", label="y", memory=MEMORY)


def test_a_failure_to_write_a_run_is_raised_and_leaves_nothing(tmp_path, monkeypatch, small_runs):
    def full(fd, view, at):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorted_runs.os, "pwrite", full)
    with pytest.raises(WriteError, match="the disk is full"):
        group(TableSource.of(rows_table(), block_size=1000), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("way", "tasks"),
    [
        ("small_runs", ["fit columns", "group table", "write groups"]),
        ("small_chunks", ["fit columns", "scan", "group table"]),
    ],
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
