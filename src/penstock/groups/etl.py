"""Any data to rows sorted by group, in bounded memory: what training over groups starts from (Kingpin, appendix A.1).

An external sort. Rows are read and encoded in parallel, groups numbered by first occurrence, stretches of rows that fit in
memory sorted into runs, and the runs merged into blocks of at most 25 MB of one group each. One group may hold all the
rows, or each row be a group. The folder appears when it is whole. Runs that were finished when the work was interrupted
are taken up again; a folder made of the same data in the same way is used as it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.features import Encoder, choose
from penstock.blocks.hashing import Hashed
from penstock.blocks.open import open as open_source
from penstock.budget import give_back, parse_size, show_bytes
from penstock.config import LOSSES
from penstock.errors import BudgetError, ColumnError, DataError, UnknownOptionError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups import merging
from penstock.groups.grouped import VERSION, Grouped
from penstock.groups.keys import Numbering, coded, kind_of
from penstock.groups.merging import Room, merge_runs, merged
from penstock.groups.partitioned import PartitionedSource, partitioned
from penstock.groups.scratch import Scratch, reusable
from penstock.groups.sorting import Run, Shape, StoredRun
from penstock.groups.spilling import SORT_BYTES, RunFolder, Sorter
from penstock.groups.writing import GroupedWriter
from penstock.loader.decode import divided, row_number, unit_bytes
from penstock.loader.scan import scan
from penstock.parallel import in_order

BLOCK_SIZE = "25MB"
_HEADER = 1024
"""What a block's own header and padding take at most."""
_READ_TOGETHER = 4_000_000
"""Bytes of blocks whose groups are looked up at once, where there is memory for it."""


