"""The simulator: the issue's bars, the shapes of the paper's figures, and sums that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UnknownOptionError, UsageError
from penstock.groups.cost import APPROACHES, Pilot, Work, bound, simulate

PILOT = Pilot(row_config=3e-8, update=1e-5, byte=5e-10, message=2e-4)


def work(pattern: str, pilot: Pilot = PILOT, configs: int = 12) -> Work:
    return Work(pattern, configs, 10, row_bytes=160, model_bytes=328, pilot=pilot, batch=128)


def skewed(share: float, *, rows: int = 4_000_000, groups: int = 280) -> np.ndarray:
    """Groups of very unlike sizes, the largest of which has this share of the rows."""
    weight = np.random.default_rng(0).pareto(1.1, groups - 1) + 0.01
    for _ in range(50):  # none but the first is to be so large
        weight = np.minimum(weight / weight.sum(), max(0.7 * share, 2 / groups))
    small = np.maximum(1, (weight / weight.sum() * (1 - share) * rows).astype(np.int64))
    return np.array([int(small.sum() * share / (1 - share)), *small])


@pytest.mark.parametrize("share", [0.26, 0.82])
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_algebraic_work_is_within_a_twentieth_of_the_lower_bound(share: float, workers: int) -> None:
    run = simulate(skewed(share), workers, work=work("algebraic"))
    assert run.bound <= run.makespan <= 1.05 * run.bound


@pytest.mark.parametrize("share", [0.26, 0.82])
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_sgd_is_within_a_tenth_of_its_lower_bound(share: float, workers: int) -> None:
    run = simulate(skewed(share), workers, work=work("sequential"))
    assert run.bound <= run.makespan <= 1.1 * run.bound


def test_without_overheads_both_reach_their_bounds() -> None:
    free = Pilot(row_config=1e-6, update=0, byte=0, message=0)
    sizes = skewed(0.26, rows=100_000)
    for pattern in ("algebraic", "sequential"):
        for workers in (4, 16, 64):
            run = simulate(sizes, workers, work=work(pattern, free))
            assert run.makespan <= 1.01 * run.bound
    # On 64 workers the largest group's single config is what takes longest: 0.26 / 12 of all, where 1 / 64 is even.
    ratio = bound(sizes, 64, work=work("sequential", free)) / bound(sizes, 64, work=work("algebraic", free))
    assert ratio == pytest.approx(1.387, abs=0.001)


def test_figure_10_more_workers_help_all_but_groups_as_tasks_and_data_parallelism() -> None:
    """GTP is bound by its largest group, DP by its messages; MTP gains, and ours gains at least as much as any."""
    sizes = skewed(0.26, groups=18)
    spans = {
        approach: [simulate(sizes, p, work=work("algebraic"), approach=approach).makespan for p in (2, 4, 8, 16)]
        for approach in APPROACHES
    }
    assert spans["group-task"][1] / spans["group-task"][3] < 1.05
    assert spans["model-task"][0] / spans["model-task"][3] > 5
    assert spans["grouped"][0] / spans["grouped"][3] > 7.5
    assert spans["data-parallel"][0] / spans["data-parallel"][3] < 4
    for approach in APPROACHES:
        assert all(ours <= 1.01 * theirs for ours, theirs in zip(spans["grouped"], spans[approach]))


def test_figure_3_only_data_parallelism_grows_with_the_number_of_groups() -> None:
    def span(approach: str, groups: int) -> float:
        sizes = [1_000_000, *[3_000_000 // (groups - 1)] * (groups - 1)]
        return simulate(sizes, 4, work=work("algebraic"), approach=approach).makespan

    for approach in ("grouped", "group-task", "model-task"):
        assert span(approach, 280) < 1.2 * span(approach, 18)
    assert span("data-parallel", 280) > 5 * span("data-parallel", 18)
    assert span("data-parallel", 18) < span("data-parallel", 280)


def test_figure_3_groups_as_tasks_suffer_from_skew_and_ours_does_not() -> None:
    def span(approach: str, share: float) -> float:
        return simulate(skewed(share, groups=18), 8, work=work("algebraic"), approach=approach).makespan

    assert span("group-task", 0.82) > 2.5 * span("group-task", 0.3)
    assert span("grouped", 0.82) == pytest.approx(span("grouped", 0.3), rel=0.03)
    assert span("data-parallel", 0.82) == pytest.approx(span("data-parallel", 0.3), rel=0.03)


def test_figure_3_time_grows_with_the_data() -> None:
    for approach in APPROACHES:
        spans = [
            simulate(skewed(0.26, rows=n, groups=18), 4, work=work("algebraic"), approach=approach).makespan
            for n in (1_000_000, 2_000_000, 4_000_000)
        ]
        assert spans == sorted(spans)


def test_switching_lies_between_its_halves_and_messages_ruin_data_parallel_sgd() -> None:
    sizes = skewed(0.26)
    spans = {a: simulate(sizes, 4, work=work("algebraic"), approach=a).makespan for a in APPROACHES}
    assert spans["group-task"] < spans["switching"] < spans["data-parallel"]
    sgd = {a: simulate(sizes, 4, work=work("sequential"), approach=a).makespan for a in APPROACHES}
    assert sgd["data-parallel"] > 4 * sgd["grouped"]


def test_constrained_placement_is_what_sampling_has_and_is_close_to_even() -> None:
    sizes = skewed(0.26, rows=40_000_000)
    runs = {p: simulate(sizes, p, work=work("sampling")) for p in (4, 16)}
    assert runs[4].makespan <= 1.1 * runs[4].bound
    assert runs[16].makespan <= 1.3 * runs[16].bound


def test_no_data_are_copied_but_by_models_as_tasks() -> None:
    sizes = np.array([100_000, 50_000, 50_000])
    data = 160.0 * sizes.sum()
    moved = {a: simulate(sizes, 4, work=work("algebraic"), approach=a).moved for a in APPROACHES}
    assert moved["group-task"] == data
    assert moved["model-task"] > 2 * data
    assert data < moved["grouped"] < 1.1 * data
    assert data < moved["data-parallel"]


def test_one_worker_does_all_the_work_one_after_another() -> None:
    run = simulate([300, 200], 1, work=Work("algebraic", 2, 3, 10, 8, Pilot(0.5, 2, 0.25, 9)))
    assert run.makespan == pytest.approx(500 * 2 * 3 * 0.5 + 2 * 2 * 3 * 2 + 500 * 10 * 0.25)
    assert run.busy.tolist() == [run.makespan]
    assert run.utilization == 1
    assert run.moved == 5000


def test_a_split_group_by_hand() -> None:
    """Two workers, one group, one config: two passes of half the rows, a sum added after each, a model sent back."""
    run = simulate([10], 2, work=Work("algebraic", 1, 2, 1, 8, Pilot(1, 0.4, 0.5, 4)))
    assert run.makespan == pytest.approx(5 * 0.5 + 2 * (5 + 2 * 4 + 0.4))
    assert run.busy.tolist() == pytest.approx([12.5, 12.5])
    assert run.moved == 10 + 2 * 2 * 8
    # SGD: two configs change places after each half epoch, and stay where the second epoch begins.
    run = simulate([10], 2, work=Work("sequential", 2, 2, 1, 8, Pilot(1, 0, 0, 4)))
    assert run.makespan == pytest.approx(4 * 5 + 3 * 4)


def test_groups_as_tasks_by_hand() -> None:
    run = simulate([5, 4, 3], 2, work=Work("algebraic", 1, 1, 1, 8, Pilot(1, 0, 0, 0)), approach="group-task")
    assert run.makespan == pytest.approx(7)
    assert run.busy.tolist() == pytest.approx([5, 7])


def test_a_thousand_workers_and_a_hundred_thousand_groups() -> None:
    sizes = (np.random.default_rng(1).pareto(1.1, 100_000) * 1000 + 1).astype(np.int64)
    pilot = Pilot(row_config=3e-8, update=1e-6, byte=5e-10, message=2e-4)
    for pattern in ("algebraic", "sequential"):
        run = simulate(sizes, 1000, work=work(pattern, pilot))
        assert run.makespan <= 1.1 * run.bound
        assert run.turns >= 100_000


@pytest.mark.parametrize("approach", APPROACHES)
@pytest.mark.parametrize("pattern", ["algebraic", "sequential", "sampling"])
def test_edges(approach: str, pattern: str) -> None:
    for sizes in ([], [0], [1], [0, 1, 1], [7, 7, 7, 7]):
        for workers in (1, 3, 9):
            run = simulate(sizes, workers, work=work(pattern, configs=2), approach=approach)
            assert run.makespan >= run.bound * (1 - 1e-6) >= 0
            assert (run.busy <= run.makespan + 1e-12).all()


def test_unknown_names_and_sizes_are_refused() -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'group-task'"):
        simulate([1], 1, work=work("algebraic"), approach="group-tasks")
    with pytest.raises(UsageError, match="counts of rows"):
        simulate([-1], 1, work=work("algebraic"), approach="group-task")
    with pytest.raises(UsageError, match="workers=0"):
        simulate([1], 0, work=work("algebraic"), approach="data-parallel")
