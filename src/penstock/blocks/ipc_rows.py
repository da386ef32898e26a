"""A range of rows out of a large Arrow record batch, without reading the rest of it.

Other writers put a whole file into one record batch. Its buffers lie uncompressed one after another, so a range
of rows is a range of bytes in each; `read_rows` fetches these and hands them to pyarrow as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.ipc import BatchHeader
from penstock.blocks.storage import ReadAt
from penstock.errors import CorruptFileError


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Rows ``start`` to ``stop`` of the record batch whose body begins at byte ``body``."""

    header: BatchHeader
    body: int
    start: int
    stop: int


def read_rows(file: ReadAt, piece: BatchSlice, schema: pa.Schema, columns: Sequence[str]) -> pa.RecordBatch:
    """Read a piece's rows; only the columns named, in that order."""
    found = {}
    buffer = node = 0
    for column in schema:
        if column.name in columns:
            walk = Walk(file, piece, buffer, node)
            found[column.name] = walk.build(column.type, piece.start, piece.stop)
        buffers, nodes = buffers_and_nodes(column.type) or (0, 0)
        buffer, node = buffer + buffers, node + nodes
    fields = [schema.field(name) for name in columns]
    return pa.RecordBatch.from_arrays([found[name] for name in columns], schema=pa.schema(fields, schema.metadata))


def slices_of(header: BatchHeader, body: int, body_bytes: int, block_size: int) -> Iterator[BatchSlice]:
    """Cut a record batch into pieces of equal rows and about this size."""
    parts = min(-(-body_bytes // block_size), header.rows)
    step = -(-header.rows // max(parts, 1))
    for start in range(0, header.rows, step):
        yield BatchSlice(header, body, start, min(start + step, header.rows))


def buffers_and_nodes(kind: pa.DataType, *, plain: bool = False) -> tuple[int, int] | None:
    """Return how many buffers and nodes a column has; of ``plain`` ones only those of values, text and lists of these.

    None where rows cannot be cut out: dictionaries, views, unions, maps.
    """
    types = pa.types
    if plain and (isinstance(kind, pa.BaseExtensionType) or types.is_null(kind) or types.is_struct(kind)):
        return None
    if isinstance(kind, pa.BaseExtensionType):
        return buffers_and_nodes(kind.storage_type)
    if types.is_null(kind):
        return 0, 1
    if types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        children = kind if types.is_struct(kind) else [kind.value_field]
        inner = [buffers_and_nodes(child.type, plain=plain) for child in children]
        known = [counts for counts in inner if counts is not None]
        own = 2 if types.is_list(kind) or types.is_large_list(kind) else 1
        whole = own + sum(buffers for buffers, _ in known), 1 + sum(nodes for _, nodes in known)
        return whole if len(known) == len(inner) else None
    if types.is_nested(kind) or types.is_dictionary(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
        return None
    return (3 if is_variable(kind) else 2), 1


def leading_buffers(schema: pa.Schema) -> dict[str, tuple[int, int]] | None:
    """Return, by column, its first buffer and first node among a batch's, or None where a type hides them."""
    places: dict[str, tuple[int, int]] = {}
    buffer = node = 0
    for column in schema:
        places[column.name] = (buffer, node)
        counts = buffers_and_nodes(column.type, plain=True)
        if counts is None:
            return None
        buffer, node = buffer + counts[0], node + counts[1]
    return places


def is_variable(kind: pa.DataType) -> bool:
    """Whether values are runs of bytes of any length."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    )


def offset_type(kind: pa.DataType) -> np.dtype[np.signedinteger[Any]]:
    """Return the type of the numbers that tell where lists, texts or runs of bytes end."""
    types = pa.types
    large = types.is_large_list(kind) or types.is_large_string(kind) or types.is_large_binary(kind)
    return np.dtype(np.int64 if large else np.int32)


@dataclass(slots=True)
class Walk:
    """Goes through a column's buffers in the order in which the format lays them out."""

    file: ReadAt
    piece: BatchSlice
    buffer: int
    node: int
    _empty: pa.Buffer = field(default_factory=lambda: pa.py_buffer(b""))

    def build(self, kind: pa.DataType, start: int, stop: int) -> pa.Array:
        """Return rows ``start`` to ``stop`` of the next column."""
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, self.build(kind.storage_type, start, stop))
        if start == stop:
            self._pass_over(kind)
            return pa.array([], kind)
        if pa.types.is_null(kind):
            self.node += 1
            return pa.nulls(stop - start)
        first = start - start % 8  # bits begin at whole bytes; the array's offset skips the rest
        nulls = int(self.piece.header.null_counts[self.node])
        self.node += 1
        validity = self._take(first // 8, -(-stop // 8)) if nulls else None
        self.buffer += not nulls  # without nulls the buffer is passed over
        shape = {"length": stop - start, "offset": start - first}
        if pa.types.is_struct(kind):
            children = [self.build(child.type, first, stop) for child in kind]
            return pa.Array.from_buffers(kind, shape["length"], [validity], -1, shape["offset"], children)
        if pa.types.is_fixed_size_list(kind):
            child = self.build(kind.value_type, first * kind.list_size, stop * kind.list_size)
            return pa.Array.from_buffers(kind, shape["length"], [validity], -1, shape["offset"], [child])
        if _has_offsets(kind):
            number = offset_type(kind)
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

    def measure(self, kind: pa.DataType, start: int, stop: int) -> int:
        """Return the bytes of rows ``start`` to ``stop`` of the next column, from a few offsets of it."""
        if isinstance(kind, pa.BaseExtensionType):
            return self.measure(kind.storage_type, start, stop)
        if start == stop or pa.types.is_null(kind):
            self._pass_over(kind)
            return 0
        self.node += 1
        self.buffer += 1
        if pa.types.is_struct(kind):
            return sum(self.measure(child.type, start, stop) for child in kind)
        if pa.types.is_fixed_size_list(kind):
            return self.measure(kind.value_type, start * kind.list_size, stop * kind.list_size)
        if not _has_offsets(kind):
            self.buffer += 1
            return -(-(stop - start) * int(kind.bit_width) // 8)
        number = offset_type(kind)
        low, high = (self._number(row, number) for row in (start, stop))
        self.buffer += 1
        own = (stop - start) * number.itemsize
        if is_variable(kind):
            self.buffer += 1
            return own + high - low
        return own + self.measure(kind.value_type, low, high)

    def _number(self, at: int, kind: np.dtype[np.signedinteger[Any]]) -> int:
        taken = int(np.frombuffer(self._take(at * kind.itemsize, (at + 1) * kind.itemsize), kind)[0])
        self.buffer -= 1
        return taken

    def _pass_over(self, kind: pa.DataType) -> None:
        buffers, nodes = buffers_and_nodes(kind) or (0, 0)
        self.buffer, self.node = self.buffer + buffers, self.node + nodes

    def _take(self, start: int, stop: int) -> pa.Buffer:
        header = self.piece.header
        if self.buffer >= len(header.buffer_at) or not 0 <= start <= stop <= header.buffer_bytes[self.buffer]:
            raise CorruptFileError(
                f"{self.file.name} is damaged: the record batch whose body begins at byte {self.piece.body} names values"
                " outside its buffers; write or copy it again"
            )
        at = self.piece.body + int(header.buffer_at[self.buffer])
        self.buffer += 1
        return pa.py_buffer(self.file.read_at(at + start, stop - start)) if stop > start else self._empty


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or is_variable(kind))
