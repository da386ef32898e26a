"""The algebraic pattern: what is learnt from sums over all rows, so that parts of a group can be summed anywhere.

Whole groups are solved where they lie, for all configs at once; of groups that lie on several workers each gives the sums
over its part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.groups.executor import Make
from penstock.groups.patterns.base import Doubles, Fit, Held, Targets, Worker
from penstock.groups.scale import Moments, Scale
from penstock.sgd.full import Sums, sums
from penstock.sgd.lbfgs import Descent, Lbfgs, Optimiser
from penstock.sgd.small import solve

SOLVERS = ("lbfgs", "gd")
_SMALL = 3 << 20
"""Bytes of rows up to which a group is solved in one native call; past it matrix products are faster."""
_SPREAD = 1 << 23
"""Floats up to which a sparse group is spread out to be solved so; it is first cut down to the features that it has."""


@dataclass(frozen=True, slots=True)
class Algebraic:
    """What is to be learnt of every group by sums.

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

    pattern: ClassVar[str] = "algebraic"
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

    def make(self) -> Make:
        return partial(AlgebraicWorker, self)

    def only(self, configs: Sequence[int]) -> Algebraic:
        names = ("l1", "l2", "rate", "epochs", "tolerance")
        return replace(self, **{name: getattr(self, name)[list(configs)] for name in names})

    def optimiser(self, width: int, configs: slice = slice(None)) -> Optimiser:
        """Return the optimiser of one group, for all configs or some."""
        make: Any = Lbfgs if self.solver == "lbfgs" else Descent
        names = ("l1", "l2", "rate", "tolerance", "epochs")
        chosen = {name: getattr(self, name)[configs] for name in names}
        optimiser: Optimiser = make(np.zeros((width + 1, len(chosen["l2"]))), **chosen, intercept=self.intercept)
        return optimiser


@dataclass(frozen=True, slots=True)
class Partial:
    """What a pass over a shard comes to, and what its rows are like, where that was asked."""

    sums: Sums
    targets: Targets
    moments: Moments
    seconds: float


class AlgebraicWorker(Worker):
    """Solves groups, and sums over parts of them."""

    def __init__(self, job: Algebraic) -> None:
        super().__init__(job.folder, validation=job.validation, seed=job.seed)
        self.job: Algebraic = job

    def solve(self, group: int) -> Fit:
        """Solve a whole group for all configs."""
        began = time.perf_counter()
        job, rows = self.job, int(self.grouped.rows[group])
        parts = list(self.rows(group))
        targets = Targets.of_parts(parts)
        flaw = targets.flaw(job.loss)
        if flaw:
            return Fit(group, targets, time.perf_counter() - began, flaw)
        parts, features = cut_down(parts)
        scale = None
        if job.standardize:
            moments = Moments.of_parts(parts)
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
        parts = list(self.rows(group, first, rows))
        targets, moments = Targets(), Moments.none(self.grouped.width)
        if look:
            targets = Targets.of_parts(parts)
            if self.job.standardize:
                moments = Moments.of_parts(parts)
        return Partial(self._sums(parts, at), targets, moments, time.perf_counter() - began)

    def _sums(self, parts: list[Held], at: Doubles) -> Sums:
        total = Sums.zeros(len(at) - 1, at.shape[1])
        for batch, hold in parts:
            assert batch.y is not None
            total = total + sums(batch.x, batch.y, at=at, loss=self.job.loss, weight=batch.weight, hold=hold)
        return total

    def _small(self, parts: list[Held], scale: Scale | None) -> tuple[Doubles, Sequence[Any]]:
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


def cut_down(parts: list[Held]) -> tuple[list[Held], NDArray[np.int64] | None]:
    """Leave out of sparse rows the features that none of them has, whose weights stay at zero; return those that stay.

    Rows of a group have few of the features that there are, and optimisers remember every weight many times over.
    """
    sparse = [batch.x for batch, _ in parts if isinstance(batch.x, Csr)]
    if not sparse:
        return parts, None
    features = np.unique(np.concatenate([np.unique(x.indices) for x in sparse]))
    cut: list[Held] = []
    for x, (batch, hold) in zip(sparse, parts, strict=True):
        places = np.searchsorted(features, x.indices).astype(np.uint32)
        cut.append((replace(batch, x=Csr(x.indptr, places, x.values, len(features))), hold))
    return cut, features.astype(np.int64)


def figures_of(optimiser: Optimiser) -> Sequence[Any]:
    """Return what `Fit.of` makes means of."""
    return (optimiser.loss, optimiser.held_loss, optimiser.held_right, optimiser.evaluations, optimiser.status)
