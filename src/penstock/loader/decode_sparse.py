"""Sparse rows straight from an Arrow file: a block is read in one piece, and its rows are views of what was read.

For uncompressed local files whose indices are lists of 32-bit integers and whose values are lists of float32, such as
`penstock convert` writes. Whatever is unusual in a block is left to the ordinary way through Arrow, which knows the words
for it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.features import Encoder
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import UNKNOWN, RowLayout, end_size
from penstock.errors import CorruptFileError, DataError, PenstockError
from penstock.loader.decode import BlockDecoder, first_row
from penstock.loader.direct import PAGE, DirectFiles, aligned, room
from penstock.loader.forms import Scaling
from penstock.loader.pieces import read_run


def sparse_decoder(source: BlockSource, encoder: Encoder, scaling: Scaling) -> BlockDecoder | None:
    """Return the way straight to a source's sparse rows, or None where there is none."""
    layout_of = getattr(source, "row_layout", None)
    if layout_of is None or len(encoder.parts) != 1 or encoder.parts[0].kind != "pairs":
        return None
    kinds = [source.schema.field(name).type for name in encoder.parts[0].columns]
    if not (kinds[0].value_type in (pa.uint32(), pa.int32()) and kinds[1].value_type == pa.float32()):
        return None
    others = [name for name in (encoder.label, encoder.weight) if name is not None]
    if not all(_is_plain(source.schema.field(name).type) for name in others):
        return None
    columns = [*encoder.parts[0].columns, *others]
    try:
        layout = layout_of(Fields.of(source.schema, columns, place=source.name))
    except DataError:
        return None
    return None if layout is None or not layout.whole else SparseDecoder(source, encoder, scaling, layout)


class SparseDecoder(BlockDecoder):
    """Reads blocks of sparse rows whose places in the file are known."""

    def __init__(self, source: BlockSource, encoder: Encoder, scaling: Scaling, layout: RowLayout) -> None:
        super().__init__(source, encoder, scaling)
        self._layout = layout
        nbytes = int(layout.nbytes.sum())
        self._direct = DirectFiles(layout.fds, nbytes=nbytes)
        self.cached = not len(self._direct)
        self._fds = self._direct.instead_of(layout.fds)
        self.thread_bytes = room(int(layout.nbytes.max(initial=0)), nbytes=nbytes)
        # Where, counted from the block's own start: the ends and values of both lists, then of the other columns.
        self._places = np.full((len(layout.rows), 2 * len(layout.columns)), UNKNOWN, np.int64)

    def raw_bytes(self, blocks: Int64s) -> Int64s:
        """Return the memory that each of some blocks is read into, where it is lent by whoever asks for rows."""
        whole = self._layout.nbytes[blocks] + 2 * PAGE
        return whole - whole % PAGE + PAGE

    def decode(self, block: int) -> Batch:
        return self.decode_in(block, None)

    def decode_in(self, block: int, memory: NDArray[np.uint8] | None) -> Batch:
        """Return one block's rows as views of the memory given, aligned and of `raw_bytes`; of its own if there is none."""
        try:
            places = self._find(block)
        except DataError:  # a null
            return super().decode(block)
        try:
            return self._rows(block, places, memory)
        except ValueError as error:
            if isinstance(error, PenstockError):
                raise
            raise CorruptFileError(
                f"{self._source.name} is damaged: block {block} names values outside of itself; write or copy it again"
            ) from error

    def _rows(self, block: int, places: NDArray[np.int64], memory: NDArray[np.uint8] | None) -> Batch:
        layout, encoder = self._layout, self._encoder
        rows = int(layout.rows[block])
        data, lead = self._read(block, memory)
        views = [
            _view(data, lead + at, rows + 1, f"<i{end_size(column.field.type)}")
            for at, column in zip(places[1:4:2], layout.columns)
        ]
        ends, value_ends = views
        low, count = int(ends[0]), int(ends[-1] - ends[0])
        x = Csr(
            (ends - ends[0]).astype(np.uint64),
            _view(data, lead + int(places[0]) + 4 * low, count, "<u4"),
            _view(data, lead + int(places[2]) + 4 * int(value_ends[0]), count, "<f4"),
            encoder.width or 0,
        )
        usual = np.array_equal(ends - low, value_ends - value_ends[0])
        if not usual or encoder.width is None or (count and int(x.indices.max()) >= encoder.width):
            return super().decode(block)
        others = {}
        for at, column in zip(places[4::2].tolist(), layout.columns[2:], strict=True):
            others[column.field.name] = pa.array(_view(data, lead + at, rows, column.field.dtype))
        y, weight = encoder.targets(pa.record_batch(others), first_row=first_row(self._source, block))
        return Batch(x, y, weight)

    def close(self) -> None:
        self._direct.close()

    def _find(self, block: int) -> NDArray[np.int64]:
        places: NDArray[np.int64] = self._places[block]
        if places[0] == UNKNOWN:
            base = int(self._layout.offsets[block])
            found = [place - base for pair in self._layout.find(block) for place in pair]
            places[1:], places[0] = found[1:], found[0]
        return places

    def _read(self, block: int, memory: NDArray[np.uint8] | None) -> tuple[NDArray[np.uint8], int]:
        """Return a block's bytes, and where among them it begins."""
        size, page = int(self._layout.nbytes[block]), 1 if self.cached else PAGE
        data = aligned(size) if memory is None else memory
        lead = int(read_run(np.int32(self._fds[block]), self._layout.offsets[block], size, data.ctypes.data, page))
        if lead < 0:
            self._source.check()
            got = os.pread(int(self._layout.fds[block]), size, int(self._layout.offsets[block]))
            raise CorruptFileError(
                f"{self._source.name}: block {block} has {len(got)} bytes where {size} should be; the file was cut short"
                " while it was being read"
            )
        return data, lead


def _view(data: NDArray[np.uint8], at: int, count: int, kind: Any) -> NDArray[Any]:
    return np.frombuffer(data, kind, count, at)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and kind != pa.float16()
