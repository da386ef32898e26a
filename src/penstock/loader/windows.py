"""Windows filled ahead of their use.

`WindowReader` fills one window: it works out each row's slot, splits the blocks over threads in the order in
which they lie on disk, and gives back a batch. Loaders have one window filled while another is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.blocks.base import BlockSource, Int64s, one_piece_open
from penstock.blocks.fields import Fields
from penstock.columns.recipe import Recipe
from penstock.copying import SKIP
from penstock.loader.decode import BlockDecoder, Decoder, PackedDecoder, ResidentDecoder
from penstock.loader.decode_records import record_decoder
from penstock.loader.decode_sparse import SparseDecoder, sparse_decoder
from penstock.loader.direct_reads import aligned
from penstock.loader.encoded_copy import EncodedCopy
from penstock.loader.holdout import RowFilter
from penstock.loader.row_forms import Decodes, FeatureForm, R, RecordForm, RowForm, Scaling, SlotsOf, one_by_one
from penstock.parallel import in_order
from penstock.records import Records
from penstock.shuffle import Window
from penstock.shuffle.permute import slots as random_slots

_T = TypeVar("_T")
_LEAST_RUN = 128 * 1024
"""Bytes that are worth a thread's attention."""
_KEPT = 1.6
"""What columns of unequal length come to occupy over their bytes: each thread's allocator keeps some that was freed."""


@dataclass(frozen=True, slots=True)
class Feed(Generic[R]):
    """Rows of a source on their way into windows."""

    source: BlockSource
    form: RowForm[R]
    decoder: Decoder[R]
    block_rows: Int64s
    exact: bool
    units: Int64s | None

    @staticmethod
    def open(source: BlockSource, recipe: Decodes[R], scaling: Scaling) -> Feed[R]:
        """Choose the fastest way of turning this source's blocks into what is asked for: columns, or features."""
        asked: Any = recipe
        made: Any = Feed.of_records(source, asked) if isinstance(asked, Fields) else Feed.of(source, asked, scaling)
        return made  # type: ignore[no-any-return]  # of the kind that the recipe makes

    @classmethod
    def of(cls, source: BlockSource, recipe: Recipe, scaling: Scaling) -> Feed[Batch]:
        """Choose the fastest way of turning this source's blocks into features."""
        decoder: Decoder[Batch] = BlockDecoder(source, recipe, scaling)
        # The packed loop compares labels as doubles, which tell integers apart up to 2**53.
        numeric = recipe.labels is None or (
            recipe.labels.numeric and all(abs(c) <= 2**53 for c in recipe.labels.classes)
        )
        if recipe.packed_column and numeric:
            layout = source.packed(recipe.packed_column, recipe.label, recipe.weight)
            if layout is not None:
                decoder = PackedDecoder(source, recipe, scaling, layout)
        elif recipe.sparse:
            decoder = sparse_decoder(source, recipe, scaling) or decoder
        form = FeatureForm(recipe, scaling)
        return Feed(source, form, decoder, source.block_rows, source.exact_rows, source.units)

    @classmethod
    def of_records(cls, source: BlockSource, fields: Fields) -> Feed[Records]:
        """Choose the fastest way of turning this source's blocks into columns."""
        decoder = record_decoder(source, fields)
        return Feed(source, RecordForm(fields), decoder, source.block_rows, source.exact_rows, source.units)

    @property
    def filled(self) -> bool:
        """Whether rows can go straight to their slots: those of fixed width whose number is known beforehand."""
        return self.exact and self.form.fixed

    def size(self) -> tuple[float, int]:
        """Return the decoded bytes of a row, its slot included, and how many rows there are.

        Where rows vary or were not counted, a few blocks are decoded to tell.
        """
        rows = int(self.block_rows.sum())
        if self.filled or not rows:
            return self.form.row_bytes + 4.0, rows
        blocks = np.unique(np.linspace(0, len(self.block_rows) - 1, 3).astype(int))
        with one_piece_open(self.source):
            parts = [part for part in (self.decoder.decode(int(b)) for b in blocks) if len(part)]
        if not parts:
            return self.form.row_bytes + 4.0, rows
        if not self.exact:
            rows = int(rows * sum(len(p) for p in parts) / max(1, int(self.block_rows[blocks].sum())))
        kept = _KEPT if isinstance(self.form, RecordForm) else 1.0
        return kept * max(p.nbytes / len(p) for p in parts) + 4, rows

    def resident(self) -> Feed[R]:
        """Decode every block and serve the rows from memory from now on."""
        blocks = np.arange(len(self.block_rows))
        runs = np.split(blocks, range(self.decoder.together, len(blocks), self.decoder.together))
        read = in_order(self.decoder.decode_many, runs, threads=self.source.threads)
        parts = [part for some in read for part in some]
        counts = np.array([len(p) for p in parts], np.int64)
        decoder: Any = ResidentDecoder(parts, self.form)
        return replace(self, decoder=decoder, block_rows=counts, exact=True, units=None)


