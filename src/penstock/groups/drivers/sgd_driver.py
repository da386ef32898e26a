"""The driver of SGD: configs hop between the workers that hold the parts of a group, and their states come along.

States rest here between turns, so that a death costs the turn that was under way and nothing else. Small whole groups are
trained at one go, in bundles. With halving, training goes in rounds: all configs that are still in the race train to the
next rung, are measured on the rows to choose by, and the best of each group go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.groups.drivers.base import Drive, Task
from penstock.groups.drivers.config_progress import Course, PartialMeasures
from penstock.groups.executor import Failure
from penstock.groups.halving import EpochRun, Halving
from penstock.groups.patterns.base import Fit
from penstock.groups.patterns.sequential import Look, Measured, Sequential, Trained, scale_of
from penstock.groups.schedule import Hopper, Turn, Wait, shard_order

BUNDLE = 2_000_000
"""Rows x configs x epochs that are worth a message: some tens of milliseconds of work."""
_LONG = 50_000_000
"""Rows x configs x epochs that a message asks for at most, unless one epoch is more: about a second of work."""


@dataclass(slots=True)
class HopsDrive(Drive[Sequential]):
    """Trains row by row."""

    halving: Halving | None = None
    """Over the groups that have rows in the placement, in the order of their numbers."""
    _hopper: Hopper | None = None
    _courses: dict[int, Course] = field(default_factory=dict)
    _goals: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    _side: dict[int, deque[Task]] = field(default_factory=dict)
    _going: dict[int, Turn] = field(default_factory=dict)
    _measuring: dict[tuple[int, int], PartialMeasures] = field(default_factory=dict)
    _running: dict[int, list[EpochRun]] = field(default_factory=dict)
    _dead: dict[int, str] = field(default_factory=dict)
    _over: set[int] = field(default_factory=set)

    _groups: list[int] = field(default_factory=list)
    _length: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The epochs of the round, as the scheduler counts them for each config."""

    def start(self) -> None:
        """Look at the groups that lie on several workers: what they are like is known to none of them."""
        self._groups = sorted(self.placement.held)
        for group, held in self.placement.held.items():
            if len(held) > 1:
                for number in held:
                    shard = self.placement.shards[number]
                    self._aside(shard.worker, group, ("look", group, shard.first, shard.rows), ("look", None))

    def work(self) -> None:
        Drive.work(self)
        for goals in self._rounds():
            self._goals = goals
            self._hopper = self._scheduler(goals)
            Drive.work(self)
            self._report()

    @property
    def finished(self) -> bool:
        return not any(self._side.values()) and (self._hopper is None or self._hopper.finished)

    @property
    def alive(self) -> int:
        """Configs that are still in the race, of all groups."""
        return sum(len(runs) for runs in self._running.values())

    def next(self, worker: int) -> Task | None:
        side = self._side.get(worker)
        if side:
            return side.popleft()
        if worker in self._going:
            return self._whole(self._going[worker])
        if self._hopper is None:
            return None
        self._hopper.woken()  # all that are idle are asked, whoever was woken; so as not to pile up
        return self._turns(worker, self._hopper)

    def take(self, worker: int, group: int, note: tuple[str, Any], value: Any) -> None:
        what, rest = note
        if what == "solve":
            self._end(value)
        elif what == "advance":
            self._advanced(group, rest, *value)
        elif what == "look":
            self._looked(group, value)
        elif what == "measure":
            self._measured(group, rest[0], rest[1], value)
        else:
            self._trained(rest, value)

    def give_up(self, worker: int, group: int, note: tuple[str, Any], failure: Failure) -> None:
        what, rest = note
        self._fail(group, failure.reason, failure.traceback)
        if what == "train":
            self._end_turn(rest)
        elif what == "measure":
            self._judged(group, rest[0])

    def _rounds(self) -> Iterator[dict[int, NDArray[np.int64]]]:
        """Yield the epochs that configs are to have after each round."""
        if self.halving is None:
            yield {group: self.job_of(group).epochs for group in self._groups if group not in self._over}
            return
        while True:
            goals: dict[int, NDArray[np.int64]] = {}
            while (run := self.halving.next()) is not None:
                group = self._groups[run.group]
                self._running.setdefault(group, []).append(run)
                if group not in goals:
                    goals[group] = self._course(group).had.copy()
                goals[group][run.config] = run.to_epoch
            if not goals:
                return
            yield goals

    def _scheduler(self, goals: dict[int, NDArray[np.int64]]) -> Hopper:
        """Schedule what is between where configs are and their goals: as many epochs before the end of the round."""
        count = self.job.configs
        if self.halving is None:
            self._length = self.job.epochs
        else:
            most = max(int((goal - self._had(group)).max()) for group, goal in goals.items())
            self._length = np.full(count, max(1, most))
        begun = {}
        for group in self._groups:
            running = group in goals and group not in self._over
            had = self._length - (goals[group] - self._had(group)) if running else self._length
            begun.update({(group, config): int(had[config]) for config in range(count) if had[config]})
        return Hopper(self.placement, configs=count, epochs=self._length.tolist(), begun=begun)

    def _turns(self, worker: int, hopper: Hopper) -> Task | None:
        """Return a turn of a split group, or a bundle of whole ones."""
        bundle = Task(worker, [], [], [], "solve" if self.halving is None else "train")
        units = 0
        while units < BUNDLE and (turn := hopper.next(worker)) is not None:
            if turn.group in self._dead or (turn.whole and not self._taking_part(turn)):
                self._end_turn(turn)
            elif turn.whole and (asked := self._at_one_go(turn)):
                hopper.done(turn, finished=True)
                bundle.add(turn.group, *asked)
                units += turn.units
            elif bundle.items:  # kept for when the bundle is back
                self._going[worker] = turn
                break
            else:
                return self._whole(turn) if turn.whole else self._part(turn)
        return bundle if bundle.items else None

    def _at_one_go(self, turn: Turn) -> tuple[tuple[Any, ...], tuple[str, Any]] | None:
        """Return what asks for all that is left of a whole group, with its note; None where that is too much."""
        group = turn.group
        if turn.units > _LONG:
            return None
        if self.halving is not None:
            course, configs = self._course(group), self._taking_part(turn)
            until = self._goals[group][configs]
            item = ("advance", group, configs, course.taken(configs), course.had[configs], until)
            return item, ("advance", configs)
        begun = group in self._courses and bool(self._courses[group].had.any())
        if begun or turn.configs < self.job.configs or turn.epochs < self._goals[group].max():
            return None
        return ("solve", group), ("solve", None)

    def _whole(self, turn: Turn) -> Task:
        """Ask for some epochs of configs of a group that lies on this worker alone."""
        if not turn.whole:
            del self._going[turn.worker]
            return self._part(turn)
        self._going[turn.worker] = turn
        course, rows = self._course(turn.group), self.placement.shards[turn.shard].rows
        configs = self._taking_part(turn)
        epochs = max(1, _LONG // (rows * len(configs)))
        until = np.minimum(self._until(turn)[configs], course.had[configs] + epochs)
        item = (
            "train",
            turn.group,
            0,
            rows,
            configs,
            course.taken(configs),
            None,
            None,
            course.had[configs],
            until,
            True,
        )
        return Task(turn.worker, [item], [turn.group], [("train", turn)], "train")

    def _part(self, turn: Turn) -> Task:
        """Ask for one config's way over one part of a group."""
        course, shard = self._course(turn.group), self.placement.shards[turn.shard]
        had, configs = course.had[[turn.config]], [turn.config]
        ends = turn.shard == self._order(turn)[-1]
        where = (turn.group, shard.first, shard.rows)
        item = (
            "train",
            *where,
            configs,
            course.taken(configs),
            course.scale,
            course.targets,
            had,
            had + 1,
            ends,
        )
        return Task(turn.worker, [item], [turn.group], [("train", turn)], "train")

    def _taking_part(self, turn: Turn) -> list[int]:
        left = self._course(turn.group).left(self._until(turn))
        if self.halving is not None:  # those that are still in the race, scattered as they are, share each read
            return np.flatnonzero(left).tolist()
        return [config for config in range(turn.config, turn.config + turn.configs) if left[config]]

    def _until(self, turn: Turn) -> NDArray[np.int64]:
        """Return the epochs that each config has had when a turn of a whole group is over."""
        if self.halving is not None:
            return self._goals[turn.group]
        still: NDArray[np.int64] = np.maximum(0, self._length - turn.epoch - turn.epochs)
        return self._goals[turn.group] - still

    def _order(self, turn: Turn) -> list[int]:
        held = self.placement.held[turn.group]
        return [held[place] for place in shard_order(turn.config, shards=len(held))]

    def _trained(self, turn: Turn, found: Trained) -> None:
        group, course = turn.group, self._course(turn.group)
        course.seconds += found.seconds
        if found.reason:
            self._fail(group, found.reason)
            self._end_turn(turn)
            return
        if turn.whole:
            configs = np.array(self._taking_part(turn))
            course.went(configs, found)
        else:
            configs = np.array([turn.config])
            first = turn.shard == self._order(turn)[0]
            for sums, more in ((course.losses, found.losses), (course.weights, found.weights)):
                sums[configs] = more if first else sums[configs] + more
            course.had[configs] += turn.shard == self._order(turn)[-1]
        course.arrived(configs, found)
        if not turn.whole or not self._taking_part(turn):
            self._end_turn(turn)

    def _advanced(self, group: int, configs: list[int], found: Trained, measured: Measured | None) -> None:
        """Take in a round of a whole group that was trained and measured at one go."""
        course = self._course(group)
        course.seconds += found.seconds
        if found.reason or measured is None:
            self._fail(group, found.reason)
            return
        course.went(np.array(configs), found)
        course.arrived(np.array(configs), found)
        self._measuring[group, -1] = PartialMeasures(configs, 1, None)
        self._measured(group, -1, 0, measured)

    def _end_turn(self, turn: Turn) -> None:
        """Tell the scheduler, and have configs measured where they have come to their goal."""
        hopper, group = self._hopper, turn.group
        assert hopper is not None
        dead = group in self._dead
        if turn.whole:
            self._going.pop(turn.worker, None)
            over = dead or not self._course(group).left(self._goals[group]).any()
            hopper.done(turn, finished=over)
            if over and not dead:
                self._measure(group, np.flatnonzero(self._trying(group)).tolist(), None)
            return
        course, wait = self._course(group), hopper.done(turn)
        ended = turn.shard == self._order(turn)[-1]
        watched = course.watches[turn.config] is not None and not course.failed[turn.config]
        if ended and watched and not dead:
            self._measure(group, [turn.config], wait, epoch=True)
            return
        self._went_on(group, turn.config, wait)

    def _went_on(self, group: int, config: int, wait: Wait | None) -> None:
        """Send a config of a split group on, or see whether it was the last of its group."""
        hopper, course = self._hopper, self._course(group)
        assert hopper is not None
        dead = group in self._dead
        if wait is not None:
            finished = dead or bool(course.failed[config] or course.stopped[config])
            hopper.ready(wait, finished=finished)
            if not finished:
                return
        watching = any(other == group and key >= 0 for other, key in self._measuring)
        if not (dead or watching or course.left(self._goals[group]).any() or group in self._over):
            self._measure(group, np.flatnonzero(self._trying(group)).tolist(), None)

    def _trying(self, group: int) -> NDArray[np.bool_]:
        """Say which configs have been trained in this round."""
        if self.halving is None:
            return np.ones(self.job.configs, bool)
        running = np.zeros(self.job.configs, bool)
        running[[run.config for run in self._running[group]]] = True
        return running

    def _measure(self, group: int, configs: list[int], wait: Wait | None, *, epoch: bool = False) -> None:
        """Have configs measured on the rows to choose by, by all workers that have some of the group: their models, or one
        config as it is after an ``epoch``.
        """
        course, held = self._course(group), self.placement.held[group]
        key = configs[0] if epoch else -1
        self._measuring[group, key] = PartialMeasures(configs, len(held), wait)
        for number in held:
            shard = self.placement.shards[number]
            item = (
                "measure",
                group,
                shard.first,
                shard.rows,
                configs,
                course.taken(configs) if epoch else course.model_states(configs),
                course.scale,
                course.targets,
            )
            self._aside(shard.worker, group, item, ("measure", (key, number)))

    def _measured(self, group: int, key: int, number: int, found: Measured) -> None:
        measuring, course = self._measuring[group, key], self._course(group)
        course.seconds += found.seconds
        measuring.sums[number] = np.stack([found.losses, found.right])
        course.keep(measuring.configs, found.models)
        if course.look is None:
            course.targets = found.targets
        self._judged(group, key)

    def _judged(self, group: int, key: int) -> None:
        """Go on when all parts of what was measured are there."""
        measuring, course = self._measuring[group, key], self._course(group)
        measuring.missing -= 1
        if measuring.missing:
            return
        del self._measuring[group, key]
        if group in self._dead:
            if key >= 0:
                self._went_on(group, key, measuring.wait)
            return
        # In the order of the rows, whoever was first.
        course.held[:, measuring.configs] = sum(sums for _, sums in sorted(measuring.sums.items()))
        if key >= 0:
            course.watch(key)
            self._went_on(group, key, measuring.wait)
        elif self.halving is None:
            self._end(course.fit(self.job, group))

    def _looked(self, group: int, found: Look) -> None:
        course = self._course(group)
        course.look = found if course.look is None else course.look + found
        course.targets = course.look.targets.weighed(self.job.class_weights(course.look.targets))
        if any(note[0] == "look" for task in self._waiting(group) for note in task.notes):
            return
        flaw = course.look.flaw(self.job.loss)
        if flaw:
            self._fail(group, flaw)
        course.scale = scale_of(self.job, course.look, self.grouped)

    def _waiting(self, group: int) -> Iterator[Task]:
        """Yield what is asked, or about to be asked, of a group."""
        for task in [*self._tasks.values(), *(task for queue in self._side.values() for task in queue)]:
            if group in task.groups:
                yield task
        for queue in self._again.values():
            yield from (task for task in queue if group in task.groups)

    def _aside(self, worker: int, group: int, item: tuple[Any, ...], note: tuple[str, Any]) -> None:
        """Have a worker do something that the scheduler does not know of, before anything else."""
        self._side.setdefault(worker, deque()).append(Task(worker, [item], [group], [note], item[0]))

    def _course(self, group: int) -> Course:
        if group not in self._courses:
            self._courses[group] = Course.of(self.job)
        return self._courses[group]

    def _had(self, group: int) -> NDArray[np.int64]:
        return self._courses[group].had if group in self._courses else np.zeros(self.job.configs, np.int64)

    def _fail(self, group: int, reason: str, traceback: str = "") -> None:
        if group not in self._dead:
            self._dead[group] = reason
            targets = self._course(group).targets
            self._end(Fit(group, targets, self._course(group).seconds, reason, traceback=traceback))

    def _end(self, fit: Fit) -> None:
        self._over.add(fit.group)
        if fit.group not in self._dead:
            self._courses.pop(fit.group, None)  # states are many times the models
        self.done(fit)

    def _report(self) -> None:
        """Tell the race how the configs of a round did, and hand on the groups that are through."""
        if self.halving is None:
            return
        for group, runs in self._running.items():
            course = self._course(group)
            losses = course.standing
            for run in runs:
                bad = group in self._dead or course.failed[run.config]
                early = bool(course.stopped[run.config])
                epoch = max(run.from_epoch + 1, int(course.had[run.config]))
                loss = float("nan") if bad else float(losses[run.config])
                self.halving.report(run.group, run.config, min(epoch, run.to_epoch), loss, converged=early)
        self._running.clear()
        for number in self.halving.ended():
            group = self._groups[number]
            if group not in self._dead:
                standing = np.array(self.halving.standing(number))
                self._end(self._course(group).fit(self.job, group, given_up=standing == "stopped"))
