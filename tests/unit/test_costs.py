"""What reads cost: measured wherever it can be, and never nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.bigmodel.partition import Cost, measure_cost
from penstock.errors import UsageError, WriteError
from penstock.storage_timer import ReadTimer


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


def test_measuring_needs_no_advice_to_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    cost = measure_cost(tmp_path, record_bytes=8)
    assert cost.seek > 0
    assert cost.unit > 0


def test_a_clock_that_stands_still_gives_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage_timer.time.perf_counter", lambda: 1.0)
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0


def test_larger_records_cost_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadTimer, "time", lambda self, places, size, **how: size / (size * 1e-9 + 1e-4))
    one, two = measure_cost(tmp_path, record_bytes=4), measure_cost(tmp_path, record_bytes=8)
    assert two.unit == pytest.approx(2 * one.unit)
    assert one.seek == pytest.approx(1e-4, rel=0.01)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"missing: cannot measure storage there"):
        measure_cost(tmp_path / "missing")
    with pytest.raises(UsageError, match="record_bytes=0"):
        measure_cost(tmp_path, record_bytes=0)
