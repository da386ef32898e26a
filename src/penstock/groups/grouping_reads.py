"""Blocks as they are read for grouping: some at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.memory import TableSource
from penstock.blocks.numpy import NpySource
from penstock.blocks.parquet import ParquetSource
from penstock.blocks.storage import is_remote


def stretches(sizes: Int64s, nbytes: int, begin: int = 0) -> Iterator[range]:
    """Yield blocks that follow one another, of so many bytes together, from a block on.

    Examples
    --------
    >>> list(stretches(np.array([3, 3, 9, 1]), 6))
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    ends = np.cumsum(sizes)
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + nbytes, side="right")), begin + 1)
        yield range(begin, end)
        begin = end


def cheap_twice(source: BlockSource) -> bool:
    """Whether reading some columns first costs little: tables and local files that need no parsing."""
    return isinstance(source, (ArrowSource, ParquetSource, NpySource, TableSource)) and not is_remote(source.name)
