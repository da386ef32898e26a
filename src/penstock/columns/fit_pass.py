"""One pass over columns that are made features by what they hold: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from penstock.columns.base import FeatureColumn, column_of, is_text, stored_column
from penstock.columns.fit import WIDE_BITS, ColumnRequest, tally_of
from penstock.columns.hashing import Hashed

ReadColumns = Callable[[list[str]], Generator[pa.RecordBatch, None, None]]
"""Yields some columns of all rows, batch by batch."""


def fit_batches(
    read: ReadColumns, schema: pa.Schema, requests: Sequence[ColumnRequest], policy: str, *, wide: bool = False
) -> Mapping[str, tuple[FeatureColumn, ...] | str]:
    """Return each column asked for as features, or the reason for leaving it out.

    All text of ``wide`` rows, for a model on disk, is hashed, which needs no pass.
    """
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
        stored = list(dict.fromkeys(stored_column(schema, name) for name in tallies))
        with closing(read(stored)) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
    return found | {name: tally.result(policy) for name, tally in tallies.items()}
