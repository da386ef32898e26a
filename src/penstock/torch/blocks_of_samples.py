"""A map-style dataset in blocks: runs of consecutive indices, read block by block in a Penstock order.

The buffer holds whole samples. While those of one window are given out, the blocks of the next are read into the room
that they leave, so a batch costs about as much as any other and no more than the buffer is held.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import BudgetError
from penstock.messages import Text, Use
from penstock.shuffle import Order, RowWindow, Shape, Window
from penstock.shuffle.base import Int64s, Mixer
from penstock.shuffle.permute import slots
from penstock.torch.fetch import BatchMaker


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
