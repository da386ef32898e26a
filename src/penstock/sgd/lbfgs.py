"""Optimisers that ask for weights and are told the sums there, for many configs at once.

`Lbfgs` is limited-memory BFGS with a search along each direction; an L1 penalty makes it orthant-wise (OWL-QN).
`Descent` is plain gradient descent, proximal for L1. Neither sees a row: every `tell` is one pass over the data,
made wherever the rows lie (`full.sums`), and a config that goes astray steps back without harm to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UsageError
from penstock.sgd.full import Doubles, Sums
from penstock.sgd.terms import (
    CONVERGED,
    FAILED,
    RUNNING,
    STALLED,
    Standing,
    Terms,
    Whole,
    arrays_of,
    as_evaluated,
    fill,
)

ARMIJO = 1e-4  # the share of the slope's promise that a step must keep
RETRIES = 20  # shorter steps along one direction
SMALLEST_FALL = 1e-9  # relative; float32 scores show nothing less
CURVED = 1e-10  # the least curvature, relative to the square of the gradient's change
HOPELESS = 1e6  # as in SGD: an objective so many times that of the start does not come back


@dataclass(frozen=True, slots=True)
class _Search:
    """Of each config, the line it searches and the curvature it remembers."""

    gradient: Doubles
    steep: Doubles
    direction: Doubles
    step: Doubles
    retries: Whole
    learnt: Whole
    moves: Doubles
    bends: Doubles
    scales: Doubles


class Optimiser:
    """What both optimisers are: asked for weights, told sums, and made of arrays that can be saved.

    Parameters
    ----------
    start : array of shape (d + 1, S)
        Where each config begins; intercepts in the last row.
    l1, l2 : float or array of S
        Penalties on the mean loss: ``l1 |w| + l2 / 2 |w|²``, the intercept left out.
    rate : float or array of S
        The share of each proposed step that is tried first; of `Descent`, what the gradient is multiplied by.
    tolerance : float or array of S
        A config has converged when no entry of its gradient is larger.
    epochs : int or array of S, optional
        Passes after which a config is done, the one at its start included; without it, when converged.
    intercept : bool
        Whether intercepts are learnt.
    outputs : int
        The number of intercepts, which are the last entries: one, or one for each class.

    Attributes
    ----------
    loss, held_loss, held_right, held_weight : array of shape (S,)
        At the accepted weights: the mean objective with its penalties, and sums over held-out rows.
    evaluations, status : array of shape (S,)
        Passes so far; how it stands, by `terms.STATUS`.
    """

    def __init__(
        self,
        start: NDArray[np.floating[Any]],
        *,
        l1: ArrayLike = 0.0,
        l2: ArrayLike = 0.0,
        rate: ArrayLike = 1.0,
        tolerance: ArrayLike = 1e-4,
        epochs: ArrayLike | None = None,
        intercept: bool = True,
        outputs: int = 1,
    ) -> None:
        self._at = at = Standing.at(start)
        terms: dict[str, Any] = {"l1": l1, "l2": l2, "rate": rate, "epochs": epochs, "tolerance": tolerance}
        self._terms = Terms.of(len(at.w), intercept=intercept, outputs=outputs, **terms)
        self.loss, self.evaluations, self.status = at.loss, at.evaluations, at.status
        self.held_loss, self.held_right, self.held_weight = at.held_loss, at.held_right, at.held_weight

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which configs want no more passes."""
        return np.not_equal(self.status, RUNNING)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which configs cannot be trained."""
        return np.equal(self.status, FAILED)

    @property
    def best(self) -> Doubles:
        """The best weights so far, (d + 1, S)."""
        return np.ascontiguousarray(self._at.w.T)

    def ask(self) -> Doubles:
        """Return the weights (d + 1, S) at which sums are wanted; of a config that is done, its best."""
        return np.ascontiguousarray(np.where(self.done[:, None], self._at.w, self._at.trial).T)

    def tell(self, sums: Sums) -> None:
        """Take the sums at the weights last asked for."""
        raise NotImplementedError

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that the next steps depend on, as arrays."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state as if there had been no break, to the last bit."""
        fill(self._arrays(), state)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        raise NotImplementedError


