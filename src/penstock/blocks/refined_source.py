"""A source's blocks served in smaller parts, so that more of them meet in a window of the same memory.

The data, their name and their fingerprint stay the source's; only the cut is finer. What a part costs to read is for the
source to say: `BlockSource.refine` cuts where parts are cheap, and no finer than it is asked to where they are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, Int64s, PackedLayout, WrappedSource, require_block
from penstock.parallel import in_order

_COLUMN_BYTES = 4096
"""What is worth a read of its own."""
ReadPart = Callable[[int, Sequence[str] | None], pa.RecordBatch]
FindLayout = Callable[[str, str | None, str | None], PackedLayout | None]
ReadParts = Callable[[Sequence[int], Sequence[str] | None], list[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class BlockParts:
    """Where blocks are cut: part ``k`` is rows ``starts[k]`` to ``stops[k]`` of block ``owners[k]``."""

    owners: Int64s
    starts: Int64s
    stops: Int64s

    @classmethod
    def of(cls, sizes: Int64s, most: int) -> BlockParts:
        """Cut blocks of these sizes into equal parts of at most so many rows (or pages, or bytes).

        Examples
        --------
        >>> parts = BlockParts.of(np.array([5, 2, 0]), 2)
        >>> parts.owners.tolist(), parts.starts.tolist(), parts.stops.tolist()
        ([0, 0, 0, 1, 2], [0, 1, 3, 0, 0], [1, 3, 5, 2, 0])
        """
        counts = np.maximum(1, -(-sizes // max(1, most)))
        owners = np.repeat(np.arange(len(sizes)), counts)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        within, of = sizes[owners], counts[owners]
        return cls(owners, within * place // of, within * (place + 1) // of)

    @property
    def sizes(self) -> Int64s:
        """How many rows each part has."""
        return self.stops - self.starts

    def share(self, whole: Int64s) -> Int64s:
        """Divide a number of each block, such as its bytes, over its parts; at least 1 each."""
        sizes = self.sizes
        total = np.bincount(self.owners, sizes, len(whole))[self.owners]
        share = whole[self.owners] * np.divide(sizes, total, out=np.ones(len(sizes)), where=total > 0)
        return np.maximum(1, share.astype(np.int64))


def worth_reading(source: BlockSource, rows: int, most: int) -> int:
    """Return how many rows of columns that lie apart are worth the reads they take, one for each column at least."""
    row_bytes = float(source.block_bytes.sum()) / max(1, int(source.block_rows.sum()))
    return max(rows, min(most, int(_COLUMN_BYTES * len(source.schema) / max(row_bytes, 1.0))))


class RefinedSource(WrappedSource):
    """A source in smaller blocks. The source stays its owner's: closing this one leaves it open.

    Parameters
    ----------
    source : BlockSource
        Whose blocks are served in parts.
    owners : int64 array
        The block that each part belongs to, ascending.
    rows, nbytes : int64 array
        Of each part, as `BlockSource` has them of blocks.
    read : callable
        Reads one part, given its number and the columns.
    read_many : callable, optional
        Reads several parts in ascending order at once, for less than one by one.
    read_bytes : int
        What reading a part holds, where that is more than the part itself and its rows.
    packed : callable, optional
        Returns what `BlockSource.packed` does, for the parts.
    """

    def __init__(
        self,
        source: BlockSource,
        *,
        owners: Int64s,
        rows: Int64s,
        nbytes: Int64s,
        read: ReadPart,
        read_many: ReadParts | None = None,
        read_bytes: int = 0,
        packed: FindLayout | None = None,
    ) -> None:
        super().__init__(source)
        self.block_rows, self.block_bytes = rows, nbytes
        self.units = None if source.units is None else source.units[owners]
        self.read_bytes = read_bytes
        self._owners = owners
        self._read, self._read_many = read, read_many
        self._packed = packed
        self._counts: dict[int, Int64s] = {}
        self._lock = threading.Lock()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one part; only the columns named, in that order."""
        require_block(block, len(self.block_rows), name=self.name)
        return self._read(block, columns)

    def read_many(self, blocks: Sequence[int], columns: Sequence[str] | None = None) -> list[pa.RecordBatch]:
        """Read several parts, whose numbers ascend."""
        if self._read_many is None or len(blocks) == 1:
            return [self.read(block, columns) for block in blocks]
        return self._read_many(blocks, columns)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where the parts' rows lie, where they can be read out of the stored blocks; see `PackedLayout`."""
        return None if self._packed is None else self._packed(features, label, weight)

    def origin(self, block: int) -> tuple[int, int]:
        """Return the stored block that a part belongs to, and how many of its rows stand before the part.

        Where rows were not counted, those of the stored block's parts are counted now, once.
        """
        owner = int(self._owners[block])
        first = int(np.searchsorted(self._owners, owner))
        if self.exact_rows:
            return owner, int(self.block_rows[first:block].sum())
        with self._lock:
            counts = self._counts.get(owner)
        if counts is None:
            last = int(np.searchsorted(self._owners, owner, side="right"))
            names = self.schema.names[:1]
            counts = np.array([self.read(part, names).num_rows for part in range(first, last)], np.int64)
            with self._lock:
                self._counts[owner] = counts
        return owner, int(counts[: block - first].sum())

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a part lies in, and the first part of that file."""
        name, first = self.stored.file_of(int(self._owners[block]))
        return name, int(np.searchsorted(self._owners, first))

    def close(self) -> None:
        """Leave the source open, which is its owner's."""