def group(
    source: Any,
    by: str | Sequence[str],
    folder: str | os.PathLike[str],
    *,
    label: str,
    memory: int | str,
    weight: str | None = None,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    hash: Sequence[str | Hashed] = (),
    model: str = "logistic",
    block_size: int | str = BLOCK_SIZE,
    stream: Stream | None = None,
) -> Grouped:
    """Write rows by group, or find that they are there.

    Parameters
    ----------
    source : path, table or source
        Whatever `penstock.open` takes; and folders partitioned by the grouping columns, ``country=FR/part-0.parquet``.
    by : str or list of str
        The grouping columns. They are no features, unless named as such. A null is a group of its own.
    folder : path
        The folder to make. Rows of the same columns before the data changed are replaced; anything else is refused.
    label, weight, features, exclude, hash
        The columns, as in `penstock.blocks.choose`.
    memory : int or str
        Bytes to do it in, such as ``"1GB"``, beside the interpreter and some 500 bytes for each group. Data that fit into
        about a third of it are sorted without runs on disk.
    model : str
        ``logistic`` or ``svm`` for two classes, ``linear`` for numbers.
    block_size : int or str
        The most bytes of a block, the smallest part of a group that can be given to a worker.
    stream : Stream, optional
        Hears how far it is.

    Examples
    --------
    >>> import tempfile
    >>> table = pa.table({"city": ["Oslo", None, "Oslo"], "x": [1.0, 2.0, 3.0], "clicked": [False, True, True]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     grouped = group(table, "city", f"{place}/rows", label="clicked", memory="100MB")
    ...     [(text, grouped.batch(n)[0].y.tolist()) for n, text in enumerate(grouped.texts)]
    [('Oslo', [-1.0, 1.0]), ('%null', [1.0])]
    """
    if model not in LOSSES:
        raise UnknownOptionError.of("model", model, LOSSES)
    if model == "softmax":
        raise UsageError("model='softmax' is not there for groups yet; use logistic or svm with two classes, or linear")
    names = [by] if isinstance(by, str) else list(by)
    _require_names(names, label, weight)
    budget, block = parse_size(memory, option="memory"), parse_size(block_size, option="block_size")
    stream = stream or Stream()
    with _opened(source, names) as opened:
        encoder = _encoder(opened, names, label, weight, features, exclude, hash)
        kinds = [kind_of(opened.schema.field(name).type, column=name, place=opened.name) for name in names]
        if not len(opened.block_rows) or not int(opened.block_rows.sum()):
            raise DataError(f"{opened.name} has no rows; there is nothing to group")
        asked = {
            "version": VERSION,
            "fingerprint": opened.fingerprint,
            "by": names,
            "kinds": [str(kind) for kind in kinds],
            "encoder": encoder.to_dict(),
            "classes": model != "linear",
            "block_size": block,
        }
        found = reusable(Path(folder), asked)
        if found is not None:
            return found
        plan = _Plan.of(opened, encoder, budget, block)
        encoder = _labelled(opened, encoder, model, stream)
        give_back()
        with Scratch(Path(folder), asked) as scratch:
            work = _Work(opened, names, kinds, encoder, plan, stream)
            sorts = not (isinstance(opened, PartitionedSource) and set(names) <= set(opened.columns))
            with GroupedWriter(scratch.out, encoder, most=block - _HEADER) as writer:
                numbering = work.sort(scratch.path, writer) if sorts else work.copy(writer)
                opened.check()
                give_back()
                encoder = encoder if encoder.width is not None else encoder.with_width(work.width)
                note = {"version": VERSION, "asked": asked, "by": names, "encoder": encoder.to_dict()}
                labels = None if encoder.labels is None else list(encoder.labels.classes)
                writer.finish(numbering.keys, kinds, {**note, "classes": labels, "width": encoder.width})
            del numbering
            scratch.finish()
    give_back()
    return Grouped(folder)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How memory is used: bytes read by a task, threads that read, rows' bytes sorted at once, and room for merging."""

    together: int
    threads: int
    chunk: int
    room: Room

    @classmethod
    def of(cls, source: BlockSource, encoder: Encoder, memory: int, block: int) -> _Plan:
        threads = source.threads or min(4, max(2, os.cpu_count() or 1))
        held = unit_bytes(source) if divided(source) else 0
        largest = int(source.block_bytes.max()) + int(source.block_rows.max()) * (_row_bytes(encoder) + SORT_BYTES)
        together = min(_READ_TOGETHER, memory // (32 * threads))
        reading = held + 4 * threads * max(together, largest)
        least = max(reading + 2 * block, 3 * block)
        if memory < least:
            raise BudgetError(
                f"memory={show_bytes(memory)} is too little to group {source.name} into blocks of {show_bytes(block)}:"
                f" reading takes {show_bytes(reading)}; give at least {show_bytes(least + 500_000)}, or a smaller block_size"
            )
        # A chunk is held twice, as collected and as sorted. Of what row groups are decoded into, Arrow keeps some back.
        share = 0.45 if source.units is None else 0.3
        return cls(together, threads, int(share * (memory - reading)), Room.of(memory, block - _HEADER))


class _Work:
    """The passes over the data."""

    def __init__(
        self,
        source: BlockSource,
        by: Sequence[str],
        kinds: Sequence[pa.DataType],
        encoder: Encoder,
        plan: _Plan,
        stream: Stream,
    ) -> None:
        self.width = 0
        self._source, self._by, self._kinds = source, by, kinds
        self._encoder, self._plan, self._stream = encoder, plan, stream
        self._columns = list(dict.fromkeys([*encoder.columns, *by]))

    def sort(self, folder: Path, writer: GroupedWriter) -> Numbering:
        """Sort rows by group and write them."""
        shape, room = Shape(self._encoder), self._plan.room
        stored = RunFolder(folder, shape, self._kinds)
        numbering, begin = stored.resume()
        self.width = stored.width

        def merge(some: Sequence[StoredRun], path: str) -> StoredRun:
            return merge_runs(some, path, shape, groups=len(numbering), room=room)

        with ExitStack() as stack:
            sorter = stack.enter_context(Sorter(stored, shape, numbering, begin=begin, most=self._plan.chunk))
            with closing(self._batches(numbering, begin)) as batches:
                for rows, numbers, block in batches:
                    sorter.add(rows, numbers, block=block, stored=int(self._source.block_bytes[block]))
                    del rows, numbers
            runs = sorter.finish()
            give_back()
            stored.narrow(merging.FAN, merge)
            runs = [*stored.runs] or runs
            for run in runs:
                stack.callback(run.close)
            self._gather(runs, writer, shape, len(numbering))
        return numbering

    def copy(self, writer: GroupedWriter) -> Numbering:
        """Write rows that come group by group."""
        numbering = Numbering()
        with closing(self._batches(numbering, 0)) as batches:
            for rows, numbers, _ in batches:
                edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
                for first, last in pairwise(edges):
                    if first < last:
                        writer.add(int(numbers[first]), rows.slice(first, last))
        writer.flush()
        return numbering

    def _gather(self, runs: Sequence[Run], writer: GroupedWriter, shape: Shape, groups: int) -> None:
        total = sum(int(run.index(run.slices, run.slices).rows[0]) for run in runs)
        if not total:
            raise DataError(f"{self._source.name} has no rows; there is nothing to group")
        task = "write groups"
        self._stream.emit(Started(task, total, "rows"))
        with closing(merged(runs, shape, groups=groups, room=self._plan.room)) as pieces:
            for piece in pieces:
                writer.put(piece)
                self._stream.emit(Advanced(task, len(piece.rows)))
                del piece  # the next is on its way
        self._stream.emit(Finished(task))

    def _batches(self, numbering: Numbering, begin: int) -> Generator[tuple[Batch, Int64s, int], None, None]:
        """Yield rows, the numbers of their groups and the block they are of, in stored order from a block on."""
        source = self._source
        tasks = list(_tasks(source, self._encoder, self._plan.together, begin))
        task = f"group {source.name}"
        self._stream.emit(Started(task, int(source.block_bytes.sum()), "bytes"))
        if begin:
            self._stream.emit(Advanced(task, int(source.block_bytes[:begin].sum()), "taken up again"))

        def read(number: int) -> tuple[list[Batch], list[int], Any]:
            parts, lengths = [], []
            columns: list[list[pa.Array]] = [[] for _ in self._by]
            for block in tasks[number]:
                rows = source.read(block, self._columns)
                parts.append(_encoded(self._encoder, source, block, rows))
                lengths.append(len(rows))
                for held, name in zip(columns, self._by):
                    held.append(rows.column(name))
            return parts, lengths, coded([pa.chunked_array(held) for held in columns], self._kinds)

        with closing(in_order(read, range(len(tasks)), threads=self._plan.threads)) as found:
            for blocks, (parts, lengths, (codes, keys)) in zip(tasks, found):
                numbers = numbering.number(keys)[codes]
                for block, rows, some in zip(blocks, parts, np.split(numbers, np.cumsum(lengths)[:-1])):
                    if isinstance(rows.x, Csr):
                        self.width = max(self.width, rows.x.width)
                    yield rows, some, block
                self._stream.emit(Advanced(task, int(source.block_bytes[blocks].sum())))
        self._stream.emit(Finished(task))


def _tasks(source: BlockSource, encoder: Encoder, nbytes: int, begin: int) -> Iterator[range]:
    """Yield stretches of blocks of so many bytes, stored or decoded, from a block on."""
    sizes = np.maximum(source.block_bytes, source.block_rows * _row_bytes(encoder))
    ends = np.cumsum(sizes)
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + nbytes, side="right")), begin + 1)
        yield range(begin, end)
        begin = end


