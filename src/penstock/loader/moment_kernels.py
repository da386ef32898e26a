"""Sums over the values of features, and the scale of sparse ones that follows from them, in compiled loops.

Of dense rows NumPy would write every value twice in double precision to add up its square. A hashed column may have millions of features and a block a few thousand entries: work by NumPy over arrays of the full width,
or entry by entry with `numpy.add.at`, would take longer than learning from the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel


@kernel
def add_moments(indices: Any, values: Any, first: int, counts: Any, squares: Any) -> None:
    """Add each entry of a feature from ``first`` on to the feature's number of values that are not 0, and to its sum of squares."""
    for k in range(len(indices)):
        j = indices[k]
        if j >= first:
            value = np.float64(values[k])
            counts[j] += np.float64(value != 0.0)
            squares[j] += value * value


def add_moments_reference(indices: Any, values: Any, first: int, counts: Any, squares: Any) -> None:
    """Do what `add_moments` does, plainly."""
    chosen = indices >= first
    columns, numbers = indices[chosen], values[chosen].astype(np.float64)
    np.add.at(counts, columns, numbers != 0)
    np.add.at(squares, columns, numbers * numbers)


@kernel
def add_dense_moments(x: Any, origin: Any, missing: Any, sums: Any, squares: Any) -> None:
    """Add rows of dense features, less an origin, to the sums of values and of squares, and count those that are NaN."""
    width = x.shape[1]
    for i in range(len(x)):
        for j in range(width):
            value = np.float64(x[i, j]) - origin[j]
            there = value == value
            missing[j] += np.float64(not there)
            value = value if there else 0.0
            sums[j] += value
            squares[j] += value * value


def add_dense_moments_reference(x: Any, origin: Any, missing: Any, sums: Any, squares: Any) -> None:
    """Do what `add_dense_moments` does, plainly."""
    centered = x - origin
    there = ~np.isnan(centered)
    missing += np.count_nonzero(~there, axis=0)
    centered[~there] = 0
    sums += centered.sum(axis=0)
    squares += (centered**2).sum(axis=0)


@kernel
def inverse_sizes(squares: Any, counts: Any, rows: float, scale: Any) -> None:
    """Write one over each feature's root mean square, over ``rows`` rows or, where that is 0, over its values that are not 0.

    A feature without such values has scale 0.
    """
    for j in range(len(squares)):
        square = squares[j]
        scale[j] = (
            np.float32(0.0) if square <= 0.0 else np.float32(np.sqrt((rows if rows > 0.0 else counts[j]) / square))
        )


def inverse_sizes_reference(squares: Any, counts: Any, rows: float, scale: Any) -> None:
    """Do what `inverse_sizes` does, plainly."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale[:] = np.where(squares > 0, np.sqrt((rows if rows > 0 else counts) / squares), 0.0)
