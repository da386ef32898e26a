"""Ratings made ready for factorisation: two passes over the data, and a file of them by buckets.

The first pass counts users and items and finds the mean; the second writes each rating as two record numbers and a
number. Rows are gathered in memory, shuffled, put in the order of their buckets and written in blocks, each of one
bucket and with a checksum; a bucket's blocks may lie anywhere in the file. Missing keys and ratings that are no numbers
are refused.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Floats
from penstock.bigmodel.grid import BLOCK, FactorLayout, Grid
from penstock.bigmodel.keys import KeyCounts, KeyTable, as_keys
from penstock.bigmodel.store import Int64s
from penstock.blocks.base import BlockSource, naming_rows
from penstock.closing import Closing
from penstock.columns.base import without_dictionary
from penstock.errors import ColumnError, CorruptFileError, DataError, LabelError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.loader.holdout import SplitPart
from penstock.messages import Text, Use
from penstock.outputs import atomic_path, read_at, read_into
from penstock.parallel import in_order
from penstock.sgd.factor import ABSENT
from penstock.shuffle.permute import slots

Triples = NDArray[np.uint32]
"""(rows, 3): a user's record, an item's record, and the bits of a float32 rating."""

ROW_BYTES = 12
_SORTING = 48
"""Bytes that a row takes while its segment is put in order."""
_MAGIC = b"pnstkRT1"
_END = struct.Struct("<IQ8s")


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns name the user and the item, and which holds the rating.

    Examples
    --------
    >>> Roles("user", "item", "stars").names
    ['user', 'item', 'stars']
    """

    user: str = "user"
    item: str = "item"
    rating: str = "rating"

    @property
    def names(self) -> list[str]:
        """The three columns."""
        return [self.user, self.item, self.rating]

    def require(self, source: BlockSource, *, rated: bool = True) -> None:
        """Raise unless a source has these columns; without ``rated``, the first two."""
        roles = (("user column", self.user), ("item column", self.item), ("rating column", self.rating))
        if len(set(self.names)) < 3:
            raise UsageError(f"{', '.join(self.names)}: user, item and rating must be three different columns")
        for role, name in roles if rated else roles[:2]:
            if name not in source.schema.names:
                raise ColumnError.missing(name, source.schema.names, place=source.name, role=role)


@dataclass(frozen=True, slots=True)
class Read:
    """Some rows of a block: their keys, and their ratings where wanted."""

    users: pa.Array
    items: pa.Array
    ratings: Floats


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the first pass found: the keys by falling frequency, the ratings' number, mean and spread."""

    users: KeyTable
    items: KeyTable
    rows: int
    mean: float
    spread: float


def read_ratings(
    source: BlockSource, roles: Roles, *, part: SplitPart | None = None, rated: bool = True
) -> Generator[Read, None, None]:
    """Yield a source's rows block by block, or those on one side of a split; what cannot be used is refused by its row.

    Close it where it may be left half used.
    """
    roles.require(source, rated=rated)
    names = roles.names if rated else roles.names[:2]

    def read(block: int) -> Read:
        rows = source.read(block, names)
        found = naming_rows(source, block, lambda place, first: _decoded(rows, roles, rated, place, first))
        if part is None:
            return found
        kept = np.flatnonzero(part.has(np.int64(block), np.arange(len(rows))))
        picks = pa.array(kept)
        return Read(found.users.take(picks), found.items.take(picks), found.ratings[kept] if rated else found.ratings)

    return in_order(read, range(len(source.block_rows)), threads=source.threads)


def scan_ratings(
    source: BlockSource, roles: Roles, *, part: SplitPart | None = None, stream: Stream | None = None
) -> Scanned:
    """Count the users and items of a source's rows (or of one side of a split) and find the mean rating."""
    stream = stream or Stream()
    users, items = KeyCounts(), KeyCounts()
    rows, total, squares, pivot = 0, 0.0, 0.0, 0.0
    stream.emit(Started("scan", len(source.block_rows), "blocks"))
    with closing(read_ratings(source, roles, part=part)) as blocks:
        for read in blocks:
            if len(read.ratings):
                users.add(read.users)
                items.add(read.items)
                pivot = pivot if rows else float(read.ratings[0])
                apart = read.ratings.astype(np.float64) - pivot
                total, squares = total + float(apart.sum()), squares + float(apart @ apart)
                rows += len(apart)
            stream.emit(Advanced("scan", 1))
    stream.emit(Finished("scan"))
    if not rows:
        raise DataError(f"{source.name} has no ratings; there is nothing to train on")
    shift = total / rows
    spread = float(np.sqrt(max(squares / rows - shift**2, 0.0)))
    return Scanned(users.table(), items.table(), rows, pivot + shift, spread)


def triples(read: Read, users: KeyTable, items: KeyTable, layout: FactorLayout) -> Triples:
    """Return rows by their records; what is not known becomes ABSENT."""
    out = np.empty((len(read.users), 3), np.uint32)
    out[:, 0] = users.find(read.users)
    found = items.find(read.items)
    out[:, 1] = np.where(found == ABSENT, ABSENT, found + np.uint32(layout.first_item))
    out[:, 2] = read.ratings.view(np.uint32) if len(read.ratings) else 0
    return out


