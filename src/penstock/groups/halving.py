"""Which config of which group to train next, and for how long: successive halving over the whole forest at once.

Every group has its own ladder of rungs: all configs train for a few epochs, the best ``1 / eta`` of them go on to the
next rung, and so on to the end. Asynchronously (ASHA) a config is promoted as soon as it is among the best so far;
otherwise a rung waits for all of its configs. One budget of passes is shared by all groups. Pure and driven by events:
no data, no clock, no chance; the same reports in the same order give the same runs. No group is left without a config
that ran to the end, unless each of its configs failed.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import BudgetError, UsageError


class EpochRun(NamedTuple):
    """Train this config of this group from one epoch to another."""

    group: int
    config: int
    from_epoch: int
    to_epoch: int


@dataclass(slots=True)
class _Rung:
    sent: int = 0
    arrived: int = 0
    losses: list[tuple[float, int]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    queued: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Group:
    rungs: list[_Rung]
    started: int = 0
    stopped: bool = False
    over: bool = False
    furthest: int = -1
    running: dict[int, tuple[int, EpochRun]] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    converged: set[int] = field(default_factory=set)


class Halving:
    """Successive halving of the configs of every group.

    Parameters
    ----------
    groups, configs : int
        How many there are of each.
    eta : int
        One config in so many goes on to the next rung, where it trains so many times as long.
    least, most : int
        Epochs on the first rung, and at the end; ``most`` may be a number for each config.
    asynchronous : bool
        Promote as soon as a config is among the best of those seen (ASHA), or when its rung is complete.
    budget : int, optional
        Passes for all groups together; at least ``most`` for each group, so that a config of each can run to the end.
        It bounds what is explored: only where the last candidate of a group fails is more spent, to find another.
    cost : sequence of int, optional
        What a pass over each group takes of the budget, such as its rows; 1 if not given.

    Examples
    --------
    >>> halving = Halving(1, 3, eta=3, least=1, most=9)
    >>> while run := halving.next():
    ...     print(tuple(run))
    ...     halving.report(run.group, run.config, run.to_epoch, loss=[0.5, 0.1, 0.3][run.config])
    (0, 0, 0, 1)
    (0, 1, 0, 1)
    (0, 2, 0, 1)
    (0, 1, 1, 3)
    (0, 1, 3, 9)
    >>> halving.best(0), halving.done, halving.spent
    (1, True, 11)
    """

    def __init__(
        self,
        groups: int,
        configs: int,
        *,
        eta: int = 3,
        least: int = 1,
        most: int | Sequence[int],
        asynchronous: bool = True,
        budget: int | None = None,
        cost: Sequence[int] | None = None,
    ) -> None:
        self._most = [most] * configs if isinstance(most, int) else [int(epochs) for epochs in most]
        self._cost = [1] * groups if cost is None else [int(each) for each in cost]
        _require(groups, configs, eta, least, self._most, self._cost)
        self.groups, self.configs, self.eta, self.asynchronous = groups, configs, eta, asynchronous
        self._epochs = rungs(least, max(self._most), eta)
        self._reserve = sum(self._cost) * self._epochs[-1]
        self._budget = math.inf if budget is None else budget
        if self._budget < self._reserve:
            raise BudgetError(
                f"a budget of {budget:,} passes cannot bring a config of each of {groups:,} groups to epoch"
                f" {self._epochs[-1]}; give at least {self._reserve:,}"
            )
        self.spent = 0
        self._states = [_Group([_Rung() for _ in self._epochs]) for _ in range(groups)]
        self._ready: list[tuple[int, int, float, int, bool]] = []
        self._again: deque[EpochRun] = deque()
        self._cursor = 0
        self._open = groups
        self._ended: list[int] = []

    @property
    def done(self) -> bool:
        """Whether every group is over."""
        return self._open == 0

    def next(self) -> EpochRun | None:
        """Return what to train now; None while all depends on runs under way, and when all is done."""
        while True:
            if self._again:
                return self._again.popleft()
            if self._ready:
                run = self._promoted()
            elif self._cursor < self.groups * self.configs:
                run = self._started()
            else:
                return None
            if run is not None:
                return run

    def report(self, group: int, config: int, epoch: int, loss: float, *, converged: bool = False) -> None:
        """Take note of a config's loss after an epoch of its run.

        Epochs before the run's last one count only where the loss is not finite, which ends the config as failed, or
        where it ``converged``: it then needs no more passes, and goes on from rung to rung without any.
        """
        _, run = self._under_way(group, config)
        if not run.from_epoch < epoch <= run.to_epoch:
            raise UsageError(
                f"epoch {epoch} of config {config} in group {group} is not in its run from {run.from_epoch} to {run.to_epoch}"
            )
        loss = float(loss)
        if epoch < run.to_epoch and math.isfinite(loss) and not converged:
            return
        state = self._states[group]
        at, _ = state.running.pop(config)
        self.spent -= self._cost[group] * (run.to_epoch - epoch)
        if math.isfinite(loss) and (converged or epoch == self._most[config]):
            state.converged.add(config)
        self._arrive(state, at, config, loss)
        self._settle(group)

    def lost(self, group: int, config: int) -> None:
        """Have a run that came to nothing, since its worker died, say, given out again."""
        _, run = self._under_way(group, config)
        if run not in self._again:
            self._again.append(run)

    def over(self, group: int) -> bool:
        """Whether nothing more of a group will be trained."""
        return self._states[group].over

    def ended(self) -> list[int]:
        """Return the groups that came to their end since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def best(self, group: int) -> int | None:
        """Return the config with the least loss of those that ran to the end, the first of equals; None if there is none."""
        ends = self._states[group].ends
        return min(ends, key=lambda config: (ends[config], config)) if ends else None

    def standing(self, group: int) -> list[str]:
        """Return how each config of a group stands: waiting, running, done, stopped (not promoted) or failed."""
        state = self._states[group]
        words = dict.fromkeys(range(self.configs), "stopped" if state.over else "waiting")
        words |= dict.fromkeys(state.running, "running") | dict.fromkeys(state.failed, "failed")
        words |= dict.fromkeys(state.ends, "done")
        return list(words.values())

    def _promoted(self) -> EpochRun | None:
        """Send the first of the queue on, unless others have overtaken it or there is nothing left to explore with."""
        below, group, loss, config, forced = heapq.heappop(self._ready)
        state, number = self._states[group], -below
        rung = state.rungs[number]
        rung.queued.discard(config)
        stands = bisect_left(rung.losses, (loss, config)) < self._quota(state, number)
        if forced or (stands and self._affords(group, config, number + 1)):
            rung.promoted.add(config)
            return self._send(group, config, number + 1)
        if stands:
            rung.refused.add(config)
        self._settle(group)
        return None

    def _started(self) -> EpochRun | None:
        """Start the next config, one for each group in turn; a group that cannot afford it makes do with those it has."""
        config, group = divmod(self._cursor, self.groups)
        self._cursor += 1
        state = self._states[group]
        if state.stopped or config < state.started:
            return None
        if self._affords(group, config, 0):
            state.started += 1
            return self._send(group, config, 0)
        state.stopped = True
        self._settle(group)
        return None

    def _under_way(self, group: int, config: int) -> tuple[int, EpochRun]:
        known = 0 <= group < self.groups and config in self._states[group].running
        if not known:
            raise UsageError(f"config {config} of group {group} is not being trained; report the runs that `next` gave")
        return self._states[group].running[config]

    def _epoch(self, rung: int, config: int) -> int:
        return min(self._epochs[rung], self._most[config]) if rung >= 0 else 0

    def _quota(self, state: _Group, rung: int) -> int:
        """Return how many of a rung's best may go on."""
        arrived = state.rungs[rung].arrived
        if self._closed(state, rung):
            return max(1, arrived // self.eta)
        return arrived // self.eta if self.asynchronous else 0

    def _closed(self, state: _Group, rung: int) -> bool:
        """Return whether no more configs will come to a rung."""
        if state.started < self.configs and not state.stopped:
            return False
        return all(
            each.arrived == each.sent and (number == rung or not each.queued)
            for number, each in enumerate(state.rungs[: rung + 1])
        )

    def _affords(self, group: int, config: int, rung: int) -> bool:
        """Return whether a run leaves every group enough to bring a config to the end."""
        state, cost = self._states[group], self._cost[group]
        passes = self._epoch(rung, config) - self._epoch(rung - 1, config)
        freed = self._epochs[rung] - self._reached(state) if rung > state.furthest and not state.ends else 0
        return self.spent + self._reserve + cost * (passes - freed) <= self._budget

    def _reached(self, state: _Group) -> int:
        return self._epochs[state.furthest] if state.furthest >= 0 else 0

    def _reassess(self, group: int, furthest: int, *, ended: bool) -> None:
        """Keep what is set aside for a group to finish in step with how far it is."""
        state, cost = self._states[group], self._cost[group]
        if state.ends:
            return
        self._reserve -= cost * (self._epochs[-1] - self._reached(state))
        state.furthest = furthest
        self._reserve += 0 if ended else cost * (self._epochs[-1] - self._reached(state))

    def _send(self, group: int, config: int, rung: int) -> EpochRun:
        state = self._states[group]
        run = EpochRun(group, config, self._epoch(rung - 1, config), self._epoch(rung, config))
        state.rungs[rung].sent += 1
        state.running[config] = rung, run
        self.spent += self._cost[group] * (run.to_epoch - run.from_epoch)
        if rung > state.furthest:
            self._reassess(group, rung, ended=False)
        return run

    def _arrive(self, state: _Group, rung: int, config: int, loss: float) -> None:
        state.rungs[rung].arrived += 1
        if math.isfinite(loss):
            insort(state.rungs[rung].losses, (loss, config))
        else:
            state.failed.add(config)

    def _settle(self, group: int) -> None:
        """Queue what may be promoted in a group, and see whether it is over."""
        state = self._states[group]
        if state.over:
            return
        for number, rung in enumerate(state.rungs[:-1]):
            for loss, config in rung.losses[: self._quota(state, number)]:
                self._promote(group, number, loss, config)
        self._note_ends(group)
        idle = not state.running and not any(rung.queued for rung in state.rungs)
        if not idle or (state.started < self.configs and not state.stopped):
            return
        if state.ends or not self._rescue(group):
            self._finish(group)

    def _promote(self, group: int, number: int, loss: float, config: int, *, forced: bool = False) -> None:
        state, rung = self._states[group], self._states[group].rungs[number]
        if config in rung.promoted or config in rung.queued or (config in rung.refused and not forced):
            return
        if config in state.converged:
            rung.promoted.add(config)
            state.rungs[number + 1].sent += 1
            self._arrive(state, number + 1, config, loss)
        else:
            rung.queued.add(config)
            heapq.heappush(self._ready, (-number, group, loss, config, forced))

    def _note_ends(self, group: int) -> None:
        state = self._states[group]
        last = state.rungs[-1].losses
        if last and not state.ends:
            self._reassess(group, len(self._epochs) - 1, ended=True)
        state.ends.update((config, loss) for loss, config in last)
        if not state.ends:
            alive = [k for k, rung in enumerate(state.rungs) if rung.losses or rung.sent > rung.arrived]
            self._reassess(group, max(alive, default=-1), ended=False)

    def _rescue(self, group: int) -> bool:
        """Bring on the next candidate of a group whose candidates failed or were too dear; False if there is none."""
        state = self._states[group]
        for number in range(len(self._epochs) - 2, -1, -1):
            rung = state.rungs[number]
            for loss, config in rung.losses:
                if config not in rung.promoted:
                    self._promote(group, number, loss, config, forced=True)
                    self._settle(group)
                    return True
        if state.started == self.configs:
            return False
        self._again.append(self._send(group, state.started, 0))
        state.started += 1
        return True

    def _finish(self, group: int) -> None:
        state = self._states[group]
        if not state.ends:
            self._reassess(group, state.furthest, ended=True)
        state.over, state.rungs = True, []
        self._open -= 1
        self._ended.append(group)


def rungs(least: int, most: int, eta: int) -> list[int]:
    """Return the epochs at which configs are compared, the last of them the end.

    Examples
    --------
    >>> rungs(1, 20, 3)
    [1, 3, 9, 20]
    >>> rungs(5, 5, 3)
    [5]
    """
    epochs = []
    while least < most:
        epochs.append(least)
        least *= eta
    return [*epochs, most]


def _require(groups: int, configs: int, eta: int, least: int, most: Sequence[int], cost: Sequence[int]) -> None:
    for option, value, fewest in (("groups", groups, 0), ("configs", configs, 1), ("eta", eta, 2), ("least", least, 1)):
        if value < fewest:
            raise UsageError("cannot be halved", option=option, value=value, fixes=[f"choose at least {fewest}"])
    if len(most) != configs or min(most) < 1:
        raise UsageError(
            f"is not a number of epochs for each of {configs} configs",
            option="most",
            value=list(most),
            fixes=["choose 1 or more"],
        )
    if len(cost) != groups or min(cost, default=0) < 0:
        raise UsageError(f"cost must be zero or more for each of {groups} groups; it has {len(cost)} values")
