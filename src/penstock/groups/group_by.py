"""The face of learning over groups: say by which columns, what to learn and what to try, and get a result for every group."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.budget import available_memory, show_bytes
from penstock.config import Config
from penstock.errors import UnknownOptionError, UsageError
from penstock.events import Listener, Stream, Warned
from penstock.groups.etl import group as write_grouped
from penstock.groups.group_recipe import made_for_trees
from penstock.groups.grouped import Grouped, open_grouped
from penstock.groups.held_out_scores import judge
from penstock.groups.patterns.base import GroupJob, Trainable
from penstock.groups.patterns.linear import GroupedLinear
from penstock.groups.registry import POOLED, REFIT, Index, Outcome, Registry, Writer
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search
from penstock.groups.split import held_out_part
from penstock.groups.training_run import EXECUTORS, PLACEMENTS, Race, Running
from penstock.messages import Given, Text, Use
from penstock.options import default
from penstock.outputs import require_folder
from penstock.sgd.losses import loss_of
from penstock.training import Columns

_BINNED = 2
"""Times the bytes of its rows that trees take in memory at most: a copy, and bins."""


class GroupEstimator(Protocol):
    """What is trained: the estimators of `penstock` are such."""

    def to_config(self) -> Config:
        """Return its hyper-parameters."""


@dataclass(frozen=True, slots=True)
class GroupBy:
    """Rows by group, to train a model for each.

    Parameters
    ----------
    data : path, table or source
        Whatever `penstock.open` takes, also a folder that `penstock.groups.etl.group` wrote.
    by : str or list of str, optional
        The grouping columns. A null is a group of its own. None learns one model from all rows, whose key is empty.
    memory : int or str
        For sorting rows by group, where that has to be done: ``"512MB"``, or ``"10%"`` of the decoded data.
    rows : path, optional
        The folder for rows by group, to be used again; a temporary one if not given.
    weight, features, exclude, hash, category, number, date, missing, null_values
        The columns, as in `penstock.columns.choose_features`. Levels, and what stands for missing numbers, are those of all
        rows; `Boosting` gets categories and missing values as they are.

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
    by: str | Sequence[str] | None = field(kw_only=True)
    memory: int | str = field(default=default("memory"), kw_only=True)
    rows: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    weight: str | None = field(default=None, kw_only=True)
    features: Sequence[str] | None = field(default=None, kw_only=True)
    exclude: Sequence[str] = field(default=(), kw_only=True)
    hash: Sequence[str] = field(default=(), kw_only=True)
    category: Sequence[str] = field(default=(), kw_only=True)
    number: Sequence[str] = field(default=(), kw_only=True)
    date: Sequence[str] = field(default=(), kw_only=True)
    missing: str | None = field(default=None, kw_only=True)
    null_values: Sequence[str] = field(default=(), kw_only=True)

    def fit(
        self,
        model: GroupEstimator | Trainable,
        *,
        y: str | None = None,
        search: Mapping[str, Any] | str | os.PathLike[str] | Search | None = None,
        validation: float | None = None,
        halving: bool | Mapping[str, Any] | Race | None = None,
        pooled: bool = True,
        executor: str = "local",
        workers: int | None = None,
        address: str | None = None,
        placement: str | None = None,
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> GroupModels:
        """Train every config of a search for every group, and return what came of it.

        Parameters
        ----------
        model : estimator
            `penstock.LogisticRegression` (of more than two classes by the softmax loss), `penstock.LinearSVM` or
            `penstock.LinearRegression`. Without options features are scaled within each group, the L2 penalty is 1 / its
            training rows, least squares is solved exactly, and other losses are minimized by L-BFGS until it converges or
            100 passes are made; ``solver="sgd"``, or an option of SGD, trains by SGD. Also `penstock.groups.Boosting`
            (LightGBM) and `penstock.torch.TorchModel`.
        y : str
            The label column.
        search : dict, path or Search
            What to try for every group: lists of values (every combination), a TOML file, or a `Search`.
        validation : float, optional
            The share of each group's rows that is held out: the chosen models are judged on it, and no model learns from it.
            Where there is something to choose, among configs or when to stop, as large a share of the rest is for that.
            With 0 all rows are trained on, configs are compared by their training loss, and nothing is judged. If not given
            the share is 0.1, and once a group's config is chosen it is trained on all of the group's rows: predictions are
            those of that model, the figures stay those of the model that had not seen the rows (by SGD up to 100,000 rows).
        halving : bool, dict or Race, optional
            Train by SGD in rounds, and let only the best third of each group's configs go on after each:
            ``{"eta": 3, "least": 1, "budget": 40}``, see `Race`.
        pooled : bool
            Whether to train one model on the rows of all groups too, by the same search, to be judged on the same rows: it
            tells whether models of groups pay. It takes about as long as the models of all groups.
        executor, workers, address : str, int, str
            Where to work: ``"local"``, processes of this machine, as many as it has cores; or ``"ray"``, on the cluster of an
            address, or one started for this.
        placement : str, optional
            ``spread`` cuts large groups so that all workers have as many rows, ``sequential`` so that configs can hop over
            the parts, and ``wrap-around`` and ``constrained`` are the paper's Algorithms 1 and 2. If not given, what suits
            the model: ``spread``, by SGD ``sequential``, for trees ``constrained``.
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
        if address is not None and executor != "ray":
            raise UsageError(
                "is of a Ray cluster",
                option="address",
                value=address,
                fixes=[Text("say ", Use("executor", "ray"), " too")],
            )
        if resume and out is None:
            raise UsageError(
                "goes on with the models of a folder",
                option="resume",
                value=True,
                fixes=[Text("name it with ", Use("out"))],
            )
        share = held_out_part(validation)
        what, stream = _trainable(model), Stream(list(listeners))
        choices = Search.of(search).choices(what.known)
        race = Race.of(halving)
        for folder in (out, self.rows):
            if folder is not None:
                require_folder(folder)
        with ExitStack() as stack:
            owner, failing = None, stack.enter_context(ExitStack())
            if out is None:
                owner = _Folder()
                failing.callback(owner.remove)
                out = owner.path / "models"
            grouped = stack.enter_context(self._grouped(stack, what, y, stream))
            if isinstance(what, GroupedLinear):
                what = _resolved(what, grouped, [choice.params for choice in choices], stream)
            job = what.job(grouped, [choice.params for choice in choices], validation=share)
            fixed = {**what.fixed(), "validation": validation}
            if race is not None:
                race.require(job, grouped.rows)
                fixed["halving"] = race.to_dict()
            index = Index(
                what.kind,
                grouped.recipe.to_dict(),
                grouped.by,
                tuple(dict(choice.params) for choice in choices),
                fixed=fixed,
                fingerprint=grouped.fingerprint,
                family=what.family,
                layout=getattr(job, "layout", ()),
            )
            keys = pa.schema(list(zip(grouped.by, grouped.kinds, strict=True)))
            writer = stack.enter_context(Writer(out, index, keys=keys, resume=resume))
            running = Running(grouped, job, writer, stream, race=race, placement=placement)
            if pooled and share:
                running.pooled = stack.enter_context(_pooled_writer(out, index, job, grouped, resume=resume))
            if validation is None:
                for name, other in (("refit", writer), ("pooled_refit", running.pooled)):
                    if other is not None:
                        again = Writer(other.folder / REFIT, other.index, keys=other.keys, resume=resume)
                        setattr(running, name, stack.enter_context(again))
            running.train(EXECUTORS[executor], workers=workers, address=address)
            if share:
                result = GroupModels(Registry.open(out, refit=False), model=what, refits=False)
                judgement = judge(result, result.pooled, grouped, job.split)
                writer.finish(judgement.columns, judgement.figures)
            else:
                writer.finish()
            failing.pop_all()
        return GroupModels(Registry.open(out), owner=owner, model=what)

    def _grouped(self, stack: ExitStack, what: Trainable, y: str | None, stream: Stream) -> Grouped:
        """Return the rows by group, sorted now unless they are there."""
        names = [self.by] if isinstance(self.by, str) else list(self.by or ())
        grouped = open_grouped(self.data, names, y)
        if grouped is not None:
            if (grouped.recipe.labels is None) != (not loss_of(what.kind).classifies):
                had = "numbers" if grouped.recipe.labels is None else "classes"
                raise UsageError(
                    f"{self.data} holds rows whose label is taken as {had}; group the data anew for {what.kind}"
                )
            if made_for_trees(grouped.recipe) and what.family != "trees":
                raise UsageError(f"{self.data} holds rows for trees; group the data anew for {what.kind}")
            return grouped
        if y is None:
            raise UsageError("say which column is the label: ", Given("y", "clicked"), ", say")
        folder = self.rows
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-rows-"))) / "rows"
        return write_grouped(
            self.data,
            names if self.by is not None else None,
            folder,
            label=y,
            memory=self.memory,
            model=what.kind,
            trees=what.family == "trees",
            stream=stream,
            **{each.name: getattr(self, each.name) for each in fields(Columns) if each.name != "label"},
        )


def _pooled_writer(
    out: str | os.PathLike[str], index: Index, job: GroupJob, grouped: Grouped, *, resume: bool
) -> Writer:
    """Return what takes the pooled model; where it cannot be trained in memory, it is recorded as failed with the reason."""
    writer = Writer(Path(out) / POOLED, replace(index, by=()), keys=pa.schema([]), resume=resume)
    whole, memory = job.pattern == "sampling", available_memory()
    if whole and _BINNED * grouped.nbytes > memory and not writer.finished:
        reason = (
            f"its rows take {show_bytes(grouped.nbytes)}, and trees hold all rows of a model in memory, of which there is"
            f" {show_bytes(memory)}"
        )
        rows = grouped.size(grouped.pooled)
        writer.add([Outcome.failure(0, (), rows=rows, configs=job.configs, reason=reason)])
    return writer


def _resolved(
    model: GroupedLinear, grouped: Grouped, choices: Sequence[Mapping[str, Any]], stream: Stream
) -> GroupedLinear:
    """Return the model that fits the label, and say so where it is another than was asked for."""
    labels, resolved = grouped.recipe.labels, model.resolve(grouped.recipe, choices)
    if resolved.kind != model.kind and labels is not None:
        count = len(labels.classes)
        stream.emit(Warned(f"the label {grouped.recipe.label!r} has {count} classes, so the model is softmax"))
    return resolved


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
            "is not one of Penstock's",
            option="model",
            value=model,
            fixes=[
                "give penstock.LogisticRegression(), penstock.LinearRegression(), penstock.groups.Boosting() or"
                " penstock.torch.TorchModel(...)"
            ],
        )
    if getattr(model, "warm_start", False):
        raise UsageError(
            "is not there for groups, whose models all begin anew",
            option="warm_start",
            value=True,
            fixes=["leave it out"],
        )
    return GroupedLinear(model.to_config())
