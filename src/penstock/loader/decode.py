"""From blocks to rows in slots, for linear models: three ways, one interface.

`PackedDecoder` reads fixed-width rows straight from the file, `BlockDecoder` asks the source for Arrow and the
form for rows, `ResidentDecoder` has all rows in memory already. The loader does not know which it has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any, Generic, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, standardize_rows
from penstock.blocks.base import BlockSource, Int64s, PackedLayout, naming_rows, row_place
from penstock.blocks.block_sums import cut_short, damaged_block
from penstock.columns.recipe import Recipe
from penstock.copying import SKIP
from penstock.errors import DataError, LabelError
from penstock.loader import window_kernels
from penstock.loader.direct_reads import PAGE, aligned, open_direct, room
from penstock.loader.row_forms import NOTHING, FeatureForm, R, R_co, RowForm, Scaling, Slots

# Blocks that are read together when single rows are wanted of them.
_BLOCKS = 16


class Decoder(Protocol[R_co]):
    """Turns stored blocks into rows."""

    thread_bytes: int
    """What one reading thread may hold at a time."""
    waits: bool
    """Whether reading threads mostly wait for storage, so that many of them pay."""
    cached: bool
    """Whether the page cache may serve the reads."""

    single: bool
    """Whether single rows are read by just their bytes, and not with the whole block they lie in."""
    together: int
    """How many blocks a thread may read at once, where the source can; a loader sets it to what it has memory for."""

    def decode(self, block: int) -> R_co:
        """Return one block's rows in stored order, not scaled."""
        ...

    def decode_many(self, blocks: Int64s) -> Sequence[R_co]:
        """Return the rows of several blocks, whose numbers ascend."""
        ...

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Any) -> None:
        """Put rows of fixed width into slots: row ``i`` of block ``k`` goes to ``slots[starts[k] + i]``."""
        ...

    def pick(self, owner: Int64s, local: Int64s) -> R_co:
        """Return single rows, not scaled; their blocks and places in these come in ascending order."""
        ...

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Any) -> None:
        """Put single rows of fixed width into slots."""
        ...

    def close(self) -> None:
        """Give back what was opened for reading; the source stays open."""
        ...


class WholeBlocks(Generic[R]):
    """What decoders do block by block, each overriding what it has a faster way for."""

    thread_bytes = 0
    waits = False
    cached: bool = False
    single = False
    together = 1

    def __init__(self, form: RowForm[R]) -> None:
        self._form = form

    def decode(self, block: int) -> R:
        raise NotImplementedError

    def decode_many(self, blocks: Int64s) -> list[R]:
        return [self.decode(block) for block in blocks.tolist()]

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Any) -> None:
        for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
            part = self.decode(block)
            self._form.put(part, slots[start : start + len(part)], into)

    def pick(self, owner: Int64s, local: Int64s) -> R:
        return self._form.concat([self.decode(block).take(local[here]) for block, here in equal_runs(owner)])

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Any) -> None:
        for block, here in equal_runs(owner):
            self._form.put(self.decode(block).take(local[here]), slots[here], into)

    def close(self) -> None:
        pass