def by_rows(
    source: BlockSource,
    most: int,
    read_rows: Callable[[int, int, int, Sequence[str] | None], pa.RecordBatch],
    *,
    read_bytes: int = 0,
    packed: FindLayout | None = None,
) -> RefinedSource:
    """Refine a source that can read any run of a block's rows: ``read_rows(block, start, stop, columns)``.

    ``packed`` returns the layout of the blocks, where runs can also be read out of those that need no decoding.
    """
    parts = BlockParts.of(source.block_rows, most)

    def read(part: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        return read_rows(int(parts.owners[part]), int(parts.starts[part]), int(parts.stops[part]), columns)

    def find(features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        layout = None if packed is None else packed(features, label, weight)
        return None if layout is None else _divided(layout, parts)

    return RefinedSource(
        source,
        owners=parts.owners,
        rows=parts.sizes,
        nbytes=parts.share(source.block_bytes),
        read=read,
        read_bytes=read_bytes,
        packed=None if packed is None else find,
    )


def _divided(layout: PackedLayout, parts: BlockParts) -> PackedLayout:
    """Return where the rows of parts lie, given where those of the blocks do."""
    owners = parts.owners

    def begin(at: Int64s, size: int) -> Int64s:
        return np.where(at[owners] < 0, -1, layout.places(at)[owners] + parts.starts * size)

    def item(kind: np.dtype[np.generic] | None) -> int:
        return 0 if kind is None else kind.itemsize

    features_at = begin(layout.features_at, 4 * layout.width)
    return PackedLayout(
        fd=layout.fd,
        offsets=features_at,
        nbytes=parts.sizes * 4 * layout.width,
        sums=np.zeros(len(owners), np.uint64),
        rows=parts.sizes,
        width=layout.width,
        features_at=features_at,
        label_at=begin(layout.label_at, item(layout.label_type)),
        label_type=layout.label_type,
        weight_at=begin(layout.weight_at, item(layout.weight_type)),
        weight_type=layout.weight_type,
        apart=True,
    )


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


class CountedSource(WrappedSource):
    """A source of text with its rows counted."""

    def __init__(self, source: BlockSource) -> None:
        super().__init__(source)
        self.exact_rows = True
        first = source.schema.names[:1]
        blocks = range(len(source.block_rows))
        with closing(in_order(lambda block: len(source.read(block, first)), blocks, threads=source.threads)) as counts:
            self.block_rows = np.array(list(counts), np.int64)

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block."""
        return self.stored.read(block, columns)

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows in smaller blocks, whose rows are counted too; see `BlockSource.refine`."""
        finer = self.stored.refine(rows, most)
        return None if finer is None else CountedSource(finer)
