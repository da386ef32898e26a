"""Storage timing, the arithmetic of predictions, and what follows from h_D."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock import storage_timer
from penstock.batch import Batch, Csr
from penstock.explanation import StrategyCost
from penstock.explanation.advice import best_block
from penstock.explanation.clustering import Clustering, row_gradients
from penstock.explanation.cost import Setting, pipeline, strategy_costs
from penstock.explanation.explanation import show_bar, show_seconds
from penstock.explanation.speed import LayoutSpeed, Speeds, WorkSeconds
from penstock.loader.plan import Plan
from penstock.shuffle import ORDERS
from penstock.storage_timer import (
    BlockSpeed,
    StorageSpeeds,
    measure_file,
    measure_storage,
    read_ranges,
    read_ranges_reference,
)

GB = 1e9


def curve(*, points: dict[int, tuple[float, float]], sequential: float = 2 * GB) -> StorageSpeeds:
    found = tuple(BlockSpeed(size, one, many) for size, (one, many) in points.items())
    return StorageSpeeds("here", found, sequential, sequential, 5 * GB, True, 0, 1.0)


NVME = curve(points={4096: (0.1 * GB, 0.5 * GB), 65536: (0.7 * GB, 1.9 * GB), 1 << 20: (1.9 * GB, 2 * GB)})
DISK = curve(points={4096: (1e6, 2e6), 1 << 20: (60e6, 70e6), 10 << 20: (140e6, 140e6)}, sequential=150e6)


def test_the_compiled_reads_equal_their_twin(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(0).bytes(100_000))
    fd = os.open(path, os.O_RDONLY)
    try:
        mine, theirs = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
        places = np.array([0, 50_000, 4096], np.int64)
        assert read_ranges(fd, places, 4096, mine) == read_ranges_reference(fd, places, 4096, theirs) == 3 * 4096
        assert (mine == theirs).all()
        beyond = np.array([99_999], np.int64)
        assert read_ranges(fd, beyond, 4096, mine) == read_ranges_reference(fd, beyond, 4096, theirs) == -1
    finally:
        os.close(fd)


def test_a_file_is_measured_within_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(8 << 20))
    found = measure_file(str(path))
    assert [p.block_bytes for p in found.points] == [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
    assert all(p.one > 0 and p.many > 0 for p in found.points)
    assert min(found.sequential, found.sequential_many, found.cached) > 0
    assert found.bytes_read < 1 << 30
    assert path.stat().st_size == 8 << 20


def test_what_cannot_be_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not in local files" in str(measure_storage(["s3://bucket/key"]))
    small = tmp_path / "small"
    small.write_bytes(b"x")
    monkeypatch.setattr(storage_timer, "_folder_like", lambda path: None)
    assert "too small" in str(measure_storage([str(small)]))


def test_a_small_file_is_measured_by_a_temporary_one_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"x")
    monkeypatch.setattr(storage_timer, "SMALLEST_FILE", 4 << 20)
    monkeypatch.setattr(storage_timer, "_folder_like", lambda path: str(tmp_path))
    found = measure_storage([str(small)])
    assert isinstance(found, StorageSpeeds)
    assert "temporary file" in found.place
    assert os.listdir(tmp_path) == ["small"]


def test_the_knee_is_the_smallest_block_within_a_tenth_of_sequential() -> None:
    assert NVME.knee(many=False) == 1 << 20
    assert NVME.knee(many=True) == 65536
    assert DISK.knee(many=False) == 10 << 20
    assert curve(points={4096: (1.0, 1.0)}).knee(many=True) is None
    assert NVME.to_dict()["near_sequential_many"] == 65536


def test_bandwidth_between_sizes_is_between_theirs() -> None:
    assert 0.7 * GB < NVME.random(256 << 10, many=False) < 1.9 * GB
    assert NVME.random(1, many=True) == pytest.approx(0.5 * GB)
    assert NVME.random(1 << 30, many=True) == pytest.approx(2 * GB)


def layout(seconds: float, *, waits: bool) -> LayoutSpeed:
    work = WorkSeconds(seconds, seconds)
    return LayoutSpeed(work, work, 0.0, 116.0, 65536.0, 16 if waits else 2, waits=waits)


def speeds(*, stored: float = 500e-9, waits: bool = False) -> Speeds:
    packed = layout(50e-9, waits=True)
    return Speeds(layout(stored, waits=waits), packed, WorkSeconds(30e-9, 30e-9), stored, 25e-9, 100e-9, 100e-9, 1e-6)


def setting(
    curve: StorageSpeeds | None, *, resident: bool = False, units: int = 0, available: int = 1 << 40
) -> Setting:
    plan = Plan(10**8, 10**9, 120.0, 2, 400_000, resident, 32)
    return Setting(8_000_000, 16_000, 120.0, units, dict.fromkeys(ORDERS, plan), curve, available)


def by_name(found: tuple[StrategyCost, ...]) -> dict[str, StrategyCost]:
    return {p.strategy: p for p in found}


def test_the_blocks_to_convert_to_are_small_on_fast_storage_and_large_on_disks() -> None:
    assert best_block(NVME, layout=layout(1e-9, waits=True), speeds=speeds()) == 65536
    assert best_block(DISK, layout=layout(1e-9, waits=True), speeds=speeds()) == 10 << 20
    # Where learning is slower than the disk, the disk need not be at its best.
    slow = Speeds(layout(1e-6, waits=True), None, WorkSeconds(1, 1), 1e-6, 1e-4, 0.0, 0.0, None)
    assert best_block(DISK, layout=slow.stored, speeds=slow) == 1 << 20


def test_an_epoch_is_the_longer_of_filling_and_learning_and_both_ends() -> None:
    fill = WorkSeconds(1.0, 1.0)
    assert pipeline(fill, 4.0, read=0.0, windows=1, cores=4) == 5.0
    assert pipeline(fill, 4.0, read=0.0, windows=1000, cores=4) == pytest.approx(4.0, rel=0.01)
    assert pipeline(fill, 4.0, read=9.0, windows=1000, cores=4) == pytest.approx(10.0, rel=0.01)
    assert pipeline(WorkSeconds(3.0, 6.0), 4.0, read=0.0, windows=1000, cores=2) == pytest.approx(5.0, rel=0.01)


def test_predictions_order_the_strategies_as_their_work_does() -> None:
    found = by_name(strategy_costs(setting(NVME), speeds()))
    assert set(found) == set(ORDERS)
    assert found["once"].prepare_seconds > found["once"].seconds
    assert found["epoch"].seconds > found["once"].seconds
    assert found["once"].seconds < found["corgipile"].seconds  # its copy needs no decoding
    assert found["corgipile"].first_seconds > found["corgipile"].seconds
    assert "4 KB" in found["global"].note
    assert "after converting" in found["global"].note


def test_a_global_shuffle_passes_over_narrow_rows_once_more_than_they_are_spans() -> None:
    def reading(held: int, *, rows: int = 8_000_000) -> float:
        """Return what an epoch spends on storage, in passes over the data."""
        plan = Plan(10**8, 10**9, 120.0, 16, held, False, 32)
        given = replace(setting(DISK, available=1), rows=rows, plans=dict.fromkeys(ORDERS, plan))
        free = replace(given, curve=replace(DISK, sequential=1e18, sequential_many=1e18))
        seconds = by_name(strategy_costs(given, speeds()))["global"].first_seconds
        waited = seconds - by_name(strategy_costs(free, speeds()))["global"].first_seconds
        return waited / (116.0 * rows / DISK.sequential_many)

    assert reading(400_000) == pytest.approx(21, rel=0.1)
    assert reading(4_000_000) == pytest.approx(3, rel=0.1)
    # Held in memory, the rows are read once like any other order's.
    resident = by_name(strategy_costs(setting(None, resident=True), speeds()))
    assert resident["global"].seconds == pytest.approx(resident["corgipile"].seconds)


def test_a_global_shuffle_of_wide_rows_reads_only_the_blocks_they_lie_in() -> None:
    wide = replace(layout(1e-6, waits=True), stored_bytes=65536.0, block_bytes=65536.0)
    given = replace(setting(NVME, available=1), row_bytes=65536.0)
    found = by_name(strategy_costs(given, replace(speeds(), stored=wide, packed=None)))["global"]
    assert found.note == ""
    # A twentieth of the rows are picked up in a pass: a block each, all in all about one pass over the data.
    assert (
        found.first_seconds
        < 1.5 * by_name(strategy_costs(given, replace(speeds(), stored=wide)))["corgipile"].first_seconds
    )


def test_data_beyond_the_page_cache_are_read_from_storage_in_every_epoch() -> None:
    small, large = (by_name(strategy_costs(setting(DISK, available=a), speeds())) for a in (1 << 40, 1 << 20))
    assert small["corgipile"].seconds < 0.5 * small["corgipile"].first_seconds
    assert large["corgipile"].seconds == pytest.approx(large["corgipile"].first_seconds)
    assert large["block-only"].seconds > 2 * large["none"].seconds  # random 64 KB reads of a disk


def test_resident_rows_are_decoded_once_and_row_groups_once_an_epoch() -> None:
    resident = by_name(strategy_costs(setting(None, resident=True), speeds()))
    assert resident["none"].first_seconds > 2 * resident["none"].seconds
    groups = by_name(strategy_costs(setting(None, units=100), speeds()))
    assert groups["block-only"].seconds <= groups["corgipile"].seconds


def clustering(*, h: float, units: int = 0) -> Clustering:
    return Clustering(h, 0.1, h, 1000.0, 100, 1000, units, 6400, "label", "…")


def test_a_window_of_more_blocks_is_better_balanced() -> None:
    clustered = clustering(h=1000.0)
    small, large = (clustered.balance(rows, opened=32) for rows in (10_000, 100_000))
    assert small > 20 > 4 > large > 1
    assert clustered.balance(1_000_000, opened=32) == pytest.approx(1.0)
    assert clustering(h=1.0).balance(10_000, opened=32) == pytest.approx(1.0, abs=0.05)
    assert clustered.balance(clustered.enough_rows(1.5), opened=32) == pytest.approx(1.5, rel=0.05)
    assert clustered.factor(100_000) == pytest.approx(900, rel=0.01)


def test_a_window_of_few_row_groups_is_badly_balanced_whatever_its_size() -> None:
    assert clustering(h=1000.0, units=8).balance(100_000, opened=32) > clustering(h=1000.0).balance(100_000, opened=32)
    assert clustering(h=1000.0, units=100).balance(100_000, opened=2) > 100


def test_gradients_of_wide_rows_are_projected_and_keep_their_size() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2000)).astype(np.float32)
    y = rng.choice([-1.0, 1.0], 400).astype(np.float32)
    wide, label = row_gradients([Batch(x, y)], "svm", outputs=1)
    assert wide.shape == (400, 65)
    assert label.shape == (400, 1)
    assert (wide**2).sum(axis=1).mean() == pytest.approx(2001, rel=0.1)
    indptr = np.arange(0, 401 * 10, 10).astype(np.uint64)
    sparse = Csr(indptr, rng.integers(0, 10**6, 4000).astype(np.uint32), np.ones(4000, np.float32), 10**6)
    narrow, _ = row_gradients([Batch(sparse, y)], "logistic", outputs=1)
    assert narrow.shape == (400, 65)
    assert (narrow**2).sum(axis=1).mean() == pytest.approx(11 / 4, rel=0.2)


def test_gradients_of_many_classes_and_of_numbers() -> None:
    x = np.ones((30, 1), np.float32)
    many, slope = row_gradients([Batch(x, (np.arange(30) % 30).astype(np.float32))], "softmax", outputs=30)
    assert slope.shape == (30, 8)
    assert many.shape == (30, 16)
    number, _ = row_gradients([Batch(x, np.arange(30, dtype=np.float32))], "linear", outputs=1)
    assert number.sum(axis=0) == pytest.approx([0, 0])


def test_bars_and_seconds_are_short() -> None:
    assert show_bar(0.0).strip() == ""
    assert show_bar(1.0) == "█" * 16
    assert show_bar(0.53125).rstrip() == "████████▌"
    assert [show_seconds(s) for s in (0.0123, 0.5, 3.21, 45.6, 1200.0)] == [
        "12 ms",
        "0.50 s",
        "3.2 s",
        "46 s",
        "20 min",
    ]
