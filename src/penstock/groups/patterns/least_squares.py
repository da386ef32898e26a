"""Least squares over the rows of one group, for all configs from one pass: see `penstock.sgd.exact`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.batch import Csr
from penstock.groups.patterns.base import Divided, Doubles
from penstock.groups.scale import Scale
from penstock.groups.split import TRAINING
from penstock.sgd import exact

_TILE = 1 << 18
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
        step = max(1, _TILE // (batch.width + 2))
        for first in range(0, len(taken), step):
            some = batch.take(taken[first : first + step])
            assert some.y is not None
            x = some.x if scale is None else scale.rows(some.x)
            rows = (x.to_dense() if isinstance(x, Csr) else x).astype(np.float64)
            columns = np.column_stack([rows, some.y.astype(np.float64), np.ones(len(some))])
            if pivot is None:  # large means cost no digits where rows are moved near them
                pivot = np.append(columns[:, :-1].mean(axis=0), 0.0) if intercept else np.zeros(columns.shape[1])
            columns -= pivot
            if some.weight is not None:
                columns *= np.sqrt(some.weight.astype(np.float64))[:, None]
            found = columns.T @ columns
            products = found if products is None else products + found
    assert products is not None  # a group of fewer rows is not solved
    assert pivot is not None
    coef = np.stack([exact.solve(products, l2=float(each), intercept=intercept) for each in l2], axis=1)
    if not intercept:
        return np.vstack([coef, np.zeros(len(l2))])
    middle = products[:-1, -1] / products[-1, -1] + pivot[:-1]
    return np.vstack([coef, middle[-1] - middle[:-1] @ coef])
