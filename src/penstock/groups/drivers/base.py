"""What every driver does: keep workers busy, tell what they did when, and give out again what was lost with one of them.

What a worker was doing when it died costs just that: it is given to the one in its place. A bundle is taken apart then, so
that a group whose training kills workers is found out; after three times it is marked as failed, and the rest goes on. A
group whose training raises an exception is marked as failed at once.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.groups.executor import Done, Executor, Failure, Lost
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Fit, GroupJob, Targets
from penstock.groups.place import Placement

if TYPE_CHECKING:
    from penstock.groups.training_run import Refits

TRIES = 3


class Span(NamedTuple):
    """What a worker did, from when to when in seconds since the run began; ``group`` is -1 where there were many."""

    worker: int
    begin: float
    end: float
    group: int
    groups: int
    what: str


OnFit = Callable[[Fit], None]
OnSpan = Callable[[Span], None]
AnyJob = TypeVar("AnyJob", bound=GroupJob)


@dataclass(slots=True)
class Task:
    """What one message asks of a worker: items of one group each, with what the driver needs to know of each."""

    worker: int
    items: list[tuple[Any, ...]]
    groups: list[int]
    notes: list[Any]
    what: str
    tries: int = 0

    def add(self, group: int, item: tuple[Any, ...], note: Any) -> None:
        """Ask for one thing more."""
        self.items.append(item)
        self.groups.append(group)
        self.notes.append(note)

    def apart(self) -> Iterator[Task]:
        """Yield a task for each item; what many of them did not survive counts against none."""
        tries = self.tries if len(self.items) == 1 else 0
        for item, group, note in zip(self.items, self.groups, self.notes, strict=True):
            yield Task(self.worker, [item], [group], [note], self.what, tries)


@dataclass(slots=True)
class Drive(Generic[AnyJob]):
    """One run over all groups of a placement.

    Attributes
    ----------
    executor : Executor
        The workers, whose object is what the job makes.
    on_fit, on_span : callable
        Are given each group's `Fit` when it is done, and what each worker did.
    refits : Refits, optional
        Each group's own config and epochs, where chosen configs are trained on all rows; the job is then what these have in
        common.
    """

    job: AnyJob
    grouped: Grouped
    placement: Placement
    executor: Executor
    on_fit: OnFit
    on_span: OnSpan | None = None
    refits: Refits | None = None
    deaths: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Rows of groups that are not done yet, for each worker."""
    _tasks: dict[int, Task] = field(default_factory=dict)
    _again: dict[int, deque[Task]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _began: float = 0.0

    def run(self) -> None:
        """Train all groups of the placement."""
        if self.placement.shards:
            self._began = time.perf_counter()
            self.left = self.placement.load.tolist()
            self.start()
            self.work()

    def work(self) -> None:
        """Give out work and take it back until all is done."""
        self._give_out()
        while self._tasks or not self.finished:
            happened = self.executor.wait()
            if isinstance(happened, Lost):
                self._lost(happened)
            else:
                self._take(happened)
            self._give_out()

    def start(self) -> None:
        """Make ready to give out work."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether nothing is left to give out, once all that is under way is back."""
        raise NotImplementedError

    def next(self, worker: int) -> Task | None:
        """Return what a free worker is to do; None while there is nothing for it."""
        raise NotImplementedError

    def take(self, worker: int, group: int, note: Any, value: Any) -> None:
        """Take in an item's answer."""
        raise NotImplementedError

    def give_up(self, worker: int, group: int, note: Any, failure: Failure) -> None:
        """Go on without an item's answer: it raised an exception, or its workers die of it."""
        raise NotImplementedError

    def job_of(self, group: int) -> AnyJob:
        """Return what is to be learnt of a group."""
        own: AnyJob = self.job if self.refits is None else self.refits.job_of(group)
        return own

    def done(self, fit: Fit) -> None:
        """Hand on what came of a group."""
        for number in self.placement.held[fit.group]:
            shard = self.placement.shards[number]
            self.left[shard.worker] -= shard.rows
        self.on_fit(fit)

    def failed(self, group: int, failure: Failure) -> None:
        """Hand on that a group could not be trained."""
        self.done(Fit(group, Targets(), 0.0, failure.reason, traceback=failure.traceback))

    @property
    def slowest(self) -> tuple[int, float]:
        """The worker with the most before it, and which share of its rows that is."""
        worker = int(np.argmax(self.left))
        return worker, self.left[worker] / max(1, int(self.placement.load[worker]))

    def _give_out(self) -> None:
        busy = {task.worker for task in self._tasks.values()}
        for worker in range(self.executor.workers):
            if worker in busy:
                continue
            waiting = self._again.get(worker)
            task = waiting.popleft() if waiting else self.next(worker)
            if task is not None:
                number = next(self._numbers)
                self._tasks[number] = task
                self.executor.submit(worker, number, "run", self._sent(task))

    def _sent(self, task: Task) -> list[tuple[Any, ...]]:
        """Return the items of a task as workers take them; what a refit begins with is looked up for the message alone."""
        if self.refits is None:
            return task.items
        return [
            ("refit", group, self.refits.refit(group, weights=item[0] == "solve"), *item)
            for group, item in zip(task.groups, task.items, strict=True)
        ]

    def _take(self, done: Done) -> None:
        task = self._tasks.pop(done.task)
        if self.on_span is not None:
            end = time.perf_counter() - self._began
            group = task.groups[0] if len(task.groups) == 1 else -1
            self.on_span(Span(task.worker, max(0.0, end - done.seconds), end, group, len(task.groups), task.what))
        for group, note, value in zip(task.groups, task.notes, done.value, strict=True):
            if isinstance(value, Failure):
                self.give_up(task.worker, group, note, value)
            else:
                self.take(task.worker, group, note, value)

    def _lost(self, lost: Lost) -> None:
        """Keep what a worker had when it died, to be given out anew."""
        self.deaths.append(f"worker {lost.worker} {lost.reason}")
        waiting = self._again.setdefault(lost.worker, deque())
        for number in lost.tasks:
            task = self._tasks.pop(number)
            task.tries += 1
            if task.tries < TRIES:
                waiting.extend(task.apart())
                continue
            reason = f"its worker was {lost.reason} {TRIES} times; look whether memory ran out, and try fewer workers"
            for group, note in zip(task.groups, task.notes, strict=True):
                self.give_up(task.worker, group, note, Failure(reason))
