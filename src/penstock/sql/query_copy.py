"""Copies a query's result to a temporary block file: how views, joins and WHERE are trained on.

Rows stream through once and are laid out to be read fast in any order: lists of one length and packed bytes as
fixed-size lists of float32, number columns that are all the features side by side as one such list, blocks of 64 KB. Numbers
of which some are missing, or number the rows, stay columns of their own, for the recipe to fill or to leave out.
What the columns were called stays noted in the file, so that a model learnt from it scores the query's own columns.
The file goes when it is closed, when the program ends, or, after a crash, when the next one is written beside it.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import Nulls
from penstock.blocks.write import BlockWriter
from penstock.closing import Closing
from penstock.columns.base import Place, is_list, is_number, without_dictionary
from penstock.columns.choose import choose_features
from penstock.columns.number import Number
from penstock.columns.pairs import PAIRS
from penstock.columns.recipe import Recipe, dense_features
from penstock.columns.schema_notes import date_numbers_notice
from penstock.columns.whole_numbers import WholeColumns
from penstock.errors import ColumnError, DataError, WriteError, some_of
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.messages import Text, Use
from penstock.outputs import own_folder

BLOCK_SIZE = 64 * 1024
LEAST_BLOCK = 4 * 1024
BLOCKS_WANTED = 4096
_SAMPLE = 8 << 20
_LARGEST = 4 << 20
_PREFIX = ".penstock-query-"
PLACE = "the query"
"""What messages call a query's rows."""


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


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are to be fetched.

    Attributes
    ----------
    block_size : int or None
        Bytes of a block; None for the engine's own choice.
    nulls : str
        ``fill``: copy nulls, for the recipe to fill; ``error``: refuse rows with a null in a column that is used; ``skip``: leave
        them out. A list that is or holds a null is refused, unless it is left out.
    cache : bool or int
        Whether rows fetched over a connection are kept in a local file for later epochs; a number bounds its bytes.
    connections : int or None
        Connections to read over; None for the engine's own choice.
    memory : int
        Bytes that copying a query to a file may hold.
    folder : str or None
        Where temporary files go; None for the system's own place.
    scanned : bool
        Whether all blocks are read before anything depends on how many rows they have, so that these need not be counted first.
    pack : tuple of str
        The columns that are the features, in order. Where rows are copied and all of these are numbers, the copy has
        them in one column, ``features``; `Recipe.for_schema` then makes of a model learnt from it one of the columns named
        here. Of a sparse pair the number of features is noted.
    """

    block_size: int | None = None
    nulls: Nulls = "fill"
    cache: bool | int = True
    connections: int | None = None
    memory: int = 64_000_000
    folder: str | None = None
    scanned: bool = False
    pack: tuple[str, ...] = ()


def copy_rows(
    rows: pa.RecordBatchReader, columns: Sequence[str], reading: Reading, *, stream: Stream | None = None
) -> QueryCopy:
    """Write columns of a stream of rows to a temporary block file; the stream is read to the end, not closed.

    Blocks are of 64 KiB, and of less, down to 4 KiB, where the rows would make under 4096 blocks. Progress is told as the
    task ``copy``.

    Examples
    --------
    >>> table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, None], "y": [0, 1, 0]})
    >>> with copy_rows(table.to_reader(), ["a", "b", "y"], Reading(pack=("a", "b"), nulls="skip")) as copied:
    ...     copied.rows, copied.skipped, copied.source.schema.names
    (2, 1, ['features', 'y'])
    """
    stream = stream or Stream()
    for name in columns:
        if name not in rows.schema.names:
            raise ColumnError.missing(name, rows.schema.names, place=PLACE)
    layout = _Layout(list(columns), reading.nulls, pack=list(reading.pack))
    remedy = Text("choose another folder: ", Use("scratch"))
    work = own_folder(_PREFIX, reading.folder, what="a copy of the query's rows", remedy=remedy)
    path = work / "rows.arrow"
    stream.emit(Started("copy", None, "rows"))
    try:
        batches = layout.batches(rows, reading.memory // 4, stream)
        first = list(_until(batches, min(_SAMPLE, reading.memory // 4)))
        schema = first[0].schema if first else pa.schema([rows.schema.field(name) for name in columns])
        size, block_rows = _block_shape(first, reading.block_size)
        blocks: dict[str, Any] = {"rows_per_block": block_rows, "most_bytes": max(2 * size, _LARGEST)}
        with BlockWriter(path, schema, metadata=layout.metadata, **blocks) as writer:
            while first:
                writer.write(first.pop(0))
            for batch in batches:
                writer.write(batch)
            layout.refuse_nulls()
            writer.width = layout.width
        if layout.date_numbers:
            stream.emit(Warned(date_numbers_notice(PLACE, layout.date_numbers)))
        if layout.unpacks:
            path = _unpack(path, work / "columns.arrow", layout, **blocks)
        source = ArrowSource(path)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, WriteError):
            reason = str(error).split(": ", 1)[-1]
            raise WriteError(f"{PLACE} cannot be copied to {work.parent}: {reason}", fixes=[remedy]) from error
        raise
    source.name = PLACE
    stream.emit(Finished("copy"))
    return QueryCopy(source, work, skipped=layout.skipped)


@dataclass(slots=True)
class _Layout:
    """How rows are laid out, settled by the first ones; and what was found to be null on the way."""

    columns: list[str]
    nulls: Nulls
    pack: list[str]
    widths: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    width: int | None = None
    skipped: int = 0
    _settled: bool = False
    _first_null: int | None = None
    _in: list[str] = field(default_factory=list)
    _recipe: Recipe | None = None
    _missing: bool = False
    _whole: WholeColumns = field(default_factory=WholeColumns)

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

    def refuse_nulls(self) -> None:
        """Raise, once all rows were seen, where some hold nulls and are not to be left out."""
        if self.nulls != "skip" and self.skipped:
            raise DataError(
                f"{self.skipped} {'row has' if self.skipped == 1 else 'rows have'} a null in"
                f" {some_of(map(repr, self._in), 8)}, the first is row {self._first_null} of the result (counted from 0)",
                place=PLACE,
                fixes=[
                    "filter or fill them in the query",
                    Text("leave them out with ", Use("nulls", "skip")),
                    Text("leave the columns out: ", Use("exclude", self._in[:8])),
                ],
            )

    def _without_nulls(self, batch: pa.RecordBatch, first_row: int) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows without nulls, and their numbers."""
        bad = np.zeros(batch.num_rows, np.bool_)
        for name, array in zip(self.columns, batch.columns):
            found = None if self.nulls == "fill" and not _holds_lists(array.type) else rows_with_nulls(array)
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
        batch = as_features(batch, self.columns, widths=self.widths, first_row=numbers)
        if not self._settled:
            self._settle(batch.schema)
        arrays, names = list(batch.columns), list(batch.schema.names)
        if self._recipe is not None and self._recipe.sparse:
            where = pc.max(batch.column(self._recipe.columns[0]).flatten()).as_py()
            self.width = max(self.width or 0, 0 if where is None else where + 1)
        elif self._recipe is not None:
            others = [name for name in names if name not in self.pack]
            dense = dense_features(batch, self._recipe.parts, Place(PLACE))
            self._missing = self._missing or bool(np.isnan(dense.sum()) and np.isnan(dense).any())
            self._whole.add(batch)
            flat = pa.array(dense.reshape(-1))
            arrays = [fixed_lists(flat, len(self.pack), len(batch)), *(batch.column(name) for name in others)]
            names = [*self.metadata["columns"], *others]
        nullable = [self.nulls == "fill" and not _holds_lists(array.type) for array in arrays]
        fields = [pa.field(name, array.type, may) for name, array, may in zip(names, arrays, nullable)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _settle(self, schema: pa.Schema) -> None:
        """Hold on to the lengths of the first rows, and to whether the features can be one column."""
        self._settled = True
        self.widths = {each.name: each.type.list_size for each in schema if pa.types.is_fixed_size_list(each.type)}
        self.widths |= {each.name: 0 for each in schema if _is_binary(each.type)}
        kinds = [schema.field(name).type for name in self.pack if name in schema.names]
        numbers = len(kinds) > 1 and all(is_number(kind) or pa.types.is_boolean(kind) for kind in kinds)
        pair = next((list(pair) for pair in PAIRS if set(pair) == set(self.pack)), None)
        if not numbers and pair is None:
            return
        self._recipe = choose_features(schema, features=self.pack, place=PLACE)
        packed = "features"
        while packed in schema.names:
            packed += "_"
        self.width = self._recipe.width
        self.metadata = {
            "features": list(self.pack) if numbers else None,
            "columns": pair or [packed],
            "label": None,
            "weight": None,
            "sparse": pair is not None,
            "encoder": [part.to_dict() for part in self._recipe.parts],
        }
        if self.nulls == "fill" and numbers:  # a missing number is copied as NaN
            parts = [replace(part, fill=np.nan) if isinstance(part, Number) else part for part in self._recipe.parts]
            self._recipe = replace(self._recipe, parts=tuple(parts))
            self._whole = WholeColumns(map(Number, self.pack))

    @property
    def unpacks(self) -> bool:
        """Whether features that were copied as one column are to be columns of their own: some is missing, or numbers the rows."""
        return self._missing or bool(self._whole.row_numbers)

    @property
    def date_numbers(self) -> list[str]:
        """The features that were copied as one column, in single precision, and are dates written as numbers."""
        return self._whole.dates


def _unpack(path: Path, target: Path, layout: _Layout, **blocks: Any) -> Path:
    """Copy a file whose features are one column to one where each has its own, and remove the first."""
    (packed,) = layout.metadata["columns"]
    names = [*layout.pack, *(name for name in layout.columns if name not in layout.pack)]

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        dense = batch.column(packed).flatten().to_numpy().reshape(len(batch), len(layout.pack))
        arrays = dict(zip(layout.pack, map(pa.array, np.ascontiguousarray(dense.T))))
        return pa.record_batch([arrays[n] if n in arrays else batch.column(n) for n in names], names)

    with ArrowSource(path) as source:
        first = columns(source.read(0))
        with BlockWriter(target, first.schema, **blocks) as writer:
            for block in range(len(source.block_rows)):
                writer.write(columns(source.read(block)))
    path.unlink()
    return target


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


def as_features(
    rows: pa.RecordBatch,
    columns: Sequence[str],
    *,
    widths: Mapping[str, int] | None = None,
    first_row: int | NDArray[np.int64] = 0,
) -> pa.RecordBatch:
    """Return columns of a batch as features are wanted: lists of numbers and packed bytes as fixed-size float32 lists.

    How long these are is told by ``widths``, or else by the first row; another length is refused, naming the row:
    ``first_row`` is the number of the first one, or those of all. Bytes are packed numbers where all are of one length, which four
    divides, and not where their width is 0. Lists stay lists in a batch without rows whose width is
    not told, and where they are half of a sparse pair. A null in a list or in bytes is refused.

    Examples
    --------
    >>> as_features(pa.record_batch({"v": [[1, 2], [3, 4]], "y": [0, 1]}), ["v"]).schema.field("v").type
    FixedSizeListType(fixed_size_list<item: float not null>[2])
    """
    known = dict(widths or {})
    pair: tuple[str, ...] = next((pair for pair in PAIRS if all(name in columns for name in pair)), ())
    numbers = first_row + np.arange(len(rows)) if isinstance(first_row, int) else first_row
    arrays = []
    for name in columns:
        array = _plain(rows.column(name))
        fixed = pa.types.is_fixed_size_list(array.type)
        if name in pair:
            array = _half(array, values=name == pair[1])
        elif _is_binary(array.type) and not _is_packed(array, known.get(name)):
            pass  # bytes that are no numbers
        elif _is_binary(array.type) or ((fixed or is_list(array.type)) and is_number(array.type.value_type)):
            bad = rows_with_nulls(array)
            if bad is not None:
                row = numbers[int(np.argmax(bad))]
                raise DataError(f"{PLACE}: column {name!r} is or holds a null in row {row}; fill it")
            if fixed:
                array = fixed_lists(array.flatten(), array.type.list_size, len(array))
            else:
                array = _equal(array, name, known.get(name), numbers)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _plain(array: pa.Array) -> pa.Array:
    array = without_dictionary(array)
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array


def _half(array: pa.Array, *, values: bool) -> pa.Array:
    """Return one of a sparse pair's columns; values are float32, indices as they are."""
    kind = array.type
    if not values or not is_list(kind) or not is_number(kind.value_type) or pa.types.is_float32(kind.value_type):
        return array
    return array.cast(pa.large_list(pa.float32()) if pa.types.is_large_list(kind) else pa.list_(pa.float32()))


def _equal(array: pa.Array, name: str, width: int | None, numbers: NDArray[np.int64]) -> pa.Array:
    """Return lists, or bytes, of one length as a fixed-size list; ``width`` is that length in float32 values."""
    packed = _is_binary(array.type)
    if packed:
        array = array.cast(pa.large_binary())
        start = 8 * array.offset
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, start) if len(array) else np.zeros(1, int)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
    unit = 4 if packed else 1
    lengths = np.diff(offsets)
    if not len(lengths) and width is None:
        return array
    if width is None and not lengths[0]:
        raise DataError(
            f"{PLACE}: column {name!r} holds no values in row {numbers[0]}; features are one number or more a row"
        )
    size = int(lengths[0]) // unit if width is None else width
    other = np.flatnonzero(lengths != size * unit)
    if len(other):
        at = int(other[0])
        raise DataError(
            f"{PLACE}: column {name!r} holds {lengths[at] / unit:g} values in row {numbers[at]} where the rows before have"
            f" {size}; features are equally many in every row: leave such rows or the column out, or give sparse rows as two"
            " columns of lists, 'indices' and 'values'"
        )
    if packed:
        data = array.buffers()[2]
        at = int(offsets[0])
        values = np.frombuffer(data, np.uint8, int(offsets[-1]) - at, at) if data is not None else np.empty(0, np.uint8)
        return fixed_lists(pa.array(values.view("<f4").astype(np.float32, copy=False)), size, len(array))
    return fixed_lists(array.flatten(), size, len(array))


