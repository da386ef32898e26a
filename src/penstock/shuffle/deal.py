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


def equal_groups(blocks: Int64s, rows: Int64s, limit: int, *, multiple: int = 1) -> Iterator[Int64s]:
    """Cut a list of blocks into consecutive groups of at most ``limit`` rows, at least one block each.

    There are as few groups as the limit allows, rounded up to a ``multiple``, and they are as equal as whole blocks
    allow: a last group of few blocks would hardly be shuffled, and be learned from last. A block larger than the limit
    is a group of its own. Blocks without rows join a neighbour's group, so no group is empty unless all are.

    Examples
    --------
    >>> [g.tolist() for g in equal_groups(np.arange(8), np.full(8, 10), 60)]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    >>> [g.tolist() for g in equal_groups(np.array([4, 0, 2, 1]), np.array([3, 3, 9, 0, 3]), 6)]
    [[4, 0], [2], [1]]
    """
    if not len(blocks):
        return iter(())
    full = np.flatnonzero(rows[blocks])
    if not len(full):
        return iter((blocks,))
    ends = np.cumsum(rows[blocks[full]])
    cuts = _even_cuts(ends, limit, multiple=multiple)
    return iter(np.split(blocks, full[cuts]))


def _even_cuts(ends: Int64s, limit: int, *, multiple: int) -> Int64s:
    """Return the places at which a list of blocks, given by where their rows end, is cut into equal groups."""
    size, total = len(ends), int(ends[-1])
    starts = np.concatenate([[0], ends[:-1]])
    # How far a group reaches that begins at a block, and at which block one begins that ends with a block.
    reach = np.maximum(np.searchsorted(ends, starts + limit, side="right"), np.arange(size) + 1)
    begin = np.minimum(np.searchsorted(starts, ends - limit, side="left"), np.arange(size))
    count, at = 0, 0
    while at < size:
        count, at = count + 1, int(reach[at])
    count = min(-(-count // multiple) * multiple, size)
    # The earliest place of each cut such that the groups behind it can hold the rest.
    earliest = np.zeros(count, np.int64)
    at = size
    for place in range(count - 1, 0, -1):
        at = earliest[place] = int(begin[at - 1]) if at else 0
    cuts, at = [], 0
    for place in range(1, count):
        ideal = total * place / count
        after = int(np.searchsorted(ends, ideal)) + 1
        near = after - 1 if ideal - starts[after - 1] < ends[after - 1] - ideal else after
        low = max(at + 1, int(earliest[place]))
        at = min(max(near, low), int(reach[at]), size - (count - place))
        cuts.append(at)
    return np.array(cuts, np.int64)


def stored_runs(shape: Shape, limit: int) -> Iterator[Int64s]:
    """Cut the stored order into runs of at most ``limit`` rows and deal them out: run ``r`` to rank ``r % world``.

    Every rank thus reads forward through the whole data and sees long runs of it. Runs are shortened where
    there would not be one for each rank.

    Examples
    --------
    >>> [r.tolist() for r in stored_runs(Shape(np.array([5, 5, 5, 5]), held_rows=10, rank=1, world=2), 10)]
    [[2, 3]]
    """
    blocks = np.arange(len(shape.block_rows))
    # As many runs for each rank, or some would have half as much again as others where runs are few.
    dealt = equal_groups(blocks, shape.block_rows, max(1, limit), multiple=shape.world)
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
