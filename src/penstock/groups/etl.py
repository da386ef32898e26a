"""Any data to rows sorted by group, in bounded memory: what training over groups starts from (Kingpin, appendix A.1).

Dense rows of tables and of local Arrow, Parquet and ``.npy`` files go straight to their places, since their groups can be
counted beforehand for little (`row_scatter`); the rest, and rows of very many groups, by an external sort: read and encoded
in parallel, sorted into runs that fit in memory, and merged. Either way blocks are of one group, at most 25 MB. One group
may hold all the rows, or each row be a group. The folder appears when it is whole. What was done when the work was
interrupted is taken up again; a folder made of the same data in the same way is used as it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.budget import Budget, give_back, parse_size
from penstock.columns.recipe import Recipe
from penstock.errors import DataError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups import external_sort
from penstock.groups.external_sort import RunFolder, Sorter, merge_runs, merged
from penstock.groups.group_counts import Counted, count, stretches
from penstock.groups.group_files import GroupedWriter
from penstock.groups.group_recipe import GroupColumns
from penstock.groups.grouped import VERSION, Grouped
from penstock.groups.keys import Key, Numbering, coded, key_type
from penstock.groups.memory_shares import HEADER, SortingPlan, dense_bytes, largest_block
from penstock.groups.partitioned import PartitionedSource
from penstock.groups.partitioned import open_partitioned as open_data
from penstock.groups.row_scatter import Scatter, chunk_bytes
from penstock.groups.scratch import Placed, Scratch, reusable
from penstock.groups.sorted_runs import RowShape, SortedRun, StoredRun
from penstock.linear import encoded
from penstock.messages import Given, Name, Text, Use
from penstock.parallel import in_order
from penstock.sgd.losses import loss_of
from penstock.training import Columns

BLOCK_SIZE = "25MB"
_MOST_CLASSES = 100
"""Classes from which on a label is taken for numbers, unless softmax is asked for: each group has weights for each of them."""


def group(
    source: Any,
    by: str | Sequence[str] | None,
    folder: str | os.PathLike[str],
    *,
    label: str,
    memory: int | str,
    model: str = "logistic",
    trees: bool = False,
    block_size: int | str = BLOCK_SIZE,
    stream: Stream | None = None,
    **columns: Any,
) -> Grouped:
    """Write rows by group, or find that they are there.

    Parameters
    ----------
    source : path, table or source
        Whatever `penstock.open` takes; and folders partitioned by the grouping columns, ``country=FR/part-0.parquet``.
    by : str or list of str, optional
        The grouping columns. They are no features, unless named as such. A null is a group of its own. None makes one group of
        all rows, whose key is empty.
    folder : path
        The folder to make. Rows of the same columns before the data changed are replaced; anything else is refused.
    label : str
        The column to learn.
    memory : int or str
        Bytes to do it in, such as ``"1GB"``, or a share of the decoded data, such as ``"10%"``, beside the interpreter and some 500 bytes for each group. Data that have to
        be sorted and fit into about a third of it are so without runs on disk.
    model : str
        ``svm`` for two classes, ``logistic`` or ``softmax`` for any number of them, ``linear`` for numbers.
    trees : bool
        Whether the rows are for trees: a category is one feature, its code, and a missing value is NaN.
    block_size : int or str
        The most bytes of a block, the smallest part of a group that can be given to a worker; no more than all rows take.
    stream : Stream, optional
        Hears how far it is.
    columns
        The other columns, as in `penstock.training.Columns`. Levels and what stands for missing values are those of all rows.

    Examples
    --------
    >>> import tempfile
    >>> table = pa.table({"city": ["Oslo", None, "Oslo"], "x": [1.0, 2.0, 3.0], "clicked": [False, True, True]})
    >>> with tempfile.TemporaryDirectory() as place:
    ...     grouped = group(table, "city", f"{place}/rows", label="clicked", memory="100MB")
    ...     [(text, grouped.batch(n)[0].y.tolist()) for n, text in enumerate(grouped.texts)]
    [('Oslo', [-1.0, 1.0]), ('%null', [1.0])]
    """
    loss = loss_of(model)
    names = [by] if isinstance(by, str) else list(by or ())
    chosen = GroupColumns(names, label, Columns(**columns), trees)
    if by is not None:
        _require_names(names, label, chosen.columns.weight)
    budget, block = Budget.parse(memory), parse_size(block_size, option="block_size")
    stream = stream or Stream()
    with open_data(source, names) as opened:
        request = chosen.to_dict(opened)
        kinds = [key_type(opened.schema.field(name).type, column=name, place=opened.name) for name in names]
        if not len(opened.block_rows) or not int(opened.block_rows.sum()):
            raise DataError(f"{opened.name} has no rows; there is nothing to group")
        asked = {
            "version": VERSION,
            "fingerprint": opened.fingerprint,
            "by": names,
            "kinds": [str(kind) for kind in kinds],
            **request,
            "classes": "numbered" if loss.many else loss.classifies,
            "block_size": block,
        }
        found = reusable(Path(folder), asked)
        if found is not None:
            chosen.notice(opened, found.recipe, stream)
            return found
        recipe = _classified(chosen.recipe(opened, classes=loss.classifies, stream=stream), model, opened.name)
        chosen.notice(opened, recipe, stream)
        most = largest_block(opened, recipe, block)
        plan = SortingPlan.of(opened, recipe, budget, most, stream)
        with Scratch(Path(folder), asked) as scratch:
            work = _Work(opened, names, kinds, recipe, plan, stream)
            counted = work.count(scratch) if plan.scatter and names else None
            give_back()
            with GroupedWriter(scratch.out, recipe, most=most - HEADER) as writer:
                numbering = work.write(scratch, writer, counted)
                opened.check()
                give_back()
                recipe = recipe if recipe.width is not None else recipe.with_width(work.width)
                note = {"version": VERSION, "asked": asked, "by": names, "encoder": recipe.to_dict()}
                labels = None if recipe.labels is None else list(recipe.labels.classes)
                writer.finish(numbering.keys, kinds, {**note, "classes": labels, "width": recipe.width})
            del numbering
            scratch.finish()
    give_back()
    return Grouped(folder)


class _Work:
    """The passes over the data."""

    def __init__(
        self,
        source: BlockSource,
        by: Sequence[str],
        kinds: Sequence[pa.DataType],
        recipe: Recipe,
        plan: SortingPlan,
        stream: Stream,
    ) -> None:
        self.width = 0
        self._source, self._by, self._kinds = source, by, kinds
        self._recipe, self._plan, self._stream = recipe, plan, stream

    def count(self, scratch: Scratch) -> Counted:
        """Find the group of each row."""
        plan = self._plan
        return count(
            self._source,
            self._by,
            self._kinds,
            scratch.path,
            together=plan.count,
            threads=plan.threads,
            stream=self._stream,
        )

    def write(self, scratch: Scratch, writer: GroupedWriter, counted: Counted | None) -> Numbering:
        """Write rows by group, in the way that suits them."""
        if counted is not None:
            most, row_bytes = self._plan.scatter, self._recipe.row_bytes
            chunk = chunk_bytes(most, groups=len(counted.numbering), row_bytes=row_bytes)
            if chunk:
                self.scatter(scratch, writer, counted, chunk=chunk)
                return counted.numbering
        scratch.clear()
        partitioned = isinstance(self._source, PartitionedSource) and set(self._by) <= set(self._source.columns)
        if partitioned or not self._by:
            return self.copy(writer)
        return self.sort(scratch.path, writer, counted)

    def scatter(self, scratch: Scratch, writer: GroupedWriter, counted: Counted, *, chunk: int) -> None:
        """Put rows into their places, but for those that are there already."""
        if not (counted.resumed and scratch.placed):
            scratch.clear("run-*")
        laid = writer.lay(counted.rows)
        work = Scatter(self._source, self._recipe, counted, laid, chunk=chunk)
        placed = work.verified(scratch.placed) if laid.whole else []
        scratch.keep_placed(placed)

        def done(each: Placed) -> None:
            scratch.note_placed(each)
            writer.sync()

        work.run(placed[-1].stop if placed else 0, done=done, stream=self._stream)

    def sort(self, folder: Path, writer: GroupedWriter, counted: Counted | None) -> Numbering:
        """Sort rows by group and write them."""
        shape, room = RowShape(self._recipe), self._plan.room
        stored = RunFolder(folder, shape, self._kinds)
        numbering, begin = stored.resume()
        numbering = numbering if counted is None else counted.numbering
        self.width = stored.width

        def merge(some: Sequence[StoredRun], path: str) -> StoredRun:
            return merge_runs(some, path, shape, groups=len(numbering), room=room)

        with ExitStack() as stack:
            sorter = stack.enter_context(Sorter(stored, shape, numbering, begin=begin, most=self._plan.chunk))
            with closing(self._batches(numbering, begin, counted)) as batches:
                for rows, numbers, block in batches:
                    sorter.add(rows, numbers, block=block, stored=int(self._source.block_bytes[block]))
                    del rows, numbers
            runs = sorter.finish()
            give_back()
            stored.narrow(external_sort.FAN, merge)
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

    def _gather(self, runs: Sequence[SortedRun], writer: GroupedWriter, shape: RowShape, groups: int) -> None:
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

    def _batches(
        self, numbering: Numbering, begin: int, counted: Counted | None = None
    ) -> Generator[tuple[Batch, Int64s, int], None, None]:
        """Yield rows, the numbers of their groups and the block they are of, in stored order from a block on."""
        source, units = self._source, self._source.units
        sizes = np.maximum(source.block_bytes, source.block_rows * dense_bytes(self._recipe))
        tasks = list(stretches(sizes, self._plan.together, begin))
        task = f"group {source.name}"
        self._stream.emit(Started(task, int(source.block_bytes.sum()), "bytes"))
        if begin:
            self._stream.emit(Advanced(task, int(source.block_bytes[:begin].sum()), "taken up again"))

        by = self._by if counted is None else ()
        columns = list(dict.fromkeys([*self._recipe.columns, *by]))

        def read(number: int) -> tuple[list[Batch], Int64s, list[Key] | None]:
            """Return blocks as rows, and their keys; where these were counted, the numbers of the groups."""
            blocks, parts = tasks[number], []
            keys: list[list[pa.Array]] = [[] for _ in by]
            for block in blocks:
                rows = source.read(block, columns)
                parts.append(encoded(self._recipe, source, block, rows, finite=False))
                for held, name in zip(keys, by):
                    held.append(rows.column(name))
                if units is not None and (block + 1 == len(units) or units[block] != units[block + 1]):
                    # Allocators keep what a row group was decoded in, for each thread, beside what the next one takes.
                    pa.default_memory_pool().release_unused()
            if counted is None:
                held_rows = sum(map(len, parts))
                return parts, *coded([pa.chunked_array(held) for held in keys], self._kinds, rows=held_rows)
            return parts, counted.read(*(int(source.block_rows[:n].sum()) for n in (blocks.start, blocks.stop))), None

        with closing(in_order(read, range(len(tasks)), threads=self._plan.threads)) as found:
            for blocks, (parts, numbers, keys) in zip(tasks, found):
                numbers = numbers if keys is None else numbering.number(keys)[numbers]
                edges = np.cumsum([len(part) for part in parts])[:-1]
                for block, rows, some in zip(blocks, parts, np.split(numbers, edges)):
                    if isinstance(rows.x, Csr):
                        self.width = max(self.width, rows.x.width)
                    yield rows, some, block
                self._stream.emit(Advanced(task, int(source.block_bytes[blocks].sum())))
        self._stream.emit(Finished(task))


def _require_names(names: Sequence[str], label: str, weight: str | None) -> None:
    if not names:
        raise UsageError(
            Name("by"),
            " names no column",
            fixes=[Text("name at least one to group by, such as ", Use("by", ["country"]))],
        )
    twice = [name for name in names if list(names).count(name) > 1]
    if twice:
        raise UsageError(f"by names the column {twice[0]!r} twice; name each once")
    for name, role in ((label, "label"), (weight, "weight")):
        if name in names:
            raise UsageError(
                f"{name!r} is given as the {role} and to group by; a group's {role}s would all be the same"
            )


def _classified(recipe: Recipe, model: str, place: str) -> Recipe:
    """Return the recipe with the classes of its label numbered as a model takes them.

    Raises
    ------
    UsageError
        There are more than two for svm, or so many for logistic that they are numbers.
    """
    loss, labels = loss_of(model), recipe.labels
    if labels is None:
        return recipe
    if loss.many:
        return recipe.with_labels(labels.as_binary(False))
    count = len(labels.classes)
    if labels.binary or (loss.several and count <= _MOST_CLASSES):
        return recipe
    most = f"at most {_MOST_CLASSES}" if loss.several else "two"
    raise UsageError(
        f"the label {recipe.label!r} has {count} classes, and ",
        Given("model", model),
        f" tells {most} apart",
        place=place,
        fixes=[
            "name another label",
            Text("use ", Use("model", "linear"), " for numbers"),
            Text(
                f"for classes {'logistic' if count <= _MOST_CLASSES else 'softmax'!r} or LightGBM (",
                Use("model", "lightgbm"),
                ", or penstock.groups.Boosting)",
            ),
        ],
    )
