"""Training by full passes, L-BFGS or plain gradient descent, with the face of `loop.Trainer`.

An epoch is one pass over all rows, in whatever order, at the weights that the optimiser asks for; it is told sums
alone. The first pass is made at the start, and later ones may be at weights that turn out worse: the model, and what an
epoch's figures tell, are the best weights so far. For one config the kernels of `full` are driven here, since `full.sums`
makes room for many side by side. The optimiser's vector is the weights (features, outputs), then the intercepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.class_weights import ClassWeights
from penstock.errors import DataError, FeatureError, LabelError, ModelFileError, UnknownOptionError, UsageError
from penstock.measures import OnScores
from penstock.native import kernel
from penstock.sgd import kernels
from penstock.sgd.faults import Names, diverged
from penstock.sgd.full import Doubles, Sums, bend_tile, times_turned
from penstock.sgd.lbfgs import RETRIES, Descent, Lbfgs, Optimiser
from penstock.sgd.loop import EpochStats, OnBatch, Spec, Trainer, measure_weights
from penstock.sgd.losses import Loss, find_loss
from penstock.sgd.losses.softmax import softmax_run
from penstock.sgd.model import Weights
from penstock.sgd.scalar import HITS, LOSS, PIVOT, RUN, SHIFTED, SHIFTED2, TOTALS, WEIGHT, ZERO

SOLVERS = ("lbfgs", "gd")
# Numbers in a tile of dense rows, and sparse rows to one: few enough to be still in a cache when read a second time.
_TILE, _SPARSE_ROWS = 1 << 17, 1 << 12
# Sums of float32 losses show no difference below this share of them; slopes do.
_UNSEEN = 1e-7
# Below this share of the objective a fall is none: finer than the optimiser's own limit, since `_level` sees more.
_SMALLEST_FALL = 1e-11
_NO_BIAS, _ONES = np.zeros(1, np.float32), np.ones(_TILE, np.float32)


class FullTrainer:
    """Learns a linear model from full passes over batches.

    Parameters
    ----------
    spec : Spec
        What is to be learnt; its learning rate is that of the start, and its batch size is not used.
    width : int
        The number of features.
    outputs : int
        The number of classes for softmax, else 1.
    solver : str
        ``"lbfgs"``, or ``"gd"`` for gradient descent at a fixed rate.
    tolerance : float
        The optimiser is done when no entry of the gradient is larger.
    names : Names
        How errors name rows and features.
    class_weights : ClassWeights
        What the weights of rows are multiplied by in training, not in `evaluate`.

    Examples
    --------
    >>> from penstock.sgd.rates import Rate
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> batch, trainer = Batch(x, 2 * x[:, 0] + 1), FullTrainer(Spec("squared", Rate(1.0)), width=1)
    >>> epoch = 0
    >>> while not trainer.done:
    ...     stats = trainer.run_epoch([batch], epoch)
    ...     epoch += 1
    >>> trainer.weights.coef.round(3), trainer.weights.intercept.round(3), round(stats.score, 3)
    (array([[2.]], dtype=float32), array([1.], dtype=float32), 1.0)
    """

    def __init__(
        self,
        spec: Spec,
        width: int,
        *,
        outputs: int = 1,
        solver: str = "lbfgs",
        tolerance: float = 1e-4,
        names: Names | None = None,
        class_weights: ClassWeights | None = None,
    ) -> None:
        if solver not in SOLVERS:
            raise UnknownOptionError.of("solver", solver, SOLVERS)
        self.spec = spec
        self.names = names or Names()
        self._class_weights = class_weights
        self._loss: Loss = find_loss(spec.loss)
        self._outputs = Trainer(
            spec, width, outputs=outputs
        ).weights.outputs  # which refuses what does not fit the loss
        self._rate = spec.rate.at(0, 0)
        make: Any = partial(Lbfgs, smallest_fall=_SMALLEST_FALL) if solver == "lbfgs" else Descent
        self._begin = partial(
            make,
            l1=spec.l1,
            l2=spec.l2,
            rate=self._rate,
            tolerance=tolerance,
            intercept=spec.intercept,
            outputs=outputs,
        )
        self._search: Optimiser = self._begin(np.zeros(((width + 1) * outputs, 1)))
        self._tries = RETRIES if solver == "lbfgs" else 0
        # Of the best weights: figures, the sum of the loss that is descended, and its slope.
        self._best, self._value, self._slope = kernels.Totals(), 0.0, np.zeros_like(self._search.best)

    @property
    def weights(self) -> Weights:
        """The best weights so far, those of the start before the first epoch; a copy."""
        found = _weights(self._search.best, self._outputs)
        return Weights(np.ascontiguousarray(found.coef), found.intercept)

    @property
    def model_weights(self) -> Weights:
        """The same: the model takes the best."""
        return self.weights

    def start(self, weights: Weights) -> None:
        """Begin at these weights rather than at zero.

        Raises
        ------
        UsageError
            They do not fit the model or are not finite, or an epoch has been run.

        Examples
        --------
        >>> trainer = FullTrainer(Spec("squared"), width=1)
        >>> trainer.start(Weights(np.zeros((1, 1), np.float32), np.full(1, 2.5, np.float32)))
        >>> trainer.run_epoch([Batch(np.zeros((2, 1), np.float32), np.array([2, 3], np.float32))], 0).loss
        0.125
        """
        own, given = self.weights, weights.settled()
        if given.coef.shape != own.coef.shape or not given.is_finite():
            raise UsageError(
                f"weights of {given.outputs} outputs and {given.width} features"
                f"{'' if given.is_finite() else ' that are not finite'} cannot be the start of a model of {own.outputs} and"
                f" {own.width}; give finite weights of the same model"
            )
        if not self.spec.intercept and given.intercept.any():
            raise UsageError("a start with an intercept cannot be that of a model without one; set it to zero")
        if self._search.evaluations[0]:
            raise UsageError("a start comes before the first epoch; make another trainer")
        self._search = self._begin(np.vstack([given.coef.T, given.intercept]).astype(np.float64).reshape(-1, 1))

    @property
    def done(self) -> bool:
        """Whether more epochs would change nothing: converged, or as low as float32 can see."""
        return bool(self._search.done[0])

    def run_epoch(self, batches: Iterable[Batch], epoch: int, *, on_batch: OnBatch | None = None) -> EpochStats:
        """Pass over the batches once, and let the optimiser choose the next weights.

        Returns
        -------
        EpochStats
            The loss, without penalties, and the accuracy or R² of all rows at the best weights so far: those of this
            epoch, or an earlier one's where it was no better. The hinge loss is the true one, though a smoothed one is
            descended. What ``on_batch`` hears is of this epoch's weights.

        Raises
        ------
        FeatureError, LabelError
            A row holds something that is not finite; it is named.
        DataError
            There are no rows, or none has any weight.
        DivergedError
            The data are sound but the loss left all bounds.
        """
        asked = self._search.ask()
        weights, totals, gradient = _weights(asked, self._outputs), kernels.Totals(), np.zeros_like(asked)
        value = 0.0
        for batch in batches:
            with np.errstate(all="ignore"):  # steps too long overflow; the optimiser shortens them
                value += self._add(batch, weights, totals, gradient.reshape(-1, self._outputs))
            if on_batch is not None:
                on_batch(batch, self._stats(totals))
        if totals.weight == 0:
            raise DataError(
                f"{totals.rows} rows of no weight are nothing to learn from; give rows, or positive weights"
            )
        value = self._level(value, gradient, asked)
        if not self._loss.smoothed:  # else the figures are of another loss than the one descended
            totals.sums[LOSS] = value
        none = np.zeros(1)
        self._search.tell(Sums(np.array([value]), gradient, totals.weight, none, none, 0.0))
        self._check(epoch)
        if np.array_equal(self._search.best, asked):
            self._best, self._value, self._slope = totals, value, gradient
        return self._stats(self._best)

    def evaluate(self, batches: Iterable[Batch], *, on_scores: OnScores | None = None) -> EpochStats:
        """Measure the best weights on batches without learning from them; ``on_scores`` hears the scores of all rows."""
        return measure_weights(self.spec, self.weights, batches, names=self.names, on_scores=on_scores)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that training depends on between epochs, as arrays."""
        return {
            **self._search.state(),
            "slope": self._slope,
            "totals": np.array([self._best.rows, *self._best.sums]),
            "value": np.array([self._value]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state as if there had been no break, to the last bit."""
        told = np.asarray(state.get("totals", ()), np.float64)
        if told.shape != (1 + TOTALS,) or "slope" not in state:
            raise ModelFileError("the state is not of full passes; resume with the solver it was saved with")
        self._search.restore(state)
        self._slope = np.array(state["slope"], np.float64)
        self._value = float(state.get("value", told[1 + LOSS :])[0])  # older states have one loss, the one descended
        self._best = kernels.Totals()
        self._best.rows = int(told[0])
        self._best.sums[:] = told[1:]

    def _add(self, batch: Batch, weights: Weights, totals: kernels.Totals, gradient: Doubles) -> float:
        """Add a batch's figures and gradient (width + 1, outputs) at the weights; return the loss that is descended."""
        if batch.y is None:
            raise LabelError("the batch has no labels; name the label column when opening the data")
        if not isinstance(batch.x, Csr) and batch.width != weights.width:
            self._refuse(batch)
        totals.start(batch)
        weighted = batch if self._class_weights is None else self._class_weights.weigh(batch)
        figures, sound, spread = np.zeros((4, 1)), True, not self._loss.classifies
        add = _add_many if self._loss.many else _add_tile
        try:
            for tile, share in _tiles(weighted, self._outputs):
                add(tile, share, weights, self._loss, figures, gradient)
                totals.sums[WEIGHT] += share.sum(dtype=np.float64)
                sound = sound and bool((share >= 0).all())
                if spread:
                    _add_spread(tile, share, totals)
        except FeatureError:
            self._refuse(batch)
            raise
        if not (sound and np.isfinite(figures).all()):
            self._refuse(batch)
        gradient[-1] += figures[1]
        totals.sums[LOSS] += figures[2, 0]
        totals.sums[HITS] += figures[3, 0]
        return float(figures[0, 0])

    def _level(self, value: float, gradient: Doubles, asked: Doubles) -> float:
        """Where the loss bends by less than its sum can show, take its difference from the slopes at both ends.

        The loss is convex, so along the step it moves by something between its two slopes.
        """
        step = asked - self._search.best
        ends = float(np.vdot(self._slope, step)), float(np.vdot(gradient, step))
        if self._best.rows and abs(ends[1] - ends[0]) <= _UNSEEN * self._value:
            return self._value + sum(ends) / 2
        return value

    def _check(self, epoch: int) -> None:
        passes = int(self._search.evaluations[0])
        # L-BFGS that gives up before its last try was promised less by the slope than float32 can show: it is done.
        if self._search.failed[0] and not 1 < passes <= self._tries:
            what = "the loss is not finite at the start" if passes == 1 else "no step led to a lower loss"
            raise diverged(
                what, epoch=epoch, learning_rate=self._rate, chosen=self.spec.chosen_rate, scaled=self.spec.scaled
            )

    def _refuse(self, batch: Batch) -> None:
        """Raise for what is wrong with a batch's data; weights of zero leave nothing else to be found."""
        zeros = Weights.zeros(self.weights.width, self._outputs)
        measure_weights(self.spec, zeros, [batch], names=self.names)

    def _stats(self, totals: kernels.Totals) -> EpochStats:
        passes = int(self._search.evaluations[0])
        return EpochStats(
            totals.loss(), self._loss.metric, totals.score(self._loss), totals.rows, totals.weight, passes
        )


def _weights(at: Doubles, outputs: int) -> Weights:
    """Return the weights of an optimiser's vector, those of a feature side by side, as sparse rows want them."""
    w = at.reshape(-1, outputs).astype(np.float32)
    return Weights(w[:-1].T, w[-1].copy())


def _tiles(batch: Batch, outputs: int) -> Iterator[tuple[Batch, Floats]]:
    """Yield a batch in tiles, each with its rows' weights."""
    rows = _SPARSE_ROWS // outputs if isinstance(batch.x, Csr) else _TILE // (batch.width + outputs)
    rows = max(rows // RUN, 1) * RUN
    for start in range(0, len(batch), rows):
        tile = batch.slice(start, min(start + rows, len(batch)))
        yield tile, _ONES[: len(tile)] if tile.weight is None else tile.weight


def _add_tile(tile: Batch, share: Floats, weights: Weights, loss: Loss, figures: Doubles, gradient: Doubles) -> None:
    """Add what a tile's rows come to, by their weights, to figures (4, 1) as of `full.bend_tile` and to the gradient."""
    z = kernels.scores(tile, weights)
    bend_tile(loss, z, tile.y, share, share, _NO_BIAS, figures)  # rows are measured by the weights they train with
    if isinstance(tile.x, Csr):
        turn(tile.x.indptr, tile.x.indices, tile.x.values, z[:, 0], share, gradient[:, 0])
        return
    found = tile.x.T @ z
    if not np.isfinite(found).all():
        # A row of weight zero may hold anything, and zero times infinity is not zero.
        found = tile.x[share > 0].T @ z[share > 0]
    gradient[:-1] += found


def _add_many(tile: Batch, share: Floats, weights: Weights, _: Loss, figures: Doubles, gradient: Doubles) -> None:
    """Add what a tile's rows come to under softmax, as `_add_tile` does."""
    loss, right = add_classes(tile, share, weights, gradient)
    figures[[0, 2, 3], 0] += loss, loss, right


def add_classes(tile: Batch, share: Floats, weights: Weights, gradient: Doubles | None) -> tuple[float, float]:
    """Return the loss and the right answers of a tile's rows under softmax; add to the gradient, if there is one."""
    x, slope = tile.x, np.zeros(len(weights.intercept)) if gradient is None else gradient[-1]
    with np.errstate(all="ignore"):  # weights too large overflow; the optimiser goes back
        # A class's scores lie side by side, so that loops over rows vectorise.
        if isinstance(x, Csr):
            z, bias = np.ascontiguousarray(kernels.scores(tile, weights).T), np.zeros_like(weights.intercept)
        else:
            z, bias = weights.coef @ x.T, weights.intercept
        loss, right = softmax_run(z, tile.y, share, bias, slope)
        if gradient is None:
            return loss, right
        if isinstance(x, Csr):
            times_turned(x.indptr, x.indices, x.values, 0, np.ascontiguousarray(z.T), share, gradient[:-1])
            return loss, right
        found = x.T @ z.T
        if not np.isfinite(found).all():
            found = x[share > 0].T @ z[:, share > 0].T  # as in `_add_tile`
        gradient[:-1] += found
    return loss, right


def _add_spread(tile: Batch, share: Floats, totals: kernels.Totals) -> None:
    """Add what R² needs to know of the labels; those of weight zero may be anything."""
    assert tile.y is not None  # as the batch had labels
    heavy = share > 0
    apart, mass = tile.y[heavy].astype(np.float64) - totals.sums[PIVOT], share[heavy].astype(np.float64)
    totals.sums[SHIFTED] += mass @ apart
    totals.sums[SHIFTED2] += mass @ apart**2


@kernel
def turn(indptr: Any, indices: Any, values: Any, slopes: Any, share: Any, gradient: Any) -> None:
    """Add sparse rows by their slopes to the gradient; rows of no weight may hold anything."""
    for i in range(len(slopes)):
        if share[i] > ZERO:
            slope = slopes[i]
            for e in range(indptr[i], indptr[i + 1]):
                gradient[indices[e]] += values[e] * slope
