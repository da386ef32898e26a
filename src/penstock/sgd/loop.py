"""Training by the epoch: any iterable of batches in, a metric row out.

A `Trainer` holds the weights and hands each batch to its kernel. It knows nothing of files or shuffling, and
it refuses to go on with numbers that are not finite: the row and feature are named, or the remedy is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.errors import ModelFileError, UsageError
from penstock.sgd import kernels, losses
from penstock.sgd.faults import Names, data_fault, diverged
from penstock.sgd.losses import Loss
from penstock.sgd.model import Weights
from penstock.sgd.rates import Exponential, Rate
from penstock.sgd.scalar import TOTALS

# A loss this many times that of no model at all, and rising, will not come back.
_HOPELESS = 1e6


@dataclass(frozen=True, slots=True)
class Spec:
    """What is to be learnt and how: loss, learning rate, batch size, penalties, intercept.

    Examples
    --------
    >>> Spec("hinge", l2=1e-4).metric
    'accuracy'
    """

    loss: str = "logistic"
    rate: Rate = field(default_factory=Exponential)
    batch_size: int = 1
    l1: float = 0.0
    l2: float = 0.0
    intercept: bool = True

    def __post_init__(self) -> None:
        losses.named(self.loss)
        if not (isinstance(self.batch_size, int | np.integer) and self.batch_size >= 1):
            raise UsageError(f"batch_size={self.batch_size!r} must be a whole number from 1; 1 updates after every row")
        for name, value in (("l1", self.l1), ("l2", self.l2)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name}={value!r} must be zero or a positive number, such as 1e-4")

    @property
    def metric(self) -> str:
        """The measure reported beside the loss: accuracy or r2."""
        return losses.named(self.loss).metric


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What an epoch, or an evaluation, came to. ``loss`` and ``score`` are means by weight.

    In training each row counts as scored just before its own update, so no second pass is needed.
    """

    loss: float
    metric: str
    score: float
    rows: int
    weight: float
    updates: int


OnBatch = Callable[[Batch, EpochStats], None]


