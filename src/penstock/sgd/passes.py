"""Training by full passes, L-BFGS or plain gradient descent, with the face of `loop.Trainer`.

An epoch is one pass over all rows, in whatever order, at the weights that the optimiser asks for; it is told sums
alone. The first pass is made at weights of zero, and later ones may be at weights that turn out worse: the model, and
what an epoch's figures tell, are the best weights so far. For one config the kernels of `full` are driven here, since
`full.sums` makes room for many side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.errors import DataError, FeatureError, LabelError, ModelFileError, UnknownOptionError
from penstock.native import kernel
from penstock.sgd import kernels
from penstock.sgd.faults import Names, diverged
from penstock.sgd.full import Doubles, Sums, bend_tile
from penstock.sgd.lbfgs import RETRIES, Descent, Lbfgs, Optimiser
from penstock.sgd.loop import EpochStats, OnBatch, Spec, Trainer
from penstock.sgd.losses import Loss
from penstock.sgd.model import Weights
from penstock.sgd.scalar import HITS, LOSS, PIVOT, SHIFTED, SHIFTED2, TOTALS, WEIGHT, ZERO
from penstock.sgd.smooth import RUN, smooth

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
    solver : str
        ``"lbfgs"``, or ``"gd"`` for gradient descent at a fixed rate.
    tolerance : float
        The optimiser is done when no entry of the gradient is larger.
    names : Names
        How errors name rows and features.

    Attributes
    ----------
    spec : Spec
        As given.

    Examples
    --------
    >>> from penstock.sgd.rates import Constant
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> batch, trainer = Batch(x, 2 * x[:, 0] + 1), FullTrainer(Spec("squared", Constant(1.0)), width=1)
    >>> epoch = 0
    >>> while not trainer.done:
    ...     stats = trainer.run_epoch([batch], epoch)
    ...     epoch += 1
    >>> trainer.weights.coef.round(3), trainer.weights.intercept.round(3), round(stats.score, 3)
    (array([[2.]], dtype=float32), array([1.], dtype=float32), 1.0)
    """

    def __init__(
        self, spec: Spec, width: int, *, solver: str = "lbfgs", tolerance: float = 1e-4, names: Names | None = None
    ) -> None:
        if solver not in SOLVERS:
            raise UnknownOptionError.of("solver", solver, SOLVERS)
        self.spec = spec
        self.names = names or Names()
        self._loss: Loss = smooth(spec.loss)
        self._rate = spec.rate.at(0, 0)
        make: Any = partial(Lbfgs, smallest_fall=_SMALLEST_FALL) if solver == "lbfgs" else Descent
        self._search: Optimiser = make(
            np.zeros((width + 1, 1)),
            l1=spec.l1,
            l2=spec.l2,
            rate=self._rate,
            tolerance=tolerance,
            intercept=spec.intercept,
        )
        self._tries = RETRIES if solver == "lbfgs" else 0
        self._best, self._slope = kernels.Totals(), np.zeros((width + 1, 1))

    @property
    def weights(self) -> Weights:
        """The best weights so far, zero before the first epoch; a copy."""
        return _weights(self._search.best)

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
            epoch, or an earlier one's where it was no better. What ``on_batch`` hears is of this epoch's weights.

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
        weights, totals, gradient = _weights(asked), kernels.Totals(), np.zeros_like(asked)
        for batch in batches:
            with np.errstate(all="ignore"):  # steps too long overflow; the optimiser shortens them
                self._add(batch, weights, totals, gradient)
            if on_batch is not None:
                on_batch(batch, self._stats(totals))
        if totals.weight == 0:
            raise DataError(
                f"{totals.rows} rows of no weight are nothing to learn from; give rows, or positive weights"
            )
        self._level(totals, gradient, asked)
        none = np.zeros(1)
        self._search.tell(Sums(totals.sums[LOSS : LOSS + 1].copy(), gradient, totals.weight, none, none, 0.0))
        self._check(epoch)
        if np.array_equal(self._search.best, asked):
            self._best, self._slope = totals, gradient
        return self._stats(self._best)

    def evaluate(self, batches: Iterable[Batch]) -> EpochStats:
        """Measure the best weights on batches without learning from them."""
        return self._measured(self.weights, batches)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that training depends on between epochs, as arrays."""
        return {
            **self._search.state(),
            "slope": self._slope,
            "totals": np.array([self._best.rows, *self._best.sums]),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state as if there had been no break, to the last bit."""
        told = np.asarray(state.get("totals", ()), np.float64)
        if told.shape != (1 + TOTALS,) or "slope" not in state:
            raise ModelFileError("the state is not of full passes; resume with the solver it was saved with")
        self._search.restore(state)
        self._slope = np.array(state["slope"], np.float64)
        self._best = kernels.Totals()
        self._best.rows = int(told[0])
        self._best.sums[:] = told[1:]

    def _add(self, batch: Batch, weights: Weights, totals: kernels.Totals, gradient: Doubles) -> None:
        """Add a batch's loss, right answers and gradient at the weights."""
        if batch.y is None:
            raise LabelError("the batch has no labels; name the label column when opening the data")
        totals.start(batch)
        figures, sound, spread = np.zeros((4, 1)), True, self._loss.metric == "r2"
        try:
            for tile, share in _tiles(batch):
                _add_tile(tile, share, weights, self._loss, figures, gradient)
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
        totals.sums[LOSS] += figures[0, 0]
        totals.sums[HITS] += 0 if spread else figures[3, 0]

    def _level(self, totals: kernels.Totals, gradient: Doubles, asked: Doubles) -> None:
        """Where the loss bends by less than its sum can show, take its difference from the slopes at both ends.

        The loss is convex, so along the step it moves by something between its two slopes.
        """
        step = asked - self._search.best
        ends = float(np.vdot(self._slope, step)), float(np.vdot(gradient, step))
        kept = self._best.sums[LOSS]
        if self._best.rows and abs(ends[1] - ends[0]) <= _UNSEEN * kept:
            totals.sums[LOSS] = kept + sum(ends) / 2

    def _check(self, epoch: int) -> None:
        passes = int(self._search.evaluations[0])
        # L-BFGS that gives up before its last try was promised less by the slope than float32 can show: it is done.
        if self._search.failed[0] and not 1 < passes <= self._tries:
            what = "the loss is not finite at weights of zero" if passes == 1 else "no step led to a lower loss"
            raise diverged(what, epoch=epoch, learning_rate=self._rate)

    def _refuse(self, batch: Batch) -> None:
        """Raise for what is wrong with a batch's data; weights of zero leave nothing else to be found."""
        self._measured(Weights.zeros(len(self._search.best) - 1), [batch])

    def _measured(self, weights: Weights, batches: Iterable[Batch]) -> EpochStats:
        trainer = Trainer(self.spec, weights.width, names=self.names)
        trainer.weights = weights
        return trainer.evaluate(batches)

    def _stats(self, totals: kernels.Totals) -> EpochStats:
        passes = int(self._search.evaluations[0])
        return EpochStats(
            totals.loss(), self._loss.metric, totals.score(self._loss), totals.rows, totals.weight, passes
        )


