"""Outputs: whole or not there, one writer at a time, nothing left by those that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.conversion import convert
from penstock.errors import UsageError, WriteError
from penstock.modelfile import read_model, write_model
from penstock.outputs import SUFFIX, Draft, atomic_path, only_writer, remove_stale

KILLED = """
import os, signal, sys
from penstock.outputs import Draft, only_writer
with only_writer(sys.argv[1]):
    Draft(sys.argv[1]).path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
SMALL = """
import resource, signal, sys
import numpy as np
from penstock.errors import WriteError
from penstock.modelfile import write_model
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_model(sys.argv[1], {"coef": np.ones((1, 10_000), np.float32)}, {})
except WriteError as error:
    print("refused:", error)
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)


def test_what_a_killed_process_left_is_removed_by_the_next_writer(tmp_path):
    assert run(KILLED, tmp_path / "a.arrow").returncode == -signal.SIGKILL
    left = os.listdir(tmp_path)
    assert len(left) == 2
    assert all(name.startswith(".a.arrow.") and name.endswith(SUFFIX) for name in left)
    convert(pa.table({"x": [1.0]}), tmp_path / "b.arrow")
    assert os.listdir(tmp_path) == ["b.arrow"]


def test_what_is_being_written_stays_as_do_files_of_others(tmp_path):
    others = [".a.tmp", ".b.12345678.tmp", f"visible{SUFFIX}"]
    for name in others:
        (tmp_path / name).touch()
    with only_writer(tmp_path / "c"):
        draft = Draft(tmp_path / "a")
        remove_stale(tmp_path)
        assert draft.path.exists()
        draft.path.write_text("whole")
        draft.publish()
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "a"])
    assert (tmp_path / "a").read_text() == "whole"


def test_one_writer_at_a_time(tmp_path):
    with only_writer(tmp_path / "a"):
        with pytest.raises(UsageError, match="a is being written by another process"), only_writer(tmp_path / "a"):
            pass
        with only_writer(tmp_path / "b"):
            pass
    with only_writer(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_two_conversions_to_one_file(tmp_path):
    table = pa.table({"x": np.arange(10.0)})
    reached, go = threading.Event(), threading.Event()

    def slow():
        yield table.to_batches()[0]
        reached.set()
        go.wait()

    first = threading.Thread(
        target=lambda: convert(pa.RecordBatchReader.from_batches(table.schema, slow()), tmp_path / "a.arrow")
    )
    first.start()
    reached.wait()
    try:
        with pytest.raises(UsageError, match="being written by another process"):
            convert(table, tmp_path / "a.arrow")
    finally:
        go.set()
        first.join()
    assert os.listdir(tmp_path) == ["a.arrow"]


def test_a_file_that_may_not_grow_leaves_the_old_model(tmp_path):
    path = tmp_path / "m.penstock"
    write_model(path, {"coef": np.zeros((1, 3), np.float32)}, {"kind": "old"})
    done = run(SMALL, path)
    assert "refused: cannot write" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == ["m.penstock"]
    assert read_model(path)[1] == {"kind": "old"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_leaves_the_old_model(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a disk here")
    try:
        write_model(disk / "m", {"coef": np.zeros((1, 3), np.float32)}, {"kind": "old"})
        with pytest.raises(WriteError, match=r"cannot write .*m: the disk is full"):
            write_model(disk / "m", {"coef": np.zeros((1, 100_000), np.float32)}, {"kind": "new"})
        assert os.listdir(disk) == ["m"]
        assert read_model(disk / "m")[1] == {"kind": "old"}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_long_names_and_missing_folders(tmp_path):
    name = "n" * 250
    with atomic_path(tmp_path / name) as temporary:
        temporary.write_text("x")
    assert os.listdir(tmp_path) == [name]
    with pytest.raises(WriteError, match="there is no folder"), atomic_path(tmp_path / "no" / "a"):
        pass
    assert not Path(tmp_path / "no").exists()
