"""One pass over columns of text and dates, for what must be known of them to make features: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn, column_of, is_text, stored_column
from penstock.columns.fit import WIDE_BITS, ColumnRequest, FitColumns, tally_of
from penstock.columns.hashing import Hashed
from penstock.parallel import in_order

_RUN_ROWS, _RUN_BYTES = 16_384, 4 << 20
"""Rows, and stored bytes, of the blocks that are looked at together: a look at each of many small ones costs more than its rows."""


def fit_from(source: BlockSource, *, wide: bool = False) -> FitColumns:
    """Return what gives columns of a source as features, by what they hold.

    All text of ``wide`` rows, for a model on disk, is hashed, which needs no pass.
    """
    return partial(_fit, source, wide=wide)


def _fit(
    source: BlockSource, requests: Sequence[ColumnRequest], policy: str, *, wide: bool
) -> Mapping[str, tuple[FeatureColumn, ...] | str]:
    found: dict[str, tuple[FeatureColumn, ...] | str] = {}
    tallies = {}
    for request in requests:
        name = request.field.name
        if wide and request.kind is None and is_text(request.field.type):
            told = policy not in ("fill", "refuse")
            found[name] = (Hashed(name, WIDE_BITS, False, told, request.null_values),)
        else:
            tallies[name] = tally_of(request)
    if tallies:
        stored = list(dict.fromkeys(stored_column(source.schema, name) for name in tallies))
        with closing(
            in_order(lambda run: _read(source, run, stored), _runs(source), threads=source.threads)
        ) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
    return found | {name: tally.result(policy) for name, tally in tallies.items()}


def _runs(source: BlockSource) -> list[range]:
    """Return runs of blocks to be looked at together."""
    rows, sizes = np.cumsum(source.block_rows), np.cumsum(source.block_bytes)
    runs, start = [], 0
    while start < len(rows):
        before = (rows[start - 1], sizes[start - 1]) if start else (0, 0)
        stop = min(
            int(np.searchsorted(rows, before[0] + _RUN_ROWS, side="right")),
            int(np.searchsorted(sizes, before[1] + _RUN_BYTES, side="right")),
        )
        runs.append(range(start, max(stop, start + 1)))
        start = runs[-1].stop
    return runs


def _read(source: BlockSource, blocks: range, columns: Sequence[str]) -> pa.RecordBatch:
    """Read a run of blocks as one batch."""
    batches = source.read_many(list(blocks), columns)
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    found = table.to_batches()
    return found[0] if found else batches[0]