def _weights(at: Doubles) -> Weights:
    w = at[:, 0].astype(np.float32)
    return Weights(w[None, :-1].copy(), w[-1:].copy())


def _tiles(batch: Batch) -> Iterator[tuple[Batch, Floats]]:
    """Yield a batch in tiles, each with its rows' weights."""
    rows = _SPARSE_ROWS if isinstance(batch.x, Csr) else max(_TILE // (batch.width + 1) // RUN, 1) * RUN
    for start in range(0, len(batch), rows):
        tile = batch.slice(start, min(start + rows, len(batch)))
        yield tile, _ONES[: len(tile)] if tile.weight is None else tile.weight


def _add_tile(tile: Batch, share: Floats, weights: Weights, loss: Loss, figures: Doubles, gradient: Doubles) -> None:
    """Add what a tile's rows come to, by their weights, to figures (4, 1) as of `full.bend_tile` and to the gradient."""
    z = kernels.scores(tile, weights)
    bend_tile(loss.code, z, tile.y, share, share, _NO_BIAS, figures)  # rows are measured by the weights they train with
    if isinstance(tile.x, Csr):
        turn(tile.x.indptr, tile.x.indices, tile.x.values, z[:, 0], share, gradient[:, 0])
        return
    found = tile.x.T @ z
    if not np.isfinite(found).all():
        # A row of weight zero may hold anything, and zero times infinity is not zero.
        found = tile.x[share > 0].T @ z[share > 0]
    gradient[:-1] += found


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
