"""Rows where an order wants them: where they are stored, decoded in memory, or in a shuffled copy.

`Ready` owns what a loader reads from and gives it back: the feed, the threads that fill windows, the copy. Nothing is
opened or written before the first epoch is asked for.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Generic, Literal

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.fields import Fields
from penstock.budget import Budget
from penstock.errors import FeatureError
from penstock.loader.copies import Copy, rows_per_block, shuffled_copy
from penstock.loader.decode import ResidentDecoder, divided, row_number, unit_bytes
from penstock.loader.feed import Feed
from penstock.loader.forms import Decodes, R, RecordForm, Scaling
from penstock.loader.holdout import Part
from penstock.loader.plan import Plan, plan_memory
from penstock.loader.windows import LoadedWindow, WindowReader, ahead
from penstock.shuffle import Shape
from penstock.shuffle import order as order_named

# Bytes that an order of single rows needs for each: its number and position, its slot, and room to sort them.
_NUMBERS = 32


def open_feed(source: BlockSource, encoder: Decodes[R], scaling: Scaling) -> Feed[R]:
    """Choose the fastest way of reading a source's rows."""
    columns: Any = encoder
    if isinstance(columns, Fields):
        feed: Any = Feed.of_records(source, columns)
    else:
        feed = Feed.of(source, columns, scaling)
    return feed  # type: ignore[no-any-return]  # of the kind that the encoder makes


def divide(feed: Feed[R], memory: Budget, *, by_row: bool, mixed: bool, threads: int, stretch: bool = False) -> Plan:
    """Divide the memory for an order of single rows, for one that keeps rows back between windows, or for another."""
    row_bytes, rows = feed.size()
    return plan_memory(
        feed.source,
        memory=memory,
        row_bytes=row_bytes,
        rows=rows,
        block_rows=int(feed.block_rows.max(initial=0)),
        thread_bytes=feed.decoder.thread_bytes,
        most_threads=threads,
        layout="swept" if by_row else "filled" if feed.filled else "assembled",
        mixed=mixed,
        beside=_NUMBERS if by_row else 0,
        unit_bytes=unit_bytes(feed.source) if divided(feed.source) else 0,
        stretch=stretch,
    )


class Ready(Generic[R]):
    """What a loader reads from.

    Attributes
    ----------
    feed : Feed
        The rows.
    shape : Shape
        What an order may know of them.
    reader : WindowReader or None
        The threads that fill windows of blocks.
    copy : Copy or None
        The shuffled copy, where there is one.
    bytes_read, extra_disk_bytes : int
        So far, and at most.
    prepare_seconds : float
        Spent on copies.
    """

    def __init__(
        self,
        feed: Feed[R],
        encoder: Decodes[R],
        scaling: Scaling,
        *,
        plan: Plan,
        shape: Shape,
        part: Part | None,
        scratch: str | os.PathLike[str] | None,
    ) -> None:
        self.feed = feed
        self.shape = shape
        self.reader: WindowReader[R] | None = None
        self.copy: Copy[R] | None = None
        self.bytes_read = self.extra_disk_bytes = 0
        self.prepare_seconds = 0.0
        self._source = feed.source
        self._encoder = encoder
        self._scaling = scaling
        self._plan = plan
        self._stored_shape = shape
        self._part = part
        self._scratch = scratch
        self._closed = False
        self._copied = 0  # the epoch that the copy was shuffled for

    @property
    def copied_shape(self) -> Shape:
        """The shape of the copy, which is known before it is written."""
        if self.copy is not None:
            return self.shape
        plan = self._plan
        size = rows_per_block(row_bytes=plan.row_bytes, data_bytes=plan.data_bytes, memory=plan.memory)
        full, rest = divmod(self.shape.rows, size)
        return replace(self.shape, block_rows=np.array([size] * full + [rest] * (rest > 0), np.int64), units=None)

    def prepare(self, copied: Literal["never", "once", "epoch"], epoch: int, *, windows: bool) -> None:
        """Have the rows in place for an epoch, and threads to fill windows of blocks if these are wanted."""
        if self._closed:
            self.feed, self.shape = open_feed(self._source, self._encoder, self._scaling), self._stored_shape
            self._closed = False
        if copied != "never":
            wanted = epoch if copied == "epoch" else 0
            if self.copy is None or self._copied != wanted:
                self._write_copy(wanted)
                self._copied = wanted
        elif self._plan.resident and not isinstance(self.feed.decoder, ResidentDecoder):
            self.feed = self.feed.resident()
            counts = self.feed.block_rows
            # All of them fit, also where the plan was made from an estimate of their number.
            self.shape = replace(self.shape, block_rows=counts, units=None, held_rows=max(1, int(counts.sum())))
            self.bytes_read += int(self._source.block_bytes.sum())
        if self.reader is None and windows:
            self.reader = WindowReader(
                self.feed,
                capacity=self.shape.held_rows,
                threads=self._plan.threads,
                part=None if self.copy else self._part,  # a copy holds this part's rows only
            )

    def release(self) -> None:
        """Stop the threads, close what was opened and remove a copy; `prepare` opens them again."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        self.feed.decoder.close()
        self._closed = True
        if self.copy is not None:
            self._remove()
            self.copy = None

    def abandon(self) -> None:
        """Leave threads and copy alone, which are another process's after a fork."""
        self.reader = self.copy = None

    def _write_copy(self, epoch: int) -> None:
        self.release()
        plan = self._plan
        self.copy = copy = shuffled_copy(
            self._stored,
            self.feed.form,
            row_bytes=plan.row_bytes,
            data_bytes=plan.data_bytes,
            memory=plan.memory,
            seed=self._stored_shape.seed,
            epoch=epoch,
            folder=self._scratch,
        )
        self._remove = weakref.finalize(self, copy.close)  # also where nobody calls release
        self.prepare_seconds += copy.seconds
        self.extra_disk_bytes = max(self.extra_disk_bytes, copy.disk_bytes)
        self.bytes_read += int(self._source.block_bytes.sum())
        form: Any = copy.form
        columns: Any = form.fields if isinstance(form, RecordForm) else form.encoder
        self.feed, self._closed = open_feed(copy.source, columns, self._scaling), False
        self.shape = replace(self.shape, block_rows=self.feed.block_rows, units=None)

    @contextmanager
    def _stored(self) -> Iterator[Iterator[R]]:
        """Give all rows in stored order, unscaled; those that could not be learned from are refused by name."""
        feed = open_feed(self._source, self._encoder, Scaling.none())
        # Dealing a window's rows to buckets takes room for them once more.
        held = max(int(feed.block_rows.max(initial=1)), 5 * self._plan.held_rows // 8)
        reader = WindowReader(feed, capacity=held, threads=self._plan.threads, part=self._part)
        # Every rank writes the whole copy, the same one, and is dealt its part of that.
        shape = replace(self._stored_shape, held_rows=held, rank=0, world=1)
        plan: Any = order_named("none").windows(shape, 0)

        def rows(windows: Iterator[LoadedWindow[R]]) -> Iterator[R]:
            for window in windows:
                bad = feed.form.flaw(window.batch)
                if bad is not None:
                    number = row_number(self._source, *window.locate(bad[0]))
                    raise FeatureError(
                        f"{self._source.name}: {bad[1]!r} is not a finite number in row {number}; fill or remove such"
                        " values before training"
                    )
                yield window.batch

        with closing(feed.decoder), closing(reader), closing(ahead(plan, reader.read)) as windows:
            yield rows(windows)
