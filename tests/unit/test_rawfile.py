"""Raw reads and writes: whole even where the system does less at a time, short only at the end of a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import CorruptFileError, UsageError, WriteError
from penstock.outputs import byte_view, is_disk_full, read_array, read_at, read_into, write_at, writing


@pytest.fixture
def fd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Give a file that a system call reads or writes only a few bytes of."""
    pwrite, pread, preadv = os.pwrite, os.pread, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:5], at))
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, at: pread(fd, min(nbytes, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7]], at))
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_all_is_written_and_read_in_however_many_calls(fd: int) -> None:
    array = np.arange(24, dtype=np.int64).reshape(4, 6)
    write_at(fd, byte_view(array), 10)
    assert read_at(fd, array.nbytes, 10) == array.tobytes()
    assert np.array_equal(read_array(fd, np.empty((4, 6), np.int64), 10, name="file"), array)
    columns = array[:, ::2]
    write_at(fd, byte_view(columns), 1000)
    assert read_at(fd, columns.nbytes, 1000) == columns.tobytes()


def test_reads_are_short_at_the_end_of_the_file_alone(fd: int) -> None:
    write_at(fd, memoryview(b"0123456789"), 0)
    assert read_at(fd, 100, 4) == b"456789"
    assert read_at(fd, 1, 50) == b""
    view = memoryview(bytearray(20))
    assert read_into(fd, view, 2) == 8
    assert bytes(view) == b"23456789" + bytes(12)
    with pytest.raises(CorruptFileError, match=r"^run ends at byte 10, before what was written there"):
        read_array(fd, np.empty(4, np.int64), 0, name="run")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "runs cannot be written: the disk is full; use another disk",
        ),
        (OSError(errno.EDQUOT, "Quota"), "runs cannot be written: the disk is full; use another disk"),
        (OSError("[Errno 28] No space left on device, in a library"), "the disk is full"),
        (OSError(errno.EIO, "Input/output error"), "runs cannot be written: Input/output error; choose another folder"),
    ],
)
def test_a_failed_write_is_told(error: OSError, told: str) -> None:
    def fail() -> Any:
        raise error

    with pytest.raises(WriteError, match=told) as found, writing("runs", room="use another disk"):
        fail()
    assert found.value.__cause__ is error
    assert is_disk_full(error) == ("the disk is full" in told)


def test_other_errors_pass() -> None:
    with pytest.raises(UsageError, match="ours"), writing("runs"):
        raise UsageError("ours")
    with pytest.raises(KeyError), writing("runs"):
        raise KeyError("theirs")
