"""Single rows, read by just their bytes: the data plane of an exact global shuffle.

A task's rows come in the order in which they lie; what is near enough to be read along is, and each byte range is
fetched once. Many tasks run at a time, so that storage always has reads to choose from. Rows of unequal length are
looked up in their block's offsets first.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import UNKNOWN, RowLayout
from penstock.errors import CorruptFileError
from penstock.loader import read_kernels
from penstock.loader.decode import equal_runs
from penstock.loader.direct_reads import PAGE, DirectFiles, aligned
from penstock.records import Column, Ragged, Records

GAP = 32 * 1024
"""Bytes between two rows that are read along rather than skipped: what storage delivers in the time of one read."""
ROOM = 512 * 1024
"""Bytes of the longest single read."""


class RowReader:
    """Reads rows by their numbers from where a layout says they lie; used by many threads at once.

    Parameters
    ----------
    source : BlockSource
        Named in errors, and asked whether its files are still those opened.
    fields : Fields
        The columns wanted.
    layout : RowLayout
        Where their rows lie.
    direct : DirectFiles
        The same files opened past the page cache, where they are too large for it.
    """

    def __init__(self, source: BlockSource, fields: Fields, layout: RowLayout, direct: DirectFiles) -> None:
        self._source = source
        self._fields = fields
        self._layout = layout
        self._direct = direct
        self._firsts = np.cumsum(layout.rows) - layout.rows
        self._widths = np.array([column.width for column in layout.columns], np.int64)
        self._local = threading.local()
        self._lock = threading.Lock()
        self.bytes_read = 0

    def read(self, owner: Int64s, local: Int64s) -> Records:
        """Read rows; their blocks and places in these come in ascending order."""
        columns: dict[str, Column] = {}
        wanted: list[tuple[Int64s, Int64s, Int64s]] = []
        self._locate(owner)
        for number, (column, field) in enumerate(zip(self._layout.columns, self._fields.fields, strict=True)):
            if column.width:
                values = field.empty(len(owner))
                at, sizes = column.at[owner] + local * column.width, np.full(len(owner), column.width, np.int64)
                wanted.append((at, sizes, values.ctypes.data + np.arange(len(owner)) * column.width))
                columns[field.name] = values
                continue
            low, high = self._extents(number, owner, local)
            offsets = np.zeros(len(owner) + 1, np.int64)
            np.cumsum(high - low, out=offsets[1:])
            flat = np.empty(int(offsets[-1]), field.dtype)
            sizes = (high - low) * column.item_size
            at = column.at[owner] + low * column.item_size
            wanted.append((at, sizes, flat.ctypes.data + offsets[:-1] * column.item_size))
            columns[field.name] = Ragged(offsets, flat, field.kind)  # type: ignore[arg-type]  # a ragged kind
        for fd, here in self._by_file(owner):
            at, sizes, to = (np.concatenate([part[here] for part in parts]) for parts in zip(*wanted, strict=True))
            self._fetch(fd, at, sizes, to, ascending=len(wanted) == 1)
        return Records(columns, self._firsts[owner] + local if self._fields.numbered else None)

    def read_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Records) -> None:
        """Read rows of fixed width into slots."""
        self._locate(owner)
        memory: list[Any] = [into.columns[field.name] for field in self._fields.fields]
        to = np.array([column.ctypes.data for column in memory], np.int64)
        for fd, here in self._by_file(owner):
            # Columns in the order in which they lie, so that the pieces do.
            by_place = np.argsort(self._layout.at[:, owner[here.start]])
            mine = owner[here], local[here], slots[here]
            laid = read_kernels.lay_out(*mine, self._layout.at[by_place], self._widths[by_place], to[by_place])
            self._fetch(fd, *laid, ascending=self._layout.whole)
        if into.rows is not None:
            into.rows[slots] = self._firsts[owner] + local

    def _extents(self, column: int, owner: Int64s, local: Int64s) -> tuple[Int64s, Int64s]:
        """Return where ragged rows begin and end, in items from the start of their block's values."""
        low, high = np.empty(len(owner), np.int64), np.empty(len(owner), np.int64)
        for block, here in equal_runs(owner):
            ends = self._layout.ends(column, block)
            low[here] = ends[local[here]]
            high[here] = ends[local[here] + 1]
        return low, high

    def _locate(self, owner: Int64s) -> None:
        self._layout.verify(distinct(owner))
        if len(owner) and (self._layout.at[0, owner[0] : owner[-1] + 1] == UNKNOWN).any():
            self._layout.locate(distinct(owner))

    def _by_file(self, owner: Int64s) -> list[tuple[int, slice]]:
        """Return each file that the rows are in, and which of them are."""
        fds = self._layout.fds
        if not len(owner) or fds[owner[0]] == fds[owner[-1]]:
            return [(int(fds[b]), slice(0, len(owner))) for b in owner[:1].tolist()]
        return list(equal_runs(fds[owner]))

    def _fetch(self, fd: int, at: Int64s, sizes: Int64s, to: Int64s, *, ascending: bool) -> None:
        if not ascending:
            order = np.argsort(at, kind="stable")  # each column is sorted already: merged, not sorted
            at, sizes, to = at[order], sizes[order], to[order]
        direct = self._direct.get(fd)
        staging = self._staging()
        page = 1 if direct is None else PAGE
        status, k, total = read_kernels.read_pieces(
            fd if direct is None else direct, at, sizes, to, GAP, staging.ctypes.data, ROOM, page
        )
        if status != read_kernels.DONE:
            self._source.check()
            found = len(os.pread(fd, int(sizes[k]), int(at[k])))  # raises if it still fails
            raise CorruptFileError(
                f"{self._source.name}: {found} bytes at byte {int(at[k])} where {int(sizes[k])} should be; the file"
                " was cut short while it was being read"
            )
        with self._lock:
            self.bytes_read += int(total)

    def _staging(self) -> NDArray[np.uint8]:
        memory: NDArray[np.uint8] | None = getattr(self._local, "staging", None)
        if memory is None:
            memory = self._local.staging = aligned(ROOM)
        return memory


def distinct(ascending: Int64s) -> Int64s:
    """Return ascending numbers without repeats."""
    return ascending[np.flatnonzero(np.diff(ascending, prepend=-1))]
