"""Each row straight to its place: the second pass over data whose groups are counted, for dense rows.

Some rows at a time are sorted by group in memory that is used again and again, and each group's are written to where they
lie in the end; there are no runs and no merging, and little memory is needed however large the data are. What was placed
before an interruption is read back, and not placed again where it is what was written. Two threads do it; where blocks must be read in order, one reads at a time.
Plain NumPy is as fast here as compiled loops, which would have to be loaded first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.features import Encoder
from penstock.checksum import checksum
from penstock.errors import WriteError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups.file_layout import Laid
from penstock.groups.group_counts import Counted
from penstock.groups.grouping_reads import stretches
from penstock.groups.scratch import Placed
from penstock.linear import encoded
from penstock.loader.row_forms import Slots
from penstock.parallel import in_order

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
    """Puts rows into their places.

    Parameters
    ----------
    source : BlockSource
        The data.
    encoder : Encoder
        What makes rows of it, dense.
    counted : Counted
        Which group each row is in.
    laid : Laid
        Where the rows of each group lie.
    chunk : int
        Bytes of rows that are sorted at once; there are two such pieces under way.
    """

    def __init__(self, source: BlockSource, encoder: Encoder, counted: Counted, laid: Laid, *, chunk: int) -> None:
        self._source, self._encoder, self._counted, self._laid = source, encoder, counted, laid
        self._columns = list(encoder.columns)
        self._sizes = source.block_rows * (encoder.row_bytes + ROW_BYTES)
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
            room = Slots.empty(len(numbers), self._encoder).batch(len(numbers))
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
            rooms.put(Slots.empty(most, self._encoder))
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
                rows = room.batch(len(numbers))
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
            rows = encoded(self._encoder, self._source, block, self._source.read(block, self._columns), finite=False)
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
