"""Each row straight to its place: the second pass over data whose groups are counted, for dense rows.

How many rows each group has tells where in which file each of its rows will lie. Arrow itself writes the files first, into a
sink that keeps everything but the values; room for these is reserved, so that a disk too small is reported at once. Then
some rows at a time are sorted by group in memory that is reused, and each group's are written to their final place; there
are no runs and no merging. What was placed before an interruption is verified and not placed again. Two threads do it; where
blocks must be read in order, one reads at a time. Plain NumPy is as fast here as compiled loops, which would have to be loaded.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.checksum import checksum
from penstock.columns.recipe import Recipe
from penstock.errors import WriteError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups.group_counts import Counted, stretches
from penstock.groups.grouped import padded
from penstock.groups.scratch import Placed
from penstock.linear import encoded
from penstock.loader.row_forms import Slots
from penstock.outputs import is_disk_full, read_into, write_at, writing
from penstock.parallel import in_order


class HollowFile:
    """A file for Arrow to write to that passes over values: those of ``blank``, which stand for rows to come.

    What the file holds already stays, if it is as long as it should be.
    """

    def __init__(self, path: Path, blank: NDArray[np.float32]) -> None:
        self.closed = False
        self.holes = self._at = 0
        self._blank = blank.ctypes.data
        self._path = path
        self._before = path.stat().st_size if path.exists() else -1
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._held: list[bytes] = []

    @property
    def whole(self) -> bool:
        """Whether the file was there before, as long as it is now, and nothing was written over its rows."""
        return self._at == self._before and self.holes > 0

    def tell(self) -> int:
        """Return where the next bytes go."""
        return self._at

    def write(self, data: bytes | pa.Buffer) -> int:
        """Write bytes, unless they are blank."""
        if isinstance(data, pa.Buffer) and data.address == self._blank:
            self.holes += 1
            self._flush()
        else:
            self._held.append(bytes(data))
        self._at += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: all is written at the next hole."""

    def close(self) -> None:
        """End the file, with room for all that it will hold."""
        if self.closed:
            return
        self.closed = True
        try:
            self._flush()
            if self._before > self._at:
                os.ftruncate(self._fd, self._at)
            _reserve(self._fd, self._at)
        finally:
            os.close(self._fd)

    def _flush(self) -> None:
        data = b"".join(self._held)
        self._held = []
        if data:
            write_at(self._fd, memoryview(data), self._at - len(data))


@dataclass(frozen=True, slots=True)
class Laid:
    """Where rows will lie.

    Attributes
    ----------
    paths : list of Path
        The files.
    file, at, rows : int64 array
        Of each block: its file, where its values begin, and how many rows it has.
    first : int64 array
        Of each group: its first block.
    fits : int
        The rows of a block that is full.
    whole : bool
        Whether all files were there before, so that rows already in them are still there.
    """

    paths: Sequence[Path]
    file: Int64s
    at: Int64s
    rows: Int64s
    first: Int64s
    fits: int
    whole: bool

    def put(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch) -> None:
        """Write rows that are sorted by group, to where they lie.

        Parameters
        ----------
        groups, starts, counts : int64 array
            The groups in ascending order, the number within each of the first of the rows, and how many there are.
        rows : Batch
            The rows of all these groups, dense.
        """
        self._move(groups, starts, counts, rows, os.O_WRONLY)

    def read_back(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch) -> None:
        """Read rows from where `put` wrote them, into others of the same size."""
        self._move(groups, starts, counts, rows, os.O_RDONLY)

    def _move(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch, mode: int) -> None:
        # A group's rows may fall into several of its blocks: each such piece is written by itself.
        pieces = (starts + counts - 1) // self.fits - starts // self.fits + 1
        run = np.repeat(np.arange(len(groups)), pieces)
        block = starts[run] // self.fits + np.arange(len(run)) - (np.cumsum(pieces) - pieces)[run]
        low = np.maximum(starts[run], block * self.fits)
        high = np.minimum((starts + counts)[run], (block + 1) * self.fits)
        source = (np.cumsum(counts) - counts)[run] + low - starts[run]
        low, high = low - block * self.fits, high - block * self.fits
        block += self.first[groups][run]
        places = self.at[block]
        files = self.file[block]
        # One open file at a time, since there may be thousands.
        for number in np.unique(files).tolist():
            here = slice(*np.searchsorted(files, [number, number + 1]))
            with writing(self.paths[number]):
                fd = os.open(self.paths[number], mode | os.O_CLOEXEC)
                try:
                    move = write_at if mode == os.O_WRONLY else _read
                    within = places[here], self.rows[block[here]], source[here], low[here], high[here]
                    self._move_pieces(fd, rows, *within, move)
                finally:
                    os.close(fd)

    def _move_pieces(
        self,
        fd: int,
        rows: Batch,
        at: Int64s,
        block_rows: Int64s,
        source: Int64s,
        low: Int64s,
        high: Int64s,
        move: Callable[[int, memoryview, int], None],
    ) -> None:
        """Move pieces: rows from ``source`` on are those from ``low`` to ``high`` of the block at ``at``."""
        for column in (rows.x, rows.y, rows.weight):
            if not isinstance(column, np.ndarray):
                continue
            size = column[:1].nbytes
            view = column.reshape(-1).view(np.uint8).data
            begins, ends = source * size, (source + high - low) * size
            for begin, end, place in zip(begins.tolist(), ends.tolist(), (at + low * size).tolist()):
                move(fd, view[begin:end], place)
            at = at + padded(block_rows * size)


