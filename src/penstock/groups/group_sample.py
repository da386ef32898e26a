"""What a pilot run needs of data that are not sorted yet: how large their groups are, and some of their rows.

Sizes come from the grouping columns alone, of all rows or of as many as there is time for, drawn from everywhere. The rows
of a sample are dealt to groups made for the purpose, of the sizes that real ones have: what a row costs does not hang on
whose it is, and the real groups are whole nowhere before they are sorted.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import seeds
from penstock.blocks.base import BlockSource, Int64s
from penstock.errors import ColumnError, DataError
from penstock.groups.grouping_reads import stretches
from penstock.groups.keys import Numbering, coded, key_type
from penstock.parallel import in_order

PILOT = "penstock pilot"
"""The column that tells which row of the sample is in which of the groups made for it."""
_TOGETHER = 2_000_000
"""Stored bytes that are read at once."""
_LEAST = 8
"""Rows of the smallest group that is timed: fewer may lack a class."""
_PARTS = 8
"""The sample is of so many places at least, where there are as many."""
_BUNDLE, _MANY = 2_000, 40
"""Rows that small groups have together, of each size, and how many there are at most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows groups have; ``seen`` of all ``total`` rows were looked at, and the sizes are estimates if not all."""

    rows: Int64s
    seen: int
    total: int

    @property
    def exact(self) -> bool:
        return self.seen >= self.total


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample of rows, and the seconds that reading one took."""

    rows: pa.Table
    row_seconds: float


def sizes_of(source: BlockSource, by: Sequence[str], *, seconds: float = math.inf, seed: int = 0) -> Sizes:
    """Count the rows of each group, for so long; the rest is taken to be like what was seen.

    Examples
    --------
    >>> from penstock.blocks.open import open
    >>> sizes_of(open(pa.table({"city": ["Oslo", "Rome", "Oslo", None]})), ["city"]).rows.tolist()
    [2, 1, 1]
    """
    for name in by:
        if name not in source.schema.names:
            raise ColumnError.missing(name, source.schema.names, place=source.name, role="column to group by")
    kinds = [key_type(source.schema.field(name).type, column=name, place=source.name) for name in by]
    tasks = _spread_out(source, seed)

    def read(number: int) -> tuple[NDArray[np.int64], list[tuple[object, ...]]]:
        parts = [source.read(block, list(by)) for block in tasks[number]]
        return coded([pa.chunked_array([rows.column(name) for rows in parts]) for name in by], kinds)

    numbering, counts, seen, begun = Numbering(), np.zeros(0, np.int64), 0, time.perf_counter()
    done = 0
    with closing(in_order(read, range(len(tasks)), threads=source.threads)) as found:
        for codes, keys in found:
            numbers = numbering.number(keys)
            counts = np.concatenate([counts, np.zeros(len(numbering) - len(counts), np.int64)])
            counts += np.bincount(numbers[codes], minlength=len(numbering))
            seen, done = seen + len(codes), done + 1
            if time.perf_counter() - begun > seconds and seen:
                break
    if not seen:
        raise DataError(f"{source.name} has no rows; there is nothing to group")
    if done == len(tasks):
        return Sizes(counts, seen, seen)
    total = max(seen, int(source.block_rows.sum()))
    return Sizes(np.maximum(1, np.round(counts * (total / seen))).astype(np.int64), seen, total)


