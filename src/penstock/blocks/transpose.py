"""The loops that turn columns into rows: transpose, scatter into slots, and join sparse parts row by row.

Each kernel has a NumPy twin, its specification. A slot of `SKIP` means that the row is not wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Csr, Floats, Indices, indices_of
from penstock.copying import SKIP as SKIP
from penstock.errors import UsageError
from penstock.native import kernel

_TILE = 32


@kernel
def transpose(columns: Any, out: Any, at: Any) -> None:
    """Write columns (one per row of the first array) into ``out[:, at:]``, a tile of rows at a time."""
    count, rows = columns.shape
    for start in range(0, rows, _TILE):
        stop = min(start + _TILE, rows)
        for column in range(count):
            for row in range(start, stop):
                out[row, at + column] = columns[column, row]


def transpose_reference(columns: Floats, out: Floats, at: int) -> None:
    """Do the same in NumPy."""
    out[:, at : at + len(columns)] = columns.T


@kernel
def scatter_rows(rows: Any, slots: Any, out: Any) -> None:
    """Copy row ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    width = rows.shape[1]
    for row in range(len(slots)):
        slot = slots[row]
        if slot != SKIP:
            for column in range(width):
                out[slot, column] = rows[row, column]


def scatter_rows_reference(rows: Floats, slots: NDArray[np.uint32], out: Floats) -> None:
    """Do the same in NumPy."""
    kept = slots != SKIP
    out[slots[kept]] = rows[kept]


@kernel
def scatter_values(values: Any, slots: Any, out: Any) -> None:
    """Copy value ``i`` to ``out[slots[i]]``, unless its slot says to skip it."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot != SKIP:
            out[slot] = values[row]


def scatter_values_reference(values: Floats, slots: NDArray[np.uint32], out: Floats) -> None:
    """Do the same in NumPy."""
    kept = slots != SKIP
    out[slots[kept]] = values[kept]


@kernel
def copy_part(indptr: Any, indices: Any, values: Any, base: Any, ends: Any, out_indices: Any, out_values: Any) -> None:
    """Append one sparse part's entries to each row; ``ends`` says how far each row is filled, and is moved on."""
    for row in range(len(indptr) - 1):
        to = ends[row]
        for entry in range(indptr[row], indptr[row + 1]):
            out_indices[to] = indices[entry] + base
            out_values[to] = values[entry]
            to += np.uint64(1)
        ends[row] = to


def copy_part_reference(
    indptr: NDArray[np.uint64],
    indices: Indices,
    values: Floats,
    base: np.uint32 | np.uint64,
    ends: NDArray[np.uint64],
    out_indices: Indices,
    out_values: Floats,
) -> None:
    """Do the same in NumPy."""
    lengths = np.diff(indptr)
    to = np.arange(len(indices), dtype=np.uint64) + np.repeat(ends - indptr[:-1], lengths.astype(np.int64))
    out_indices[to] = indices + base
    out_values[to] = values
    ends += lengths


def join_parts(parts: Sequence[Csr], *, wide: bool = False) -> Csr:
    """Set sparse parts of the same rows side by side, each in its own range of indices."""
    if wide and sum(part.width for part in parts) > 1 << 64:
        raise UsageError(
            f"the columns make {sum(part.width for part in parts)} features together, more than the 2^64 that indices"
            " can tell apart; hash to fewer bits"
        )
    indptr = np.zeros_like(parts[0].indptr)
    for part in parts:
        indptr += part.indptr
    ends = indptr[:-1].copy()
    indices = indices_of(int(indptr[-1]), wide=wide)
    values = np.empty(int(indptr[-1]), np.float32)
    base = 0
    for part in parts:
        copy_part(part.indptr, part.indices, part.values, indices.dtype.type(base), ends, indices, values)
        base += part.width
    return Csr(indptr, indices, values, base)
