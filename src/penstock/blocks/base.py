"""The contract of everything that data can come from.

A `BlockSource` is a data set cut into blocks, each a contiguous run of rows that is read at once. Reads are
thread-safe and hold no state that a reader can see. A one-shot stream is not a source: `blocks.write` turns
it into a file first. What only some data can do (smaller blocks, rows at known bytes, states of a database) is declared here too, with the answer of those that cannot; `Source` gives that answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.closing import Closing
from penstock.errors import BlockIndexError, ColumnError, DataError, SchemaError
from penstock.messages import Location

if TYPE_CHECKING:
    from penstock.blocks.fields import Fields
    from penstock.blocks.row_layout import RowLayout

Int64s = NDArray[np.int64]
Nulls = Literal["fill", "error", "skip"]
"""What a table's source does with rows that hold a null: serve them, for the recipe to fill, refuse them, or leave them out."""
NULLS: tuple[Nulls, ...] = ("fill", "error", "skip")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a database that rows were read in: its name, as the database writes it, and when it was taken."""

    name: str
    at: datetime


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
        What a piece that is half read keeps in memory, if all columns are read; see `unit_bytes_of`. Where ``units`` is
        None, what reading keeps once, however many threads read: a block is then decoded with the piece it lies in.
    max_open : int
        How many pieces are kept half read; while a loader runs it is what the loader has memory for.
    read_bytes : int
        What reading a block holds, where that is more than the block itself and its rows; 0 where it is not.
    threads : int or None
        How many threads may read consecutive blocks at once: one where they are parts of such pieces.
    decodes : bool
        Whether reading decodes files, and ``check`` tells when they change: rows may then be encoded once for all epochs.
    fingerprint : str
        Changes when the data do.
    snapshots : sequence of Snapshot
        The states of a database that rows were read in so far.
    """

    name: str
    schema: pa.Schema
    block_rows: Int64s
    block_bytes: Int64s
    exact_rows: bool
    units: Int64s | None
    unit_bytes: int
    max_open: int
    read_bytes: int
    threads: int | None
    decodes: bool

    @property
    def fingerprint(self) -> str: ...

    @property
    def snapshots(self) -> Sequence[Snapshot]: ...

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order, or all."""
        ...

    def read_many(self, blocks: Sequence[int], columns: Sequence[str] | None = None) -> Sequence[pa.RecordBatch]:
        """Read several blocks, whose numbers ascend; a source may do so for less than one by one."""
        ...

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows, in the same order, in smaller blocks, or None where they cannot be had.

        Blocks have about ``rows`` rows where reading so few of them costs little more for each than reading a stored
        block, and at most ``most`` rows where a stored block can be cut at all. The source stays open, and is closed by
        its owner.
        """
        ...

    def origin(self, block: int) -> tuple[int, int]:
        """Return the stored block that a block is a part of, and the number of its rows before the part."""
        ...

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where rows of these columns lie, or None where decoding is needed."""
        ...

    def row_layout(self, fields: Fields) -> RowLayout | None:
        """Return at which bytes single rows of these fields lie, or None where decoding is needed."""
        ...

    def unit_bytes_of(self, columns: Sequence[str]) -> int:
        """Return what a piece that is half read keeps in memory, if these columns are read."""
        ...

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        ...

    def begin(self, epoch: int) -> None:
        """Begin an epoch: a source that others write to may turn to their latest state."""
        ...

    def release(self) -> None:
        """Give back what is held between reads, such as connections; reading takes it again."""
        ...

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where a source's rows lie in its file, for sources whose blocks need no decoding.

    Block ``b`` is ``block_bytes[b]`` bytes at ``offsets[b]``; within it lie, one after another from
    ``features_at``, rows of ``width`` float32 values, and from ``label_at`` (and ``weight_at``; -1 if there is
    none) one value per row of the given NumPy type. The columns' offsets are per block, since the last block
    is shorter. One read fetches a block; rows then go straight to their slots. ``sums`` are the blocks' checksums, seeded with
    their offsets; zero where there is none. Where columns lie ``apart``, as those of parts of larger blocks do, the bytes
    are the features' alone, each column is read by itself, and where it begins counts from the start of the file.
    """

    fd: int
    offsets: Int64s
    nbytes: Int64s
    sums: NDArray[np.uint64]
    rows: Int64s
    width: int
    features_at: Int64s
    label_at: Int64s
    label_type: np.dtype[np.generic] | None
    weight_at: Int64s
    weight_type: np.dtype[np.generic] | None
    apart: bool = False

    def places(self, at: Int64s) -> Int64s:
        """Return where a column begins in the file, for each block."""
        return at if self.apart else self.offsets + at