def write_ratings(
    path: str | os.PathLike[str],
    rows: Iterator[Triples],
    grid: Grid,
    *,
    seed: int,
    memory: int,
    about: Mapping[str, Any],
    block: int = BLOCK,
) -> int:
    """Write ratings by buckets, and return how many; ``memory`` bounds the rows that are put in order at once."""
    most = max(block, memory // _SORTING)
    notes: list[tuple[int, int, int]] = []
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(_MAGIC)
        for number, segment in enumerate(_segments(rows, most)):
            count += len(segment)
            buckets = grid.bucket_of(segment[:, 0], segment[:, 1])
            mixed = slots(len(segment), seeds.key(seed, "segment", number))
            mixed = mixed[np.argsort(buckets[mixed], kind="stable")]
            ordered, buckets = segment[mixed], buckets[mixed]
            edges = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(segment)]
            for start, stop in itertools.pairwise(edges):
                for at in range(start, stop, block):
                    content = ordered[at : min(at + block, stop)].data
                    notes.append((int(buckets[at]), len(content), zlib.crc32(content, len(notes))))
                    file.write(content)
        table = np.array(notes, np.uint32).reshape(-1, 3).tobytes()
        footer = json.dumps(dict(about)).encode()
        tail = struct.pack("<Q", len(footer)) + footer + table
        file.write(tail + _END.pack(zlib.crc32(tail), len(tail), _MAGIC))
    return count


class RatingsFile(Closing):
    """Ratings by buckets, as `write_ratings` left them.

    Parameters
    ----------
    path : path
        The file.

    Attributes
    ----------
    about : dict
        What the writer noted.
    rows : int
        How many ratings there are.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = self.path.open("rb", buffering=0)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        fd = self._file.fileno()
        end = read_at(fd, _END.size, max(0, size - _END.size))
        if len(end) < _END.size or end[-8:] != _MAGIC:
            raise self._damaged("it does not end as it should")
        crc, length, _ = _END.unpack(end)
        start = size - _END.size - length
        tail = read_at(fd, length, start) if start >= len(_MAGIC) else b""
        if zlib.crc32(tail) != crc or not tail:
            raise self._damaged("its index is not what was written")
        (noted,) = struct.unpack_from("<Q", tail)
        self.about: dict[str, Any] = json.loads(tail[8 : 8 + noted])
        table = np.frombuffer(tail, np.uint32, offset=8 + noted).reshape(-1, 3)
        self._rows, self._sums = table[:, 1].astype(np.int64), table[:, 2]
        self._starts = len(_MAGIC) + ROW_BYTES * np.concatenate([[0], np.cumsum(self._rows)]).astype(np.int64)
        self.rows = int(self._rows.sum())
        if self._starts[-1] != start:
            raise self._damaged(f"it has {start} bytes of ratings where {self._starts[-1]} should be")
        order = np.argsort(table[:, 0], kind="stable")
        self._by_bucket = order, table[order, 0]

    def blocks(self, bucket: int) -> Int64s:
        order, buckets = self._by_bucket
        first, last = np.searchsorted(buckets, [bucket, bucket + 1])
        found: Int64s = order[first:last].astype(np.int64)
        return found

    def pieces(self, blocks: Int64s, most: int) -> list[Int64s]:
        """Cut a run of blocks into runs of at most so many ratings, or of one block."""
        out, start, held = [], 0, 0
        for at, rows in enumerate(self._rows[blocks].tolist()):
            if held and held + rows > most:
                out.append(blocks[start:at])
                start, held = at, 0
            held += rows
        return [*out, blocks[start:]] if held else out

    def read(self, blocks: Int64s) -> Triples:
        """Return the ratings of some blocks, one after the other.

        Raises
        ------
        CorruptFileError
            A block is not what was written.
        """
        ends = np.cumsum(self._rows[blocks])
        out = np.empty((int(ends[-1]) if len(ends) else 0, 3), np.uint32)
        for block, end in zip(blocks.tolist(), ends.tolist(), strict=True):
            view = out[end - int(self._rows[block]) : end].data.cast("B")
            got = read_into(self._file.fileno(), view, int(self._starts[block]))
            if got != len(view) or zlib.crc32(view, block) != int(self._sums[block]):
                raise self._damaged(f"block {block} is not what was written")
        return out

    def close(self) -> None:
        self._file.close()

    def _damaged(self, why: str) -> CorruptFileError:
        return CorruptFileError(
            f"{self.path} is damaged: {why}",
            fixes=[Text("delete it and go on with ", Use("resume", True), ", and it is made again from the data")],
        )


def _segments(rows: Iterator[Triples], most: int) -> Iterator[Triples]:
    """Join runs of rows into runs of at most so many, all full but the last."""
    held: list[Triples] = []
    count = 0
    for run in rows:
        while count + len(run) >= most:
            held.append(run[: most - count])
            run = run[most - count :]
            yield np.concatenate(held)
            held, count = [], 0
        if len(run):
            held.append(run)
            count += len(run)
    if held:
        yield np.concatenate(held)


def _decoded(rows: pa.RecordBatch, roles: Roles, rated: bool, place: str, first_row: int) -> Read:
    users = as_keys(rows.column(roles.user), roles.user, first_row=first_row, place=place)
    items = as_keys(rows.column(roles.item), roles.item, first_row=first_row, place=place)
    if not rated:
        return Read(users, items, np.zeros(0, np.float32))
    column = without_dictionary(rows.column(roles.rating))
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ColumnError(f"{place}: the rating column {roles.rating!r} is {kind}; ratings are numbers")
    with np.errstate(over="ignore"):  # what is too large for float32 is refused below
        ratings = column.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(ratings))
    if len(bad):
        told = "no value" if column[int(bad[0])].as_py() is None else str(ratings[bad[0]])
        raise LabelError(
            f"{place} has {told} as {roles.rating!r} in row {first_row + int(bad[0])}; remove such rows before training"
        )
    return Read(users, items, ratings)
