"""Which config of each group is chosen: the one with the least loss on the rows to choose by, the first of equals.

Where a group has no such rows it is the one with the least training loss; failed ones never are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def choose(
    group: NDArray[Any], loss: NDArray[Any], *, selection_loss: NDArray[Any], usable: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row chosen of each group, by group; rows are by group and config.

    Examples
    --------
    >>> loss, other = np.array([0.3, 0.2, 0.1, 0.5]), np.array([0.4, 0.4, np.nan, np.nan])
    >>> choose(np.array([0, 0, 0, 1]), loss, selection_loss=other, usable=np.ones(4, bool)).tolist()
    [0, 3]
    """
    if not len(group):
        return np.empty(0, np.int64)
    starts = firsts(group)
    number = np.cumsum(np.isin(np.arange(len(group)), starts)) - 1
    compared = np.logical_or.reduceat(usable & np.isfinite(selection_loss), starts)[number]
    value = np.where(compared, selection_loss, loss)
    rows = np.flatnonzero(usable & np.isfinite(value))
    order = rows[np.lexsort([rows, value[rows], number[rows]])]
    return order[firsts(number[order])]


def firsts(group: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), bool), group[1:] != group[:-1]]))


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers, with NaN for what is missing."""
    found: NDArray[Any] = column.to_numpy()
    return found
