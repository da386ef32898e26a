"""A quick fit on the sample: what the defaults reach on sampled rows that the fit has not seen, beside a constant prediction.

It tells before any training whether the features tell anything of the label. The rows are few, so it is no forecast to the
digit: a training on all rows learns more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.blocks.memory import ArraySource
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.evaluation import evaluate
from penstock.memory_learner import linear_job
from penstock.metric_names import title, useless_reason
from penstock.sgd.losses import loss_of
from penstock.solvers import WIDEST
from penstock.training import Columns

_TEST_SHARE = 0.25
_LEAST_TESTED = 30
"""Rows of a test below which its figures are mostly chance."""
_MOST_WORK = 20_000_000
"""Rows times numbers to a row times outputs that are fitted at most, which keeps the fit below a second or so."""
_PASSES = 30


@dataclass(frozen=True, slots=True)
class QuickFit:
    """What a fit on sampled rows reached: ``accuracy``, or ``r2`` of a regression, on rows that it had not seen.

    ``constant`` is what a constant prediction reaches there: the share of the largest class, or 0. ``better`` says whether the
    fit is better than that, by its log loss too; see `penstock.metric_names.useless_reason`.
    """

    metric: str
    score: float
    constant: float
    rows: int
    tested_rows: int
    better: bool

    def __str__(self) -> str:
        constant = "the largest class alone has" if self.metric == "accuracy" else "the mean of the label has"
        return (
            f"quick fit on {self.rows:,} sampled rows: {title(self.metric)} {self.score:.3f} on {self.tested_rows:,} others,"
            f" where {constant} {self.constant:.3f}"
        )


def quick_fit(parts: Sequence[Batch], model: str, *, outputs: int, seed: int) -> QuickFit | str:
    """Fit a model to three quarters of some rows by the solver of few rows, and measure it on the others.

    Returns the reason, in words, where there is nothing to measure.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 400, dtype=np.float32)[:, None]
    >>> fit = quick_fit([Batch(x, np.sign(x[:, 0]))], "logistic", outputs=1, seed=0)
    >>> fit.score > 0.9, round(fit.constant, 1), fit.tested_rows
    (True, 0.5, 100)
    """
    rows = sum(map(len, parts))
    if not rows or parts[0].y is None:
        return "there is no label to fit" if rows else "there are no rows"
    batch = _narrow(Batch.concat(parts))
    entries = len(batch.x.values) / rows if isinstance(batch.x, Csr) else batch.width
    picks = seeds.generator(seed, "explain", "fit").permutation(rows)
    picks = picks[: int(_MOST_WORK / max(1.0, entries * outputs))]
    tested = int(len(picks) * _TEST_SHARE)
    if tested < _LEAST_TESTED:
        return f"{rows:,} rows of the sample are too few"
    config = Config(
        model=model, solver="exact" if loss_of(model).exact and batch.width <= WIDEST else "lbfgs", epochs=_PASSES
    )
    columns = Columns("label", weight=None if batch.weight is None else "weight")
    try:
        with ArraySource(batch.take(picks[tested:])) as source, ArraySource(batch.take(picks[:tested])) as test:
            fitted = linear_job(source, replace(config, validation=0.0), columns).run()
            figures = evaluate(fitted, test)
    except PenstockError as error:
        return str(error)
    metric, constant = "r2", 0.0
    if loss_of(model).classifies:
        counts = np.sum(figures["confusion_matrix"], axis=1)
        metric, constant = "accuracy", float(counts.max() / counts.sum())
    better = useless_reason({f"test_{name}": value for name, value in figures.items()}) is None
    return QuickFit(metric, float(figures[metric]), constant, len(picks) - tested, tested, better)


def _narrow(batch: Batch) -> Batch:
    """Return sparse rows with their features numbered anew, those of the sample alone: there may be far more."""
    if not isinstance(batch.x, Csr):
        return batch
    known, indices = np.unique(batch.x.indices, return_inverse=True)
    x = Csr(batch.x.indptr, indices.astype(np.uint32), batch.x.values, max(1, len(known)))
    return replace(batch, x=x)
