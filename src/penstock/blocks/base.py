"""The contract of everything that data can come from.

A `BlockSource` is a data set cut into blocks, each a contiguous run of rows that is read at once. Reads are
thread-safe and hold no state that a reader can see. A one-shot stream is not a source: `blocks.write` turns
it into a file first. `IndexedSource` adds reads of single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.closing import Closing

Int64s = NDArray[np.int64]


@runtime_checkable
class BlockSource(Protocol):
    """A data set in blocks.

    Attributes
    ----------
    name : str
        What messages call it: its path or address.
    schema : pyarrow.Schema
        The columns and their types.
    block_rows : int64 array
        Rows in each block. Where ``exact_rows`` is false (text, which is not scanned beforehand) an estimate.
    block_bytes : int64 array
        Stored bytes of each block, what one read costs.
    exact_rows : bool
        Whether ``block_rows`` is exact.
    units : int64 array or None
        Where blocks are parts of larger pieces that can only be decoded from their start (Parquet row
        groups), the piece each block belongs to; reading a piece's blocks in ascending order decodes it once.
    unit_bytes : int
        What a piece that is half read keeps in memory.
    max_open : int
        How many pieces are kept half read; a loader lowers it to what it has memory for.
    threads : int or None
        How many threads may read consecutive blocks at once: one where they are parts of such pieces.
    fingerprint : str
        Changes when the data do.
    """

    name: str
    schema: pa.Schema
    block_rows: Int64s
    block_bytes: Int64s
    exact_rows: bool
    units: Int64s | None
    unit_bytes: int
    max_open: int
    threads: int | None

    @property
    def fingerprint(self) -> str: ...

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order, or all."""
        ...

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class IndexedSource(BlockSource, Protocol):
    """A source whose rows can be read one by one."""

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read the rows with these numbers, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where a source's rows lie in its file, for sources whose blocks need no decoding.

    Block ``b`` is ``block_bytes[b]`` bytes at ``offsets[b]``; within it lie, one after another from
    ``features_at``, rows of ``width`` float32 values, and from ``label_at`` (and ``weight_at``; -1 if there is
    none) one value per row of the given NumPy type. The columns' offsets are per block, since the last block
    is shorter. One read fetches a block; rows then go straight to their slots.
    """

    fd: int
    offsets: Int64s
    nbytes: Int64s
    rows: Int64s
    width: int
    features_at: Int64s
    label_at: Int64s
    label_type: np.dtype[np.generic] | None
    weight_at: Int64s
    weight_type: np.dtype[np.generic] | None


@runtime_checkable
class PackedSource(BlockSource, Protocol):
    """A source that can say where its rows lie."""

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return the layout for these columns, or None where decoding is needed."""
        ...


class Source(Closing):
    """What all sources share: a name, a fixed schema, and being a context manager."""

    name: str
    schema: pa.Schema
    block_rows: Int64s
    block_bytes: Int64s
    exact_rows: bool = True
    units: Int64s | None = None
    unit_bytes: int = 0
    max_open: int = 1
    threads: int | None = None

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened; here they cannot change."""

    def begin(self, epoch: int) -> None:
        """Hear that an epoch begins: a source that others write to may turn to their latest state."""

    def close(self) -> None:
        """Give back files and memory; reading afterwards fails."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r}: {len(self.block_rows)} blocks, {int(self.block_rows.sum())} rows>"
        )


def begin_epoch(source: BlockSource, epoch: int) -> None:
    """Tell a source that an epoch begins, if it wants to know, and see that its data are those that were opened."""
    begin = getattr(source, "begin", None)  # not part of the contract: most data do not change
    if begin is not None:
        begin(epoch)
    source.check()
