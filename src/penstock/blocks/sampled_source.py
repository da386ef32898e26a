"""A few blocks of a table that stand for all of it: a plan knows how many blocks there are, and reads a few.

What reading and learning cost is measured on those few; how windows are cut and the memory divided follows from the number
and size of all. So a plan of a terabyte takes as long as one of a gigabyte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, Int64s, PackedLayout, WrappedSource, require_block


@dataclass(frozen=True, slots=True)
class TableSize:
    """How large a table is: its rows, blocks and stored bytes."""

    rows: int
    blocks: int
    nbytes: int


class SampledSource(WrappedSource):
    """All blocks of a table by number and size; each reads as one of those that were opened, the nearest by its place.

    Parameters
    ----------
    source : BlockSource
        The few blocks; it is closed with this one.
    size : TableSize
        How large the table is; no smaller than the few blocks.
    exact : bool
        Whether the number of rows in a block will be known when the table itself is read.

    Examples
    --------
    >>> from penstock.blocks.memory import TableSource
    >>> few = TableSource.of(pa.table({"x": [1, 2, 3]}))
    >>> with SampledSource(few, TableSize(rows=9, blocks=2, nbytes=100)) as source:
    ...     source.block_rows.tolist(), source.read(1).num_rows
    ([5, 4], 3)
    """

    def __init__(self, source: BlockSource, size: TableSize, *, exact: bool = True) -> None:
        super().__init__(source)
        self.size = size
        self.exact_rows = exact
        self.block_rows = _spread(size.rows, size.blocks)
        self.block_bytes = np.maximum(_spread(size.nbytes, size.blocks), 1)
        self._places = np.arange(size.blocks) * len(source.block_rows) // max(size.blocks, 1)

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read the block that stands for one."""
        require_block(block, len(self.block_rows), name=self.name)
        return self.stored.read(int(self._places[block]), columns)

    def refine(self, rows: int, most: int) -> SampledSource | None:
        """Return the same rows in smaller blocks, as the few blocks are cut; see `BlockSource.refine`."""
        finer = self.stored.refine(rows, most)
        if finer is None or not len(finer.block_rows):
            return None
        size = replace(self.size, blocks=max(1, round(self.size.rows / float(finer.block_rows.mean()))))
        return SampledSource(finer, size, exact=self.exact_rows)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return a layout if the rows need no decoding, so that a plan knows that; there is no file behind it to read."""
        layout = self.stored.packed(features, label, weight)
        if layout is None:
            return None
        arrays = {
            name: getattr(layout, name)[self._places]
            for name in ("offsets", "nbytes", "sums", "features_at", "label_at", "weight_at")
        }
        return replace(layout, fd=-1, rows=self.block_rows, **arrays)


def _spread(total: int, parts: int) -> Int64s:
    """Divide a number into so many parts that are about equal."""
    each, rest = divmod(total, max(parts, 1))
    return each + (np.arange(parts) < rest).astype(np.int64)
