"""The choice of kernel: one for each kind of rows, of loss and of batch, compiled when first needed.

Arrays are handed over read-only, contiguous and of one type each, so that a kernel is compiled once whether
the rows come from a buffer of our own or straight from a mapped file. Compiled code is kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.errors import FeatureError, LabelError, UsageError
from penstock.measures import OnScores, weighted_sum
from penstock.messages import Use
from penstock.sgd import adagrad, linear, shared, softmax
from penstock.sgd.losses import Loss
from penstock.sgd.optimizer import Optimizer
from penstock.sgd.optimizers import OptimizerState, adaptive
from penstock.sgd.scalar import GROWN, HITS, LOSS, PIVOT, SCALE, SHIFTED, SHIFTED2, STEP, TOTALS, WEIGHT

if TYPE_CHECKING:
    from penstock.sgd.model import Weights

_NONE = np.zeros(0, np.float32)
_NONE.flags.writeable = False
# Rows scored at a time when evaluating, so that the scores of a large batch are never all held.
_SCORED = 1 << 16


@dataclass(frozen=True, slots=True)
class Step:
    """What a kernel needs to know of one epoch: the loss, the learning rate's base and power, the penalties, the optimizer.

    ``bound`` is 0 for steps of the learning rate as it is, or the loss's curvature for steps that are shortened so that
    none overshoots; see `scalar.bounded_rate`.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> Step(find_loss("logistic"), base=0.1).batch_size
    1
    """

    loss: Loss
    base: float
    power: float = 0.0
    batch_size: int = 1
    l1: float = 0.0
    l2: float = 0.0
    intercept: bool = True
    bound: float = 0.0
    optimizer: str = "sgd"


class Totals:
    """Sums over rows, in float64, that give the mean loss and the accuracy or R².

    Labels of a regression are summed as differences from the first one, so that a large mean costs no digits.

    Parameters
    ----------
    on_scores : callable, optional
        Called by `add_scores` with scores, labels and weights of the rows that have weight.

    Examples
    --------
    >>> totals = Totals()
    >>> totals.weight
    0.0
    """

    __slots__ = ("on_scores", "rows", "sums")

    def __init__(self, on_scores: OnScores | None = None) -> None:
        self.on_scores = on_scores
        self.sums = np.zeros(TOTALS)
        self.sums[GROWN] = 1.0
        self.rows = 0

    def share(self) -> Totals:
        """Return empty totals for some of the rows to come, for `add` to take in; call `start` first."""
        part = Totals()
        part.sums[PIVOT] = self.sums[PIVOT]
        part.rows = 1  # its pivot is settled
        return part

    def add(self, part: Totals) -> None:
        """Take in the sums of some rows, counted by `share`."""
        for place in (LOSS, WEIGHT, HITS, SHIFTED, SHIFTED2):
            self.sums[place] += part.sums[place]
        self.sums[LOSS] += np.log(part.sums[GROWN])

    @property
    def weight(self) -> float:
        """The weight of all rows."""
        return float(self.sums[WEIGHT])

    def start(self, batch: Batch) -> None:
        """Take the pivot from the first batch, before its rows are counted."""
        if self.rows == 0 and batch.y is not None and len(batch.y) and np.isfinite(batch.y[0]):
            self.sums[PIVOT] = float(batch.y[0])
        self.rows += len(batch)

    def loss(self) -> float:
        """Return the weighted mean loss."""
        return float((self.sums[LOSS] + np.log(self.sums[GROWN])) / self.weight) if self.weight else 0.0

    def score(self, loss: Loss) -> float:
        """Return the accuracy or the R²."""
        if not self.weight:
            return 0.0
        if loss.classifies:
            return float(self.sums[HITS] / self.weight)
        spread = self.sums[SHIFTED2] - self.sums[SHIFTED] ** 2 / self.weight
        residual = 2 * self.sums[LOSS] if loss.exact else self.sums[HITS]
        if spread <= 0:
            return 1.0 if residual == 0 else 0.0
        return float(1 - residual / spread)

    def zero_loss(self, loss: Loss, outputs: int) -> float:
        """Return the mean loss that weights of zero would have had on these rows."""
        if not loss.classifies:
            pivot, weight = self.sums[PIVOT], self.weight or 1.0
            return float(0.5 * (self.sums[SHIFTED2] + 2 * pivot * self.sums[SHIFTED] + pivot**2 * weight) / weight)
        return loss.at_zero(outputs)


def train(batch: Batch, weights: Weights, *, step: Step, totals: Totals) -> int:
    """Update the weights by a batch's rows, in their order; add each row, as scored before its update, to the totals.

    Returns
    -------
    int
        -1, or the position of the row that could not be used; the weights are then not to be used either.
    """
    y, weight = _columns(batch, weights, many=step.loss.many)
    optimizer = adaptive(step.optimizer)
    if optimizer is not None:
        totals.start(batch)
        return _optimize(optimizer, batch, y, weight, weights, step=step, totals=totals)
    free, bound = np.float32(step.intercept), float(step.bound)
    sums, b, size = totals.sums, weights.intercept, int(step.batch_size)
    totals.start(batch)
    # An int here would be another type, and another compilation.
    rate, penalties = (float(step.base), float(step.power)), (float(step.l1), float(step.l2))
    if isinstance(batch.x, Csr):
        weights.arrange(sparse=True, lazy_l1=step.l1 > 0)
        rows: tuple[Any, ...] = (*_csr(batch.x), y, weight, weights.coef.T, b, weights.clock, weights.seen, sums)
        if step.loss.many:
            return int(softmax.softmax_sparse(*rows, *rate, *penalties, free, bound, size))
        if size == 1:
            return int(linear.sparse_rows(*rows, step.loss, *rate, *penalties, free, bound))
        return int(linear.sparse_batches(*rows, step.loss, *rate, *penalties, free, bound, size))
    weights.arrange(sparse=False)
    rows = (_still(batch.x), y, weight, weights.coef, b, weights.clock, sums)
    if step.loss.many:
        if size == 1:
            return int(softmax.softmax_rows(*rows, *rate, *penalties, free, bound))
        return int(softmax.softmax_batches(*rows, *rate, *penalties, free, bound, size))
    if size > 1:
        return int(linear.dense_batches(*rows, step.loss, *rate, *penalties, free, bound, size))
    if step.l1 == 0 and batch.width <= linear.NARROW:
        return int(linear.dense_ahead(*rows, step.loss, *rate, penalties[1], free, bound))
    return int(linear.dense_rows(*rows, step.loss, *rate, *penalties, free, bound))


def _optimize(
    optimizer: Optimizer, batch: Batch, y: Floats, weight: Floats, weights: Weights, *, step: Step, totals: Totals
) -> int:
    """Do what `train` does by an optimizer that keeps something beside each weight."""
    begin(batch, weights, step=step)
    state = weights.optimizer_state
    if state is None:
        return -1
    state.base, state.l1, state.l2 = float(step.base), float(step.l1), float(step.l2)
    terms = (step.loss, state.base, float(step.power), state.l1, state.l2, np.float32(step.intercept))
    last = (float(step.bound), float(state.unit), int(step.batch_size))
    if not isinstance(batch.x, Csr):
        weights.arrange(sparse=False)
        arrays = (weights.coef, weights.intercept, state.for_rows(sparse=False), weights.clock, totals.sums)
        return int(optimizer.dense(_still(batch.x), y, weight, *arrays, *terms, *last))
    entries = batch.x.indices[int(batch.x.indptr[0]) : int(batch.x.indptr[-1])]
    if len(entries) and int(entries.max()) >= weights.width:
        first = int(np.argmax(entries >= weights.width)) + int(batch.x.indptr[0])
        return int(np.searchsorted(batch.x.indptr, first, side="right")) - 1
    weights.arrange(sparse=True)
    arrays = (weights.coef.T, weights.intercept, state.for_rows(sparse=True), weights.clock, totals.sums)
    stopped = int(optimizer.sparse(*_csr(batch.x), y, weight, *arrays, *terms, *last))
    state.due = optimizer.settle is not None
    return stopped


def begin(batch: Batch, weights: Weights, *, step: Step) -> None:
    """Have the optimizer's state begin with the first rows that have weight; nothing where it has begun.

    `train` does it with the rows it is given. A caller that cuts a batch into parts begins with the whole, which tells the size
    of labels better.
    """
    optimizer, state = adaptive(step.optimizer), weights.optimizer_state
    if optimizer is None or (state is not None and state.optimizer is optimizer):
        return
    y, weight = _columns(batch, weights, many=step.loss.many)
    if not len(y) or (len(weight) and not weight.any()):
        return
    weights.settle()
    unit = _label_unit(y, weight, weights, step) if not step.loss.classifies else 1.0
    weights.optimizer_state = OptimizerState.start(
        optimizer, weights.coef, weights.intercept, base=float(step.base), unit=unit
    )


def _label_unit(y: Floats, weight: Floats, weights: Weights, step: Step) -> float:
    """Return the labels' standard deviation, and have weights of zero begin with their mean.

    Steps of these optimizers are as long for large labels as for small ones, so that they have to be told how large labels
    are; and an intercept that has far to go would fill the accumulators of all weights.
    """
    share = weight.astype(np.float64) if len(weight) else np.ones(len(y))
    known = np.isfinite(y) & np.isfinite(share) & (share > 0)
    if not known.any():
        return 1.0
    labels, share = y[known].astype(np.float64), share[known]
    mean = float(np.average(labels, weights=share))
    if step.intercept and not (weights.coef.any() or weights.intercept.any()):
        weights.intercept[:] = mean
    spread = float(np.sqrt(np.average((labels - mean) ** 2, weights=share)))
    return spread or abs(mean) or 1.0


def train_adagrad(
    batch: Batch, cells: Floats, intercept: Floats, clock: NDArray[np.float64], *, step: Step, totals: Totals
) -> int:
    """Update weights by sparse rows, in their order, each step shortened by what the weight has been through.

    ``cells`` is (features, 2): a weight and its accumulator side by side; so is ``intercept``, (2,).

    Returns
    -------
    int
        -1, or the position of the row that could not be used.
    """
    if not isinstance(batch.x, Csr) or batch.y is None or step.batch_size != 1:
        raise UsageError(
            "AdaGrad learns from sparse rows with labels, one row to an update", fixes=[Use("batch_size", 1)]
        )
    totals.start(batch)
    rows = (*_csr(batch.x), _still(batch.y), _NONE if batch.weight is None else _still(batch.weight))
    rate, l2, free = (float(step.base), float(step.power)), float(step.l2), np.float32(step.intercept)
    return int(adagrad.adagrad_rows(*rows, cells, intercept, clock, totals.sums, step.loss, *rate, l2, free))


def train_shared(
    batch: Batch,
    cells: Floats,
    intercept: Floats,
    clock: NDArray[np.float64],
    *,
    rows: tuple[int, int],
    step: Step,
    totals: Totals,
    hot: tuple[int, int, Floats] = (0, 0, np.empty((0, 1), np.float32)),
) -> int:
    """Update weights that other threads are updating too by some of a batch's sparse rows, by SGD or AdaGrad.

    ``cells`` is (features, 1), or (features, 2) for AdaGrad; the clock is read and not changed, and the rows are not
    counted, which is left to the caller when all threads are done. SGD's L2 is left to the caller as well. ``hot`` is where
    records begin that nearly every row writes to, how far from there the thread's own copies of them lie in ``cells``, and
    an array as large as these copies.

    Returns
    -------
    int
        -1, or the position of the row that could not be used.
    """
    assert isinstance(batch.x, Csr)
    assert batch.y is not None
    weight = _NONE if batch.weight is None else _still(batch.weight)
    data = (*_csr(batch.x), _still(batch.y), weight, *rows, cells, intercept, *hot, float(clock[STEP]) + rows[0])
    rest = (totals.sums, step.loss, float(step.base), float(step.power), np.float32(step.intercept))
    if cells.shape[1] == 2:
        return int(shared.shared_adagrad(*data, float(step.l2), *rest))
    return int(shared.shared_rows(*data, float(clock[SCALE]), *rest, float(step.bound)))


def scores(batch: Batch, weights: Weights) -> Floats:
    """Return the scores of a batch's rows, (rows, outputs) float32; the weights must owe nothing."""
    _match(batch, weights)
    out, stopped = _scores(batch, weights)
    if stopped >= 0 and isinstance(batch.x, Csr):
        top = int(batch.x.indices.max())
        raise FeatureError(
            f"a row has a value for feature {top}, but the model has {weights.width} features;"
            " give rows made in the same way as those it was trained on"
        )
    return out


