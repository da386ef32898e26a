"""A range of rows out of a large Arrow record batch, without reading the rest of it.

Other writers put a whole file into one record batch. Its buffers lie uncompressed one after another, so a range
of rows is a range of bytes in each; `read_rows` fetches these and hands them to pyarrow as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.blocks.ipc import BatchHeader, count_buffers, is_variable
from penstock.blocks.storage import ReadAt


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start`` to ``stop`` of the record batch whose body begins at byte ``body``."""

    header: BatchHeader
    body: int
    start: int
    stop: int


def read_rows(file: ReadAt, piece: Piece, schema: pa.Schema, columns: Sequence[str]) -> pa.RecordBatch:
    """Read a piece's rows; only the columns named, in that order."""
    found = {}
    buffer = node = 0
    for column in schema:
        if column.name in columns:
            walk = _Walk(file, piece, buffer, node)
            found[column.name] = walk.build(column.type, piece.start, piece.stop)
        buffers, nodes = count_buffers(column.type) or (0, 0)
        buffer, node = buffer + buffers, node + nodes
    fields = [schema.field(name) for name in columns]
    return pa.RecordBatch.from_arrays([found[name] for name in columns], schema=pa.schema(fields, schema.metadata))


def cut(header: BatchHeader, body: int, body_bytes: int, block_size: int) -> Iterator[Piece]:
    """Cut a record batch into pieces of equal rows and about this size."""
    parts = min(-(-body_bytes // block_size), header.rows)
    step = -(-header.rows // max(parts, 1))
    for start in range(0, header.rows, step):
        yield Piece(header, body, start, min(start + step, header.rows))


@dataclass(slots=True)
class _Walk:
    """Goes through a column's buffers in the order in which the format lays them out."""

    file: ReadAt
    piece: Piece
    buffer: int
    node: int
    _empty: pa.Buffer = field(default_factory=lambda: pa.py_buffer(b""))

    def build(self, kind: pa.DataType, start: int, stop: int) -> pa.Array:
        """Return rows ``start`` to ``stop`` of the next column."""
        first = start - start % 8  # bits begin at whole bytes; the array's offset skips the rest
        nulls = int(self.piece.header.null_counts[self.node])
        self.node += 1
        validity = self._take(first // 8, -(-stop // 8)) if nulls else None
        self.buffer += not nulls  # without nulls the buffer is passed over
        shape = {"length": stop - start, "offset": start - first}
        if pa.types.is_fixed_size_list(kind):
            child = self.build(kind.value_type, first * kind.list_size, stop * kind.list_size)
            return pa.Array.from_buffers(kind, shape["length"], [validity], -1, shape["offset"], [child])
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or is_variable(kind):
            large = any(
                test(kind) for test in (pa.types.is_large_list, pa.types.is_large_string, pa.types.is_large_binary)
            )
            number = np.dtype(np.int64 if large else np.int32)
            places = np.frombuffer(self._take(first * number.itemsize, (stop + 1) * number.itemsize), number)
            low, high = int(places[0]), int(places[-1])
            offsets = pa.py_buffer((places - places[0]).tobytes())
            if is_variable(kind):
                buffers = [validity, offsets, self._take(low, high)]
                return pa.Array.from_buffers(kind, shape["length"], buffers, -1, shape["offset"])
            child = self.build(kind.value_type, low, high)
            return pa.Array.from_buffers(kind, shape["length"], [validity, offsets], -1, shape["offset"], [child])
        values = self._take(first * kind.bit_width // 8, -(-stop * kind.bit_width // 8))
        return pa.Array.from_buffers(kind, shape["length"], [validity, values], -1, shape["offset"])

    def _take(self, start: int, stop: int) -> pa.Buffer:
        at = self.piece.body + int(self.piece.header.buffer_at[self.buffer])
        self.buffer += 1
        return pa.py_buffer(self.file.read_at(at + start, stop - start)) if stop > start else self._empty
