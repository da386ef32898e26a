"""Copies a query's result to a temporary block file: how views, joins and WHERE are trained on.

Rows stream through once and are laid out to be read fast in any order: lists of one length and packed bytes as
fixed-size lists of float32, number columns that are all the features side by side as one such list, blocks of 64 KB.
What the columns were called stays noted in the file, so that a model learnt from it scores the query's own columns.
The file goes when it is closed, when the program ends, or, after a crash, when the next one is written beside it.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.feature_columns import PAIRS, dense_features, is_number
from penstock.blocks.features import Encoder, choose_features
from penstock.blocks.write import BlockWriter
from penstock.closing import Closing
from penstock.errors import ColumnError, DataError, WriteError, some_of
from penstock.events import Advanced, Finished, Started, Stream
from penstock.messages import Text, Use
from penstock.outputs import own_folder
from penstock.sql.feature_columns import as_features, fixed_lists, rows_with_nulls

BLOCK_SIZE = 64 * 1024
LEAST_BLOCK = 4 * 1024
BLOCKS_WANTED = 4096
_SAMPLE = 8 << 20
_LARGEST = 4 << 20
_PREFIX = ".penstock-query-"


class QueryCopy(Closing):
    """A query's rows in a file of their own, removed when closed.

    Attributes
    ----------
    source : ArrowSource
        The rows in blocks.
    rows, skipped : int
        How many there are, and how many were left out for a null.
    nbytes : int
        The size of the file.
    """

    def __init__(self, source: ArrowSource, folder: Path, *, skipped: int) -> None:
        self.source = source
        self.rows = int(source.block_rows.sum())
        self.skipped = skipped
        self.nbytes = sum(path.stat().st_size for path in folder.iterdir())
        self._remove = weakref.finalize(self, _remove, source, folder, os.getpid())

    def close(self) -> None:
        """Close and remove the file."""
        self._remove()


def copy_query(
    reader: pa.RecordBatchReader,
    *,
    columns: Sequence[str],
    nulls: Literal["error", "skip"] = "error",
    place: str = "the query",
    memory: int = 64_000_000,
    folder: str | os.PathLike[str] | None = None,
    stream: Stream | None = None,
    pack: Sequence[str] = (),
    block_size: int | None = None,
    total: int | None = None,
) -> QueryCopy:
    """Write a stream of rows to a temporary block file.

    Parameters
    ----------
    reader : pyarrow.RecordBatchReader
        The rows; read to the end, not closed.
    columns : list of str
        Those to keep.
    nulls : str
        ``error`` refuses rows with a null in them, ``skip`` leaves them out.
    place : str
        What messages call the rows.
    memory : int
        Bytes that may be held.
    folder : path, optional
        Where the file goes; the system's temporary folder if not given.
    stream : Stream, optional
        Hears of the progress, as the task ``copy_query``.
    pack : list of str
        The columns that are the features, in order; where all are numbers they become one column, ``features``, and of a
        sparse pair the number of features is noted.
    block_size : int, optional
        Bytes of a block; 64 KiB, and less, down to 4 KiB, where the rows would make under 4096 blocks.
    total : int, optional
        How many rows there will be, if that is known, for the progress.

    Examples
    --------
    >>> table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, None], "y": [0, 1, 0]})
    >>> with copy_query(table.to_reader(), columns=["a", "b", "y"], pack=["a", "b"], nulls="skip") as copied:
    ...     copied.rows, copied.skipped, copied.source.schema.names
    (2, 1, ['features', 'y'])
    """
    stream = stream or Stream()
    for name in columns:
        if name not in reader.schema.names:
            raise ColumnError.missing(name, reader.schema.names, place=place)
    form = _Form(list(columns), place, nulls, pack=list(pack))
    remedy = Text("choose another folder: ", Use("scratch"))
    work = own_folder(_PREFIX, folder, what="a copy of the query's rows", remedy=remedy)
    path = work / "rows.arrow"
    stream.emit(Started("copy", total, "rows"))
    try:
        batches = form.batches(reader, memory // 4, stream)
        first = list(_until(batches, min(_SAMPLE, memory // 4)))
        schema = first[0].schema if first else form.unknown(reader.schema)
        size, rows = _block_shape(first, block_size)
        most = max(2 * size, _LARGEST)
        with BlockWriter(path, schema, rows_per_block=rows, most_bytes=most, metadata=form.metadata) as writer:
            while first:
                writer.write(first.pop(0))
            for batch in batches:
                writer.write(batch)
            form.refuse_nulls()
            writer.width = form.width
        source = ArrowSource(path)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, WriteError):
            raise WriteError(
                f"{place} cannot be copied to {work.parent}: {str(error).split(': ', 1)[-1]}",
                fixes=[remedy],
            ) from error
        raise
    source.name = place
    stream.emit(Finished("copy"))
    return QueryCopy(source, work, skipped=form.skipped)


@dataclass(slots=True)
class _Form:
    """How rows are laid out, settled by the first ones; and what was found to be null on the way."""

    columns: list[str]
    place: str
    nulls: Literal["error", "skip"]
    pack: list[str]
    widths: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    width: int | None = None
    skipped: int = 0
    _settled: bool = False
    _first_null: int | None = None
    _in: list[str] = field(default_factory=list)
    _encoder: Encoder | None = None

    def batches(self, reader: pa.RecordBatchReader, most: int, stream: Stream) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are to be written, in pieces of so many bytes at most."""
        row = 0
        for batch in reader:
            step = max(1, int(batch.num_rows * most / max(batch.nbytes, 1)))
            for at in range(0, batch.num_rows, step):
                piece = batch.slice(at, step).select(self.columns)
                kept, numbers = self._without_nulls(piece, row)
                if kept.num_rows and (self.nulls == "skip" or not self.skipped):
                    yield self._shaped(kept, numbers)
                row += piece.num_rows
                stream.emit(Advanced("copy", piece.num_rows))

    def unknown(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a result without rows."""
        return pa.schema([schema.field(name) for name in self.columns])

    def refuse_nulls(self) -> None:
        """Raise, once all rows were seen, where some hold nulls and are not to be left out."""
        if self.nulls == "error" and self.skipped:
            raise DataError(
                f"{self.skipped} {'row has' if self.skipped == 1 else 'rows have'} a null in"
                f" {some_of(map(repr, self._in), 8)}, the first is row {self._first_null} of the result (counted from 0)",
                place=self.place,
                fixes=["filter or fill them in the query", Text("leave them out with ", Use("nulls", "skip"))],
            )

    def _without_nulls(self, batch: pa.RecordBatch, first_row: int) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows without nulls, and their numbers."""
        bad = np.zeros(batch.num_rows, np.bool_)
        for name, array in zip(self.columns, batch.columns):
            found = rows_with_nulls(array)
            if found is not None:
                bad |= found
                if name not in self._in:
                    self._in.append(name)
        numbers = first_row + np.arange(batch.num_rows)
        if not bad.any():
            return batch, numbers
        if self._first_null is None:
            self._first_null = first_row + int(np.argmax(bad))
        self.skipped += int(bad.sum())
        return batch.filter(pa.array(~bad)), numbers[~bad]

    def _shaped(self, batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> pa.RecordBatch:
        batch = as_features(batch, self.columns, widths=self.widths, place=self.place, first_row=numbers)
        if not self._settled:
            self._settle(batch.schema)
        arrays, names = list(batch.columns), list(batch.schema.names)
        if self._encoder is not None and self._encoder.sparse:
            where = pc.max(batch.column(self._encoder.columns[0]).flatten()).as_py()
            self.width = max(self.width or 0, 0 if where is None else where + 1)
        elif self._encoder is not None:
            others = [name for name in names if name not in self.pack]
            flat = pa.array(dense_features(batch, self._encoder.parts, place=self.place, first_row=0).reshape(-1))
            arrays = [fixed_lists(flat, len(self.pack), len(batch)), *(batch.column(name) for name in others)]
            names = [*self.metadata["columns"], *others]
        fields = [pa.field(name, array.type, nullable=False) for name, array in zip(names, arrays)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _settle(self, schema: pa.Schema) -> None:
        """Hold on to the lengths of the first rows, and to whether the features can be one column."""
        self._settled = True
        self.widths = {each.name: each.type.list_size for each in schema if pa.types.is_fixed_size_list(each.type)}
        kinds = [schema.field(name).type for name in self.pack if name in schema.names]
        numbers = len(kinds) > 1 and all(is_number(kind) or pa.types.is_boolean(kind) for kind in kinds)
        pair = next((list(pair) for pair in PAIRS if set(pair) == set(self.pack)), None)
        if not numbers and pair is None:
            return
        self._encoder = choose_features(schema, features=self.pack, place=self.place)
        packed = "features"
        while packed in schema.names:
            packed += "_"
        self.width = self._encoder.width
        self.metadata = {
            "features": list(self.pack) if numbers else None,
            "columns": pair or [packed],
            "label": None,
            "weight": None,
            "sparse": pair is not None,
            "encoder": [part.to_dict() for part in self._encoder.parts],
        }


def _until(batches: Iterator[pa.RecordBatch], nbytes: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        nbytes -= batch.nbytes
        if nbytes <= 0:
            return


def _block_shape(first: Sequence[pa.RecordBatch], size: int | None) -> tuple[int, int]:
    """Return the bytes and rows of a block, judged by the first rows: small, and smaller where these are all."""
    rows, nbytes = sum(batch.num_rows for batch in first), sum(batch.nbytes for batch in first)
    if size is None:
        size = max(LEAST_BLOCK, min(BLOCK_SIZE, nbytes // BLOCKS_WANTED if nbytes < _SAMPLE else BLOCK_SIZE))
    return size, max(1, int(size * rows / max(nbytes, 1)))


def _remove(source: ArrowSource, folder: Path, process: int) -> None:
    source.close()
    if process == os.getpid():  # a forked process leaves it to the one that wrote it
        shutil.rmtree(folder, ignore_errors=True)
