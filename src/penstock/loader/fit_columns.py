"""One pass over columns of text and dates, for what must be known of them to make features: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn, column_of, is_text, stored_column
from penstock.columns.fit import WIDE_BITS, ColumnRequest, FitColumns, tally_of
from penstock.columns.hashing import Hashed
from penstock.parallel import in_order


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
        with closing(in_order(lambda block: source.read(block, stored), blocks, threads=source.threads)) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
    return found | {name: tally.result(policy) for name, tally in tallies.items()}
