"""What workers compute of groups: whole groups solved for all configs, and partial sums of groups that lie on several.

A worker maps the grouped rows and keeps nothing between tasks that it could not work out again, so that a task lost with
its worker is simply given out anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.groups.grouped import Grouped
from penstock.groups.scale import Moments, Scale
from penstock.loader.holdout import Part
from penstock.sgd import terms
from penstock.sgd.full import Sums, sums
from penstock.sgd.lbfgs import Descent, Lbfgs, Optimiser
from penstock.sgd.small import solve

SOLVERS = ("lbfgs", "gd")
_SMALL = 3 << 20
"""Bytes of rows up to which a group is solved in one native call; past it matrix products are faster."""
_SPREAD = 1 << 23
"""Floats up to which a sparse group is spread out to be solved so; it is first cut down to the features that it has."""
_KEPT = 1 << 16
"""Rows from which on it is worth remembering which of them are held out."""

Doubles = NDArray[np.float64]
_Part = tuple[Batch, NDArray[np.bool_] | None]
"""Rows, and which of them are held out."""


@dataclass(frozen=True, slots=True)
class Algebraic:
    """What is to be learnt of every group: the same for all workers, and plain enough to travel.

    Attributes
    ----------
    folder : str
        The grouped rows.
    loss : str
        logistic or squared.
    solver : str
        lbfgs or gd.
    l1, l2, rate, epochs, tolerance : arrays
        A value for each config.
    validation : float
        The share of each group's rows that is held out.
    seed : int
        Of the choice of these.
    standardize : bool
        Bring features to mean 0 and spread 1 within each group; penalties are then on the weights of these.
    """

    folder: str
    loss: str
    solver: str
    l1: Doubles
    l2: Doubles
    rate: Doubles
    epochs: NDArray[np.int64]
    tolerance: Doubles
    validation: float = 0.0
    seed: int = 0
    intercept: bool = True
    standardize: bool = False

    @property
    def configs(self) -> int:
        return len(self.l2)

    def optimiser(self, width: int, configs: slice = slice(None)) -> Optimiser:
        """Return the optimiser of one group, for all configs or some."""
        make: Any = Lbfgs if self.solver == "lbfgs" else Descent
        names = ("l1", "l2", "rate", "tolerance", "epochs")
        chosen = {name: getattr(self, name)[configs] for name in names}
        optimiser: Optimiser = make(np.zeros((width + 1, len(chosen["l2"]))), **chosen, intercept=self.intercept)
        return optimiser

    def held(self, group: int, first: int, rows: int) -> NDArray[np.bool_] | None:
        """Say which rows of a group are held out: of each the same, wherever it lies."""
        if not self.validation:
            return None
        numbers = np.arange(first, first + rows)
        return Part(self.validation, self.seed, held_out=True).keeps(np.full(1, group), numbers)


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
        if loss == "logistic" and self.least == self.most:
            return "only one class among its rows"
        return ""

    def score(self, loss: str, right: Doubles) -> Doubles:
        """Return the accuracy, or R², from the held-out rows' right answers, or their squared errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if loss == "logistic":
                return np.asarray(np.divide(right, self.held_weight), np.float64)
            spread = self.held_squares - self.held_sum**2 / self.held_weight if self.held_weight else 0.0
            return np.asarray(1 - np.divide(right, spread), np.float64)


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of a group."""

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

    @classmethod
    def of(
        cls, group: int, targets: Targets, loss: str, *, weights: Doubles, figures: Sequence[Any], seconds: float
    ) -> Fit:
        """Make means of an optimiser's figures: objective, held-out loss and right answers, epochs and status."""
        objective, held_loss, held_right, epochs, status = (np.array(figure) for figure in figures)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = held_loss / targets.held_weight if targets.held_weight else np.full(len(objective), np.nan)
        score = targets.score(loss, held_right) if targets.held_weight else np.full(len(objective), np.nan)
        kept = weights.astype(np.float32)
        kept[:, status == terms.FAILED] = np.nan
        return cls(group, targets, seconds, "", kept, objective, mean, score, epochs, status)


@dataclass(frozen=True, slots=True)
class Partial:
    """What a pass over a shard comes to, and what its rows are like, where that was asked."""

    sums: Sums
    targets: Targets
    moments: Moments
    seconds: float


