"""Full passes: loss, gradient and held-out measures of many rows at the weights of many configs at once.

All configs share each read of the rows, which are scored by one matrix product for all of them (Kingpin, 2.2:
the algebraic pattern). Sums of shards add up to those of the whole, so a group may lie on several workers.
Rows are taken by the tile; beside them there is room for one tile's scores and for the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.errors import FeatureError, UsageError
from penstock.native import kernel
from penstock.sgd.losses import Loss, require_one_score
from penstock.sgd.scalar import RUN, ZERO

Doubles = NDArray[np.float64]

# Floats in a tile's rows and scores, which are read twice and should come from the second cache the second time.
_TILE = 106_496
# Of sparse tiles: configs side by side, padded to a vector; entries per feature wanted in one; most floats of scores;
# and entries per feature until float64 takes over.
_LANES, _VISITS, _SCORES, _FLUSH = 16, 16, 1 << 20, 8


@dataclass(frozen=True, slots=True)
class Sums:
    """What a pass over some rows comes to, for each of S configs; sums, not means, by the rows' weights.

    Examples
    --------
    >>> x, y = np.ones((4, 1), np.float32), np.array([1, 1, 1, -1], np.float32)
    >>> whole = sums(x, y, at=np.zeros((2, 3)))
    >>> whole.loss.shape, whole.gradient[:, 0], whole.weight
    ((3,), array([-1., -1.]), 4.0)
    >>> parts = sums(x[:2], y[:2], at=np.zeros((2, 3))) + sums(x[2:], y[2:], at=np.zeros((2, 3)))
    >>> bool(np.allclose(parts.loss, whole.loss))
    True
    """

    loss: Doubles  # (S,), of the rows trained on, without penalties
    gradient: Doubles  # (d + 1, S), the derivative of the loss by the weights; the intercept's in the last row
    weight: float  # of the rows trained on
    held_loss: Doubles  # (S,), of the rows held out
    held_right: Doubles  # (S,), right answers, or squared errors for the squared loss
    held_weight: float

    @classmethod
    def zeros(cls, width: int, configs: int) -> Sums:
        """Return the sums of no rows."""
        return cls(np.zeros(configs), np.zeros((width + 1, configs)), 0.0, np.zeros(configs), np.zeros(configs), 0.0)

    def __add__(self, other: Sums) -> Sums:
        if self.gradient.shape != other.gradient.shape:
            raise UsageError(
                f"sums of shape {self.gradient.shape} and {other.gradient.shape} cannot be added;"
                " make both at the same weights"
            )
        return Sums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def spread(self, live: NDArray[np.bool_]) -> Sums:
        """Return sums made for the live configs alone in the places of all, with zeros for the rest."""
        wide = Sums.zeros(len(self.gradient) - 1, len(live))
        wide.loss[live], wide.held_loss[live], wide.held_right[live] = self.loss, self.held_loss, self.held_right
        wide.gradient[:, live] = self.gradient
        return Sums(wide.loss, wide.gradient, self.weight, wide.held_loss, wide.held_right, self.held_weight)


def sums(
    x: Floats | Csr,
    y: Floats,
    *,
    at: NDArray[np.floating[Any]],
    loss: str | Loss = "logistic",
    weight: Floats | None = None,
    hold: NDArray[np.bool_] | NDArray[np.uint8] | None = None,
) -> Sums:
    """Pass over the rows once for all configs.

    Parameters
    ----------
    x : array of float32 or Csr
        The rows.
    y : array of float32
        Labels: -1 and +1 for the logistic and the hinge loss.
    at : array of shape (d + 1, S)
        The configs' weights, intercepts in the last row; taken as float32.
    loss : str or Loss
        ``"logistic"``, ``"squared"``, or ``"hinge"``, which is smoothed except on rows held out.
    weight : array of float32, optional
        The rows' weights; one each where there are none, or the array is empty.
    hold : array of bool or of whole numbers, optional
        Rows held out: not trained on, but measured. Rows of 2 or more are neither.

    Returns
    -------
    Sums
        The same for the same rows, bit for bit.

    Raises
    ------
    UsageError
        Shapes that do not fit, or a loss of many scores.
    FeatureError
        A sparse row with a feature past the width.

    Examples
    --------
    >>> x = np.array([[1.0], [-1.0], [2.0]], np.float32)
    >>> y = np.array([1, -1, 1], np.float32)
    >>> found = sums(x, y, at=np.array([[0.0, 5.0], [0.0, 0.0]]), hold=np.array([False, False, True]))
    >>> found.loss.round(3), found.held_right, found.held_weight
    (array([1.386, 0.013]), array([0., 1.]), 1.0)
    """
    loss = require_one_score(loss)
    train, held = split(x, y, weight=weight, hold=hold)
    width = x.width if isinstance(x, Csr) else x.shape[1]
    if at.ndim != 2 or len(at) != width + 1:
        raise UsageError(
            f"weights of shape {at.shape} do not fit rows of {width} features; give ({width + 1}, configs)"
        )
    total = Sums.zeros(width, at.shape[1])
    figures = np.zeros((4, at.shape[1]))
    # Weights that went astray overflow; whoever asked sees that the sums are not finite.
    with np.errstate(all="ignore"):
        w = at.astype(np.float32)
        if isinstance(x, Csr):
            _sparse_tiles(x, y, train, held, w, loss, total.gradient, figures)
        else:
            _dense_tiles(x, y, train, held, w, loss, total.gradient, figures)
    total.gradient[-1] = figures[1]
    trained, held_out = (float(share.sum(dtype=np.float64)) for share in (train, held))
    return Sums(figures[0], total.gradient, trained, figures[2], figures[3], held_out)


def split(
    x: Floats | Csr, y: Floats, *, weight: Floats | None, hold: NDArray[np.bool_] | NDArray[np.uint8] | None
) -> tuple[Floats, Floats]:
    """Check the rows' arrays against each other and return (training weights, held-out weights)."""
    rows = len(x)
    if not isinstance(x, Csr) and (x.ndim != 2 or x.dtype != np.float32):
        raise UsageError(f"rows of shape {x.shape} and type {x.dtype} cannot be summed; give a table of float32")
    for name, column in (("y", y), ("weight", weight), ("hold", hold)):
        if column is not None and len(column) != rows and (name == "y" or len(column) > 0):
            raise UsageError(f"{name} has {len(column)} entries for {rows} rows; give one for each row")
    whole = np.ones(rows, np.float32) if weight is None or len(weight) == 0 else np.asarray(weight, np.float32)
    if hold is None or len(hold) == 0:
        return whole, np.zeros(rows, np.float32)
    return np.where(hold == 0, whole, ZERO), np.where(hold == 1, whole, ZERO)


