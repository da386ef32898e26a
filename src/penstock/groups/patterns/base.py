"""What all access patterns have in common: the rows of a group, what they are like, what came of it, and who may train.

A worker maps the grouped rows and keeps nothing between tasks that it could not work out again, so that a task lost with
its worker is simply given out anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.groups.executor import Make
from penstock.groups.grouped import Grouped
from penstock.groups.spec import Parameter
from penstock.loader.holdout import Part
from penstock.sgd import terms

Doubles = NDArray[np.float64]
Held = tuple[Batch, NDArray[np.bool_] | None]
"""Rows, and which of them are held out."""
NOT_FINITE = "a feature is not a finite number"
_KEPT = 1 << 16
"""Rows from which on it is worth remembering which of them are held out."""


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
        ...

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> Job:
        """Check what is to be learnt of grouped rows, and make a job of it."""
        ...


class Job(Protocol):
    """What is to be learnt of every group: the same for all workers, and plain enough to travel."""

    @property
    def pattern(self) -> str:
        """How rows are read: algebraic, sequential or sampling."""
        ...

    @property
    def folder(self) -> str: ...

    @property
    def configs(self) -> int: ...

    def make(self) -> Make:
        """Return what makes a worker's object, in the worker."""
        ...

    def only(self, configs: Sequence[int]) -> Job:
        """Return the job of some of its configs."""
        ...


@dataclass(frozen=True, slots=True)
class Targets:
    """What the targets of rows are like: enough to tell what cannot be learnt from, and to scale errors by."""

    rows: int = 0
    least: float = np.inf
    most: float = -np.inf
    held_rows: int = 0
    held_sum: float = 0.0
    held_squares: float = 0.0
    held_weight: float = 0.0

    @classmethod
    def of(cls, y: Floats, weight: Floats | None, hold: NDArray[np.bool_] | None) -> Targets:
        """Look at some rows; those of weight zero teach nothing."""
        if weight is not None:
            counts = weight > 0
            y, weight, hold = y[counts], weight[counts], None if hold is None else hold[counts]
        taken, aside = (y, y[:0]) if hold is None else (y[~hold], y[hold])
        mass = np.ones(len(aside)) if weight is None or hold is None else weight[hold].astype(np.float64)
        values = aside.astype(np.float64)
        return cls(
            len(taken),
            float(taken.min(initial=np.inf)),
            float(taken.max(initial=-np.inf)),
            len(aside),
            float(mass @ values),
            float(mass @ values**2),
            float(mass.sum()),
        )

    @classmethod
    def of_parts(cls, parts: Sequence[Held]) -> Targets:
        """Look at all rows of some parts."""
        return sum((cls.of(batch.y, batch.weight, hold) for batch, hold in parts if batch.y is not None), cls())

    def __add__(self, other: Targets) -> Targets:
        return Targets(
            self.rows + other.rows,
            float(np.minimum(self.least, other.least)),  # a NaN stays one, which it would not by min
            float(np.maximum(self.most, other.most)),
            self.held_rows + other.held_rows,
            self.held_sum + other.held_sum,
            self.held_squares + other.held_squares,
            self.held_weight + other.held_weight,
        )

    def flaw(self, loss: str) -> str:
        """Say why nothing can be learnt from these rows, if so."""
        if self.rows < 2:
            return f"too few rows: {self.rows} to learn from"
        if not np.isfinite(self.least - self.most):
            return "a target is not a finite number"
        if loss != "squared" and self.least == self.most:
            return "only one class among its rows"
        return ""

    def score(self, loss: str, right: Doubles) -> Doubles:
        """Return the accuracy, or R², from the held-out rows' right answers, or their squared errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if loss != "squared":
                return np.asarray(np.divide(right, self.held_weight), np.float64)
            spread = self.held_squares - self.held_sum**2 / self.held_weight if self.held_weight else 0.0
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
    held_loss: Doubles = field(default_factory=lambda: np.empty(0))
    held_score: Doubles = field(default_factory=lambda: np.empty(0))
    epochs: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    status: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trees: Sequence[str | None] | None = None
    reasons: Sequence[str] | None = None
    """Why each config failed, where the pattern knows more of it than that it did."""
    given_up: NDArray[np.bool_] | None = None
    """Configs that were not trained to their end because others promised more."""

    @classmethod
    def of(
        cls, group: int, targets: Targets, loss: str, *, weights: NDArray[Any], figures: Sequence[Any], seconds: float
    ) -> Fit:
        """Make means of sums: the objective, held-out loss and right answers, epochs and status of each config."""
        objective, held_loss, held_right, epochs, status = (np.array(figure) for figure in figures)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = held_loss / targets.held_weight if targets.held_weight else np.full(len(objective), np.nan)
        score = targets.score(loss, held_right) if targets.held_weight else np.full(len(objective), np.nan)
        kept = weights.astype(np.float32)
        kept[:, status == terms.FAILED] = np.nan
        return cls(group, targets, seconds, "", kept, objective, mean, score, epochs, status)

    @classmethod
    def joined(cls, fits: Sequence[Fit]) -> Fit:
        """Put together what came of the same group's configs, one after another."""
        first = fits[0]
        if first.reason or len(fits) == 1:
            return first
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(fit, name) for fit in fits])
            for name in ("loss", "held_loss", "held_score", "epochs", "status")
        }
        return cls(
            first.group,
            first.targets,
            sum(fit.seconds for fit in fits),
            weights=_beside([fit.weights for fit in fits]),
            trees=None if first.trees is None else [tree for fit in fits for tree in fit.trees or ()],
            reasons=None if first.reasons is None else [reason for fit in fits for reason in fit.reasons or ()],
            **arrays,
        )


