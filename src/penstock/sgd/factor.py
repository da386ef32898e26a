"""SGD for low-rank matrix factorisation: a rating is the mean, two biases and a product of two rows of factors.

Users and items are records of one float32 buffer, ``width`` numbers each: the factors, the bias, then padding that
nothing reads. Slots say which record is whose; the buffer may be the whole model or the frames of a pool. The plain
twins are in `factor_reference`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel, prefetch_line
from penstock.sgd.scalar import LARGEST, ONE, ZERO

ABSENT = np.uint32(0xFFFFFFFF)
"""The slot of a user or item that the model does not know."""

# Places in the totals: the sum of squared errors, each as it was before its own update, and the ratings.
SQUARES, COUNT, TOTALS = 0, 1, 2

# Ratings whose records are asked for ahead of their turn: about as many as a core has loads under way.
_AHEAD = 6
# Lines of each, of so many numbers: once a record is being read, the processor guesses the rest of it.
_LINES, _LINE = 8, 16


@kernel
def factor_rows(
    records: Any, users: Any, items: Any, ratings: Any, mean: Any, rate: Any, l2: Any, rank: int, totals: Any
) -> Any:
    """Learn from ratings in their order; return -1, or the place of a rating that could not be used.

    ``records`` is (slots, width) float32; ``users`` and ``items`` are uint32 slots; ``mean``, ``rate`` and ``l2`` are
    float32; the totals are added to.
    """
    shrink = ONE - rate * l2
    squares, count = totals[SQUARES], totals[COUNT]
    width, flat = records.shape[1], records.reshape(records.size)
    near = min(rank + 1, _LINES * _LINE)
    for i in range(len(ratings)):
        if i + _AHEAD < len(ratings):
            for k in range(0, near, _LINE):
                prefetch_line(flat, np.int64(users[i + _AHEAD]) * width + k)
                prefetch_line(flat, np.int64(items[i + _AHEAD]) * width + k)
        p, q = records[users[i]], records[items[i]]
        dot = ZERO
        for k in range(rank):
            dot += p[k] * q[k]
        error = ratings[i] - (mean + p[rank] + q[rank] + dot)
        if not abs(error) <= LARGEST:
            totals[SQUARES], totals[COUNT] = squares, count
            return i
        squares += np.float64(error) * np.float64(error)
        count += 1.0
        push = rate * error
        for k in range(rank):
            mine, other = p[k], q[k]
            p[k] = shrink * mine + push * other
            q[k] = shrink * other + push * mine
        p[rank] = shrink * p[rank] + push
        q[rank] = shrink * q[rank] + push
    totals[SQUARES], totals[COUNT] = squares, count
    return -1


@kernel
def factor_scores(records: Any, users: Any, items: Any, mean: Any, rank: int, out: Any) -> None:
    """Write what each pair is expected to be rated; of a pair half known, the mean and the bias of the known one."""
    for i in range(len(out)):
        score = mean
        known_user, known_item = users[i] != ABSENT, items[i] != ABSENT
        if known_user:
            score += records[users[i], rank]
        if known_item:
            score += records[items[i], rank]
        if known_user and known_item:
            p, q = records[users[i]], records[items[i]]
            dot = ZERO
            for k in range(rank):
                dot += p[k] * q[k]
            score += dot
        out[i] = score
