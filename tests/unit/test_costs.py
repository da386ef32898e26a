"""What reads cost: measured wherever it can be, and never nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.bigmodel import costs
from penstock.bigmodel.costs import Cost, measure_cost
from penstock.errors import UsageError, WriteError


def test_a_cost_is_a_seek_and_so_much_for_each_record() -> None:
    assert Cost(seek=3.0, unit=0.5).of(10) == 8.0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match=r"seek=.* is not a cost"):
        Cost(bad, 1.0)
    with pytest.raises(UsageError, match=r"unit=.* is not a cost"):
        Cost(1.0, bad)


def test_measuring_leaves_nothing_behind(tmp_path: Path) -> None:
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0
    assert os.listdir(tmp_path) == []


def test_measuring_does_not_need_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(costs, "open_direct", lambda fd, *, nbytes: asked.append(fd))
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    cost = measure_cost(tmp_path, record_bytes=8)
    assert len(asked) == 1
    assert cost.seek > 0
    assert cost.unit > 0


def test_direct_reads_are_used_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int | None] = []
    real = costs.open_direct
    monkeypatch.setattr(costs, "open_direct", lambda fd, *, nbytes: opened.append(real(fd, nbytes=nbytes)) or opened[0])
    measure_cost(tmp_path)
    if opened[0] is None:
        pytest.skip("this file system has no direct reads")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_clock_that_stands_still_gives_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.bigmodel.costs.time.perf_counter", lambda: 1.0)
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0


def test_larger_records_cost_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "_times", lambda fd, places, buffer: [len(buffer) * 1e-9 + 1e-4 for _ in places])
    one, two = measure_cost(tmp_path, record_bytes=4), measure_cost(tmp_path, record_bytes=8)
    assert two.unit == pytest.approx(2 * one.unit)
    assert one.seek == pytest.approx(1e-4, rel=0.01)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"missing: cannot measure storage there"):
        measure_cost(tmp_path / "missing")
    with pytest.raises(UsageError, match="record_bytes=0"):
        measure_cost(tmp_path, record_bytes=0)
