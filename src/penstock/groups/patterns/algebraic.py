"""The algebraic pattern: what is learned from sums over all rows, so that parts of a group can be summed anywhere.

Whole groups are solved where they lie, for all configs at once; of a group on several workers, each gives the sums over its
part. `class_sums` is the counterpart of `penstock.sgd.full.sums` for softmax, `least_squares` that of `penstock.sgd.exact`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.class_weights import ClassWeighting, ClassWeights
from penstock.groups.executor import Make
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Divided, Doubles, Fit, Refit, Targets, WeighedJob, Worker, weighed
from penstock.groups.scale import Moments, Scale, dense_width_of
from penstock.groups.split import TRAINING, Split
from penstock.sgd import exact, terms
from penstock.sgd.full import Sums, split, sums
from penstock.sgd.lbfgs import Descent, Lbfgs, Optimiser
from penstock.sgd.model import Weights
from penstock.sgd.passes import add_classes
from penstock.sgd.small import solve_small

_TILE = 1 << 18
"""Numbers of dense rows that are scored together, so that they are still in a cache when read a second time."""
_SPARSE_ROWS = 4096


def class_sums(batch: Batch, *, at: Doubles, classes: int, hold: NDArray[Any] | None = None) -> Sums:
    """Pass over the rows once for each config.

    Parameters
    ----------
    batch : Batch
        The rows; labels are the numbers of classes.
    at : array of shape ((d + 1) * classes, S)
        The configs' weights in the order (feature, class), the intercepts last; taken as float32.
    classes : int
        How many classes there are.
    hold : array, optional
        As for `penstock.sgd.full.sums`.

    Examples
    --------
    >>> batch = Batch(np.ones((4, 1), np.float32), np.array([0, 1, 2, 2], np.float32))
    >>> found = class_sums(batch, at=np.zeros((6, 1)), classes=3)
    >>> (found.loss / np.log(3)).round(6), found.gradient[:, 0].reshape(2, 3).round(3)
    (array([4.]), array([[ 0.333,  0.333, -0.667],
           [ 0.333,  0.333, -0.667]]))
    """
    assert batch.y is not None
    train, held = split(batch.x, batch.y, weight=batch.weight, hold=hold)
    configs = at.shape[1]
    found = Sums.zeros(len(at) - 1, configs)
    both = np.zeros((2, 2, configs))  # loss and right answers, of training and of the other rows
    wide = at.reshape(-1, classes, configs)
    sparse = isinstance(batch.x, Csr)
    step = _SPARSE_ROWS if sparse else max(1, _TILE // max(batch.width, 1))
    for config in range(configs):
        own = wide[:, :, config].astype(np.float32)
        weights = Weights(np.ascontiguousarray(own[:-1].T), own[-1].copy())
        gradient = np.zeros((len(own), classes))
        for start in range(0, len(batch), step):
            tile = batch.slice(start, min(start + step, len(batch)))
            for side, mass in enumerate((train[start : start + step], held[start : start + step])):
                if mass.any():
                    both[side, :, config] += add_classes(tile, mass, weights, gradient if side == 0 else None)
        found.gradient[:, config] = gradient.ravel()
    (loss, _), (held_loss, right) = both
    return Sums(
        loss, found.gradient, float(train.sum(dtype=np.float64)), held_loss, right, float(held.sum(dtype=np.float64))
    )


_SQUARES_TILE = 1 << 18
"""Numbers of rows that are multiplied together as float64."""


def least_squares(parts: Iterable[Divided], scale: Scale | None, *, l2: Doubles, intercept: bool) -> Doubles:
    """Return the weights (features + 1, configs) that minimize the mean of ``(score - y)² / 2`` with each config's penalty.

    They are for scaled features, and the intercept is last.

    Examples
    --------
    >>> from penstock.batch import Batch
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> least_squares([(Batch(x, 2 * x[:, 0] + 1), None)], None, l2=np.array([0.0, 0.1]), intercept=True).round(3)
    array([[2.   , 1.852],
           [1.   , 1.222]])
    """
    products: Doubles | None = None
    pivot: Doubles | None = None
    for batch, part in parts:
        assert batch.y is not None
        taken = np.arange(len(batch)) if part is None else np.flatnonzero(part == TRAINING)
        if batch.weight is not None:
            taken = taken[batch.weight[taken] > 0]
        step = max(1, _SQUARES_TILE // (batch.width + 2))
        for first in range(0, len(taken), step):
            some = batch.take(taken[first : first + step])
            some = some if scale is None else replace(some, x=scale.rows(some.x))
            if products is None or pivot is None:  # large means cost no digits where rows are moved near them
                products = np.zeros((batch.width + 2, batch.width + 2), order="F")
                pivot = exact.pivot_of(some, batch.width) if intercept else np.zeros(batch.width + 1)
            exact.add_products(some, pivot, products)
    assert products is not None  # a group of fewer rows is not solved
    assert pivot is not None
    coef = np.stack([exact.solve(products, l2=float(each), intercept=intercept) for each in l2], axis=1)
    if not intercept:
        return np.vstack([coef, np.zeros(len(l2))])
    middle = products[:-1, -1] / products[-1, -1] + pivot
    return np.vstack([coef, middle[-1] - middle[:-1] @ coef])


SOLVERS = ("exact", "lbfgs", "gd")
_SMALL = 3 << 20
"""Bytes of rows up to which a group is solved in one native call; past it matrix products are faster."""
_SPREAD = 1 << 23
"""Floats up to which a sparse group is spread out to be solved so; it is first cut down to the features that it has."""


@dataclass(frozen=True, slots=True)
class Algebraic(WeighedJob):
    """What is to be learnt of every group by sums.

    Attributes
    ----------
    solver : str
        lbfgs, gd or exact. Exact solves the normal equations of least squares where a group lies on one worker, and takes
        L-BFGS to the same minimum elsewhere.
    l1, l2, rate, tolerance : arrays
        A value for each config; an ``l2`` of NaN is one over the group's training rows.
    standardize : bool
        Bring features to mean 0 and spread 1 within each group; penalties are then on the weights of these.
    outputs : int
        The classes of softmax, else 1. Weights are in the order (feature, class), the intercepts last.
    class_weighting : ClassWeighting, optional
        How much rows count by their class, within each group.
    weights : array, optional
        Of one config: the weights that it begins with, for features as they are; all begin at zero if not given.
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
    outputs: int = 1
    class_weighting: ClassWeighting | None = None
    weights: Floats | None = None

    @property
    def configs(self) -> int:
        return len(self.l2)

    @property
    def split(self) -> Split:
        return Split.of(self.validation, self.seed, chooses=self.configs > 1)

    def make(self) -> Make:
        return partial(AlgebraicWorker, self)

    def only(self, configs: Sequence[int]) -> Algebraic:
        names = ("l1", "l2", "rate", "epochs", "tolerance")
        return replace(self, **{name: getattr(self, name)[list(configs)] for name in names})

    def refit(self, refit: Refit) -> Algebraic:
        job = self.only([refit.config])
        return replace(job, validation=0.0, epochs=np.minimum(job.epochs, refit.epochs), weights=refit.weights)

    def penalty(self, targets: Targets) -> Doubles:
        """Return each config's L2 penalty for a group."""
        return np.where(np.isnan(self.l2), 1 / max(targets.rows, 1), self.l2)

    def start(
        self,
        width: int,
        configs: slice = slice(None),
        *,
        scale: Scale | None = None,
        features: NDArray[np.int64] | None = None,
    ) -> Doubles:
        """Return the weights at which configs begin, for scaled features, or some features, where these are given."""
        if self.weights is None:
            return np.zeros(((width + 1) * self.outputs, len(self.l2[configs])))
        own = self.weights.astype(np.float64).reshape(-1, self.outputs)
        if features is not None:
            own = own[np.append(features, len(own) - 1)]
        column = own.reshape(-1, 1)
        return column if scale is None else scale.of_raw(column)

    def optimiser(self, start: Doubles, targets: Targets, configs: slice = slice(None)) -> Optimiser:
        """Return the optimiser of one group, for all configs or some."""
        make: Any = Descent if self.solver == "gd" else Lbfgs
        own = {name: getattr(self, name)[configs] for name in ("l1", "rate", "tolerance", "epochs")}
        own |= {"l2": self.penalty(targets)[configs], "intercept": self.intercept, "outputs": self.outputs}
        optimiser: Optimiser = make(start, **own)
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

    def __init__(self, job: Algebraic, grouped: Grouped | None = None) -> None:
        super().__init__(job.folder, job.split, grouped)
        self.job: Algebraic = job

    def solve(self, group: int) -> Fit:
        """Solve a whole group for all configs."""
        began = time.perf_counter()
        job, rows = self.job, self.grouped.size(group)
        parts = list(self.rows(group))
        targets = _looked_at(parts, job.counted_classes)
        flaw = targets.flaw(job.loss)
        if flaw:
            return Fit(group, targets, time.perf_counter() - began, flaw)
        parts, features = cut_down(parts)
        scale = None
        if job.standardize:
            recipe = self.grouped.recipe
            moments = Moments.of_parts(parts, parts[0][0].width, dense=dense_width_of(recipe))
            scale = Scale.for_recipe(moments, recipe, shift=job.intercept, features=features)
        classes = job.class_weights(targets)
        parts, targets = list(weighed(parts, classes)), targets.weighed(classes)
        start = job.start(parts[0][0].width, scale=scale, features=features)
        small = sum(batch.nbytes for batch, _ in parts) <= _SMALL
        narrow = features is None or rows * len(features) <= _SPREAD
        if job.solver == "exact" and narrow:
            weights, figures = self._exact(parts, scale, targets)
        elif small and narrow and job.solver != "gd" and job.outputs == 1:
            weights, figures = self._small(parts, scale, targets, start)
        else:
            optimiser = job.optimiser(start, targets)
            while not optimiser.done.all():
                live, at = ~optimiser.done, optimiser.ask()
                found = self._sums(parts, (at if scale is None else scale.raw(at))[:, live])
                optimiser.tell((found if scale is None else scale.scaled(found)).spread(live))
            weights, figures = optimiser.best, figures_of(optimiser)
        if scale is not None:
            weights = scale.raw(weights)
        if features is not None:
            own = weights.reshape(len(features) + 1, -1)
            wide = np.zeros((self.grouped.width + 1, own.shape[1]))
            wide[features], wide[-1] = own[:-1], own[-1]
            weights = wide.reshape(-1, job.configs)
        seconds = time.perf_counter() - began
        return Fit.of(group, targets, job.loss, weights=weights, figures=figures, seconds=seconds)

    def partial(
        self, group: int, first: int, rows: int, at: Doubles, look: bool, class_weights: ClassWeights | None = None
    ) -> Partial:
        """Return the sums over a shard at some weights, and what its rows are like if that is asked."""
        began = time.perf_counter()
        targets, moments = Targets(), Moments.none(self.grouped.width)
        if look:
            targets = _looked_at(self.rows(group, first, rows), self.job.counted_classes)
            if self.job.standardize:
                dense = dense_width_of(self.grouped.recipe)
                moments = Moments.of_parts(self.rows(group, first, rows), self.grouped.width, dense=dense)
        found = self._sums(weighed(self.rows(group, first, rows), class_weights), at)
        return Partial(found, targets, moments, time.perf_counter() - began)

    def _sums(self, parts: Iterable[Divided], at: Doubles) -> Sums:
        total = Sums.zeros(len(at) - 1, at.shape[1])
        for batch, hold in parts:
            assert batch.y is not None
            if self.job.outputs > 1:
                total = total + class_sums(batch, at=at, classes=self.job.outputs, hold=hold)
            else:
                total = total + sums(batch.x, batch.y, at=at, loss=self.job.loss, weight=batch.weight, hold=hold)
        return total

    def _exact(self, parts: list[Divided], scale: Scale | None, targets: Targets) -> tuple[Doubles, Sequence[Any]]:
        """Solve least squares for all configs from one pass, and measure them by another."""
        job, penalty = self.job, self.job.penalty(targets)
        with np.errstate(all="ignore"):
            weights = terms.as_evaluated(least_squares(parts, scale, l2=penalty, intercept=job.intercept))
            found = self._sums(parts, weights if scale is None else scale.raw(weights))
            objective = found.loss / found.weight + 0.5 * penalty * (weights[:-1] ** 2).sum(axis=0)
        status = np.where(np.isfinite(objective), terms.CONVERGED, terms.FAILED)
        return weights, (objective, found.held_loss, found.held_right, np.ones(job.configs, np.int64), status)

    def _small(
        self, parts: list[Divided], scale: Scale | None, targets: Targets, start: Doubles
    ) -> tuple[Doubles, Sequence[Any]]:
        job = self.job
        batch = Batch.concat([batch for batch, _ in parts])
        x = batch.x if scale is None else scale.rows(batch.x)
        hold = None if parts[0][1] is None else np.concatenate([hold for _, hold in parts if hold is not None])
        assert batch.y is not None
        found = solve_small(
            x.to_dense() if isinstance(x, Csr) else x,
            batch.y,
            weight=batch.weight,
            hold=hold,
            configs=job.configs,
            l1=job.l1,
            l2=job.penalty(targets),
            rate=job.rate,
            epochs=job.epochs,
            tolerance=job.tolerance,
            loss=job.loss,
            intercept=job.intercept,
            start=start,
        )
        return found.w, found[1:]


