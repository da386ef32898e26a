"""The last step of a batch: the form that was asked for, and what a user's function makes of it, in threads.

Several batches are transformed at a time and given out in their order. A failure is raised where its batch was due.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
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

    def run(self, batches: Iterable[Records], epoch: int) -> Generator[Any, None, None]:
        """Yield what stands for each batch of an epoch, in order."""


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
    """

    as_tuple: bool
    transform: Transform | None
    per_sample: bool
    workers: int
    each_thread: Callable[[], None] | None = None

    def run(self, batches: Iterable[Records], epoch: int = 0) -> Generator[Any, None, None]:
        """Give batches their form, several being transformed at a time."""
        if self.transform is None:
            for each in batches:
                yield self.shape(each)
            return
        apply = partial(self._apply, transform=self.transform)
        most = 2 * self.workers + 1
        work = in_order(apply, batches, threads=self.workers, most=most, name="transform", start=self.each_thread)
        with closing(work) as made:
            yield from made

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