class Lbfgs(Optimiser):
    """Limited-memory BFGS over S configs, one pass over the data to each `tell`.

    Parameters
    ----------
    history : int
        How many steps the curvature is remembered from.
    smallest_fall : float
        The fall of an objective, relative to it, that is taken for none.
    others
        As for `Optimiser`.

    Examples
    --------
    >>> from penstock.sgd.full import sums
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> y = 2 * x[:, 0] + 1
    >>> search = Lbfgs(np.zeros((2, 2)), l2=[0.0, 0.1], tolerance=1e-6)
    >>> while not search.done.all():
    ...     search.tell(sums(x, y, at=search.ask(), loss="squared"))
    >>> search.best.round(3)
    array([[2.   , 1.852],
           [1.   , 1.222]])
    """

    def __init__(
        self,
        start: NDArray[np.floating[Any]],
        *,
        history: int = 10,
        smallest_fall: float = SMALLEST_FALL,
        **terms: Any,
    ) -> None:
        if history < 1:
            raise UsageError("must be a whole number from 1", option="history", value=history, fixes=["10 is usual"])
        self._smallest_fall = smallest_fall
        super().__init__(start, **terms)
        at = self._at
        configs, size = at.w.shape
        self._line = _Search(
            gradient=np.zeros((configs, size)),
            steep=np.zeros((configs, size)),
            direction=np.zeros((configs, size)),
            step=np.zeros(configs),
            retries=np.zeros(configs, np.int64),
            learnt=np.zeros(configs, np.int64),
            moves=np.zeros((configs, history, size)),
            bends=np.zeros((configs, history, size)),
            scales=np.zeros((configs, history)),
        )

    def tell(self, sums: Sums) -> None:
        """Take the sums at the weights last asked for: each config accepts them, or steps back."""
        at, line, terms = self._at, self._line, self._terms
        at.check(sums)
        live = ~self.done
        at.evaluations[live] += 1
        with np.errstate(all="ignore"):
            value, gradient = terms.objective(at.trial, sums)
            # What the slope promises is measured along the step as taken, for an orthant's border may cut it short.
            promised = (line.steep * (at.trial - at.w)).sum(1)
            sound = np.isfinite(value) & np.isfinite(gradient).all(1)
            first = at.evaluations == 1
            lower = live & sound & (first | (value <= at.loss + ARMIJO * promised))
            at.status[live & first & ~sound] = FAILED
            missed = live & ~lower & ~first
            self._shorten(missed, value, promised)
            self._accept(lower, sums, value, gradient, first)
            at.end(terms)
            self._try(~self.done)

    def _accept(
        self, taken: NDArray[np.bool_], sums: Sums, value: Doubles, gradient: Doubles, first: NDArray[np.bool_]
    ) -> None:
        at, line, terms = self._at, self._line, self._terms
        later = taken & ~first
        fall = at.loss - value
        move, bend = at.trial - at.w, gradient - line.gradient
        curvature, size = (move * bend).sum(1), (bend * bend).sum(1)
        learns = np.flatnonzero(later & (curvature > CURVED * size))
        slot = line.learnt[learns] % line.scales.shape[1]
        line.moves[learns, slot], line.bends[learns, slot] = move[learns], bend[learns]
        line.scales[learns, slot] = curvature[learns]
        line.learnt[learns] += 1
        at.take(taken, sums, value)
        at.moved[later] += 1
        line.gradient[taken] = gradient[taken]
        line.steep[taken] = terms.steepest(at.w, gradient)[taken]
        flat = np.abs(line.steep).max(1) <= terms.tolerance
        still = later & (fall <= self._smallest_fall * np.abs(value))
        at.status[taken & still] = STALLED
        at.status[taken & (flat | (still & (line.retries == 0)))] = CONVERGED
        self._turn(taken)

    def _turn(self, turned: NDArray[np.bool_]) -> None:
        """Choose a direction anew, down the gradient as bent by the curvature remembered."""
        line, terms = self._line, self._terms
        bent = self._bent(line.steep)
        bent = np.where(((bent * line.steep) > 0) | (terms.l1 == 0)[:, None], bent, 0)
        downhill = ((bent * line.steep).sum(1) > 0) & (line.learnt > 0)
        line.learnt[turned & ~downhill] = 0
        line.direction[turned] = -np.where(downhill[:, None], bent, line.steep)[turned]
        length = np.sqrt((line.steep * line.steep).sum(1))
        first = terms.rate * np.minimum(1, 1 / np.maximum(length, 1e-300))
        line.step[turned] = np.where(downhill, terms.rate, first)[turned]
        line.retries[turned] = 0

    def _bent(self, gradient: Doubles) -> Doubles:
        """Multiply each config's gradient by its estimate of the inverse curvature: the two loops."""
        line = self._line
        every, history = np.arange(len(gradient)), line.scales.shape[1]
        bent, shares = gradient.copy(), []
        rounds = int(min(line.learnt.max(initial=0), history))
        for back in range(rounds):
            slot, has = (line.learnt - 1 - back) % history, back < np.minimum(line.learnt, history)
            move, bend = line.moves[every, slot], line.bends[every, slot]
            share = np.where(has, (move * bent).sum(1) / np.where(has, line.scales[every, slot], 1), 0)
            bent -= share[:, None] * bend
            shares.append((slot, has, share))
        newest = line.bends[every, (line.learnt - 1) % history]
        size = (newest * newest).sum(1)
        known = (line.learnt > 0) & (size > 0)
        scale = np.where(known, line.scales[every, (line.learnt - 1) % history] / np.where(known, size, 1), 1)
        bent *= scale[:, None]
        for slot, has, share in reversed(shares):
            move, bend = line.moves[every, slot], line.bends[every, slot]
            back_share = np.where(has, (bend * bent).sum(1) / np.where(has, line.scales[every, slot], 1), 0)
            bent += (share - back_share)[:, None] * move
        return bent

    def _shorten(self, missed: NDArray[np.bool_], value: Doubles, promised: Doubles) -> None:
        """Step back where the objective did not fall: to the bottom of a parabola, within a tenth and a half."""
        at, line = self._at, self._line
        rise = value - at.loss - promised
        share = np.where(np.isfinite(rise) & (rise > 0), np.clip(-promised / (2 * rise), 0.1, 0.5), 0.1)
        line.step[missed] *= share[missed]
        line.retries[missed] += 1
        unseen = -promised <= self._smallest_fall * np.abs(at.loss)
        weary = missed & ((line.retries > RETRIES) | unseen)
        lost = weary & (line.learnt == 0)
        at.status[lost] = np.where(at.moved > 0, STALLED, FAILED)[lost]
        # What is remembered may mislead: once more, down the plain gradient.
        line.learnt[weary] = 0
        self._turn(weary & ~lost)

    def _try(self, live: NDArray[np.bool_]) -> None:
        at, line, terms = self._at, self._line, self._terms
        trial = at.w + line.step[:, None] * line.direction
        side = terms.coef(np.where(at.w != 0, np.sign(at.w), -np.sign(line.steep)))
        coef = terms.coef(trial)
        coef[(terms.l1 > 0)[:, None] & (np.sign(coef) != side)] = 0
        at.trial[live] = as_evaluated(trial)[live]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return arrays_of(self._at) | arrays_of(self._line)


