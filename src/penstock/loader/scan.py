"""One pass over the data before training, for what must be known of all of it first.

The classes of the label; the number of features where the file does not say (LibSVM); and, when asked for,
each feature's mean and spread. Only the label column is read where that is enough.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, PackedLayout, PackedSource
from penstock.blocks.features import Encoder
from penstock.blocks.labels import LabelMap
from penstock.errors import DataError, FeatureError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.loader.decode import BlockDecoder
from penstock.loader.forms import NOTHING, Scaling
from penstock.parallel import in_order

_STEP = 64
"""Blocks whose labels are read by one task."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over the data found: an encoder that is complete, the rows, and the scaling."""

    encoder: Encoder
    rows: int
    scaling: Scaling


def scan(
    source: BlockSource,
    encoder: Encoder,
    *,
    classes: bool,
    standardize: bool = False,
    width: bool = True,
    stream: Stream | None = None,
) -> Scan:
    """Complete an encoder from the data.

    Parameters
    ----------
    source : BlockSource
        The data.
    encoder : Encoder
        What was chosen of its columns.
    classes : bool
        Whether the label is a class, to be mapped to targets, rather than a number.
    standardize : bool
        Whether to learn each feature's mean and spread.
    width : bool
        Whether to find the number of features where the file does not say.
    stream : Stream
        Hears how far the pass is.
    """
    collects = classes and encoder.labels is None
    whole = standardize or (width and encoder.width is None)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to train on")
    if not collects and not whole:
        return Scan(encoder, int(source.block_rows.sum()), Scaling.none())
    stream = stream or Stream()
    moments = _Moments()
    layout = None
    if collects and not whole and isinstance(source, PackedSource) and encoder.packed_column:
        layout = source.packed(encoder.packed_column, encoder.label, None)
    unlabelled = BlockDecoder(source, _features_only(encoder), Scaling.none()) if whole else None

    def look(block: int) -> tuple[pa.Array | None, Batch | None]:
        label = source.read(block, [str(encoder.label)]).column(0) if collects else None
        return label, unlabelled.decode(block) if unlabelled else None

    stream.emit(Started("scan", len(source.block_rows), "blocks"))

    def labels() -> Generator[pa.Array, None, None]:
        if layout is not None:
            yield from _packed_labels(layout, stream)
            return
        with closing(in_order(look, range(len(source.block_rows)), threads=source.threads)) as found:
            for label, batch in found:
                if batch is not None:
                    moments.add(batch, encoder, source.name)
                stream.emit(Advanced("scan", 1))
                if label is not None:
                    yield label

    with closing(labels()) as found:
        if collects:
            encoder = encoder.with_labels(LabelMap.collect(found, column=str(encoder.label), place=source.name))
        else:
            for _ in found:
                pass
    stream.emit(Finished("scan"))
    if width and encoder.width is None:
        encoder = encoder.with_width(moments.width)
    rows = moments.rows if whole else int(source.block_rows.sum())
    return Scan(encoder, rows, moments.scaling(encoder) if standardize else Scaling.none())


def _packed_labels(layout: PackedLayout, stream: Stream) -> Iterator[pa.Array]:
    """Read the labels alone, many blocks to a step."""
    steps = range(0, len(layout.rows), _STEP)

    def read(first: int) -> pa.Array:
        parts = []
        for block in range(first, min(first + _STEP, len(layout.rows))):
            size = int(layout.rows[block]) * np.dtype(layout.label_type).itemsize
            parts.append(os.pread(layout.fd, size, int(layout.offsets[block] + layout.label_at[block])))
        return pa.array(np.frombuffer(b"".join(parts), layout.label_type))

    with closing(in_order(read, steps)) as found:
        for labels in found:
            stream.emit(Advanced("scan", min(_STEP, len(layout.rows))))
            yield labels


def _features_only(encoder: Encoder) -> Encoder:
    return Encoder(encoder.parts, None, None, None, encoder.place, encoder.origin)


class _Moments:
    """Sums of features and of their squares, block by block, in double precision."""

    def __init__(self) -> None:
        self.rows = 0
        self.width = 0
        self._sum = np.zeros(0)
        self._square = np.zeros(0)
        self._origin: NDArray[np.float64] | None = None

    def add(self, batch: Batch, encoder: Encoder, name: str) -> None:
        """Take in a block."""
        bad = encoder.nonfinite(batch)
        if bad is not None:
            raise FeatureError(
                f"{name}: {bad[1]!r} is not a finite number in row {self.rows + bad[0]}; fill or remove such values first"
            )
        self.rows += len(batch)
        if batch.width > self.width:
            self.width = batch.width
            self._sum = np.pad(self._sum, (0, self.width - len(self._sum)))
            self._square = np.pad(self._square, (0, self.width - len(self._square)))
        x = batch.x
        if isinstance(x, Csr):
            values = x.values.astype(np.float64)
            self._sum += np.bincount(x.indices, values, self.width)
            self._square += np.bincount(x.indices, values * values, self.width)
        elif len(x):
            if self._origin is None:
                self._origin = x[0].astype(np.float64)  # sums about a typical value lose no digits to a large mean
            centred = x - self._origin
            self._sum += centred.sum(axis=0)
            self._square += np.einsum("ij,ij->j", centred, centred)

    def scaling(self, encoder: Encoder) -> Scaling:
        """Return what centres and scales dense features; sparse ones are only scaled, to stay sparse."""
        count = max(self.rows, 1)
        mean = self._sum / count
        spread = np.sqrt(np.maximum(self._square / count - mean**2, 0))
        scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1), 1.0).astype(np.float32)
        if encoder.sparse:
            unseen = (encoder.width or 0) - len(scale)  # declared, but in no row
            return Scaling(NOTHING, np.pad(scale, (0, unseen), constant_values=1))
        origin = 0.0 if self._origin is None else self._origin
        return Scaling((mean + origin).astype(np.float32), scale)
