"""The driver of boosting: whole groups go to their worker, and split ones to all their workers at a time, a gang.

Gangs come first, largest group first, each as soon as all its workers are free; what they must wait for is never more than
one bundle of whole groups. Whoever has nothing left takes whole groups over from the one with the most. When a worker of a
gang dies, all its others end with it, and the group is trained again; after three times it is marked as failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.groups.drivers.base import TRIES, Drive, Task
from penstock.groups.executor import Failure, Lost
from penstock.groups.patterns.base import Fit, Targets
from penstock.groups.patterns.sampling import Boosted, Called, Share, boosted_fit
from penstock.groups.patterns.worker_watch import FOLLOWED, machines
from penstock.groups.place import Shard

_OVERHEAD = 2_000
"""What a tree costs whatever the rows of its group, in rows: all bins are looked through for each of its splits."""
_BUNDLE = 2_000_000
"""Rows x rounds of all configs that are worth a message: some tenths of a second of work."""
_LEAST = 1_000
"""Rows that a part of a group has at least; groups of smaller ones are trained where they are whole."""


@dataclass(slots=True, eq=False)
class _Gang:
    """The workers that train a group together: first they are called, and when all have answered they begin."""

    group: int
    shards: Sequence[Shard]
    tries: int = 0
    due: set[int] = field(default_factory=set)
    """Who is to be asked next."""
    out: set[int] = field(default_factory=set)
    """Who has been asked and has not answered."""
    called: dict[int, Called] = field(default_factory=dict)
    shares: dict[int, Share] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        return [shard.worker for shard in self.shards]

    def begin(self) -> None:
        """Forget what came before, and call everyone."""
        self.due = set(self.workers)
        for kept in (self.called, self.shares, self.broken, self.out):
            kept.clear()

    def ask(self, worker: int) -> Task:
        """Return what a worker is to do next."""
        self.due.remove(worker)
        self.out.add(worker)
        rank = self.workers.index(worker)
        shard = self.shards[rank]
        rows = (self.group, shard.first, shard.rows)
        if len(self.called) < len(self.shards):
            return Task(worker, [("call", *rows)], [self.group], [self], "look")
        members = machines([self.called[each].address for each in self.workers])
        return Task(
            worker, [("together", *rows, rank, members, self.targets.mean_weight)], [self.group], [self], "boost"
        )

    @property
    def targets(self) -> Targets:
        """What the rows of all that were called are like."""
        return sum((self.called[worker].targets for worker in self.workers), Targets())

    def lose(self, worker: int, reason: str) -> None:
        """Take down that a worker's answer will not come; nobody else is asked."""
        self.out.discard(worker)
        self.due.clear()
        self.broken.append(reason)

    @property
    def why(self) -> str:
        """What it broke off by: a death, if there was one, for the others' errors come of it."""
        reasons = [reason for reason in self.broken if reason]
        deaths = [reason for reason in reasons if reason.startswith("worker ")]
        return (deaths or reasons or ["a worker of it ended"])[0]


