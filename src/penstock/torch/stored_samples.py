"""The rows of a Penstock source one by one, as samples: what a stock loader's worker process gives out.

Opened in the process that reads, never handed to another: files, threads and buffers are its own.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from penstock.blocks.base import BlockSource
from penstock.blocks.fields import Fields
from penstock.blocks.open import open as open_source
from penstock.blocks.refined_source import with_row_counts
from penstock.budget import Budget, Bytes
from penstock.errors import BudgetError, DataError, UsageError
from penstock.events import log
from penstock.loader.loader import Loader
from penstock.loader.plan import default_threads
from penstock.loader.transforms import ROW_NUMBERS
from penstock.messages import Given, Text, Use
from penstock.records import Records
from penstock.shuffle import Order
from penstock.torch.shares import WorkerPlace
from penstock.torch.tensors import tensors

_PIECE_ROWS, _PIECE_BYTES = 256, 1_000_000
"""What is copied out of a window at a time: little beside it, and much beside the cost of a copy."""


@dataclass(frozen=True, slots=True)
class SampleStorage:
    """Which rows and columns to read, in which order and memory; that of all processes of the job together."""

    data: Any
    order: Order
    memory: Budget
    columns: Sequence[str] | None
    seed: int
    row_numbers: bool
    scratch: str | os.PathLike[str] | None

    def rows(self) -> int:
        """Count the rows."""
        source, owned = self.open()
        try:
            return int(source.block_rows.sum())
        finally:
            if owned:
                source.close()

    def open(self) -> tuple[BlockSource, bool]:
        """Open the data with their rows counted, and say whether they are ours to close."""
        source = open_source(self.data)
        owned = source is not self.data
        try:
            source = with_row_counts(source)
            if not int(source.block_rows.sum()):
                raise DataError(f"{source.name} has no rows")
        except BaseException:
            if owned:
                source.close()
            raise
        return source, owned


class StoredSamples:
    """The rows of stored data, as dealt out to the processes of a job."""

    def __init__(self, storage: SampleStorage, place: WorkerPlace) -> None:
        self._storage, self._place = storage, place
        self._source, self._owned = storage.open()
        try:
            schema, name = self._source.schema, self._source.name
            self._fields = Fields.of(schema, storage.columns, place=name, numbered=storage.row_numbers)
            if storage.row_numbers and ROW_NUMBERS in self._fields.columns:
                raise UsageError(
                    f"adds a column {ROW_NUMBERS!r}, and {name} has one of that name",
                    option="row_numbers",
                    value=True,
                    fixes=[Text("leave it out with ", Use("columns")), "do without row_numbers"],
                )
            self._loader = self._open(place.process)
        except BaseException:
            self._close_source()
            raise
        if self._loader.plan.warning and place.process == 0:
            log.warning("%s", self._loader.plan.warning)

    @property
    def held_rows(self) -> int:
        """Rows that a window may hold."""
        return int(self._loader.plan.held_rows)

    def dealt(self, epoch: int) -> list[int]:
        """Return how many rows each process is dealt."""
        return [self._loader.count(epoch, rank=process) for process in range(self._place.processes)]

    def read(self, epoch: int, process: int, start: int, stop: int) -> Generator[Any, None, None]:
        """Yield the rows dealt to a process, from the one numbered ``start`` up to ``stop``."""
        if process == self._place.process or not self._loader.mixed:
            yield from self._read(self._loader, epoch, process, start, stop)
            return
        # What another process would hold back is for a loader in its place to say, and two at once are too many.
        self._loader.close()
        with self._open(process) as other:
            yield from self._read(other, epoch, process, start, stop)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._loader.close()
        self._close_source()

    def _close_source(self) -> None:
        if self._owned:
            self._source.close()

    def _open(self, process: int) -> Loader[Records]:
        place, memory = self._place, self._storage.memory
        holders = place.processes * place.readers
        mine = (
            Budget(bytes=max(1, memory.bytes // holders))
            if memory.bytes is not None
            else Budget(share=(memory.share or 0.0) / holders)
        )
        try:
            return Loader(
                self._source,
                self._fields,
                self._storage.order,
                memory=mine,
                seed=self._storage.seed,
                rank=process,
                world=place.processes,
                threads=None if place.workers == 1 else max(1, default_threads(decoding=False) // place.workers),
                scratch=self._storage.scratch,
            )
        except BudgetError as error:
            if holders == 1:
                raise
            given = Bytes(memory.bytes) if memory.bytes is not None else f"{100 * (memory.share or 0.0):g}%"
            raise BudgetError(
                Given("memory", given),
                f" is for {holders} processes ({place.world * place.readers} ranks with {place.workers} workers each), and"
                " for one of them: ",
                error.text,
                f". For all, give {holders} times that",
                option="memory",
                value=given,
            ) from error

    def _read(
        self, loader: Loader[Records], epoch: int, process: int, start: int, stop: int
    ) -> Generator[Any, None, None]:
        left = stop - start
        with closing(loader.rest(epoch, skip=start, rank=process)) as windows:
            for window in windows:
                records = window.batch.slice(0, min(left, len(window.batch)))
                size = max(1, min(_PIECE_ROWS, _PIECE_BYTES * len(records) // max(1, records.nbytes)))
                for at in range(0, len(records), size):
                    # A copy, since the window's memory is used again; a small one, since a sample keeps it alive.
                    yield from self._samples(records.slice(at, min(at + size, len(records))).copy())
                left -= len(records)
                if not left:
                    return

    def _samples(self, records: Records) -> Iterator[Any]:
        columns: dict[str, Any] = tensors(dict(records.columns))
        if records.rows is not None:
            columns[ROW_NUMBERS] = tensors((records.rows,))[0]
        rows = zip(*columns.values(), strict=True)
        if isinstance(self._storage.columns, tuple):
            return rows
        return (dict(zip(columns, row, strict=True)) for row in rows)
