"""The face of learning over groups: say by which columns, what to learn and what to try, and get a result for every group."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.config import LOSSES, Config
from penstock.errors import UnknownOptionError, UsageError
from penstock.events import Advanced, Finished, Listener, Started, Stream, Warned
from penstock.groups.drive import Drive
from penstock.groups.etl import group as write_grouped
from penstock.groups.executor import Executor
from penstock.groups.grouped import NOTE, Grouped
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns import SOLVERS, Algebraic, Fit, Worker
from penstock.groups.place import Placement, constrained, spread, wrap_around
from penstock.groups.registry import Index, Outcome, Registry, Writer
from penstock.groups.results import Result
from penstock.groups.spec import LINEAR, Search
from penstock.sgd import terms

_COMMIT = 2.0
"""Seconds of work that a kill may cost, beside the groups under way."""
_OVERHEAD = 50
"""What a group costs whatever its size, in rows."""
EXECUTORS: dict[str, Callable[..., Executor]] = {"local": LocalExecutor}
PLACEMENTS: dict[str, Callable[..., Placement]] = {
    "spread": partial(spread, overhead=_OVERHEAD),
    "wrap-around": wrap_around,
    "constrained": partial(constrained, overhead=_OVERHEAD),
}


_NOT_FINITE = "a feature is not a finite number"


class Model(Protocol):
    """What is trained: the estimators of `penstock` are such."""

    def to_config(self) -> Config:
        """Return its hyper-parameters."""
        ...


@dataclass(frozen=True, slots=True)
class GroupBy:
    """Rows by group, to train a model for each.

    Parameters
    ----------
    data : path, table or source
        Whatever `penstock.open` takes, also a folder that `penstock.groups.etl.group` wrote.
    by : str or list of str
        The grouping columns. A null is a group of its own.
    memory : int or str
        For sorting rows by group, where that has to be done.
    rows : path, optional
        The folder for rows by group, to be used again; a temporary one if not given.
    weight, features, exclude, hash
        The columns, as in `penstock.blocks.choose`.

    Examples
    --------
    >>> import penstock, pyarrow as pa
    >>> chance = np.random.default_rng(0)
    >>> x, city = chance.normal(size=600), chance.integers(0, 3, 600)
    >>> table = pa.table({"city": city, "x": x, "warm": np.where(city == 2, -x, x) + chance.normal(size=600) / 9 > 0})
    >>> result = GroupBy(table, by="city").fit(
    ...     penstock.LogisticRegression(solver="lbfgs", epochs=10), y="warm", search={"l2": [1, 1e-3]}, workers=1
    ... )
    >>> result.frame.num_rows, result.best("2").weights.coef[0, 0] < 0
    (6, np.True_)
    """

    data: Any
    by: str | Sequence[str] = field(kw_only=True)
    memory: int | str = field(default="512MB", kw_only=True)
    rows: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    weight: str | None = field(default=None, kw_only=True)
    features: Sequence[str] | None = field(default=None, kw_only=True)
    exclude: Sequence[str] = field(default=(), kw_only=True)
    hash: Sequence[str] = field(default=(), kw_only=True)

    def fit(
        self,
        model: Model,
        *,
        y: str | None = None,
        search: Mapping[str, Any] | str | os.PathLike[str] | Search | None = None,
        validation: float = 0.1,
        executor: str = "local",
        workers: int | None = None,
        placement: str = "spread",
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> Result:
        """Train every config of a search for every group, and return what came of it.

        Parameters
        ----------
        model : estimator
            `penstock.LogisticRegression` or `penstock.LinearRegression` with ``solver="lbfgs"`` or ``"gd"``. A pass over a
            group's rows is an epoch.
        y : str
            The label column.
        search : dict, path or Search
            What to try for every group: lists of values (every combination), a TOML file, or a `Search`.
        validation : float
            The share of each group's rows that is held out; configs are compared on it. With 0, by the training loss.
        executor, workers : str, int
            Where to work: ``"local"``, processes of this machine, as many as it has cores.
        placement : str
            ``spread`` cuts large groups so that all workers have as many rows; ``wrap-around`` and ``constrained`` are the
            paper's Algorithms 1 and 2.
        out : path, optional
            The folder for the models; a temporary one, gone with the result, if not given.
        resume : bool
            Go on with what the folder holds.
        listeners : callables
            Hear the events of `penstock.events`.
        """
        if executor not in EXECUTORS:
            raise UnknownOptionError.of("executor", executor, EXECUTORS)
        if placement not in PLACEMENTS:
            raise UnknownOptionError.of("placement", placement, PLACEMENTS)
        if resume and out is None:
            raise UsageError("resume=True goes on with the models of a folder; name it with out=")
        if not hasattr(model, "to_config"):
            raise UsageError(
                f"model={model!r} is not one of Penstock's; give penstock.LogisticRegression(solver='lbfgs') or"
                " penstock.LinearRegression(solver='lbfgs')"
            )
        config, stream = model.to_config(), Stream(list(listeners))
        choices = Search.of(search).choices(LINEAR)
        job = _job(config, [choice.params for choice in choices], validation)
        with ExitStack() as stack:
            owner, failing = None, stack.enter_context(ExitStack())
            if out is None:
                owner = _Folder()
                failing.callback(owner.remove)
                out = owner.path / "models"
            grouped = stack.enter_context(self._grouped(stack, config, y, stream))
            fixed = {**config.to_dict(), "validation": validation}
            index = Index(
                config.model,
                grouped.encoder.to_dict(),
                grouped.by,
                tuple(dict(choice.params) for choice in choices),
                fixed=fixed,
                fingerprint=grouped.fingerprint,
            )
            keys = pa.schema(list(zip(grouped.by, grouped.kinds, strict=True)))
            writer = stack.enter_context(Writer(out, index, keys=keys, resume=resume))
            run = _Run(grouped, job(str(grouped.folder)), writer, stream)
            run.train(EXECUTORS[executor], PLACEMENTS[placement], workers)
            failing.pop_all()
        return Result(Registry.open(out), owner=owner)

    def _grouped(self, stack: ExitStack, config: Config, y: str | None, stream: Stream) -> Grouped:
        """Return the rows by group, sorted now unless they are there."""
        names = [self.by] if isinstance(self.by, str) else list(self.by)
        if isinstance(self.data, str | os.PathLike) and (Path(self.data) / NOTE).is_file():
            grouped = Grouped.open(self.data)
            if list(grouped.by) != names:
                raise UsageError(f"{self.data} holds rows by {', '.join(grouped.by)}, not by {', '.join(names)}")
            if y is not None and y != grouped.encoder.label:
                raise UsageError(f"{self.data} holds rows whose label is {grouped.encoder.label!r}, not {y!r}")
            if (grouped.encoder.labels is None) != (config.model == "linear"):
                had = "numbers" if grouped.encoder.labels is None else "classes"
                raise UsageError(
                    f"{self.data} holds rows whose label is taken as {had}; group the data anew for {config.model}"
                )
            return grouped
        if y is None:
            raise UsageError("say which column is the label: y='clicked', say")
        folder = self.rows
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-rows-"))) / "rows"
        return write_grouped(
            self.data,
            names,
            folder,
            label=y,
            memory=self.memory,
            weight=self.weight,
            features=self.features,
            exclude=self.exclude,
            hash=self.hash,
            model=config.model,
            stream=stream,
        )


class _Folder:
    """A temporary folder that goes when nothing holds on to this, or when told to."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="penstock-groups-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _job(config: Config, choices: Sequence[Mapping[str, Any]], validation: float) -> Callable[[str], Algebraic]:
    """Check what is to be learnt, and return what makes a job of it for a folder of rows."""
    if config.model not in ("logistic", "linear"):
        raise UsageError(
            f"{config.model} models are not there for groups yet; use LogisticRegression or LinearRegression with"
            " solver='lbfgs'"
        )
    if config.solver not in SOLVERS:
        raise UsageError(
            f"solver={config.solver!r} is not there for groups yet; use solver='lbfgs' or solver='gd', for example"
            " LogisticRegression(solver='lbfgs', epochs=10)"
        )
    if not 0 <= validation < 1:
        raise UsageError(f"validation={validation!r} is not a share of the rows; choose one from 0 to below 1")
    if config.epochs < 1:
        raise UsageError(f"epochs={config.epochs} trains nothing; choose 1 or more")
    own = {"l1": config.l1, "l2": config.l2, "learning_rate": config.first_rate}
    own |= {"epochs": config.epochs, "tolerance": config.tolerance}
    merged = [{**own, **choice} for choice in choices]
    values = {name: np.array([each[name] for each in merged], np.float64) for name in own}
    return partial(
        Algebraic,
        loss=LOSSES[config.model],
        solver=config.solver,
        l1=values["l1"],
        l2=values["l2"],
        rate=values["learning_rate"],
        epochs=values["epochs"].astype(np.int64),
        tolerance=values["tolerance"],
        validation=validation,
        seed=config.seed,
        intercept=config.intercept,
        standardize=bool(config.standardize),
    )


