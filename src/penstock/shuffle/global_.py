"""The exact shuffle of all rows, computed: any row may come at any position, and no index is kept.

A keyed permutation answers which row stands where, so 10**10 rows cost no more memory than ten. What it costs
is a random read for each row; the loader joins and sorts those of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from penstock import seeds
from penstock.shuffle.base import Mixer, OrderFacts, RowWindow, Shape

if TYPE_CHECKING:
    from penstock.shuffle.permute import KeyedPermutation


class Global:
    """Visit all rows in a random order, a window of single rows at a time.

    Position ``p`` of an epoch's permutation belongs to rank ``p % world``.

    Examples
    --------
    >>> shape = Shape(np.array([10**10]), held_rows=1000)
    >>> next(Global().windows(shape, epoch=0)).rows
    1000
    """

    name = "global"
    facts = OrderFacts("any row at any time", by_row=True)

    def windows(self, shape: Shape, epoch: int) -> Iterator[RowWindow]:
        """Plan one epoch."""
        if shape.rows == 0:
            return
        permutation = self.permutation(shape, epoch)
        mine = range(shape.rank, shape.rows, shape.world)
        for index, start in enumerate(range(0, len(mine), shape.held_rows)):
            taken = mine[start : start + shape.held_rows]
            positions = np.arange(taken.start, taken.stop, taken.step, dtype=np.int64)
            yield RowWindow(index, permutation.apply(positions))

    def permutation(self, shape: Shape, epoch: int) -> KeyedPermutation:
        """Return the order of all rows, over all ranks."""
        # Imported here because Numba takes its time, which naming the orders should not.
        from penstock.shuffle.permute import KeyedPermutation

        return KeyedPermutation(shape.rows, seeds.key(shape.seed, "global", epoch))

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return None: a window is already in its final order."""
        return None
