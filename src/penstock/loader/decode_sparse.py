"""Sparse rows straight from an Arrow file: blocks are read as they are, and each row's entries are copied once.

For uncompressed local files whose indices are lists of 32-bit integers and whose values are lists of float32, such as
`penstock convert` writes. Whatever is unusual in a block is left to the ordinary way through Arrow, which knows the words
for it.

One call of `read_lists` reads a run of blocks and finds each row's entries, so that threads do not wait for one another's
Python; `copy_entries`, which has a plain twin, copies them to slots. What `read_lists` finds is what Arrow finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats, scatter_values
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.block_sums import cut_short, damaged_block
from penstock.blocks.fields import Fields
from penstock.blocks.row_layout import UNKNOWN, RowLayout
from penstock.checksum import checksum_at
from penstock.columns.recipe import Recipe
from penstock.copying import SKIP
from penstock.errors import CorruptFileError, DataError
from penstock.loader.decode import BlockDecoder
from penstock.loader.direct_reads import PAGE, DirectFiles, aligned, room
from penstock.loader.read_kernels import read_run
from penstock.loader.row_forms import Scaling, SlotArray
from penstock.native import kernel

DONE, READ_FAILED, OUTSIDE, UNUSUAL, DAMAGED = 0, 1, 2, 3, 4

_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.uint64))


@kernel(inline=True)
def _end(ints: Any, longs: Any, at: Any, size: Any, i: Any) -> Any:
    return np.int64(ints[at // 4 + i]) if size == 4 else longs[at // 8 + i]


@kernel
def read_lists(
    stored: Any, blocks: Any, starts: Any, base: Any, views: Any, page: Any, width: Any, sizes: Any, found: Any, to: Any,
    widths: Any,
) -> Any:  # fmt: skip
    """Read blocks to memory and note where each row's entries lie there; copy the other columns to where they go.

    Parameters
    ----------
    stored : tuple of arrays
        Of all blocks: file descriptor, offset, bytes, checksum (or zero), rows, and the places of columns counted from the block's start
        (values and ends of indices, values and ends of values, then the other columns' values and nothing).
    blocks, starts : array
        The blocks to read, and where in memory each goes.
    base, views : int, tuple of arrays
        The memory, as an address and as uint32, int32 and int64.
    page : int
        What reads are widened to.
    width : int
        Indices lie below it, or the block is unusual.
    sizes : tuple of int
        The bytes of an end of the two lists.
    found : tuple of arrays
        For each row: where its indices and values begin, in words of 32 bits, and how many there are.
    to, widths : array
        The addresses of the other columns, and the bytes of a value.

    Returns
    -------
    tuple of int
        `DONE`, or what was met and the place of the block among those read.
    """
    fds, offsets, nbytes, sums, rows, places = stored
    words, ints, longs = views
    index_at, value_at, lengths = found
    size, value_size = sizes
    done = 0
    for k in range(len(blocks)):
        b = blocks[k]
        lead = read_run(np.int32(fds[b]), offsets[b], nbytes[b], base + starts[k], page)
        if lead < 0:
            return READ_FAILED, k
        if sums[b] and checksum_at(base + starts[k] + lead, nbytes[b], offsets[b]) != sums[b]:
            return DAMAGED, k
        first, count = starts[k] + lead, rows[b]
        limit = first + nbytes[b]
        at, ends, value, value_ends = (
            first + places[b, 0], first + places[b, 1], first + places[b, 2], first + places[b, 3],
        )  # fmt: skip
        if min(at, ends, value, value_ends) < first:
            return OUTSIDE, k
        if at % 4 or value % 4 or ends % size or value_ends % value_size:
            return UNUSUAL, k
        for c in range(len(to)):
            source = first + places[b, 4 + 2 * c]
            if source < first or source + count * widths[c] > limit:
                return OUTSIDE, k
            _memcpy(to[c] + done * widths[c], base + source, np.uint64(count * widths[c]))
        if count == 0:
            continue
        if ends + (count + 1) * size > limit or value_ends + (count + 1) * value_size > limit:
            return OUTSIDE, k
        low, other = _end(ints, longs, ends, size, 0), _end(ints, longs, value_ends, value_size, 0)
        before = low
        if low < 0 or other < 0:
            return OUTSIDE, k
        for i in range(count):
            after = _end(ints, longs, ends, size, i + 1)
            if after < before:
                return OUTSIDE, k
            if after - low != _end(ints, longs, value_ends, value_size, i + 1) - other:
                return UNUSUAL, k
            index_at[done + i] = at // 4 + before
            value_at[done + i] = value // 4 + other + (before - low)
            lengths[done + i] = np.uint64(after - before)
            before = after
        if at + 4 * before > limit or value + 4 * (other + before - low) > limit:
            return OUTSIDE, k
        top = np.uint32(0)
        for e in range(at // 4 + low, at // 4 + before):
            top = max(top, words[e])
        if before > low and np.int64(top) >= width:
            return UNUSUAL, k
        done += count
    return DONE, 0


@kernel
def copy_entries(  # noqa: D103 - the twin is the documentation
    words: Any,
    index_at: Any,
    value_at: Any,
    lengths: Any,
    slots: Any,
    scale: Any,
    indptr: Any,
    indices: Any,
    values: Any,
) -> None:
    bits = values.view(np.uint32)
    for i in range(len(slots)):
        if slots[i] == SKIP:
            continue
        to, count = np.int64(indptr[slots[i]]), np.int64(lengths[i])
        index, value = index_at[i], value_at[i]
        for e in range(count):
            indices[to + e] = words[index + e]
            bits[to + e] = words[value + e]
        if len(scale):
            for e in range(to, to + count):
                values[e] *= scale[indices[e]]


def copy_entries_reference(
    words: NDArray[np.uint32],
    index_at: NDArray[np.int64],
    value_at: NDArray[np.int64],
    lengths: NDArray[np.uint64],
    slots: NDArray[np.uint32],
    scale: Floats,
    indptr: NDArray[np.uint64],
    indices: NDArray[np.uint32],
    values: Floats,
) -> None:
    """Copy the entries of row ``i`` to where the row in ``slots[i]`` begins, scaled if there is a scale."""
    for index, value, count, slot in zip(index_at.tolist(), value_at.tolist(), lengths.tolist(), slots.tolist()):
        if slot != SKIP:
            goal = slice(int(indptr[slot]), int(indptr[slot]) + count)
            indices[goal] = words[index : index + count]
            values[goal] = words[value : value + count].view(np.float32)
            if len(scale):
                values[goal] *= scale[indices[goal]]


def sparse_decoder(source: BlockSource, recipe: Recipe, scaling: Scaling) -> BlockDecoder | None:
    """Return the way straight to a source's sparse rows, or None where there is none."""
    if recipe.dense_width and len(scaling.shift):
        return None  # numbers are centered on another way
    if len(recipe.parts) != 1 or recipe.parts[0].kind != "pairs" or recipe.weighted != (recipe.weight is not None):
        return None
    kinds = [source.schema.field(name).type for name in recipe.parts[0].columns]
    if not (kinds[0].value_type in (pa.uint32(), pa.int32()) and kinds[1].value_type == pa.float32()):
        return None
    others = [name for name in (recipe.label, recipe.weight) if name is not None]
    if not all(_is_plain(source.schema.field(name).type) for name in others):
        return None
    columns = [*recipe.parts[0].columns, *others]
    try:
        layout = source.row_layout(Fields.of(source.schema, columns, place=source.name))
    except DataError:
        return None
    return None if layout is None or not layout.whole else SparseDecoder(source, recipe, scaling, layout)


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of some blocks as they were read: where each row's entries lie in ``memory``, counted in 32-bit words."""

    memory: NDArray[np.uint8]
    index_at: Int64s
    value_at: Int64s
    lengths: NDArray[np.uint64]
    y: Floats | None
    weight: Floats | None

    def copy(self, slots: SlotArray, into: Batch, scale: Floats) -> None:
        """Put all rows into their slots of a batch that has room for them."""
        assert isinstance(into.x, Csr)
        words = self.memory.view(np.uint32)
        x = into.x
        copy_entries(words, self.index_at, self.value_at, self.lengths, slots, scale, x.indptr, x.indices, x.values)
        for column, target in ((self.y, into.y), (self.weight, into.weight)):
            if column is not None and target is not None:
                scatter_values(column, slots, target)


class SparseDecoder(BlockDecoder):
    """Reads blocks of sparse rows whose places in the file are known."""

    def __init__(self, source: BlockSource, recipe: Recipe, scaling: Scaling, layout: RowLayout) -> None:
        super().__init__(source, recipe, scaling)
        self._layout = layout
        nbytes = int(layout.nbytes.sum())
        self._direct = DirectFiles(layout.fds, nbytes=nbytes)
        self.cached = not len(self._direct)
        self._fds = self._direct.instead_of(layout.fds)
        self.thread_bytes = room(int(layout.nbytes.max(initial=0)), nbytes=nbytes)
        # Where, counted from the block's own start: the values and ends of both lists, then the other columns' values.
        self._places = np.full((len(layout.rows), 2 * len(layout.columns)), UNKNOWN, np.int64)
        self._ends = tuple(column.end_size for column in layout.columns[:2])
        self._others = [column.field for column in layout.columns[2:]]

    def raw_bytes(self, blocks: Int64s) -> Int64s:
        """Return the memory that each of some blocks is read into."""
        whole = self._layout.nbytes[blocks] + 2 * PAGE
        return whole - whole % PAGE + PAGE

    def decode(self, block: int) -> Batch:
        blocks = np.array([block])
        rows = self.read(blocks, aligned(int(self.raw_bytes(blocks)[0])))
        return super().decode(block) if rows is None else self.join([rows], [np.arange(len(rows.lengths))])

    def decode_many(self, blocks: Int64s) -> list[Batch]:
        return [self.decode(block) for block in blocks.tolist()]

    def read(self, blocks: Int64s, memory: NDArray[np.uint8]) -> SparseRows | None:
        """Read blocks into memory, page-aligned and of their `raw_bytes`; None where one of them is unusual."""
        layout, recipe = self._layout, self._recipe
        try:
            self._find(blocks)
        except DataError:  # a null
            return None
        if recipe.width is None:
            return None
        sizes = self.raw_bytes(blocks)
        count = int(layout.rows[blocks].sum())
        others = [np.empty(count, field.dtype) for field in self._others]
        index_at, value_at = np.empty(count, np.int64), np.empty(count, np.int64)
        lengths = np.empty(count, np.uint64)
        status, place = read_lists(
            (self._fds, layout.offsets, layout.nbytes, layout.sums, layout.rows, self._places),
            blocks,
            np.cumsum(sizes) - sizes,
            memory.ctypes.data,
            (memory.view(np.uint32), memory.view(np.int32), memory.view(np.int64)),
            1 if self.cached else PAGE,
            recipe.width,
            self._ends,
            (index_at, value_at, lengths),
            np.array([other.ctypes.data for other in others], np.int64),
            np.array([other.itemsize for other in others], np.int64),
        )
        if status in (READ_FAILED, OUTSIDE, DAMAGED):
            raise self._failure(int(status), int(blocks[place]))
        if status != DONE:
            return None
        columns = {field.name: pa.array(other) for field, other in zip(self._others, others, strict=True)}
        try:
            y, weight = recipe.targets(pa.record_batch(columns))
        except DataError:  # said again of a single block, which knows the row's number
            return None
        return SparseRows(memory, index_at, value_at, lengths, y, weight)

    def room_for(self, parts: Sequence[SparseRows], slots: Sequence[SlotArray], rows: int) -> Batch:
        """Return a batch of ``rows`` rows as long as those in their slots are, its entries not written yet."""
        recipe = self._recipe
        indptr = np.zeros(rows + 1, np.uint64)
        for part, place in zip(parts, slots, strict=True):
            scatter_values(
                part.lengths, place, indptr[1:]
            )  # of each row after its slot: their sum tells where it begins
        np.cumsum(indptr, out=indptr)
        entries = int(indptr[-1])
        x = Csr(indptr, np.empty(entries, np.uint32), np.empty(entries, np.float32), recipe.width or 0)
        y = np.empty(rows, np.float32) if recipe.label else None
        return Batch(x, y, np.empty(rows, np.float32) if recipe.weighted else None)

    def join(self, parts: Sequence[SparseRows], slots: Sequence[NDArray[np.integer]]) -> Batch:
        """Put rows into their slots, of which there is one for each; not scaled."""
        places = [place.astype(np.uint32) for place in slots]
        into = self.room_for(parts, places, sum(map(len, places)))
        for part, place in zip(parts, places, strict=True):
            part.copy(place, into, Scaling.none().scale)
        return into

    @property
    def scale(self) -> Floats:
        """What each feature is multiplied by on its way into a window, if it is."""
        return self._scaling.scale

    def close(self) -> None:
        self._direct.close()

    def _find(self, blocks: Int64s) -> None:
        """Make sure that the places of these blocks' columns are known."""
        for block in blocks[self._places[blocks, 0] == UNKNOWN].tolist():
            base = int(self._layout.offsets[block])
            found = [place - base for pair in self._layout.find(block) for place in pair]
            self._places[block, 1:], self._places[block, 0] = found[1:], found[0]

    def _failure(self, status: int, block: int) -> Exception:
        if status == OUTSIDE:
            return CorruptFileError(
                f"{self._source.name} is damaged: block {block} names values outside of itself; write or copy it again"
            )
        self._source.check()
        if status == DAMAGED:
            return damaged_block(self._source.name, block)
        fd, offset, nbytes = (
            int(each[block]) for each in (self._layout.fds, self._layout.offsets, self._layout.nbytes)
        )
        return cut_short(self._source.name, block, fd=fd, offset=offset, nbytes=nbytes)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and kind != pa.float16()
