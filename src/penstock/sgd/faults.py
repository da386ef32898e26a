"""Why a kernel stopped at a row: something in the data, or a training that left the finite numbers.

The row is searched for what cannot be used, and the error names it. Whoever made the batch can lend better
names (a file's row, a column) through `Names`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.batch import Batch, Csr
from penstock.errors import DataError, DivergedError, FeatureError, LabelError, PenstockError
from penstock.messages import LeaveOut, Text, Use

_USUAL_RATE = 0.1


def _row(batch: Batch, position: int) -> str:
    return f"row {position} of the batch" if batch.rows is None else f"row {int(batch.rows[position])}"


def _feature(index: int) -> str:
    return f"feature {index}"


@dataclass(frozen=True, slots=True)
class Names:
    """How messages name a row, given its batch and position, and a feature, given its index.

    Examples
    --------
    >>> names = Names(feature=lambda index: f"column {'abc'[index]!r}")
    >>> names.feature(1)
    "column 'b'"
    >>> names.row(Batch(np.zeros((2, 3), np.float32)), 1)
    'row 1 of the batch'
    """

    row: Callable[[Batch, int], str] = _row
    feature: Callable[[int], str] = _feature


def data_fault(batch: Batch, position: int, *, width: int, outputs: int, names: Names) -> PenstockError | None:
    """Return the error for what is wrong with a row's data, or None where nothing is.

    Examples
    --------
    >>> batch = Batch(np.array([[1.0, np.nan]], np.float32), np.ones(1, np.float32))
    >>> data_fault(batch, 0, width=2, outputs=1, names=Names())
    FeatureError('row 0 of the batch has nan in feature 1; mend such values, or leave such rows out')
    """
    if isinstance(batch.x, Csr):
        start = int(batch.x.indptr[position])
        beyond = np.flatnonzero(batch.x.indices[start:] >= width)
        if len(beyond):  # kernels check indices many rows at a time, so the row may be a later one
            place = start + int(beyond[0])
            position = int(np.searchsorted(batch.x.indptr, place, side="right")) - 1
            return FeatureError(
                f"{names.row(batch, position)} has a value for feature {int(batch.x.indices[place])}, but the model has"
                f" {width} features, numbered from 0; give the number of features when opening the data"
            )
        stop = int(batch.x.indptr[position + 1])
        indices, values = batch.x.indices[start:stop], batch.x.values[start:stop]
    else:
        indices, values = np.arange(width, dtype=np.uint32), batch.x[position]
    row = names.row(batch, position)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        return FeatureError(
            f"{row} has {values[bad[0]]} in {names.feature(int(indices[bad[0]]))};"
            " mend such values, or leave such rows out"
        )
    if batch.y is not None:
        y = float(batch.y[position])
        if not np.isfinite(y):
            return LabelError(f"{row} has {y} as its label; leave such rows out")
        if outputs > 1 and not 0 <= y < outputs:
            return LabelError(f"{row} has class {y:g}, but the model has {outputs} classes, numbered from 0")
    if batch.weight is not None:
        weight = float(batch.weight[position])
        if not (np.isfinite(weight) and weight >= 0):
            return DataError(f"{row} has the weight {weight}; weights must be finite and not negative")
    return None


def diverged(what: str, *, epoch: int, learning_rate: float, chosen: bool, scaled: bool) -> DivergedError:
    """Return the error for a training that left the finite numbers, with the remedies.

    Steps whose rate was not ``chosen`` by the user are sized by the rows already; ``scaled`` features need no scaling.

    Examples
    --------
    >>> print(diverged("the loss is 1e+30", epoch=1, learning_rate=0.5, chosen=True, scaled=False))
    training diverged in epoch 2 at learning rate 0.5: the loss is 1e+30; leave learning_rate out, and steps are sized by the rows, or use a smaller learning rate (try 0.05) or standardize=True, which brings all features to one scale
    """
    scaling = () if scaled else (" or ", Use("standardize", True), ", which brings all features to one scale")
    leave = [Text(LeaveOut("learning_rate"), ", and steps are sized by the rows")] if chosen else []
    smaller = Text(f"use a smaller learning rate (try {min(learning_rate / 10, _USUAL_RATE):g})", *scaling)
    return DivergedError(
        f"training diverged in epoch {epoch + 1} at learning rate {learning_rate:g}: {what}", fixes=[*leave, smaller]
    )
