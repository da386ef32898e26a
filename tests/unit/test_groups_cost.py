"""The analytical costs: figure 3's shapes with the paper's own parameters, and rates found from timed tasks."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UnknownOptionError, UsageError
from penstock.groups.cost import APPROACHES, PAPER_WORK, Pilot, Timed, Work, fit, paper_weights, price

THEIRS = ("grouped", "group-task", "model-task", "data-parallel")


def paper(approach: str, *, rows: float = 1.4e7, groups: int = 18, share: float = 0.25, workers: int = 4) -> float:
    sizes = [rows * share, *[rows * (1 - share) / (groups - 1)] * (groups - 1)]
    weights = paper_weights(approach, groups=groups, workers=workers)
    return price(approach, sizes, workers=workers, work=PAPER_WORK, weights=weights).seconds


def test_figure_3_ours_is_the_cheapest_on_every_axis_but_for_very_little_data() -> None:
    settings: list[dict[str, float]] = [
        *({"workers": p} for p in (2, 4, 8, 16, 32)),
        *({"groups": g} for g in (5, 18, 50, 280)),
        *({"share": s} for s in (0.1, 0.25, 0.5, 0.8)),
        *({"rows": n} for n in (1e7, 1e8)),
    ]
    for setting in settings:
        costs = {approach: paper(approach, **setting) for approach in THEIRS}
        assert min(costs, key=lambda name: costs[name]) == "grouped", setting
    # With a fourteenth of the paper's rows, the models that ours sends weigh more than the copies of the data.
    assert paper("model-task", rows=1e6) < paper("grouped", rows=1e6)


def test_figure_3_neither_tasks_nor_data_parallelism_win_everywhere() -> None:
    assert paper("group-task", rows=1e6) < paper("data-parallel", rows=1e6)
    assert paper("group-task", groups=280) < paper("data-parallel", groups=280)
    assert paper("data-parallel", workers=16) < paper("group-task", workers=16)
    assert paper("data-parallel", share=0.8) < paper("group-task", share=0.8)


def test_figure_3_groups_as_tasks_stop_gaining_from_workers_and_suffer_from_skew() -> None:
    assert paper("group-task", workers=8) / paper("group-task", workers=32) < 1.2
    assert paper("grouped", workers=8) / paper("grouped", workers=32) > 2
    assert paper("group-task", share=0.8) > 2 * paper("group-task", share=0.25)
    assert paper("grouped", share=0.8) == pytest.approx(paper("grouped", share=0.25))
    assert paper("data-parallel", groups=280) > 8 * paper("data-parallel", groups=18)
    assert paper("grouped", groups=280) < 1.01 * paper("grouped", groups=18)


def test_costs_by_hand() -> None:
    work = Work("algebraic", 3, 2, row_bytes=10, model_bytes=100, pilot=Pilot(0.5, 2, 0.1, 7, sent=0.01))
    sizes = [6, 2, 2]
    ours = price("grouped", sizes, workers=2, work=work)
    assert ours.compute == pytest.approx(3 * 2 * (10 * 0.5 + 3 * 2))
    assert ours.network == pytest.approx(10 * 10 * 0.1 + 3 * 2 * 2 * 100 * 0.01)
    assert ours.idle == pytest.approx(2 * 7)
    assert ours.moved == pytest.approx(10 * 10 + 3 * 2 * 2 * 100)
    assert ours.seconds == pytest.approx((ours.compute + ours.network) / 2 + ours.idle)
    groups = price("group-task", sizes, workers=2, work=work)
    assert groups.idle == pytest.approx(6 * 10 * 0.1 + 3 * 2 * (6 * 0.5 + 2))
    models = price("model-task", sizes, workers=2, work=work)
    assert models.moved == 2 * 10 * 10
    assert models.reading == pytest.approx(1 * 10 * 10 * 0.1)
    assert models.idle == pytest.approx(6 * 10 * 0.1 + 2 * (6 * 0.5 + 2))
    data = price("data-parallel", sizes, workers=2, work=work)
    assert data.idle == pytest.approx(7 * 3 * 2 * 3)


def test_sgd_sends_with_every_batch_where_data_are_parallel() -> None:
    pilot = Pilot(1e-6, 1e-6, 0, 1e-3)
    runs = {p: Work(p, 4, 2, 1, 1, pilot, batch=10) for p in ("sequential", "algebraic")}
    sizes = [1000, 1000]
    idle = {p: price("data-parallel", sizes, workers=4, work=w).idle for p, w in runs.items()}
    assert idle["sequential"] == pytest.approx(100 * idle["algebraic"])
    assert price("grouped", sizes, workers=4, work=runs["sequential"]).idle == pytest.approx(2e-3)


def test_switching_is_data_parallel_above_the_median_and_tasks_below() -> None:
    work = Work("algebraic", 3, 2, 10, 100, Pilot(0.5, 2, 0.1, 7))
    both = price("switching", [9, 8, 2, 1], workers=2, work=work)
    large = price("data-parallel", [9, 8], workers=2, work=work)
    small = price("group-task", [2, 1], workers=2, work=work)
    assert both.seconds == pytest.approx(large.seconds + small.seconds)
    assert both.moved == pytest.approx(large.moved + small.moved)


def test_configs_trained_alone_cost_the_baselines_more() -> None:
    pilots = [Pilot(1e-6, 0, 0, 0), Pilot(1e-6, 0, 0, 0, alone=3e-6)]
    works = [Work("algebraic", 12, 10, 1, 1, pilot) for pilot in pilots]
    ours = [price("grouped", [100] * 8, workers=2, work=w).seconds for w in works]
    theirs = [price("group-task", [100] * 8, workers=2, work=w).seconds for w in works]
    assert ours[0] == ours[1]
    assert theirs[1] == pytest.approx(3 * theirs[0])


def test_a_pilot_finds_the_rates_behind_noisy_seconds() -> None:
    rng = np.random.default_rng(0)
    true = np.array([3e-8, 1e-5, 5e-10, 2e-4])
    did = np.column_stack([10 ** rng.uniform(5, 8, 60), rng.integers(1, 5000, 60), 10 ** rng.uniform(5, 9, 60)])
    did = np.column_stack([did, rng.integers(0, 500, 60)])
    took = did @ true * rng.uniform(0.97, 1.03, 60)
    found = fit(Timed(float(s), *map(float, d)) for s, d in zip(took, did, strict=True))
    assert [found.row_config, found.update, found.byte, found.message] == pytest.approx(list(true), rel=0.1)


def test_one_timed_task_is_enough_for_a_rate_of_rows() -> None:
    found = fit([Timed(2.0, 1e6)])
    assert found.row_config == pytest.approx(2e-6)
    assert (found.update, found.byte, found.message) == (0, 0, 0)


@pytest.mark.parametrize("tasks", [[], [Timed(0.0, 10.0)], [Timed(1.0, 0.0, 5.0)]])
def test_what_calibrates_nothing_is_refused(tasks: list[Timed]) -> None:
    with pytest.raises(UsageError, match="time"):
        fit(tasks)


def test_wrong_values_are_named() -> None:
    with pytest.raises(UsageError, match="row_config=0"):
        Pilot(0, 0, 0, 0)
    with pytest.raises(UsageError, match="message=-1"):
        Pilot(1, 0, 0, -1)
    with pytest.raises(UnknownOptionError, match="algebraic, sampling, sequential"):
        Work("linear", 1, 1, 1, 1, Pilot(1, 0, 0, 0))
    with pytest.raises(UsageError, match="configs=0"):
        Work("algebraic", 0, 1, 1, 1, Pilot(1, 0, 0, 0))
    with pytest.raises(UnknownOptionError, match="grouped"):
        price("wrap", [1], workers=1, work=PAPER_WORK)
    with pytest.raises(UsageError, match="workers=0"):
        price("grouped", [1], workers=0, work=PAPER_WORK)
    with pytest.raises(UnknownOptionError, match="grouped"):
        paper_weights("switching", groups=1, workers=1)
    assert set(THEIRS) < set(APPROACHES)
