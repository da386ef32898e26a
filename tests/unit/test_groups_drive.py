"""The driver: the same models wherever the rows lie, whoever dies, and a schedule that keeps its promises."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DataError
from penstock.groups.drivers import sums_driver as driver
from penstock.groups.drivers.sums_driver import PassesDrive
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.algebraic import Algebraic, AlgebraicWorker
from penstock.groups.patterns.base import Fit
from penstock.groups.place import Placement, constrained, spread, wrap_around
from penstock.groups.schedule import Passes
from penstock.sgd import terms
from penstock.sgd.full import Sums
from penstock.testing.executors import InlineExecutor
from tests.schedule_traces import check, traced

SIZES = (1300, 300, 60, 40, 40, 30, 30, 20, 12, 8)
ONE_CLASS, TINY = 3, len(SIZES)
PLACEMENTS = {"spread": spread, "wrap-around": wrap_around, "constrained": constrained}


def rows_of(seed: int = 0) -> pa.Table:
    """Return groups of all sizes; one has a single class, and the last a single row."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(SIZES) + 1), (*SIZES, 1))
    x = rng.standard_normal((len(owner), 3)).astype(np.float32)
    y = x @ np.array([1, -1, 0.5]) + owner / 5 - 1 + rng.standard_normal(len(owner)) > 0
    y[owner == ONE_CLASS] = True
    order = np.argsort(rng.permutation(len(owner)) + 10_000 * owner)  # within groups only: their numbers stay
    return pa.table({"g": owner, "a": x[order, 0], "b": x[order, 1], "c": x[order, 2], "y": y[order]})


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    made = group(rows_of(), "g", tmp_path_factory.mktemp("drive") / "rows", label="y", memory="100MB", block_size=2000)
    with made:
        yield made


def job_of(grouped: Grouped, **options: Any) -> Algebraic:
    configs = len(options.get("l2", [1]))
    given = {"l1": np.zeros(configs), "l2": np.full(configs, 0.05), "rate": np.ones(configs)}
    given |= {"epochs": np.full(configs, 4), "tolerance": np.full(configs, 1e-6)}
    told = given | {name: np.asarray(value) for name, value in options.items() if name in given}
    rest = {name: value for name, value in options.items() if name not in given}
    return Algebraic(str(grouped.folder), **({"loss": "logistic", "solver": "lbfgs", "validation": 0.1} | rest), **told)


def trained(
    grouped: Grouped,
    *,
    workers: int = 1,
    place: Callable[..., Placement] = spread,
    job: Algebraic | None = None,
    **options: Any,
) -> tuple[dict[int, Fit], PassesDrive, InlineExecutor]:
    job = job or job_of(grouped, l2=[0.5, 0.2])
    executor = InlineExecutor(partial(AlgebraicWorker, job), workers=workers, **options)
    fits: dict[int, Fit] = {}
    run = PassesDrive(job, grouped, place(grouped.rows, workers), executor, partial(keep, fits))
    run.run()
    return fits, run, executor


def keep(fits: dict[int, Fit], fit: Fit) -> None:
    assert fit.group not in fits, f"group {fit.group} is done twice"
    fits[fit.group] = fit


def assert_same(found: dict[int, Fit], expected: dict[int, Fit], *, close: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for number, fit in expected.items():
        other = found[number]
        assert other.reason == fit.reason
        assert (other.targets.rows, other.targets.selection_rows) == (fit.targets.rows, fit.targets.selection_rows)
        if fit.weights is not None:
            assert other.weights is not None
            np.testing.assert_allclose(other.weights, fit.weights, atol=close)
            np.testing.assert_allclose(other.loss, fit.loss, rtol=1e-6)
            np.testing.assert_allclose(other.selection_loss, fit.selection_loss, rtol=10 * close)
            np.testing.assert_allclose(other.selection_score, fit.selection_score, atol=1e-9 if close < 1e-4 else 0.02)


@pytest.fixture(scope="module")
def alone(grouped: Grouped) -> dict[int, Fit]:
    """The models of one worker."""
    return trained(grouped)[0]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Passes]:
    """The schedulers that drivers make."""
    made: list[Passes] = []

    def record(*arguments: Any, **named: Any) -> Passes:
        made.append(traced(Passes(*arguments, **named)))
        return made[-1]

    monkeypatch.setattr(driver, "Passes", record)
    return made


def test_one_worker(alone: dict[int, Fit], grouped: Grouped) -> None:
    assert sorted(alone) == list(range(len(grouped)))
    assert alone[ONE_CLASS].reason == "only one class among its rows"
    assert alone[TINY].reason.startswith("too few rows: ")
    assert not any(fit.reason for number, fit in alone.items() if number not in (ONE_CLASS, TINY))