class Worker:
    """Computes what it is asked of grouped rows."""

    def __init__(self, job: Algebraic) -> None:
        self.job = job
        self.grouped = Grouped.open(job.folder)
        self._held: dict[tuple[int, int, int], NDArray[np.bool_] | None] = {}

    def run(self, items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do several things one after another: each is the name of a method and its arguments."""
        return [getattr(self, name)(*arguments) for name, *arguments in items]

    def solve(self, group: int) -> Fit:
        """Solve a whole group for all configs."""
        began = time.perf_counter()
        job, rows = self.job, int(self.grouped.rows[group])
        parts = list(self._rows(group, 0, rows))
        targets = sum((Targets.of(b.y, b.weight, hold) for b, hold in parts if b.y is not None), Targets())
        flaw = targets.flaw(job.loss)
        if flaw:
            return Fit(group, targets, time.perf_counter() - began, flaw)
        parts, features = cut_down(parts)
        scale = None
        if job.standardize:
            moments = sum((Moments.of(batch, hold) for batch, hold in parts), Moments.none(parts[0][0].width))
            scale = Scale.of(moments, shift=job.intercept and features is None)
        small = sum(batch.nbytes for batch, _ in parts) <= _SMALL
        if small and job.solver == "lbfgs" and (features is None or rows * len(features) <= _SPREAD):
            weights, figures = self._small(parts, scale)
        else:
            optimiser = job.optimiser(parts[0][0].width)
            while not optimiser.done.all():
                live, at = ~optimiser.done, optimiser.ask()
                found = self._sums(parts, (at if scale is None else scale.raw(at))[:, live])
                optimiser.tell((found if scale is None else scale.scaled(found)).spread(live))
            weights, figures = optimiser.best, figures_of(optimiser)
        if scale is not None:
            weights = scale.raw(weights)
        if features is not None:
            narrow, weights = weights, np.zeros((self.grouped.width + 1, job.configs))
            weights[features], weights[-1] = narrow[:-1], narrow[-1]
        seconds = time.perf_counter() - began
        return Fit.of(group, targets, job.loss, weights=weights, figures=figures, seconds=seconds)

    def partial(self, group: int, first: int, rows: int, at: Doubles, look: bool) -> Partial:
        """Return the sums over a shard at some weights, and what its rows are like if that is asked."""
        began = time.perf_counter()
        parts = list(self._rows(group, first, rows))
        targets, moments = Targets(), Moments.none(self.grouped.width)
        if look:
            targets = sum((Targets.of(b.y, b.weight, hold) for b, hold in parts if b.y is not None), targets)
            if self.job.standardize:
                moments = sum((Moments.of(batch, hold) for batch, hold in parts), moments)
        return Partial(self._sums(parts, at), targets, moments, time.perf_counter() - began)

    def _sums(self, parts: list[_Part], at: Doubles) -> Sums:
        total = Sums.zeros(len(at) - 1, at.shape[1])
        for batch, hold in parts:
            assert batch.y is not None
            total = total + sums(batch.x, batch.y, at=at, loss=self.job.loss, weight=batch.weight, hold=hold)
        return total

    def _small(self, parts: list[_Part], scale: Scale | None) -> tuple[Doubles, Sequence[Any]]:
        job = self.job
        batch = Batch.concat([batch for batch, _ in parts])
        if scale is not None:
            batch = replace(batch, x=scale.rows(batch.x))
        hold = None if parts[0][1] is None else np.concatenate([hold for _, hold in parts if hold is not None])
        assert batch.y is not None
        found = solve(
            batch.x,
            batch.y,
            weight=batch.weight,
            hold=hold,
            configs=job.configs,
            l1=job.l1,
            l2=job.l2,
            rate=job.rate,
            epochs=job.epochs,
            tolerance=job.tolerance,
            loss=job.loss,
            intercept=job.intercept,
        )
        return found.w, found[1:]

    def _rows(self, group: int, first: int, rows: int) -> Iterator[_Part]:
        """Yield the blocks of a range of a group's rows, cut at its ends, each with the rows held out."""
        grouped = self.grouped
        for block in grouped.blocks(group).tolist():
            start = int(grouped.block_first[block])
            low, high = max(first, start), min(first + rows, start + int(grouped.block_rows[block]))
            if low < high:
                batch = grouped.read(block)
                if high - low < len(batch):
                    batch = batch.slice(low - start, high - start)
                yield batch, self._hold(group, low, high - low)

    def _hold(self, group: int, first: int, rows: int) -> NDArray[np.bool_] | None:
        if rows < _KEPT:
            return self.job.held(group, first, rows)
        key = (group, first, rows)
        if key not in self._held:
            self._held[key] = self.job.held(group, first, rows)
        return self._held[key]


def cut_down(parts: list[_Part]) -> tuple[list[_Part], NDArray[np.int64] | None]:
    """Leave out of sparse rows the features that none of them has, whose weights stay at zero; return those that stay.

    Rows of a group have few of the features that there are, and optimisers remember every weight many times over.
    """
    sparse = [batch.x for batch, _ in parts if isinstance(batch.x, Csr)]
    if not sparse:
        return parts, None
    features = np.unique(np.concatenate([np.unique(x.indices) for x in sparse]))
    cut: list[_Part] = []
    for x, (batch, hold) in zip(sparse, parts, strict=True):
        places = np.searchsorted(features, x.indices).astype(np.uint32)
        cut.append((replace(batch, x=Csr(x.indptr, places, x.values, len(features))), hold))
    return cut, features.astype(np.int64)


def figures_of(optimiser: Optimiser) -> Sequence[Any]:
    """Return what `Fit.of` makes means of."""
    return (optimiser.loss, optimiser.held_loss, optimiser.held_right, optimiser.evaluations, optimiser.status)
