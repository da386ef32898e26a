"""The driver: gives out what the scheduler says, adds up what comes back, and hands on each group as it is done.

Whole groups go to their worker in bundles, so that thousands of small ones do not cost a message each. Of groups that lie
on several workers only weights and sums travel. What was lost with a worker is given out again, to the one in its place:
it costs what that worker was doing, and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import WorkerDiedError
from penstock.groups.executor import Done, Executor, Lost
from penstock.groups.grouped import Grouped
from penstock.groups.patterns import Algebraic, Fit, Partial, Targets, figures_of
from penstock.groups.place import Placement
from penstock.groups.scale import Moments, Scale
from penstock.groups.schedule import Passes
from penstock.groups.turns import Turn, Wait
from penstock.sgd.full import Sums
from penstock.sgd.lbfgs import Optimiser

_BUNDLE = 4_000_000
"""Rows x configs x epochs that are worth a message: some tens of milliseconds of work."""
_ANSWER = 32 << 20
"""Bytes of weights after which a bundle is full, however quickly they are found."""
_MANY = 8
"""Workers from which on the configs of a split group go in two batches, so that one is under way while the other waits."""
_TRIES = 3


@dataclass(slots=True)
class _Task:
    worker: int
    turns: list[Turn]
    items: list[tuple[Any, ...]]
    tries: int = 0


@dataclass(slots=True)
class _Lane:
    """Configs of a split group that go through the same passes."""

    optimiser: Optimiser
    live: Any
    scale: Scale | None = None
    sums: dict[int, Sums] = field(default_factory=dict)

    @property
    def weights(self) -> Any:
        """The best weights, for features as they are."""
        best = self.optimiser.best
        return best if self.scale is None else self.scale.raw(best)


@dataclass(slots=True)
class Drive:
    """One run over all groups.

    Attributes
    ----------
    job : Algebraic
        What is to be learnt.
    grouped : Grouped
        The rows.
    placement : Placement
        Where they lie.
    executor : Executor
        The workers, whose object is a `penstock.groups.patterns.Worker`.
    on_fit : callable
        Is given each group's `Fit` when it is done.
    """

    job: Algebraic
    grouped: Grouped
    placement: Placement
    executor: Executor
    on_fit: Callable[[Fit], None]
    deaths: list[str] = field(default_factory=list)
    _tasks: dict[int, _Task] = field(default_factory=dict)
    _lanes: dict[tuple[int, int], _Lane] = field(default_factory=dict)
    _targets: dict[int, Targets] = field(default_factory=dict)
    _moments: dict[int, Moments] = field(default_factory=dict)
    _looked: dict[int, set[int]] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _ended: dict[int, list[tuple[int, _Lane]]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(self) -> None:
        """Train all groups of the placement."""
        if not self.placement.shards:
            return
        lanes = 2 if self.executor.workers >= _MANY else 1
        epochs = self.job.epochs.tolist()
        passes = Passes(self.placement, configs=self.job.configs, epochs=epochs, lanes=lanes)
        self._give_out(passes)
        while self._tasks or not passes.finished:
            happened = self.executor.wait()
            if isinstance(happened, Lost):
                self._again(happened)
                continue
            self._take(happened, passes)
            self._give_out(passes)

    def _give_out(self, passes: Passes) -> None:
        """Give every worker that has nothing to do a bundle of turns, if there are any for it."""
        passes.woken()  # all that are idle are asked, whoever was woken; so as not to pile up
        most = max(1, _ANSWER // (4 * (self.grouped.width + 1) * self.job.configs))
        for worker in sorted(set(range(self.executor.workers)) - {task.worker for task in self._tasks.values()}):
            turns: list[Turn] = []
            units = 0
            while units < _BUNDLE and len(turns) < most and (turn := passes.next(worker)) is not None:
                turns.append(turn)
                if not turn.whole:  # others wait for it
                    break
                units += turn.units
                # A whole group is done with when it comes back; to the scheduler it is now, so that it gives out more.
                passes.done(turn, finished=True)
            if turns:
                self._submit(_Task(worker, turns, [self._item(turn) for turn in turns]))

    def _submit(self, task: _Task) -> None:
        number = next(self._numbers)
        self._tasks[number] = task
        self.executor.submit(task.worker, number, "run", task.items)

    def _item(self, turn: Turn) -> tuple[Any, ...]:
        if turn.whole:
            return "solve", turn.group
        lane = self._lane(turn)
        shard = self.placement.shards[turn.shard]
        look = turn.shard not in self._looked.setdefault(turn.group, set())
        at = lane.optimiser.ask()
        at = (at if lane.scale is None else lane.scale.raw(at))[:, lane.live]
        return "partial", turn.group, shard.first, shard.rows, at, look

    def _lane(self, turn: Turn) -> _Lane:
        key = (turn.group, turn.config)
        if key not in self._lanes:
            configs = slice(turn.config, turn.config + turn.configs)
            optimiser = self.job.optimiser(self.grouped.width, configs)
            self._lanes[key] = _Lane(optimiser, ~optimiser.done)
        return self._lanes[key]

    def _take(self, done: Done, passes: Passes) -> None:
        task = self._tasks.pop(done.task)
        for turn, value in zip(task.turns, done.value, strict=True):
            if turn.whole:
                self.on_fit(value)
                continue
            self._add(turn, value)
            wait = passes.done(turn)
            if wait is not None:
                passes.ready(wait, finished=self._passed(wait))

    def _add(self, turn: Turn, found: Partial) -> None:
        """Keep a shard's sums until the others' are there."""
        group = turn.group
        self._seconds[group] = self._seconds.get(group, 0.0) + found.seconds
        if turn.shard not in self._looked[group]:
            self._looked[group].add(turn.shard)
            self._targets[group] = self._targets.get(group, Targets()) + found.targets
            moments = self._moments.get(group)
            self._moments[group] = found.moments if moments is None else moments + found.moments
        self._lanes[group, turn.config].sums[turn.shard] = found.sums

    def _passed(self, wait: Wait) -> bool:
        """Add up a pass over a split group, take the step, and say whether it was the last."""
        lane, group = self._lanes[wait.group, wait.config], wait.group
        total = Sums.zeros(self.grouped.width, int(lane.live.sum()))
        for shard in sorted(lane.sums):  # in the order of the rows, whoever was first
            total = total + lane.sums[shard]
        lane.sums.clear()
        if self.job.standardize:
            # The first pass is at weights of zero, which are so on any scale, and tells the scale.
            shift = self.job.intercept and not self.grouped.encoder.sparse
            lane.scale = lane.scale or Scale.of(self._moments[group], shift=shift)
            total = lane.scale.scaled(total)
        lane.optimiser.tell(total.spread(lane.live))
        lane.live = ~lane.optimiser.done
        flaw = self._targets[group].flaw(self.job.loss)
        if lane.live.any() and not flaw:
            return False
        del self._lanes[group, wait.config]  # what an optimiser remembers is many times its weights
        ended = self._ended.setdefault(group, [])
        ended.append((wait.config, lane))
        if sum(len(lane.optimiser.status) for _, lane in ended) == self.job.configs:
            self.on_fit(self._fit(group, flaw))
        return True

    def _fit(self, group: int, flaw: str) -> Fit:
        targets, seconds, ended = self._targets[group], self._seconds[group], self._ended.pop(group)
        if flaw:
            return Fit(group, targets, seconds, flaw)
        lanes = [lane for _, lane in sorted(ended, key=lambda each: each[0])]
        weights = np.concatenate([lane.weights for lane in lanes], axis=1)
        figures = [np.concatenate(each) for each in zip(*(figures_of(lane.optimiser) for lane in lanes), strict=True)]
        return Fit.of(group, targets, self.job.loss, weights=weights, figures=figures, seconds=seconds)

    def _again(self, lost: Lost) -> None:
        """Give out anew what a worker had when it died."""
        self.deaths.append(f"worker {lost.worker} {lost.reason}")
        for number in lost.tasks:
            task = self._tasks.pop(number)
            task.tries += 1
            if task.tries == _TRIES:
                names = [self.grouped.texts[turn.group] for turn in task.turns[:5]]
                raise WorkerDiedError(
                    f"worker {lost.worker} was {lost.reason} {_TRIES} times while it trained {', '.join(names)}; look"
                    " whether memory ran out, and try fewer workers"
                )
            self._submit(task)