def _row_bytes(encoder: Encoder) -> int:
    """Return the bytes of a dense row; sparse ones take about what they take as stored."""
    return 0 if encoder.sparse else encoder.row_bytes


def _encoded(encoder: Encoder, source: BlockSource, block: int, rows: pa.RecordBatch) -> Batch:
    try:
        return encoder.encode(rows)
    except DataError:
        return encoder.encode(rows, first_row=row_number(source, block, 0))


def _require_names(names: Sequence[str], label: str, weight: str | None) -> None:
    if not names:
        raise UsageError("by names no column; name at least one to group by, such as by=['country']")
    twice = [name for name in names if list(names).count(name) > 1]
    if twice:
        raise UsageError(f"by names the column {twice[0]!r} twice; name each once")
    for name, role in ((label, "label"), (weight, "weight")):
        if name in names:
            raise UsageError(
                f"{name!r} is given as the {role} and to group by; a group's {role}s would all be the same"
            )


@contextmanager
def _opened(data: Any, by: Sequence[str]) -> Iterator[BlockSource]:
    """Open data, with the columns that stand in its paths where its files do not have them all."""
    source: BlockSource = partitioned(data, by) or open_source(data)
    try:
        yield source
    finally:
        if source is not data:
            source.close()


def _encoder(
    source: BlockSource,
    by: Sequence[str],
    label: str,
    weight: str | None,
    features: Sequence[str] | None,
    exclude: Sequence[str],
    hash: Sequence[str | Hashed],
) -> Encoder:
    """Choose the features; grouping columns are none unless they are named or hashed."""
    for name in by:
        if name not in source.schema.names:
            raise ColumnError.missing(name, source.schema.names, place=source.name, role="column to group by")
    hashed = [Hashed.parse(each).column for each in hash] if not isinstance(hash, str) else []
    left_out = [*exclude, *(name for name in by if name not in hashed and name not in exclude)]
    return choose(
        source.schema,
        label=label,
        weight=weight,
        features=features,
        exclude=left_out,
        hash=hash,
        place=source.name,
    )


def _labelled(source: BlockSource, encoder: Encoder, model: str, stream: Stream) -> Encoder:
    """Find the classes of the label in all the data."""
    encoder = scan(source, encoder, classes=model != "linear", width=False, stream=stream).encoder
    if encoder.labels is not None and not encoder.labels.binary:
        raise UsageError(
            f"{source.name}: the label {encoder.label!r} has {len(encoder.labels.classes)} classes, and model={model!r}"
            " tells two apart; softmax is not there for groups yet: name a label of two classes, or use model='linear'"
        )
    return encoder
