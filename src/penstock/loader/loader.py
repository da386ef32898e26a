"""The loader: an order's windows, read, decoded and shuffled ahead of their use, under a memory budget.

Reading of window k+1 overlaps the use of window k. Threads, not processes: Arrow, NumPy and the kernels
release the GIL, so there is one buffer, nothing is pickled, and the place in the stream is a few numbers.
Data that fit in the memory several times over are decoded once and kept.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic

import numpy as np

from penstock.blocks.base import BlockSource, Int64s, begin_epoch
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.errors import DataChangedError, UsageError
from penstock.loader.decode import ResidentDecoder
from penstock.loader.feed import Feed
from penstock.loader.forms import Decodes, R, Scaling
from penstock.loader.holdout import Keeps, Part
from penstock.loader.mixing import Mixing, given_out, handed_on, mixed_shape
from penstock.loader.plan import default_threads
from penstock.loader.ready import Ready, divide, open_feed
from penstock.loader.sweep import Sweep
from penstock.loader.windows import LoadedWindow, ahead, without_first
from penstock.shuffle import Order, Shape, Window
from penstock.shuffle import order as order_named
from penstock.shuffle.remainder import Remainder, Stretch


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream: the next row to be given out."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class Loader(Closing, Generic[R]):
    """Rows of a source in the order asked for, within the memory given.

    Parameters
    ----------
    source : BlockSource
        Where the rows are.
    encoder : Encoder or Fields
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
    """

    def __init__(
        self,
        source: BlockSource,
        encoder: Decodes[R],
        order: str | Order = "corgipile",
        *,
        memory: str | int | Budget = "512MB",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        part: Part | None = None,
        scaling: Scaling | None = None,
        threads: int | None = None,
        scratch: str | os.PathLike[str] | None = None,
        stretch: bool = False,
    ) -> None:
        self.source = source
        self.encoder = encoder
        self.order = order_named(order) if isinstance(order, str) else order
        self.seed = seed
        self._part = part
        self._place = Position()
        scaling = scaling or Scaling.none()
        feed: Feed[R] = open_feed(source, encoder, scaling)
        try:
            # A source that answers over several connections keeps them all busy, however few cores there are.
            usual = default_threads(decoding=not feed.decoder.waits, cached=feed.decoder.cached)
            threads = threads or max(usual, source.threads or 1)
            total, by_row, mixed = Budget.parse(memory), self.by_row, self.mixed
            self.plan = divide(feed, total, by_row=by_row, mixed=mixed, threads=threads, stretch=stretch)
            opened = self.plan.units
            shape = Shape(source.block_rows, self.plan.held_rows, seed, rank, world, source.units, opened)
        except BaseException:
            feed.decoder.close()
            raise
        source.max_open = min(source.max_open, opened)
        if self.plan.resident and self.order.copy == "never" and feed.exact:
            # As it will be once read: workers count one another's rows before they have read any.
            shape = replace(shape, units=None, held_rows=max(1, shape.rows))
        self._ready = Ready(feed, encoder, scaling, plan=self.plan, shape=shape, part=part, scratch=scratch)
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
        return self._ready.extra_disk_bytes

    def epoch(self, epoch: int, *, start: int = 0) -> Generator[LoadedWindow[R], None, None]:
        """Yield an epoch's windows, from the one numbered ``start``.

        A window's arrays are good until the next is asked for. One epoch runs at a time: asking for another ends
        it.
        """
        self._stop()
        # Held here, so that it ends with the loader and not whenever, in whatever thread, garbage is collected.
        self._running = self._run(epoch, start)
        return self._running

    @property
    def mixed(self) -> bool:
        """Whether the order keeps rows back from window to window."""
        return self.order.mixer(Shape(np.ones(1, np.int64), 1), 0) is not None

    def rest(
        self, epoch: int, *, done: Sequence[Stretch] = (), skip: int = 0, rank: int | None = None
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
        """
        self._stop()
        self._running = self._run_rest(epoch, done, skip, self._shape.rank if rank is None else rank)
        return self._running

    def count(self, epoch: int, *, done: Sequence[Stretch] = (), rank: int | None = None) -> int:
        """Return how many rows a worker (this one, if not said) gives out in what is left of an epoch."""
        shape = self._shape if self.order.copy == "never" else self._ready.copied_shape
        shape = shape if rank is None else replace(shape, rank=rank)
        if self.by_row:
            return len(range(_offset(done) + shape.rank, shape.rows, shape.world))
        if not self.order.exact:
            return given_out(self.order, shape, epoch, part=self._part, count=self._rows_of)
        return sum(window.rows for window in self._left(shape, epoch, done)[0])

    def stretch(self, rows: int) -> Stretch:
        """Return the record of an epoch's part in which each worker gave out so many rows."""
        return Stretch(self._shape.world, rows, self._shape.held_rows, self._shape.open_units)

    def _run_rest(
        self, epoch: int, done: Sequence[Stretch], skip: int, rank: int
    ) -> Generator[LoadedWindow[R], None, None]:
        with closing(self._left_windows(epoch, done, skip, rank)) as windows:
            for window in windows:
                self.source.check()  # what was read straight from an open file may not be what was opened
                yield window

    def _left_windows(
        self, epoch: int, done: Sequence[Stretch], skip: int, rank: int
    ) -> Generator[LoadedWindow[R], None, None]:
        begin_epoch(self.source, epoch)
        self._ready.prepare(self.order.copy, epoch, windows=not self.by_row)
        shape = replace(self._shape, rank=rank)
        if self.by_row:
            sweep = self.sweep(epoch, _offset(done), rank=rank)
            with closing(self._counted(sweep, sweep.edges(skip))) as windows:
                yield from windows
        elif self.mixed:
            with closing(self._run(epoch, 0)) as windows:
                yield from without_first(windows, skip)
        else:
            plan, left = self._left(shape, epoch, done)
            start = 0
            while start < len(plan) and skip >= plan[start].rows:
                skip -= plan[start].rows
                start += 1
            with closing(ahead(plan[start:], partial(self._read, part=left))) as windows:
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

    def _run(self, epoch: int, start: int) -> Generator[LoadedWindow[R], None, None]:
        begin_epoch(self.source, epoch)
        self._ready.prepare(self.order.copy, epoch, windows=not self.by_row)
        mixing = self._mixing(epoch)
        with closing(self._windows(epoch, 0 if mixing else start)) as windows:
            if mixing is None:
                for window in windows:
                    # The rows of a copy stand elsewhere than in the data that a user knows.
                    yield window if self._ready.copy is None else replace(window, located=False)
                return
            for window in mixing.run(windows, self._count(epoch)):
                if window.index >= start:
                    yield window
        self._carried = (epoch, mixing.kept) if self.order.carries else None

    def batches(self, batch_size: int, *, epochs: int = 1, drop_last: bool = False) -> Iterator[R]:
        """Yield batches of exactly ``batch_size`` rows (the last of an epoch may be shorter), as copies.

        Starts at the loader's place in the stream, which `state_dict` tells and `load_state_dict` sets.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is not a number of rows; choose 1 or more")
        while self._place.epoch < epochs:
            held: list[R] = []
            count = 0
            first = self._place
            for window in self.epoch(first.epoch, start=first.window):
                at = first.row if window.index == first.window else 0
                while at < len(window.batch):
                    stop = min(len(window.batch), at + batch_size - count)
                    piece = window.batch.slice(at, stop)
                    held.append(piece.take(np.arange(len(piece))))
                    count += stop - at
                    at = stop
                    if count == batch_size:
                        self._place = Position(first.epoch, window.index, at)
                        yield self._feed.form.concat(held)
                        held, count = [], 0
            self._place = Position(first.epoch + 1)
            if held and not drop_last:
                yield self._feed.form.concat(held)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream of `batches` as a small dict."""
        place = self._place
        return {
            "version": 1,
            "order": self.order.name,
            "seed": self.seed,
            "memory": self.plan.memory,
            "held_rows": self.plan.held_rows,
            "rank": self._shape.rank,
            "world": self._shape.world,
            "part": None if self._part is None else [self._part.share, self._part.seed, self._part.held_out],
            "fingerprint": self.source.fingerprint,
            "epoch": place.epoch,
            "window": place.window,
            "row": place.row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another loader over the same data stood."""
        mine = self.state_dict()
        for name in ("version", "order", "seed", "memory", "held_rows", "rank", "world", "part"):
            if state.get(name) != mine[name]:
                raise UsageError(
                    f"this state was saved with {name}={state.get(name)!r}, the loader has {mine[name]!r}; make them equal"
                )
        if state.get("fingerprint") != mine["fingerprint"]:
            raise DataChangedError(
                f"{self.source.name} is not the data that the state was saved with; restore them or start anew"
            )
        self._place = Position(state["epoch"], state["window"], state["row"])

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

    @property
    def _feed(self) -> Feed[R]:
        return self._ready.feed

    @property
    def _shape(self) -> Shape:
        return self._ready.shape

    @property
    def by_row(self) -> bool:
        """Whether the order asks for single rows."""
        return hasattr(self.order, "permutation")

    def _mixing(self, epoch: int) -> Mixing[R] | None:
        carried = None
        if self.order.carries and epoch > 0:
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
        with closing(self._windows(epoch, 0)) as windows:
            for _ in mixing.run(windows, self._count(epoch)):
                pass
        return mixing.kept

    def _windows(self, epoch: int, start: int) -> Generator[LoadedWindow[R], None, None]:
        if self.by_row:
            sweep = self.sweep(epoch)
            return self._counted(sweep, sweep.edges()[start:], start)
        plan: Any = self.order.windows(self._shape, epoch)
        return ahead(islice(plan, start, None), self._read)

    def _counted(self, sweep: Sweep[R], bounds: Int64s, first: int = 0) -> Generator[LoadedWindow[R], None, None]:
        """Give out the windows of a sweep, and count what it has read for them."""
        with closing(sweep.windows(bounds, first)) as windows:
            counted = 0
            for window in windows:
                self._ready.bytes_read += sweep.bytes_read - counted
                counted = sweep.bytes_read
                yield window

    def sweep(self, epoch: int, offset: int = 0, *, rank: int | None = None) -> Sweep[R]:
        """Return what gives out an epoch's single rows, for orders that ask for these."""
        if not self._feed.exact:
            raise UsageError(
                f"shuffle={self.order.name!r} reads single rows, and those of {self.source.name} are not counted;"
                " convert it first: penstock convert SRC DST.arrow"
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
            part=self._part,
            offset=offset,
        )

    def _count(self, epoch: int) -> int:
        return sum(1 for _ in self.order.windows(self._shape, epoch))

    def _rows_of(self, window: Window) -> int:
        return self._ready.reader.count(window) if self._ready.reader else window.rows

    def _read(self, window: Window, part: Keeps | None = None) -> LoadedWindow[R]:
        assert self._ready.reader is not None  # made beforehand
        loaded = self._ready.reader.read(window, part)
        if not isinstance(self._feed.decoder, ResidentDecoder):
            self._ready.bytes_read += int(self._feed.source.block_bytes[np.unique(loaded.blocks)].sum())
        return loaded


def _offset(done: Sequence[Stretch]) -> int:
    """Return how many positions of an order of single rows were given out, over all workers."""
    return sum(stretch.world * stretch.rows for stretch in done)
