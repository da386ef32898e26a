"""SGD over sparse rows with one score each: logistic, hinge and squared loss.

A row's update touches the row's own features alone. L2 shrinks one factor common to all weights; L1 adds to
one sum owed by all, and a weight pays what has come due since it was last seen when it is next seen. Both
are exact: the result is that of the dense kernels. Indices past the width stop the kernel before they are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel
from penstock.sgd.scalar import (
    CHECKED,
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
