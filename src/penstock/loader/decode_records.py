"""From blocks to columns of any type: through Arrow, or straight from where fixed-width rows lie in the file."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import RowLayout
from penstock.errors import CorruptFileError
from penstock.loader import pieces
from penstock.loader.decode import Decoder, divided, first_row, runs, unit_bytes
from penstock.loader.direct import PAGE, DirectFiles, aligned, room
from penstock.loader.forms import RecordForm, RecordSlots
from penstock.loader.scatter import ROOM, RowReader
from penstock.records import Records


def record_decoder(source: BlockSource, fields: Fields) -> Decoder[Records]:
    """Return the fastest way of reading these columns."""
    # Asked for by name: isinstance of a protocol would touch every property, and hash the data for a fingerprint.
    layout_of = getattr(source, "row_layout", None)
    layout = None if layout_of is None else layout_of(fields)
    return ArrowDecoder(source, fields) if layout is None else LayoutDecoder(source, fields, layout)


class ArrowDecoder:
    """Reads blocks through the source; works for every source."""

    waits = False
    cached = False
    single = False

    def __init__(self, source: BlockSource, fields: Fields) -> None:
        self._source = source
        self._form = RecordForm(fields)
        stored = int(source.block_bytes.max(initial=0))
        # Raw bytes and Arrow columns; the rows mostly share the memory of these.
        self.thread_bytes = 2 * stored + int(source.block_rows.max(initial=0)) * fields.row_bytes
        if source.units is not None and not divided(source):
            self.thread_bytes = max(self.thread_bytes, unit_bytes(source))

    def decode(self, block: int) -> Records:
        arrow = self._source.read(block, self._form.columns)
        return self._form.decode(arrow, first_row=first_row(self._source, block))

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: RecordSlots) -> None:
        for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
            part = self.decode(block)
            self._form.put(part, slots[start : start + len(part)], into)

    def pick(self, owner: Int64s, local: Int64s) -> Records:
        return Records.concat([self.decode(block).take(local[here]) for block, here in runs(owner)])

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: RecordSlots) -> None:
        for block, here in runs(owner):
            self._form.put(self.decode(block).take(local[here]), slots[here], into)

    def close(self) -> None:
        pass


class LayoutDecoder(ArrowDecoder):
    """Reads rows whose places in the file are known: whole blocks into slots, or single rows."""

    waits = True
    single = True

    def __init__(self, source: BlockSource, fields: Fields, layout: RowLayout) -> None:
        super().__init__(source, fields)
        self._fields = fields
        self._layout = layout
        self._local = threading.local()
        nbytes = int(layout.nbytes.sum())
        self._direct = DirectFiles(layout.fds, nbytes=nbytes)
        self.cached = not len(self._direct)
        self._fds = self._direct.instead_of(layout.fds)
        self._largest = layout.most_bytes
        if layout.fixed:
            self.thread_bytes = max(room(self._largest, nbytes=nbytes), ROOM)
        self._firsts = np.cumsum(layout.rows) - layout.rows
        self._reader = RowReader(source, fields, layout, self._direct)

    @property
    def bytes_read(self) -> int:
        """Bytes fetched for single rows so far."""
        return self._reader.bytes_read

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: RecordSlots) -> None:
        layout = self._layout
        layout.locate(blocks)
        staging: Any = getattr(self._local, "staging", None)
        if staging is None:
            staging = self._local.staging = aligned(self._largest)
        columns = [into.records.columns[field.name] for field in self._fields.fields]
        status, k = pieces.read_blocks(
            self._fds,
            blocks,
            starts,
            slots,
            layout.offsets,
            layout.nbytes,
            layout.rows,
            layout.at,
            np.array([column.width for column in layout.columns], np.int64),
            np.array([column.ctypes.data for column in columns], np.int64),  # type: ignore[union-attr]  # fixed width
            staging.ctypes.data,
            1 if self.cached else PAGE,
            layout.whole,
        )
        if status != pieces.DONE:
            self._source.check()
            block = int(blocks[k])
            found = os.pread(int(layout.fds[block]), int(layout.nbytes[block]), int(layout.offsets[block]))
            raise CorruptFileError(
                f"{self._source.name}: block {block} has {len(found)} bytes where {int(layout.nbytes[block])} should be;"
                " the file was cut short while it was being read"
            )
        if into.records.rows is not None:
            for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
                count, first = int(layout.rows[block]), int(self._firsts[block])
                numbers = np.arange(first, first + count, dtype=np.int64)
                self._form.put(Records({}, numbers), slots[start : start + count], into)

    def pick(self, owner: Int64s, local: Int64s) -> Records:
        return self._reader.read(owner, local)

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: RecordSlots) -> None:
        self._reader.read_into(owner, local, slots, into.records)

    def close(self) -> None:
        self._direct.close()
