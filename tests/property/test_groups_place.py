"""Placements lose no row and double none, whatever the sizes; they stay within their bounds and cut as little as said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.groups.place import (
    bound_algebraic,
    bound_sequential,
    bound_wrap_around,
    constrained,
    sequential,
    spread,
    wrap_around,
)

SIZES = st.lists(st.one_of(st.integers(0, 6), st.integers(0, 60), st.integers(0, 5000)), max_size=25)
WORKERS = st.integers(1, 20)
CONFIGS = st.integers(1, 14)
OVERHEAD = st.sampled_from([0, 0, 1, 7, 300])


@settings(max_examples=400)
@given(sizes=SIZES, workers=WORKERS)
def test_wrap_around_is_complete_within_its_bound_and_cuts_fewer_times_than_there_are_workers(
    sizes: list[int], workers: int
) -> None:
    placed = wrap_around(sizes, workers)
    placed.check(sizes)
    assert placed.bound == bound_wrap_around(sizes, workers)
    assert placed.makespan <= placed.bound
    assert placed.splits <= workers - 1
    assert max((len(held) for held in placed.held.values()), default=0) <= 2  # none is larger than a worker's fill


@settings(max_examples=400)
@given(sizes=SIZES, workers=WORKERS)
# A large group, and small ones that do not pack: what does not fit whole is cut, and all workers are full.
@example(sizes=[7, 7, 7, 7, 7], workers=4)
@example(sizes=[100, 1], workers=20)
def test_spread_fills_workers_evenly_and_cuts_fewer_times_than_there_are_workers(
    sizes: list[int], workers: int
) -> None:
    placed = spread(sizes, workers)
    placed.check(sizes)
    assert placed.bound == bound_algebraic(sizes, workers) == placed.makespan
    assert placed.makespan - placed.load.min() <= 1
    assert placed.splits <= workers - 1


@settings(max_examples=200)
@given(sizes=SIZES, workers=WORKERS, overhead=OVERHEAD)
def test_with_an_overhead_spread_is_complete(sizes: list[int], workers: int, overhead: int) -> None:
    placed = spread(sizes, workers, overhead=overhead)
    placed.check(sizes)
    assert placed.splits <= workers - 1


@settings(max_examples=200)
@given(sizes=st.lists(st.integers(300, 5000), min_size=1, max_size=25), workers=WORKERS, overhead=OVERHEAD)
def test_with_an_overhead_rows_and_groups_together_are_even(sizes: list[int], workers: int, overhead: int) -> None:
    placed = spread(sizes, workers, overhead=overhead)
    cost = np.zeros(workers)
    for shard in placed.shards:
        cost[shard.worker] += shard.rows * (1 + overhead / sizes[shard.group])
    # A border is rounded by less than a row, and a row of the smallest of these groups stands for at most two.
    assert cost.max() <= bound_algebraic([size + overhead for size in sizes], workers) + 2 * (placed.splits + 1)


@settings(max_examples=400)
@given(sizes=SIZES, workers=WORKERS, configs=CONFIGS, overhead=OVERHEAD)
@example(sizes=[5, 5, 5], workers=5, configs=2, overhead=0)
@example(sizes=[260, *[10] * 74], workers=64, configs=12, overhead=0)
def test_sequential_is_complete_and_within_its_bound(
    sizes: list[int], workers: int, configs: int, overhead: int
) -> None:
    placed = sequential(sizes, workers, configs, overhead=overhead)
    placed.check(sizes)
    assert placed.bound == bound_sequential(sizes, workers, configs)
    assert placed.splits <= workers - 1
    if not overhead:
        assert placed.makespan <= placed.bound


@settings(max_examples=300)
@given(sizes=SIZES, workers=WORKERS, overhead=OVERHEAD)
def test_constrained_is_complete_in_equal_shards_as_many_as_the_ratio_is_nearest_to(
    sizes: list[int], workers: int, overhead: int
) -> None:
    placed = constrained(sizes, workers, overhead=overhead)
    placed.check(sizes)
    total = sum(size + overhead for size in sizes if size)
    for group, held in placed.held.items():
        rows = [placed.shards[number].rows for number in held]
        assert max(rows) - min(rows) <= 1
        ratio = (sizes[group] + overhead) * workers / total
        assert len(held) == min(sizes[group], max(1, len(held))) <= workers
        assert len(held) == sizes[group] or abs(max(1, ratio) - len(held)) <= 0.5 + 1e-9


@pytest.mark.parametrize("share", [0.26, 0.82])
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_with_many_small_groups_none_that_fits_on_a_worker_is_cut(share: float, workers: int) -> None:
    rng = np.random.default_rng(3)
    small = rng.integers(1, 2000, 279)
    sizes = np.array([int(small.sum() * share / (1 - share)), *small])
    for placed in (spread(sizes, workers), sequential(sizes, workers, 12)):
        cut = [group for group, held in placed.held.items() if len(held) > 1]
        assert all(sizes[group] > placed.load.min() for group in cut)
