"""What reads cost: measured wherever it can be, and never nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.bigmodel.partition import measure_cost
from penstock.errors import WriteError
from penstock.storage_timer import ReadTimer


def test_measuring_leaves_nothing_behind(tmp_path: Path) -> None:
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0
    assert os.listdir(tmp_path) == []


def test_measuring_needs_no_advice_to_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0


def test_a_clock_that_stands_still_gives_no_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage_timer.time.perf_counter", lambda: 1.0)
    cost = measure_cost(tmp_path)
    assert cost.seek > 0
    assert cost.unit > 0


def test_a_seek_and_a_record_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadTimer, "time", lambda self, places, size, **how: size / (size * 1e-9 + 1e-4))
    assert measure_cost(tmp_path).seek == pytest.approx(1e-4, rel=0.01)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"missing: cannot measure storage there"):
        measure_cost(tmp_path / "missing")