def to_time(sizes: Int64s, most: int) -> list[tuple[int, int]]:
    """Choose the sizes of groups to time, and how many of each: sizes that many groups have, or many rows are in.

    Parameters
    ----------
    sizes : int64 array
        Rows of all groups.
    most : int
        Rows of all that is chosen.

    Examples
    --------
    >>> to_time(np.array([50_000, 400, 400, 100, 100, 100, 100]), 40_000)
    [(100, 20), (400, 5), (20000, 1)]
    """
    real = np.sort(sizes[sizes > 0])
    by_rows = real[np.searchsorted(np.cumsum(real), np.array([0.25, 0.5, 0.75, 1.0]) * real.sum())]
    wanted = np.concatenate([np.quantile(real, [0.25, 0.5, 0.75]), by_rows])
    chosen: list[int] = []
    for size in np.unique(np.clip(wanted, _LEAST, max(_LEAST, most // 2)).astype(np.int64)).tolist():
        if not chosen or size >= 1.5 * chosen[-1]:
            chosen.append(size)
    # What a row costs, and what a group costs whatever its rows, are told apart by unlike sizes only.
    if chosen[-1] < 4 * chosen[0]:
        chosen = [max(_LEAST, chosen[0] // 4), *chosen] if chosen[0] > _LEAST else [*chosen, 8 * chosen[-1]]
    picked: list[tuple[int, int]] = []
    left = most
    for size in chosen:
        room = left if size == chosen[-1] else left // 2  # some is for those that are larger
        size = min(size, room)
        if size < (1.5 * picked[-1][0] if picked else _LEAST):
            break
        count = int(np.clip(min(_BUNDLE, room) // size, 1, _MANY))
        picked.append((size, count))
        left -= size * count
    return picked or [(_LEAST, 1)]


def take(source: BlockSource, rows: int, *, seed: int = 0) -> Taken:
    """Read so many rows from several places, with all their columns."""
    began, read = time.perf_counter(), 0
    taken: list[pa.Table] = []
    tasks = _spread_out(source, seed)
    share, left = -(-rows // min(_PARTS, len(tasks))) if tasks else 0, rows
    for task in tasks:
        here = min(share, left)
        for block in task:
            batch = source.read(block)
            read += len(batch)
            step = max(1, len(batch) // here) if here else 1
            taken.append(pa.Table.from_batches([batch]).take(pa.array(np.arange(0, len(batch), step)[:here])))
            here, left = here - len(taken[-1]), left - len(taken[-1])
            if not here:
                break
        if not left:
            break
    if not read:
        raise DataError(f"{source.name} has no rows; there is nothing to group")
    return Taken(pa.concat_tables(taken), (time.perf_counter() - began) / read)


def dealt(rows: pa.Table, label: str, wanted: Sequence[tuple[int, int]]) -> tuple[pa.Table, list[list[int]]]:
    """Deal rows to groups of the sizes wanted, so that each has its share of every label.

    Returns
    -------
    pyarrow.Table, list of list of int
        The rows with the number of their group in the column `PILOT`, and the groups of each size.
    """
    if label not in rows.column_names:
        raise ColumnError.missing(label, rows.column_names, place="the data", role="label")
    counts: list[int] = []
    bundles: list[list[int]] = []
    left = len(rows)
    for size, many in wanted:
        bundle = []
        for _ in range(many):
            if min(size, left) >= _LEAST:
                bundle.append(len(counts))
                counts.append(min(size, left))
                left -= counts[-1]
        if bundle:
            bundles.append(bundle)
    if not counts:
        raise DataError(f"{len(rows)} rows are too few for a pilot run; train, which takes no time")
    codes = rows[label].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    order = order[np.linspace(0, len(order) - 1, sum(counts)).astype(np.int64)]
    # Each group's places lie evenly over the rows by label.
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    owner = np.repeat(np.arange(len(counts)), counts)[np.argsort(places, kind="stable")]
    table = rows.take(pa.array(order)).append_column(PILOT, pa.array(owner))
    return table.take(pa.array(np.argsort(owner, kind="stable"))), bundles


def _spread_out(source: BlockSource, seed: int) -> list[range]:
    """Return stretches of blocks that are read together, in an order that is everywhere at once."""
    if source.units is None:
        found = list(stretches(source.block_bytes, _TOGETHER))
    else:  # a piece is decoded from its start
        edges = np.flatnonzero(np.diff(source.units, prepend=-1, append=-1))
        found = [range(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    return [found[int(at)] for at in seeds.generator(seed, "pilot").permutation(len(found))]
