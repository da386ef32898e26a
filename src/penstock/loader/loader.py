"""The loader: an order's windows, read, decoded and shuffled ahead of their use, under a memory budget.

Reading of window k+1 overlaps the use of window k. Threads, not processes: Arrow, NumPy and the kernels
release the GIL, so there is one buffer and nothing is pickled.
Data that fit in the memory several times over are decoded once and kept. `CurrentWindow` names a row being learned from by its
number in the data, whatever shuffled it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic

import numpy as np

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s, begin_epoch, row_place
from penstock.blocks.storage import convert_line
from penstock.budget import Budget, CacheChoice
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.errors import UsageError
from penstock.loader.block_cuts import Needs, open_fitted
from penstock.loader.decode import ResidentDecoder
from penstock.loader.encoded_copy import EncodedCopy
from penstock.loader.holdout import RowFilter, SplitPart, mixed_shape
from penstock.loader.mixing import Mixing, given_out, handed_on
from penstock.loader.resources import LoaderResources
from penstock.loader.row_forms import Decodes, R, Scaling
from penstock.loader.sweep import Sweep
from penstock.loader.windows import Feed, LoadedWindow, without_first
from penstock.messages import Text
from penstock.parallel import in_order
from penstock.shuffle import Order, Shape, Window
from penstock.shuffle import order as order_named
from penstock.shuffle.remainder import Remainder, Stretch


class Loader(Closing, Generic[R]):
    """Rows of a source in the order asked for, within the memory given.

    Parameters
    ----------
    source : BlockSource
        Where the rows are.
    recipe : Recipe or Fields
        What to make of its columns: features and a target, or the columns as they are.
    order : str or Order
        The shuffling strategy.
    memory : str, int or Budget
        What windows, look-ahead and decoding may hold together.
    seed, rank, world : int
        Chance, and this worker's place among all.
    part : Part, optional
        Only the rows on one side of a held-out split.
    scaling : Scaling, optional
        Standardisation applied to the features.
    threads : int, optional
        Reads in flight.
    scratch : path, optional
        Where an order that copies the data (``once``, ``epoch``) may write.
    stretch : bool
        Take the least memory that works where that given is too little; ``plan.memory`` says how much it is.
    cache : bool, int or Path
        Whether to keep encoded rows in ``scratch`` as they are first read, for later epochs, in how many bytes at most, or in which
        folder, for later runs too.
        Only rows of an order that reads the data themselves are kept, which do not fit in memory and take long to encode.

    Attributes
    ----------
    source : BlockSource
        The data, in blocks that fit the windows.
    cut : Cut
        How finely the data's blocks are cut.
    plan : Plan
        How the memory is divided; its ``warning`` says where that is too little to shuffle well.
    """

    def __init__(
        self,
        source: BlockSource,
        recipe: Decodes[R],
        order: str | Order = "corgipile",
        *,
        memory: str | int | Budget = "512MB",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        part: SplitPart | None = None,
        scaling: Scaling | None = None,
        threads: int | None = None,
        scratch: str | os.PathLike[str] | None = None,
        stretch: bool = False,
        cache: CacheChoice = False,
    ) -> None:
        self.recipe = recipe
        self.order = order_named(order) if isinstance(order, str) else order
        self.seed = seed
        self._part = part
        scaling = scaling or Scaling.none()
        needs = Needs.of(self.order, memory, threads=threads, world=world, stretch=stretch)
        feed, self.plan, self.cut = open_fitted(source, recipe, scaling, self.order, needs)
        self.source = source = feed.source
        opened = self.plan.units
        shape = Shape(source.block_rows, self.plan.held_rows, seed, rank, world, source.units, opened)
        if self.plan.resident and self.order.facts.copy == "never" and feed.exact:
            # As it will be once read: workers count one another's rows before they have read any.
            shape = replace(shape, units=None, held_rows=max(1, shape.rows))
        self._kept = None if part is None else part.of(source)
        self._ready = LoaderResources(
            feed, recipe, scaling, plan=self.plan, shape=shape, part=self._kept, scratch=scratch, cache=cache
        )
        self._carried: tuple[int, R | None] | None = None
        self._remainder: tuple[tuple[int, tuple[Stretch, ...]], Remainder] | None = None
        self._running: Generator[LoadedWindow[R], None, None] | None = None
        self._process = os.getpid()

    @property
    def bytes_read(self) -> int:
        """Bytes of the data fetched so far."""
        return self._ready.bytes_read

    @property
    def prepare_seconds(self) -> float:
        """Seconds that writing shuffled copies has taken."""
        return self._ready.prepare_seconds

    @property
    def extra_disk_bytes(self) -> int:
        """Disk space that copies have taken at most."""
        decoder: Any = self._feed.decoder
        encoded = decoder.nbytes if isinstance(decoder, EncodedCopy) else 0
        return max(self._ready.extra_disk_bytes, encoded)

    def epoch(self, epoch: int) -> Generator[LoadedWindow[R], None, None]:
        """Yield an epoch's windows.

        A window's arrays are good until the next is asked for. One epoch runs at a time: asking for another ends
        it.
        """
        self._stop()
        # Held here, so that it ends with the loader and not whenever, in whatever thread, garbage is collected.
        self._running = self._run(epoch)
        return self._running

    @property
    def mixed(self) -> bool:
        """Whether the order keeps rows back from window to window."""
        return self.order.mixer(Shape(np.ones(1, np.int64), 1), 0) is not None

    def rest(
        self, epoch: int, *, done: Sequence[Stretch] = (), skip: int = 0, rank: int | None = None, multiple: int = 1
    ) -> Generator[LoadedWindow[R], None, None]:
        """Yield what is left of an epoch, in windows as `epoch` does.

        Parameters
        ----------
        epoch : int
            Which.
        done : sequence of Stretch
            What other sets of workers have given out of it; the rest is dealt out anew.
        skip : int
            Rows that this worker has given out since.
        rank : int, optional
            The worker whose rows are wanted; this one, if not said.
        multiple : int
            What the rows of a window are best a multiple of, where nothing else decides how large windows are.
        """
        self._stop()
        rank = self._shape.rank if rank is None else rank
        self._running = self._run_rest(epoch, done, skip, rank, multiple)
        return self._running

    def count(self, epoch: int, *, done: Sequence[Stretch] = (), rank: int | None = None) -> int:
        """Return how many rows a worker (this one, if not said) gives out in what is left of an epoch."""
        shape = self._shape if self.order.facts.copy == "never" else self._ready.copied_shape
        shape = shape if rank is None else replace(shape, rank=rank)
        if self.by_row:
            return len(range(_offset(done) + shape.rank, shape.rows, shape.world))
        if not self.order.facts.exact:
            return given_out(self.order, shape, epoch, part=self._part, count=self._rows_of)
        return sum(window.rows for window in self._left(shape, epoch, done)[0])

    def stretch(self, rows: int) -> Stretch:
        """Return the record of an epoch's part in which each worker gave out so many rows."""
        return Stretch(self._shape.world, rows, self._shape.held_rows, self._shape.open_units)

    def _run_rest(
        self, epoch: int, done: Sequence[Stretch], skip: int, rank: int, multiple: int
    ) -> Generator[LoadedWindow[R], None, None]:
        with self._begun(epoch), closing(self._left_windows(epoch, done, skip, rank, multiple)) as windows:
            for window in windows:
                if self._ready.held is None:
                    self.source.check()  # what was read straight from an open file may not be what was opened
                yield window

    def _left_windows(
        self, epoch: int, done: Sequence[Stretch], skip: int, rank: int, multiple: int
    ) -> Generator[LoadedWindow[R], None, None]:
        self._ready.prepare(self.order.facts.copy, epoch, windows=not self.by_row)
        shape = replace(self._shape, rank=rank)
        held: Any = self._ready.held
        if held is not None and self.by_row:
            sweep = self.sweep(epoch, _offset(done), rank=rank)
            with closing(held.singly(sweep.numbers, skip, sweep.rows, multiple=multiple)) as windows:
                yield from windows
        elif held is not None and not self.mixed:
            plan, left = self._left(shape, epoch, done)
            with closing(held.by_window(plan, left, skip, multiple=multiple)) as windows:
                yield from windows
        elif self.by_row:
            sweep = self.sweep(epoch, _offset(done), rank=rank)
            with closing(self._counted(sweep, sweep.edges(skip))) as windows:
                yield from windows
        elif self.mixed:
            with closing(self._windows_of(epoch)) as windows:
                yield from without_first(windows, skip)
        else:
            plan, left = self._left(shape, epoch, done)
            start = 0
            while start < len(plan) and skip >= plan[start].rows:
                skip -= plan[start].rows
                start += 1
            with closing(in_order(partial(self._read, part=left), plan[start:], threads=1)) as windows:
                yield from without_first(windows, skip)

    def _left(self, shape: Shape, epoch: int, done: Sequence[Stretch]) -> tuple[list[Window], Remainder | None]:
        """Return a worker's windows of what is left of an epoch, and which rows of their blocks that is."""
        if not done:
            plan: Any = list(self.order.windows(shape, epoch))
            return plan, None
        key = (epoch, tuple(done))
        if self._remainder is None or self._remainder[0] != key:
            self._remainder = (key, Remainder.of(self.order, shape, epoch, done))
        left = self._remainder[1]
        plan = self.order.windows(left.shape(shape, len(done)), epoch)
        return [replace(window, blocks=left.blocks[window.blocks]) for window in plan], left

    def _run(self, epoch: int) -> Generator[LoadedWindow[R], None, None]:
        with self._begun(epoch), closing(self._windows_of(epoch)) as windows:
            yield from windows

    def _windows_of(self, epoch: int) -> Generator[LoadedWindow[R], None, None]:
        self._ready.prepare(self.order.facts.copy, epoch, windows=not self.by_row)
        mixing = self._mixing(epoch)
        with closing(self._windows(epoch)) as windows:
            if mixing is None:
                for window in windows:
                    # The rows of a copy stand elsewhere than in the data that a user knows.
                    yield window if self._ready.copy is None else replace(window, located=False)
                return
            yield from mixing.run(windows, self._count(epoch))
        self._carried = (epoch, mixing.kept) if self.order.facts.carries else None

    @property
    def shares_windows(self) -> bool:
        """Whether `stored` can be asked: rows are read from the data themselves, in windows of blocks."""
        return self.order.facts.copy == "never" and not self.by_row

    def stored(self, part: SplitPart | None) -> Generator[LoadedWindow[R], None, None]:
        """Yield the rows that a part keeps, in stored order, between epochs and in the memory that these have."""
        self._stop()
        self._ready.prepare("never", 0, windows=True)
        self._running = self._ready.stored(part)
        return self._running

    def idle(self) -> None:
        """Give up the memory of windows until the next epoch begins."""
        self._stop()
        self._ready.idle()

    def close(self) -> None:
        """Stop the threads and remove a shuffled copy."""
        self._stop()
        self._ready.release()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if self._process != os.getpid():  # forked: threads did not follow, and what they held is the parent's
            self._process = os.getpid()
            self._ready.abandon()
        elif running is not None:
            running.close()

    @contextmanager
    def _begun(self, epoch: int) -> Iterator[None]:
        """Begin an epoch; meanwhile the source keeps as many pieces half read as this loader has memory for."""
        opened = self.source.max_open
        self.source.max_open = min(opened, self.plan.units)
        try:
            begin_epoch(self.source, epoch)
            yield
        finally:
            self.source.max_open = opened

    @property
    def _feed(self) -> Feed[R]:
        return self._ready.feed

    @property
    def _shape(self) -> Shape:
        return self._ready.shape

    @property
    def by_row(self) -> bool:
        """Whether the order asks for single rows."""
        return self.order.facts.by_row

    def _mixing(self, epoch: int) -> Mixing[R] | None:
        carried = None
        if self.order.facts.carries and epoch > 0:
            if self._carried is None or self._carried[0] != epoch - 1:
                self._carried = (epoch - 1, self._replay(epoch - 1))
            # Handed over, not shared: the mixer's buffer takes its place.
            carried, self._carried = self._carried[1], None
        shape = mixed_shape(self._shape, self._part)
        mixer = self.order.mixer(shape, epoch, 0 if carried is None else len(carried))
        return None if mixer is None else Mixing(mixer, carried, self._feed.form.concat)

    def _replay(self, epoch: int) -> R | None:
        """Read an epoch again for the rows it hands on.

        How many rows the epoch before had handed to it matters, since they draw on the same chance; which, does not.
        """
        count = 0
        if epoch > 0:
            count = handed_on(self.order, self._shape, epoch - 1, part=self._part, count=self._rows_of)
        mixer = self.order.mixer(mixed_shape(self._shape, self._part), epoch, count)
        if mixer is None:
            return None
        mixing = Mixing(mixer, self._feed.form.blank(count) if count else None, self._feed.form.concat)
        with closing(self._windows(epoch)) as windows:
            for _ in mixing.run(windows, self._count(epoch)):
                pass
        return mixing.kept

    def _windows(self, epoch: int) -> Generator[LoadedWindow[R], None, None]:
        if self.by_row:
            sweep = self.sweep(epoch)
            return self._counted(sweep, sweep.edges())
        plan: Any = self.order.windows(self._shape, epoch)
        return in_order(self._read, plan, threads=1)

    def _counted(self, sweep: Sweep[R], bounds: Int64s) -> Generator[LoadedWindow[R], None, None]:
        """Give out the windows of a sweep, and count what it has read for them."""
        with closing(sweep.windows(bounds)) as windows:
            counted = 0
            for window in windows:
                self._ready.bytes_read += sweep.bytes_read - counted
                counted = sweep.bytes_read
                yield window

    def sweep(self, epoch: int, offset: int = 0, *, rank: int | None = None) -> Sweep[R]:
        """Return what gives out an epoch's single rows, for orders that ask for these."""
        if not self._feed.exact:
            raise UsageError(
                f"reads single rows, and those of {self.source.name} are not counted",
                option="shuffle",
                value=self.order.name,
                fixes=[Text("convert it first: ", convert_line(self.source.name))],
            )
        order: Any = self.order
        shape = self._shape
        return Sweep(
            self._feed,
            order.permutation(shape, epoch),
            span=shape.held_rows,
            threads=self.plan.threads,
            rank=shape.rank if rank is None else rank,
            world=shape.world,
            part=self._kept,
            offset=offset,
        )

    def _count(self, epoch: int) -> int:
        return sum(1 for _ in self.order.windows(self._shape, epoch))

    def _rows_of(self, window: Window) -> int:
        return self._ready.reader.count(window) if self._ready.reader else window.rows

    def _read(self, window: Window, part: RowFilter | None = None) -> LoadedWindow[R]:
        assert self._ready.reader is not None  # made beforehand
        decoder: Any = self._feed.decoder
        blocks = np.unique(window.blocks)
        if isinstance(decoder, EncodedCopy):
            self._ready.bytes_read += decoder.bytes_of(blocks)
        elif not isinstance(decoder, ResidentDecoder):
            self._ready.bytes_read += int(self._feed.source.block_bytes[blocks].sum())
        return self._ready.reader.read(window, part)