def _dense_tiles(
    x: Floats, y: Floats, train: Floats, held: Floats, w: Floats, loss: Loss, gradient: Doubles, figures: Doubles
) -> None:
    width, configs = w.shape[0] - 1, w.shape[1]
    rows = max(_TILE // (width + configs) // RUN, 1) * RUN
    scores = np.empty((min(rows, len(x)), configs), np.float32)
    found = np.empty((width, configs), np.float32)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        tile = x[part]
        z = np.matmul(tile, w[:-1], out=scores[: len(tile)])
        bend_tile(loss, z, y[part], train[part], held[part], w[-1], figures)
        np.matmul(tile.T, z, out=found)
        astray = ~np.isfinite(found).all(axis=0)
        if astray.any():
            # A row of weight zero may hold anything, and zero times infinity is not zero.
            kept = train[part] > 0
            found[:, astray] = tile[kept].T @ z[kept][:, astray]
        gradient[:-1] += found


def _sparse_tiles(
    x: Csr, y: Floats, train: Floats, held: Floats, w: Floats, loss: Loss, gradient: Doubles, figures: Doubles
) -> None:
    width, configs = x.width, w.shape[1]
    lanes = -(-configs // _LANES) * _LANES
    padded, found = np.zeros((width, lanes), np.float32), np.zeros((width, lanes), np.float32)
    padded[:, :configs] = w[:-1]
    # Scoring and its turn each pull their own table through the cache, so a tile should visit every feature often.
    wanted = _VISITS * width * len(x) // max(len(x.indices), 1)
    rows = max(min(max(wanted, _TILE // 4 // lanes), _SCORES // lanes) // RUN, 1) * RUN
    scores = np.zeros((min(rows, len(x)), lanes), np.float32)
    flushed = 0
    for start in range(0, len(x), rows):
        stop = min(start + rows, len(x))
        part, z = slice(start, stop), scores[: stop - start]
        stopped = times(x.indptr, x.indices, x.values, start, padded, z)
        if stopped >= 0:
            raise FeatureError(
                f"row {stopped} names a feature past the width of {width}; encode all rows by the same recipe"
            )
        bend_tile(loss, z[:, :configs], y[part], train[part], held[part], w[-1], figures)
        times_turned(x.indptr, x.indices, x.values, start, z, train[part], found)
        # Float64 takes over what float32 has summed, but not so often that wide gradients are mostly moved about.
        if stop == len(x) or int(x.indptr[stop]) - flushed >= _FLUSH * width:
            flush(found, gradient)
            flushed = int(x.indptr[stop])


@kernel
def bend_tile(loss: Any, z: Any, y: Any, train: Any, held: Any, bias: Any, figures: Any) -> None:
    """Turn a tile's scores (rows, configs) into weighted slopes and add what they come to to the figures (4, configs).

    A config's scores are gathered into a run of their own and put back: a dozen side by side would not vectorise.
    """
    run = np.empty(RUN, np.float32)
    rows, configs = z.shape
    for start in range(0, rows, RUN):
        count = min(RUN, rows - start)
        part, own = z[start : start + count], run[:count]
        ys, trains, helds = y[start : start + count], train[start : start + count], held[start : start + count]
        for c in range(configs):
            for i in range(count):
                own[i] = part[i, c]
            value, pushed, held_loss, right = loss.run(own, ys, trains, helds, bias[c])
            for i in range(count):
                part[i, c] = own[i]
            figures[0, c] += value
            figures[1, c] += pushed
            figures[2, c] += held_loss
            figures[3, c] += right


@kernel
def times(indptr: Any, indices: Any, values: Any, first: int, w: Any, z: Any) -> Any:
    """Score sparse rows from the first on by weights (features, lanes); return the row that cannot be, or -1."""
    width, lanes = w.shape
    sums_of = np.zeros(lanes, np.float32)
    for i in range(z.shape[0]):
        sums_of[:] = ZERO
        for e in range(indptr[first + i], indptr[first + i + 1]):
            j, v = indices[e], values[e]
            if j >= width:
                return first + i
            for k in range(lanes):
                sums_of[k] += v * w[j, k]
        for k in range(lanes):
            z[i, k] = sums_of[k]
    return -1


@kernel
def times_turned(indptr: Any, indices: Any, values: Any, first: int, r: Any, train: Any, gradient: Any) -> None:
    """Add the slopes (rows, lanes) by each row's values to the gradient (features, lanes)."""
    lanes = r.shape[1]
    for i in range(r.shape[0]):
        if train[i] > ZERO:
            for e in range(indptr[first + i], indptr[first + i + 1]):
                j, v = indices[e], values[e]
                for k in range(lanes):
                    gradient[j, k] += v * r[i, k]


@kernel
def flush(found: Any, gradient: Any) -> None:
    """Move what was found (features, lanes) over to the gradient, which has fewer columns and one row more."""
    for j in range(found.shape[0]):
        for k in range(gradient.shape[1]):
            gradient[j, k] += found[j, k]
            found[j, k] = ZERO
