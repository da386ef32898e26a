"""Training by the epoch: any iterable of batches in, a metric row out.

A `Trainer` holds the weights and hands each batch to its kernel. It knows nothing of files or shuffling, and
it refuses to go on with numbers that are not finite: the row and feature are named, or the remedy is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.class_weights import ClassWeights
from penstock.errors import DivergedError, ModelFileError, UsageError
from penstock.measures import OnScores
from penstock.messages import Given, Name
from penstock.sgd import kernels, losses
from penstock.sgd.faults import Names, data_fault, diverged
from penstock.sgd.losses import Loss
from penstock.sgd.model import WeightAverage, Weights, snapshot_interval
from penstock.sgd.optimizers import ADAPTIVE, adaptive
from penstock.sgd.rates import Rate, exponential
from penstock.sgd.scalar import TOTALS

# A loss this many times that of no model at all, and rising, will not come back.
_HOPELESS = 1e6


@dataclass(frozen=True, slots=True)
class Spec:
    """What is to be learned and how: loss, learning rate, batch size, penalties, intercept, optimizer.

    ``average`` makes the model the mean of the weights over the epochs; see `penstock.sgd.model`. ``scaled`` says that features come
    scaled, which messages then do not recommend, ``chosen_rate`` that the user gave the rate, which they recommend to leave out.

    Examples
    --------
    >>> Spec("hinge", l2=1e-4).metric
    'accuracy'
    """

    loss: str = "logistic"
    rate: Rate = field(default_factory=exponential)
    batch_size: int = 1
    l1: float = 0.0
    l2: float = 0.0
    intercept: bool = True
    average: bool = False
    scaled: bool = False
    chosen_rate: bool = False
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        losses.find_loss(self.loss)
        optimizer = adaptive(self.optimizer)
        if optimizer is not None and self.l1 and not optimizer.sparsifies:
            able = ["sgd", *(name for name, each in ADAPTIVE.items() if each.sparsifies)]
            raise UsageError(
                "is not there with ",
                Given("optimizer", self.optimizer),
                option="l1",
                value=self.l1,
                fixes=[f"use one of: {', '.join(able)}", Name("l2")],
            )
        if not (isinstance(self.batch_size, int | np.integer) and self.batch_size >= 1):
            raise UsageError(
                "must be a whole number from 1",
                option="batch_size",
                value=self.batch_size,
                fixes=["1 updates after every row"],
            )
        for name, value in (("l1", self.l1), ("l2", self.l2)):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError("must be zero or a positive number, such as 1e-4", option=name, value=value)

    @property
    def metric(self) -> str:
        """The measure reported beside the loss: accuracy or r2."""
        return losses.find_loss(self.loss).metric

    def for_classes(self, class_weights: ClassWeights | None) -> Spec:
        """Return the spec for rows that are weighed by class.

        A bounded step is shortened the more, the more its row weighs, which would leave heavy classes less than their
        weight and cost them points of recall. The effect falls with the rate, which is therefore divided by about twice
        the largest factor. The rows of a batch are shortened alike.
        """
        if class_weights is None or not self.rate.bounded or self.optimizer != "sgd":
            return self
        most = max(2 * float(class_weights.factors.max()) / self.batch_size - 1, 1.0)
        return replace(self, rate=replace(self.rate, learning_rate=self.rate.learning_rate / most))

    def step(self, epoch: int) -> kernels.Step:
        """Return what kernels need to know of an epoch."""
        loss = losses.find_loss(self.loss)
        base, power = self.rate.native(epoch)
        bound = loss.curvature if self.rate.bounded else 0.0
        return kernels.Step(loss, base, power, self.batch_size, self.l1, self.l2, self.intercept, bound, self.optimizer)


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


def measure_weights(
    spec: Spec, weights: Weights, batches: Iterable[Batch], *, names: Names, on_scores: OnScores | None = None
) -> EpochStats:
    """Measure weights on batches as `Trainer.evaluate` does; a row that cannot be used raises the error that names it."""
    trainer = Trainer(spec, weights.width, outputs=weights.outputs, names=names)
    trainer.weights = weights
    return trainer.evaluate(batches, on_scores=on_scores)


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
    epoch_rows : int
        About how many rows an epoch has, by which snapshots for the average are spaced; 0 where that is not known, and
        then nothing is averaged.
    class_weights : ClassWeights
        What the weights of rows are multiplied by in training, not in `evaluate`.

    Attributes
    ----------
    weights : Weights
        As the last update left them. The model takes `model_weights`.

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

    done: ClassVar[bool] = False

    def __init__(
        self,
        spec: Spec,
        width: int,
        *,
        outputs: int = 1,
        names: Names | None = None,
        epoch_rows: int = 0,
        class_weights: ClassWeights | None = None,
    ) -> None:
        self.spec = spec.for_classes(class_weights)
        self._class_weights = class_weights
        self._epoch_rows = epoch_rows if spec.average else 0
        self._average: WeightAverage | None = None
        self.names = names or Names()
        self.weights = Weights.zeros(width, outputs)
        self._loss: Loss = losses.find_loss(spec.loss)
        if self._loss.many != (outputs > 1):
            raise UsageError(
                "does not fit ",
                Given("loss", spec.loss),
                ": softmax has one output for each of two or more classes, the other losses have one",
                option="outputs",
                value=outputs,
            )
        self._previous = math.inf
        self._epoch = 0
        self._running: tuple[int, kernels.Totals] | None = None

    @property
    def model_weights(self) -> Weights:
        """The weights that the model takes: their mean over the epochs, or the last ones."""
        return self.weights.settled() if self._average is None else self._average.weights(self.weights)

    def start(self, weights: Weights) -> None:
        """Begin at these weights rather than at zero."""
        self.weights = weights

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
        step = self.spec.step(epoch)
        if self._running is None or self._running[0] != epoch:
            self._running = (epoch, kernels.Totals())
        totals = self._running[1]
        try:
            for batch in batches:
                if self._epoch_rows and self._average is None and totals.rows == 0:
                    self._average = self._start_average(batch)
                self._learn(batch, step, totals)
                if on_batch is not None:
                    on_batch(batch, self._stats(totals))
        finally:
            self._running = None
        self.weights.settle()
        if self._average is not None:
            self._average.end_epoch(self.weights)
        stats = self._stats(totals)
        self._check(stats, totals, epoch)
        self._previous = stats.loss
        return stats

    def _start_average(self, batch: Batch) -> WeightAverage | None:
        """Return the mean of a training that begins with a batch; it leaves out the way from the start."""
        entries = len(batch.x.values) / max(len(batch), 1) if isinstance(batch.x, Csr) else batch.width
        interval = snapshot_interval(self._epoch_rows, entries, self.weights.coef.size)
        return WeightAverage(interval, first=self._epoch_rows // 2) if interval else None

    def _learn(self, batch: Batch, step: kernels.Step, totals: kernels.Totals) -> None:
        """Update the weights by a batch, and take the snapshots that come due within it."""
        average, size, start = self._average, self.spec.batch_size, 0
        given = batch  # errors name rows of this one
        if self._class_weights is not None:
            batch = self._class_weights.weigh(batch)
        kernels.begin(batch, self.weights, step=step)
        while start < len(batch):
            rows = len(batch) - start
            if average is not None:
                rows = min(-(-average.rows_to_next() // size) * size, rows)  # no update is cut in two
            part = batch if rows == len(batch) else batch.slice(start, start + rows)
            stopped = kernels.train(part, self.weights, step=step, totals=totals)
            if stopped >= 0:
                self._refuse(given, start + stopped)
            if average is not None:
                average.advance(rows, self.weights)
            start += rows

    def evaluate(self, batches: Iterable[Batch], *, on_scores: OnScores | None = None) -> EpochStats:
        """Measure the model on batches without learning from them; ``on_scores`` hears the scores of all rows."""
        totals, weights = kernels.Totals(on_scores), self.model_weights
        for batch in batches:
            stopped = kernels.measure(batch, weights, loss=self._loss, totals=totals)
            if stopped >= 0:
                self._refuse(batch, stopped)
        return self._stats(totals)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that training depends on as arrays, between epochs or, from `on_batch`, within one."""
        epoch, totals = self._running or (-1, kernels.Totals())
        progress = np.array([epoch, totals.rows, self._previous, *totals.sums])
        average = {} if self._average is None else self._average.arrays()
        return {**self.weights.arrays(), "progress": progress, **average}

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
        self._average = WeightAverage.from_arrays(state)
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
        if not (self.weights.is_finite() and math.isfinite(stats.loss)):
            raise self._diverged("a weight is no longer finite", epoch)
        start = totals.zero_loss(self._loss, self.weights.outputs)
        if math.isfinite(self._previous) and stats.loss > max(_HOPELESS * start, self._previous) > 0:
            what = f"the loss is {stats.loss:.3g} and rising, where no model at all has {start:.3g}"
            raise self._diverged(what, epoch)

    def _refuse(self, batch: Batch, position: int) -> None:
        fault = data_fault(batch, position, width=self.weights.width, outputs=self.weights.outputs, names=self.names)
        if fault is not None:
            raise fault
        what = f"the score of {self.names.row(batch, position)} is not finite, though its data are"
        raise self._diverged(what, self._epoch)

    def _diverged(self, what: str, epoch: int) -> DivergedError:
        rate, spec = self._rate(epoch), self.spec
        return diverged(what, epoch=epoch, learning_rate=rate, chosen=spec.chosen_rate, scaled=spec.scaled)


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stops when the held-out loss has not fallen by the tolerance, a share of it, for a number of epochs.

    ``noise`` is the relative error of the held-out loss. With it, an epoch also counts as progress if the training loss falls
    while the held-out loss is within its noise of the best, so that few held-out rows do not end training by chance.

    Examples
    --------
    >>> watch = EarlyStopping(patience=2, tolerance=0.01)
    >>> for loss in (0.5, 0.4, 0.397, 0.399):
    ...     watch = watch.after(loss)
    >>> watch.best, watch.waited, watch.stop
    (0.4, 2, True)
    >>> watch = EarlyStopping(patience=2, noise=0.1)
    >>> for held_out, training in ((0.5, 0.6), (0.51, 0.5), (0.52, 0.4)):
    ...     watch = watch.after(held_out, training)
    >>> watch.stop, watch.matches(0.52, 0.5), watch.matches(0.6, 0.5)
    (False, True, False)
    """

    patience: int = 5
    tolerance: float = 1e-4
    noise: float = 0.0
    best: float = math.inf
    best_training: float = math.inf
    waited: int = 0
    least: float = math.inf
    """The lowest loss there was; ``best`` falls by no less than the tolerance."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UsageError("must be a whole number of epochs from 1", option="patience", value=self.patience)
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(
                "must be zero or a positive number, such as 1e-4", option="tolerance", value=self.tolerance
            )

    def after(self, loss: float, training_loss: float = math.inf) -> EarlyStopping:
        """Return the watch as it stands after one more epoch's held-out loss and training loss."""
        progress = self._falls(self.best, loss)
        if self.noise and self.matches(loss, self.best):
            progress = progress or self._falls(self.best_training, training_loss)
        return replace(
            self,
            best=loss if self._falls(self.best, loss) else self.best,
            best_training=min(self.best_training, training_loss),
            least=min(self.least, loss),
            waited=0 if progress else self.waited + 1,
        )

    def matches(self, loss: float, best: float) -> bool:
        """Whether a held-out loss is as good as the best, but for its noise."""
        return loss <= best + self.noise * abs(best)

    def _falls(self, best: float, loss: float) -> bool:
        return loss < best - self.tolerance * abs(best) if math.isfinite(best) else loss < math.inf

    @property
    def stop(self) -> bool:
        """Whether patience is spent."""
        return self.waited >= self.patience
