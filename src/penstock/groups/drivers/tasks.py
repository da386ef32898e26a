"""The paper's rivals as they are run elsewhere, on the same rows, workers and code: to measure against.

Groups as tasks (GTP): a group goes whole to whoever is free first, its configs one after another. Models as tasks (MTP): so
does every config of every group. Data parallel (DP): all workers share every group, for one config at a time. Switching
(SP): groups larger than the median are trained so, then the others as tasks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import UsageError
from penstock.groups.drivers.base import Drive, Task
from penstock.groups.drivers.passes import PassesDrive
from penstock.groups.patterns.base import Fit
from penstock.groups.place import Placement, Shard

RIVALS = ("group-task", "model-task", "data-parallel", "switching")


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
                f"approach={self.approach!r} adds up sums over all rows, which {self.job.pattern} models have none of;"
                " choose group-task or model-task"
            )
        rows = {group: int(self.grouped.rows[group]) for group in self.placement.held}
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

    def give_up(self, worker: int, group: int, note: list[int], reason: str) -> None:
        self._queue = deque(task for task in self._queue if task[0] != group)
        if group not in self._dead:
            self._dead.add(group)
            self.failed(group, reason)

    def _keep(self, group: int, found: dict[int, Fit]) -> None:
        """Keep what came of some configs until all are there."""
        parts = self._parts.setdefault(group, {})
        parts |= found
        if len(parts) == self.job.configs and group not in self._dead:
            self.done(Fit.joined([fit for _, fit in sorted(self._parts.pop(group).items())]))

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