def cut_down(parts: list[Divided]) -> tuple[list[Divided], NDArray[np.int64] | None]:
    """Leave out of sparse rows the features that none of them has, whose weights stay at zero; return those that stay.

    Rows of a group have few of the features that there are, and optimisers remember every weight many times over.
    """
    sparse = [batch.x for batch, _ in parts if isinstance(batch.x, Csr)]
    if not sparse:
        return parts, None
    features = np.unique(np.concatenate([np.unique(x.indices) for x in sparse]))
    cut: list[Divided] = []
    for x, (batch, hold) in zip(sparse, parts, strict=True):
        places = np.searchsorted(features, x.indices).astype(np.uint32)
        cut.append((replace(batch, x=Csr(x.indptr, places, x.values, len(features))), hold))
    return cut, features.astype(np.int64)


def _looked_at(parts: Iterable[Divided], classes: int) -> Targets:
    """Look at the targets of rows, and whether rows that are not trained on, which no gradient is of, have features to be scored by."""
    found = Targets()
    for batch, part in parts:
        own = Targets.of_parts([(batch, part)], classes=classes)
        if part is not None and (part != TRAINING).any():
            aside = batch.take(np.flatnonzero(part != TRAINING)).x
            finite = np.isfinite(aside.values if isinstance(aside, Csr) else aside).all()
            own = replace(own, finite=bool(finite))
        found += own
    return found


def figures_of(optimiser: Optimiser) -> Sequence[Any]:
    """Return what `Fit.of` makes means of."""
    return (optimiser.loss, optimiser.held_loss, optimiser.held_right, optimiser.evaluations, optimiser.status)