def measure(batch: Batch, weights: Weights, *, loss: Loss, totals: Totals) -> int:
    """Add a batch's rows to the totals without learning from them; the weights must owe nothing.

    Returns
    -------
    int
        -1, or the position of the first row that could not be used.
    """
    y, weight = _columns(batch, weights, many=loss.many)
    totals.start(batch)
    for start in range(0, len(batch), _SCORED):
        stop = min(start + _SCORED, len(batch))
        out, stopped = _scores(batch.slice(start, stop), weights)
        if stopped < 0:
            stopped = add_scores(out, y[start:stop], weight[start:stop], loss=loss, totals=totals)
        if stopped >= 0:
            return start + stopped
    return -1


def add_scores(scores: Floats, y: Floats, weight: Floats, *, loss: Loss, totals: Totals) -> int:
    """Add rows with their scores, (rows, outputs), to the totals; no weights count as ones, and rows of weight 0 not at all.

    Returns
    -------
    int
        -1, or the position of the first row that could not be used.
    """
    found: NDArray[Any] = scores.astype(np.float64)
    labels = y.astype(np.float64)
    share = weight.astype(np.float64) if len(weight) else np.ones(len(y))
    usable = np.isfinite(found.sum(axis=1) + labels + share) & (share >= 0)
    if loss.many:
        usable &= (labels >= 0) & (labels < found.shape[1])
    found = loss.scored(found)
    if not (usable | (share == 0)).all():
        return int(np.flatnonzero(~usable & (share != 0))[0])
    totals.rows -= int(np.count_nonzero(share == 0))  # which nothing is measured on
    found, labels, share = found[share != 0], labels[share != 0], share[share != 0]
    sums = totals.sums
    shifted = labels - sums[PIVOT]
    sums[LOSS] += weighted_sum(share, loss.value(found, labels))
    sums[WEIGHT] += share.sum()
    sums[HITS] += weighted_sum(share, loss.hits(found, labels))
    sums[SHIFTED] += weighted_sum(share, shifted)
    sums[SHIFTED2] += weighted_sum(share, shifted**2)
    if totals.on_scores is not None:
        totals.on_scores(found, labels, share)
    return -1


