"""CorgiPile's two-level shuffle (section 4.1), for one rank or several (section 6).

Blocks are shuffled, dealt to the ranks, and taken a window at a time; the rows of a window are shuffled
together. Where blocks are parts of units that decode only from their start (Parquet row groups), the units are
shuffled instead and many are kept open at once, so that a window still mixes rows from all over the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from penstock import seeds
from penstock.shuffle.base import Int64s, Mixer, OrderFacts, Shape, Window
from penstock.shuffle.deal import equal_groups, unit_blocks


class CorgiPile:
    """Shuffle the blocks, then the rows of as many blocks as may be held.

    Where blocks are parts of larger units, as many units are read side by side as a window has blocks and
    ``shape.open_units`` allows. The first ones are begun part-way, each at another stage, and their beginnings
    read last: rows may be sorted inside each unit, and units read in step would then come in step.

    Examples
    --------
    >>> shape = Shape(np.full(6, 10), held_rows=30, seed=1)
    >>> [(w.index, len(w.blocks), w.rows) for w in CorgiPile().windows(shape, epoch=0)]
    [(0, 3, 30), (1, 3, 30)]
    """

    name = "corgipile"
    facts = OrderFacts("blocks and rows mixed", by_block=True, places_rows=True)

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch."""
        plan = self._shuffled(shape, epoch) if shape.units is None else self._interleaved(shape, epoch)
        for index, blocks in enumerate(plan):
            key = seeds.key(shape.seed, "window", epoch, index, shape.rank)
            # Rows get random places whatever the order of blocks, so they are listed as storage likes it best.
            yield Window(index, np.sort(blocks), int(shape.block_rows[blocks].sum()), key)

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return None: windows are independent of each other."""
        return None

    def units_open(self, shape: Shape) -> int:
        """Return how many units are read side by side: as many as a window has blocks, within the cap."""
        mean = max(1.0, float(shape.block_rows.mean())) if len(shape.block_rows) else 1.0
        return max(1, min(shape.open_units, round(shape.held_rows / mean)))

    def _shuffled(self, shape: Shape, epoch: int) -> Iterator[Int64s]:
        # All ranks draw the same permutation; dealing it round-robin makes their windows, taken together,
        # the windows of one process with a buffer as large as all of theirs (Theorem 3).
        blocks = seeds.generator(shape.seed, "blocks", epoch).permutation(len(shape.block_rows))
        return equal_groups(blocks[shape.rank :: shape.world], shape.block_rows, shape.held_rows)

    def _interleaved(self, shape: Shape, epoch: int) -> Iterator[Int64s]:
        units = unit_blocks(shape, epoch)
        count = min(self.units_open(shape), max(1, len(units)))
        cuts = [len(unit) * k // count for k, unit in enumerate(units[:count])]
        opened = deque(deque(unit[cut:]) for unit, cut in zip(units, cuts, strict=False))
        # The unit begun latest ends first, so that no beginning is read while its own end still is.
        beginnings = [unit[:cut] for unit, cut in zip(units, cuts, strict=False) if cut]
        waiting = iter([*units[count:], *reversed(beginnings)])
        sequence: list[int] = []
        while opened:
            unit = opened[0]
            sequence.append(unit.popleft())
            if unit:
                opened.rotate(-1)
            else:
                opened.popleft()
                opened.extend(deque(blocks) for _, blocks in zip(range(1), waiting, strict=False))
        return equal_groups(np.array(sequence, np.int64), shape.block_rows, shape.held_rows)
