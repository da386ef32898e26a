"""The specification of the kernels of matrix factorisation in plain NumPy: one rating at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.sgd.factor import ABSENT, COUNT, SQUARES

Doubles = NDArray[np.float64]


def factor_rows_reference(
    records: Doubles,
    users: Any,
    items: Any,
    ratings: Any,
    *,
    mean: float,
    rate: float,
    l2: float,
    rank: int,
    totals: Any,
) -> int:
    """Learn from ratings as `factor_rows` does; return -1, or the place of one that could not be used.

    Examples
    --------
    >>> records, totals = np.array([[1.0, 0.0], [2.0, 0.0]]), np.zeros(2)
    >>> factor_rows_reference(records, [0], [1], [3.0], mean=0.0, rate=0.1, l2=0.0, rank=1, totals=totals)
    -1
    >>> records.tolist(), totals.tolist()
    ([[1.2, 0.1], [2.1, 0.1]], [1.0, 1.0])
    """
    for i, (user, item, rating) in enumerate(zip(users, items, ratings, strict=True)):
        p, q = records[user, : rank + 1].copy(), records[item, : rank + 1].copy()
        error = rating - (mean + p[rank] + q[rank] + p[:rank] @ q[:rank])
        if not np.isfinite(error):
            return i
        totals[SQUARES] += error**2
        totals[COUNT] += 1
        # A bias is a factor whose other side is always one.
        mine, other = np.append(p[:rank], 1.0), np.append(q[:rank], 1.0)
        records[user, : rank + 1] = p + rate * (error * other - l2 * p)
        records[item, : rank + 1] = q + rate * (error * mine - l2 * q)
    return -1


def factor_scores_reference(records: NDArray[Any], users: Any, items: Any, *, mean: float, rank: int) -> Doubles:
    """Return what each pair is expected to be rated, as `factor_scores` does.

    Examples
    --------
    >>> records = np.array([[1.0, 0.5], [2.0, 0.25]])
    >>> factor_scores_reference(records, [0, 0], [1, ABSENT], mean=3.0, rank=1).tolist()
    [5.75, 3.5]
    """
    out = np.full(len(users), mean, np.float64)
    for i, (user, item) in enumerate(zip(users, items, strict=True)):
        known = [record for record in (user, item) if record != ABSENT]
        out[i] += sum(float(records[record, rank]) for record in known)
        if len(known) == 2:
            out[i] += records[user, :rank].astype(np.float64) @ records[item, :rank]
    return out
