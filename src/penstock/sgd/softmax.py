"""Softmax SGD: a score for each class, weights (classes, features) for dense rows, turned for sparse ones.

`softmax_rows` applies the last row's update and scores the next row in one pass over the weights, which are
what fills the cache here. `softmax_batches` reads the weights once for four rows. `softmax_sparse` does both
batch sizes, with penalties kept lazily as in `linear`. Each returns the row at which it had to stop, or -1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.linear import SMALL
from penstock.sgd.scalar import (
    CHECKED,
    HITS,
    LOSS,
    ONE,
    OWED,
    SCALE,
    STEP,
    WEIGHT,
    ZERO,
    bounded_rate,
    following,
    outside,
    rate_at,
    settle,
    soft,
    usable,
    weight_of,
)

_FOUR = 4


@kernel
def shares(scores: Any, y: Any, weight: Any, totals: Any) -> bool:
    """Turn a row's scores into weighted slopes and add the row to the totals; False if it cannot be used."""
    classes = len(scores)
    total = ZERO
    for c in range(classes):
        total += scores[c]
    if not (usable(total, y, weight) and y >= ZERO and y < np.float32(classes)):
        return False
    label = int(y)
    best = 0
    for c in range(1, classes):
        if scores[c] > scores[best]:
            best = c
    top, own = scores[best], scores[label]
    total = ZERO
    for c in range(classes):
        scores[c] = math.exp(scores[c] - top)
        total += scores[c]
    totals[LOSS] += weight * (math.log(np.float64(total)) + np.float64(top - own))
    totals[WEIGHT] += weight
    if best == label:
        totals[HITS] += weight
    part = weight / total
    for c in range(classes):
        scores[c] *= part
    scores[label] -= weight
    return True


@kernel
def softmax_rows(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, clock: Any, totals: Any, base: float, power: float,
    l1: float, l2: float, free: Any, bound: float,
) -> Any:  # fmt: skip
    """Update after every row, in one pass with the next row's scores."""
    rows, width = x.shape
    classes = len(intercept)
    step = clock[STEP]
    push, scores = np.zeros(classes, np.float32), np.zeros(classes, np.float32)
    keep, threshold = ONE, ZERO
    i = following(weight, 0, rows)
    last = i
    while last < rows:
        # After the last row there is none to score; it is scored against itself and the result left unused.
        now = i if i < rows else last
        for c in range(classes):
            w, score, p = coef[c], ZERO, push[c]
            if l1 > 0.0:
                for j in range(width):
                    v = soft(keep * w[j] - p * x[last, j], threshold)
                    w[j] = v
                    score += v * x[now, j]
            else:
                for j in range(width):
                    v = keep * w[j] - p * x[last, j]
                    w[j] = v
                    score += v * x[now, j]
            scores[c] = score + intercept[c]
        if i >= rows:
            break
        if not shares(scores, y[i], weight_of(weight, i), totals):
            return i
        size = free
        for j in range(width):
            size += x[i, j] * x[i, j]
        rate = rate_at(base, power, step)
        short = np.float32(bounded_rate(rate, bound, weight_of(weight, i) * size))
        keep = np.float32(max(1.0 - rate * l2, 0.0))
        threshold = np.float32(rate * l1)
        for c in range(classes):
            push[c] = short * scores[c]
            intercept[c] -= free * push[c]
        step += 1.0
        last, i = i, following(weight, i + 1, rows)
    clock[STEP] = step
    return -1


