"""From blocks to rows in slots: three ways, one interface.

`PackedDecoder` reads fixed-width rows straight from the file, `BlockDecoder` asks the source for Arrow and
the encoder for rows, `ResidentDecoder` has all rows in memory already. The loader does not know which it has.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.base import BlockSource, Int64s, PackedLayout
from penstock.blocks.features import Encoder
from penstock.blocks.transpose import scatter_rows, scatter_values
from penstock.errors import CorruptFileError, DataError, LabelError
from penstock.loader import fill
from penstock.loader.direct import PAGE, aligned, open_direct, room
from penstock.parallel import in_order

NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Feature standardisation, applied to rows on their way into a window."""

    shift: Floats
    scale: Floats

    @classmethod
    def none(cls) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Slots:
    """Arrays that a dense window's rows are put into; those not wanted are empty."""

    x: Floats
    y: Floats
    w: Floats

    @classmethod
    def empty(cls, rows: int, encoder: Encoder) -> Slots:
        """Allocate room for so many rows."""
        return cls(
            np.empty((rows, encoder.width or 0), np.float32),
            np.empty(rows if encoder.label else 0, np.float32),
            np.empty(rows if encoder.weight else 0, np.float32),
        )

    def batch(self, rows: int) -> Batch:
        """Return the first so many rows as a batch of views."""
        y = self.y[:rows] if len(self.y) else None
        return Batch(self.x[:rows], y, self.w[:rows] if len(self.w) else None)


class Decoder(Protocol):
    """Turns stored blocks into rows."""

    thread_bytes: int
    """What one reading thread may hold at a time."""
    waits: bool
    """Whether reading threads mostly wait for storage, so that many of them pay."""
    cached: bool
    """Whether the page cache may serve the reads."""

    def decode(self, block: int) -> Batch:
        """Return one block's rows in stored order, not scaled."""
        ...

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        """Put the rows of dense blocks into slots: row ``i`` of block ``k`` goes to ``slots[starts[k] + i]``."""
        ...

    def close(self) -> None:
        """Give back what was opened for reading; the source stays open."""
        ...


class BlockDecoder:
    """Reads blocks through the source and encodes them; works for every source."""

    waits = False
    cached = False

    def __init__(self, source: BlockSource, encoder: Encoder, scaling: Scaling) -> None:
        self._source = source
        self._encoder = encoder
        self._scaling = scaling
        largest = int(source.block_rows.max(initial=0))
        stored = int(source.block_bytes.max(initial=0))
        # Raw bytes, Arrow columns and, for a moment, the encoded rows; sparse ones are about as large as stored.
        self.thread_bytes = 3 * stored if encoder.sparse else 2 * stored + largest * encoder.row_bytes
        if source.units is not None and not divided(source):
            self.thread_bytes = max(self.thread_bytes, unit_bytes(source))

    def decode(self, block: int) -> Batch:
        arrow = self._source.read(block, self._encoder.columns)
        try:
            return self._encoder.encode(arrow, first_row=first_row(self._source, block))
        except DataError:
            if self._source.exact_rows:
                raise
            # Rows of text are not counted beforehand: count them now, to name the right one.
            return self._encoder.encode(arrow, first_row=row_number(self._source, block, 0))

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
            arrow = self._source.read(block, self._encoder.columns)
            place = slots[start : start + len(arrow)]
            first = first_row(self._source, block)
            self._encoder.encode_into(arrow, into.x, y_out=into.y, w_out=into.w, slots=place, first_row=first)
            if len(self._scaling.scale):
                fill.standardize_rows(into.x, place, self._scaling.shift, self._scaling.scale)

    def close(self) -> None:
        pass


class PackedDecoder:
    """Reads rows that lie in the file as they are needed in memory."""

    waits = True

    def __init__(self, source: BlockSource, encoder: Encoder, scaling: Scaling, layout: PackedLayout) -> None:
        self._source = source
        self._encoder = encoder
        self._scaling = scaling
        self._layout = layout
        self._local = threading.local()
        nbytes = int(layout.nbytes.sum())
        self._direct = open_direct(layout.fd, nbytes=nbytes)
        self.cached = self._direct is None
        self._largest = int(layout.nbytes.max(initial=0))
        self.thread_bytes = room(self._largest, nbytes=nbytes)
        labels = encoder.labels
        self._classes = np.empty(0, np.float64) if labels is None else np.asarray(labels.classes, np.float64)
        self._targets = NOTHING if labels is None else labels.targets

    def decode(self, block: int) -> Batch:
        rows = int(self._layout.rows[block])
        into = Slots.empty(rows, self._encoder)
        self._fill(np.array([block]), np.zeros(1, np.int64), np.arange(rows, dtype=np.uint32), into, Scaling.none())
        return into.batch(rows)

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        self._fill(blocks, starts, slots, into, self._scaling)

    def _fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots, scaling: Scaling) -> None:
        layout = self._layout
        staging = getattr(self._local, "staging", None)
        if staging is None:
            staging = np.empty(self._largest, np.uint8) if self._direct is None else aligned(self._largest)
            self._local.staging = staging
        status, k, i = fill.read_packed(
            layout.fd if self._direct is None else self._direct,
            blocks,
            starts,
            slots,
            layout.offsets,
            layout.nbytes,
            layout.rows,
            layout.features_at,
            layout.label_at,
            layout.weight_at,
            np.empty(0, layout.label_type or np.float32),
            np.empty(0, layout.weight_type or np.float32),
            self._classes,
            self._targets,
            scaling.shift,
            scaling.scale,
            into.x,
            into.y,
            into.w,
            staging,
            1 if self._direct is None else PAGE,
        )
        if status != fill.DONE:
            raise self._failure(int(status), int(blocks[k]), int(i))

    def close(self) -> None:
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def _failure(self, status: int, block: int, row: int) -> Exception:
        layout, name = self._layout, self._source.name
        if status == fill.READ_FAILED:
            self._source.check()
            data = os.pread(
                layout.fd, int(layout.nbytes[block]), int(layout.offsets[block])
            )  # raises if it still fails
            return CorruptFileError(
                f"{name}: block {block} has {len(data)} bytes where {int(layout.nbytes[block])} should be;"
                " the file was cut short while it was being read"
            )
        where = f"{name}, row {row_number(self._source, block, row)}"
        column = self._encoder.label if status == fill.UNKNOWN_LABEL else self._encoder.weight
        value = self._source.read(block, [str(column)]).column(0)[row].as_py()
        if status == fill.BAD_WEIGHT:
            return DataError(f"{where}: weight {column!r} is {value}; weights must be finite and not negative")
        known = "" if self._encoder.labels is None else f"; the classes are {list(self._encoder.labels.classes)[:10]}"
        return LabelError(f"{where}: label {column!r} is {value}, which cannot be learned from{known}")


