"""SGD over rows with one score each, dense or sparse: logistic, hinge and squared loss.

`dense_ahead` updates after every row and hides the wait for the exponential: the next row's score is taken on the
weights before this row's update, and corrected by the two rows' inner product. `dense_rows` updates and scores in one
pass, for wide rows (where memory is what one waits for) and for L1. `dense_batches` takes the mean gradient of several rows.

A sparse row's update touches the row's own features alone. L2 shrinks one factor common to all weights; L1 adds to one sum
owed by all, and a weight pays what has come due since it was last seen when it is next seen. Both are exact: the
result is that of the dense kernels. Indices past the width stop the kernel before they are used.

Each returns the row at which it had to stop, or -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.scalar import (
    CHECKED,
    ONE,
    OWED,
    SCALE,
    STEP,
    ZERO,
    bounded_rate,
    following,
    load_totals,
    outside,
    rate_at,
    settle,
    soft,
    store_totals,
    tally,
    usable,
    weight_of,
)

# Up to this width, scoring a row ahead is faster than waiting for the update.
NARROW = 160


@kernel
def dense_ahead(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, clock: Any, totals: Any, loss: Any, base: float,
    power: float, l2: float, free: Any, bound: float,
) -> Any:  # fmt: skip
    """Update after every row, scoring one row ahead; no L1."""
    rows, width = x.shape
    w = coef[0]
    bias, step, sums = intercept[0], clock[STEP], load_totals(totals)
    push, keep = ZERO, ONE
    dot, gram, size = ZERO, ZERO, free
    i = following(weight, 0, rows)
    last = i
    if i < rows:
        for j in range(width):
            dot += w[j] * x[i, j]
            size += x[i, j] * x[i, j]
    while i < rows:
        # The weights still lack the last row's update: keep * w - push * x[last].
        score = bias + keep * dot - push * gram
        yi, wi = y[i], weight_of(weight, i)
        if not usable(score, yi, wi):
            return i
        after = following(weight, i + 1, rows)
        ahead = after if after < rows else i
        dot, gram, own = ZERO, ZERO, size
        size = free
        for j in range(width):
            v = keep * w[j] - push * x[last, j]
            w[j] = v
            dot += v * x[ahead, j]
            gram += x[i, j] * x[ahead, j]
            size += x[ahead, j] * x[ahead, j]
        slope, linear, e = loss.row(score, yi)
        sums = tally(sums, loss, score, yi, wi, linear, e)
        rate = rate_at(base, power, step)
        push = np.float32(bounded_rate(rate, bound, wi * own)) * wi * slope
        keep = np.float32(max(1.0 - rate * l2, 0.0))
        bias -= free * push
        step += 1.0
        last, i = i, after
    if last < rows:
        for j in range(width):
            w[j] = keep * w[j] - push * x[last, j]
    intercept[0], clock[STEP] = bias, step
    store_totals(totals, sums)
    return -1


@kernel
def dense_rows(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, clock: Any, totals: Any, loss: Any, base: float,
    power: float, l1: float, l2: float, free: Any, bound: float,
) -> Any:  # fmt: skip
    """Update after every row, in one pass with the next row's score."""
    rows, width = x.shape
    w = coef[0]
    bias, step, sums = intercept[0], clock[STEP], load_totals(totals)
    push, keep, threshold = ZERO, ONE, ZERO
    i = following(weight, 0, rows)
    last = i
    while last < rows:
        # After the last row there is none to score; it is scored against itself and the result left unused.
        now = i if i < rows else last
        score, size = bias, free
        if l1 > 0.0:
            for j in range(width):
                v = soft(keep * w[j] - push * x[last, j], threshold)
                w[j] = v
                score += v * x[now, j]
                size += x[now, j] * x[now, j]
        elif push == ZERO and keep == ONE:  # the hinge loss asks nothing of rows well on their side
            for j in range(width):
                score += w[j] * x[now, j]
                size += x[now, j] * x[now, j]
        else:
            for j in range(width):
                v = keep * w[j] - push * x[last, j]
                w[j] = v
                score += v * x[now, j]
                size += x[now, j] * x[now, j]
        if i >= rows:
            break
        yi, wi = y[i], weight_of(weight, i)
        if not usable(score, yi, wi):
            return i
        slope, linear, e = loss.row(score, yi)
        sums = tally(sums, loss, score, yi, wi, linear, e)
        rate = rate_at(base, power, step)
        push = np.float32(bounded_rate(rate, bound, wi * size)) * wi * slope
        keep = np.float32(max(1.0 - rate * l2, 0.0))
        threshold = np.float32(rate * l1)
        bias -= free * push
        step += 1.0
        last, i = i, following(weight, i + 1, rows)
    intercept[0], clock[STEP] = bias, step
    store_totals(totals, sums)
    return -1


