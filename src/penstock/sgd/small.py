"""A small group solved whole by one compiled call, for all configs: no Python between its passes.

The decisions are those of `lbfgs.Lbfgs` told by `full.sums`, its plain twin; what is saved is the call to each
step, which for a few hundred rows takes longer than the arithmetic. The rows are copied once, feature by feature,
training rows apart from held-out ones, and stay in the cache; groups past a few megabytes belong to `Lbfgs`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.batch import Floats
from penstock.errors import UsageError
from penstock.native import kernel
from penstock.sgd.full import Doubles, split
from penstock.sgd.lbfgs import ARMIJO, CURVED, RETRIES, SMALLEST_FALL
from penstock.sgd.losses import Loss, require_one_score
from penstock.sgd.scalar import RUN, ZERO
from penstock.sgd.terms import CONVERGED, FAILED, RUNNING, SPENT, STALLED, Terms, Whole, as_evaluated

_LANES = 32  # rows are padded to so many, of weight zero, for no vector to be half full


class Solved(NamedTuple):
    """What became of a group under each of S configs; the held-out figures are sums by weight."""

    w: Doubles
    objective: Doubles
    held_loss: Doubles
    held_right: Doubles
    evaluations: Whole
    status: Whole


def solve_small(
    x: Floats,
    y: Floats,
    *,
    weight: Floats | None = None,
    hold: NDArray[np.bool_] | NDArray[np.uint8] | None = None,
    configs: int,
    l1: ArrayLike = 0.0,
    l2: ArrayLike = 0.0,
    rate: ArrayLike = 1.0,
    epochs: ArrayLike | None = None,
    history: int = 10,
    tolerance: ArrayLike = 1e-4,
    loss: str | Loss = "logistic",
    intercept: bool = True,
    start: Doubles | None = None,
) -> Solved:
    """Minimise all configs' objectives over one group's rows by L-BFGS, without the GIL.

    Parameters
    ----------
    x, y, weight, hold, loss
        The rows, which are dense, and the loss, as for `full.sums`.
    configs : int
        How many configs; each of the terms is a number for all or an array with one for each.
    l1, l2, rate, epochs, history, tolerance, intercept
        As for `lbfgs.Lbfgs`.
    start : array of shape (d + 1, S), optional
        Where each config begins; at zero if not given.

    Returns
    -------
    Solved
        Weights (d + 1, S) with the intercepts last; status by the codes of `terms.STATUS`.

    Examples
    --------
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> found = solve_small(x, 2 * x[:, 0] + 1, configs=2, l2=[0.0, 0.1], tolerance=1e-6, loss="squared")
    >>> found.w.round(3)
    array([[2.   , 1.852],
           [1.   , 1.222]])
    """
    loss = require_one_score(loss)
    terms = Terms.of(configs, l1=l1, l2=l2, rate=rate, epochs=epochs, tolerance=tolerance, intercept=intercept)
    if history < 1:
        raise UsageError("must be a whole number from 1", option="history", value=history, fixes=["10 is usual"])
    train, held = split(x, y, weight=weight, hold=hold)
    begin = np.zeros((x.shape[1] + 1, configs)) if start is None else as_evaluated(start)
    w, figures, counts = np.array(begin.T, order="C"), np.zeros((3, configs)), np.zeros((2, configs), np.int64)
    # Packed by a call of its own: rows of a memory map cannot be written to, and for them only this is compiled anew.
    rows, others = packed(x, y, train), packed(x, y, held)
    solve_rows(
        *rows, *others, terms.l1, terms.l2, terms.rate, terms.epochs, terms.tolerance, terms.intercept, history,
        loss, w, figures, counts,
    )  # fmt: skip
    return Solved(np.ascontiguousarray(w.T), *figures, *counts)


@kernel(fast=False)
def solve_rows(
    xt: Any, ys: Any, mass: Any, xh: Any, yh: Any, mass_held: Any, l1s: Any, l2s: Any, rates: Any, epochs: Any,
    tolerances: Any, intercept: bool, history: int, loss: Any, w_out: Any, figures: Any, counts: Any,
) -> None:  # fmt: skip
    """Solve for every config in turn, into ``w_out`` (S, d + 1), ``figures`` (3, S) and ``counts`` (2, S)."""
    size = xt.shape[0] + 1
    total = 0.0
    for i in range(len(mass)):
        total += np.float64(mass[i])
    if total == 0.0:
        total = math.nan  # of no rows there is no mean
    none = np.zeros(RUN, np.float32)
    run, narrow = np.empty(RUN, np.float32), np.empty(size, np.float32)
    w, trial, gradient, steep = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    fresh, move, bent, direction = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    moves, bends = np.empty((history, size)), np.empty((history, size))
    scales, shares = np.empty(history), np.empty(history)
    for c in range(len(l1s)):
        l1, l2, rate = l1s[c], l2s[c], rates[c]
        w[:] = w_out[c]
        trial[:] = w
        lowest, step = math.inf, 0.0
        status, evaluations, retries, learnt, moved = RUNNING, 0, 0, 0, 0
        while status == RUNNING:
            evaluations += 1
            for j in range(size):
                narrow[j] = np.float32(trial[j])
            value = pass_over(loss, xt, ys, mass, none, narrow, run, fresh, True)[0]
            value = combined(value / total, total, trial, l1, l2, intercept, fresh)
            for j in range(size):
                move[j] = trial[j] - w[j]
            promised = dot(steep, move) if evaluations > 1 else 0.0
            sound = math.isfinite(value)
            for j in range(size):
                sound = sound and math.isfinite(fresh[j])
            turn = False
            if evaluations == 1 and not sound:
                status = FAILED
            elif evaluations == 1 or (sound and value <= lowest + ARMIJO * promised):
                if evaluations > 1:
                    moved += 1
                    if not lowest - value > SMALLEST_FALL * abs(value):
                        status = CONVERGED if retries == 0 else STALLED
                    slot = learnt % history
                    for j in range(size):
                        bent[j] = fresh[j] - gradient[j]
                    curvature = dot(move, bent)
                    if curvature > CURVED * dot(bent, bent):
                        moves[slot], bends[slot], scales[slot] = move, bent, curvature
                        learnt += 1
                lowest = value
                w[:] = trial
                gradient[:] = fresh
                if steepest(w, gradient, l1, steep) <= tolerances[c]:
                    status = CONVERGED
                turn = True
            else:
                rise = value - lowest - promised
                share = 0.1
                if math.isfinite(rise) and rise > 0.0:
                    share = min(max(-promised / (2.0 * rise), 0.1), 0.5)
                step *= share
                retries += 1
                if retries > RETRIES or -promised <= SMALLEST_FALL * abs(lowest):
                    if learnt == 0:
                        status = STALLED if moved > 0 else FAILED
                    learnt = 0
                    turn = True
            if status == RUNNING and evaluations >= epochs[c]:
                status = FAILED if moved == 0 and evaluations > 1 else SPENT
            if status != RUNNING:
                break
            if turn:
                retries = 0
                learnt = two_loops(steep, moves, bends, scales, shares, learnt, l1, direction)
                step = rate if learnt > 0 else rate * min(1.0, 1.0 / max(math.sqrt(dot(steep, steep)), 1e-300))
            stepped(w, direction, step, steep, l1, trial)
        w_out[c] = w
        for j in range(size):
            narrow[j] = np.float32(w[j])
        held_loss, right = pass_over(loss, xh, yh, mass_held, none, narrow, run, fresh, False)
        figures[0, c], figures[1, c], figures[2, c] = lowest, held_loss, right
        counts[0, c], counts[1, c] = evaluations, status


@kernel
def packed(x: Any, y: Any, weight: Any) -> Any:
    """Copy the rows whose weight is not zero, feature by feature, padded by rows of weight zero."""
    rows, width = x.shape
    count = 0
    for i in range(rows):
        count += weight[i] != ZERO
    padded = -(-count // _LANES) * _LANES
    xt, ys, mass = np.zeros((width, padded), np.float32), np.ones(padded, np.float32), np.zeros(padded, np.float32)
    k = 0
    for i in range(rows):
        if weight[i] != ZERO:
            for j in range(width):
                xt[j, k] = x[i, j]
            ys[k], mass[k] = y[i], weight[i]
            k += 1
    return xt, ys, mass


@kernel
def pass_over(loss: Any, xt: Any, y: Any, mass: Any, none: Any, w: Any, run: Any, gradient: Any, training: bool) -> Any:
    """Sum over rows to train on, or held out, at one config's weights: (loss, right answers), and the gradient.

    ``none`` is `RUN` zeros, for the weight that rows have on the other side.
    """
    width, rows = xt.shape
    gradient[:] = 0.0
    total, right = 0.0, 0.0
    whole = width // 4 * 4
    for start in range(0, rows, RUN):
        count = min(RUN, rows - start)
        z = run[:count]
        z[:] = ZERO
        for j in range(0, whole, 4):
            w0, w1, w2, w3 = w[j], w[j + 1], w[j + 2], w[j + 3]
            x0, x1 = xt[j, start : start + count], xt[j + 1, start : start + count]
            x2, x3 = xt[j + 2, start : start + count], xt[j + 3, start : start + count]
            for i in range(count):
                z[i] += w0 * x0[i] + w1 * x1[i] + w2 * x2[i] + w3 * x3[i]
        for j in range(whole, width):
            x0, w0 = xt[j, start : start + count], w[j]
            for i in range(count):
                z[i] += w0 * x0[i]
        ys, masses, zeros = y[start : start + count], mass[start : start + count], none[:count]
        if not training:
            sums = loss.run(z, ys, zeros, masses, w[width])
            total += sums[2]
            right += sums[3]
        else:
            sums = loss.run(z, ys, masses, zeros, w[width])
            total += sums[0]
            gradient[width] += sums[1]
            for j in range(0, whole, 4):
                a0, a1, a2, a3 = ZERO, ZERO, ZERO, ZERO
                x0, x1 = xt[j, start : start + count], xt[j + 1, start : start + count]
                x2, x3 = xt[j + 2, start : start + count], xt[j + 3, start : start + count]
                for i in range(count):
                    a0 += z[i] * x0[i]
                    a1 += z[i] * x1[i]
                    a2 += z[i] * x2[i]
                    a3 += z[i] * x3[i]
                gradient[j] += a0
                gradient[j + 1] += a1
                gradient[j + 2] += a2
                gradient[j + 3] += a3
            for j in range(whole, width):
                a0, x0 = ZERO, xt[j, start : start + count]
                for i in range(count):
                    a0 += z[i] * x0[i]
                gradient[j] += a0
    return total, right


@kernel
def combined(mean: float, total: float, w: Any, l1: float, l2: float, intercept: bool, gradient: Any) -> Any:
    """Make the summed gradient that of the mean with its L2 penalty, and return the objective."""
    square, absolute = 0.0, 0.0
    share = 1.0 / total
    last = len(w) - 1
    for j in range(last):
        gradient[j] = gradient[j] * share + l2 * w[j]
        square += w[j] * w[j]
        absolute += abs(w[j])
    gradient[last] = gradient[last] * share if intercept else 0.0
    return mean + 0.5 * l2 * square + l1 * absolute


@kernel
def dot(a: Any, b: Any) -> Any:
    """Return the sum of products of two float64 vectors."""
    total = 0.0
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@kernel
def steepest(w: Any, gradient: Any, l1: float, steep: Any) -> Any:
    """Write the gradient with the L1 penalty's and return its largest entry."""
    last = len(w) - 1
    largest = abs(gradient[last])
    steep[last] = gradient[last]
    for j in range(last):
        g = gradient[j]
        if l1 > 0.0:
            if w[j] > 0.0:
                g += l1
            elif w[j] < 0.0:
                g -= l1
            else:
                g = max(g - l1, 0.0) + min(g + l1, 0.0)
        steep[j] = g
        largest = max(largest, abs(g))
    return largest


