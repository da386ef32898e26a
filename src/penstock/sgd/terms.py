"""What configs minimise, and where each of them stands: plain arrays with the config first, shared by optimisers.

Weights are kept in float64 but rounded to float32 wherever they are evaluated, for rows are scored with float32
and models are stored so: what is measured is what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import ModelFileError, UsageError
from penstock.sgd.full import Doubles, Sums

Whole = NDArray[np.int64]

# How a config stands. A stalled one found nothing lower along its gradient: as low as its arithmetic can see.
RUNNING, CONVERGED, SPENT, STALLED, FAILED = 0, 1, 2, 3, 4
STATUS = ("running", "converged", "epochs spent", "stalled", "diverged")


@dataclass(frozen=True, slots=True)
class Terms:
    """What each of S configs is to minimise and how boldly: penalties, rate, epochs, tolerance; arrays of S.

    The objective is the mean loss + l2 / 2 |w|² + l1 |w|, the intercepts, which are the last ``outputs`` entries, free of
    both.

    Examples
    --------
    >>> Terms.of(3, l2=[0.1, 0.2, 0.3], epochs=5).epochs
    array([5, 5, 5])
    """

    l1: Doubles
    l2: Doubles
    rate: Doubles
    epochs: NDArray[np.int64]
    tolerance: Doubles
    intercept: bool = True
    outputs: int = 1

    @classmethod
    def of(
        cls,
        configs: int,
        *,
        l1: ArrayLike = 0.0,
        l2: ArrayLike = 0.0,
        rate: ArrayLike = 1.0,
        epochs: ArrayLike | None = None,
        tolerance: ArrayLike = 1e-4,
        intercept: bool = True,
        outputs: int = 1,
    ) -> Terms:
        """Check the terms and give each config its own; a number stands for all."""
        spread: dict[str, Doubles] = {}
        for name, value in (("l1", l1), ("l2", l2), ("rate", rate), ("tolerance", tolerance)):
            column = np.asarray(value, np.float64)
            if column.shape not in ((), (configs,)):
                raise UsageError(
                    f"{name} has shape {column.shape} for {configs} configs; give a number or one for each"
                )
            bad = ~(np.isfinite(column) & ((column > 0) if name == "rate" else (column >= 0)))
            if bad.any():
                least = "a number above zero" if name == "rate" else "zero or a positive number"
                raise UsageError(f"must be {least}", option=name, value=float(column[bad].flat[0]))
            spread[name] = np.broadcast_to(column, configs).copy()
        limit = np.asarray(np.iinfo(np.int64).max if epochs is None else epochs)
        if limit.shape not in ((), (configs,)) or limit.dtype.kind not in "iu" or (limit < 1).any():
            raise UsageError(
                f"must be whole numbers from 1, one or one for each of {configs} configs", option="epochs", value=epochs
            )
        limits = np.broadcast_to(limit, configs).astype(np.int64)
        return cls(epochs=limits, intercept=intercept, outputs=outputs, **spread)

    def objective(self, w: Doubles, sums: Sums) -> tuple[Doubles, Doubles]:
        """Return the objective (S,) and the gradient (S, entries) of all but the L1 penalty."""
        weight = sums.weight if sums.weight > 0 else np.nan  # of no rows there is no mean
        coef = self.coef(w)
        gradient = sums.gradient.T / weight
        self.coef(gradient)[...] += self.l2[:, None] * coef
        if not self.intercept:
            gradient[:, -self.outputs :] = 0
        value = sums.loss / weight + 0.5 * self.l2 * (coef * coef).sum(1) + self.l1 * np.abs(coef).sum(1)
        return value, gradient

    def steepest(self, w: Doubles, gradient: Doubles) -> Doubles:
        """Return the gradient with the L1 penalty's: where a weight is zero, of the side that falls, if one does."""
        l1, coef = self.l1[:, None], self.coef(w)
        own = self.coef(gradient)
        at_zero = np.sign(own) * np.maximum(np.abs(own) - l1, 0)
        full = gradient.copy()
        self.coef(full)[...] = np.where(coef == 0, at_zero, own + l1 * np.sign(coef))
        return full

    def coef(self, w: Doubles) -> Doubles:
        """Return the view of weights (S, entries) without the intercepts: the entries under penalties."""
        return w[:, : -self.outputs]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where each of S configs stands; the arrays are changed in place, and of shape (S,) where nothing else is said."""

    w: Doubles  # (S, d + 1), the weights accepted
    trial: Doubles  # (S, d + 1), those to be evaluated next
    loss: Doubles  # the objective at the accepted weights
    held_loss: Doubles  # sums over held-out rows there
    held_right: Doubles
    held_weight: Doubles
    evaluations: Whole  # passes taken part in
    status: Whole  # a code that `STATUS` names
    moved: Whole  # steps accepted

    @classmethod
    def at(cls, start: NDArray[np.floating[Any]]) -> Standing:
        """Return the standing of configs about to be evaluated at a start (d + 1, S)."""
        if start.ndim != 2 or len(start) < 1:
            raise UsageError(f"a start of shape {start.shape} is not weights; give (features + 1, configs)")
        w = as_evaluated(np.ascontiguousarray(start.T, np.float64))
        figures = np.zeros((4, len(w)))
        figures[0] = np.inf
        counts = np.zeros((3, len(w)), np.int64)
        return cls(w, w.copy(), *figures, *counts)

    def take(self, taken: NDArray[np.bool_], sums: Sums, value: Doubles) -> None:
        """Accept the trial weights of some configs, with what was measured there."""
        self.w[taken], self.loss[taken] = self.trial[taken], value[taken]
        self.held_loss[taken], self.held_right[taken] = sums.held_loss[taken], sums.held_right[taken]
        self.held_weight[taken] = sums.held_weight

    def check(self, sums: Sums) -> None:
        """Refuse sums that were made for other weights."""
        shape = (self.w.shape[1], self.w.shape[0])
        if sums.gradient.shape != shape:
            raise UsageError(f"told sums of shape {sums.gradient.shape}, but asked at {shape}; pass `ask()` on whole")

    def end(self, terms: Terms) -> None:
        """End the configs whose epochs are spent; one that tried to move and never could has failed."""
        spent = (self.status == RUNNING) & (self.evaluations >= terms.epochs)
        stuck = (self.moved == 0) & (self.evaluations > 1)
        self.status[spent] = np.where(stuck, FAILED, SPENT)[spent]


def arrays_of(held: object) -> dict[str, NDArray[Any]]:
    """Return the arrays that a dataclass consists of, by name."""
    return {f.name: getattr(held, f.name) for f in fields(held)}  # type: ignore[arg-type]  # always a dataclass


def fill(arrays: Mapping[str, NDArray[Any]], state: Mapping[str, NDArray[Any]]) -> None:
    """Write a state into these arrays, once all of it is found to fit."""
    for name, own in arrays.items():
        given = state.get(name)
        if given is None or given.shape != own.shape:
            found = "is missing" if given is None else f"has shape {given.shape}, not {own.shape}"
            raise ModelFileError(f"the state's {name!r} {found}; resume with the data and configs it was saved with")
    for name, own in arrays.items():
        own[...] = state[name]


def as_evaluated(w: Doubles) -> Doubles:
    """Return weights as float32 holds them."""
    with np.errstate(over="ignore"):
        return w.astype(np.float32).astype(np.float64)