class Descent(Optimiser):
    """Gradient descent over S configs at fixed rates, with a proximal step for L1; asked and told like `Lbfgs`.

    ``best`` and what is measured belong to the lowest objective met. A config fails when its objective is no
    longer finite or is a million times that of the start. It takes what `Optimiser` takes; every step is the rate by the
    gradient.

    Examples
    --------
    >>> from penstock.sgd.full import sums
    >>> x, y = np.array([[1.0], [-1.0]], np.float32), np.array([1, -1], np.float32)
    >>> search = Descent(np.zeros((2, 1)), l1=0.1, rate=2.0, epochs=50)
    >>> while not search.done.all():
    ...     search.tell(sums(x, y, at=search.ask()))
    >>> search.best.round(2).tolist()
    [[2.2], [0.0]]
    """

    def __init__(self, start: NDArray[np.floating[Any]], **terms: Any) -> None:
        super().__init__(start, **terms)
        self._first = np.full(len(self._at.w), np.inf)

    def tell(self, sums: Sums) -> None:
        """Take the sums at the weights last asked for, and step down from there."""
        at, terms = self._at, self._terms
        at.check(sums)
        live = ~self.done
        at.evaluations[live] += 1
        with np.errstate(all="ignore"):
            value, gradient = terms.objective(at.trial, sums)
            first = live & (at.evaluations == 1)
            self._first[first] = value[first]
            sound = np.isfinite(value) & np.isfinite(gradient).all(1) & (value <= HOPELESS * np.abs(self._first))
            at.status[live & ~sound] = FAILED
            lower = live & sound & (value < at.loss)
            at.take(lower, sums, value)
            at.moved[lower & ~first] += 1
            flat = np.abs(terms.steepest(at.trial, gradient)).max(1) <= terms.tolerance
            at.status[live & sound & flat] = CONVERGED
            at.end(terms)
            trial = at.trial - terms.rate[:, None] * gradient
            pull = (terms.rate * terms.l1)[:, None]
            coef = terms.coef(trial)
            coef[...] = np.sign(coef) * np.maximum(np.abs(coef) - pull, 0)
            live = ~self.done
            at.trial[live] = as_evaluated(trial)[live]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return arrays_of(self._at) | {"first": self._first}
