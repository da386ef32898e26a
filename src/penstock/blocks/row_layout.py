"""Where single rows lie in Arrow IPC files, for reads of just their bytes.

Of a fixed-width column a row's place is computed; of a ragged one it is looked up in the block's offsets. Blocks that
are all alike (what `penstock convert` writes of fixed-width columns) are known from the first and the last; of others
each header is read when its block is first asked for, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import Int64s
from penstock.blocks.fields import Field, Fields
from penstock.blocks.ipc import BatchHeader, Footer, read_header
from penstock.blocks.ipc_rows import BatchSlice, leading_buffers, offset_type
from penstock.blocks.storage import ReadAt
from penstock.errors import CorruptFileError, DataError
from penstock.messages import Text, Use

UNKNOWN = -1
KEPT_ENDS = 4_000_000
"""Ends of ragged rows that are kept once looked up; those of further blocks are looked up each time."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Where one column's rows lie, by block: byte ``at`` of the file, ``width`` bytes each.

    Ragged rows have ``width`` 0: their ends stand at ``ends_at``, numbers of ``end_size`` bytes that count items of
    ``item_size`` bytes from ``at``.
    """

    field: Field
    width: int
    at: Int64s
    ends_at: Int64s
    end_size: int
    item_size: int

    @classmethod
    def of(cls, field: Field, at: Int64s) -> ColumnLayout:
        """Begin a layout whose blocks are not known yet."""
        fixed = field.kind == "fixed"
        ends_at = np.empty(0, np.int64) if fixed else at.copy()
        return cls(
            field, field.row_bytes if fixed else 0, at, ends_at, offset_type(field.type).itemsize, field.dtype.itemsize
        )


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The places of rows in a source's files.

    ``fds`` is each block's file descriptor, ``offsets`` and ``nbytes`` the block itself, ``sums`` its checksum (zero where
    there is none); where blocks are not
    ``whole`` they are pieces of larger record batches, whose columns lie apart. ``at`` has a row for each column: where
    its values begin in each block. ``find`` returns, of a block not yet known, the two places of each column; ``verify`` reads
    blocks whole, the first time it is asked to, and raises where one is damaged.
    """

    fds: Int64s
    offsets: Int64s
    nbytes: Int64s
    sums: NDArray[np.uint64]
    rows: Int64s
    whole: bool
    at: NDArray[np.int64]
    columns: tuple[ColumnLayout, ...]
    find: Callable[[int], Sequence[tuple[int, int]]]
    verify: Callable[[Int64s], None]
    read_at: Callable[[int, int, int], bytes]
    _ends: dict[tuple[int, int], NDArray[np.signedinteger[Any]]] = field(default_factory=dict)

    @property
    def fixed(self) -> bool:
        """Whether all rows are equally long."""
        return all(column.width for column in self.columns)

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest read that fetches a block."""
        if self.whole:
            return int(self.nbytes.max(initial=0))
        return int(self.rows.max(initial=0)) * max(column.width for column in self.columns)

    def locate(self, blocks: NDArray[np.integer]) -> None:
        """Make sure that the places of these blocks' rows are known."""
        # One after another: whoever asks does so from several threads already.
        for block in blocks[self.columns[0].at[blocks] == UNKNOWN].tolist():
            self._learn(block)

    def ends(self, column: int, block: int) -> NDArray[np.signedinteger[Any]]:
        """Return where the rows of a ragged column begin and end in a block: one number more than it has rows."""
        found = self._ends.get((column, block))
        if found is None:
            place = self.columns[column]
            raw = self.read_at(block, int(place.ends_at[block]), (int(self.rows[block]) + 1) * place.end_size)
            found = np.frombuffer(raw, np.dtype(f"<i{place.end_size}"))
            if len(self._ends) * len(found) < KEPT_ENDS:
                self._ends[column, block] = found
        return found

    def _learn(self, block: int) -> None:
        places = self.find(block)
        for number, (column, (_, ends_at)) in enumerate(zip(self.columns, places, strict=True)):
            if not column.width:
                column.ends_at[block] = ends_at
                self.ends(number, block)
        # Last, and the first column's after the others': where it is known, all are.
        for column, (at, _) in zip(self.columns[::-1], list(places)[::-1], strict=True):
            column.at[block] = at


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """The blocks of Arrow files, as `ArrowSource` knows them.

    ``first`` has each file's first block and, at last, the number of all; ``metas`` the bytes of each block's header;
    ``noted`` what the converter wrote down about each file, nothing for those of other writers; ``verify`` raises where
    blocks are not what their checksums say, having read them the first time.
    """

    name: str
    files: Sequence[ReadAt]
    footers: Sequence[Footer]
    noted: Sequence[Mapping[str, Any]]
    first: Int64s
    offsets: Int64s
    metas: Int64s
    nbytes: Int64s
    rows: Int64s
    sums: NDArray[np.uint64]
    pieces: Mapping[int, BatchSlice]
    verify: Callable[[Int64s], None]

    def file(self, block: int) -> ReadAt:
        """Return the file that a block is in."""
        return self.files[int(np.searchsorted(self.first, block, side="right")) - 1]

    def header(self, block: int) -> BatchHeader:
        """Return what a block's record batch says of itself."""
        if block in self.pieces:
            return self.pieces[block].header
        return read_header(self.file(block), int(self.offsets[block]), int(self.metas[block]))