@kernel
def dense_batches(
    x: Any, y: Any, weight: Any, coef: Any, intercept: Any, clock: Any, totals: Any, loss: Any, base: float,
    power: float, l1: float, l2: float, free: Any, bound: float, batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end."""
    rows, width = x.shape
    w = coef[0]
    bias, step, sums = intercept[0], clock[STEP], load_totals(totals)
    gradient = np.zeros(width, np.float32)
    i = following(weight, 0, rows)
    while i < rows:
        taken, total, sizes = 0, ZERO, ZERO
        while i < rows and taken < batch_size:
            score, size = bias, free
            for j in range(width):
                score += w[j] * x[i, j]
                size += x[i, j] * x[i, j]
            yi, wi = y[i], weight_of(weight, i)
            if not usable(score, yi, wi):
                return i
            slope, linear, e = loss.row(score, yi)
            sums = tally(sums, loss, score, yi, wi, linear, e)
            push = wi * slope
            if push != ZERO:
                for j in range(width):
                    gradient[j] += push * x[i, j]
            total += push
            sizes += wi * size
            taken += 1
            i = following(weight, i + 1, rows)
        rate = rate_at(base, power, step)
        share = np.float32(bounded_rate(rate, bound, sizes / taken) / taken)
        keep = np.float32(max(1.0 - rate * l2, 0.0))
        threshold = np.float32(rate * l1)
        for j in range(width):
            w[j] = soft(keep * w[j] - share * gradient[j], threshold)
            gradient[j] = ZERO
        bias -= free * share * total
        step += 1.0
    intercept[0], clock[STEP] = bias, step
    store_totals(totals, sums)
    return -1


@kernel
def dense_scores(x: Any, coef: Any, intercept: Any, out: Any) -> None:
    """Write each row's score for each output."""
    rows, width = x.shape
    for i in range(rows):
        for c in range(coef.shape[0]):
            score = intercept[c]
            for j in range(width):
                score += coef[c, j] * x[i, j]
            out[i, c] = score


# Below this the common factor is multiplied into the weights, before float32 loses digits to it.
SMALL = 1e-6


@kernel
def sparse_rows(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, turned: Any, intercept: Any, clock: Any, seen: Any,
    totals: Any, loss: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float,
) -> Any:  # fmt: skip
    """Update after every row. ``turned`` is the weights as (features, 1)."""
    width = turned.shape[0]
    w = turned.reshape(width)
    bias, step, scale, owed = intercept[0], clock[STEP], clock[SCALE], clock[OWED]
    sums = load_totals(totals)
    for i in range(len(indptr) - 1):
        if i % CHECKED == 0 and outside(indptr, indices, i, width):
            return i
        yi, wi = y[i], weight_of(weight, i)
        if wi == ZERO:
            continue
        if l1 > 0.0:
            for e in range(indptr[i], indptr[i + 1]):
                j = indices[e]
                w[j] = soft(w[j], np.float32(owed - seen[j]))
                seen[j] = owed
        dot, size = ZERO, free
        for e in range(indptr[i], indptr[i + 1]):
            dot += w[indices[e]] * values[e]
            size += values[e] * values[e]
        score = bias + np.float32(scale) * dot
        if not usable(score, yi, wi):
            return i
        slope, linear, excess = loss.row(score, yi)
        sums = tally(sums, loss, score, yi, wi, linear, excess)
        rate = rate_at(base, power, step)
        push = np.float32(bounded_rate(rate, bound, wi * size)) * wi * slope
        bias -= free * push
        step += 1.0
        if l2 > 0.0:
            scale *= max(1.0 - rate * l2, 0.0)
            if scale < SMALL:
                clock[SCALE], clock[OWED] = scale, owed
                settle(turned, clock, seen)
                scale, owed = clock[SCALE], clock[OWED]
        if scale != 1.0:
            push = push / np.float32(scale)
        if push != ZERO:
            for e in range(indptr[i], indptr[i + 1]):
                w[indices[e]] -= push * values[e]
        if l1 > 0.0:
            owed += rate * l1 / scale
    intercept[0], clock[STEP], clock[SCALE], clock[OWED] = bias, step, scale, owed
    store_totals(totals, sums)
    return -1


@kernel
def sparse_batches(
    indptr: Any, indices: Any, values: Any, y: Any, weight: Any, turned: Any, intercept: Any, clock: Any, seen: Any,
    totals: Any, loss: Any, base: float, power: float, l1: float, l2: float, free: Any, bound: float,
    batch_size: int,
) -> Any:  # fmt: skip
    """Update by the mean gradient of every `batch_size` rows, and of the rows left at the end."""
    width = turned.shape[0]
    w = turned.reshape(width)
    rows = len(indptr) - 1
    bias, step, scale, owed = intercept[0], clock[STEP], clock[SCALE], clock[OWED]
    sums = load_totals(totals)
    pushes = np.zeros(min(batch_size, max(rows, 1)), np.float32)
    places = np.zeros(len(pushes), np.int64)
    checked = 0
    i = following(weight, 0, rows)
    while i < rows:
        taken, total, sizes = 0, ZERO, ZERO
        while i < rows and taken < batch_size:
            while checked <= i:
                if outside(indptr, indices, checked, width):
                    return checked
                checked += CHECKED
            if l1 > 0.0:
                for e in range(indptr[i], indptr[i + 1]):
                    j = indices[e]
                    w[j] = soft(w[j], np.float32(owed - seen[j]))
                    seen[j] = owed
            dot, size = ZERO, free
            for e in range(indptr[i], indptr[i + 1]):
                dot += w[indices[e]] * values[e]
                size += values[e] * values[e]
            score = bias + np.float32(scale) * dot
            yi, wi = y[i], weight_of(weight, i)
            if not usable(score, yi, wi):
                return i
            slope, linear, excess = loss.row(score, yi)
            sums = tally(sums, loss, score, yi, wi, linear, excess)
            pushes[taken], places[taken] = wi * slope, i
            total += wi * slope
            sizes += wi * size
            taken += 1
            i = following(weight, i + 1, rows)
        rate = rate_at(base, power, step)
        short = bounded_rate(rate, bound, sizes / taken)
        bias -= free * np.float32(short / taken) * total
        step += 1.0
        if l2 > 0.0:
            scale *= max(1.0 - rate * l2, 0.0)
            if scale < SMALL:
                clock[SCALE], clock[OWED] = scale, owed
                settle(turned, clock, seen)
                scale, owed = clock[SCALE], clock[OWED]
        share = np.float32(short / taken / scale)
        for t in range(taken):
            push, place = share * pushes[t], places[t]
            if push != ZERO:
                for e in range(indptr[place], indptr[place + 1]):
                    w[indices[e]] -= push * values[e]
        if l1 > 0.0:
            owed += rate * l1 / scale
    intercept[0], clock[STEP], clock[SCALE], clock[OWED] = bias, step, scale, owed
    store_totals(totals, sums)
    return -1


@kernel
def sparse_scores(indptr: Any, indices: Any, values: Any, w: Any, intercept: Any, out: Any) -> Any:
    """Write each row's score for each output; ``w`` is (features, outputs), all it owes paid."""
    width, outputs = w.shape
    for i in range(len(indptr) - 1):
        if i % CHECKED == 0 and outside(indptr, indices, i, width):
            return i
        for c in range(outputs):
            out[i, c] = intercept[c]
        for e in range(indptr[i], indptr[i + 1]):
            j, value = indices[e], values[e]
            for c in range(outputs):
                out[i, c] += w[j, c] * value
    return -1
