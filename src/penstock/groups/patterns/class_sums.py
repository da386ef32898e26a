"""Full passes of softmax over rows of a group: loss, gradient and selection measures for each of many configs.

The counterpart of `penstock.sgd.full.sums` for a score for each class. Configs are passed over one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.groups.patterns.base import Doubles
from penstock.sgd import kernels
from penstock.sgd.full import Sums, split, times_turned
from penstock.sgd.losses.softmax import softmax_run
from penstock.sgd.model import Weights

_TILE = 1 << 18
"""Numbers of dense rows that are scored together, so that they are still in a cache when read a second time."""
_SPARSE_ROWS = 4096


def class_sums(batch: Batch, *, at: Doubles, classes: int, hold: NDArray[Any] | None = None) -> Sums:
    """Pass over the rows once for each config.

    Parameters
    ----------
    batch : Batch
        The rows; labels are the numbers of classes.
    at : array of shape ((d + 1) * classes, S)
        The configs' weights in the order (feature, class), the intercepts last; taken as float32.
    classes : int
        How many classes there are.
    hold : array, optional
        As for `penstock.sgd.full.sums`.

    Examples
    --------
    >>> batch = Batch(np.ones((4, 1), np.float32), np.array([0, 1, 2, 2], np.float32))
    >>> found = class_sums(batch, at=np.zeros((6, 1)), classes=3)
    >>> (found.loss / np.log(3)).round(6), found.gradient[:, 0].reshape(2, 3).round(3)
    (array([4.]), array([[ 0.333,  0.333, -0.667],
           [ 0.333,  0.333, -0.667]]))
    """
    assert batch.y is not None
    train, held = split(batch.x, batch.y, weight=batch.weight, hold=hold)
    configs = at.shape[1]
    found = Sums.zeros(len(at) - 1, configs)
    both = np.zeros((2, 2, configs))  # loss and right answers, of training and of the other rows
    wide = at.reshape(-1, classes, configs)
    sparse = isinstance(batch.x, Csr)
    step = _SPARSE_ROWS if sparse else max(1, _TILE // max(batch.width, 1))
    for config in range(configs):
        own = wide[:, :, config].astype(np.float32)
        weights = Weights(np.ascontiguousarray(own[:-1].T), own[-1].copy())
        gradient = np.zeros((len(own), classes))
        for start in range(0, len(batch), step):
            tile = batch.slice(start, min(start + step, len(batch)))
            for side, mass in enumerate((train[start : start + step], held[start : start + step])):
                if mass.any():
                    both[side, :, config] += _add(tile, weights, mass, gradient if side == 0 else None)
        found.gradient[:, config] = gradient.ravel()
    (loss, _), (held_loss, right) = both
    return Sums(
        loss, found.gradient, float(train.sum(dtype=np.float64)), held_loss, right, float(held.sum(dtype=np.float64))
    )


def _add(tile: Batch, weights: Weights, mass: Any, gradient: Doubles | None) -> tuple[float, float]:
    """Add a tile's gradient, if that is asked for, and return its loss and right answers."""
    slope = np.zeros(len(weights.intercept))
    x = tile.x
    with np.errstate(all="ignore"):  # weights too large overflow; the optimiser goes back
        # A class's scores lie side by side, so that loops over rows vectorize.
        z = np.ascontiguousarray(kernels.scores(tile, weights).T) if isinstance(x, Csr) else weights.coef @ x.T
        bias = np.zeros_like(weights.intercept) if isinstance(x, Csr) else weights.intercept
        loss, right = softmax_run(z, tile.y, mass, bias, slope)
        if gradient is not None:
            if isinstance(x, Csr):
                times_turned(x.indptr, x.indices, x.values, 0, np.ascontiguousarray(z.T), mass, gradient[:-1])
            else:
                gradient[:-1] += (z @ x).T
            gradient[-1] += slope
    return loss, right
