"""All rows of a source as the rows of one group, so that what learns groups learns one model of them, by the same search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, WrappedSource
from penstock.groups.keys import to_text

KEY = "__penstock_group"
"""The column to group by."""
GROUP = to_text((0,))
"""The text of the group's key."""


class OneGroup(WrappedSource):
    """A source with a further column that is the same in all rows.

    Examples
    --------
    >>> from penstock.blocks.open import opened
    >>> with opened(pa.table({"x": [1.0, 2.0]})) as source:
    ...     OneGroup(source).read(0).to_pydict()
    {'x': [1.0, 2.0], '__penstock_group': [0, 0]}
    """

    columns = (KEY,)
    """The columns that say which group rows are of: rows come group by group."""

    def __init__(self, source: BlockSource) -> None:
        super().__init__(source)
        self.schema = source.schema.append(pa.field(KEY, pa.int8()))

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        wanted = self.schema.names if columns is None else list(columns)
        stored = [name for name in wanted if name != KEY] or self.stored.schema.names[:1]
        rows = self.stored.read(block, stored)
        arrays = [pa.array(np.zeros(len(rows), np.int8)) if name == KEY else rows.column(name) for name in wanted]
        return pa.RecordBatch.from_arrays(arrays, names=wanted)
