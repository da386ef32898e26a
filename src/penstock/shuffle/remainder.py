"""What is left of an epoch when its work is dealt out anew, to another number of workers.

Every worker's plan is a pure function, so anyone can tell which rows all of them have given out after so many batches
each: whole windows, and part of one. The rest is an epoch of its own over the blocks that still have rows. Nothing is
read, and of blocks half given out only a bit for each row is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.shuffle.base import Int64s, Order, Shape, Window

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an epoch run by one set of workers.

    How many there were, the rows each had given out, and what each could hold, which decides who had which.
    """

    world: int
    rows: int
    held_rows: int
    open_units: int = 32


@dataclass(frozen=True, slots=True)
class Remainder:
    """Blocks that still have rows, how many of these each has, and which, where it is not all of them.

    Examples
    --------
    >>> from penstock.shuffle import order
    >>> shape = Shape(np.full(4, 10), held_rows=20)
    >>> left = Remainder.of(order("corgipile"), shape, epoch=0, done=[Stretch(world=2, rows=5, held_rows=20)])
    >>> int(left.block_rows.sum()), len(left.blocks)
    (30, 4)
    """

    blocks: Int64s
    block_rows: Int64s
    masks: dict[int, Bools]

    @classmethod
    def of(cls, order: Order, shape: Shape, epoch: int, done: Sequence[Stretch]) -> Remainder:
        """Work out what is left of an epoch after these stretches of it, one after another."""
        left = cls(np.arange(len(shape.block_rows)), shape.block_rows, {})
        for number, stretch in enumerate(done):
            left = left._without(order, left.shape(shape, number), epoch, stretch)
        return left

    def shape(self, shape: Shape, number: int) -> Shape:
        """Return the shape of the epoch over these blocks that follows so many stretches."""
        if not number:
            return shape
        units = None if shape.units is None else shape.units[self.blocks]
        return replace(shape, block_rows=self.block_rows, units=units, seed=seeds.key(shape.seed, "dealt anew", number))

    def keeps(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> Bools:
        """Say which of these rows, named by block (or all of one block) and place in it, are left."""
        if np.ndim(blocks) == 0:
            mask = self.masks.get(int(blocks))
            return np.ones(len(rows), np.bool_) if mask is None else mask[rows]
        kept = np.ones(len(rows), np.bool_)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            kept[here] = self.keeps(np.int64(block), rows[here])
        return kept

    def _without(self, order: Order, shape: Shape, epoch: int, stretch: Stretch) -> Remainder:
        whole: list[Int64s] = []
        masks: dict[int, Bools] = {}
        for rank in range(stretch.world):
            gone = stretch.rows
            held, opened = stretch.held_rows, stretch.open_units
            mine = replace(shape, rank=rank, world=stretch.world, held_rows=held, open_units=opened)
            for window in order.windows(mine, epoch):
                assert isinstance(window, Window)  # an order of single rows says what is left by a number
                if gone < window.rows:
                    whole.append(window.blocks)
                    if gone:
                        masks.update(self._half(window, gone))
                gone = max(0, gone - window.rows)
        kept = np.sort(np.concatenate(whole)) if whole else np.empty(0, np.int64)
        blocks, rows = self.blocks[kept], self.block_rows[kept]
        masks = {**self.masks, **masks}
        for place in np.flatnonzero(np.isin(blocks, np.array(list(masks), np.int64))).tolist():
            rows[place] = int(masks[int(blocks[place])].sum())
        blocks, rows = blocks[rows > 0], rows[rows > 0]
        still = set(blocks.tolist())
        return Remainder(blocks, rows, {block: mask for block, mask in masks.items() if block in still})

    def _half(self, window: Window, gone: int) -> dict[int, Bools]:
        """Return, of each block of a window that has given out so many rows, which rows are left."""
        from penstock.shuffle.permute import slots

        place = np.arange(window.rows) if window.key is None else slots(window.rows, window.key)
        masks, start = {}, 0
        for index in window.blocks.tolist():
            block, count = int(self.blocks[index]), int(self.block_rows[index])
            left = place[start : start + count] >= gone
            earlier = self.masks.get(block)
            if earlier is None:
                masks[block] = left
            else:
                masks[block] = earlier.copy()
                masks[block][earlier] = left
            start += count
        return masks