@pytest.mark.parametrize("place", PLACEMENTS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_same_models_wherever_the_rows_lie(
    grouped: Grouped, alone: dict[int, Fit], passes: list[Passes], place: str, workers: int, backwards: bool
) -> None:
    fits, run, _ = trained(grouped, workers=workers, place=PLACEMENTS[place], backwards=backwards)
    assert_same(fits, alone)
    assert run.placement.splits > 0 or workers == 1 or place != "spread"
    check(passes[0], run.placement)
    assert passes[0].finished
    assert run.deaths == []


@pytest.mark.parametrize("workers", [2, 3])
def test_the_same_models_at_convergence(grouped: Grouped, workers: int) -> None:
    # Scores are float32, so that the objective has some 1e-8 of noise, which at its bottom decides which steps are
    # taken. That leaves the weights the square root of it: they agree less closely there than on the way down.
    job = job_of(grouped, l2=[0.1, 0.05], epochs=[60, 60])
    found, expected = trained(grouped, workers=workers, job=job)[0], trained(grouped, job=job)[0]
    assert_same(found, expected, close=1e-3)
    for number, fit in found.items():
        if not fit.reason:
            assert np.isin(fit.status, (terms.CONVERGED, terms.STALLED)).all(), number


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("many", [2, 8])
def test_scaled_groups_are_the_same_wherever_they_lie(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch, workers: int, many: int
) -> None:
    monkeypatch.setattr(driver, "_MANY", many)
    job = job_of(grouped, l2=[0.5, 0.2], standardize=True)
    fits, run, _ = trained(grouped, workers=workers, job=job)
    assert run.placement.splits
    assert_same(fits, trained(grouped, job=job)[0])


@dataclass
class Added:
    """Sums that note which shards were added, in which order."""

    sums: Sums
    noted: list[list[float]]

    def __add__(self, other: Sums) -> Self:
        self.noted[-1].append(other.weight)
        self.sums = self.sums + other
        return self

    def spread(self, live: Any) -> Sums:
        return self.sums.spread(live)


@pytest.mark.parametrize("backwards", [False, True])
def test_shards_are_added_in_the_order_of_the_rows(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    noted: list[list[float]] = []

    class Zeros:
        @staticmethod
        def zeros(width: int, configs: int) -> Added:
            noted.append([])
            return Added(Sums.zeros(width, configs), noted)

    monkeypatch.setattr(driver, "Sums", Zeros)
    _, run, _ = trained(grouped, workers=5, backwards=backwards)
    worker = AlgebraicWorker(run.job)
    shards = [run.placement.shards[number] for number in run.placement.held[0]]
    at = np.zeros((grouped.width + 1, 1))
    expected = [worker.partial(0, shard.first, shard.rows, at, False).sums.weight for shard in shards]
    assert len(set(expected)) > 2
    assert {tuple(each) for each in noted if set(each) & set(expected)} == {tuple(expected)}


def test_the_order_of_answers_changes_nothing(grouped: Grouped) -> None:
    one, two = (trained(grouped, workers=5, backwards=backwards)[0] for backwards in (False, True))
    for number, fit in one.items():
        if fit.weights is not None:
            np.testing.assert_array_equal(fit.weights, two[number].weights)  # to the last bit


@pytest.mark.parametrize("workers", [2, 3])
def test_configs_of_split_groups_in_two_lanes(
    grouped: Grouped, alone: dict[int, Fit], passes: list[Passes], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(driver, "_MANY", 2)
    fits, run, executor = trained(grouped, workers=workers)
    assert_same(fits, alone)
    check(passes[0], run.placement)
    first = [item for _, (items,) in executor.asked for item in items if item[0] == "partial"]
    assert {item[4].shape[1] for item in first} == {1}, "each lane has one of the two configs"


def test_configs_that_end_at_different_times(grouped: Grouped, passes: list[Passes]) -> None:
    job = job_of(grouped, l2=[0.5, 0.2, 0.2], epochs=[2, 60, 5])
    fits, run, executor = trained(grouped, workers=2, job=job)
    assert_same(fits, trained(grouped, job=job)[0], close=1e-3)
    check(passes[0], run.placement)
    split = next(number for number, held in run.placement.held.items() if len(held) > 1)
    assert fits[split].epochs[0] == 2
    assert fits[split].status[0] == terms.SPENT
    asked = [item[4].shape[1] for _, (items,) in executor.asked for item in items if item[0] == "partial"]
    assert asked == sorted(asked, reverse=True), "what is done is not asked for again"
    assert asked[-1] == 1


def test_plain_descent_and_a_config_that_diverges(grouped: Grouped) -> None:
    job = job_of(grouped, l2=[0.05, 0.05], rate=[1.0, 1e9], solver="gd")
    fits, run, _ = trained(grouped, workers=2, job=job)
    assert run.placement.splits
    for number, fit in fits.items():
        if number not in (ONE_CLASS, TINY):
            assert (fit.status == terms.FAILED).tolist() == [False, True], number


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_fails_its_group_alone(
    alone: dict[int, Fit], grouped: Grouped, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bad in (0, 1):
        for name in ("solve", "partial"):
            real = getattr(AlgebraicWorker, name)

            def work(self: Any, group: int, *rest: Any, bad: int = bad, real: Any = real) -> Any:
                if group == bad:
                    raise ZeroDivisionError("by zero")
                return real(self, group, *rest)

            monkeypatch.setattr(AlgebraicWorker, name, work)
        found = trained(grouped, workers=workers)[0]
        assert found[bad].reason.startswith("ZeroDivisionError: by zero (")
        assert "in work" in found[bad].traceback
        assert_same(
            {group: fit for group, fit in found.items() if group != bad},
            {group: fit for group, fit in alone.items() if group != bad},
        )
        monkeypatch.undo()


def test_a_placement_of_nothing(grouped: Grouped) -> None:
    fits, _, executor = trained(grouped, workers=3, place=lambda sizes, workers: spread(np.zeros_like(sizes), workers))
    assert fits == {}
    assert executor.asked == []


def test_only_the_groups_of_the_placement(grouped: Grouped) -> None:
    sizes = grouped.rows.copy()
    sizes[::2] = 0
    fits, _, _ = trained(grouped, workers=2, place=lambda _, workers: spread(sizes, workers))
    assert sorted(fits) == [number for number in range(len(grouped)) if number % 2]


class TestSplitGroupsThatFail:
    def fits(self, folder: Path, table: pa.Table, **options: Any) -> tuple[dict[int, Fit], PassesDrive]:
        with group(table, "g", folder / "rows", label="y", memory="100MB", block_size=2000) as made:
            job = job_of(made, l2=[0.1, 0.01], **options)
            fits, run, _ = trained(made, workers=3, job=job)
            assert any(len(held) > 1 for held in run.placement.held.values())
            return fits, run

    def table(self, rows: int = 600) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal(rows)
        return {"g": np.repeat([0, 1], [rows - 100, 100]), "x": x, "y": x + rng.standard_normal(rows) > 0}

    @pytest.mark.parametrize("many", [2, 8])
    def test_a_single_class(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
        monkeypatch.setattr(driver, "_MANY", many)
        columns = self.table()
        columns["y"][columns["g"] == 0] = False
        fits, run = self.fits(tmp_path, pa.table(columns))
        assert fits[0].reason == "only one class among its rows"
        assert fits[0].weights is None
        assert sum((fits[0].targets.rows, fits[0].targets.selection_rows, fits[0].targets.held_out_rows)) == 500
        assert not fits[1].reason
        assert run._ended == run._lanes == {}, "nothing of a group that is done is kept"

    def test_classes_that_lie_on_different_workers(self, tmp_path: Path) -> None:
        columns = self.table()
        columns["y"] = np.arange(600) % 500 < 250
        fits, _ = self.fits(tmp_path, pa.table(columns))
        assert not fits[0].reason

    def test_a_feature_that_is_not_finite(self, tmp_path: Path) -> None:
        columns = self.table()
        columns["x"][17] = np.inf
        fits, _ = self.fits(tmp_path, pa.table(columns), validation=0.0)
        assert (fits[0].status == terms.FAILED).all()
        assert fits[0].epochs.tolist() == [1, 1]
        assert fits[0].weights is not None
        assert np.isnan(fits[0].weights).all()
        assert (fits[1].status != terms.FAILED).all()


class TestBundles:
    def solves(self, executor: InlineExecutor) -> list[int]:
        return [len(items) for _, (items,) in executor.asked if items[0][0] == "solve"]

    def test_small_groups_travel_together(self, grouped: Grouped, passes: list[Passes]) -> None:
        fits, run, executor = trained(grouped)
        assert self.solves(executor) == [len(grouped)]
        assert len(fits) == len(grouped)
        check(passes[0], run.placement)

    def test_a_full_bundle(self, grouped: Grouped, alone: dict[int, Fit], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "BUNDLE", 2 * 4 * 100)
        fits, _, executor = trained(grouped)
        assert self.solves(executor)[:3] == [1, 1, 2], "the largest first, and small ones until there is enough"
        assert_same(fits, alone)

    def test_bundles_are_bounded_by_the_weights_that_come_back(
        self, grouped: Grouped, alone: dict[int, Fit], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "_ANSWER", 3 * 4 * (grouped.width + 1) * 2)
        fits, _, executor = trained(grouped)
        assert set(self.solves(executor)) == {3, 2}
        monkeypatch.setattr(driver, "_ANSWER", 1)
        _, _, executor = trained(grouped)
        assert set(self.solves(executor)) == {1}
        assert_same(fits, alone)

    def test_a_shard_of_a_split_group_travels_alone(self, grouped: Grouped) -> None:
        _, _, executor = trained(grouped, workers=2)
        for _, (items,) in executor.asked:
            assert len(items) == 1 or {item[0] for item in items} == {"solve"}


class TestDeaths:
    @pytest.mark.parametrize("workers", [1, 2, 3])
    @pytest.mark.parametrize("every", [2, 3])
    def test_what_is_lost_is_done_again(
        self, grouped: Grouped, alone: dict[int, Fit], passes: list[Passes], workers: int, every: int
    ) -> None:
        seen: dict[str, int] = {}

        def lose(number: int, items: tuple[Any, ...]) -> bool:
            seen[repr(items)] = seen.get(repr(items), 0) + 1
            return number % every == 0 and seen[repr(items)] < 3

        fits, run, _ = trained(grouped, workers=workers, lose=lose)
        assert_same(fits, alone)
        check(passes[0], run.placement)
        assert len(run.deaths) > 0 or workers == 1
        assert all(death.endswith("killed by chance") for death in run.deaths)

    def test_a_group_that_kills_every_worker(self, grouped: Grouped, alone: dict[int, Fit]) -> None:
        def deadly(number: int, items: tuple[Any, ...]) -> bool:
            return ("solve", ONE_CLASS) in items[0]

        fits, run, _ = trained(grouped, workers=2, lose=deadly)
        assert fits[ONE_CLASS].reason.startswith("its worker was killed by chance 3 times; look whether memory ran out")
        assert_same({**fits, ONE_CLASS: alone[ONE_CLASS]}, alone)
        assert len(run.deaths) == 4, "with the others, then three times alone"

    def test_a_split_group_that_kills_every_worker(self, grouped: Grouped, alone: dict[int, Fit]) -> None:
        def deadly(number: int, items: tuple[Any, ...]) -> bool:
            return items[0][0][:2] == ("partial", 0)

        fits, _, _ = trained(grouped, workers=3, lose=deadly)
        assert "killed by chance 3 times" in fits[0].reason
        assert_same({**fits, 0: alone[0]}, alone)

    def test_an_error_is_raised(self, grouped: Grouped, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: AlgebraicWorker, number: int) -> Fit:
            raise DataError("rows-00000.arrow is cut short")

        monkeypatch.setattr(AlgebraicWorker, "solve", broken)
        with pytest.raises(DataError, match="cut short"):
            trained(grouped)


def test_seconds_of_a_split_group_are_those_of_all_its_shards(grouped: Grouped) -> None:
    fits, run, _ = trained(grouped, workers=3)
    split = [number for number, held in run.placement.held.items() if len(held) > 1]
    assert split
    assert all(fits[number].seconds > 0 for number in split)


@pytest.mark.slow
def test_processes_one_of_which_is_killed(
    grouped: Grouped, alone: dict[int, Fit], passes: list[Passes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "BUNDLE", 1)
    job, fits, pids = job_of(grouped, l2=[0.5, 0.2]), dict[int, Fit](), list[int]()
    with LocalExecutor(partial(AlgebraicWorker, job), workers=2) as executor:

        def take(fit: Fit) -> None:
            keep(fits, fit)
            pids.extend(executor.pids)
            if len(fits) == 1:
                os.kill(executor.pids[1], signal.SIGKILL)

        placement = spread(grouped.rows, 2)
        whole = [held[0] for held in placement.held.values() if len(held) == 1]
        assert {placement.shards[number].worker for number in whole} == {1}, "it still has work when it is killed"
        run = PassesDrive(job, grouped, placement, executor, take)
        run.run()
    assert_same(fits, alone)
    check(passes[0], run.placement)
    assert run.deaths == ["worker 1 killed by SIGKILL"]
    assert len(set(pids)) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
