"""The loader: an order's windows, read, decoded and shuffled ahead of their use, under a memory budget.

Reading of window k+1 overlaps the use of window k. Threads, not processes: Arrow, NumPy and the kernels
release the GIL, so there is one buffer, nothing is pickled, and the place in the stream is a few numbers.
Data that fit in the memory several times over are decoded once and kept.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.budget import Budget
from penstock.errors import DataChangedError, FeatureError, UsageError
from penstock.loader.copies import Copy, shuffled_copy
from penstock.loader.decode import Feed, ResidentDecoder, Scaling, divided, row_number, unit_bytes
from penstock.loader.holdout import Part
from penstock.loader.mixing import Mixing
from penstock.loader.plan import Plan, default_threads, plan_memory
from penstock.loader.windows import LoadedWindow, WindowReader, ahead
from penstock.shuffle import Order, RowWindow, Shape, Window
from penstock.shuffle import order as order_named

# Bytes that an order of single rows needs for each: its number, block and place, and room to sort them.
_NUMBERS = 48


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream: the next row to be given out."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class Loader:
    """Rows of a source in the order asked for, within the memory given.

    Parameters
    ----------
    source : BlockSource
        Where the rows are.
    encoder : Encoder
        What to make of its columns.
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
        encoder: Encoder,
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
        self.bytes_read = 0
        self.prepare_seconds = 0.0
        self.extra_disk_bytes = 0
        self._part = part
        self._scratch = scratch
        self._place = Position()
        self._scaling = scaling or Scaling.none()
        self._feed = Feed.of(source, encoder, self._scaling)
        try:
            self.plan = self._divide(Budget.parse(memory), threads=threads, stretch=stretch)
        except BaseException:
            self._feed.decoder.close()
            raise
        opened = self.plan.units
        self._shape = Shape(source.block_rows, self.plan.held_rows, seed, rank, world, source.units, opened)
        source.max_open = min(source.max_open, opened)
        self._stored_shape = self._shape
        self._closed = False
        self._reader: WindowReader | None = None
        self._carried: tuple[int, Batch | None] | None = None
        self._copy: Copy | None = None
        self._running: Generator[LoadedWindow, None, None] | None = None

    def epoch(self, epoch: int, *, start: int = 0) -> Generator[LoadedWindow, None, None]:
        """Yield an epoch's windows, from the one numbered ``start``.

        A window's arrays are good until the next is asked for. One epoch runs at a time: asking for another ends
        it.
        """
        self._stop()
        # Held here, so that it ends with the loader and not whenever, in whatever thread, garbage is collected.
        self._running = self._run(epoch, start)
        return self._running

    def _run(self, epoch: int, start: int) -> Generator[LoadedWindow, None, None]:
        self.source.check()
        self._prepare(epoch)
        mixing = self._mixing(epoch)
        with closing(self._windows(epoch, 0 if mixing else start)) as windows:
            if mixing is None:
                for window in windows:
                    # The rows of a copy stand elsewhere than in the data that a user knows.
                    yield window if self._copy is None else replace(window, located=False)
                return
            for window in mixing.run(windows, self._count(epoch)):
                if window.index >= start:
                    yield window
        self._carried = (epoch, mixing.kept) if self.order.carries else None

    def batches(self, batch_size: int, *, epochs: int = 1, drop_last: bool = False) -> Iterator[Batch]:
        """Yield batches of exactly ``batch_size`` rows (the last of an epoch may be shorter), as copies.

        Starts at the loader's place in the stream, which `state_dict` tells and `load_state_dict` sets.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} is not a number of rows; choose 1 or more")
        while self._place.epoch < epochs:
            held: list[Batch] = []
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
                        yield Batch.concat(held)
                        held, count = [], 0
            self._place = Position(first.epoch + 1)
            if held and not drop_last:
                yield Batch.concat(held)

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
        self._release()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._feed.decoder.close()
        self._closed = True
        if self._copy is not None:
            self._remove()
            self._copy = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _divide(self, memory: Budget, *, threads: int | None, stretch: bool) -> Plan:
        feed = self._feed
        row_bytes, rows = feed.size()
        return plan_memory(
            feed.source,
            memory=memory,
            row_bytes=row_bytes,
            rows=rows,
            block_rows=int(feed.block_rows.max(initial=0)),
            thread_bytes=feed.decoder.thread_bytes,
            most_threads=threads or default_threads(decoding=not feed.decoder.waits, cached=feed.decoder.cached),
            layout="filled" if feed.filled else "assembled",
            mixed=self.order.mixer(Shape(feed.block_rows, 1), 0) is not None,
            beside=_NUMBERS if self._by_row() else 0,
            unit_bytes=unit_bytes(feed.source) if divided(feed.source) else 0,
            stretch=stretch,
        )

    def _by_row(self) -> bool:
        """Whether the order asks for single rows."""
        return isinstance(next(iter(self.order.windows(Shape(np.ones(1, np.int64), 1), 0)), None), RowWindow)

    def _prepare(self, epoch: int) -> None:
        """Have the rows where the order wants them: in a shuffled copy, in memory, or where they are."""
        if self._closed:
            self._feed, self._shape = Feed.of(self.source, self.encoder, self._scaling), self._stored_shape
            self._closed = False
        if self.order.copy == "epoch" or (self.order.copy == "once" and self._copy is None):
            self._write_copy(epoch if self.order.copy == "epoch" else 0)
        elif self._reader is None and self.plan.resident:
            self._feed = self._feed.resident()
            counts = self._feed.block_rows
            # All of them fit, also where the plan was made from an estimate of their number.
            self._shape = replace(self._shape, block_rows=counts, units=None, held_rows=max(1, int(counts.sum())))
            self.bytes_read += int(self.source.block_bytes.sum())
        if self._reader is None:
            self._reader = WindowReader(
                self._feed,
                capacity=self._shape.held_rows,
                threads=self.plan.threads,
                part=None if self._copy else self._part,  # a copy holds this part's rows only
            )

    def _write_copy(self, epoch: int) -> None:
        self._release()
        self._copy = shuffled_copy(
            self._stored,
            self.encoder,
            row_bytes=self.plan.row_bytes,
            data_bytes=self.plan.data_bytes,
            memory=self.plan.memory,
            seed=self.seed,
            epoch=epoch,
            folder=self._scratch,
        )
        self._remove = weakref.finalize(self, self._copy.close)  # also where nobody calls close
        self.prepare_seconds += self._copy.seconds
        self.extra_disk_bytes = max(self.extra_disk_bytes, self._copy.disk_bytes)
        self.bytes_read += int(self.source.block_bytes.sum())
        self._feed, self._closed = Feed.of(self._copy.source, self._copy.encoder, self._scaling), False
        self._shape = replace(self._shape, block_rows=self._feed.block_rows, units=None)

    @contextmanager
    def _stored(self) -> Iterator[Iterator[Batch]]:
        """Give all rows in stored order, unscaled; those that could not be learned from are refused by name."""
        feed = Feed.of(self.source, self.encoder, Scaling.none())
        # Dealing a window's rows to buckets takes room for them once more.
        held = max(int(feed.block_rows.max(initial=1)), 5 * self.plan.held_rows // 8)
        reader = WindowReader(feed, capacity=held, threads=self.plan.threads, part=self._part)
        # Every rank writes the whole copy, the same one, and is dealt its part of that.
        shape = replace(self._stored_shape, held_rows=held, rank=0, world=1)
        plan = order_named("none").windows(shape, 0)

        def rows(windows: Iterator[LoadedWindow]) -> Iterator[Batch]:
            for window in windows:
                bad = self.encoder.nonfinite(window.batch)
                if bad is not None:
                    number = row_number(self.source, *window.locate(bad[0]))
                    raise FeatureError(
                        f"{self.source.name}: {bad[1]!r} is not a finite number in row {number}; fill or remove such"
                        " values before training"
                    )
                yield window.batch

        with closing(feed.decoder), closing(reader), closing(ahead(plan, reader.read)) as windows:
            yield rows(windows)

    def _mixing(self, epoch: int) -> Mixing | None:
        carried = None
        if self.order.carries and epoch > 0:
            if self._carried is None or self._carried[0] != epoch - 1:
                self._carried = (epoch - 1, self._replay(epoch - 1))
            # Handed over, not shared: the mixer's buffer takes its place.
            carried, self._carried = self._carried[1], None
        mixer = self.order.mixer(self._mixed_shape(), epoch, 0 if carried is None else len(carried))
        return None if mixer is None else Mixing(mixer, carried)

    def _replay(self, epoch: int) -> Batch | None:
        """Read an epoch again for the rows it hands on.

        How many rows the epoch before had handed to it matters, since they draw on the same chance; which, does not.
        """
        count = self._handed_on(epoch - 1) if epoch > 0 else 0
        mixer = self.order.mixer(self._mixed_shape(), epoch, count)
        if mixer is None:
            return None
        mixing = Mixing(mixer, self._blank(count))
        with closing(self._windows(epoch, 0)) as windows:
            for _ in mixing.run(windows, self._count(epoch)):
                pass
        return mixing.kept

    def _windows(self, epoch: int, start: int) -> Generator[LoadedWindow, None, None]:
        return ahead(islice(self.order.windows(self._shape, epoch), start, None), self._read)

    def _handed_on(self, epoch: int) -> int:
        """Return how many rows an epoch hands on to the next, without reading any."""
        mixer, kept = self.order.mixer(self._mixed_shape(), epoch), 0
        windows = list(self.order.windows(self._shape, epoch))
        for window in windows:
            assert mixer is not None
            assert isinstance(window, Window)
            rows = self._reader.count(window) if self._reader else window.rows
            kept = len(mixer.step(rows, last=window is windows[-1]).keeps)
        return kept

    def _mixed_shape(self) -> Shape:
        """Return the shape that a mixer sees: no more held than the rows of this part, or none might go out."""
        if self._part is None:
            return self._shape
        share = self._part.share if self._part.held_out else 1 - self._part.share
        rows = int(self._shape.rows * share / self._shape.world)
        return replace(self._shape, held_rows=max(1, min(self._shape.held_rows, rows)))

    def _blank(self, count: int) -> Batch | None:
        if not count:
            return None
        encoder, width = self.encoder, self.encoder.width or 0
        empty = Csr(np.zeros(count + 1, np.uint64), np.empty(0, np.uint32), np.empty(0, np.float32), width)
        y = np.zeros(count, np.float32) if encoder.label else None
        weight = np.zeros(count, np.float32) if encoder.weight else None
        return Batch(empty if encoder.sparse else np.zeros((count, width), np.float32), y, weight)

    def _count(self, epoch: int) -> int:
        return sum(1 for _ in self.order.windows(self._shape, epoch))

    def _read(self, window: Window | RowWindow) -> LoadedWindow:
        assert self._reader is not None  # _prepare made it
        loaded = self._reader.read(window)
        if not isinstance(self._feed.decoder, ResidentDecoder):
            self.bytes_read += int(self._feed.source.block_bytes[np.unique(loaded.blocks)].sum())
        return loaded
