"""Prepare data for a model on disk: give every feature that occurs a position, and copy the rows with positions.

Replaces the index map of section 5 of the paper, which is consulted for every index in every epoch. Pass 1 deals features to
buckets on disk, `FeaturePositions` numbers them, and pass 2 reads the data again and writes `rows.arrow`; `map.bin` maps
features to positions. Nothing is held by feature or by row. Hot features come first, in an order that can be given; the
others follow in the order of the data, so that neighbouring rows use neighbouring pages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import Batch, Csr
from penstock.bigmodel import buckets
from penstock.bigmodel.feature_positions import (
    THREADS,
    BlockRun,
    BucketSplit,
    FeaturePositions,
    OrderHot,
    PreparationPlan,
    entries_of,
    feature_type,
    stretches_of,
)
from penstock.bigmodel.index_map import NAME as MAP
from penstock.bigmodel.index_map import MapWriter, ScratchFile
from penstock.bigmodel.storage import FeatureLayout as FeatureLayout
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import BlockSource
from penstock.blocks.write import BlockWriter
from penstock.budget import give_back
from penstock.columns.choose import choose_features
from penstock.columns.pairs import Pairs
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import layout_of
from penstock.errors import CorruptFileError, DataChangedError, DataError, WriteError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import encoded
from penstock.parallel import in_order
from penstock.seeds import key as seed_key

ROWS = "rows.arrow"
TEMPORARY = "prepare.tmp"


def rewrite(
    source: BlockSource,
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    memory: int,
    hot: int | Callable[[int], int],
    seed: int = 0,
    order_hot: OrderHot | None = None,
    on_ready: Callable[[], object] = lambda: None,
    stream: Stream | None = None,
) -> FeatureLayout:
    """Write ``rows.arrow`` and ``map.bin`` into a folder.

    Parameters
    ----------
    source : BlockSource
        The data.
    recipe : Recipe
        How its columns become features and a target; complete but for the width, which need not be known.
    folder : path
        Where to write. Both files appear when they are whole; a failure leaves neither.
    memory : int
        Bytes to do it in, beside some 30 MB.
    hot : int or callable
        At most so many features, the most frequent, get the first positions; or what gives that number from the number
        of features that occur. One that occurs once is never hot.
    seed : int
        Decides how features fall to buckets, and thereby the order of cold features within a stretch of the data.
    order_hot : callable, optional
        Is given hot features and their counts by falling count, and returns their numbers in the order wanted. Where
        they are more than memory allows to sort, those that come after go by classes of falling counts.
    on_ready : callable
        Is called when both files are whole, before they take the place of others.
    stream : Stream, optional
        Hears how far it is.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from penstock.bigmodel.index_map import IndexMap
    >>> from penstock.blocks.memory import TableSource
    >>> table = pa.table({"y": [1.0, 2.0], "indices": [[2**40, 7], [7]], "values": [[0.5, 1.0], [2.0]]})
    >>> recipe = choose_features(table.schema, label="y", wide=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     layout = rewrite(TableSource.of(table), recipe, folder, memory=10**7, hot=1)
    ...     with IndexMap.open(folder) as index, prepared_rows(folder)[0] as rows:
    ...         index.positions(np.array([7, 8, 2**40])).tolist()
    ...         rows.read(0, ["indices"]).to_pydict()
    [0, 4294967295, 1]
    {'indices': [[1, 0], [0]]}
    """
    stream = stream or Stream()
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to train on")
    with ExitStack() as stack:
        work = stack.enter_context(_scratch(Path(folder) / TEMPORARY))
        job = DataPasses(source, recipe, np.uint64(seed_key(seed, "features")), memory, stream)
        job.estimate()
        dealt, numbers, found = (
            stack.enter_context(closing(ScratchFile(work / name))) for name in ("dealt", "numbers", "found")
        )
        parts = job.deal(dealt)
        give_back()
        places = FeaturePositions(job.split, parts, dealt, numbers, found, stream)
        places.count()
        dealt.drop()
        most = hot(int(places.sizes.sum())) if callable(hot) else hot
        count = places.choose(hot=most, memory=memory, order=order_hot)
        give_back()
        index = stack.enter_context(closing(MapWriter(work / MAP, key=job.split.key, sizes=places.sizes)))
        places.assign(index)
        found.drop()
        map_bytes = index.finish()
        give_back()
        rows_bytes = job.write(work / ROWS, parts, numbers, features=int(places.sizes.sum()))
        on_ready()
        for name in (MAP, ROWS):
            os.replace(work / name, Path(folder) / name)
    entries = sum(part.entries for part in parts)
    return FeatureLayout(
        rows=sum(part.rows for part in parts),
        entries=entries,
        features=int(places.sizes.sum()),
        hot=count,
        dimension=recipe.width if recipe.width is not None else max(part.largest for part in parts) + 1,
        tally=_by_octave(places),
        map_bytes=map_bytes,
        rows_bytes=rows_bytes,
    )


class PositionSource(ArrowSource):
    """Rows by positions, each of which must be one of the model's."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.features = int(layout_of(self.schema).get("width") or 0)

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; a position past the end of the model is refused, where a recipe would leave it out."""
        batch = super().read(block, columns)
        for name in set(batch.schema.names) & {"indices"}:
            most = pc.max(batch.column(name).flatten()).as_py()
            if most is not None and most >= self.features:
                raise CorruptFileError(
                    f"{self.name} is damaged: block {block} names position {most}, and the model has {self.features};"
                    " remove the file and train anew"
                )
        return batch


def prepared_rows(folder: str | os.PathLike[str], *, features: int | None = None) -> tuple[ArrowSource, Recipe]:
    """Open the rows that `rewrite` wrote, for a model of so many features; the recipe's label is the target itself."""
    source = PositionSource(Path(folder) / ROWS)
    if features not in (None, source.features):
        source.close()
        raise CorruptFileError(
            f"{source.name} is of a model of {source.features} features, and this one has {features}; restore the directory"
            " from a copy, or train anew"
        )
    noted = layout_of(source.schema)
    recipe = choose_features(source.schema, label=noted.get("label"), weight=noted.get("weight"), place=source.name)
    return source, recipe


def _by_octave(places: FeaturePositions) -> list[list[int]]:
    sums: dict[int, list[int]] = {}
    for number in np.flatnonzero(places.features).tolist():
        least = 1 << (buckets.least_of(number).bit_length() - 1)
        row = sums.setdefault(least, [least, 0, 0])
        row[1] += int(places.features[number])
        row[2] += int(places.entries[number])
    return list(sums.values())


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make a folder for what is kept on the way, without what an earlier run that was killed left there."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be made: {error.strerror or error}; choose a folder that can be") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


