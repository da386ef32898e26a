"""From blocks to columns of any type: through Arrow, or straight from where fixed-width rows lie in the file."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource, Int64s, row_place
from penstock.blocks.block_sums import cut_short, damaged_block
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import RowLayout
from penstock.errors import DataError
from penstock.loader import read_kernels
from penstock.loader.decode import Decoder, WholeBlocks, arrow_blocks, first_row, thread_bytes
from penstock.loader.direct_reads import PAGE, DirectFiles, aligned, room
from penstock.loader.row_forms import RecordForm
from penstock.loader.row_reader import ROOM, RowReader
from penstock.records import Records


def record_decoder(source: BlockSource, fields: Fields) -> Decoder[Records]:
    """Return the fastest way of reading these columns."""
    layout = source.row_layout(fields) if fields.encoder is None else None
    return ArrowDecoder(source, fields) if layout is None else LayoutDecoder(source, fields, layout)


class ArrowDecoder(WholeBlocks[Records]):
    """Reads blocks through the source; works for every source."""

    _form: RecordForm

    def __init__(self, source: BlockSource, fields: Fields) -> None:
        super().__init__(RecordForm(fields))
        self._source = source
        stored = int(source.block_bytes.max(initial=0))
        # Raw bytes and Arrow columns; the rows mostly share the memory of these.
        held = 2 * stored + int(source.block_rows.max(initial=0)) * fields.row_bytes
        self.thread_bytes = thread_bytes(source, held, fields.columns)

    def decode(self, block: int) -> Records:
        return self._decode(block, self._source.read(block, self._form.columns))

    def _decode(self, block: int, arrow: pa.RecordBatch) -> Records:
        """Return a block's rows, numbered as in all the data; one that is refused is named by its file and place there."""
        try:
            return self._form.decode(arrow, first_row=first_row(self._source, block))
        except DataError:
            name, first = row_place(self._source, block, 0)
            RecordForm(replace(self._form.fields, place=name)).decode(arrow, first_row=first)
            raise

    def decode_many(self, blocks: Int64s) -> list[Records]:
        found = arrow_blocks(self._source, blocks.tolist(), self._form.columns, together=self.together)
        return [self._decode(block, arrow) for block, arrow in found]

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Records) -> None:
        found = arrow_blocks(self._source, blocks.tolist(), self._form.columns, together=self.together)
        for start, (block, arrow) in zip(starts.tolist(), found, strict=True):
            part = self._decode(block, arrow)
            self._form.put(part, slots[start : start + len(part)], into)


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

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Records) -> None:
        layout = self._layout
        if not layout.whole:
            layout.verify(blocks)
        layout.locate(blocks)
        staging: Any = getattr(self._local, "staging", None)
        if staging is None:
            staging = self._local.staging = aligned(self._largest)
        columns = [into.columns[field.name] for field in self._fields.fields]
        status, k = read_kernels.read_blocks(
            self._fds,
            blocks,
            starts,
            slots,
            layout.offsets,
            layout.nbytes,
            layout.sums,
            layout.rows,
            layout.at,
            np.array([column.width for column in layout.columns], np.int64),
            np.array([column.ctypes.data for column in columns], np.int64),  # type: ignore[union-attr]  # fixed width
            staging.ctypes.data,
            1 if self.cached else PAGE,
            layout.whole,
        )
        if status != read_kernels.DONE:
            self._source.check()
            block = int(blocks[k])
            if status == read_kernels.DAMAGED:
                raise damaged_block(self._source.name, block)
            fd, offset, nbytes = (int(each[block]) for each in (layout.fds, layout.offsets, layout.nbytes))
            raise cut_short(self._source.name, block, fd=fd, offset=offset, nbytes=nbytes)
        if into.rows is not None:
            for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
                count, first = int(layout.rows[block]), int(self._firsts[block])
                numbers = np.arange(first, first + count, dtype=np.int64)
                self._form.put(Records({}, numbers), slots[start : start + count], into)

    def pick(self, owner: Int64s, local: Int64s) -> Records:
        return self._reader.read(owner, local)

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Records) -> None:
        self._reader.read_into(owner, local, slots, into)

    def close(self) -> None:
        self._direct.close()
