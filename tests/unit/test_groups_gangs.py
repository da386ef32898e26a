"""The driver of boosting: gangs begin together or not at all, deaths cost a try, and no group is lost or done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.groups.drivers import boosting_driver
from penstock.groups.drivers.base import Span
from penstock.groups.drivers.boosting_driver import GangsDrive
from penstock.groups.etl import group
from penstock.groups.executor import Done, Lost
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Fit, Targets
from penstock.groups.patterns.sampling import Boosted, Called, Share
from penstock.groups.patterns.worker_watch import FOLLOWED, WorkerAddress
from penstock.groups.place import Placement, Shard, constrained

SIZES = (900, 700, 300, 200, 60, 40, 30, 20, 10)
Lose = Callable[[int, str, int], str]
"""Given a worker, what it was asked and of which group, says how it dies; nothing if it does not."""


def seen(rows: int, least: float = 0.0, most: float = 1.0, **others: Any) -> Targets:
    """Return what rows of weight one are like, whose targets are in a range."""
    return Targets(rows=rows, weight=float(rows), least=least, most=most, **others)


@dataclass
class Puppets:
    """Workers that answer in an order drawn by chance; those of a gang only when all have been asked."""

    workers: int
    rng: np.random.Generator
    lose: Lose = lambda worker, what, group: ""
    targets: Callable[[int, int], Targets] = lambda group, rows: seen(rows, selection_rows=1, selection_weight=1.0)
    broken: Callable[[int], str] = lambda group: ""
    asked: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    _pending: dict[int, tuple[int, list[tuple[Any, ...]]]] = field(default_factory=dict)
    _dying: list[Lost] = field(default_factory=list)
    _begun: list[Any] = field(default_factory=list)

    def submit(self, worker: int, task: int, method: str, items: list[tuple[Any, ...]]) -> None:
        assert method == "run"
        assert worker not in [busy for busy, _ in self._pending.values()], f"worker {worker} was given a second task"
        self._pending[task] = (worker, items)
        self.asked += [(worker, item) for item in items]

    def wait(self) -> Done | Lost:
        if self._dying:
            return self._dying.pop()
        ready = [task for task in self._pending if self._ready(task)]
        assert ready, f"nobody can go on: {self._pending}"
        task = int(self.rng.choice(ready))
        worker, items = self._pending.pop(task)
        for what, number, *_ in items:
            if reason := self.lose(worker, what, number):
                if what == "together":
                    self._follow(number)
                return Lost(worker, (task,), reason)
        return Done(worker, task, [self._answer(item) for item in items], 0.001)

    def _ready(self, task: int) -> bool:
        _, ((what, group, *rest), *_) = self._pending[task]
        if what != "together":
            return True
        there = [item for _, items in self._pending.values() for item in items if item[:2] == ("together", group)]
        # Whoever has answered was asked with all the others, so that only the first of them has to wait.
        return len(there) == len(rest[3]) or rest[3] in self._begun

    def _follow(self, group: int) -> None:
        for task, (worker, items) in list(self._pending.items()):
            if items[0][:2] == ("together", group):
                del self._pending[task]
                self._dying.append(Lost(worker, (task,), f"ended with status {FOLLOWED}"))

    def _answer(self, item: tuple[Any, ...]) -> Any:
        what, group, *rest = item
        if what == "solve":
            return Fit(group, Targets(), 0.0)
        if what == "call":
            number = len(self.asked)
            return Called(WorkerAddress("10.0.0.1", number, number), self.targets(group, rest[1]))
        self._begun.append(rest[3])
        share = Share.of(1, weight=float(rest[1]), broken=self.broken(group))
        share.loss[:] = rest[1]
        share.trees = ["trees"] if rest[2] == 0 else [None]
        return share


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    table = pa.table({"g": owner, "x": np.arange(float(len(owner))), "y": np.arange(len(owner)) % 2 == 0})
    with group(table, "g", tmp_path_factory.mktemp("gangs") / "rows", label="y", memory="100MB") as made:
        yield made


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting_driver, "_LEAST", 2)


def placed(*shards: tuple[int, int, int], workers: int) -> Placement:
    """Return a placement of (group, worker, rows)."""
    firsts: dict[int, int] = {}
    made, load = [], np.zeros(workers, np.int64)
    for number, worker, rows in shards:
        made.append(Shard(number, worker, firsts.get(number, 0), rows))
        firsts[number] = firsts.get(number, 0) + rows
        load[worker] += rows
    return Placement(tuple(made), load, int(load.max()))


def driven(
    grouped: Grouped, placement: Placement, puppets: Puppets
) -> tuple[dict[int, Fit], GangsDrive, list[tuple[int, tuple[Any, ...]]], list[Span]]:
    fits: dict[int, Fit] = {}
    spans: list[Span] = []

    def keep(fit: Fit) -> None:
        assert fit.group not in fits, f"group {fit.group} is done twice"
        fits[fit.group] = fit

    job = Boosted(str(grouped.folder), "binary", 2, ({},), np.array([10]))
    drive = GangsDrive(job, grouped, placement, puppets, keep, spans.append)  # type: ignore[arg-type]  # all that is asked of one
    drive.run()
    return fits, drive, puppets.asked, spans


def puppets(workers: int, seed: int = 0, **options: Any) -> Puppets:
    return Puppets(workers, np.random.default_rng(seed), **options)


TWO = ((0, 0, 450), (0, 1, 450), (1, 1, 350), (1, 2, 350), (2, 0, 300), (3, 2, 200), (4, 0, 60), (5, 1, 40))


@pytest.mark.parametrize("seed", range(12))
def test_every_group_is_trained_once_whoever_is_first(grouped: Grouped, seed: int) -> None:
    fits, drive, asked, spans = driven(grouped, placed(*TWO, workers=3), puppets(3, seed))
    assert sorted(fits) == list(range(6))
    assert [fits[number].trees for number in (0, 1)] == [["trees"]] * 2
    assert [float(fits[number].loss[0]) for number in (0, 1)] == [1.0, 1.0], "sums over shards are not added up"
    assert drive.left == [0, 0, 0]
    assert drive.deaths == []
    together = [(worker, item) for worker, item in asked if item[0] == "together"]
    assert len(together) == 4
    for number in (0, 1):
        members = [item[5] for _, item in together if item[1] == number]
        assert members[0] == members[1], "members were told different addresses"
        assert {address.host for address in members[0]} == {"127.0.0.1"}
    assert {span.what for span in spans} == {"look", "boost"}


def test_gangs_come_first_and_whole_groups_fill_the_waiting(grouped: Grouped) -> None:
    _, _, asked, _ = driven(grouped, placed(*TWO, workers=3), puppets(3))
    first = {worker: next(item for who, item in asked if who == worker) for worker in range(3)}
    assert first[0][:2] == ("call", 0)
    assert first[1][:2] == ("call", 0)
    assert first[2][:2] == ("solve", 3), "worker 1 is busy, so that worker 2 does not wait for it"


def test_a_worker_with_nothing_left_takes_over(grouped: Grouped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting_driver, "_BUNDLE", 1)
    placement = placed(*((number, 0, SIZES[number]) for number in range(6)), workers=2)
    fits, drive, asked, _ = driven(grouped, placement, puppets(2))
    assert sorted(fits) == list(range(6))
    assert {worker for worker, _ in asked} == {0, 1}
    assert drive.left == [0, 0]


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_deaths_anywhere_cost_a_try(grouped: Grouped, workers: int, seed: int) -> None:
    rng, deaths = np.random.default_rng(100 + seed), []

    def lose(worker: int, what: str, number: int) -> str:
        if rng.random() < 0.3 and [each[2] for each in deaths].count(number) < 2:
            deaths.append((worker, what, number))
            return "killed by SIGKILL"
        return ""

    placement = constrained(np.array(SIZES), workers)
    fits, drive, _, _ = driven(grouped, placement, puppets(workers, seed, lose=lose))
    assert sorted(fits) == list(range(len(SIZES)))
    assert not any(fit.reason for fit in fits.values())
    assert drive.deaths == [f"worker {worker} killed by SIGKILL" for worker, _, _ in deaths], "followers are no deaths"
    assert drive.left == [0] * workers


def test_a_gang_that_always_dies_is_given_up_and_the_rest_goes_on(grouped: Grouped) -> None:
    def lose(worker: int, what: str, number: int) -> str:
        return "killed by SIGKILL" if (what, number, worker) == ("together", 0, 1) else ""

    fits, drive, asked, _ = driven(grouped, placed(*TWO, workers=3), puppets(3, lose=lose))
    assert sorted(fits) == list(range(6))
    assert "worker 1 was killed by SIGKILL" in fits[0].reason
    assert "2 workers broke off 3 times" in fits[0].reason
    assert not any(fit.reason for number, fit in fits.items() if number)
    assert len(drive.deaths) == 3
    ports = [item[5] for _, item in asked if item[:2] == ("together", 0)]
    assert len(set(map(tuple, ports))) == 3, "a new try has new ports"


def test_a_death_is_told_before_the_errors_that_come_of_it(grouped: Grouped) -> None:
    class Reporting(Puppets):
        def wait(self) -> Done | Lost:
            """Of two that train, have worker 0 tell first that it lost the other one, which dies."""
            training = {worker: task for task, (worker, items) in self._pending.items() if items[0][0] == "together"}
            if not training:
                return super().wait()
            worker = min(training)
            del self._pending[training[worker]]
            if worker == 0:
                return Done(0, training[0], [Share.of(1, broken="LightGBM: Socket recv error")], 0.001)
            return Lost(worker, (training[worker],), "killed by SIGKILL")

    made = Reporting(2, np.random.default_rng(0))
    fits, drive, _, _ = driven(grouped, placed((0, 0, 450), (0, 1, 450), workers=2), made)
    assert "last: worker 1 was killed by SIGKILL;" in fits[0].reason
    assert len(drive.deaths) == 3


def test_a_whole_group_that_always_dies_is_given_up(grouped: Grouped) -> None:
    fits, _, _, _ = driven(
        grouped, placed(*TWO, workers=3), puppets(3, lose=lambda worker, what, number: "killed" * (number == 4))
    )
    assert sorted(fits) == list(range(6))
    assert "killed 3 times" in fits[4].reason


def test_a_port_that_was_taken_leads_to_another_try(grouped: Grouped) -> None:
    tries = []

    def broken(number: int) -> str:
        tries.append(number)
        return "Binding port 4000 failed" if len(tries) < 3 else ""

    fits, drive, _, _ = driven(grouped, placed((0, 0, 450), (0, 1, 450), workers=2), puppets(2, broken=broken))
    assert fits[0].trees == ["trees"]
    assert len(tries) == 4
    assert drive.deaths == []


def test_a_worker_that_dies_idle_between_call_and_beginning(grouped: Grouped) -> None:
    class Dying(Puppets):
        killed = False

        def wait(self) -> Done | Lost:
            waiting = [items[0][0] for _, items in self._pending.values()]
            if waiting == ["call"] and not self.killed:  # the other one has answered
                self.killed = True
                ((busy, _),) = self._pending.values()
                return Lost(1 - busy, (), "killed by SIGKILL")
            return super().wait()

    made = Dying(2, np.random.default_rng(0))
    fits, drive, asked, _ = driven(grouped, placed((0, 0, 450), (0, 1, 450), workers=2), made)
    assert fits[0].trees == ["trees"]
    assert [item[0] for _, item in asked] == ["call"] * 4 + ["together"] * 2
    assert drive.deaths


def test_what_the_rows_are_like_is_seen_before_anything_is_trained(grouped: Grouped) -> None:
    def targets(number: int, rows: int) -> Targets:
        return seen(rows, least=1.0) if number == 0 else seen(rows)

    fits, _, asked, _ = driven(grouped, placed(*TWO, workers=3), puppets(3, targets=targets))
    assert fits[0].reason == "only one class among its rows"
    assert fits[0].targets.rows == 900
    assert not fits[1].reason
    assert ("together", 0) not in [item[:2] for _, item in asked]


def test_a_group_of_which_one_has_nothing_to_learn_from_is_trained_whole(grouped: Grouped) -> None:
    looked = []

    def targets(number: int, rows: int) -> Targets:
        looked.append(number)
        return seen(0 if len(looked) == 1 else rows)

    fits, _, asked, _ = driven(grouped, placed((0, 0, 450), (0, 1, 450), workers=2), puppets(2, targets=targets))
    assert sorted(fits) == [0]
    assert [item[0] for _, item in asked] == ["call", "call", "solve"]


def test_small_parts_are_not_worth_a_gang(grouped: Grouped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosting_driver, "_LEAST", 400)
    _, _, asked, _ = driven(grouped, placed(*TWO, workers=3), puppets(3))
    assert {item[1] for _, item in asked if item[0] == "together"} == {0}
    assert ("solve", 1) in [item[:2] for _, item in asked]


def test_nothing_to_do(grouped: Grouped) -> None:
    assert driven(grouped, placed(workers=2), puppets(2))[0] == {}
