"""What all access patterns have in common: the rows of a group, what they are like, what came of it, and who may train.

A worker maps the grouped rows and keeps nothing between tasks that it could not work out again, so that a task lost with
its worker is simply given out anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.class_weights import ClassWeighting, ClassWeights, class_codes
from penstock.errors import PenstockError
from penstock.groups.executor import Failure, Make
from penstock.groups.grouped import Grouped
from penstock.groups.search_space import Parameter
from penstock.groups.split import HELD_OUT, SELECTION, TRAINING, Parts, Split
from penstock.sgd import terms
from penstock.sgd.losses import find_loss

Doubles = NDArray[np.float64]
Divided = tuple[Batch, Parts | None]
"""Rows, and the part of the split that each is in; None where all are trained on."""
NOT_FINITE = "a feature is not a finite number"
_KEPT = 1 << 16
"""Rows from which on it is worth remembering which part each is in."""
_JOINED = 1 << 20
"""Bytes of the pooled group's rows that are worked on together."""


@runtime_checkable
class Trainable(Protocol):
    """What can be trained for every group.

    Attributes
    ----------
    kind : str
        logistic, svm, linear or softmax: how labels become targets.
    family : str
        What its models are stored as: linear, trees or modules.
    known : mapping
        What may be searched.
    """

    @property
    def kind(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def known(self) -> Mapping[str, Parameter]: ...

    def fixed(self) -> dict[str, Any]:
        """Return what all configs share, as plain JSON."""

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> GroupJob:
        """Check what is to be learnt of grouped rows, and make a job of it."""


class GroupJob(Protocol):
    """What is to be learnt of every group: the same for all workers, and plain enough to travel.

    All jobs have these attributes: ``folder``, the grouped rows; ``validation``, the share of each group's rows that is held out,
    and ``seed``, of the choice of these; ``loss``, logistic, hinge, squared or softmax; and ``epochs``, the most of each config.
    """

    @property
    def pattern(self) -> str:
        """How rows are read: algebraic, sequential or sampling."""

    @property
    def folder(self) -> str: ...

    @property
    def configs(self) -> int: ...

    @property
    def split(self) -> Split:
        """Which rows are trained on, which choose, and which judge."""

    def make(self) -> Make:
        """Return what makes a worker's object, in the worker."""

    def only(self, configs: Sequence[int]) -> GroupJob:
        """Return the job of some of its configs."""

    def refit(self, refit: Refit) -> GroupJob:
        """Return the job that trains one config on all rows of a group."""


@dataclass(frozen=True, slots=True)
class Refit:
    """How the config that was chosen for a group is trained on all of its rows.

    Attributes
    ----------
    config : int
        Its number in the job.
    epochs : int
        The most epochs, or rounds.
    weights : array, optional
        The weights to begin with, for features as they are; training begins anew if not given.
    """

    config: int
    epochs: int
    weights: Floats | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """What the targets of rows are like: enough to tell what cannot be learnt from, and to scale errors by."""

    rows: int = 0
    weight: float = 0.0
    least: float = np.inf
    most: float = -np.inf
    held_out_rows: int = 0
    selection_rows: int = 0
    selection_sum: float = 0.0
    selection_squares: float = 0.0
    selection_weight: float = 0.0
    finite: bool = True
    """Whether the features of the rows held out are finite, where that was looked at."""
    class_totals: tuple[float, ...] = ()
    """The weight of the rows to learn from of each class, where that was asked for."""
    selection_class_totals: tuple[float, ...] = ()
    """That of the rows to choose by."""

    @classmethod
    def of(cls, y: Floats, weight: Floats | None, parts: Parts | None, *, classes: int = 0) -> Targets:
        """Look at some rows; those of weight zero teach nothing. ``classes`` asks for the totals of so many."""
        if weight is not None:
            counts = weight > 0
            y, weight, parts = y[counts], weight[counts], None if parts is None else parts[counts]
        mass = np.ones(len(y)) if weight is None else weight.astype(np.float64)
        values = y.astype(np.float64)
        training = slice(None) if parts is None else parts == TRAINING
        choosing = slice(0, 0) if parts is None else parts == SELECTION
        taken, aside, own = y[training], values[choosing], mass[choosing]
        bad = np.inf if np.isfinite(y).all() else np.nan
        return cls(
            len(taken),
            float(mass[training].sum()),
            float(np.minimum(taken.min(initial=np.inf), bad)),  # a NaN stays one, which it would not by min
            float(np.maximum(taken.max(initial=-np.inf), -bad)),
            0 if parts is None else int((parts == HELD_OUT).sum()),
            len(aside),
            float(own @ aside),
            float(own @ aside**2),
            float(own.sum()),
            class_totals=_class_totals(taken, mass[training], classes),
            selection_class_totals=_class_totals(aside, own, classes),
        )

    @classmethod
    def of_parts(cls, parts: Iterable[Divided], *, classes: int = 0) -> Targets:
        """Look at all rows of some batches."""
        found = (cls.of(batch.y, batch.weight, each, classes=classes) for batch, each in parts if batch.y is not None)
        return sum(found, cls())

    def __add__(self, other: Targets) -> Targets:
        return Targets(
            self.rows + other.rows,
            self.weight + other.weight,
            float(np.minimum(self.least, other.least)),
            float(np.maximum(self.most, other.most)),
            self.held_out_rows + other.held_out_rows,
            self.selection_rows + other.selection_rows,
            self.selection_sum + other.selection_sum,
            self.selection_squares + other.selection_squares,
            self.selection_weight + other.selection_weight,
            self.finite and other.finite,
            _added(self.class_totals, other.class_totals),
            _added(self.selection_class_totals, other.selection_class_totals),
        )

    def weighed(self, class_weights: ClassWeights | None) -> Targets:
        """Return the targets where rows to choose by count by class weights too, as `weighed` gives them."""
        if class_weights is None or not self.selection_class_totals:
            return self
        return replace(self, selection_weight=float(class_weights.factors @ np.array(self.selection_class_totals)))

    @property
    def mean_weight(self) -> float:
        """The mean weight of the rows to learn from, which weights are divided by."""
        return self.weight / self.rows if self.rows else 1.0

    def flaw(self, loss: str) -> str:
        """Say why nothing can be learnt from these rows, if so."""
        if self.rows < 2:
            return f"too few rows: {self.rows} to learn from"
        if not np.isfinite(self.least - self.most):
            return "a target is not a finite number"
        if find_loss(loss).classifies and self.least == self.most:
            return "only one class among its rows"
        return "" if self.finite else NOT_FINITE

    def score(self, loss: str, right: Doubles) -> Doubles:
        """Return the accuracy, or R², from right answers on the rows to choose by, or from their squared errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = self.selection_weight
            if find_loss(loss).classifies:
                return np.asarray(np.divide(right, weight), np.float64)
            spread = self.selection_squares - self.selection_sum**2 / weight if weight else 0.0
            return np.asarray(1 - np.divide(right, spread), np.float64)


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of a group: a value for each config, or the reason why it could not be trained at all."""

    group: int
    targets: Targets
    seconds: float
    reason: str = ""
    weights: Floats | None = None
    loss: Doubles = field(default_factory=lambda: np.empty(0))
    selection_loss: Doubles = field(default_factory=lambda: np.empty(0))
    selection_score: Doubles = field(default_factory=lambda: np.empty(0))
    epochs: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    status: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trees: Sequence[str | None] | None = None
    reasons: Sequence[str] | None = None
    """Why each config failed, where the pattern knows more of it than that it did."""
    given_up: NDArray[np.bool_] | None = None
    """Configs that were not trained to their end because others promised more."""
    traceback: str = ""
    """Of the exception that ended the training of the whole group."""

    @classmethod
    def of(
        cls, group: int, targets: Targets, loss: str, *, weights: NDArray[Any], figures: Sequence[Any], seconds: float
    ) -> Fit:
        """Make means of sums: the objective, loss and right answers on the rows to choose by, epochs and status."""
        objective, losses, right, epochs, status = (np.array(figure) for figure in figures)
        mean = score = np.full(len(objective), np.nan)
        if targets.selection_weight:
            with np.errstate(divide="ignore", invalid="ignore"):
                mean, score = losses / targets.selection_weight, targets.score(loss, right)
        kept = weights.astype(np.float32)
        kept[:, status == terms.FAILED] = np.nan
        return cls(group, targets, seconds, "", kept, objective, mean, score, epochs, status)


class Worker:
    """Runs what it is asked of grouped rows: those in a folder, or ``grouped``, where they are open already."""

    def __init__(self, folder: str, split: Split, grouped: Grouped | None = None) -> None:
        self.job: Any = None
        self.grouped = Grouped(folder) if grouped is None else grouped
        self.split = split
        self._parts: dict[tuple[int, int, int], Parts] = {}
        self._refit: tuple[int, Any] | None = None

    def run(self, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do several things one after another: each is the name of a method and its arguments.

        An exception that is not Penstock's own, such as one that a user's module raises, is the answer to its item alone.
        """
        return [self._attempt(name, arguments) for name, *arguments in items]

    def _attempt(self, name: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(self, name)(*arguments)
        except PenstockError:  # of the job as a whole: a damaged file, a setting that nothing can be trained with
            raise
        except Exception as error:
            return Failure.of(error)

    def solve(self, group: int) -> Fit:
        """Train a whole group, all configs together."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is held for the group under way."""

    def refit(self, group: int, refit: Refit, name: str, *arguments: Any) -> Any:
        """Do something by the worker that trains the chosen config of a group on all of its rows."""
        if (
            self._refit is None or self._refit[0] != group
        ):  # one at a time: what is asked of a group follows one another
            if self._refit is not None:
                self._refit[1].close()
            make: Any = type(self)
            self._refit = group, make(self.job.refit(refit), self.grouped)
        return getattr(self._refit[1], name)(*arguments)

    def rows(self, group: int, first: int = 0, rows: int | None = None) -> Iterator[Divided]:
        """Yield the blocks of a range of a group's rows, cut at its ends, with the part of each row.

        Small blocks of the pooled group, which are other groups', are joined: each costs time whatever its size.
        """
        found = self._blocks(group, first, self.grouped.size(group) - first if rows is None else rows)
        if group != self.grouped.pooled:
            yield from found
            return
        waiting, nbytes = list[Divided](), 0
        for each in found:
            waiting.append(each)
            nbytes += each[0].nbytes
            if nbytes >= _JOINED:
                yield _joined(waiting)
                waiting, nbytes = [], 0
        if waiting:
            yield _joined(waiting)

    def _blocks(self, group: int, first: int, rows: int) -> Iterator[Divided]:
        grouped, end = self.grouped, first + rows
        for block, start in grouped.within(group, first, end):
            low, high = max(first, start), min(end, start + int(grouped.block_rows[block]))
            batch = grouped.read(block)
            if high - low < len(batch):
                batch = batch.slice(low - start, high - start)
            own = int(grouped.block_first[block])
            yield batch, self.parts(int(grouped.block_group[block]), own + low - start, high - low)

    def parts(self, group: int, first: int, rows: int) -> Parts | None:
        """Return the part that each row of a range of a group is in."""
        key = (group, first, rows)
        found = self._parts.get(key)
        if found is None:
            found = self.split.parts(group, first, rows)
            if found is not None and rows >= _KEPT:
                self._parts[key] = found
        return found


class WeighedJob:
    """What jobs share whose rows may count by their class."""

    __slots__ = ()
    class_weighting: ClassWeighting | None

    @property
    def counted_classes(self) -> int:
        """The number of classes whose rows are to be counted in each group."""
        return 0 if self.class_weighting is None else self.class_weighting.classes

    def class_weights(self, targets: Targets) -> ClassWeights | None:
        """Return what the weights of a group's rows are multiplied by."""
        return None if self.class_weighting is None else self.class_weighting.factors(targets.class_totals)


def weighed(parts: Iterable[Divided], class_weights: ClassWeights | None) -> Iterator[Divided]:
    """Yield rows with their weights multiplied by their classes' factors, those to choose by too."""
    for batch, part in parts:
        yield batch if class_weights is None else class_weights.weigh(batch), part


def _class_totals(y: NDArray[Any], mass: Doubles, classes: int) -> tuple[float, ...]:
    return tuple(np.bincount(class_codes(y, classes), mass, minlength=classes).tolist()) if classes else ()


def _added(some: tuple[float, ...], others: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(sum, zip_longest(some, others, fillvalue=0.0)))


def _joined(some: Sequence[Divided]) -> Divided:
    if len(some) == 1:
        return some[0]
    parts = [parts for _, parts in some if parts is not None]
    return Batch.concat([batch for batch, _ in some]), np.concatenate(parts) if parts else None
