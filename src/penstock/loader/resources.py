"""Rows where an order wants them: where they are stored, decoded in memory, or in a shuffled copy.

`LoaderResources` owns what a loader reads from and gives it back: the feed, the threads that fill windows, the copy. Nothing is
opened or written before the first epoch is asked for.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal

import numpy as np

from penstock.blocks.base import Int64s, row_place
from penstock.blocks.cached_source import CachedSource, fits
from penstock.budget import Budget, CacheChoice, give_back, show_bytes
from penstock.errors import FeatureError
from penstock.events import log
from penstock.loader.decode import ResidentDecoder, divided, redecoded, unit_bytes
from penstock.loader.encoded_copy import EncodedCopy, encoded_copy
from penstock.loader.held_rows import HeldDecoder, HeldRows, held_feed
from penstock.loader.holdout import RowFilter, SplitPart
from penstock.loader.plan import Plan, plan_memory
from penstock.loader.row_forms import Decodes, R, RecordForm, Scaling
from penstock.loader.shuffled_copies import ShuffledCopy, rows_per_block, shuffled_copy
from penstock.loader.windows import Feed, LoadedWindow, WindowReader
from penstock.parallel import in_order
from penstock.shuffle import Shape
from penstock.shuffle import order as order_named

# Bytes that an order of single rows needs for each: its number and position, its slot, and room to sort them.
_NUMBERS = 32
# Rows of a part to a block from which on hardly any block is without one, and looking for those saves nothing.
_SPARSE = 4


def divide(
    feed: Feed[R],
    memory: Budget,
    *,
    by_row: bool,
    mixed: bool,
    threads: int,
    stretch: bool = False,
    size: tuple[float, int] | None = None,
    least_rows: int = 0,
    enough: int = 0,
) -> Plan:
    """Divide the memory for an order of single rows, for one that keeps rows back between windows, or for another."""
    row_bytes, rows = size or feed.size()
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
        unit_bytes=unit_bytes(feed.source, feed.form.columns) if divided(feed.source) else 0,
        once_bytes=unit_bytes(feed.source, feed.form.columns) if redecoded(feed.source) else 0,
        stretch=stretch,
        least_rows=least_rows,
        enough=enough,
    )


class LoaderResources(Generic[R]):
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
        recipe: Decodes[R],
        scaling: Scaling,
        *,
        plan: Plan,
        shape: Shape,
        part: RowFilter | None,
        scratch: str | os.PathLike[str] | None,
        cache: CacheChoice = False,
    ) -> None:
        self.feed = feed
        feed.decoder.together = plan.together
        self.shape = shape
        self.reader: WindowReader[R] | None = None
        self.copy: ShuffledCopy[R] | None = None
        self.bytes_read = self.extra_disk_bytes = 0
        self.prepare_seconds = 0.0
        self._source = feed.source
        self._recipe = recipe
        self._scaling = scaling
        self._plan = plan
        self._stored_shape = shape
        self._part = part
        self._scratch = scratch
        self._closed = False
        self._copied = 0  # the epoch that the copy was shuffled for
        self._cache: CachedSource | None = None
        self._keeps = redecoded(feed.source)
        self._cached = cache

    @property
    def _encoded(self) -> EncodedCopy | None:
        """What keeps encoded rows on disk, if they are kept."""
        decoder: Any = self.feed.decoder
        return decoder if isinstance(decoder, EncodedCopy) else None

    @property
    def _local(self) -> bool:
        """Whether all blocks are in a local file, and none of a row group is decoded anew."""
        return self._cache is not None or (self._encoded is not None and self._encoded.complete)

    @property
    def held(self) -> HeldRows | None:
        """All rows, where they are of fixed width and lie in memory."""
        decoder: Any = self.feed.decoder
        return decoder.rows if isinstance(decoder, HeldDecoder) else None

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
            self.feed, self.shape = Feed.open(self._source, self._recipe, self._scaling), self._stored_shape
            self.feed.decoder.together = self._plan.together
            self._closed = False
        if copied != "never":
            wanted = epoch if copied == "epoch" else 0
            if self.copy is None or self._copied != wanted:
                self._write_copy(wanted)
                self._copied = wanted
        elif self._plan.resident and not isinstance(self.feed.decoder, ResidentDecoder):
            self.feed = held_feed(self.feed) or self.feed.resident()
            self._source.check()  # what was read straight from an open file may not be what was opened
            counts = self.feed.block_rows
            # All of them fit, also where the plan was made from an estimate of their number.
            self.shape = replace(self.shape, block_rows=counts, units=None, held_rows=max(1, int(counts.sum())))
            self.bytes_read += int(self._source.block_bytes.sum())
        elif not self._plan.resident:
            if self._cached and self._encoded is None:
                self._encode_once()
            if self._keeps and self._cache is None and self._encoded is None:
                self._keep_blocks()
        if self.reader is None and windows:
            self.reader = WindowReader(
                self.feed,
                capacity=self.shape.held_rows,
                threads=1 if redecoded(self._source) and not self._local else self._plan.threads,
                part=None if self.copy else self._part,  # a copy holds this part's rows only
            )

    def release(self) -> None:
        """Stop the threads, close what was opened and remove a copy; `prepare` opens them again."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        if self._encoded is not None:
            self.extra_disk_bytes = max(self.extra_disk_bytes, self._encoded.nbytes)
        self.feed.decoder.close()
        self._closed = True
        if self._cache is not None:
            self._cache.discard()
            self._cache = None
        if self.copy is not None:
            self._remove()
            self.copy = None

    def stored(self, part: SplitPart | None) -> Generator[LoadedWindow[R], None, None]:
        """Yield the rows that a part keeps, in stored order, through the windows that epochs are read into."""
        assert self.reader is not None  # made by `prepare`
        shape, counts = replace(self.shape, rank=0, world=1), self.feed.block_rows
        plan: Any = order_named("none").windows(shape, 0)
        kept = None if part is None else part.of(self._source)
        if part is not None and kept is not None and self.feed.exact and part.kept_share * counts.mean() < _SPARSE:
            plan = (replace(window, blocks=_with_rows(window.blocks, counts, kept)) for window in plan)
            plan = (window for window in plan if len(window.blocks))
        return in_order(partial(self.reader.read, part=kept), plan, threads=1)

    def idle(self) -> None:
        """Give up the memory of windows until the next epoch; a copy, or rows kept in memory, stay."""
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def abandon(self) -> None:
        """Leave threads and copy alone, which are another process's after a fork."""
        self.reader = self.copy = None

    def _keep_blocks(self) -> None:
        """Decode all blocks once, in stored order, and keep them on disk; where there is no room, epochs decode them anew.

        Rows and windows are the same either way.
        """
        began, source, columns = time.perf_counter(), self._source, list(self.feed.form.columns)
        folder = None if self._scratch is None else os.fspath(self._scratch)
        try:
            if not fits(source, columns, folder=folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            cache = CachedSource(source, columns, folder=folder)
        except OSError as error:
            self._keeps = False
            log.warning(
                "%s: decoded row groups take %s of disk, which cannot be written in %s (%s); every window decodes the row groups"
                " it has rows of anew, which is slow: give another folder as scratch, more memory, or convert the data",
                source.name,
                show_bytes(self._plan.kept_bytes),
                folder or tempfile.gettempdir(),
                error.strerror,
            )
            return
        log.info("%s: row groups are decoded once, to %s on disk", source.name, show_bytes(self._plan.kept_bytes))
        for block in range(len(source.block_rows)):
            cache.read(block)
        give_back()
        self.prepare_seconds += time.perf_counter() - began
        self.bytes_read += int(source.block_bytes.sum())
        self._keeps = cache.complete
        if not cache.complete:  # it has said why
            cache.discard()
            return
        self.extra_disk_bytes = max(self.extra_disk_bytes, cache.nbytes)
        self._cache = cache
        self.feed.decoder.close()
        self.feed = Feed.open(cache, self._recipe, self._scaling)
        self.feed.decoder.together = self._plan.together

    def _encode_once(self) -> None:
        """Have rows kept on disk as they are encoded, where that is worth it.

        Blocks that are decoded with the row group they lie in are all encoded now, in stored order.
        """
        feed: Any = self.feed
        decoder = encoded_copy(
            feed.source, feed.decoder, feed.form, nbytes=self._plan.data_bytes, cache=self._cached, folder=self._scratch
        )
        if decoder is None:
            self._cached = False
            return
        self.feed = replace(feed, decoder=decoder)
        if self._keeps:
            began, blocks = time.perf_counter(), np.arange(len(feed.block_rows))
            # Many small blocks are encoded as one, in the memory that windows will have.
            decoder.together = max(1, self._plan.held_rows // (4 * max(1, int(feed.block_rows.max(initial=0)))))
            for at in range(0, len(blocks), decoder.together):
                decoder.decode_many(blocks[at : at + decoder.together])
            decoder.together = self._plan.together
            give_back()
            self.prepare_seconds += time.perf_counter() - began
            self.bytes_read += int(self._source.block_bytes.sum())

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
        columns: Any = form.fields if isinstance(form, RecordForm) else form.recipe
        self.feed, self._closed = Feed.open(copy.source, columns, self._scaling), False
        self.shape = replace(self.shape, block_rows=self.feed.block_rows, units=None)

    @contextmanager
    def _stored(self) -> Iterator[Iterator[R]]:
        """Give all rows in stored order, unscaled; those that could not be learned from are refused by name."""
        feed = Feed.open(self._source, self._recipe, Scaling.none())
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
                    name, number = row_place(self._source, *window.locate(bad[0]))
                    raise FeatureError(
                        f"{name}: {bad[1]!r} is not a finite number in row {number}; fill or remove such"
                        " values before training"
                    )
                yield window.batch

        with closing(feed.decoder), closing(reader), closing(in_order(reader.read, plan, threads=1)) as windows:
            yield rows(windows)


def _with_rows(blocks: Int64s, counts: Int64s, part: RowFilter) -> Int64s:
    """Return the blocks of which a part keeps some row: a small sample needs few of many blocks."""
    kept = [bool(part.keeps(block, np.arange(counts[block])).any()) for block in blocks]
    return blocks[np.array(kept, np.bool_)]
