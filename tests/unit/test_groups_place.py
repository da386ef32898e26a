"""Placements on cases worked by hand, the paper's figures 5 and 12, and the exact program beside the heuristics."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rivals import exact_placement as exact
from penstock.errors import UsageError
from penstock.groups.place import (
    Placement,
    Shard,
    bound_algebraic,
    bound_sequential,
    bound_wrap_around,
    constrained,
    sequential,
    spread,
    wrap_around,
)


def rows_on(placed: Placement) -> list[list[tuple[int, int]]]:
    """Of each worker, the (group, rows) of its shards."""
    return [[(s.group, s.rows) for s in placed.shards if s.worker == w] for w in range(placed.workers)]


def test_figure_5_splits_the_group_of_five_thirds_in_two_and_no_other() -> None:
    """A is 5 where the optimal makespan is 3; B fits a worker alone, C and D fill up the two that share A."""
    placed = constrained([50, 30, 5, 5], 3)
    assert placed.bound == placed.makespan == 30
    assert rows_on(placed) == [[(0, 25), (2, 5)], [(0, 25), (3, 5)], [(1, 30)]]


def test_algorithm_1_goes_on_with_the_next_worker_where_one_is_full() -> None:
    placed = wrap_around([4, 5, 3], 3)
    assert placed.bound == 5
    assert rows_on(placed) == [[(0, 4), (1, 1)], [(1, 4), (2, 1)], [(2, 2)]]
    assert rows_on(wrap_around([9, 1, 1], 3)) == [[(0, 9)], [(1, 1), (2, 1)], []]


def test_bounds_say_what_each_kind_of_work_allows() -> None:
    sizes = [26, *[1] * 74]
    assert [bound_algebraic(sizes, p) for p in (4, 16, 64)] == [25, 7, 2]
    assert [bound_wrap_around(sizes, p) for p in (4, 16, 64)] == [26, 26, 26]
    assert [bound_sequential(sizes, p, 12) for p in (4, 16, 64)] == [25, 7, 3]
    assert bound_sequential(sizes, 64, 1) == 26


def test_a_group_of_82_percent_is_spread_and_the_small_ones_stay_whole() -> None:
    placed = spread([82, 6, 6, 3, 3], 4)
    assert placed.load.tolist() == [25, 25, 25, 25]
    assert [len(placed.held[group]) for group in range(5)] == [4, 1, 1, 1, 1]


def test_sgd_cuts_the_largest_group_into_no_more_shards_than_there_are_configs() -> None:
    placed = sequential([1200, *[10] * 30], 64, 12)
    assert len(placed.held[0]) == 12
    assert {placed.shards[number].rows for number in placed.held[0]} == {100}
    assert placed.makespan == placed.bound == 100
    assert placed.splits == 11


def test_what_remains_of_a_large_group_stays_whole_where_there_are_too_few_configs_for_more_shards() -> None:
    placed = sequential([9, 5, 20], 3, 2)
    assert len(placed.held[2]) == 2
    assert placed.makespan == placed.bound == 12
    assert len(spread([9, 5, 20], 3).held[2]) == 3


def test_with_one_config_no_group_is_worth_cutting_for_its_own_sake() -> None:
    assert sequential([90, 5, 5], 4, 1).splits == 0


def test_an_overhead_gives_fewer_rows_to_who_has_many_groups() -> None:
    sizes = [1000, *[10] * 100]
    plain, weighed = spread(sizes, 2), spread(sizes, 2, overhead=10)
    assert plain.load.tolist() == [1000, 1000]
    assert sorted(weighed.load.tolist()) == [752, 1248]  # 1010 + 24.75 × 20 = 75.25 × 20, nearly


@pytest.mark.parametrize("place", [wrap_around, constrained, spread, lambda s, p: sequential(s, p, 3)])
def test_edges(place: object) -> None:
    assert callable(place)
    for sizes in ([], [0, 0], [1], [0, 3, 0], [1, 1, 1]):
        for workers in (1, 2, 7):
            placed = place(sizes, workers)
            placed.check(sizes)
            assert placed.workers == workers
    for sizes, workers in (([-1], 2), ([1.5], 2), ([[1]], 2), ([1], 0)):
        with pytest.raises(UsageError):
            place(sizes, workers)


def test_a_placement_that_loses_or_doubles_rows_is_found_out() -> None:
    def placed(*shards: tuple[int, int, int, int], load: list[int]) -> Placement:
        return Placement(tuple(Shard(*shard) for shard in shards), np.array(load), 1)

    placed((0, 0, 0, 2), (0, 1, 2, 1), load=[2, 1]).check([3])
    with pytest.raises(UsageError, match="group 0 has 4 rows, its shards hold 3"):
        placed((0, 0, 0, 2), (0, 1, 2, 1), load=[2, 1]).check([4])
    with pytest.raises(UsageError, match="begins at row 1, not 2"):
        placed((0, 0, 0, 2), (0, 1, 1, 2), load=[2, 2]).check([3])
    with pytest.raises(UsageError, match="loads"):
        placed((0, 0, 0, 2), (0, 1, 2, 1), load=[1, 2]).check([3])
    with pytest.raises(UsageError, match="lie on one worker"):
        placed((0, 0, 0, 2), (0, 0, 2, 1), load=[3, 0]).check([3])
    with pytest.raises(UsageError, match="only 1 groups"):
        placed((0, 0, 0, 2), (1, 0, 0, 1), load=[3, 0]).check([2])


def test_constrained_is_little_above_the_exact_best_with_equal_shards() -> None:
    assert exact.solve([50, 30, 5, 5], 3, isolation="none", equal=True).makespan == pytest.approx(30)
    for sizes in ([9, 8, 7, 6, 5, 4, 3], [40, 11, 9, 6, 3]):
        best = exact.solve(sizes, 4, isolation="none", equal=True).makespan
        assert best - 1e-6 <= constrained(sizes, 4).makespan <= 1.25 * best


def test_figure_12_the_constrained_placement_is_only_slightly_above_equation_2() -> None:
    """Groups like the paper's cities: dozens, the largest a few times the mean."""
    rng = np.random.default_rng(5)
    cities = np.sort(rng.lognormal(6, 0.7, 44)).astype(np.int64)
    for groups in (10, 20, 30, 40):
        sizes = rng.choice(cities, groups, replace=False)
        assert 1 <= constrained(sizes, 4).makespan / bound_wrap_around(sizes, 4) < 1.1
    sizes = rng.choice(cities, 40, replace=False)
    for workers in (2, 4, 6, 8, 10):
        assert constrained(sizes, workers).makespan / bound_algebraic(sizes, workers) < 1.1
