"""How blocks come to ranks and to windows: the arithmetic that every order over blocks shares.

Whatever the order, the union over ranks is every block exactly once, empty ones included, and a window holds
no more rows than it may unless a single block is larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from penstock import seeds
from penstock.shuffle.base import Int64s, Shape


def group(blocks: Int64s, rows: Int64s, limit: int, *, multiple: int = 1) -> Iterator[Int64s]:
    """Cut a list of blocks into consecutive groups of at most ``limit`` rows, at least one block each.

    Groups are about equal: a last one of few blocks would be hardly shuffled, and be learned from last. There are a
    ``multiple`` of so many, where blocks are small enough. Blocks without rows join whichever group they stand next
    to, so no group is empty unless all are.

    Examples
    --------
    >>> [g.tolist() for g in group(np.arange(8), np.full(8, 10), 60)]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    >>> [g.tolist() for g in group(np.array([4, 0, 2, 1]), np.array([3, 3, 9, 0, 3]), 6)]
    [[4, 0], [2], [1]]
    """
    ends = np.cumsum(rows[blocks])
    total = int(ends[-1]) if len(ends) else 0
    fewest = -(-max(1, -(-total // limit)) // multiple) * multiple
    for count in range(fewest, min(fewest + 3 * multiple, len(blocks) + 1), multiple):
        cuts = np.unique(np.searchsorted(ends, np.arange(1, count + 1) * total // count, side="right"))
        sizes = np.diff(np.concatenate([[0], ends[cuts[cuts > 0] - 1]]))
        if len(sizes) == count and sizes.min() > 0 and sizes.max() <= limit:
            return iter(np.split(blocks, cuts[:-1]))
    return _greedy(blocks, np.concatenate([[0], ends]), min(limit, max(1, -(-total // multiple))))


def _greedy(blocks: Int64s, ends: Int64s, limit: int) -> Iterator[Int64s]:
    """Fill one group after another, where blocks are too large or too uneven for equal ones."""
    start, done = 0, 0
    while start < len(blocks):
        # Up to the limit, but in any case up to and with the first block that has rows.
        first = min(int(np.searchsorted(ends, done, side="right")), len(blocks))
        limit_at = max(done + limit, int(ends[first]))
        stop = int(np.searchsorted(ends, limit_at, side="right")) - 1
        yield blocks[start:stop]
        start, done = stop, int(ends[stop])


def runs(shape: Shape, limit: int) -> Iterator[Int64s]:
    """Cut the stored order into runs of at most ``limit`` rows and deal them out: run ``r`` to rank ``r % world``.

    Every rank thus reads forward through the whole data and sees long runs of it. Runs are shortened where
    there would not be one for each rank.

    Examples
    --------
    >>> [r.tolist() for r in runs(Shape(np.array([5, 5, 5, 5]), held_rows=10, rank=1, world=2), 10)]
    [[2, 3]]
    """
    blocks = np.arange(len(shape.block_rows))
    # As many runs for each rank, or some would have half as much again as others where runs are few.
    dealt = group(blocks, shape.block_rows, max(1, limit), multiple=shape.world)
    return islice(dealt, shape.rank, None, shape.world)


def unit_blocks(shape: Shape, epoch: int) -> list[list[int]]:
    """Return this rank's units in random order, each as its blocks in ascending order.

    Whole units are dealt, so that each is decoded by one rank; with fewer units than ranks, blocks are.
    """
    assert shape.units is not None
    names, unit_of = np.unique(shape.units, return_inverse=True)
    blocks = np.argsort(unit_of, kind="stable")
    parts = np.split(blocks, np.cumsum(np.bincount(unit_of, minlength=len(names)))[:-1])
    shuffled = [parts[u] for u in seeds.generator(shape.seed, "units", epoch).permutation(len(names))]
    if len(names) >= shape.world:
        return [part.tolist() for part in shuffled[shape.rank :: shape.world]]
    # Dealt as one long list, so that ranks differ by one block at most, not by one in every unit.
    starts = np.cumsum([0, *map(len, shuffled)])
    dealt = [part[(shape.rank - start) % shape.world :: shape.world].tolist() for part, start in zip(shuffled, starts)]
    return [part for part in dealt if part]
