"""The two passes over the data that preparing a model makes: features dealt to buckets, and rows written by positions.

A worker takes a run of blocks at a time, in stored order. The second pass finds each entry's position where the first
put its feature: among its bucket's, in the order of the entries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch import Batch, Csr
from penstock.bigmodel import buckets
from penstock.bigmodel.feature_positions import THREADS, BlockRun, BucketSplit
from penstock.bigmodel.preparation_plan import PreparationPlan, entries_of, feature_type, stretches_of
from penstock.bigmodel.scratch_file import ScratchFile
from penstock.blocks.base import BlockSource
from penstock.blocks.feature_columns import FeatureColumns as FeaturePart
from penstock.blocks.features import Encoder
from penstock.blocks.write import BlockWriter
from penstock.errors import DataChangedError, DataError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import encoded
from penstock.parallel import in_order

BLOCK_SIZE, LEAST_BLOCK, BLOCKS_WANTED = 256 * 1024, 4 * 1024, 1024
"""Bytes of a block; smaller data are cut finer, so that there are many blocks to shuffle."""
_MOST_BLOCK = 4 << 20


@dataclass(slots=True)
class DataPasses:
    """The two passes over the data."""

    source: BlockSource
    encoder: Encoder
    key: np.uint64
    memory: int
    stream: Stream
    plan: PreparationPlan = field(init=False)
    split: BucketSplit = field(init=False)
    per_byte: float = field(init=False)

    def estimate(self) -> None:
        """Judge from a few blocks how many entries there are, and plan for as many."""
        self.per_byte = entries_of(self.source, self._encoded)
        self._plan_for(int(self.per_byte * int(self.source.block_bytes.sum())))

    def deal(self, spill: ScratchFile) -> list[BlockRun]:
        """Read all blocks, and write the features by bucket; again where there are far more than was estimated."""
        while True:
            planned = self.plan
            parts = list(self._deal(spill))
            entries = sum(part.entries for part in parts)
            if not entries:
                raise DataError(f"{self.source.name} has no features in any row; there is nothing to train on")
            self._plan_for(entries)
            if self.plan.bits <= planned.bits:
                self.plan = planned
                self.split = self._split()
                return parts
            spill.drop()

    def write(self, path: Path, parts: list[BlockRun], numbers: ScratchFile, *, features: int) -> int:
        """Read the blocks again, and write their rows with positions; return the file's bytes."""
        self.source.check()
        encoder, task = self.encoder, "prepare: write"
        rows, entries = sum(part.rows for part in parts), sum(part.entries for part in parts)
        schema = _schema(encoder)
        nbytes = 8 * entries + rows * 4 * len(schema)
        size = max(min(BLOCK_SIZE, nbytes // BLOCKS_WANTED), LEAST_BLOCK)
        self.stream.emit(Started(task, len(self.source.block_rows), "blocks"))
        with BlockWriter(
            path,
            schema,
            rows_per_block=max(size * rows // nbytes, 1),
            most_bytes=_MOST_BLOCK,
            metadata=_metadata(schema, features),
        ) as writer:
            with closing(
                in_order(
                    lambda at: self._translated(parts[at], numbers, schema), range(len(parts)), threads=self._threads
                )
            ) as done:
                for part, batch in zip(parts, done, strict=True):
                    writer.write(batch)
                    self.stream.emit(Advanced(task, part.stop - part.start))
            self.source.check()
            writer.width = features
        self.stream.emit(Finished(task))
        return os.path.getsize(path)

    @property
    def _threads(self) -> int:
        return min(THREADS, self.source.threads or THREADS)

    def _plan_for(self, entries: int) -> None:
        self.plan = PreparationPlan.of(entries, self.memory, name=self.source.name)
        self.split = self._split()

    def _split(self) -> BucketSplit:
        return BucketSplit(self.key, self.plan.bits, feature_type(self.encoder, self.source.schema))

    def _deal(self, spill: ScratchFile) -> Iterator[BlockRun]:
        task = "prepare: read"
        self.stream.emit(Started(task, len(self.source.block_rows), "blocks"))
        runs = stretches_of(self.source.block_bytes * self.per_byte, self.plan.part)
        with closing(
            in_order(lambda at: self._dealt(runs[at], spill), range(len(runs)), threads=self._threads)
        ) as done:
            for parts in done:
                yield from parts
                self.stream.emit(Advanced(task, sum(part.stop - part.start for part in parts)))
        self.stream.emit(Finished(task))

    def _dealt(self, run: tuple[int, int], spill: ScratchFile) -> list[BlockRun]:
        """Deal the blocks of a run: one part, or several where they hold more than was expected."""
        parts, held, rows, count = [], [], 0, 0
        first = run[0]
        for block in range(*run):
            batch, x = self._encoded(block)
            held.append(x.indices.astype(self.split.kind, copy=False))
            rows += len(batch)
            count += len(x.indices)
            if count >= 2 * self.plan.part or block + 1 == run[1]:
                parts.append(self._flush(held, spill, first, block + 1, rows=rows, count=count))
                held, rows, count, first = [], 0, 0, block + 1
        return parts

    def _flush(self, held: list[Any], spill: ScratchFile, start: int, stop: int, *, rows: int, count: int) -> BlockRun:
        split = self.split
        tallies = np.zeros((max(-(-count // self.plan.stretch), 1), split.buckets), np.uint32)
        at, largest = 0, np.uint64(0)
        for features in held:
            # A number that a kernel returns is a Python int, which Numba would take for a signed one.
            largest = np.uint64(
                buckets.tally_entries(features, at, self.plan.stretch, split.key, split.shift, tallies, largest)
            )
            at += len(features)
        edges = np.concatenate([[0], np.cumsum(tallies.sum(axis=0, dtype=np.int64))])
        cursors, out = edges[:-1].astype(np.uint64), np.empty(count, split.kind)
        for features in held:
            buckets.deal(features, split.key, split.shift, cursors, out)
        offset = spill.append(out) // out.itemsize
        return BlockRun(start, stop, rows, offset, edges, tallies, int(largest))

    def _translated(self, part: BlockRun, numbers: ScratchFile, schema: pa.Schema) -> pa.RecordBatch:
        stored = numbers.read(4 * part.offset, np.empty(part.entries, np.uint32))
        cursors, limits = part.edges[:-1].astype(np.uint64), part.edges[1:].astype(np.uint64)
        positions, values = np.empty(part.entries, np.uint32), np.empty(part.entries, np.float32)
        ends = np.zeros(part.rows + 1, np.int32)
        others = [np.empty(part.rows, np.float32) for _ in schema.names[2:]]
        row = at = 0
        for block in range(part.start, part.stop):
            batch, x = self._encoded(block)
            stop, last = row + len(batch), at + len(x.indices)
            if stop > part.rows or last > part.entries:
                raise self._changed(part)
            split = self.split
            if not buckets.collect(x.indices, split.key, split.shift, cursors, stored, limits, positions[at:last]):
                raise self._changed(part)
            values[at:last] = x.values
            ends[row + 1 : stop + 1] = x.indptr[1:].astype(np.int64) + at
            for column, found in zip(others, (c for c in (batch.y, batch.weight) if c is not None), strict=True):
                column[row:stop] = found
            row, at = stop, last
        if (row, at) != (part.rows, part.entries):
            raise self._changed(part)
        offsets = pa.array(ends)
        arrays = [
            pa.ListArray.from_arrays(offsets, pa.array(column), type=schema.field(number).type)
            for number, column in enumerate((positions, values))
        ]
        return pa.RecordBatch.from_arrays([*arrays, *map(pa.array, others)], schema=schema)

    def _changed(self, part: BlockRun) -> DataChangedError:
        self.source.check()
        return DataChangedError(
            f"{self.source.name} was changed while it was being prepared: blocks {part.start} to {part.stop - 1} hold"
            " other rows than before; start again"
        )

    def _encoded(self, block: int) -> tuple[Batch, Csr]:
        """Return a block's rows; what cannot be learned from is refused by its row in the data."""
        rows = self.source.read(block, self.encoder.columns)
        batch = encoded(self.encoder, self.source, block, rows, wide=True)
        if not isinstance(batch.x, Csr):
            raise TypeError("wide rows are sparse")
        return batch, batch.x


def _schema(encoder: Encoder) -> pa.Schema:
    names = [name for name, column in (("label", encoder.label), ("weight", encoder.weight)) if column is not None]
    kinds = [pa.list_(pa.field("item", kind, nullable=False)) for kind in (pa.uint32(), pa.float32())]
    lists = [pa.field(name, kind, nullable=False) for name, kind in zip(("indices", "values"), kinds, strict=True)]
    return pa.schema([*lists, *(pa.field(name, pa.float32(), nullable=False) for name in names)])


def _metadata(schema: pa.Schema, features: int) -> dict[str, Any]:
    part = FeaturePart(("indices", "values"), "pairs", features)
    return {
        "columns": list(part.columns),
        "label": "label" if "label" in schema.names else None,
        "weight": "weight" if "weight" in schema.names else None,
        "sparse": True,
        "width": features,
        "encoder": [part.to_dict()],
    }
