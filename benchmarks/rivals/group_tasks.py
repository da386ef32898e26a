"""The paper's rivals as they are run elsewhere, on the same rows, workers and code: to measure against.

Groups as tasks (GTP): a group goes whole to whoever is free first, its configs one after another. Models as tasks (MTP): so
does every config of every group. Data parallel (DP): all workers share every group, for one config at a time. Switching
(SP): groups larger than the median are trained so, then the others as tasks. `approach` makes `GroupBy.fit` train so.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from penstock.errors import UsageError
from penstock.groups import training_run
from penstock.groups.drivers.base import Drive, Task
from penstock.groups.drivers.sums_driver import PassesDrive
from penstock.groups.executor import Executor
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.base import Failure, Fit, Worker
from penstock.groups.place import Placement, Shard

RIVALS = ("group-task", "model-task", "data-parallel", "switching")


@contextmanager
def approach(name: str) -> Iterator[None]:
    """Let `GroupBy.fit` train on local processes in one of the ways of `RIVALS`; "grouped" is its own."""
    if name == "grouped":
        yield
        return
    drives = dict.fromkeys(training_run.DRIVERS, partial(TasksDrive, approach=name))
    with mock.patch.dict(training_run.DRIVERS, drives), mock.patch.dict(training_run.EXECUTORS, local=_local):
        yield


class Singly:
    """A worker that can also train each config by itself."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._worker = make()
        self._worker.solve_each = self.solve_each  # type: ignore[attr-defined]  # asked for by its name

    def run(self, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do what any worker does."""
        return self._worker.run(items)

    def solve_each(self, group: int, configs: Sequence[int]) -> list[Fit]:
        """Train some configs of a whole group, each by itself."""
        return [only(self._worker, config).solve(group) for config in configs]


def only(worker: Worker, config: int) -> Worker:
    """Return a worker for one of its job's configs."""
    alone = copy(worker)
    alone.job = worker.job.only([config])
    return alone


def joined(fits: Sequence[Fit]) -> Fit:
    """Put together what came of the same group's configs, one after another."""
    first = fits[0]
    if first.reason or len(fits) == 1:
        return first
    names = ("loss", "selection_loss", "selection_score", "epochs", "status")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(fit, name) for fit in fits]) for name in names}
    weights = [fit.weights for fit in fits if fit.weights is not None]
    return Fit(
        first.group,
        first.targets,
        sum(fit.seconds for fit in fits),
        weights=np.concatenate(weights, axis=1) if weights else None,
        trees=None if first.trees is None else [tree for fit in fits for tree in fit.trees or ()],
        reasons=None if first.reasons is None else [reason for fit in fits for reason in fit.reasons or ()],
        **arrays,
    )


def _local(make: Callable[[], Worker], **options: Any) -> Executor:
    return LocalExecutor(partial(Singly, make), **options)


@dataclass(slots=True)
class TasksDrive(Drive[Any]):
    """Trains by tasks that whoever is free takes, or by all workers together; its placement says only which groups."""

    approach: str = "group-task"
    _queue: deque[tuple[int, list[int]]] = field(default_factory=deque)
    _parts: dict[int, dict[int, Fit]] = field(default_factory=dict)
    _dead: set[int] = field(default_factory=set)

    def start(self) -> None:
        if self.approach in ("data-parallel", "switching") and self.job.pattern != "algebraic":
            raise UsageError(
                f"adds up sums over all rows, which {self.job.pattern} models have none of",
                option="approach",
                value=self.approach,
                fixes=["choose group-task or model-task"],
            )
        rows = {group: self.grouped.size(group) for group in self.placement.held}
        shared: set[int] = set()
        if self.approach in ("data-parallel", "switching"):
            middle = float(np.median(list(rows.values()))) if self.approach == "switching" else -1.0
            shared = {group for group, size in rows.items() if size > middle}
            for group in sorted(shared, key=lambda group: -rows[group]):
                self._together(group, rows[group])
        configs = list(range(self.job.configs))
        singly = [[config] for config in configs] if self.approach == "model-task" else [configs]
        self._queue.extend(
            (group, some)
            for some in singly
            for group in sorted(rows.keys() - shared, key=lambda group: (-rows[group], group))
        )

    @property
    def finished(self) -> bool:
        return not self._queue

    def next(self, worker: int) -> Task | None:
        if not self._queue:
            return None
        group, configs = self._queue.popleft()
        return Task(worker, [("solve_each", group, configs)], [group], [configs], "solve")

    def take(self, worker: int, group: int, note: list[int], value: list[Fit]) -> None:
        self._keep(group, dict(zip(note, value, strict=True)))

    def give_up(self, worker: int, group: int, note: list[int], failure: Failure) -> None:
        self._queue = deque(task for task in self._queue if task[0] != group)
        if group not in self._dead:
            self._dead.add(group)
            self.failed(group, failure)

    def _keep(self, group: int, found: dict[int, Fit]) -> None:
        """Keep what came of some configs until all are there."""
        parts = self._parts.setdefault(group, {})
        parts |= found
        if len(parts) == self.job.configs and group not in self._dead:
            self.done(joined([fit for _, fit in sorted(self._parts.pop(group).items())]))

    def _together(self, group: int, rows: int) -> None:
        """Train each config of a group by itself, on all workers."""
        borders = [rows * worker // self.executor.workers for worker in range(self.executor.workers + 1)]
        shards = tuple(_shards(group, borders))
        load = np.zeros(self.executor.workers, np.int64)
        for shard in shards:
            load[shard.worker] = shard.rows
        for config in range(self.job.configs):
            found: list[Fit] = []
            placement, job = Placement(shards, load, int(load.max())), self.job.only([config])
            run = PassesDrive(job, self.grouped, placement, self.executor, found.append, self.on_span)
            run.run()
            self.deaths += run.deaths
            self._keep(group, {config: found[0]})


def _shards(group: int, borders: list[int]) -> Iterator[Shard]:
    for worker, (first, end) in enumerate(itertools.pairwise(borders)):
        if end > first:
            yield Shard(group, worker, first, end - first)