def fixed_lists(flat: pa.Array, size: int, rows: int) -> pa.Array:
    """Return numbers as rows of so many float32 each."""
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), size)
    if not pa.types.is_float32(flat.type):
        flat = _plain(flat).cast(pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat.slice(0, rows * size), type=kind)


def rows_with_nulls(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return which rows are null, or hold a null in their list; None where none is."""
    bad = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if not (is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
        return bad
    flat = array.flatten()  # of rows that are null nothing is left
    if not flat.null_count:
        return bad
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(array)), lengths)
    inside = np.zeros(len(array), np.bool_)
    inside[rows[flat.is_null().to_numpy(zero_copy_only=False)]] = True
    return inside if bad is None else bad | inside


def _is_packed(array: pa.Array, width: int | None) -> bool:
    """Whether bytes are packed numbers: by the width that earlier rows had, or by their lengths, all equal and divided by four."""
    if width is not None:
        return width > 0
    if array.null_count or not len(array):
        return False
    ends = pc.min_max(pc.binary_length(array)).as_py()
    return bool(ends["min"] == ends["max"] and ends["max"] and ends["max"] % 4 == 0)


def _holds_lists(kind: pa.DataType) -> bool:
    """Whether a value is a list of numbers."""
    listed = is_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(listed and is_number(kind.value_type))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
