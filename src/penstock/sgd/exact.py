"""Least squares in one pass by the normal equations, with the face of `loop.Trainer`.

The pass adds up the products of all columns, features, label and a column of ones, in float64. Dense rows are moved near
their mean first, so that a large mean costs no digits; BLAS multiplies them by the tile. The weights follow from the
products by a Cholesky factorization, or by eigenvectors where features depend on one another; of all solutions that is
the one of smallest norm. Loss and R² follow from the products too, so there is no second pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.errors import DataError, DivergedError, ModelFileError, UsageError
from penstock.measures import OnScores
from penstock.messages import Given, Text, Use
from penstock.native import kernel
from penstock.sgd.faults import Names
from penstock.sgd.full import Doubles
from penstock.sgd.loop import EpochStats, OnBatch, Spec, measure_weights
from penstock.sgd.losses import find_loss
from penstock.sgd.model import Weights
from penstock.sgd.scalar import ZERO
from penstock.solvers import WIDEST

# Numbers in a tile of rows as float64, and the fewest rows to one: each tile reads and writes all products.
_TILE, _FEWEST = 1 << 18, 512
# Sparse rows at least this full are multiplied as dense ones.
_FULL = 0.2
# The share of a feature's square, and of the largest eigenvalue, below which nothing is left but rounding of float32.
_FLAT, _NULL = 1e-13, 1e-12


class ExactTrainer:
    """Learns least squares, with or without an L2 penalty, from one pass over batches.

    It minimizes the weighted mean of ``(score - y)² / 2`` plus ``l2 / 2 |w|²``; the intercept is free of the penalty.

    Parameters
    ----------
    spec : Spec
        The squared loss, the L2 penalty and whether there is an intercept; the rate and the batch size are not used.
    width : int
        The number of features, at most `WIDEST`.
    names : Names
        How errors name rows and features.

    Examples
    --------
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]], np.float32)
    >>> trainer = ExactTrainer(Spec("squared"), width=1)
    >>> stats = trainer.run_epoch([Batch(x, 2 * x[:, 0] + 1)], 0)
    >>> trainer.weights.coef, trainer.weights.intercept, stats.score, trainer.done
    (array([[2.]], dtype=float32), array([1.], dtype=float32), 1.0, True)
    """

    def __init__(self, spec: Spec, width: int, *, names: Names | None = None) -> None:
        if not find_loss(spec.loss).exact:
            raise UsageError(
                "the normal equations are of ",
                Given("loss", "squared"),
                ", not of ",
                Given("loss", spec.loss),
                fixes=["use L-BFGS or SGD"],
            )
        if spec.l1:
            raise UsageError(
                "has no exact solution", option="l1", value=spec.l1, fixes=["use L-BFGS or SGD", Use("l1", 0)]
            )
        if width > WIDEST:
            raise UsageError(f"{width} features are more than the {WIDEST} of an exact solution; use L-BFGS or SGD")
        self.spec = spec
        self.names = names or Names()
        self._weights = Weights.zeros(width)
        self._solved = np.zeros(4)  # rows, weight, loss, R²; no rows before the first epoch

    @property
    def weights(self) -> Weights:
        """The solution, zero before the first epoch; a copy."""
        return self._weights.copy()

    @property
    def model_weights(self) -> Weights:
        """The same: the model takes the solution."""
        return self.weights

    def start(self, weights: Weights) -> None:
        """Do nothing: the solution depends on no start."""

    @property
    def done(self) -> bool:
        """Whether the pass has been made."""
        return bool(self._solved[0])

    def run_epoch(self, batches: Iterable[Batch], epoch: int, *, on_batch: OnBatch | None = None) -> EpochStats:
        """Pass over the batches once and solve for the weights.

        Returns
        -------
        EpochStats
            The loss, without the penalty, and the R² of all rows at the solution. What ``on_batch`` hears before is of the
            best constant, or of no model where there is no intercept.

        Raises
        ------
        FeatureError, LabelError
            A row holds something that is not finite; it is named.
        DataError
            There are no rows, or none has any weight.
        DivergedError
            The solution is too large for float32.
        """
        width = self._weights.width
        products, pivot, rows = np.zeros((width + 2, width + 2), order="F"), np.zeros(width + 1), 0
        for batch in batches:
            if not _fits(batch, width):
                self._refuse(batch)
            if self.spec.intercept and not products[-1, -1]:
                pivot = pivot_of(batch, width)  # rows of no weight left nothing to move
            add_products(batch, pivot, products)
            rows += len(batch)
            if not np.isfinite(products.diagonal()).all():
                self._refuse(batch)
            if on_batch is not None:
                start = np.zeros(width + 2)
                start[-2:] = -1, products[-2, -1] / products[-1, -1] if self.spec.intercept and products[-1, -1] else 0
                on_batch(batch, _stats(_figures(products, start, rows)))
        weight = products[-1, -1]
        if not weight:
            raise DataError(f"{rows} rows of no weight are nothing to learn from; give rows, or positive weights")
        middle = products[:-1, -1] / weight + pivot if self.spec.intercept else pivot
        with np.errstate(all="ignore"):
            coef = solve(products, l2=self.spec.l2, intercept=self.spec.intercept).astype(np.float32)
            # After the weights are rounded, for it then makes up for that.
            intercept = np.float32(middle[-1] - coef.astype(np.float64) @ middle[:-1])
        if not np.isfinite([*coef, intercept]).all():
            fix = Text(Use("standardize", True), " brings features to one scale")
            raise DivergedError(
                "the solution is too large for float32",
                fixes=["divide the label by a constant" if self.spec.scaled else fix],
            )
        offset = float(intercept) + coef.astype(np.float64) @ pivot[:-1] - pivot[-1]
        self._weights = Weights(coef[None], np.array([intercept]))
        self._solved = _figures(products, np.array([*coef, -1, offset], np.float64), rows)
        return _stats(self._solved)

    def evaluate(self, batches: Iterable[Batch], *, on_scores: OnScores | None = None) -> EpochStats:
        """Measure the solution on batches without learning from them; ``on_scores`` hears the scores of all rows."""
        return measure_weights(self.spec, self.weights, batches, names=self.names, on_scores=on_scores)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the solution and its figures, as arrays."""
        return {**self._weights.arrays(), "solved": self._solved.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take a solution over, to the last bit."""
        solved = np.array(state.get("solved", ()), np.float64)
        if solved.shape != self._solved.shape:
            raise ModelFileError("the state is not of an exact solution; resume with the solver it was saved with")
        weights = Weights.from_arrays(state)
        if weights.coef.shape != self._weights.coef.shape:
            raise ModelFileError(
                f"the state is of {weights.outputs} outputs and {weights.width} features, the trainer of 1 and"
                f" {self._weights.width}; resume with the data it was saved with"
            )
        self._weights, self._solved = weights, solved

    def _refuse(self, batch: Batch) -> None:
        """Raise for what is wrong with a batch's data."""
        measure_weights(self.spec, Weights.zeros(self._weights.width), [batch], names=self.names)


def solve(products: Doubles, *, l2: float, intercept: bool) -> Doubles:
    """Return the weights that the normal equations give, in float64.

    Parameters
    ----------
    products : array of shape (d + 2, d + 2)
        Sums over the rows, by their weights, of the products of features, label and ones; only the upper triangle is read.
    l2 : float
        The penalty.
    intercept : bool
        Whether there is an intercept; the weights are then those of centered columns.

    Examples
    --------
    >>> rows = np.array([[0.0, 1.0, 1.0], [2.0, 5.0, 1.0]])
    >>> solve(rows.T @ rows, l2=0.0, intercept=True)
    array([2.])
    """
    from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, qr  # slow to import
    from scipy.linalg.blas import dsyr

    width, weight, squares = len(products) - 2, products[-1, -1], products.diagonal()[:-2]
    centered = np.array(products, order="F")
    if intercept:
        centered = dsyr(-1 / weight, products[:, -1], a=centered, overwrite_a=1)
    live = centered.diagonal()[:-2] > _FLAT * squares  # a constant has no weight
    coef = np.zeros(width)
    if not live.any():
        return coef
    # Of these only the upper triangle is right, and only it is read.
    gram, right = centered[np.ix_(live.nonzero()[0], live.nonzero()[0])], centered[:-2, -2][live] / weight
    del centered
    gram /= weight
    gram[np.diag_indices_from(gram)] += l2
    size = np.sqrt(gram.diagonal())
    gram /= size
    gram /= size[:, None]
    right /= size
    try:
        factor = cholesky(gram)
        if factor.diagonal().min() ** 2 > _NULL:
            coef[live] = cho_solve((factor, False), right) / size
            return coef
        del factor
    except LinAlgError:
        pass  # not positive definite, as rounded
    values, vectors = eigh(gram, lower=False, overwrite_a=True)
    del gram
    kept = values > _NULL * values[-1]
    found = vectors[:, kept] @ (vectors[:, kept].T @ right / values[kept]) / size
    # What the equations leave open is chosen for the smallest norm in the features' own units.
    null, _ = qr(vectors[:, ~kept] / size[:, None], mode="economic", overwrite_a=True)
    coef[live] = found - null @ (null.T @ found)
    return coef


def _figures(products: Doubles, at: Doubles, rows: int) -> Doubles:
    """Return rows, weight, mean loss and R² where residuals are the columns by the numbers ``at``, that of the label -1.

    Products below the diagonal must be zero.
    """
    weight = products[-1, -1]
    if not weight:
        return np.array([rows, 0.0, 0.0, 0.0])
    used = np.flatnonzero(at)
    part, by = products[np.ix_(used, used)] if len(used) < len(at) else products, at[used]
    # The triangle and its mirror image, and the diagonal once.
    residual = max(float(2 * (by @ part @ by) - by**2 @ part.diagonal()), 0.0)
    spread = products[-2, -2] - products[-2, -1] ** 2 / weight
    score = 1 - residual / spread if spread > 0 else float(residual == 0)
    return np.array([rows, weight, residual / weight / 2, score])


def _stats(solved: Doubles) -> EpochStats:
    return EpochStats(float(solved[2]), "r2", float(solved[3]), int(solved[0]), float(solved[1]), 1)


def _fits(batch: Batch, width: int) -> bool:
    """Return whether a batch has labels and features as many as it should."""
    rows = len(batch)
    if batch.y is None or len(batch.y) != rows or (batch.weight is not None and len(batch.weight) != rows):
        return False
    if isinstance(batch.x, Csr):
        return batch.width <= width and not (len(batch.x.indices) and int(batch.x.indices.max()) >= width)
    return batch.width == width


def pivot_of(batch: Batch, width: int) -> Doubles:
    """Return numbers near the means of features and label, whole float32s so that a constant less its own is zero.

    Sparse features stay as they are, for they would not be sparse otherwise.
    """
    assert batch.y is not None  # or it would have been refused
    heavy = np.arange(len(batch)) if batch.weight is None else np.flatnonzero(batch.weight > 0)
    pivot = np.zeros(width + 1, np.float32)
    if not len(heavy):
        return pivot.astype(np.float64)
    some = heavy[: max(_TILE // (width + 1), 1)]
    with np.errstate(all="ignore"):
        pivot[-1] = batch.y[some].mean(dtype=np.float64)
        if not isinstance(batch.x, Csr):
            pivot[:-1] = batch.x[some].mean(axis=0, dtype=np.float64)
    return np.where(np.isfinite(pivot), pivot, ZERO).astype(np.float64)


def add_products(batch: Batch, pivot: Doubles, products: Doubles) -> None:
    """Add a batch's rows, less the pivot, to the upper triangle of the products."""
    from scipy.linalg.blas import dsyrk  # slow to import

    width = len(pivot) - 1
    assert batch.y is not None  # or it would have been refused
    y = np.asarray(batch.y, np.float32)
    share = np.ones(len(batch), np.float32) if batch.weight is None else np.asarray(batch.weight, np.float32)
    x = batch.x
    if isinstance(x, Csr) and len(x.indices) < _FULL * len(x) * width:
        add_pairs(x.indptr, x.indices, x.values, y, share, pivot[-1], products.T)
        return
    rows = max(_TILE // (width + 2), _FEWEST)
    tile = np.empty((min(rows, len(batch)), width + 2))
    for start in range(0, len(batch), rows):
        stop = min(start + rows, len(batch))
        part = _spread(x.slice(start, stop), width) if isinstance(x, Csr) else x[start:stop]
        lay_rows(part, y[start:stop], share[start:stop], pivot, tile)
        # Into its own memory, as Fortran orders it: the tile turned over is one matrix without a copy.
        dsyrk(1.0, tile[: stop - start].T, beta=1.0, c=products, overwrite_c=1)


def _spread(x: Csr, width: int) -> Floats:
    return Csr(x.indptr, x.indices, x.values, width).to_dense()


@kernel
def lay_rows(x: Any, y: Any, share: Any, pivot: Any, tile: Any) -> None:
    """Write rows, labels and ones, less the pivot and by the roots of the rows' weights, into a tile."""
    width = x.shape[1]
    for i in range(len(y)):
        if share[i] == ZERO:  # which may hold anything
            tile[i] = 0.0
            continue
        root = np.sqrt(np.float64(share[i]))
        for j in range(width):
            tile[i, j] = root * (np.float64(x[i, j]) - pivot[j])
        tile[i, width] = root * (np.float64(y[i]) - pivot[width])
        tile[i, width + 1] = root


def lay_rows_reference(x: Floats, y: Floats, share: Floats, pivot: Doubles, tile: Doubles) -> None:
    """Specify `lay_rows`."""
    columns = np.column_stack([x.astype(np.float64) - pivot[:-1], y - pivot[-1], np.ones(len(y))])
    tile[: len(y)] = np.where(share[:, None] == 0, 0, np.sqrt(share.astype(np.float64))[:, None] * columns)


@kernel
def add_pairs(indptr: Any, indices: Any, values: Any, y: Any, share: Any, pivot: float, products: Any) -> None:
    """Add the products of sparse rows' entries, labels less the pivot and ones to the lower triangle."""
    label = products.shape[0] - 2
    for i in range(len(y)):
        weight = np.float64(share[i])
        if weight == 0.0:  # which may hold anything
            continue
        if weight < 0.0:
            weight = np.float64(np.nan)
        target = np.float64(y[i]) - pivot
        for e in range(indptr[i], indptr[i + 1]):
            j, v = indices[e], weight * np.float64(values[e])
            for other in range(indptr[i], e):
                k, product = indices[other], v * np.float64(values[other])
                if k == j:  # a feature named twice is the sum of both
                    products[j, j] += 2.0 * product
                elif k < j:
                    products[j, k] += product
                else:
                    products[k, j] += product
            products[j, j] += v * np.float64(values[e])
            products[label, j] += v * target
            products[label + 1, j] += v
        products[label, label] += weight * target * target
        products[label + 1, label] += weight * target
        products[label + 1, label + 1] += weight


def add_pairs_reference(x: Csr, y: Floats, share: Floats, pivot: float, products: Doubles) -> None:
    """Specify `add_pairs`, for rows that are finite."""
    columns = np.column_stack([_spread(x, len(products) - 2), y.astype(np.float64) - pivot, np.ones(len(y))])
    products += np.tril(columns.T @ (share[:, None].astype(np.float64) * columns))