def _read(fd: int, view: memoryview, at: int) -> None:
    if read_into(fd, view, at) < len(view):
        raise OSError(errno.EIO, "the file is cut short")


def _reserve(fd: int, nbytes: int) -> None:
    """Set room aside on the disk, where the system can."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except (AttributeError, OSError) as error:
        if is_disk_full(error):
            raise
        os.ftruncate(fd, nbytes)


ROW_BYTES = 24
"""What placing takes for each row beside the row."""
LEAST_ROWS = 16
"""Rows of each group that should come together on average: with fewer, writing them one group after another is slow."""
_ENOUGH_ROWS, _ENOUGH = 64, 16_000_000
_THREADS = 2


def chunk_bytes(most: int, *, groups: int, row_bytes: int) -> int:
    """Return how many bytes of rows to place at once, or 0 if sorting in runs is the better way.

    Memory that was never used before is slow to get, so no more is taken than makes writes large enough.
    """
    chunk = min(most, max(_ENOUGH, _ENOUGH_ROWS * groups * row_bytes))
    return chunk if chunk >= LEAST_ROWS * groups * row_bytes else 0


class Scatter:
    """Puts dense rows into their places; ``chunk`` bytes of them are sorted at once, and two such pieces are under way."""

    def __init__(self, source: BlockSource, recipe: Recipe, counted: Counted, laid: Laid, *, chunk: int) -> None:
        self._source, self._recipe, self._counted, self._laid = source, recipe, counted, laid
        self._columns = list(recipe.columns)
        self._sizes = source.block_rows * (recipe.row_bytes + ROW_BYTES)
        self._chunk = chunk
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(source.block_rows)])

    def verified(self, placed: Sequence[Placed]) -> list[Placed]:
        """Return the stretches placed by an earlier attempt up to the first whose rows are not what was written."""
        good: list[Placed] = []
        at = self._counted.before(0)
        for each in placed:
            blocks = range(each.first, each.stop)
            if each.stop > len(self._sizes) or (len(blocks) > 1 and int(self._sizes[blocks].sum()) > self._chunk):
                break  # of an attempt with more memory
            numbers, groups, counts = self._numbers(blocks)
            room = Slots.empty(len(numbers), self._recipe).slice(0, len(numbers))
            try:
                self._laid.read_back(groups, at[groups], counts, room)
            except WriteError:
                break
            if _checksum(room) != each.rows:
                break
            at[groups] += counts
            good.append(each)
        return good

    def run(self, begin: int, *, done: Callable[[Placed], None], stream: Stream) -> None:
        """Place the rows of all blocks from one on; ``done`` is told of each stretch that is in place, in order."""
        source = self._source
        task = f"group {source.name}"
        stream.emit(Started(task, int(source.block_bytes.sum()), "bytes"))
        if begin:
            stream.emit(Advanced(task, int(source.block_bytes[:begin].sum()), "taken up again"))
        chunks = list(stretches(self._sizes, self._chunk, begin))
        most = max((int(self._ends[blocks.stop] - self._ends[blocks.start]) for blocks in chunks), default=0)
        rooms: SimpleQueue[Slots] = SimpleQueue()
        for _ in range(_THREADS):
            rooms.put(Slots.empty(most, self._recipe))
        read = [threading.Event() for _ in chunks]
        waiting: dict[int, tuple[Int64s, Int64s, Int64s, Int64s]] = {}

        def numbered() -> Iterator[int]:
            """Yield the chunks, and find where the rows of each begin among those of their group."""
            at = self._counted.before(int(self._ends[begin]))
            for number, blocks in enumerate(chunks):
                numbers, groups, counts = self._numbers(blocks)
                waiting[number] = numbers, groups, at[groups], counts
                at[groups] += counts
                yield number

        def place(number: int) -> Placed:
            numbers, groups, starts, counts = waiting.pop(number)
            room = rooms.get()
            try:
                if number and self._source.threads == 1:
                    read[number - 1].wait()
                self._fill(chunks[number], _slots(numbers, groups=len(self._counted.rows)), room)
                read[number].set()
                rows = room.slice(0, len(numbers))
                self._laid.put(groups, starts, counts, rows)
                return Placed(chunks[number].start, chunks[number].stop, _checksum(rows))
            finally:
                read[number].set()
                rooms.put(room)

        with closing(in_order(place, numbered(), threads=_THREADS)) as placed:
            for blocks, each in zip(chunks, placed):
                stream.emit(Advanced(task, int(source.block_bytes[blocks].sum())))
                done(each)
        stream.emit(Finished(task))

    def _numbers(self, blocks: range) -> tuple[Int64s, Int64s, Int64s]:
        """Return the group of each row of some blocks, the groups among them, and how many rows each has."""
        numbers = self._counted.read(int(self._ends[blocks.start]), int(self._ends[blocks.stop]))
        counts = np.bincount(numbers, minlength=len(self._counted.rows))
        groups = np.flatnonzero(counts)
        return numbers, groups, counts[groups]

    def _fill(self, blocks: range, slots: NDArray[np.intp], room: Slots) -> None:
        """Read blocks, and put their rows into slots."""
        edges = self._ends[blocks.start : blocks.stop + 1] - self._ends[blocks.start]
        for block, (first, last) in zip(blocks, pairwise(edges.tolist())):
            rows = encoded(self._recipe, self._source, block, self._source.read(block, self._columns), finite=False)
            _put(rows, slots[first:last], room)


def _slots(numbers: Int64s, *, groups: int) -> NDArray[np.intp]:
    """Return the place of each row when they are sorted by group, those of a group staying in order."""
    # Numbers of 16 bits are sorted by radix, several times as fast.
    order = np.argsort(numbers.astype(np.uint16 if groups <= 1 << 16 else np.int32), kind="stable")
    slots = np.empty(len(order), np.intp)
    slots[order] = np.arange(len(order))
    return slots


def _checksum(rows: Batch) -> int:
    found = 0
    for column in (rows.x, rows.y, rows.weight):
        if isinstance(column, np.ndarray):
            found = checksum(column, found)
    return found


def _put(rows: Batch, slots: NDArray[np.intp], room: Slots) -> None:
    for column, into in ((rows.x, room.x), (rows.y, room.y), (rows.weight, room.w)):
        if column is not None and not isinstance(column, Csr):
            whole = f"V{into.strides[0]}"  # a row as one value, which is moved faster than its parts
            into.view(whole).reshape(-1)[slots] = np.ascontiguousarray(column).view(whole).reshape(-1)
