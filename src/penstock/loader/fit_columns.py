"""One pass over columns of text and dates, for what must be known of them to make features: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn, column_of, is_text, stored_column
from penstock.columns.fit import WIDE_BITS, ColumnRequest, FitColumns, tally_of
from penstock.columns.hashing import Hashed
from penstock.parallel import in_order

_RUN_ROWS, _RUN_BYTES = 16_384, 4 << 20
"""Rows, and stored bytes, of the blocks that are looked at together: a look at each of many small ones costs more than its rows."""


def fit_from(source: BlockSource, *, wide: bool = False, blocks: Sequence[int] | None = None) -> FitColumns:
    """Return what gives columns of a source as features, by what they hold.

    All text of ``wide`` rows, for a model on disk, is hashed, which needs no pass. Some ``blocks`` are looked at, or all.
    """
    return partial(_fit, source, wide=wide, blocks=range(len(source.block_rows)) if blocks is None else blocks)


def _fit(
    source: BlockSource, requests: Sequence[ColumnRequest], policy: str, *, wide: bool, blocks: Sequence[int]
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
        runs = _runs(source, blocks)
        with closing(in_order(lambda run: _read(source, run, stored), runs, threads=source.threads)) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
    return found | {name: tally.result(policy) for name, tally in tallies.items()}


def _runs(source: BlockSource, blocks: Sequence[int]) -> list[Sequence[int]]:
    """Return runs of blocks to be looked at together."""
    runs: list[Sequence[int]] = []
    start = rows = size = 0
    for at, block in enumerate(blocks):
        rows, size = rows + int(source.block_rows[block]), size + int(source.block_bytes[block])
        if rows >= _RUN_ROWS or size >= _RUN_BYTES or at == len(blocks) - 1:
            runs.append(blocks[start : at + 1])
            start, rows, size = at + 1, 0, 0
    return runs


def _read(source: BlockSource, blocks: Sequence[int], columns: Sequence[str]) -> pa.RecordBatch:
    """Read a run of blocks as one batch."""
    batches = source.read_many(list(blocks), columns)
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    found = table.to_batches()
    return found[0] if found else batches[0]