@dataclass(frozen=True, slots=True)
class LoadedWindow(Generic[R]):
    """A window's rows in the order in which they are to be learned from.

    The arrays of a dense window are reused: they are good until the next window is asked for. Rows that a mixer
    held back, or that come from a shuffled copy, cannot be ``located``.
    """

    index: int
    batch: R
    blocks: Int64s
    block_rows: Int64s
    slots: NDArray[np.uint32] | None
    located: bool = True
    numbers: Callable[[], Int64s] | None = None
    """For a window of single rows: works out the number of each in the data."""
    owned: bool = False
    """Whether the arrays belong to whoever takes the window, and are not used again."""

    def locate(self, position: int) -> tuple[int, int]:
        """Return the block, and the row within it, of the row at a position of the batch."""
        if self.numbers is not None:
            number = int(self.numbers()[position])
            ends = np.cumsum(self.block_rows)
            owner = int(np.searchsorted(ends, number, side="right"))
            return owner, number - int(ends[owner] - self.block_rows[owner])
        place = position if self.slots is None else int(np.flatnonzero(self.slots == position)[0])
        ends = np.cumsum(self.block_rows)
        k = int(np.searchsorted(ends, place, side="right"))
        return int(self.blocks[k]), place - int(ends[k] - self.block_rows[k])