class ResidentDecoder:
    """Serves rows that were decoded once and fit in the memory given."""

    thread_bytes = 0
    waits = False
    cached = False

    def __init__(self, parts: list[Batch], scaling: Scaling) -> None:
        self._parts = parts
        self._scaling = scaling

    def decode(self, block: int) -> Batch:
        return self._parts[block]

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        for block, start in zip(blocks.tolist(), starts.tolist(), strict=True):
            part = self._parts[block]
            place = slots[start : start + len(part)]
            assert not isinstance(part.x, Csr)  # sparse windows are assembled, not filled
            scatter_rows(part.x, place, into.x)
            if len(self._scaling.scale):
                fill.standardize_rows(into.x, place, self._scaling.shift, self._scaling.scale)
            if part.y is not None:
                scatter_values(part.y, place, into.y)
            if part.weight is not None:
                scatter_values(part.weight, place, into.w)

    def close(self) -> None:
        self._parts = []


@dataclass(frozen=True, slots=True)
class Feed:
    """A source with all that is needed to make windows of it."""

    source: BlockSource
    encoder: Encoder
    decoder: Decoder
    scaling: Scaling
    block_rows: Int64s
    exact: bool
    units: Int64s | None

    @classmethod
    def of(cls, source: BlockSource, encoder: Encoder, scaling: Scaling) -> Feed:
        """Choose the fastest way of turning this source's blocks into rows."""
        decoder: Decoder = BlockDecoder(source, encoder, scaling)
        # The packed loop compares labels as doubles, which tell integers apart up to 2**53.
        numeric = encoder.labels is None or (
            encoder.labels.numeric and all(abs(c) <= 2**53 for c in encoder.labels.classes)
        )
        # Asked for by name: isinstance of a protocol would touch every property, and hash the data for a fingerprint.
        packed = getattr(source, "packed", None)
        if packed is not None and encoder.packed_column and numeric:
            layout = packed(encoder.packed_column, encoder.label, encoder.weight)
            if layout is not None:
                decoder = PackedDecoder(source, encoder, scaling, layout)
        return cls(source, encoder, decoder, scaling, source.block_rows, source.exact_rows, source.units)

    @property
    def filled(self) -> bool:
        """Whether rows can go straight to their slots: dense ones whose number is known beforehand."""
        return self.exact and not self.encoder.sparse

    def size(self) -> tuple[float, int]:
        """Return the decoded bytes of a row, its slot included, and how many rows there are.

        Where rows vary or were not counted, a few blocks are decoded to tell.
        """
        rows = int(self.block_rows.sum())
        if self.filled or not rows:
            return self.encoder.row_bytes + 4.0, rows
        blocks = np.unique(np.linspace(0, len(self.block_rows) - 1, 3).astype(int))
        parts = [part for part in (self.decoder.decode(int(b)) for b in blocks) if len(part)]
        if not parts:
            return self.encoder.row_bytes + 4.0, rows
        if not self.exact:
            rows = int(rows * sum(len(p) for p in parts) / max(1, int(self.block_rows[blocks].sum())))
        return max(p.nbytes / len(p) for p in parts) + 4, rows

    def resident(self) -> Feed:
        """Decode every block and serve the rows from memory from now on."""
        parts = list(in_order(self.decoder.decode, range(len(self.block_rows)), threads=self.source.threads))
        counts = np.array([len(p) for p in parts], np.int64)
        return replace(self, decoder=ResidentDecoder(parts, self.scaling), block_rows=counts, exact=True, units=None)


def first_row(source: BlockSource, block: int) -> int:
    """Return the number of a block's first row (an estimate where rows were not counted)."""
    return int(source.block_rows[:block].sum())


def row_number(source: BlockSource, block: int, row: int) -> int:
    """Return a row's number in the data; where rows were not counted, those before it are counted now."""
    if source.exact_rows:
        return first_row(source, block) + row
    return sum(len(source.read(b, source.schema.names[:1])) for b in range(block)) + row


def divided(source: BlockSource) -> bool:
    """Whether some blocks are parts of a unit that is decoded from its start, and may be left half read."""
    return source.units is not None and len(np.unique(source.units)) < len(source.units)


def unit_bytes(source: BlockSource) -> int:
    """Return what a half read unit holds; allocators keep about a third more than they were asked for."""
    return int(1.5 * source.unit_bytes)
