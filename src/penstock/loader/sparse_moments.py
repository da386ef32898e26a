"""Sums over the values of sparse features, and the scale that follows from them, in compiled loops.

A hashed column may have millions of features and a block a few thousand entries: work by NumPy over arrays of the full width,
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
