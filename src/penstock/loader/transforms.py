"""The last step of a batch: the form that was asked for, and what a user's function makes of it, in threads.

Several batches are transformed at a time and given out in their order. A failure is raised where its batch was due.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from penstock.blocks.fields import ROW_NUMBERS
from penstock.errors import UsageError
from penstock.messages import Given, Text, Use
from penstock.parallel import in_order
from penstock.records import Column, Ragged, Records

Transform = Callable[[Any], Any]
Cut = Callable[[Column, int], "list[Any]"]


def cut_column(column: Column, size: int) -> list[Any]:
    """Cut a column into pieces of so many rows, the last of which may be smaller; they share its memory."""
    starts = range(0, len(column), size)
    if isinstance(column, Ragged):
        return [_part(column, start, start + size) for start in starts]
    return [column[start : start + size] for start in starts]


def single_batches(runs: Iterable[Records], size: int) -> Iterator[Records]:
    """Give the batches of runs of them, one at a time."""
    for run in runs:
        if len(run) <= size:
            yield run
            continue
        for start in range(0, len(run), size):
            columns = {name: _part(column, start, start + size) for name, column in run.columns.items()}
            yield Records(columns, None if run.rows is None else run.rows[start : start + size])


def _part(column: Column, start: int, stop: int) -> Column:
    """Return some rows of a column as views; of unequal rows, without the values of others."""
    if not isinstance(column, Ragged):
        return column[start:stop]
    offsets = column.offsets[start : stop + 1]
    return Ragged(offsets - offsets[0], column.values[offsets[0] : offsets[-1]], column.kind)


def check_form(columns: object, transform: Transform | None, *, per_sample: bool) -> None:
    """Refuse one text for the names of columns, and a transform of single rows that is not there."""
    if isinstance(columns, str):
        raise UsageError(
            "is one text",
            option="columns",
            value=columns,
            fixes=[Text("give a tuple or a list of names: ", Use("columns", (columns,)))],
        )
    if isinstance(columns, Mapping):
        raise UsageError(
            "says what becomes of columns, which penstock.torch.DataLoader alone does",
            option="columns",
            value=columns,
            fixes=["give a list of names"],
        )
    if per_sample and transform is None:
        raise UsageError(
            "says how ",
            Given("transform"),
            " is called, and there is none",
            option="per_sample",
            value=True,
            fixes=["give one"],
        )


class BatchFinisher(Protocol):
    """What makes of a batch's rows what is given out."""

    def run(self, runs: Iterable[Records], size: int, epoch: int) -> Generator[Any, None, None]:
        """Yield what stands for each batch of an epoch, in order; a run is whole batches of so many rows, but for the last."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What becomes of a batch's rows.

    Parameters
    ----------
    as_tuple : bool
        Whether batches are tuples of columns rather than dicts.
    transform : callable, optional
        What makes something else of each batch, or with ``per_sample`` of each row.
    per_sample : bool
        Whether ``transform`` takes one row.
    workers : int
        Threads that transform.
    each_thread : callable, optional
        Called once in each of them, before anything else.
    cut : callable
        Makes of a column of several batches that of each; used where nothing is transformed.
    """

    as_tuple: bool
    transform: Transform | None
    per_sample: bool
    workers: int
    each_thread: Callable[[], None] | None = None
    cut: Cut = cut_column

    def run(self, runs: Iterable[Records], size: int, epoch: int = 0) -> Generator[Any, None, None]:
        """Give batches their form, several being transformed at a time."""
        if self.transform is None:
            for each in runs:
                yield from self._cut_run(each, size)
            return
        apply = partial(self._apply, transform=self.transform)
        most = 2 * self.workers + 1
        batches = single_batches(runs, size)
        work = in_order(apply, batches, threads=self.workers, most=most, name="transform", start=self.each_thread)
        with closing(work) as made:
            yield from made

    def _cut_run(self, run: Records, size: int) -> Iterator[Any]:
        """Give the batches of a run, by no Python code for each: where batches are small, that would cost more than their rows."""
        shape = self.shape(run)
        columns = shape if self.as_tuple else shape.values()
        batches = zip(*(self.cut(column, size) for column in columns), strict=True)
        return batches if self.as_tuple else map(dict, map(partial(zip, shape), batches))

    def shape(self, records: Records) -> Any:
        """Return rows as a dict or a tuple of columns, that of their numbers last."""
        columns: dict[str, Column] = dict(records.columns)
        if records.rows is not None:
            columns[ROW_NUMBERS] = records.rows
        return tuple(columns.values()) if self.as_tuple else columns

    def _apply(self, records: Records, transform: Transform) -> Any:
        batch = self.shape(records)
        if not self.per_sample:
            return transform(batch)
        values: Any = batch if self.as_tuple else list(batch.values())
        names = None if self.as_tuple else list(batch)
        made = []
        for row in range(len(records)):
            entries = [column[row] for column in values]
            made.append(transform(tuple(entries) if names is None else dict(zip(names, entries, strict=True))))
        return stack(made)


def stack(rows: list[Any]) -> Any:
    """Put transformed rows together: arrays and numbers along a new first axis, text and bytes as ragged columns.

    Examples
    --------
    >>> stack([{"x": np.zeros(2), "n": 1}, {"x": np.ones(2), "n": 2}])["x"].shape
    (2, 2)
    """
    first = rows[0]
    if isinstance(first, dict):
        return {name: stack([row[name] for row in rows]) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(stack([row[i] for row in rows]) for i in range(len(first)))
    if isinstance(first, (str, bytes)):
        return Ragged.of(rows)
    arrays = [np.asarray(row) for row in rows]
    if len({array.shape for array in arrays}) > 1:
        if all(array.ndim == 1 for array in arrays):
            return Ragged.of(arrays)
        raise UsageError(
            f"transform returned rows of shapes {sorted({a.shape for a in arrays})[:4]}; return rows of one shape, or"
            " transform whole batches"
        )
    return np.stack(arrays)