@kernel
def softmax_batches(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, clock: Any, totals: Any, base: float, power: float,
    l1: float, l2: float, free: Any, bound: float, batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end."""
    rows, width = x.shape
    classes = len(intercept)
    step = clock[STEP]
    gradient = np.zeros((classes, width), np.float32)
    totals_c = np.zeros(classes, np.float32)
    scores = np.zeros((_FOUR, classes), np.float32)
    place = np.zeros(_FOUR, np.int64)
    i = following(weight, 0, rows)
    while i < rows:
        taken, sizes = 0, ZERO
        while i < rows and taken < batch_size:
            held = 0
            place[:] = i
            while i < rows and held < _FOUR and taken < batch_size:
                place[held] = i
                held += 1
                taken += 1
                i = following(weight, i + 1, rows)
            x0, x1, x2, x3 = x[place[0]], x[place[1]], x[place[2]], x[place[3]]
            for c in range(classes):
                w = coef[c]
                s0, s1, s2, s3 = intercept[c], intercept[c], intercept[c], intercept[c]
                for j in range(width):
                    s0 += w[j] * x0[j]
                    s1 += w[j] * x1[j]
                    s2 += w[j] * x2[j]
                    s3 += w[j] * x3[j]
                scores[0, c], scores[1, c], scores[2, c], scores[3, c] = s0, s1, s2, s3
            for h in range(held):
                if not shares(scores[h], y[place[h]], weight_of(weight, place[h]), totals):
                    return place[h]
                size = free
                for j in range(width):
                    size += x[place[h], j] * x[place[h], j]
                sizes += weight_of(weight, place[h]) * size
            scores[held:] = ZERO  # places without a row repeat another one and must not count
            for c in range(classes):
                g = gradient[c]
                p0, p1, p2, p3 = scores[0, c], scores[1, c], scores[2, c], scores[3, c]
                totals_c[c] += p0 + p1 + p2 + p3
                for j in range(width):
                    g[j] += p0 * x0[j] + p1 * x1[j] + p2 * x2[j] + p3 * x3[j]
        rate = rate_at(base, power, step)
        share = np.float32(bounded_rate(rate, bound, sizes / taken) / taken)
        keep = np.float32(max(1.0 - rate * l2, 0.0))
        threshold = np.float32(rate * l1)
        for c in range(classes):
            w, g = coef[c], gradient[c]
            for j in range(width):
                w[j] = soft(keep * w[j] - share * g[j], threshold)
                g[j] = ZERO
            intercept[c] -= free * share * totals_c[c]
            totals_c[c] = ZERO
        step += 1.0
    clock[STEP] = step
    return -1


@kernel
def softmax_sparse(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, w: Any, intercept: Any, clock: Any, seen: Any,
    totals: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float, batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` sparse rows. ``w`` is (features, classes)."""
    width, classes = w.shape
    rows = len(indptr) - 1
    step, scale, owed = clock[STEP], clock[SCALE], clock[OWED]
    pushes = np.zeros((min(batch_size, max(rows, 1)), classes), np.float32)
    places = np.zeros(len(pushes), np.int64)
    checked = 0
    i = following(weight, 0, rows)
    while i < rows:
        taken, sizes = 0, ZERO
        while i < rows and taken < batch_size:
            while checked <= i:
                if outside(indptr, indices, checked, width):
                    return checked
                checked += CHECKED
            scores = pushes[taken]
            scores[:] = ZERO
            size = free
            for e in range(indptr[i], indptr[i + 1]):
                j, value = indices[e], values[e]
                size += value * value
                if l1 > 0.0:
                    debt = np.float32(owed - seen[j])
                    for c in range(classes):
                        w[j, c] = soft(w[j, c], debt)
                    seen[j] = owed
                for c in range(classes):
                    scores[c] += w[j, c] * value
            for c in range(classes):
                scores[c] = np.float32(scale) * scores[c] + intercept[c]
            if not shares(scores, y[i], weight_of(weight, i), totals):
                return i
            places[taken] = i
            sizes += weight_of(weight, i) * size
            taken += 1
            i = following(weight, i + 1, rows)
        rate = rate_at(base, power, step)
        step += 1.0
        if l2 > 0.0:
            scale *= max(1.0 - rate * l2, 0.0)
            if scale < SMALL:
                clock[SCALE], clock[OWED] = scale, owed
                settle(w, clock, seen)
                scale, owed = clock[SCALE], clock[OWED]
        short = bounded_rate(rate, bound, sizes / taken)
        plain, share = np.float32(short / taken), np.float32(short / taken / scale)
        for t in range(taken):
            push = pushes[t]
            for c in range(classes):
                intercept[c] -= free * plain * push[c]
            for e in range(indptr[places[t]], indptr[places[t] + 1]):
                j, move = indices[e], share * values[e]
                for c in range(classes):
                    w[j, c] -= push[c] * move
        if l1 > 0.0:
            owed += rate * l1 / scale
    clock[STEP], clock[SCALE], clock[OWED] = step, scale, owed
    return -1