def row_layout(stored: StoredBlocks, fields: Fields) -> RowLayout | None:
    """Return where single rows lie, or None where they need decoding.

    There is a layout for local files, uncompressed and without dictionaries, of plain columns.
    """
    count = len(stored.rows)
    if not count or fields.numbers_from is not None or not all(_plain(field) for field in fields.fields):
        return None
    places = leading_buffers(stored.footers[0].schema)
    if places is None or any(file.fd is None for file in stored.files):
        return None
    # Whether buffers are compressed is one decision for a file.
    begins = stored.first[:-1][np.diff(stored.first) > 0]
    if any(footer.dictionaries for footer in stored.footers) or any(stored.header(int(b)).compressed for b in begins):
        return None
    at = np.full((len(fields.fields), count), UNKNOWN, np.int64)
    layout = RowLayout(
        fds=np.repeat(np.array([file.fd for file in stored.files], np.int64), np.diff(stored.first)),
        offsets=stored.offsets,
        nbytes=stored.nbytes,
        sums=stored.sums,
        rows=stored.rows,
        whole=not stored.pieces,
        at=at,
        columns=tuple(ColumnLayout.of(field, place) for field, place in zip(fields.fields, at, strict=True)),
        find=lambda block: _places(stored, block, fields, places),
        verify=stored.verify,
        read_at=lambda block, offset, nbytes: stored.file(block).read_at(offset, nbytes),
    )
    if layout.fixed and layout.whole:
        _fill_in_alike(layout, stored, fields)
    return layout


def _fill_in_alike(layout: RowLayout, stored: StoredBlocks, fields: Fields) -> None:
    """Where all blocks of a converted file but the last are equal, take their rows' places from the first."""
    for number, (footer, noted) in enumerate(zip(stored.footers, stored.noted, strict=True)):
        low, high = int(stored.first[number]), int(stored.first[number + 1])
        sure = noted.get("nulls") == 0 or not any(footer.schema.field(field.name).nullable for field in fields.fields)
        if not noted or not sure or high - low < 3:
            continue
        if all(bool((a[:-1] == a[0]).all()) for a in (footer.meta, footer.body, stored.rows[low:high])):
            stored.verify(np.array([low]))  # it stands for the others, which are verified as they are read
            for column, (at, _) in zip(layout.columns, layout.find(low), strict=True):
                column.at[low : high - 1] = stored.offsets[low : high - 1] + (at - int(stored.offsets[low]))


def _places(
    stored: StoredBlocks, block: int, fields: Fields, buffers: Mapping[str, tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return where the values and the ends of each column's rows begin in a block, as bytes of its file.

    The block is not verified yet: what its header says amiss is put down to damage where the checksum differs.
    """
    header, piece = stored.header(block), stored.pieces.get(block)
    body = int(stored.offsets[block] + stored.metas[block]) if piece is None else piece.body
    start = 0 if piece is None else piece.start
    found = []
    for field_ in fields.fields:
        buffer, node = buffers[field_.name]
        depth = _depth(field_.type)
        last = buffer + (depth + 1 if field_.kind == "fixed" else 3 if field_.kind == "list" else 2)
        if len(header.buffer_at) <= last or len(header.null_counts) <= node + depth:
            stored.verify(np.array([block]))
            raise CorruptFileError(
                f"{stored.file(block).name} is damaged: block {block} lacks the buffers of column {field_.name!r}; write or"
                " copy it again"
            )
        if header.null_counts[node : node + depth + 1].any():
            stored.verify(np.array([block]))
            raise DataError(
                f"column {field_.name!r} holds a null in block {block}",
                place=stored.name,
                fixes=["fill or remove such rows", Text("leave the column out with ", Use("columns"))],
            )
        if field_.kind == "fixed":  # the validity of each level comes before the values
            found.append((body + int(header.buffer_at[last]) + start * field_.row_bytes, UNKNOWN))
        else:  # validity and ends; of a list then its items' validity; then values
            values = int(header.buffer_at[last])
            ends = int(header.buffer_at[buffer + 1])
            found.append((body + values, body + ends + start * offset_type(field_.type).itemsize))
    return found


def _plain(field: Field) -> bool:
    """Whether a column's rows lie in the file as they lie in memory."""
    return field.kind != "object" and (field.kind != "fixed" or (field.packed and field.row_bytes > 0))


def _depth(kind: pa.DataType) -> int:
    """Return how many lists a value lies in."""
    depth = 0
    while pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth
