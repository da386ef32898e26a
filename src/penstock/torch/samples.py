"""Samples one by one in a Penstock order, from a map-style dataset or from stored data, as dealt to the processes of a job.

A map-style dataset is read in blocks, runs of consecutive indices. The buffer holds whole samples: while those of one window
are given out, the blocks of the next are read into the room that they leave, so a batch costs about as much as any other
and no more than the buffer is held. Stored data are opened in the process that reads, never handed to another.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.blocks.fields import ROW_NUMBERS, Fields
from penstock.budget import Budget, Bytes
from penstock.columns.recipe import Recipe
from penstock.errors import BudgetError
from penstock.events import log
from penstock.loader.batches import open_counted
from penstock.loader.loader import Loader
from penstock.loader.plan import default_threads
from penstock.messages import Given, Text, Use
from penstock.records import Records
from penstock.shuffle import Order, RowWindow, Shape, Window
from penstock.shuffle.base import Int64s, Mixer
from penstock.shuffle.permute import slots
from penstock.torch.fetch import BatchMaker
from penstock.torch.ranks import WorkerPlace
from penstock.torch.tensors import tensors


@dataclass(frozen=True, slots=True)
class BlocksOfSamples:
    """The samples of a map-style dataset, as dealt out to the processes of a job.

    Examples
    --------
    >>> from penstock.shuffle import CorgiPile
    >>> blocks = BlocksOfSamples(list("abcdef"), CorgiPile(), block_size=2, buffer=4, seed=0, processes=1)
    >>> blocks.dealt(epoch=0), sorted(blocks.read(0, 0, 0, 6))
    ([6], ['a', 'b', 'c', 'd', 'e', 'f'])
    """

    dataset: Any
    order: Order
    block_size: int
    buffer: int | None
    seed: int
    processes: int
    readers: int = 1
    """Ranks that read all samples, each with a part of the buffer."""

    def dealt(self, epoch: int) -> list[int]:
        """Return how many samples each process is dealt."""
        rows = len(self.dataset)
        if hasattr(self.order, "permutation"):
            return [len(range(process, rows, self.processes)) for process in range(self.processes)]
        shapes = map(self._shape, range(self.processes))
        return [sum(window.rows for window in self.order.windows(shape, epoch)) for shape in shapes]

    def read(self, epoch: int, process: int, start: int, stop: int) -> Generator[Any, None, None]:
        """Yield the samples dealt to a process, from the one numbered ``start`` up to ``stop``."""
        shape = self._shape(process)
        windows = map(self._indices, self.order.windows(shape, epoch))
        mixer = self.order.mixer(shape, epoch)
        if mixer is not None:
            return self._mixed(mixer, windows, start, stop)
        return self._filled(_between(windows, start, stop), shape.held_rows)

    def close(self) -> None:
        """Do nothing: the dataset is the user's."""

    def _shape(self, process: int) -> Shape:
        rows = len(self.dataset)
        full, rest = divmod(rows, self.block_size)
        counts = np.full(full + (rest > 0), self.block_size, np.int64)
        if rest:
            counts[-1] = rest
        least = min(self.block_size, rows)
        # A tenth of the data, as in the paper, where nothing else is said.
        holders = self.processes * self.readers
        buffer = max(rows // 10, least * holders) if self.buffer is None else self.buffer
        held = buffer // holders
        if held < least:
            raise BudgetError(
                f"samples for {holders} processes is {held} for each, less than a block of {least}",
                option="buffer",
                value=buffer,
                fixes=[Text("give ", Use("buffer", least * holders), " or more, smaller blocks, or fewer workers")],
            )
        if self.order.mixer(Shape(counts[:1], 1), 0) is not None:
            held = max(
                1, held - max(least, held // 9)
            )  # what such orders take in at a time comes beside what they keep
        return Shape(counts, held, self.seed, process, self.processes)

    def _indices(self, window: Window | RowWindow) -> Int64s:
        """Return the indices of a window's samples in the order in which they go out."""
        if isinstance(window, RowWindow):
            return window.numbers
        ends = np.minimum((window.blocks + 1) * self.block_size, len(self.dataset))
        runs = [np.arange(block * self.block_size, end) for block, end in zip(window.blocks, ends, strict=True)]
        stored: Int64s = np.concatenate([np.empty(0, np.int64), *runs])
        if window.key is None:
            return stored
        indices = np.empty_like(stored)
        indices[slots(len(stored), window.key)] = stored
        return indices

    def _filled(self, windows: Iterator[Int64s], capacity: int) -> Generator[Any, None, None]:
        giving = _Filling(self, np.empty(0, np.int64))
        for indices in windows:
            coming = _Filling(self, indices)
            room = capacity - len(giving.samples)
            for place, sample in enumerate(giving.samples):
                giving.samples[place] = None
                yield sample
                del sample
                room += 1
                while 0 < coming.next_size <= room:
                    room -= coming.fill()
            while coming.next_size:
                coming.fill()
            giving = coming
        for place, sample in enumerate(giving.samples):
            giving.samples[place] = None
            yield sample

    def _mixed(self, mixer: Mixer, windows: Iterator[Int64s], start: int, stop: int) -> Generator[Any, None, None]:
        held: list[Any] = []
        indices = next(windows, None)
        given = 0
        while indices is not None and given < stop:
            after = next(windows, None)
            incoming = _Filling(self, indices)
            while incoming.next_size:
                incoming.fill()
            held += incoming.samples
            mix = mixer.step(len(incoming.samples), last=after is None)
            out, held = [held[p] for p in mix.picks.tolist()], [held[p] for p in mix.keeps.tolist()]
            del incoming
            out.reverse()
            while out:
                sample = out.pop()
                if start <= given < stop:
                    yield sample
                given += 1
            indices = after


class _Filling:
    """A window that is being filled, a block at a time, as the samples lie in the dataset."""

    def __init__(self, blocks: BlocksOfSamples, indices: Int64s) -> None:
        self.samples: list[Any] = [None] * len(indices)
        self._recipe = BatchMaker(blocks.dataset, list)
        self._indices = indices
        self._by_place = np.argsort(indices)
        self._size = blocks.block_size
        self._done = 0

    @property
    def next_size(self) -> int:
        """Samples of the block that is read next; 0 where all are here."""
        return min(self._size, len(self._indices) - self._done)

    def fill(self) -> int:
        """Read the next block; return its size."""
        places = self._by_place[self._done : self._done + self._size]
        indices = self._indices[places].tolist()
        read = self._recipe.some(indices) if self._recipe.many else map(self._recipe.one, indices)
        for place, sample in zip(places.tolist(), read, strict=True):
            self.samples[place] = sample
        self._done += len(indices)
        return len(indices)


def _between(windows: Iterator[Int64s], start: int, stop: int) -> Iterator[Int64s]:
    """Leave out what comes before ``start`` and from ``stop`` on; it is not read either."""
    first = 0
    for indices in windows:
        if first >= stop:
            return
        part = indices[max(0, start - first) : stop - first]
        if len(part):
            yield part
        first += len(indices)


_PIECE_ROWS, _PIECE_BYTES = 256, 1_000_000
"""What is copied out of a window at a time: little beside it, and much beside the cost of a copy."""


@dataclass(frozen=True, slots=True)
class SampleStorage:
    """Which rows and columns to read, in which order and memory; that of all processes of the job together."""

    data: Any
    order: Order
    memory: Budget
    columns: Sequence[str] | Recipe | None
    seed: int
    row_numbers: bool
    scratch: str | os.PathLike[str] | None

    def rows(self) -> int:
        """Count the rows."""
        source, owned = open_counted(self.data)
        try:
            return int(source.block_rows.sum())
        finally:
            if owned:
                source.close()


class StoredSamples:
    """The rows of stored data, as dealt out to the processes of a job."""

    def __init__(self, storage: SampleStorage, place: WorkerPlace) -> None:
        self._storage, self._place = storage, place
        self._source, self._owned = open_counted(storage.data)
        try:
            schema, name = self._source.schema, self._source.name
            self._fields = Fields.of(schema, storage.columns, place=name, numbered=storage.row_numbers)
            self._loader = self._open(place.process)
        except BaseException:
            self._close_source()
            raise
        holders = place.processes * place.readers
        part = f" (for each of {holders} processes, which share the memory)" if holders > 1 else ""
        for notice in self._loader.plan.notices if place.process == 0 else ():
            log.warning("%s%s", notice, part)

    @property
    def held_rows(self) -> int:
        """Rows that a window may hold."""
        return int(self._loader.plan.held_rows)

    def dealt(self, epoch: int) -> list[int]:
        """Return how many rows each process is dealt."""
        return [self._loader.count(epoch, rank=process) for process in range(self._place.processes)]

    def read(self, epoch: int, process: int, start: int, stop: int) -> Generator[Any, None, None]:
        """Yield the rows dealt to a process, from the one numbered ``start`` up to ``stop``."""
        if process == self._place.process or not self._loader.mixed:
            yield from self._read(self._loader, epoch, process, start, stop)
            return
        # What another process would hold back is for a loader in its place to say, and two at once are too many.
        self._loader.close()
        with self._open(process) as other:
            yield from self._read(other, epoch, process, start, stop)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._loader.close()
        self._close_source()

    def _close_source(self) -> None:
        if self._owned:
            self._source.close()

    def _open(self, process: int) -> Loader[Records]:
        place, memory = self._place, self._storage.memory
        holders = place.processes * place.readers
        mine = (
            Budget(bytes=max(1, memory.bytes // holders))
            if memory.bytes is not None
            else Budget(share=(memory.share or 0.0) / holders)
        )
        try:
            return Loader(
                self._source,
                self._fields,
                self._storage.order,
                memory=mine,
                seed=self._storage.seed,
                rank=process,
                world=place.processes,
                threads=None if place.workers == 1 else max(1, default_threads(decoding=False) // place.workers),
                scratch=self._storage.scratch,
            )
        except BudgetError as error:
            if holders == 1:
                raise
            given = Bytes(memory.bytes) if memory.bytes is not None else f"{100 * (memory.share or 0.0):g}%"
            raise BudgetError(
                Given("memory", given),
                f" is for {holders} processes ({place.world * place.readers} ranks with {place.workers} workers each), and"
                " for one of them: ",
                error.text,
                f". For all, give {holders} times that",
                option="memory",
                value=given,
            ) from error

    def _read(
        self, loader: Loader[Records], epoch: int, process: int, start: int, stop: int
    ) -> Generator[Any, None, None]:
        left = stop - start
        with closing(loader.rest(epoch, skip=start, rank=process)) as windows:
            for window in windows:
                records = window.batch.slice(0, min(left, len(window.batch)))
                size = max(1, min(_PIECE_ROWS, _PIECE_BYTES * len(records) // max(1, records.nbytes)))
                for at in range(0, len(records), size):
                    # A copy, since the window's memory is used again; a small one, since a sample keeps it alive.
                    yield from self._samples(records.slice(at, min(at + size, len(records))).copy())
                left -= len(records)
                if not left:
                    return

    def _samples(self, records: Records) -> Iterator[Any]:
        columns: dict[str, Any] = tensors(dict(records.columns))
        if records.rows is not None:
            columns[ROW_NUMBERS] = tensors((records.rows,))[0]
        rows = zip(*columns.values(), strict=True)
        if isinstance(self._storage.columns, tuple):
            return rows
        return (dict(zip(columns, row, strict=True)) for row in rows)