@dataclass(slots=True)
class GangsDrive(Drive[Boosted]):
    """Trains by boosting."""

    _whole: list[deque[int]] = field(default_factory=list)
    _waiting: list[_Gang] = field(default_factory=list)
    _member: dict[int, _Gang] = field(default_factory=dict)
    """The gang that a worker is in now."""

    def start(self) -> None:
        self._whole = [deque() for _ in range(self.executor.workers)]
        for group in sorted(self.placement.held, key=lambda group: (-self.grouped.size(group), group)):
            shards = [self.placement.shards[number] for number in self.placement.held[group]]
            if len(shards) > 1 and min(shard.rows for shard in shards) >= _LEAST:
                self._waiting.append(_Gang(group, shards))
            else:
                self._whole[shards[0].worker].append(group)

    @property
    def finished(self) -> bool:
        return not (self._waiting or self._member or any(self._whole))

    def next(self, worker: int) -> Task | None:
        gang = self._member.get(worker)
        if gang is None and (gang := self._wanted(worker)) is not None:
            others = [other for other in gang.workers if other != worker]
            if any(other in self._member or self._wanted(other) is not gang for other in others):
                return self._bundle(worker)  # they have something else to do before, and it takes long
            if any(not self._free(other) for other in others):
                return None
            self._waiting.remove(gang)
            self._member |= dict.fromkeys(gang.workers, gang)
            gang.begin()
        if gang is None:
            return self._bundle(worker)
        return gang.ask(worker) if worker in gang.due else None

    def take(self, worker: int, group: int, note: _Gang | None, value: Fit | Called | Share) -> None:
        if isinstance(value, Fit):
            self.done(value)
            return
        assert note is not None
        note.out.discard(worker)
        if isinstance(value, Called):
            note.called[worker] = value
        else:
            note.shares[worker] = value
            if value.broken:
                note.lose(worker, value.broken)
        self._go_on(note)

    def give_up(self, worker: int, group: int, note: _Gang | None, failure: Failure) -> None:
        if note is None:
            self.failed(group, failure)
            return
        note.lose(worker, failure.reason)
        self._go_on(note)

    def _lost(self, lost: Lost) -> None:
        gang = self._member.get(lost.worker)
        if gang is None:
            Drive._lost(self, lost)  # super() knows not the class that slots make
            return
        for number in lost.tasks:
            del self._tasks[number]
        followed = lost.reason.endswith(f"status {FOLLOWED}")
        if not followed:
            self.deaths.append(f"worker {lost.worker} {lost.reason}")
        gang.lose(lost.worker, "" if followed else f"worker {lost.worker} was {lost.reason}")
        self._go_on(gang)

    def _wanted(self, worker: int) -> _Gang | None:
        return next((gang for gang in self._waiting if worker in gang.workers), None)

    def _free(self, worker: int) -> bool:
        return not self._again.get(worker) and all(task.worker != worker for task in self._tasks.values())

    def _bundle(self, worker: int) -> Task | None:
        """Return whole groups of a worker's own, or one of the worker's that has the most left."""
        own, size = self._whole[worker], self.grouped.size
        rounds, units = int(self.job.epochs.sum()), 0
        groups: list[int] = []
        if not own:
            own = max(self._whole, key=lambda queue: sum(size(group) + _OVERHEAD for group in queue))
        while own and units < _BUNDLE:
            groups.append(own.popleft())
            units += (size(groups[-1]) + _OVERHEAD) * rounds
            if own is not self._whole[worker]:
                break
        if not groups:
            return None
        return Task(worker, [("solve", group) for group in groups], groups, [None] * len(groups), "boost")

    def _go_on(self, gang: _Gang) -> None:
        """See how a gang goes on, once nobody's answer is awaited."""
        if gang.out or gang.due:
            return
        if gang.broken:
            self._end(gang)
            gang.tries += 1
            if gang.tries < TRIES:
                self._waiting.insert(0, gang)
                return
            fix = "look whether memory ran out, and try fewer workers"
            told = f"training on {len(gang.shards)} workers broke off {TRIES} times, last: {gang.why}; {fix}"
            self.failed(gang.group, Failure(told))
        elif gang.shares:
            self._end(gang)
            shares, targets = [gang.shares[worker] for worker in gang.workers], gang.targets
            self.done(
                boosted_fit(gang.group, targets, self.job, shares, seconds=sum(share.seconds for share in shares))
            )
        else:
            self._called(gang)

    def _called(self, gang: _Gang) -> None:
        targets = gang.targets
        flaw = targets.flaw(self.job.loss)
        if flaw:
            self._end(gang)
            self.done(Fit(gang.group, targets, 0.0, flaw))
        elif any(not called.targets.rows for called in gang.called.values()):  # LightGBM wants rows of everyone
            self._end(gang)
            self._whole[gang.workers[0]].appendleft(gang.group)
        else:
            gang.due = set(gang.workers)

    def _end(self, gang: _Gang) -> None:
        for worker in gang.workers:
            del self._member[worker]
