"""Rows counted where a source does not know them: text, whose blocks are cut by bytes.

Deep-learning loops want to know how long an epoch is, and workers must agree on it, so the blocks are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, Source
from penstock.parallel import in_order


def with_row_counts(source: BlockSource) -> BlockSource:
    """Return a source whose rows are counted: itself, or one that looks the same and knows.

    Examples
    --------
    >>> from penstock.blocks.memory import TableSource
    >>> source = TableSource.of(pa.table({"x": [1, 2]}))
    >>> with_row_counts(source) is source
    True
    """
    return source if source.exact_rows else CountedSource(source)


class CountedSource(Source):
    """A source of text with its rows counted."""

    def __init__(self, source: BlockSource) -> None:
        self._inner = source
        self.name, self.schema, self.block_bytes = source.name, source.schema, source.block_bytes
        self.units, self.unit_bytes, self.max_open = source.units, source.unit_bytes, source.max_open
        self.threads = source.threads
        first = source.schema.names[:1]
        blocks = range(len(source.block_rows))
        with closing(in_order(lambda block: len(source.read(block, first)), blocks, threads=source.threads)) as counts:
            self.block_rows = np.array(list(counts), np.int64)

    @property
    def fingerprint(self) -> str:
        """The data's own."""
        return self._inner.fingerprint

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block."""
        return self._inner.read(block, columns)

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows in smaller blocks, whose rows are counted too; see `BlockSource.refine`."""
        finer = self._inner.refine(rows, most)
        return None if finer is None else CountedSource(finer)

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        return self._inner.file_of(block)

    def begin(self, epoch: int) -> None:
        """Pass it on to the source."""
        self._inner.begin(epoch)

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were counted."""
        self._inner.check()

    def close(self) -> None:
        """Close the source."""
        self._inner.close()