def _offset(done: Sequence[Stretch]) -> int:
    """Return how many positions of an order of single rows were given out, over all workers."""
    return sum(stretch.world * stretch.rows for stretch in done)


class CurrentWindow:
    """Remembers which window of which loader is in use, so that an error can name a row of the data."""

    def __init__(self) -> None:
        self._loader: Loader[Batch] | None = None
        self._window: LoadedWindow[Batch] | None = None

    def follow(self, loader: Loader[Batch], epoch: int) -> Iterator[Batch]:
        """Yield an epoch's batches, a window each."""
        return self._batches(loader, loader.epoch(epoch))

    def follow_stored(self, loader: Loader[Batch], part: SplitPart | None) -> Iterator[Batch]:
        """Yield the rows that a part keeps in stored order, as `Loader.stored` reads them."""
        return self._batches(loader, loader.stored(part))

    def _batches(self, loader: Loader[Batch], windows: Generator[LoadedWindow[Batch], None, None]) -> Iterator[Batch]:
        self._loader = loader
        with closing(windows):
            for window in windows:
                self._window = window
                if len(window.batch):  # blocks whose rows are estimated may turn out to have none
                    yield window.batch
        self._window = None

    def name(self, batch: Batch, position: int) -> str:
        """Name a row of the batch in use by its number in the data."""
        loader, window = self._loader, self._window
        if loader is None or window is None or window.batch is not batch:
            return f"row {position} of the batch"
        place = window.locate(position) if window.located else find_bad(loader, batch, position)
        if place is None:
            return f"a row of {loader.source.name}"
        name, row = row_place(loader.source, *place)
        return f"row {row} of {name}"


def find_bad(loader: Loader[Batch], batch: Batch, position: int) -> tuple[int, int] | None:
    """Return the block and row of the first row in the data that is not finite in the feature in which this one is."""
    feature, value = _first_bad(batch.slice(position, position + 1))
    if feature < 0:
        return None
    assert isinstance(loader.recipe, Recipe)
    feed = Feed.of(loader.source, loader.recipe, Scaling.none())
    with closing(feed.decoder):
        for block in range(len(feed.block_rows)):
            rows = feed.decoder.decode(block)
            x = rows.x
            if isinstance(x, Csr):
                entries = np.flatnonzero((x.indices == feature) & _alike(x.values, value))
                found = np.searchsorted(x.indptr, entries[:1].astype(np.uint64), side="right") - 1
            else:
                found = np.flatnonzero(_alike(x[:, feature], value))
            if len(found):
                return block, int(found[0])
    return None


def _first_bad(row: Batch) -> tuple[int, float]:
    values = row.x.values if isinstance(row.x, Csr) else row.x[0]
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return -1, 0.0
    at = int(bad[0])
    return int(row.x.indices[at]) if isinstance(row.x, Csr) else at, float(values[at])


def _alike(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], value: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.isnan(values) if np.isnan(value) else values == value