@kernel
def two_loops(
    steep: Any, moves: Any, bends: Any, scales: Any, shares: Any, learnt: int, l1: float, direction: Any
) -> Any:
    """Write the direction down, bent by the curvature remembered; return how much is, zero if it misled."""
    history, size = moves.shape
    direction[:] = steep
    kept = min(learnt, history)
    for back in range(kept):
        slot = (learnt - 1 - back) % history
        share = np.true_divide(dot(moves[slot], direction), scales[slot])
        shares[slot] = share
        bend_ = bends[slot]
        for j in range(size):
            direction[j] -= share * bend_[j]
    if kept > 0:
        newest = (learnt - 1) % history
        scale = np.true_divide(scales[newest], dot(bends[newest], bends[newest]))
        for j in range(size):
            direction[j] *= scale
    for back in range(kept - 1, -1, -1):
        slot = (learnt - 1 - back) % history
        share = shares[slot] - np.true_divide(dot(bends[slot], direction), scales[slot])
        move = moves[slot]
        for j in range(size):
            direction[j] += share * move[j]
    downhill = 0.0
    for j in range(size):
        if l1 > 0.0 and not direction[j] * steep[j] > 0.0:
            direction[j] = 0.0
        downhill += direction[j] * steep[j]
    if kept == 0 or not downhill > 0.0:
        learnt = 0
        direction[:] = steep
    for j in range(size):
        direction[j] = -direction[j]
    return learnt


@kernel
def stepped(w: Any, direction: Any, step: float, steep: Any, l1: float, trial: Any) -> None:
    """Write where a step leads, as float32 holds it, not past the border of the orthant it began in."""
    last = len(w) - 1
    for j in range(last + 1):
        moved = w[j] + step * direction[j]
        if l1 > 0.0 and j < last:
            side = w[j] if w[j] != 0.0 else -steep[j]
            if not moved * side > 0.0:
                moved = 0.0
        trial[j] = np.float64(np.float32(moved))
