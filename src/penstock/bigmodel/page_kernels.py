"""Scores and updates over some of the pages at a time, for rows whose pages do not fit in the pool together.

A row's dot product is a sum, so it can be gathered from one range of pages after another; once it is whole, the update is
handed out range by range as well. The result is that of all pages at once, but for the order in which float32 numbers
are added up. Each loop has a plain twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.native import kernel
from penstock.sgd.adagrad import adagrad_step

ABSENT = np.uint32(0xFFFFFFFF)
"""The position of a feature that does not occur in the data a model was learnt from; its weight is zero."""


@kernel
def page_dots(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, dots: Any
) -> None:
    """Add to each row's dot product what the pages from ``low`` to below ``high``, all in the pool, have of it."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        dot = dots[i]
        for e in range(indptr[i], indptr[i + 1]):
            at = positions[e]
            page = at >> shift
            if at != ABSENT and page >= low and page < high:
                dot += cells[(np.uint32(frame_of[page]) << shift) | (at & mask), 0] * values[e]
        dots[i] = dot


def page_dots_reference(rows: Csr, weights: Floats, dots: Floats) -> None:
    """Add each row's dot product with the weights (by position) to ``dots``; absent features add nothing."""
    for i in range(len(rows)):
        part = slice(int(rows.indptr[i]), int(rows.indptr[i + 1]))
        there = rows.indices[part] != ABSENT
        dots[i] += weights[rows.indices[part][there]] @ rows.values[part][there]


@kernel
def update_pages(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, pushes: Any
) -> None:
    """Take each row's values, times its push, from the weights in the pages from ``low`` to below ``high``."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        push = pushes[i]
        for e in range(indptr[i], indptr[i + 1]):
            page = positions[e] >> shift
            if page >= low and page < high:
                cells[(np.uint32(frame_of[page]) << shift) | (positions[e] & mask), 0] -= push * values[e]


def update_pages_reference(rows: Csr, weights: Floats, pushes: Floats) -> None:
    """Take each row's values, times its push, from the weights (by position)."""
    for i in range(len(rows)):
        part = slice(int(rows.indptr[i]), int(rows.indptr[i + 1]))
        np.subtract.at(weights, rows.indices[part], pushes[i] * rows.values[part])


@kernel
def update_pages_adagrad(
    indptr: Any, positions: Any, values: Any, shift: Any, low: Any, high: Any, frame_of: Any, cells: Any, slopes: Any,
    rate: Any, l2: Any,
) -> None:  # fmt: skip
    """Update the weights, and the accumulators beside them, in the pages from ``low`` to below ``high``."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            page = positions[e] >> shift
            if page >= low and page < high:
                slot = (np.uint32(frame_of[page]) << shift) | (positions[e] & mask)
                g = slopes[i] * values[e] + l2 * cells[slot, 0]
                cells[slot, 0], cells[slot, 1] = adagrad_step(cells[slot, 0], cells[slot, 1], g, rate)


def ranges(pages: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """Split ascending pages into runs of at most so many.

    Examples
    --------
    >>> [run.tolist() for run in ranges(np.array([1, 4, 5, 9, 12]), 2)]
    [[1, 4], [5, 9], [12]]
    """
    return [pages[at : at + most] for at in range(0, len(pages), most)]
