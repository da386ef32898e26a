"""One training of the groups that a folder of models lacks: by which workers, in which order, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import BudgetError, UsageError
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.groups.drivers.base import Drive
from penstock.groups.drivers.gangs import GangsDrive
from penstock.groups.drivers.hops import HopsDrive
from penstock.groups.drivers.passes import PassesDrive
from penstock.groups.drivers.tasks import TasksDrive
from penstock.groups.executor import Executor
from penstock.groups.grouped import Grouped
from penstock.groups.halving import Halving
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.base import NOT_FINITE, Fit, Job
from penstock.groups.place import Placement, constrained, sequential, spread, wrap_around
from penstock.groups.ray import RayExecutor
from penstock.groups.registry import Outcome, Writer
from penstock.groups.timeline import Timeline
from penstock.sgd import terms

_COMMIT = 2.0
"""Seconds of work that a kill may cost, beside the groups under way."""
_OVERHEAD = 50
"""What a group costs whatever its size, in rows."""
_SLOW = "training did not get anywhere; use a smaller learning rate"


EXECUTORS: dict[str, Callable[..., Executor]] = {"local": LocalExecutor, "ray": RayExecutor}
Place = Callable[[NDArray[np.int64], int, int], Placement]
PLACEMENTS: dict[str, Place] = {
    "spread": lambda sizes, workers, configs: spread(sizes, workers, overhead=_OVERHEAD),
    "sequential": partial(sequential, overhead=_OVERHEAD),
    "wrap-around": lambda sizes, workers, configs: wrap_around(sizes, workers),
    "constrained": lambda sizes, workers, configs: constrained(sizes, workers, overhead=_OVERHEAD),
}
OWN = {"algebraic": "spread", "sequential": "sequential", "sampling": "constrained"}
"""The placement that suits each access pattern."""
DRIVERS: dict[str, Callable[..., Drive[Any]]] = {
    "algebraic": PassesDrive,
    "sequential": HopsDrive,
    "sampling": GangsDrive,
}


@dataclass(frozen=True, slots=True)
class Race:
    """Successive halving over all groups: how many configs go on, from when on, and what it may cost in all.

    Attributes
    ----------
    eta : int
        One config in so many goes on to the next rung, where it trains so many times as long.
    least : int
        Epochs before the first are given up.
    budget : float, optional
        What all groups together may take, in passes of one config over all rows; no limit if not given.
    """

    eta: int = 3
    least: int = 1
    budget: float | None = None

    @classmethod
    def of(cls, given: Any) -> Race | None:
        """Take what a user wrote."""
        if given is None or given is False or isinstance(given, Race):
            return given or None
        if given is True:
            return cls()
        if not isinstance(given, Mapping):
            raise UsageError(f"halving={given!r} is not a way to halve; write halving=True, or halving={{'eta': 3}}")
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"halving has no {name!r}; it has {', '.join(known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        for name, value, least in (("eta", self.eta, 2), ("least", self.least, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name}={value!r} cannot be halved by; choose a whole number of at least {least}")
        if self.budget is not None and not (isinstance(self.budget, int | float) and self.budget > 0):
            raise UsageError(f"budget={self.budget!r} is not a number of passes over all rows; choose one above 0")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def require(self, job: Job, sizes: NDArray[np.int64]) -> None:
        """Raise where a job cannot be halved, or not within the budget."""
        if job.pattern != "sequential":
            raise UsageError(
                f"halving is for models that learn row by row; {job.pattern} ones train all configs by the same passes, so"
                " that giving some up saves little: leave halving out, or use solver='sgd'"
            )
        self.start(job, sizes)

    def start(self, job: Any, sizes: NDArray[np.int64]) -> Halving:
        """Begin the race of the groups that have rows."""
        rows, most = sizes[sizes > 0], int(job.epochs.max())
        if self.budget is not None and self.budget < most:
            raise BudgetError(
                f"a budget of {self.budget:g} passes over all rows does not bring one config of each group to epoch {most};"
                f" give at least {most}, or fewer epochs"
            )
        budget = None if self.budget is None else int(self.budget * rows.sum())
        return Halving(
            len(rows),
            job.configs,
            eta=self.eta,
            least=self.least,
            most=job.epochs.tolist(),
            asynchronous=False,
            budget=budget,
            cost=rows.tolist(),
        )


@dataclass(slots=True)
class Running:
    """Training of the groups that are not in the folder of models yet."""

    grouped: Grouped
    job: Job
    writer: Writer
    stream: Stream
    race: Race | None = None
    placement: str | None = None
    approach: str = "grouped"
    _drive: Drive[Any] | None = None
    _done: int = 0
    _failed: int = 0
    _committed: float = 0.0
    _timeline: Timeline = field(default_factory=Timeline)

    def train(self, make: Callable[..., Executor], *, workers: int | None, address: str | None) -> None:
        """Train, and write what comes of it."""
        sizes = self.grouped.rows.copy()
        sizes[list(self.writer.finished)] = 0
        self._done = len(self.writer.finished)
        self.stream.emit(Started("groups", int(sizes.sum()), "rows"))
        self._committed = time.perf_counter()
        try:
            if sizes.any():
                where: dict[str, Any] = {} if address is None else {"address": address}
                if make is RayExecutor:  # whose nodes may not see the folder
                    where |= {"files": str(self.grouped.folder), "make_at": partial(_made_at, self.job)}
                with make(self.job.make(), workers=workers, **where) as executor:
                    self._train(executor, sizes)
            self.writer.finish()
        finally:
            self.writer.commit()
            self._timeline.write(self.writer.folder)
        self.stream.emit(Finished("groups"))

    def _train(self, executor: Executor, sizes: NDArray[np.int64]) -> None:
        pattern = self.job.pattern
        more: dict[str, Any] = {}
        if self.race is not None:
            more["halving"] = self.race.start(self.job, sizes)
        drive: Callable[..., Drive[Any]] = DRIVERS[pattern]
        if self.approach != "grouped":
            drive, more = TasksDrive, {"approach": self.approach}
        place = PLACEMENTS[self.placement or OWN[pattern]]
        placement = place(sizes, executor.workers, self.job.configs)
        note = self._timeline.spans.append
        self._drive = drive(self.job, self.grouped, placement, executor, self._take, note, **more)
        self._drive.run()
        for death in self._drive.deaths:
            self.stream.emit(Warned(f"{death}; what it was doing was done again"))

    def _take(self, fit: Fit) -> None:
        self.writer.add([self._outcome(fit)])
        self._done += 1
        self._failed += bool(fit.reason)
        self.stream.emit(Advanced("groups", int(self.grouped.rows[fit.group]), self._note()))
        if time.perf_counter() - self._committed > _COMMIT:
            self.writer.commit()
            self._committed = time.perf_counter()

    def _note(self) -> str:
        """Say how far it is: groups, configs, failures, and who has the most before it."""
        told = [f"{self._done}/{len(self.grouped)} groups x {self.job.configs} configs"]
        if self._failed:
            told.append(f"{self._failed} failed")
        alive = getattr(self._drive, "alive", 0)
        if alive:
            told.append(f"{alive} configs alive")
        if self._drive is not None and self._drive.executor.workers > 1 and self.approach == "grouped":
            worker, share = self._drive.slowest
            told.append(f"slowest: worker {worker}, {share:.0%} left")
        return "  ".join(told)

    def _outcome(self, fit: Fit) -> Outcome:
        key, rows = self.grouped.keys[fit.group], int(self.grouped.rows[fit.group])
        if fit.reason:
            return Outcome.failure(fit.group, key, rows=rows, configs=self.job.configs, reason=fit.reason)
        failed = fit.status == terms.FAILED
        # Held-out rows are no part of what is minimised, so that only their own loss tells of a NaN among them.
        blind = np.isnan(fit.held_loss) & ~failed & bool(fit.targets.held_rows)
        gone = np.zeros(len(failed), bool) if fit.given_up is None else fit.given_up & ~failed
        words = np.select([failed | blind & ~gone, gone], ["failed", "stopped"], "done").tolist()
        why = fit.reasons or [""] * len(words)
        return Outcome(
            group=fit.group,
            key=key,
            rows=rows,
            held_rows=fit.targets.held_rows,
            loss=fit.loss,
            held_loss=fit.held_loss,
            held_score=fit.held_score,
            seconds=fit.seconds,
            epochs=fit.epochs,
            status=words,
            reason=[
                own or _reason(word, int(epochs), unseen=bool(unseen))
                for own, word, epochs, unseen in zip(why, words, fit.epochs, blind, strict=True)
            ],
            weights=fit.weights,
            trees=fit.trees,
        )


def _made_at(job: Any, folder: str) -> Any:
    """Make a worker's object for rows that lie in another folder there."""
    return replace(job, folder=folder).make()()


def _reason(word: str, epochs: int, *, unseen: bool) -> str:
    if word == "stopped" and not epochs:
        return "not begun: the budget was spent on configs listed before it"
    if word == "stopped":
        return f"others did better after {epochs} epoch{'s' if epochs != 1 else ''}"
    if word == "done":
        return ""
    return NOT_FINITE if unseen or epochs <= 1 else _SLOW