BLOCK_SIZE, LEAST_BLOCK, BLOCKS_WANTED = 256 * 1024, 4 * 1024, 1024
"""Bytes of a block; smaller data are cut finer, so that there are many blocks to shuffle."""
_MOST_BLOCK = 4 << 20


@dataclass(slots=True)
class DataPasses:
    """The two passes over the data."""

    source: BlockSource
    recipe: Recipe
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
        recipe, task = self.recipe, "prepare: write"
        rows, entries = sum(part.rows for part in parts), sum(part.entries for part in parts)
        schema = _schema(recipe)
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
        return BucketSplit(self.key, self.plan.bits, feature_type(self.recipe, self.source.schema))

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
        rows = self.source.read(block, self.recipe.columns)
        batch = encoded(self.recipe, self.source, block, rows, wide=True)
        if not isinstance(batch.x, Csr):
            raise TypeError("wide rows are sparse")
        return batch, batch.x


def _schema(recipe: Recipe) -> pa.Schema:
    names = [name for name, column in (("label", recipe.label is not None), ("weight", recipe.weighted)) if column]
    kinds = [pa.list_(pa.field("item", kind, nullable=False)) for kind in (pa.uint32(), pa.float32())]
    lists = [pa.field(name, kind, nullable=False) for name, kind in zip(("indices", "values"), kinds, strict=True)]
    return pa.schema([*lists, *(pa.field(name, pa.float32(), nullable=False) for name in names)])


def _metadata(schema: pa.Schema, features: int) -> dict[str, Any]:
    part = Pairs(("indices", "values"), features)
    return {
        "columns": list(part.columns),
        "label": "label" if "label" in schema.names else None,
        "weight": "weight" if "weight" in schema.names else None,
        "sparse": True,
        "width": features,
        "encoder": [part.to_dict()],
    }
