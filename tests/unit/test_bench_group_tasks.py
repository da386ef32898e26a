"""The approaches that ours is measured against: the same models, by other ways."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.rivals.group_tasks import RIVALS, Singly, TasksDrive, approach
from penstock import LogisticRegression
from penstock.errors import UsageError
from penstock.groups import GroupBy
from penstock.groups.drivers.sums_driver import PassesDrive
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Fit
from penstock.groups.place import spread
from penstock.groups.training_run import DRIVERS
from penstock.testing.executors import InlineExecutor
from tests.unit.test_groups_drive import ONE_CLASS, job_of, rows_of
from tests.unit.test_groups_sequential import job_of as sgd_of


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    with group(rows_of(), "g", tmp_path_factory.mktemp("rivals") / "rows", label="y", memory="100MB") as made:
        yield made


def trained(grouped: Grouped, job: Any, approach: str, **options: Any) -> tuple[dict[int, Fit], InlineExecutor]:
    fits: dict[int, Fit] = {}

    def keep(fit: Fit) -> None:
        assert fit.group not in fits
        fits[fit.group] = fit

    executor = InlineExecutor(partial(Singly, job.make()), workers=3, **options)
    TasksDrive(job, grouped, spread(grouped.rows, 3), executor, keep, approach=approach).run()
    assert sorted(fits) == list(range(len(grouped)))
    return fits, executor


@pytest.mark.parametrize("approach", RIVALS)
def test_the_models_are_the_same(grouped: Grouped, approach: str) -> None:
    job, expected = job_of(grouped, l2=[0.5, 0.2, 0.1]), dict[int, Fit]()
    executor = InlineExecutor(job.make(), workers=3)
    PassesDrive(job, grouped, spread(grouped.rows, 3), executor, lambda fit: expected.update({fit.group: fit})).run()
    fits, _ = trained(grouped, job, approach)
    for number, fit in expected.items():
        assert fits[number].reason == fit.reason
        if fit.weights is not None:
            np.testing.assert_allclose(fits[number].weights, fit.weights, atol=1e-4)
            np.testing.assert_allclose(fits[number].selection_loss, fit.selection_loss, rtol=1e-3)


@pytest.mark.parametrize(("approach", "tasks"), [("group-task", 11), ("model-task", 33)])
def test_how_many_tasks(grouped: Grouped, approach: str, tasks: int) -> None:
    _, executor = trained(grouped, job_of(grouped, l2=[0.5, 0.2, 0.1]), approach)
    assert len(executor.asked) == tasks
    assert {worker for worker, _ in executor.asked} == {0, 1, 2}


def test_data_parallel_asks_all_workers_for_every_config_of_every_group(grouped: Grouped) -> None:
    _, executor = trained(grouped, job_of(grouped, l2=[0.5, 0.2]), "data-parallel")
    partials = [items[0][0] for _, items in executor.asked if items[0][0][0] == "partial"]
    assert {item[1] for item in partials} >= set(range(3))
    assert all(item[4].shape[1] == 1 for item in partials), "one config at a time"


def test_large_groups_are_shared_and_small_ones_are_tasks(grouped: Grouped) -> None:
    _, executor = trained(grouped, job_of(grouped, l2=[0.5, 0.2]), "switching")
    asked = [(items[0][0][0], items[0][0][1]) for _, items in executor.asked]
    middle = float(np.median(grouped.rows))
    assert {group for what, group in asked if what == "solve_each"} == set(np.flatnonzero(grouped.rows <= middle))


@pytest.mark.parametrize("approach", ["group-task", "model-task"])
def test_sgd_by_tasks(grouped: Grouped, approach: str) -> None:
    fits, _ = trained(grouped, sgd_of(grouped, [{"l2": 0.1}, {"epochs": 1}]), approach)
    assert fits[0].epochs.tolist() == [3, 1]
    assert fits[ONE_CLASS].reason


def test_sgd_has_no_sums_to_share(grouped: Grouped) -> None:
    with pytest.raises(UsageError, match="choose group-task or model-task"):
        trained(grouped, sgd_of(grouped), "data-parallel")


@pytest.mark.parametrize("approach", ["group-task", "model-task"])
def test_a_group_that_kills_every_worker(grouped: Grouped, approach: str) -> None:
    def deadly(number: int, items: tuple[Any, ...]) -> bool:
        return bool(items[0][0][1] == 1)

    fits, _ = trained(grouped, job_of(grouped, l2=[0.5, 0.2]), approach, lose=deadly)
    assert "3 times" in fits[1].reason
    assert not fits[0].reason


def test_group_by_trains_in_another_way_on_processes() -> None:
    work, model = GroupBy(rows_of(), by="g"), LogisticRegression(solver="lbfgs", epochs=5)
    options: dict[str, Any] = {"y": "y", "search": {"l2": [0.5, 0.1]}, "pooled": False, "workers": 2}
    ours = work.fit(model, **options).frame
    with approach("group-task"):
        theirs = work.fit(model, **options)
    assert DRIVERS["algebraic"] is PassesDrive
    np.testing.assert_allclose(theirs.frame["selection_loss"], ours["selection_loss"], rtol=1e-3)
