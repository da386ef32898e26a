"""Rows copied from place to place, whatever they hold: the loops behind `Records`.

Fixed-width rows are seen as runs of machine words, so that one compiled loop serves every type. Each kernel has a
NumPy twin, its specification. A slot of `SKIP` means that the row is not wanted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from penstock.native import kernel, pointer, prefetch_line

SKIP = np.uint32(0xFFFFFFFF)
# Destinations are anywhere in memory: they are asked for this many rows before they are written.
_AHEAD = 16
# Rows of many columns that are asked for together, and stay in the nearest cache until all their columns are copied.
_TOGETHER = 32


def words(column: NDArray[Any]) -> NDArray[Any]:
    """Return a C-contiguous column as rows of the widest unsigned words that fit, sharing its memory.

    Examples
    --------
    >>> words(np.zeros((5, 3), np.float32)).shape, words(np.zeros(5, np.int64)).dtype.name
    ((5, 3), 'uint64')
    """
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    flat = column.reshape(-1).view(np.dtype(f"u{size}"))
    return flat.reshape(len(column), width // size)


def take_rows(column: NDArray[Any], picks: NDArray[np.integer]) -> NDArray[Any]:
    """Return the rows picked as a copy, without holding the GIL.

    Examples
    --------
    >>> take_rows(np.array([10, 11, 12]), np.array([2, 2, 0])).tolist()
    [12, 12, 10]
    """
    if column.dtype == object or not column.flags.c_contiguous or not column.size:
        some: NDArray[Any] = column[picks]
        return some
    out = np.empty((len(picks), *column.shape[1:]), column.dtype)
    gather(words(column), np.ascontiguousarray(picks, np.int64), words(out))
    return out


def put_rows(column: NDArray[Any], slots: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """Copy row ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    if column.dtype == object or not column.size:
        scatter_reference(column, slots, out)
    else:
        scatter(words(np.ascontiguousarray(column)), slots, words(out))


def move_rows(column: NDArray[Any], picks: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
    """Copy row ``picks[i]`` to ``out[places[i]]``."""
    if column.size:
        move(words(column), picks, words(out), places)


@kernel
def move(rows: Any, picks: Any, out: Any, places: Any) -> None:
    """Copy row ``picks[i]`` to ``out[places[i]]``."""
    width = rows.shape[1]
    flat = rows.reshape(-1)
    for i in range(len(picks)):
        if i + _AHEAD < len(picks):
            prefetch_line(flat, picks[i + _AHEAD] * width)
        p, q = picks[i], places[i]
        for j in range(width):
            out[q, j] = rows[p, j]


def move_reference(rows: NDArray[Any], picks: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64]) -> None:
    """Say what `move` does."""
    out[places] = rows[picks]


@kernel
def gather(rows: Any, picks: Any, out: Any) -> None:
    """Copy row ``picks[i]`` to ``out[i]``."""
    width = rows.shape[1]
    for i in range(len(picks)):
        p = picks[i]
        for j in range(width):
            out[i, j] = rows[p, j]


def gather_reference(rows: NDArray[Any], picks: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Say what `gather` does."""
    out[:] = rows[picks]


@kernel
def gather_columns(rows: Any, picks: Any, starts: Any, widths: Any, to: Any) -> None:
    """Copy words ``starts[c]`` to ``starts[c] + widths[c]`` of row ``picks[i]`` to row ``i`` of the column at address ``to[c]``."""
    count, row_words = len(picks), rows.shape[1]
    flat = rows.reshape(-1)
    line = 64 // rows.itemsize
    for i in range(min(_TOGETHER, count)):
        for j in range(0, row_words, line):
            prefetch_line(flat, picks[i] * row_words + j)
    for first in range(0, count, _TOGETHER):
        last = min(first + _TOGETHER, count)
        for i in range(last, min(last + _TOGETHER, count)):
            for j in range(0, row_words, line):
                prefetch_line(flat, picks[i] * row_words + j)
        for c in range(len(starts)):
            width, start = widths[c], starts[c]
            out = carray(pointer(to[c]), (count * width,), rows.dtype)
            for i in range(first, last):
                for j in range(width):
                    out[i * width + j] = flat[picks[i] * row_words + start + j]


def gather_columns_reference(
    rows: NDArray[Any],
    picks: NDArray[np.int64],
    starts: NDArray[np.int64],
    widths: NDArray[np.int64],
    out: list[NDArray[Any]],
) -> None:
    """Say what `gather_columns` does."""
    for column, start, width in zip(out, starts, widths, strict=True):
        column[:] = rows[picks, start : start + width]


@kernel
def scatter(rows: Any, slots: Any, out: Any) -> None:
    """Copy row ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    width = rows.shape[1]
    flat = out.reshape(-1)
    for i in range(len(slots)):
        if i + _AHEAD < len(slots) and slots[i + _AHEAD] != SKIP:
            prefetch_line(flat, np.int64(slots[i + _AHEAD]) * width)
        slot = slots[i]
        if slot != SKIP:
            for j in range(width):
                out[slot, j] = rows[i, j]


def scatter_reference(rows: NDArray[Any], slots: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """Say what `scatter` does."""
    kept = slots != SKIP
    out[slots[kept]] = rows[kept]


@kernel
def gather_runs(values: Any, starts: Any, offsets: Any, out: Any) -> None:
    """Copy the run that begins at ``starts[i]`` to ``out[offsets[i]:offsets[i + 1]]``."""
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        for j in range(offsets[i], offsets[i + 1]):
            out[j] = values[shift + j]


def gather_runs_reference(
    values: NDArray[Any], starts: NDArray[np.int64], offsets: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Say what `gather_runs` does."""
    for start, low, high in zip(starts, offsets[:-1], offsets[1:]):
        out[low:high] = values[start : start + high - low]