class Source(Closing):
    """What all sources share: being a context manager, and the answers of data without any optional ability."""

    name: str
    schema: pa.Schema
    block_rows: Int64s
    block_bytes: Int64s
    exact_rows: bool = True
    units: Int64s | None = None
    unit_bytes: int = 0
    max_open: int = 1
    read_bytes: int = 0
    threads: int | None = None
    decodes: bool = False

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """The states of a database that rows were read in so far; none here."""
        return ()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order, or all."""
        raise NotImplementedError

    def read_many(self, blocks: Sequence[int], columns: Sequence[str] | None = None) -> Sequence[pa.RecordBatch]:
        """Read several blocks, whose numbers ascend."""
        return [self.read(block, columns) for block in blocks]

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows in smaller blocks; None, as blocks are read as they are stored."""
        return None

    def origin(self, block: int) -> tuple[int, int]:
        """Return the stored block that a block is a part of: itself, with no rows before it."""
        return block, 0

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where rows of these columns lie; None, as blocks are decoded."""
        return None

    def row_layout(self, fields: Fields) -> RowLayout | None:
        """Return at which bytes single rows lie; None, as blocks are decoded."""
        return None

    def unit_bytes_of(self, columns: Sequence[str]) -> int:
        """Return what a piece that is half read keeps in memory, whichever columns are read."""
        return self.unit_bytes

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened; here they cannot change."""

    def begin(self, epoch: int) -> None:
        """Begin an epoch; data that nobody else writes to stay as they are."""

    def release(self) -> None:
        """Give back what is held between reads; here that is nothing."""

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        return self.name, 0

    def close(self) -> None:
        """Give back files and memory; reading afterwards fails."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r}: {len(self.block_rows)} blocks, {int(self.block_rows.sum())} rows>"
        )


class WrappedSource(Source):
    """A source that serves another's data, ``stored``, with other blocks or columns: what it does not say itself is the other's."""

    def __init__(self, source: BlockSource) -> None:
        self.stored = source
        self.name, self.schema, self.exact_rows = source.name, source.schema, source.exact_rows
        self.block_rows, self.block_bytes, self.units = source.block_rows, source.block_bytes, source.units
        self.unit_bytes, self.read_bytes, self.threads = source.unit_bytes, source.read_bytes, source.threads
        self.decodes = source.decodes

    @property
    def max_open(self) -> int:
        """How many pieces are kept half read."""
        return self.stored.max_open

    @max_open.setter
    def max_open(self, value: int) -> None:
        self.stored.max_open = value

    @property
    def fingerprint(self) -> str:
        """The data's own."""
        return self.stored.fingerprint

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """The data's own."""
        return self.stored.snapshots

    def origin(self, block: int) -> tuple[int, int]:
        """Return the stored block that a block is a part of, and the number of its rows before the part."""
        return self.stored.origin(block)

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        return self.stored.file_of(block)

    def begin(self, epoch: int) -> None:
        """Begin an epoch of the data."""
        self.stored.begin(epoch)

    def release(self) -> None:
        """Give back what is held between reads."""
        self.stored.release()

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened."""
        self.stored.check()

    def close(self) -> None:
        """Close the source."""
        self.stored.close()


def begin_epoch(source: BlockSource, epoch: int) -> None:
    """Begin an epoch of a source, and see that its data are those that were opened."""
    source.begin(epoch)
    source.check()


@contextmanager
def one_piece_open(source: BlockSource) -> Iterator[None]:
    """Let a source keep one piece half read at most, for blocks read in ascending order or picked singly."""
    opened = source.max_open
    source.max_open = min(1, opened)
    try:
        yield
    finally:
        source.max_open = opened


def require_block(block: int, count: int, *, name: str) -> None:
    """Raise unless there is a block with this number."""
    if not 0 <= block < count:
        raise BlockIndexError(f"{name} has no block {block}; it has {count} blocks, numbered from 0")


def select_columns(batch: pa.RecordBatch, columns: Sequence[str] | None, *, place: str) -> pa.RecordBatch:
    """Return the columns named, in that order, or the batch itself for None."""
    if columns is None:
        return batch
    require_columns(batch.schema, columns, place=place)
    return batch.select(list(columns))


def require_columns(schema: pa.Schema, columns: Sequence[str], *, place: str) -> None:
    """Raise `ColumnError` for the first column that is not there."""
    present = schema.names  # built anew at every access
    known = set(present)
    for name in columns:
        if name not in known:
            raise ColumnError.missing(name, present, place=place)


def require_distinct_names(names: Sequence[str], *, place: str) -> None:
    """Raise `SchemaError` where a name is that of several columns.

    Examples
    --------
    >>> require_distinct_names(["a", "b", "a"], place="clicks.parquet")
    Traceback (most recent call last):
    penstock.errors.SchemaError: clicks.parquet has the column 'a' more than once; give every column its own name
    """
    if len(set(names)) == len(names):
        return
    twice = min(name for name, count in Counter(names).items() if count > 1)
    reason = f" has the column {twice!r} more than once"
    raise SchemaError(Location(place), reason, fixes=["give every column its own name"])


def row_place(source: BlockSource, block: int, row: int) -> tuple[str, int]:
    """Return what messages call a row: the file that it lies in, and its number there, from 0.

    Where rows were not counted, those before it in the file are counted now.
    """
    name, first = source.file_of(block)
    if source.exact_rows:
        return name, int(source.block_rows[first:block].sum()) + row
    return name, sum(len(source.read(b, source.schema.names[:1])) for b in range(first, block)) + row


def naming_rows(source: BlockSource, block: int, decode: Callable[[str, int], T]) -> T:
    """Return ``decode(place, first_row)`` of a block; a row that it refuses is named by its file and number there.

    The name is looked for only then: to number rows of text takes a pass.
    """
    try:
        return decode(source.name, 0)
    except DataError:
        return decode(*row_place(source, block, 0))
