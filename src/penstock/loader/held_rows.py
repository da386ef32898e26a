"""Rows that are all in memory, given out by their numbers: each window is gathered straight into the memory of its batches.

Where the data fit in the memory given, a window of blocks or a sweep would only copy rows from one place in memory to another and
then once more into batches. Here the order of an epoch is turned into numbers of rows, and threads gather the rows of a few
batches at a time, ahead of their use, into memory that belongs to whoever takes them. All columns of a row lie side by side, so that a
row costs one wait for memory, however many columns it has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.blocks.base import Int64s
from penstock.copying import gather_columns, words
from penstock.loader.decode import Decoder, ResidentDecoder
from penstock.loader.holdout import RowFilter
from penstock.loader.row_forms import RecordForm, RecordSlots
from penstock.loader.window_kernels import order_of_slots
from penstock.loader.windows import Feed, LoadedWindow, window_slots
from penstock.parallel import cores, in_order
from penstock.records import Column, Records
from penstock.shuffle import Window

# What is gathered at a time: enough that handing it to a thread costs nothing beside it, and little beside the rows.
_PIECE_BYTES = 2 << 20
# Bytes that are read at a time.
_RUN_BYTES = 4 << 20
_NO_BLOCKS = np.empty(0, np.int64)


class HeldRows:
    """All rows of some data in stored order, their columns side by side.

    Parameters
    ----------
    form : RecordForm
        What the rows are; of fixed width.
    block_rows : array
        How many rows each block has.
    """

    def __init__(self, form: RecordForm, block_rows: Int64s) -> None:
        self._form, self._block_rows = form, block_rows
        self._ends = np.cumsum(block_rows)
        fields = form.fields.fields
        sizes = [field.row_bytes for field in fields]
        word = next(size for size in (8, 4, 2, 1) if not any(each % size for each in sizes))
        self._widths = np.array([size // word for size in sizes], np.int64)
        self._starts = np.cumsum(self._widths) - self._widths
        self._words = np.empty((int(block_rows.sum()), int(self._widths.sum())), np.dtype(f"u{word}"))

    @classmethod
    def of(cls, feed: Feed[Records], form: RecordForm, *, threads: int | None) -> HeldRows:
        """Read all rows of a feed."""
        held, counts = cls(form, feed.block_rows), feed.block_rows
        if feed.units is not None:  # one thread at a time can decode a unit
            cuts = np.flatnonzero(np.diff(feed.units)) + 1
        else:
            cuts = np.flatnonzero(np.diff(np.cumsum(counts * form.row_bytes) // _RUN_BYTES)) + 1
        decoder: Decoder[Records] = feed.decoder

        def read(blocks: Int64s) -> None:
            first, last = int(held._ends[blocks[0]] - counts[blocks[0]]), int(held._ends[blocks[-1]])
            into = form.empty(last - first)
            places = np.arange(last - first, dtype=np.uint32)
            decoder.fill(blocks, held._ends[blocks] - counts[blocks] - first, places, into)
            held._put(first, into)

        for _ in in_order(read, np.split(np.arange(len(counts)), cuts), threads=threads):
            pass
        return held

    def block(self, block: int) -> Records:
        """Return a block's rows in stored order."""
        return self.take(np.arange(self._ends[block] - self._block_rows[block], self._ends[block]))

    def take(self, numbers: Int64s) -> Records:
        """Return the rows of these numbers, in memory of their own."""
        columns: dict[str, Column] = {}
        for field in self._form.fields.fields:
            columns[field.name] = field.empty(len(numbers))
        to = np.array([column.ctypes.data for column in columns.values()], np.int64)  # type: ignore[union-attr]  # fixed width
        gather_columns(self._words, numbers, self._starts, self._widths, to)
        return Records(columns, numbers if self._form.fields.numbered else None)

    def singly(
        self, numbers: Callable[[int, int], Int64s], start: int, stop: int, *, multiple: int
    ) -> Generator[LoadedWindow[Records], None, None]:
        """Yield the rows at positions of an order of single rows; ``numbers`` tells which rows stand between two."""
        size = self._piece_rows(multiple)

        def gather(at: int) -> LoadedWindow[Records]:
            return self._window(at // size, numbers(at, min(at + size, stop)))

        with closing(in_order(gather, range(start, stop, size), threads=cores())) as windows:
            yield from windows

    def by_window(
        self, plan: list[Window], part: RowFilter | None, skip: int, *, multiple: int
    ) -> Generator[LoadedWindow[Records], None, None]:
        """Yield the rows of windows of blocks, but for the first ``skip``; their order is worked out a window ahead."""
        size = self._piece_rows(multiple)

        def pieces() -> Generator[tuple[int, Int64s], None, None]:
            left = skip
            with closing(in_order(partial(self._order, part=part), plan, threads=1)) as orders:
                for window, order in zip(plan, orders, strict=True):
                    for at in range(min(left, len(order)), len(order), size):
                        yield window.index, order[at : at + size]
                    left -= min(left, len(order))

        def gather(piece: tuple[int, Int64s]) -> LoadedWindow[Records]:
            return self._window(*piece)

        with closing(pieces()) as some, closing(in_order(gather, some, threads=cores())) as windows:
            yield from windows

    def _put(self, first: int, rows: RecordSlots) -> None:
        for column, start, width in zip(rows.records.columns.values(), self._starts, self._widths, strict=True):
            fixed: Any = column
            size = self._words.itemsize
            self._words[first : first + len(rows), start : start + width] = words(fixed).view(f"u{size}")

    def _piece_rows(self, multiple: int) -> int:
        return multiple * max(1, _PIECE_BYTES // (max(1, self._form.row_bytes) * multiple))

    def _order(self, window: Window, part: RowFilter | None) -> Int64s:
        """Return the numbers of a window's rows in the order in which they are given out."""
        counts = self._block_rows[window.blocks]
        slots, kept = window_slots(window, counts, part)
        order: Int64s = order_of_slots(self._ends[window.blocks] - counts, counts, slots, kept)
        return order

    def _window(self, index: int, numbers: Int64s) -> LoadedWindow[Records]:
        rows = self.take(numbers)
        return LoadedWindow(index, rows, _NO_BLOCKS, self._block_rows, None, numbers=lambda: numbers, owned=True)


class HeldDecoder(ResidentDecoder[Records]):
    """Serves held rows by their blocks too, for orders that keep rows back between windows."""

    def __init__(self, rows: HeldRows, form: RecordForm) -> None:
        super().__init__([], form)
        self.rows: HeldRows | None = rows

    def decode(self, block: int) -> Records:
        assert self.rows is not None  # until it is closed
        return self.rows.block(block)

    def close(self) -> None:
        self.rows = None


def held_feed(feed: Feed[Any]) -> Feed[Any] | None:
    """Return a feed whose rows are all in memory, or None where they are not records of fixed width."""
    form = feed.form
    if not isinstance(form, RecordForm) or not feed.filled:
        return None
    rows = HeldRows.of(feed, form, threads=feed.source.threads)
    return replace(feed, decoder=HeldDecoder(rows, form), units=None)