class BlockDecoder(WholeBlocks[Batch]):
    """Reads blocks through the source and encodes them; works for every source."""

    def __init__(self, source: BlockSource, recipe: Recipe, scaling: Scaling) -> None:
        super().__init__(FeatureForm(recipe, scaling))
        self._source = source
        self._recipe = recipe
        self._scaling = scaling
        largest = int(source.block_rows.max(initial=0))
        stored = int(source.block_bytes.max(initial=0))
        # Raw bytes, Arrow columns and, for a moment, the encoded rows; sparse ones are about as large as stored.
        held = 3 * stored if recipe.sparse else 2 * stored + largest * recipe.row_bytes
        self.thread_bytes = thread_bytes(source, held, recipe.columns)

    def decode(self, block: int) -> Batch:
        return self.encode(block, self._source.read(block, self._recipe.columns))

    def decode_many(self, blocks: Int64s) -> list[Batch]:
        read = arrow_blocks(self._source, blocks.tolist(), self._recipe.columns, together=self.together)
        found: list[Batch] = []
        while some := list(islice(read, self.together)):
            found += self._encode_many(some)
        return found

    def _encode_many(self, some: list[tuple[int, pa.RecordBatch]]) -> list[Batch]:
        """Encode several small blocks as one, which takes little longer than one of them."""
        joined = _joined(some)
        if joined is not None:
            ends = np.cumsum([len(arrow) for _, arrow in some]).tolist()
            with suppress(DataError):  # the row is named below
                rows = self._recipe.encode(joined)
                return [rows.slice(start, end) for start, end in pairwise([0, *ends])]
        return [self.encode(block, arrow) for block, arrow in some]

    def encode(self, block: int, arrow: pa.RecordBatch) -> Batch:
        """Return the rows of a block that was read with the recipe's columns, and perhaps others."""
        recipe = self._recipe
        return naming_rows(self._source, block, lambda at, first: recipe.at(at).encode(arrow, first_row=first))

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        read = arrow_blocks(self._source, blocks.tolist(), self._recipe.columns, together=self.together)
        left = iter(starts.tolist())
        while some := list(islice(read, self.together)):
            places = [slots[start : start + len(arrow)] for (_, arrow), start in zip(some, left, strict=False)]
            self._fill_many(some, places, into)
            if len(self._scaling.scale):
                for place in places:
                    standardize_rows(into.x, place, self._scaling.shift, self._scaling.scale)

    def _fill_many(self, some: list[tuple[int, pa.RecordBatch]], places: list[NDArray[np.uint32]], into: Slots) -> None:
        joined = _joined(some)
        if joined is not None:
            with suppress(DataError):  # the row is named below
                self._recipe.encode_into(joined, into.x, y_out=into.y, w_out=into.w, slots=np.concatenate(places))
                return
        for (block, arrow), place in zip(some, places, strict=True):
            self._encode_into(block, arrow, place, into)

    def _encode_into(self, block: int, arrow: pa.RecordBatch, slots: NDArray[np.uint32], into: Slots) -> None:
        def encode(at: str, first: int) -> None:
            self._recipe.at(at).encode_into(arrow, into.x, y_out=into.y, w_out=into.w, slots=slots, first_row=first)

        naming_rows(self._source, block, encode)

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        for each in rows_of_blocks(self._source.block_rows, owner, local, slots):
            self.fill(*each, into)


