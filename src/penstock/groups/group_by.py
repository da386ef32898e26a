"""The face of learning over groups: say by which columns, what to learn and what to try, and get a result for every group."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.config import Config
from penstock.errors import UnknownOptionError, UsageError
from penstock.events import Listener, Stream
from penstock.groups.cost import APPROACHES
from penstock.groups.etl import group as write_grouped
from penstock.groups.grouped import NOTE, Grouped
from penstock.groups.patterns.base import Trainable
from penstock.groups.patterns.linear import LinearModel, require_linear
from penstock.groups.registry import Index, Registry, Writer
from penstock.groups.results import Result
from penstock.groups.running import EXECUTORS, PLACEMENTS, Race, Running
from penstock.groups.spec import Search


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
    >>> import numpy as np, penstock, pyarrow as pa
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
        model: Model | Trainable,
        *,
        y: str | None = None,
        search: Mapping[str, Any] | str | os.PathLike[str] | Search | None = None,
        validation: float = 0.1,
        halving: bool | Mapping[str, Any] | Race | None = None,
        executor: str = "local",
        workers: int | None = None,
        address: str | None = None,
        placement: str | None = None,
        approach: str = "grouped",
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> Result:
        """Train every config of a search for every group, and return what came of it.

        Parameters
        ----------
        model : estimator
            `penstock.LogisticRegression`, `penstock.LinearSVM` or `penstock.LinearRegression`: by ``solver="lbfgs"`` or
            ``"gd"``, where a pass over a group's rows is an epoch, or by SGD. Also `penstock.groups.Boosting` (LightGBM) and
            `penstock.torch.TorchModel`.
        y : str
            The label column.
        search : dict, path or Search
            What to try for every group: lists of values (every combination), a TOML file, or a `Search`.
        validation : float
            The share of each group's rows that is held out; configs are compared on it. With 0, by the training loss.
        halving : bool, dict or Race, optional
            Train by SGD in rounds, and let only the best third of each group's configs go on after each:
            ``{"eta": 3, "least": 1, "budget": 40}``, see `Race`.
        executor, workers, address : str, int, str
            Where to work: ``"local"``, processes of this machine, as many as it has cores; or ``"ray"``, on the cluster of an
            address, or one started for this.
        placement : str, optional
            ``spread`` cuts large groups so that all workers have as many rows, ``sequential`` so that configs can hop over
            the parts, and ``wrap-around`` and ``constrained`` are the paper's Algorithms 1 and 2. If not given, what suits
            the model: ``spread``, by SGD ``sequential``, for trees ``constrained``.
        approach : str
            ``grouped``, or one of the ways that it is measured against, which bring nothing but that:
            ``group-task``, ``model-task``, ``data-parallel`` or ``switching``.
        out : path, optional
            The folder for the models; a temporary one, gone with the result, if not given.
        resume : bool
            Go on with what the folder holds.
        listeners : callables
            Hear the events of `penstock.events`.
        """
        if executor not in EXECUTORS:
            raise UnknownOptionError.of("executor", executor, EXECUTORS)
        if placement is not None and placement not in PLACEMENTS:
            raise UnknownOptionError.of("placement", placement, PLACEMENTS)
        if approach not in APPROACHES:
            raise UnknownOptionError.of("approach", approach, APPROACHES)
        if approach != "grouped" and halving:
            raise UsageError(f"halving is not there for approach={approach!r}; leave one of them out")
        if address is not None and executor != "ray":
            raise UsageError(f"address={address!r} is of a Ray cluster; say executor='ray' too")
        if resume and out is None:
            raise UsageError("resume=True goes on with the models of a folder; name it with out=")
        if not 0 <= validation < 1:
            raise UsageError(f"validation={validation!r} is not a share of the rows; choose one from 0 to below 1")
        what, stream = _trainable(model), Stream(list(listeners))
        choices = Search.of(search).choices(what.known)
        race = Race.of(halving)
        with ExitStack() as stack:
            owner, failing = None, stack.enter_context(ExitStack())
            if out is None:
                owner = _Folder()
                failing.callback(owner.remove)
                out = owner.path / "models"
            grouped = stack.enter_context(self._grouped(stack, what, y, stream))
            job = what.job(grouped, [choice.params for choice in choices], validation=validation)
            fixed = {**what.fixed(), "validation": validation}
            if race is not None:
                race.require(job, grouped.rows)
                fixed["halving"] = race.to_dict()
            index = Index(
                what.kind,
                grouped.encoder.to_dict(),
                grouped.by,
                tuple(dict(choice.params) for choice in choices),
                fixed=fixed,
                fingerprint=grouped.fingerprint,
                family=what.family,
                layout=getattr(job, "layout", ()),
            )
            keys = pa.schema(list(zip(grouped.by, grouped.kinds, strict=True)))
            writer = stack.enter_context(Writer(out, index, keys=keys, resume=resume))
            running = Running(grouped, job, writer, stream, race=race, placement=placement, approach=approach)
            running.train(EXECUTORS[executor], workers=workers, address=address)
            failing.pop_all()
        return Result(Registry.open(out), owner=owner, model=what)

    def _grouped(self, stack: ExitStack, what: Trainable, y: str | None, stream: Stream) -> Grouped:
        """Return the rows by group, sorted now unless they are there."""
        names = [self.by] if isinstance(self.by, str) else list(self.by)
        if isinstance(self.data, str | os.PathLike) and (Path(self.data) / NOTE).is_file():
            grouped = Grouped.open(self.data)
            if list(grouped.by) != names:
                raise UsageError(f"{self.data} holds rows by {', '.join(grouped.by)}, not by {', '.join(names)}")
            if y is not None and y != grouped.encoder.label:
                raise UsageError(f"{self.data} holds rows whose label is {grouped.encoder.label!r}, not {y!r}")
            if (grouped.encoder.labels is None) != (what.kind == "linear"):
                had = "numbers" if grouped.encoder.labels is None else "classes"
                raise UsageError(
                    f"{self.data} holds rows whose label is taken as {had}; group the data anew for {what.kind}"
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
            model=what.kind,
            stream=stream,
        )


class _Folder:
    """A temporary folder that goes when nothing holds on to this, or when told to."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="penstock-groups-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _trainable(model: Any) -> Trainable:
    """Return what can be trained for groups, for an estimator or for itself."""
    if isinstance(model, Trainable):
        return model
    if not hasattr(model, "to_config"):
        raise UsageError(
            f"model={model!r} is not one of Penstock's; give penstock.LogisticRegression(solver='lbfgs'),"
            " penstock.LinearRegression(solver='lbfgs'), penstock.groups.Boosting() or penstock.torch.TorchModel(...)"
        )
    config = model.to_config()
    require_linear(config)
    return LinearModel(config)
