"""The native loops that put rows into a window's slots.

`read_packed` reads blocks of a `PackedLayout` with ``pread`` inside the compiled loop and scatters each row
to its slot while the block is still in the processor's cache: one call per thread and window, no GIL, no
copy of the window. `assemble_csr` does the same for sparse rows that had to be decoded first. Each has a
NumPy twin that says what it means.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from penstock.batch import SKIP, Csr, Floats
from penstock.blocks.base import PackedLayout
from penstock.checksum import checksum_at
from penstock.native import kernel, prefetch_line

# Cache lines of 16 floats are asked for this many rows ahead, the first few of a row (the processor guesses the rest).
_AHEAD, _LINE, _LINES = 16, 16, 4

DONE, READ_FAILED, UNKNOWN_LABEL, BAD_WEIGHT, DAMAGED = 0, 1, 2, 3, 4

# Resolved in the running process's own C library, so the compiled code can be cached on disk.
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64))


@kernel
def order_of_slots(firsts: Any, counts: Any, slots: Any, kept: Any) -> Any:
    """Return the number of the row that each slot is for; rows count on from the first of their block."""
    out = np.empty(kept, np.int64)
    place = 0
    for k in range(len(firsts)):
        for i in range(counts[k]):
            if place + _AHEAD < len(slots) and slots[place + _AHEAD] != SKIP:
                prefetch_line(out, np.int64(slots[place + _AHEAD]))
            if slots[place] != SKIP:
                out[slots[place]] = firsts[k] + i
            place += 1
    return out


def order_of_slots_reference(
    firsts: NDArray[np.int64], counts: NDArray[np.int64], slots: NDArray[np.uint32], kept: int
) -> NDArray[np.int64]:
    """Say what `order_of_slots` does."""
    numbers = np.concatenate([first + np.arange(count) for first, count in zip(firsts, counts, strict=True)])
    out = np.empty(kept, np.int64)
    out[slots[slots != SKIP]] = numbers[slots != SKIP]
    return out


@kernel
def _read(fd: Any, into: Any, least: Any, most: Any, offset: Any) -> Any:
    """Read bytes from an offset on, of which ``least`` have to be there; return whether they are."""
    got = np.int64(0)
    while got < least:
        n = _pread(fd, into[got:].ctypes, np.uint64(most - got), offset + got)
        if n <= 0:
            return False
        got += n
    return True


@kernel
def read_packed(  # noqa: D103 - the twin is the documentation
    fd: int,
    blocks: NDArray[np.int64],
    starts: NDArray[np.int64],
    slots: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    sums: NDArray[np.uint64],
    rows: NDArray[np.int64],
    features_at: NDArray[np.int64],
    label_at: NDArray[np.int64],
    weight_at: NDArray[np.int64],
    label_like: NDArray[Any],
    weight_like: NDArray[Any],
    classes: NDArray[np.float64],
    targets: Floats,
    weight_mean: float,
    shift: Floats,
    scale: Floats,
    x: Floats,
    y: Floats,
    w: Floats,
    staging: NDArray[np.uint8],
    page: int,
    apart: bool,
) -> tuple[int, int, int]:
    width = x.shape[1]
    flat = x.reshape(-1)
    for k in range(len(blocks)):
        b = blocks[k]
        # Direct reads begin and end at page borders; through the cache a page is one byte.
        lead = offsets[b] % page
        end = lead + nbytes[b]
        size = (end + page - 1) // page * page
        if not _read(fd, staging, np.int64(end), np.int64(size), np.int64(offsets[b] - lead)):
            return READ_FAILED, k, 0
        if sums[b] and checksum_at(staging.ctypes.data + lead, nbytes[b], offsets[b]) != sums[b]:
            return DAMAGED, k, 0
        count = rows[b]
        at = lead if apart else lead + features_at[b]
        feature = staging[at : at + count * width * 4].view(np.float32)
        start = starts[k]
        if len(scale) == 0:
            for i in range(count):
                # Slots are anywhere in memory: ask for those of rows to come, and write when they have arrived.
                if i + _AHEAD < count and slots[start + i + _AHEAD] != SKIP:
                    place = np.int64(slots[start + i + _AHEAD]) * width
                    for j in range(0, min(width, _LINES * _LINE), _LINE):
                        prefetch_line(flat, place + j)
                    prefetch_line(flat, place + width - 1)
                slot = slots[start + i]
                if slot != SKIP:
                    row = x[slot]
                    first = i * width
                    for j in range(width):
                        row[j] = feature[first + j]
        else:
            for i in range(count):
                slot = slots[start + i]
                if slot != SKIP:
                    for j in range(width):
                        x[slot, j] = (feature[i * width + j] - shift[j]) * scale[j]
        if len(y):
            at = lead + label_at[b]
            if apart:
                at = (end + 7) // 8 * 8
                nbytes_here = np.int64(count * label_like.itemsize)
                if not _read(fd, staging[at:], nbytes_here, nbytes_here, np.int64(label_at[b])):
                    return READ_FAILED, k, 0
            label = staging[at : at + count * label_like.itemsize].view(label_like.dtype)
            for i in range(count):
                slot = slots[start + i]
                if slot == SKIP:
                    continue
                value = np.float64(label[i])
                if len(classes) == 0:
                    if not np.isfinite(value):
                        return UNKNOWN_LABEL, k, i
                    y[slot] = np.float32(value)
                else:
                    c = np.searchsorted(classes, value) if len(classes) > 8 else 0
                    while c < len(classes) and classes[c] < value:
                        c += 1
                    if c >= len(classes) or classes[c] != value:
                        return UNKNOWN_LABEL, k, i
                    y[slot] = targets[c]
        if len(w):
            at = lead + weight_at[b]
            if apart:
                at = (end + 7) // 8 * 8  # labels are in their places by now
                nbytes_here = np.int64(count * weight_like.itemsize)
                if not _read(fd, staging[at:], nbytes_here, nbytes_here, np.int64(weight_at[b])):
                    return READ_FAILED, k, 0
            weight = staging[at : at + count * weight_like.itemsize].view(weight_like.dtype)
            for i in range(count):
                slot = slots[start + i]
                if slot == SKIP:
                    continue
                if not (np.isfinite(np.float64(weight[i])) and weight[i] >= 0):
                    return BAD_WEIGHT, k, i
                w[slot] = np.float32(np.float64(weight[i]) / weight_mean)
    return DONE, 0, 0


def read_packed_reference(
    layout: PackedLayout,
    blocks: NDArray[np.int64],
    starts: NDArray[np.int64],
    slots: NDArray[np.uint32],
    x: Floats,
    y: Floats,
    w: Floats,
    weight_mean: float = 1.0,
) -> None:
    """Read blocks and put row ``i`` of block ``k`` at ``slots[starts[k] + i]``; skip rows whose slot is `SKIP`.

    Where columns lie ``apart`` each is read by itself.
    """
    for k, b in enumerate(blocks):
        count = int(layout.rows[b])
        place = slots[starts[k] : starts[k] + count]
        kept = place != SKIP

        def column(at: NDArray[np.int64], kind: Any, values: int, b: int = b) -> NDArray[Any]:
            kind = np.dtype(kind)
            data = os.pread(layout.fd, values * kind.itemsize, int(layout.places(at)[b]))
            return np.frombuffer(data, kind, values)

        features = column(layout.features_at, np.float32, count * layout.width)
        x[place[kept]] = features.reshape(count, -1)[kept]
        if len(y) and layout.label_type is not None:
            y[place[kept]] = column(layout.label_at, layout.label_type, count)[kept]
        if len(w) and layout.weight_type is not None:
            w[place[kept]] = column(layout.weight_at, layout.weight_type, count)[kept] / np.float64(weight_mean)


@kernel
def _row_lengths(indptr: NDArray[np.uint64], slots: NDArray[np.uint32], lengths: NDArray[np.uint64]) -> None:
    for i in range(len(slots)):
        if slots[i] != SKIP:
            lengths[slots[i] + 1] = indptr[i + 1] - indptr[i]


@kernel
def _copy_csr(
    indptr: NDArray[np.uint64],
    indices: NDArray[np.uint32],
    values: Floats,
    slots: NDArray[np.uint32],
    center: Floats,
    scale: Floats,
    out_indptr: NDArray[np.uint64],
    out_indices: NDArray[np.uint32],
    out_values: Floats,
) -> None:
    for i in range(len(slots)):
        if slots[i] == SKIP:
            continue
        to = out_indptr[slots[i]]
        start = indptr[i]
        for e in range(start, indptr[i + 1]):
            column, value = indices[e], values[e]
            if column < len(center):
                value -= center[column]
            if len(scale):
                value *= scale[column]
            out_indices[to + (e - start)] = column
            out_values[to + (e - start)] = value


def assemble_csr(parts: list[Csr], slots: list[NDArray[np.uint32]], rows: int, *, center: Floats, scale: Floats) -> Csr:
    """Put the rows of decoded blocks into one CSR of ``rows`` rows, each at its slot.

    ``center`` is taken from the first features, which have to be stored in every row; then all are multiplied by ``scale``.
    """
    indptr = np.zeros(rows + 1, np.uint64)
    for part, place in zip(parts, slots, strict=True):
        _row_lengths(part.indptr, place, indptr)
    np.cumsum(indptr, out=indptr)
    indices = np.empty(int(indptr[-1]), np.uint32)
    values = np.empty(int(indptr[-1]), np.float32)
    for part, place in zip(parts, slots, strict=True):
        _copy_csr(part.indptr, part.indices, part.values, place, center, scale, indptr, indices, values)
    return Csr(indptr, indices, values, parts[0].width if parts else 0)


def assemble_csr_reference(parts: list[Csr], slots: list[NDArray[np.uint32]]) -> Csr:
    """Say what `assemble_csr` does, unscaled."""
    place = np.concatenate(slots)
    kept = np.flatnonzero(place != SKIP)
    return Csr.concat(parts).take(kept[np.argsort(place[kept])])


@kernel
def scatter_runs(values: Any, offsets: Any, slots: Any, out_offsets: Any, out: Any) -> None:
    """Copy the values of ragged row ``i`` to where the row in ``slots[i]`` has room for them."""
    for i in range(len(slots)):
        if slots[i] != SKIP:
            shift = out_offsets[slots[i]] - offsets[i]
            for j in range(offsets[i], offsets[i + 1]):
                out[j + shift] = values[j]


def scatter_runs_reference(
    values: NDArray[Any],
    offsets: NDArray[np.int64],
    slots: NDArray[np.uint32],
    out_offsets: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Say what `scatter_runs` does."""
    for low, high, slot in zip(offsets[:-1], offsets[1:], slots):
        if slot != SKIP:
            out[out_offsets[slot] : out_offsets[slot] + high - low] = values[low:high]
