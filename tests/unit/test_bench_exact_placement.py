"""The exact program that placements are held against: its bounds, its invariants, and what it refuses."""

from __future__ import annotations

import pytest

from benchmarks.rivals import exact_placement as exact
from penstock.errors import UnknownOptionError, UsageError
from penstock.groups.place import wrap_around


@pytest.mark.parametrize("sizes", [[5, 3, 1], [6, 2, 1], [4, 4]])
def test_the_exact_program_agrees_with_the_bounds_where_they_are_reached(sizes: list[int]) -> None:
    n, largest = sum(sizes), max(sizes)
    for isolation, best in (("none", n), ("config", max(n, largest)), ("group", 2 * max(n / 2, largest))):
        found = exact.solve(sizes, 2, configs=2, isolation=isolation)
        assert found.proven
        assert found.makespan == pytest.approx(best, abs=1e-4)
        assert found.rows.sum(axis=1) == pytest.approx(sizes, abs=1e-5)
    placed = wrap_around(sizes, 2)
    assert exact.solve(sizes, 2, isolation="group").makespan <= placed.makespan


def test_the_exact_schedule_keeps_the_invariants() -> None:
    found = exact.solve([6, 2, 2], 3, configs=2)
    ends = found.starts + found.rows[:, None, :]
    jobs = [(i, j, k) for i in range(3) for j in range(2) for k in range(3) if found.rows[i, k] > 1e-6]
    for a in jobs:
        assert ends[a] <= found.makespan + 1e-4
        for b in jobs:
            if a < b and (a[2] == b[2] or a[:2] == b[:2]):
                assert ends[a] <= found.starts[b] + 1e-4 or ends[b] <= found.starts[a] + 1e-4


def test_the_exact_program_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UsageError, match="too many to solve exactly"):
        exact.solve([10] * 12, 6, configs=6)
    with pytest.raises(UnknownOptionError, match="choose one of: config, group, none"):
        exact.solve([1], 1, isolation="groups")
