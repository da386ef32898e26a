"""How random a visited order is: rank correlation with the stored order, and the balance of labels over batches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def rank_correlation(visited: Int64s) -> float:
    """Return Spearman's correlation of position with stored row number: 1 for stored order, near 0 for a shuffle."""
    _, inverse, counts = np.unique(visited, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + 1) / 2)[inverse]  # rows visited twice share the mean of their ranks
    if len(counts) == 1:
        return 0.0
    return round(float(np.corrcoef(np.arange(len(visited)), ranks)[0, 1]), 12)


def label_balance(labels: NDArray[np.generic], batch_size: int) -> float:
    """Return the variance of the labels' shares per batch over the binomial's.

    1 is a true shuffle; ``batch_size`` is data sorted by label and not shuffled. With more than two classes,
    variances are summed over the classes. An incomplete last batch is left out.
    """
    batches = len(labels) // batch_size
    assert batches >= 2
    classes, codes = np.unique(labels[: batches * batch_size], return_inverse=True)
    assert len(classes) > 1
    cells = np.repeat(np.arange(batches), batch_size) * len(classes) + codes
    shares = np.bincount(cells, minlength=batches * len(classes)).reshape(batches, -1) / batch_size
    overall = shares.mean(axis=0)
    return float(shares.var(axis=0).sum() / (overall * (1 - overall)).sum() * batch_size)