class Trainer:
    """Learns a linear model from batches.

    Parameters
    ----------
    spec : Spec
        What is to be learnt and how.
    width : int
        The number of features.
    outputs : int
        The number of classes for softmax, else 1.
    names : Names
        How errors name rows and features.

    Examples
    --------
    >>> x = np.array([[1.0], [-1.0]], np.float32).repeat(50, axis=0)
    >>> batch = Batch(x, x[:, 0].copy())
    >>> trainer = Trainer(Spec("logistic"), width=1)
    >>> for epoch in range(3):
    ...     stats = trainer.run_epoch([batch], epoch)
    >>> stats.rows, trainer.evaluate([batch]).score
    (100, 1.0)
    """

    def __init__(self, spec: Spec, width: int, *, outputs: int = 1, names: Names | None = None) -> None:
        self.spec = spec
        self.names = names or Names()
        self.weights = Weights.zeros(width, outputs)
        self._loss: Loss = losses.named(spec.loss)
        if self._loss.many != (outputs > 1):
            raise UsageError(
                f"outputs={outputs} does not fit loss={spec.loss!r}: softmax has one output for each of two or more"
                " classes, the other losses have one"
            )
        self._previous = math.inf
        self._epoch = 0
        self._running: tuple[int, kernels.Totals] | None = None

    def run_epoch(self, batches: Iterable[Batch], epoch: int, *, on_batch: OnBatch | None = None) -> EpochStats:
        """Learn from the batches in their order; the epoch's number sets the learning rate.

        After `restore` of a state taken within this epoch, give the batches that were still to come.

        Raises
        ------
        FeatureError, LabelError
            A row holds something that is not finite; it is named.
        DivergedError
            The data are sound but the weights or the loss left all bounds.
        """
        self._epoch = epoch
        base, power = self.spec.rate.native(epoch)
        step = kernels.Step(
            self._loss, base, power, self.spec.batch_size, self.spec.l1, self.spec.l2, self.spec.intercept
        )
        if self._running is None or self._running[0] != epoch:
            self._running = (epoch, kernels.Totals())
        totals = self._running[1]
        try:
            for batch in batches:
                stopped = kernels.train(batch, self.weights, step=step, totals=totals)
                if stopped >= 0:
                    self._refuse(batch, stopped)
                if on_batch is not None:
                    on_batch(batch, self._stats(totals))
        finally:
            self._running = None
        self.weights.settle()
        stats = self._stats(totals)
        self._check(stats, totals, epoch)
        self._previous = stats.loss
        return stats

    def evaluate(self, batches: Iterable[Batch]) -> EpochStats:
        """Measure the model on batches without learning from them."""
        totals, weights = kernels.Totals(), self.weights.settled()
        for batch in batches:
            stopped = kernels.measure(batch, weights, loss=self._loss, totals=totals)
            if stopped >= 0:
                self._refuse(batch, stopped)
        return self._stats(totals)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that training depends on as arrays, between epochs or, from `on_batch`, within one."""
        epoch, totals = self._running or (-1, kernels.Totals())
        progress = np.array([epoch, totals.rows, self._previous, *totals.sums])
        return {**self.weights.arrays(), "progress": progress}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state as if there had been no break, to the last bit."""
        weights = Weights.from_arrays(state)
        progress = np.asarray(state.get("progress", ()), np.float64)
        if weights.coef.shape != self.weights.coef.shape or progress.shape != (3 + TOTALS,):
            raise ModelFileError(
                f"the state is of {weights.outputs} outputs and {weights.width} features, the trainer of"
                f" {self.weights.outputs} and {self.weights.width}; resume with the data and options it was saved with"
            )
        self.weights = weights
        self._previous = float(progress[2])
        self._running = None
        if progress[0] >= 0:
            totals = kernels.Totals()
            totals.rows = int(progress[1])
            totals.sums[:] = progress[3:]
            self._running = (int(progress[0]), totals)

    def _stats(self, totals: kernels.Totals) -> EpochStats:
        return EpochStats(
            totals.loss(), self._loss.metric, totals.score(self._loss), totals.rows, totals.weight, self.weights.updates
        )

    def _rate(self, epoch: int) -> float:
        return self.spec.rate.at(epoch, self.weights.updates)

    def _check(self, stats: EpochStats, totals: kernels.Totals, epoch: int) -> None:
        rate = self._rate(epoch)
        if not (self.weights.is_finite() and math.isfinite(stats.loss)):
            raise diverged("a weight is no longer finite", epoch=epoch, learning_rate=rate)
        start = totals.zero_loss(self._loss, self.weights.outputs)
        if math.isfinite(self._previous) and stats.loss > max(_HOPELESS * start, self._previous) > 0:
            what = f"the loss is {stats.loss:.3g} and rising, where no model at all has {start:.3g}"
            raise diverged(what, epoch=epoch, learning_rate=rate)

    def _refuse(self, batch: Batch, position: int) -> None:
        fault = data_fault(batch, position, width=self.weights.width, outputs=self.weights.outputs, names=self.names)
        if fault is not None:
            raise fault
        what = f"the score of {self.names.row(batch, position)} is not finite, though its data are"
        raise diverged(what, epoch=self._epoch, learning_rate=self._rate(self._epoch))


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stops when the held-out loss has not fallen by the tolerance for a number of epochs.

    Examples
    --------
    >>> watch = EarlyStopping(patience=2, tolerance=0.01)
    >>> for loss in (0.5, 0.4, 0.395, 0.399):
    ...     watch = watch.after(loss)
    >>> watch.best, watch.waited, watch.stop
    (0.4, 2, True)
    """

    patience: int = 5
    tolerance: float = 1e-4
    best: float = math.inf
    waited: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UsageError(f"patience={self.patience!r} must be a whole number of epochs from 1")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"tolerance={self.tolerance!r} must be zero or a positive number, such as 1e-4")

    def after(self, loss: float) -> EarlyStopping:
        """Return the watch as it stands after one more epoch's held-out loss."""
        if loss < self.best - self.tolerance:
            return replace(self, best=loss, waited=0)
        return replace(self, waited=self.waited + 1)

    @property
    def stop(self) -> bool:
        """Whether patience is spent."""
        return self.waited >= self.patience
