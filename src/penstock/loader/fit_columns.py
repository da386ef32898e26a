"""One pass over columns of text and dates, for what must be known of them to make features: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn, column_of, is_text, stored_column
from penstock.columns.fit import WIDE_BITS, ColumnRequest, FitColumns, tally_of
from penstock.columns.hashing import Hashed
from penstock.parallel import in_order


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
        with closing(read_columns(source, tallies)) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
    return found | {name: tally.result(policy) for name, tally in tallies.items()}


def read_columns(source: BlockSource, names: Iterable[str]) -> Generator[pa.RecordBatch, None, None]:
    """Yield some columns of each block, in order; the whole struct of one that is a member of it."""
    stored = list(dict.fromkeys(stored_column(source.schema, name) for name in names))
    return in_order(lambda block: source.read(block, stored), range(len(source.block_rows)), threads=source.threads)
