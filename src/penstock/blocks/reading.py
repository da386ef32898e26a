"""What every source does in the same way: check a block's number, pick columns, gather single rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import Int64s
from penstock.errors import ColumnError, UsageError


class BlockIndexError(UsageError, IndexError):
    """There is no block or row with this number."""


def require_block(block: int, count: int, *, name: str) -> None:
    """Raise unless there is a block with this number."""
    if not 0 <= block < count:
        raise BlockIndexError(f"{name} has no block {block}; it has {count} blocks, numbered from 0")


def select(batch: pa.RecordBatch, columns: Sequence[str] | None, *, place: str) -> pa.RecordBatch:
    """Return the columns named, in that order, or the batch itself for None."""
    if columns is None:
        return batch
    require_columns(batch.schema, columns, place=place)
    return batch.select(list(columns))


def require_columns(schema: pa.Schema, columns: Sequence[str], *, place: str) -> None:
    """Raise `ColumnError` for the first column that is not there."""
    present = schema.names  # built anew at every access
    known = set(present)
    for name in columns:
        if name not in known:
            raise ColumnError.missing(name, present, place=place)


def take_by_block(source: Any, rows: Int64s, columns: Sequence[str] | None, *, row_ends: Int64s) -> pa.RecordBatch:
    """Gather rows of any source with exact row counts: each block needed is read once, in file order."""
    rows = np.asarray(rows, np.int64)
    total = int(row_ends[-1]) if len(row_ends) else 0
    if len(rows) and (rows.min() < 0 or rows.max() >= total):
        bad = int(rows.min() if rows.min() < 0 else rows.max())
        raise BlockIndexError(f"{source.name} has no row {bad}; it has {total} rows, numbered from 0")
    owners = np.searchsorted(row_ends, rows, side="right")
    order = np.argsort(owners, kind="stable")
    blocks, starts = np.unique(owners[order], return_index=True)
    pieces = []
    for block, here in zip(blocks, np.split(order, starts[1:])):
        local = rows[here] - (int(row_ends[block]) - int(source.block_rows[block]))
        pieces.append(source.read(int(block), columns).take(pa.array(local)))
    if not pieces:
        wanted = source.schema if columns is None else pa.schema([source.schema.field(c) for c in columns])
        return pa.RecordBatch.from_pylist([], schema=wanted)
    back = np.empty(len(rows), np.int64)
    back[order] = np.arange(len(rows))
    return pa.concat_batches(pieces).take(pa.array(back))