class WindowReader(Generic[R]):
    """Fills windows, one at a time, with several reads in flight."""

    def __init__(self, feed: Feed[R], *, capacity: int, threads: int, part: RowFilter | None = None) -> None:
        self._feed = feed
        self._source = feed.source
        self._decoder = feed.decoder
        self._part = part
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-read")
        self._capacity = capacity
        self._spare = self._slots() if feed.filled else []
        self._turn = 0
        self._lent = np.empty(0, np.uint8)

    def read(self, window: Window, part: RowFilter | None = None) -> LoadedWindow[R]:
        """Read one window and put its rows in their order; of a part, only the rows it keeps."""
        part = part or self._part
        decoder: Any = self._decoder
        kept = decoder.rows_of(window.blocks) if isinstance(decoder, EncodedCopy) and self._feed.form.fixed else None
        if self._feed.filled or kept is not None:
            return self._fill(window, part, self._feed.block_rows[window.blocks] if kept is None else kept)
        if isinstance(self._decoder, SparseDecoder):
            return self._copy(self._decoder, window, part) or self._assemble(window, part)
        by_bytes = self._feed.exact and self._decoder.single and self._decoder.waits
        return self._gather(window, part) if by_bytes else self._assemble(window, part)

    def count(self, window: Window) -> int:
        """Return how many rows of a window are this part's, without reading it (where rows are counted)."""
        if self._part is None:
            return window.rows
        counts = self._feed.block_rows[window.blocks].tolist()
        return sum(int(self._part.keeps(b, np.arange(n)).sum()) for b, n in zip(window.blocks, counts, strict=True))

    def close(self) -> None:
        """Stop reading; what is under way is waited for, what is not begun is dropped."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self, window: Window, part: RowFilter | None, counts: Int64s) -> LoadedWindow[R]:
        slots, kept = window_slots(window, counts, part)
        into = self._next_slots(kept)
        by_place = np.argsort(window.blocks, kind="stable")
        blocks = window.blocks[by_place]
        starts = (np.cumsum(counts) - counts)[by_place]
        runs = self._runs(blocks)
        self._all([self._pool.submit(self._decoder.fill, blocks[r], starts[r], slots, into) for r in runs])
        return LoadedWindow(window.index, into.slice(0, kept), window.blocks, counts, slots)

    def _assemble(self, window: Window, part: RowFilter | None) -> LoadedWindow[R]:
        by_place = np.argsort(window.blocks, kind="stable")
        runs = [by_place[r] for r in self._runs(window.blocks[by_place])]
        decoded = self._all([self._pool.submit(self._decoder.decode_many, window.blocks[r]) for r in runs])
        places = np.concatenate(runs).tolist() if runs else []
        found = dict(zip(places, chain.from_iterable(decoded), strict=True))
        parts = [found[place] for place in range(len(places))]
        counts = np.array([len(p) for p in parts], np.int64)
        slots, kept = window_slots(window, counts, part)
        pieces = np.split(slots, np.cumsum(counts)[:-1]) if len(parts) else []
        batch = self._feed.form.join(parts, pieces, kept, each=self._each)
        return LoadedWindow(window.index, batch, window.blocks, counts, slots)

    def _gather(self, window: Window, part: RowFilter | None) -> LoadedWindow[R]:
        """Read rows of unequal length whose places are known: whole runs of blocks, without decoding each."""
        counts = self._feed.block_rows[window.blocks]
        slots, kept = window_slots(window, counts, part)
        parts, pieces = [], []
        for here, local, place in self._dealt(window, counts):
            parts.append(self._pool.submit(self._decoder.pick, np.repeat(window.blocks[here], counts[here]), local))
            pieces.append(slots[place])
        batch = self._feed.form.join(self._all(parts), pieces, kept, each=self._each)
        return LoadedWindow(window.index, batch, window.blocks, counts, slots)

    def _copy(self, decoder: SparseDecoder, window: Window, part: RowFilter | None) -> LoadedWindow[R] | None:
        """Read sparse rows as they lie in the file, and copy each to its slot; None where a block is unusual."""
        counts = self._feed.block_rows[window.blocks]
        slots, kept = window_slots(window, counts, part)
        runs = list(self._dealt(window, counts))
        sizes = [int(decoder.raw_bytes(window.blocks[here]).sum()) for here, _, _ in runs]
        if len(self._lent) < sum(sizes):
            self._lent = aligned(sum(sizes))  # kept from window to window: new memory is slow
        memory = np.split(self._lent[: sum(sizes)], np.cumsum(sizes)[:-1]) if sizes else []
        read = self._all(
            [self._pool.submit(decoder.read, window.blocks[run[0]], m) for run, m in zip(runs, memory, strict=True)]
        )
        parts = [rows for rows in read if rows is not None]
        if len(parts) < len(read):
            return None
        pieces = [slots[place] for _, _, place in runs]
        batch: Any = decoder.room_for(parts, pieces, kept)
        tasks = zip(parts, pieces, strict=True)
        self._all([self._pool.submit(rows.copy, place, batch, decoder.scale) for rows, place in tasks])
        return LoadedWindow(window.index, batch, window.blocks, counts, slots)

    def _dealt(self, window: Window, counts: Int64s) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """Yield the runs that threads read: which blocks of the window, and of each row, in the order of the file, its
        place in its block and its place in the window.
        """
        starts = np.cumsum(counts) - counts
        by_place = np.argsort(window.blocks, kind="stable")
        for run in self._runs(window.blocks[by_place]):
            here = by_place[run]
            local = np.arange(int(counts[here].sum())) - np.repeat(np.cumsum(counts[here]) - counts[here], counts[here])
            yield here, local, np.repeat(starts[here], counts[here]) + local

    def _runs(self, blocks: Int64s) -> list[Int64s]:
        """Cut a window's blocks, as they lie on disk, into runs that threads read one after another."""
        units, places, decoder = self._feed.units, np.arange(len(blocks)), self._decoder
        encoded = isinstance(decoder, EncodedCopy) and decoder.complete
        if units is not None and not encoded:  # only one thread can decode a unit
            return np.split(places, np.flatnonzero(np.diff(units[blocks])) + 1)
        # More runs than threads, so that a slow read does not leave the other threads idle at the end; but none so
        # small that handing it to a thread costs more than reading it.
        count = int(self._source.block_bytes[blocks].sum()) // _LEAST_RUN
        return np.array_split(places, max(1, min(count, len(blocks), 4 * self._threads)))

    def _next_slots(self, rows: int) -> SlotsOf[R]:
        """Return the arrays whose turn it is; others where one block is larger than a window is meant to be."""
        self._turn = 1 - self._turn
        self._spare = self._spare or self._slots()
        into = self._spare[self._turn]
        return self._feed.form.empty(rows) if rows > len(into) else into

    def _slots(self) -> list[SlotsOf[R]]:
        return [self._feed.form.empty(self._capacity) for _ in range(2)]

    def _each(self, function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
        """Call a function with each tuple of arguments, a run of them to each thread."""
        tuples = list(arguments)
        runs = [tuples[start :: self._threads] for start in range(min(self._threads, len(tuples)))]
        self._all([self._pool.submit(one_by_one, function, run) for run in runs])

    @staticmethod
    def _all(futures: list[Future[_T]]) -> list[_T]:
        """Wait for all, then raise the first failure: no thread may still write into a window given up."""
        try:
            return [f.result() for f in futures]
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()


def window_slots(window: Window, counts: Int64s, part: RowFilter | None) -> tuple[NDArray[np.uint32], int]:
    """Return each row's slot, in stored order, and how many rows are kept."""
    rows = int(counts.sum())
    if part is None:
        slots = np.arange(rows, dtype=np.uint32) if window.key is None else random_slots(rows, window.key)
        return slots, rows
    kept = np.empty(rows, np.bool_)
    start = 0
    for block, count in zip(window.blocks, counts.tolist(), strict=True):  # by block, to hold few numbers at once
        kept[start : start + count] = part.keeps(block, np.arange(count))
        start += count
    count = int(kept.sum())
    slots = np.full(rows, SKIP, np.uint32)
    slots[kept] = np.arange(count, dtype=np.uint32) if window.key is None else random_slots(count, window.key)
    return slots, count


def without_first(windows: Iterable[LoadedWindow[R]], skip: int) -> Iterator[LoadedWindow[R]]:
    """Leave out so many rows at the start."""
    for window in windows:
        if skip < len(window.batch):
            yield replace(window, batch=window.batch.slice(skip, len(window.batch)), located=False) if skip else window
        skip = max(0, skip - len(window.batch))
