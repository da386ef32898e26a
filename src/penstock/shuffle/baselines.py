"""The strategies that CorgiPile is measured against (section 3), as orders under the same budget.

`Stored` reads in stored order, of the data or of a shuffled copy; `BlockOnly` is CorgiPile without its second
level; `SlidingWindow` and `Mrs` scan in stored order and mix what they hold. In stored order ranks are dealt
window-sized runs in turn (see `deal.runs`), so that each reads forward.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock import seeds
from penstock.shuffle.base import Int64s, Mixer, OrderFacts, Shape, Window
from penstock.shuffle.deal import equal_groups, stored_runs, unit_blocks

# What a mixer takes in at a time, as a part of what it holds: small beside the buffer, large beside a batch.
_PART = 8


class Stored:
    """Rows as they lie: of the data (``none``), or of a copy shuffled once or before each epoch.

    Examples
    --------
    >>> import numpy as np
    >>> shape = Shape(np.full(4, 10), held_rows=20)
    >>> order = Stored("none", OrderFacts("rows as they are stored"))
    >>> [w.blocks.tolist() for w in order.windows(shape, epoch=0)]
    [[0, 1], [2, 3]]
    """

    def __init__(self, name: str, facts: OrderFacts) -> None:
        self.name = name
        self.facts = facts

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch; the shape is the copy's where there is one."""
        return _plain(shape, stored_runs(shape, shape.held_rows))

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return None: nothing is mixed."""
        return None


class BlockOnly:
    """Blocks in random order, their rows as they lie.

    Examples
    --------
    >>> import numpy as np
    >>> shape = Shape(np.full(4, 10), held_rows=20)
    >>> [w.key for w in BlockOnly().windows(shape, epoch=0)]
    [None, None]
    """

    name = "block-only"
    facts = OrderFacts("blocks mixed, rows kept", by_block=True)

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch, with the same sequence of blocks as `CorgiPile`; units, where there are any, stay whole."""
        if shape.units is not None:
            units = unit_blocks(shape, epoch)
            blocks = np.array([block for unit in units for block in unit], np.int64)
            return _plain(shape, equal_groups(blocks, shape.block_rows, shape.held_rows))
        blocks = seeds.generator(shape.seed, "blocks", epoch).permutation(len(shape.block_rows))
        return _plain(shape, equal_groups(blocks[shape.rank :: shape.world], shape.block_rows, shape.held_rows))

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return None: nothing is mixed."""
        return None


class SlidingWindow:
    """TensorFlow's shuffle buffer: a scan in stored order, a random one of the rows held goes out each time.

    Examples
    --------
    >>> import numpy as np
    >>> shape = Shape(np.full(40, 10), held_rows=80)
    >>> next(SlidingWindow().windows(shape, epoch=0)).rows
    10
    """

    name = "sliding-window"
    facts = OrderFacts("a buffer slides over rows", mixing="buffer")

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch: a scan by parts of what may be held."""
        return _plain(shape, stored_runs(shape, shape.held_rows // _PART))

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return the sliding buffer."""
        from penstock.shuffle.mixers import SlidingBuffer

        return SlidingBuffer(shape.held_rows, seeds.key(shape.seed, "mixer", epoch, shape.rank))


class Mrs:
    """Bismarck's multiplexed reservoir sampling: a scan whose sample of the last pass is visited in between.

    The reservoir and the rows looped over have half of ``held_rows`` each, and at most half of the rank's rows,
    or a scan would drop none. The first epoch has nothing to loop over, and in every epoch the rows that end in
    the reservoir are not visited; they are looped over in the next.

    Examples
    --------
    >>> import numpy as np
    >>> shape = Shape(np.full(40, 10), held_rows=80)
    >>> Mrs().mixer(shape, epoch=1, carried=40).step(100, last=False).picks.size
    120
    """

    name = "mrs"
    facts = OrderFacts(
        "a reservoir and a replay",
        exact=False,
        mixing="reservoir",
        carries=True,
        visits=2,  # a kept row beside each one it reads
        note="visits some rows twice and others not at all",
    )

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window]:
        """Plan one epoch: a scan by parts of what may be held."""
        return _plain(shape, stored_runs(shape, shape.held_rows // _PART))

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return the two buffers, the second filled with the rows carried over."""
        from penstock.shuffle.mixers import Reservoir

        scanned = sum(window.rows for window in self.windows(shape, epoch))
        capacity = min(shape.held_rows, scanned) // 2
        return Reservoir(capacity, carried, seeds.key(shape.seed, "mixer", epoch, shape.rank))


def _plain(shape: Shape, plan: Iterator[Int64s]) -> Iterator[Window]:
    for index, blocks in enumerate(plan):
        yield Window(index, blocks, int(shape.block_rows[blocks].sum()), None)