class PackedDecoder(WholeBlocks[Batch]):
    """Reads rows that lie in the file as they are needed in memory."""

    waits = True

    def __init__(self, source: BlockSource, recipe: Recipe, scaling: Scaling, layout: PackedLayout) -> None:
        super().__init__(FeatureForm(recipe, scaling))
        self._source = source
        self._recipe = recipe
        self._scaling = scaling
        self._layout = layout
        self._local = threading.local()
        nbytes = int(layout.nbytes.sum())
        self._direct = None if layout.apart else open_direct(layout.fd, nbytes=nbytes)
        self.cached = self._direct is None
        self._largest = int(layout.nbytes.max(initial=0))
        if layout.apart:  # labels and weights are read behind the features, of eight bytes each at most
            self._largest += 8 + 8 * int(layout.rows.max(initial=0))
        self.thread_bytes = room(self._largest, nbytes=nbytes)
        labels = recipe.labels
        self._classes = np.empty(0, np.float64) if labels is None else np.asarray(labels.classes, np.float64)
        self._targets = NOTHING if labels is None else labels.targets

    def decode(self, block: int) -> Batch:
        rows = int(self._layout.rows[block])
        into = Slots.empty(rows, self._recipe)
        self._fill(np.array([block]), np.zeros(1, np.int64), np.arange(rows, dtype=np.uint32), into, Scaling.none())
        return into.slice(0, rows)

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        self._fill(blocks, starts, slots, into, self._scaling)

    def pick(self, owner: Int64s, local: Int64s) -> Batch:
        into = Slots.empty(len(owner), self._recipe)
        self._pick(owner, local, np.arange(len(owner), dtype=np.uint32), into, Scaling.none())
        return into.slice(0, len(owner))

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        self._pick(owner, local, slots, into, self._scaling)

    def _pick(self, owner: Int64s, local: Int64s, to: NDArray[np.uint32], into: Slots, scaling: Scaling) -> None:
        for each in rows_of_blocks(self._layout.rows, owner, local, to):
            self._fill(*each, into, scaling)

    def _fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots, scaling: Scaling) -> None:
        layout = self._layout
        staging = getattr(self._local, "staging", None)
        if staging is None:
            staging = np.empty(self._largest, np.uint8) if self._direct is None else aligned(self._largest)
            self._local.staging = staging
        status, k, i = window_kernels.read_packed(
            layout.fd if self._direct is None else self._direct,
            blocks,
            starts,
            slots,
            layout.offsets,
            layout.nbytes,
            layout.sums,
            layout.rows,
            layout.features_at,
            layout.label_at,
            layout.weight_at,
            np.empty(0, layout.label_type or np.float32),
            np.empty(0, layout.weight_type or np.float32),
            self._classes,
            self._targets,
            self._recipe.weight_mean,
            scaling.shift,
            scaling.scale,
            into.x,
            into.y,
            into.w,
            staging,
            1 if self._direct is None else PAGE,
            layout.apart,
        )
        if status != window_kernels.DONE:
            raise self._failure(int(status), int(blocks[k]), int(i))

    def close(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def _failure(self, status: int, block: int, row: int) -> Exception:
        layout, name = self._layout, self._source.name
        if status == window_kernels.DAMAGED:
            self._source.check()
            return damaged_block(name, block)
        if status == window_kernels.READ_FAILED:
            self._source.check()
            offset, nbytes = int(layout.offsets[block]), int(layout.nbytes[block])
            return cut_short(name, block, fd=layout.fd, offset=offset, nbytes=nbytes)
        where = "{}, row {}".format(*row_place(self._source, block, row))
        column = self._recipe.label if status == window_kernels.UNKNOWN_LABEL else self._recipe.weight
        value = self._source.read(block, [str(column)]).column(0)[row].as_py()
        if status == window_kernels.BAD_WEIGHT:
            return DataError(f"{where}: weight {column!r} is {value}; weights must be finite and not negative")
        known = "" if self._recipe.labels is None else f"; the classes are {list(self._recipe.labels.classes)[:10]}"
        return LabelError(f"{where}: label {column!r} is {value}, which cannot be learned from{known}")


class ResidentDecoder(WholeBlocks[R]):
    """Serves rows that were decoded once and fit in the memory given."""

    single = True

    def __init__(self, parts: list[R], form: RowForm[R]) -> None:
        super().__init__(form)
        self._parts = parts

    def decode(self, block: int) -> R:
        return self._parts[block]

    def close(self) -> None:
        self._parts = []


def equal_runs(owner: Int64s) -> Iterator[tuple[int, slice]]:
    """Yield each block of ascending ones, and where it stands among them."""
    edges = np.flatnonzero(np.diff(owner, prepend=-1, append=-1)).tolist()
    for start, stop in pairwise(edges):
        yield int(owner[start]), slice(start, stop)


def rows_of_blocks(
    counts: Int64s, owner: Int64s, local: Int64s, to: NDArray[np.uint32]
) -> Iterator[tuple[Int64s, Int64s, NDArray[np.uint32]]]:
    """Yield a few of the blocks of single rows, where each begins among their slots, and the slots: those of other rows skipped."""
    runs = list(equal_runs(owner))
    for at in range(0, len(runs), _BLOCKS):
        some = runs[at : at + _BLOCKS]
        blocks = np.array([block for block, _ in some], np.int64)
        starts = np.cumsum(counts[blocks]) - counts[blocks]
        slots = np.full(int(counts[blocks].sum()), SKIP, np.uint32)
        for start, (_, here) in zip(starts.tolist(), some, strict=True):
            slots[start + local[here]] = to[here]
        yield blocks, starts, slots


def arrow_blocks(
    source: BlockSource, blocks: Sequence[int], columns: Sequence[str], *, together: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read blocks whose numbers ascend, ``together`` of them with one call."""
    for at in range(0, len(blocks), together):
        some = blocks[at : at + together]
        yield from zip(some, source.read_many(some, columns), strict=True)


def thread_bytes(source: BlockSource, nbytes: int, columns: Sequence[str]) -> int:
    """Return what a thread that reads blocks holds, given what a stored block and its rows take."""
    whole = unit_bytes(source, columns) if source.units is not None and not divided(source) else 0
    return max(nbytes, source.read_bytes, whole)


def _joined(some: Sequence[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch | None:
    """Return blocks as one; None for a single one, and where dictionaries may differ."""
    if len(some) < 2 or any(pa.types.is_dictionary(field.type) for field in some[0][1].schema):
        return None
    return pa.concat_batches([arrow for _, arrow in some])


def first_row(source: BlockSource, block: int) -> int:
    """Return the number of a block's first row (an estimate where rows were not counted)."""
    return int(source.block_rows[:block].sum())


def divided(source: BlockSource) -> bool:
    """Whether some blocks are parts of a unit that is decoded from its start, and may be left half read."""
    return source.units is not None and len(np.unique(source.units)) < len(source.units)


def redecoded(source: BlockSource) -> bool:
    """Whether reading a block decodes the unit it lies in, so that blocks are worth keeping once they are read."""
    return source.units is None and source.unit_bytes > 0


def unit_bytes(source: BlockSource, columns: Sequence[str]) -> int:
    """Return what a half read unit holds, of these columns; allocators keep about half more than they were asked for."""
    return int(1.5 * source.unit_bytes_of(columns))