def _scores(batch: Batch, weights: Weights) -> tuple[Floats, int]:
    out = np.empty((len(batch), weights.outputs), np.float32)
    if isinstance(batch.x, Csr):
        w = np.ascontiguousarray(weights.coef.T)
        return out, int(linear.sparse_scores(*_csr(batch.x), w, weights.intercept, out))
    linear.dense_scores(_still(batch.x), np.ascontiguousarray(weights.coef), weights.intercept, out)
    return out, -1


def _match(batch: Batch, weights: Weights) -> None:
    # Sparse rows may be narrower: files often do not know how many features there are in all.
    if batch.width != weights.width and not (isinstance(batch.x, Csr) and batch.width < weights.width):
        raise UsageError(
            f"the rows have {batch.width} features but the model has {weights.width};"
            " give the columns that it was trained on"
        )


def _columns(batch: Batch, weights: Weights, *, many: bool) -> tuple[Floats, Floats]:
    _match(batch, weights)
    if batch.y is None:
        raise LabelError("the batch has no labels; name the label column when opening the data")
    if many != (weights.outputs > 1):
        raise UsageError(
            f"weights of {weights.outputs} outputs do not fit the loss: softmax needs one output for each of"
            " two or more classes, the other losses need one"
        )
    weight = _NONE if batch.weight is None else _still(batch.weight)
    if len(batch.y) != len(batch) or (batch.weight is not None and len(weight) != len(batch)):
        raise UsageError(f"{len(batch)} rows came with {len(batch.y)} labels and {len(weight)} weights")
    return _still(batch.y), weight


def _csr(x: Csr) -> tuple[NDArray[np.uint64], NDArray[np.uint32], Floats]:
    return _still(x.indptr, np.uint64), _still(x.indices, np.uint32), _still(x.values)


def _still(array: NDArray[Any], dtype: type[np.generic] = np.float32) -> NDArray[Any]:
    """Return a read-only, aligned, contiguous view of the wanted type; a copy only where it must be."""
    view = np.require(array, dtype, ("C", "A")).view()
    view.flags.writeable = False
    return view
