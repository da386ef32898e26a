"""One training of the groups that a folder of models lacks: by which workers, in which order, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.errors import BudgetError, UsageError
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.groups.drivers.base import Drive
from penstock.groups.drivers.boosting_driver import GangsDrive
from penstock.groups.drivers.sgd_driver import HopsDrive
from penstock.groups.drivers.sums_driver import PassesDrive
from penstock.groups.executor import Executor
from penstock.groups.grouped import Grouped
from penstock.groups.halving import Halving
from penstock.groups.keys import Key
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.base import NOT_FINITE, Fit, GroupJob, Refit
from penstock.groups.patterns.sampling import rounds_of
from penstock.groups.place import Placement, constrained, sequential, spread, wrap_around
from penstock.groups.ray import RayExecutor
from penstock.groups.registry import Outcome, Registry, Writer
from penstock.groups.results import GroupModels
from penstock.groups.split import numbers
from penstock.groups.timeline import Timeline
from penstock.memory_learner import REFIT_PASSES, REFIT_ROWS
from penstock.messages import LeaveOut, Name, Text, Use
from penstock.sgd import terms


@dataclass(slots=True)
class Refits:
    """The refits that are to be done, of the groups and of the pooled model.

    Attributes
    ----------
    search : Job
        What was trained, with all its configs.
    rows : array of int
        The rows of each group that has a refit before it, the pooled one's last; 0 for the others.
    """

    search: Any
    rows: NDArray[np.int64]
    _models: tuple[Registry | None, Registry | None]
    """Those that were judged: of the groups, and of all rows together."""
    _places: NDArray[np.int64]
    """For each group the row of its table that was chosen, -1 where there is nothing to refit."""
    _configs: NDArray[np.int64]
    _epochs: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        search: GroupJob,
        grouped: Grouped,
        models: tuple[Path, Path | None],
        done: tuple[Container[int], Container[int]],
    ) -> Self:
        """Find what is to be refitted of the models in two folders, the groups' and the pooled one's, where some has been."""
        count = len(grouped)
        rows, places, configs, epochs = np.zeros((4, count + 1), np.int64)
        places[:] = -1
        registries: list[Registry | None] = []
        for folder, finished, first in zip(models, done, (0, count), strict=True):
            registry = None if folder is None else Registry.open(folder, refit=False)
            registries.append(registry)
            if registry is None:
                continue
            chosen = GroupModels(registry).chosen_rows
            group, size, apart, more, config, made = (
                numbers(registry.table[name])[chosen]
                for name in ("group", "rows", "held_out_rows", "selection_rows", "config", "epochs")
            )
            wanted = (apart + more > 0) & np.array([each not in finished for each in group.tolist()], bool)
            if search.pattern == "sequential":
                wanted &= size <= REFIT_ROWS
            here = first + group[wanted]
            rows[here], places[here], configs[here] = size[wanted], chosen[wanted], config[wanted]
            epochs[here] = REFIT_PASSES if search.pattern == "algebraic" else made[wanted]
        return cls(search, rows, (registries[0], registries[1]), places, configs, epochs)

    @property
    def job(self) -> Any:
        """What is to be learned of any group, as far as that is the same for all: one config, on all rows."""
        return self.search.refit(Refit(int(self.search.epochs.argmax()), int(self._epochs.max())))

    def job_of(self, group: int) -> Any:
        """Return what is to be learned of a group."""
        return self.search.refit(self.refit(group))

    def refit(self, group: int, *, weights: bool = True) -> Refit:
        """Return how a group's chosen config is trained; where that goes on from its weights, these are read now."""
        if self.search.pattern == "sampling":  # whose trees past the best round were taken back
            return Refit(self.config(group), rounds_of(self._model(group).trees(int(self._places[group]))))
        goes_on = weights and self.search.pattern == "algebraic"
        return Refit(self.config(group), int(self._epochs[group]), self._weights(group) if goes_on else None)

    def config(self, group: int) -> int:
        """Return the number of a group's chosen config."""
        return int(self._configs[group])

    def stored(self, group: int, weights: Floats) -> Floats:
        """Return weights as long as a group's models are: those of smaller modules end in zeros."""
        missing = len(self._weights(group)) - len(weights)
        return np.pad(weights, ((0, missing), (0, 0))) if missing else weights

    def _weights(self, group: int) -> Floats:
        return self._model(group).weights(int(self._places[group]))

    def _model(self, group: int) -> Registry:
        registry = self._models[group == len(self.rows) - 1]
        assert registry is not None
        return registry


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
            raise UsageError(
                "is not a way to halve",
                option="halving",
                value=given,
                fixes=[Text("write ", Use("halving", True), ", or ", Use("halving", {"eta": 3}))],
            )
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"halving has no {name!r}; it has {', '.join(known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        for name, value, least in (("eta", self.eta, 2), ("least", self.least, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    "cannot be halved by",
                    option=name,
                    value=value,
                    fixes=[f"choose a whole number of at least {least}"],
                )
        if self.budget is not None and not (isinstance(self.budget, int | float) and self.budget > 0):
            raise UsageError(
                "is not a number of passes over all rows",
                option="budget",
                value=self.budget,
                fixes=["choose one above 0"],
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def require(self, job: GroupJob, sizes: NDArray[np.int64]) -> None:
        """Raise where a job cannot be halved, or not within the budget."""
        if job.pattern != "sequential":
            raise UsageError(
                Name("halving"),
                f" is for models that learn row by row; {job.pattern} ones train all configs by the same passes, so that"
                " giving some up saves little",
                fixes=[LeaveOut("halving"), Use("solver", "sgd")],
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
    job: GroupJob
    writer: Writer
    stream: Stream
    race: Race | None = None
    placement: str | None = None
    pooled: Writer | None = None
    """Takes the model that is trained on the rows of all groups, where there is to be one."""
    refit: Writer | None = None
    """Takes the chosen configs, trained on all rows of their groups, where that is to be done."""
    pooled_refit: Writer | None = None
    _refits: Refits | None = None
    _drive: Drive[Any] | None = None
    _done: int = 0
    _failed: int = 0
    _committed: float = 0.0
    _timeline: Timeline = field(default_factory=Timeline)

    def train(self, make: Callable[..., Executor], *, workers: int | None, address: str | None) -> None:
        """Train, and write what comes of it."""
        pooled = self.pooled is not None and not self.pooled.finished
        sizes = np.append(self.grouped.rows, self.grouped.size(self.grouped.pooled) if pooled else 0)
        sizes[list(self.writer.finished)] = 0
        self._done = len(self.writer.finished)
        self.stream.emit(Started("groups", int(sizes[:-1].sum()), "rows"))
        if pooled:
            self.stream.emit(Started("pooled", int(sizes[-1]), "rows"))
        self._committed = time.perf_counter()
        where: dict[str, Any] = {} if address is None else {"address": address}
        if make is RayExecutor:  # whose nodes may not see the folder
            where |= {"files": str(self.grouped.folder), "make_at": partial(_made_at, self.job)}
        start = partial(make, self.job.make(), workers=workers, **where)
        try:
            with ExitStack() as stack:
                executor = stack.enter_context(start()) if sizes.any() else None
                if executor is not None:
                    self._train(executor, sizes)
                self.writer.merge()
                if self.pooled is not None:
                    self.pooled.finish()
                self.stream.emit(Finished("groups"))
                if self.refit is not None:
                    self._train_again(stack, executor or start)
        finally:
            for writer in self._writers:
                writer.commit()
            self._timeline.write(self.writer.folder)

    @property
    def _writers(self) -> list[Writer]:
        every = (self.writer, self.pooled, self.refit, self.pooled_refit)
        return [writer for writer in every if writer is not None]

    def _train_again(
        self, stack: ExitStack, executor: Executor | Callable[[], AbstractContextManager[Executor]]
    ) -> None:
        """Train what was chosen on all rows; workers are started for it where there are none."""
        writers = (self.refit, self.pooled_refit)
        pooled = None if self.pooled is None else self.pooled.folder
        done = [set() if writer is None else writer.finished for writer in writers]
        self._refits = Refits.of(self.job, self.grouped, (self.writer.folder, pooled), (done[0], done[1]))
        rows = self._refits.rows
        if rows.any():
            self.stream.emit(Started("refit", int(rows.sum()), "rows"))
            self._train(stack.enter_context(executor()) if callable(executor) else executor, rows)
            self.stream.emit(Finished("refit"))
        for writer in writers:
            if writer is not None:
                writer.finish()

    def _train(self, executor: Executor, sizes: NDArray[np.int64]) -> None:
        pattern, refits = self.job.pattern, self._refits
        job, take = (self.job, self._take) if refits is None else (refits.job, self._take_refit)
        more: dict[str, Any] = {} if refits is None else {"refits": refits}
        if self.race is not None and refits is None:
            more["halving"] = self.race.start(job, sizes)
        place = PLACEMENTS[self.placement or OWN[pattern]]
        placement = place(sizes, executor.workers, job.configs)
        self._drive = DRIVERS[pattern](job, self.grouped, placement, executor, take, self._timeline.rounds(), **more)
        self._drive.run()
        for death in self._drive.deaths:
            self.stream.emit(Warned(f"{death}; what it was doing was done again"))

    def _take(self, fit: Fit) -> None:
        if fit.group == self.grouped.pooled:
            assert self.pooled is not None
            rows = self.grouped.size(fit.group)
            self.pooled.add([self._outcome(fit, 0, (), rows)])
            self.pooled.commit()
            self.stream.emit(Advanced("pooled", rows))
            self.stream.emit(Finished("pooled"))
            return
        key, rows = self.grouped.keys[fit.group], int(self.grouped.rows[fit.group])
        self.writer.add([self._outcome(fit, fit.group, key, rows)])
        self._done += 1
        self._failed += bool(fit.reason)
        self.stream.emit(Advanced("groups", rows, self._note()))
        self._commit(self.writer)

    def _take_refit(self, fit: Fit) -> None:
        refits, pooled = self._refits, fit.group == self.grouped.pooled
        writer = self.pooled_refit if pooled else self.refit
        assert refits is not None
        assert writer is not None
        rows, config = self.grouped.size(fit.group), refits.config(fit.group)
        if fit.weights is not None:
            fit = replace(fit, weights=refits.stored(fit.group, fit.weights))
        key = () if pooled else self.grouped.keys[fit.group]
        outcome = self._outcome(fit, 0 if pooled else fit.group, key, rows, configs=1)
        writer.add([replace(outcome, configs=[config])])
        self.stream.emit(Advanced("refit", rows))
        self._commit(writer)

    def _commit(self, writer: Writer) -> None:
        if time.perf_counter() - self._committed > _COMMIT:
            writer.commit()
            self._committed = time.perf_counter()

    def _note(self) -> str:
        """Say how far it is: groups, configs, failures, and who has the most before it."""
        told = [f"{self._done}/{len(self.grouped)} groups x {self.job.configs} configs"]
        if self._failed:
            told.append(f"{self._failed} failed")
        alive = getattr(self._drive, "alive", 0)
        if alive:
            told.append(f"{alive} configs alive")
        if self._drive is not None and self._drive.executor.workers > 1:
            worker, share = self._drive.slowest
            told.append(f"slowest: worker {worker}, {share:.0%} left")
        return "  ".join(told)

    def _outcome(self, fit: Fit, group: int, key: Key, rows: int, *, configs: int | None = None) -> Outcome:
        if fit.reason:
            count = self.job.configs if configs is None else configs
            failure = Outcome.failure(group, key, rows=rows, configs=count, reason=fit.reason)
            return replace(failure, traceback=fit.traceback)
        failed = fit.status == terms.FAILED
        # Rows to choose by are no part of what is minimized, so that only their own loss tells of a NaN among them.
        blind = np.isnan(fit.selection_loss) & ~failed & bool(fit.targets.selection_rows)
        gone = np.zeros(len(failed), bool) if fit.given_up is None else fit.given_up & ~failed
        words = np.select([failed | blind & ~gone, gone], ["failed", "stopped"], "done").tolist()
        why = fit.reasons or [""] * len(words)
        return Outcome(
            group=group,
            key=key,
            rows=rows,
            selection_rows=fit.targets.selection_rows,
            held_out_rows=fit.targets.held_out_rows,
            loss=fit.loss,
            selection_loss=fit.selection_loss,
            selection_score=fit.selection_score,
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
