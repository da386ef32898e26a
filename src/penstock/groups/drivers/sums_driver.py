"""The driver of algebraic work: whole groups are solved where they lie, in bundles, so that thousands of small ones do not
cost a message each; of groups that lie on several workers only weights and sums travel, and are added when they are there.

A group that would take long is trained so too though it lies on one worker: a death then costs one pass over it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.class_weights import ClassWeights
from penstock.groups.drivers.base import Drive, Task
from penstock.groups.executor import Failure
from penstock.groups.patterns.algebraic import Algebraic, Partial, figures_of
from penstock.groups.patterns.base import Doubles, Fit, Targets
from penstock.groups.scale import Moments, Scale
from penstock.groups.schedule import Passes, Turn, Wait
from penstock.sgd.full import Sums
from penstock.sgd.lbfgs import Optimiser

BUNDLE = 4_000_000
"""Rows x configs x epochs that are worth a message: some tens of milliseconds of work."""
_ANSWER = 32 << 20
"""Bytes of weights after which a bundle is full, however quickly they are found."""
_MANY = 8
"""Workers from which on the configs of a split group go in two batches, so that one is under way while the other waits."""
_LONG = 200_000_000
"""Rows x configs x epochs from which on a whole group goes by passes: some seconds of work."""


@dataclass(slots=True)
class _Lane:
    """Configs of a split group that go through the same passes."""

    configs: slice
    start: Doubles
    live: Any
    optimiser: Optimiser | None = None
    """None before the first pass, which tells how many rows there are and with that the penalty."""
    scale: Scale | None = None
    class_weights: ClassWeights | None = None
    sums: dict[int, Sums] = field(default_factory=dict)

    @property
    def at(self) -> Doubles:
        """The weights at which the next pass is made, for features as they are."""
        at = self.start if self.optimiser is None else self.optimiser.ask()
        return at if self.scale is None else self.scale.raw(at)

    @property
    def weights(self) -> Doubles:
        """The best weights, for features as they are."""
        best = self.start if self.optimiser is None else self.optimiser.best
        return best if self.scale is None else self.scale.raw(best)


@dataclass(slots=True)
class PassesDrive(Drive[Algebraic]):
    """Trains by sums."""

    _passes: Passes = field(init=False)
    _lanes: dict[tuple[int, int], _Lane] = field(default_factory=dict)
    _targets: dict[int, Targets] = field(default_factory=dict)
    _moments: dict[int, Moments] = field(default_factory=dict)
    _looked: dict[int, set[int]] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _ended: dict[int, list[tuple[int, _Lane]]] = field(default_factory=dict)
    _given_up: dict[int, Failure] = field(default_factory=dict)

    def start(self) -> None:
        lanes = 2 if self.executor.workers >= _MANY else 1
        # Sparse rows are cut down to the features of their group where it is solved as a whole.
        long = None if self.grouped.recipe.sparse else _LONG
        epochs = (self.job.epochs + self._looks).tolist()
        self._passes = Passes(
            self.placement,
            configs=self.job.configs,
            epochs=epochs,
            lanes=lanes,
            long=long,
            by_passes=[self.grouped.pooled],  # which may not fit in memory
        )

    @property
    def _looks(self) -> bool:
        """Whether the first pass over a split group only looks at its rows: what is to be summed hangs on them."""
        return self.job.class_weighting is not None or self.refits is not None

    @property
    def finished(self) -> bool:
        return self._passes.finished

    def next(self, worker: int) -> Task | None:
        """Return a bundle of turns, if there are any for a worker."""
        passes = self._passes
        passes.woken()  # all that are idle are asked, whoever was woken; so as not to pile up
        most = max(1, _ANSWER // (4 * (self.grouped.width + 1) * self.job.configs))
        turns: list[Turn] = []
        units = 0
        while units < BUNDLE and len(turns) < most and (turn := passes.next(worker)) is not None:
            turns.append(turn)
            if not turn.whole:  # others wait for it
                break
            units += turn.units
            # A whole group is done with when it comes back; to the scheduler it is now, so that it gives out more.
            passes.done(turn, finished=True)
        if not turns:
            return None
        what = "solve" if turns[0].whole else "sum"
        return Task(worker, [self._item(turn) for turn in turns], [turn.group for turn in turns], list(turns), what)

    def take(self, worker: int, group: int, note: Turn, value: Any) -> None:
        if note.whole:
            self.done(value)
            return
        self._add(note, value)
        self._over(note)

    def give_up(self, worker: int, group: int, note: Turn, failure: Failure) -> None:
        if note.whole:
            self.failed(group, failure)
            return
        self._given_up[group] = failure
        self._over(note)

    def _over(self, turn: Turn) -> None:
        wait = self._passes.done(turn)
        if wait is not None:
            self._passes.ready(wait, finished=self._passed(wait))

    def _item(self, turn: Turn) -> tuple[Any, ...]:
        if turn.whole:
            return "solve", turn.group
        lane = self._lane(turn)
        shard = self.placement.shards[turn.shard]
        look = turn.shard not in self._looked.setdefault(turn.group, set())
        return "partial", turn.group, shard.first, shard.rows, lane.at[:, lane.live], look, lane.class_weights

    def _lane(self, turn: Turn) -> _Lane:
        key = (turn.group, turn.config)
        if key not in self._lanes:
            configs = slice(turn.config, turn.config + turn.configs)
            self._lanes[key] = _Lane(configs, self.job.start(self.grouped.width, configs), np.ones(turn.configs, bool))
        return self._lanes[key]

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
        flaw = self._given_up.get(group, Failure(""))
        if not flaw.reason:
            self._step(lane, group)
            flaw = Failure(self._targets[group].flaw(self.job.loss))
            if lane.live.any() and not flaw.reason:
                return False
        del self._lanes[group, wait.config]  # what an optimiser remembers is many times its weights
        ended = self._ended.setdefault(group, [])
        ended.append((wait.config, lane))
        if sum(len(lane.live) for _, lane in ended) == self.job.configs:
            self.done(self._fit(group, flaw))
        return True

    def _step(self, lane: _Lane, group: int) -> None:
        total = Sums.zeros(len(lane.start) - 1, int(lane.live.sum()))
        for shard in sorted(lane.sums):  # in the order of the rows, whoever was first
            total = total + lane.sums[shard]
        lane.sums.clear()
        if lane.optimiser is None:
            job, targets = self.job_of(group), self._targets[group]
            if job.standardize:
                lane.scale = Scale.for_recipe(self._moments[group], self.grouped.recipe, shift=job.intercept)
            lane.class_weights = job.class_weights(targets)
            start = job.start(self.grouped.width, lane.configs, scale=lane.scale)
            lane.optimiser = job.optimiser(start, targets, lane.configs)
            if self._looks:
                return  # the sums are at weights of zero, and of rows that do not count by their class yet
        if lane.scale is not None:
            total = lane.scale.scaled(total)
        lane.optimiser.tell(total.spread(lane.live))
        lane.live = ~lane.optimiser.done

    def _fit(self, group: int, flaw: Failure) -> Fit:
        targets, seconds = self._targets.get(group, Targets()), self._seconds.get(group, 0.0)
        targets = targets.weighed(self.job.class_weights(targets))
        ended = self._ended.pop(group)
        if flaw.reason:
            return Fit(group, targets, seconds, flaw.reason, traceback=flaw.traceback)
        lanes = [lane for _, lane in sorted(ended, key=lambda each: each[0])]
        weights = np.concatenate([lane.weights for lane in lanes], axis=1)
        told = [figures_of(lane.optimiser) for lane in lanes if lane.optimiser is not None]
        figures = [np.concatenate(each) for each in zip(*told, strict=True)]
        return Fit.of(group, targets, self.job.loss, weights=weights, figures=figures, seconds=seconds)