def _beside(weights: Sequence[Floats | None]) -> Floats | None:
    found = [each for each in weights if each is not None]
    return np.concatenate(found, axis=1) if found else None


class Worker:
    """Runs what it is asked of grouped rows.

    Parameters
    ----------
    folder : str
        The grouped rows.
    validation, seed
        The share of each group's rows that is held out, and the seed of the choice: of each row the same, wherever it lies.
    """

    def __init__(self, folder: str, *, validation: float, seed: int) -> None:
        self.job: Any = None
        self.grouped = Grouped.open(folder)
        self._part = Part(validation, seed, held_out=True) if validation else None
        self._held: dict[tuple[int, int, int], NDArray[np.bool_]] = {}

    def run(self, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do several things one after another: each is the name of a method and its arguments."""
        return [getattr(self, name)(*arguments) for name, *arguments in items]

    def solve(self, group: int) -> Fit:
        """Train a whole group, all configs together."""
        raise NotImplementedError

    def solve_each(self, group: int, configs: Sequence[int]) -> list[Fit]:
        """Train some configs of a whole group, each by itself."""
        found = []
        for config in configs:
            alone = copy(self)
            alone.job = self.job.only([config])
            found.append(alone.solve(group))
        return found

    def rows(self, group: int, first: int = 0, rows: int | None = None) -> Iterator[Held]:
        """Yield the blocks of a range of a group's rows, cut at its ends, each with the rows held out."""
        grouped = self.grouped
        end = int(grouped.rows[group]) if rows is None else first + rows
        for block in grouped.blocks(group).tolist():
            start = int(grouped.block_first[block])
            low, high = max(first, start), min(end, start + int(grouped.block_rows[block]))
            if low < high:
                batch = grouped.read(block)
                if high - low < len(batch):
                    batch = batch.slice(low - start, high - start)
                yield batch, self.held(group, low, high - low)

    def held(self, group: int, first: int, rows: int) -> NDArray[np.bool_] | None:
        """Say which rows of a group are held out: of each the same, wherever it lies."""
        if self._part is None:
            return None
        key = (group, first, rows)
        if key in self._held:
            return self._held[key]
        found: NDArray[np.bool_] = self._part.keeps(np.full(1, group), np.arange(first, first + rows))
        if rows >= _KEPT:
            self._held[key] = found
        return found