@dataclass(slots=True)
class _Run:
    """Training of the groups that are not in the folder of models yet."""

    grouped: Grouped
    job: Algebraic
    writer: Writer
    stream: Stream
    _done: int = 0
    _failed: int = 0
    _committed: float = 0.0

    def train(self, make: Callable[..., Executor], place: Callable[..., Placement], workers: int | None) -> None:
        """Train, and write what comes of it."""
        sizes = self.grouped.rows.copy()
        sizes[list(self.writer.finished)] = 0
        self._done = len(self.writer.finished)
        self.stream.emit(Started("groups", int(sizes.sum()), "rows"))
        self._committed = time.perf_counter()
        try:
            if sizes.any():
                with make(partial(Worker, self.job), workers=workers) as executor:
                    placement = place(sizes, executor.workers)
                    drive = Drive(self.job, self.grouped, placement, executor, self._take)
                    drive.run()
                for death in drive.deaths:
                    self.stream.emit(Warned(f"{death}; what it was doing was done again"))
            self.writer.finish()
        finally:
            self.writer.commit()
        self.stream.emit(Finished("groups"))

    def _take(self, fit: Fit) -> None:
        self.writer.add([self._outcome(fit)])
        self._done += 1
        self._failed += bool(fit.reason)
        failed = f"  {self._failed} failed" if self._failed else ""
        note = f"{self._done}/{len(self.grouped)} groups x {self.job.configs} configs{failed}"
        self.stream.emit(Advanced("groups", int(self.grouped.rows[fit.group]), note))
        if time.perf_counter() - self._committed > _COMMIT:
            self.writer.commit()
            self._committed = time.perf_counter()

    def _outcome(self, fit: Fit) -> Outcome:
        key, rows = self.grouped.keys[fit.group], int(self.grouped.rows[fit.group])
        if fit.reason:
            return Outcome.failure(fit.group, key, rows=rows, configs=self.job.configs, reason=fit.reason)
        failed = fit.status == terms.FAILED
        # Held-out rows are no part of what is minimised, so that only their own loss tells of a NaN among them.
        blind = np.isnan(fit.held_loss) & ~failed & bool(fit.targets.held_rows)
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
            status=["failed" if bad else "done" for bad in failed | blind],
            reason=[
                _NOT_FINITE if unseen else _reason(epochs) if bad else ""
                for bad, unseen, epochs in zip(failed, blind, fit.epochs, strict=True)
            ],
            weights=fit.weights,
        )


def _reason(epochs: int) -> str:
    if epochs <= 1:
        return _NOT_FINITE
    return "training did not get anywhere; use a smaller learning rate"
