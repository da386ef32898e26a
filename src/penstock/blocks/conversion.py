"""`convert`: any data into the fast layout, in memory of a few blocks.

With a label, features are packed into one fixed-size float32 list (or, sparse, two lists), so that later reads
need no decoding; without one, columns are kept as they are. Rows keep their order. Text, dates and missing numbers become
features as in a training, by a pass over the data before, where they can be read twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Csr
from penstock.blocks.file_formats import format_of_suffix
from penstock.blocks.open import JSON_LINES, naming_arguments
from penstock.blocks.row_streams import RowStream, rows_of
from penstock.blocks.storage import PathLike, is_remote
from penstock.blocks.write import BlockWriter
from penstock.budget import parse_size
from penstock.columns.base import column_of, flag_ranges_of, without_dictionary
from penstock.columns.choose import can_fit, choose_features, fit_batches
from penstock.columns.hashing import Hashed
from penstock.columns.labels import missing_labels, numeric, refuse_missing
from penstock.columns.number import Number
from penstock.columns.pairs import PAIRS
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import index_notice, layout_of, left_out_notice
from penstock.errors import ColumnError, LabelError, UsageError
from penstock.events import Advanced, Finished, Listener, Started, Stream, Warned
from penstock.outputs import only_writer, require_file

# With many reads in flight, blocks of 256 KB in random order come at the speed of sequential reads; a window of many
# small blocks is shuffled better than one of few large, so small data are cut finer.
BLOCK_SIZE = 256 * 1024
# Of rows this large few fit in a block, and what reading costs is theirs more than the block's.
WIDE_ROW, WIDE_BLOCK = 1024, 64 * 1024
LEAST_BLOCK = 4 * 1024
BLOCKS_WANTED = 4096
LARGEST_BLOCK = 4 << 20
"""A block ends early where rows far larger than the others would make it larger than this, or twice its size."""
SAMPLE = 8 << 20
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
"""Bytes in the fast layout from which the size of all the data is judged."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What `convert` wrote."""

    path: str
    rows: int
    blocks: int
    bytes: int
    seconds: float
    skipped: int = 0
    """Files passed over because they hold no rows, such as a text beside images."""
    left_out: int = 0
    """Rows that lack the label or, if that was asked for, a feature."""


def convert(
    data: Any,
    dst: PathLike,
    *,
    label: str | None = None,
    weight: str | None = None,
    features: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    hash: Sequence[str | Hashed] = (),
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    missing: str | None = None,
    null_values: Sequence[str] = (),
    keep: Sequence[str] = (),
    block_size: int | str = "auto",
    format: str | None = None,
    split: str | None = None,
    listen: Listener | None = None,
    **options: Any,
) -> Converted:
    """Write data in the fast layout.

    Parameters
    ----------
    data : path, source, table or RecordBatchReader
        Whatever `open` takes, and also compressed text, JSON lines, Arrow streams and one-shot readers; and data sets of
        samples: a Hugging Face folder, a folder of images, WebDataset tars, a folder of MDS shards.
    dst : path
        The Arrow file to make; it appears when it is complete.
    label, weight : str, optional
        The columns of the target and of the row's weight; kept under their names and types.
    features, exclude, hash, category, number, date, missing, null_values
        Which columns are features, and what becomes of missing values, as in `choose_features`. Rows without a label are left out
        and counted, and with ``missing="drop"`` rows that lack a feature; with ``missing="refuse"`` both are refused.
    keep : list of str
        Further columns to keep as they are.
    block_size : int or str
        Bytes of a record batch. ``"auto"`` takes 256 KiB (64 KiB where rows have 1 KiB and more), and less, down to
        4 KiB, where the data would make under 4096 blocks.
    format : str, optional
        As in `open`, or ``hf``, ``images``, ``webdataset``, ``mds``; told from the data if not given.
    split : str, optional
        Which part, where the data come in several: ``"train"``.
    **options
        As in `open`. For WebDataset: ``extensions``, the columns wanted, where the first samples do not tell.
    listen : callable, optional
        Is told of the progress.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "y": ["no", "yes", "no"]})
    >>> done = convert(table, os.path.join(folder.name, "t.arrow"), label="y")
    >>> done.rows, done.blocks
    (3, 1)
    """
    started = time.perf_counter()
    path = os.fspath(require_file(dst))
    suffix = os.path.splitext(path)[1].lower()
    if suffix in (*JSON_LINES, ".json") or format_of_suffix(suffix) not in (None, "arrow"):
        raise UsageError(f"{path}: what is written is an Arrow file; give it a name that ends in .arrow")
    size = None if block_size == "auto" else parse_size(block_size, option="block_size")
    with naming_arguments(convert):
        rows = rows_of(data, format=format, split=split, **options)
    with closing(rows), only_writer(path):
        _refuse_own_input(path, rows)
        pair = next((p for p in PAIRS if all(name in rows.schema.names for name in p)), None)
        if label is None and pair and "label" in rows.schema.names:
            label = "label"
        packing = label is not None or weight is not None or features is not None or bool(hash) or pair is not None
        hashed = [Hashed.parse(each).column for each in hash if each != "*"]
        named = {*(features or ()), *category, *number, *date, *hashed}
        choose = partial(
            choose_features,
            rows.schema,
            label=label,
            weight=weight,
            features=features,
            hash=hash,
            category=category,
            number=number,
            date=date,
            missing=missing,
            null_values=null_values,
            place=rows.name,
            exclude=[*exclude, *(name for name in keep if name in rows.schema.names and name not in named)],
            fit=partial(fit_batches, partial(_read, rows), rows.schema) if rows.repeatable else None,
        )
        stream = Stream([] if listen is None else [listen])
        if not packing:
            form: _Packed | _AsIs = _AsIs.of(rows, exclude)
        else:
            others = {label, weight, *exclude, *keep, *hashed}
            fitted = [f for f in rows.schema if f.name not in others and (features is None or f.name in features)]
            passes = any(map(can_fit, fitted)) or bool(category or number or date) or missing == "indicator"
            fill = rows.repeatable and passes  # the pass that is made anyway looks at numbers too
            form = _Packed.of(rows, choose(fill=fill), keep)
        try:
            writer = _write(path, rows, form, size, stream, exclude=exclude)
        except _MissingNumberError:  # what stands for missing numbers has to be found first
            form = _Packed.of(rows, choose(fill=True), keep)
            writer = _write(path, rows, form, size, stream, exclude=exclude)
    seconds = time.perf_counter() - started
    return Converted(path, writer.rows, writer.blocks, writer.nbytes, seconds, rows.skipped, form.left_out_rows)


def _write(
    path: str, rows: RowStream, form: _Packed | _AsIs, size: int | None, stream: Stream, *, exclude: Sequence[str]
) -> BlockWriter:
    """Write all rows, and return what wrote them."""
    kept = rows.schema.names if form.asked is None else form.asked
    for notice in (index_notice(rows.schema, kept, exclude=exclude), left_out_notice(form.left_out)):
        if notice is not None:
            stream.emit(Warned(notice))
    task = f"convert {rows.name}"
    stream.emit(Started(task, rows.nbytes, "bytes"))
    with closing(_shape(rows, form, stream, task)) as shaped:
        first = list(_until(shaped, SAMPLE))
        if not rows.typed:
            for notice in _mixed_text([batch for batch, _ in first], rows.name):
                stream.emit(Warned(notice))
        block_bytes, per_block = _block_shape(first, size, rows)
        most = max(2 * block_bytes, LARGEST_BLOCK)
        with BlockWriter(
            path, form.schema, rows_per_block=per_block, most_bytes=most, metadata=form.metadata
        ) as writer:
            while first:
                writer.write(first.pop(0)[0])
            for batch, _ in shaped:
                writer.write(batch)
            writer.width = form.width
    stream.emit(Finished(task))
    for notice in form.notices(rows.name):
        stream.emit(Warned(notice))
    return writer


def _read(rows: RowStream, columns: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
    with closing(rows.batches(columns)) as batches:
        for batch, _ in batches:
            yield batch


class _MissingNumberError(Exception):
    """A number is missing, and nothing is known to stand for it."""


class _Packed:
    """Features in one column (two if sparse), then label, weight and columns kept."""

    def __init__(
        self, recipe: Recipe, schema: pa.Schema, columns: list[str], others: list[str], *, watch: bool = False
    ) -> None:
        self.schema = schema
        self.left_out = recipe.left_out
        unfilled = (part.column for part in recipe.parts if isinstance(part, Number) and part.fill is None)
        self._watched = list(unfilled) if watch else []
        self.asked: list[str] | None = list(dict.fromkeys([*recipe.columns, *others]))
        self.width = recipe.width
        self._recipe = recipe
        refusing = "refuse" if recipe.missing == "refuse" else "auto"
        self._bare = Recipe(recipe.parts, place=recipe.place, missing=refusing, members=recipe.members)
        self._drops = recipe.missing == "drop"
        self._unlabelled = self._incomplete = 0
        self._others = others
        names = recipe.names
        self.metadata: dict[str, Any] = {
            "features": list(names) if names else None,
            "columns": columns,
            "label": recipe.label,
            "weight": recipe.weight,
            "sparse": recipe.sparse,
            "encoder": recipe.origin or [part.to_dict() for part in recipe.parts],
            "flag_ranges": flag_ranges_of(recipe.parts),
            "dense": recipe.dense_width if recipe.sparse else None,
        }

    @classmethod
    def of(cls, rows: RowStream, recipe: Recipe, keep: Sequence[str]) -> _Packed:
        for name in keep:
            if name not in rows.schema.names:
                raise ColumnError.missing(name, rows.schema.names, place=rows.name, role="column to keep")
        sure = [name for name in (recipe.label, recipe.weight) if name is not None]
        others = list(dict.fromkeys([*sure, *keep]))
        fields = [rows.schema.field(name).with_nullable(name not in sure) for name in others]
        columns = [
            name if name not in others else f"{name}_"
            for name in (("indices", "values") if recipe.sparse else ("features",))
        ]
        if recipe.sparse:
            kinds = [pa.list_(pa.field("item", kind, nullable=False)) for kind in (pa.uint32(), pa.float32())]
        else:
            kinds = [pa.list_(pa.field("item", pa.float32(), nullable=False), recipe.width or 0)]
        packed = [pa.field(name, kind, nullable=False) for name, kind in zip(columns, kinds)]
        if recipe.sparse and columns != ["indices", "values"]:
            raise UsageError(f"the columns {others} cannot be named 'indices' or 'values' beside sparse features")
        return cls(recipe, pa.schema([*packed, *fields]), columns, others, watch=rows.repeatable)

    @property
    def left_out_rows(self) -> int:
        """How many rows were left out."""
        return self._unlabelled + self._incomplete

    def notices(self, place: str) -> Iterator[str]:
        """Tell of rows that were left out."""
        if self._unlabelled:
            yield f"{place}: {self._unlabelled:,} rows have no {self._recipe.label!r}, the label, and are left out"
        if self._incomplete:
            yield f"{place}: {self._incomplete:,} rows lack a feature and are left out"

    def _left_out(self, batch: pa.RecordBatch, first_row: int) -> NDArray[np.bool_]:
        """Return which rows lack the label or, if that was asked for, a feature; refuse the first without a label if so asked."""
        label = self._recipe.label
        gone = np.zeros(len(batch), np.bool_)
        if label is not None:
            if self._recipe.missing == "refuse":
                refuse_missing(batch.column(label), label, first_row=first_row)
            gone = missing_labels(batch.column(label))
        self._unlabelled += int(gone.sum())
        if self._drops:
            lacking = ~gone & self._recipe.lacking(batch)
            self._incomplete += int(lacking.sum())
            gone = gone | lacking
        return gone

    def shape(self, batch: pa.RecordBatch, first_row: int, place: str) -> pa.RecordBatch:
        """Return the batch in the fast layout; a row that cannot be used is named by its place."""
        recipe = self._recipe.at(place)
        try:
            gone = self._left_out(batch, first_row)
            if recipe.weight is not None:
                numeric(batch.column(recipe.weight), column=recipe.weight, first_row=first_row, weight=True)
        except LabelError as error:
            raise error.replace(place=recipe.place) from None
        if any(column_of(batch, name).null_count for name in self._watched):
            raise _MissingNumberError
        x = self._bare.at(place).encode(batch, first_row=first_row).x
        if self._watched and np.isnan((x.values if isinstance(x, Csr) else x).sum()):
            raise _MissingNumberError
        if isinstance(x, Csr):
            if recipe.width is None:
                self.width = max(self.width or 0, x.width)
            offsets = pa.array(x.indptr.astype(np.int32))
            arrays = [
                pa.ListArray.from_arrays(offsets, pa.array(values), type=self.schema.field(at).type)
                for at, values in enumerate((x.indices, x.values))
            ]
        else:
            flat = pa.array(x.reshape(-1))
            arrays = [pa.FixedSizeListArray.from_arrays(flat, type=self.schema.field(0).type)]
        arrays += [without_dictionary(batch.column(name)) for name in self._others]
        shaped = pa.RecordBatch.from_arrays(arrays, names=self.schema.names)
        return shaped.filter(pa.array(~gone)) if gone.any() else shaped


class _AsIs:
    """Columns as they are; a file already packed stays so."""

    def __init__(self, schema: pa.Schema, asked: list[str] | None, metadata: dict[str, Any]) -> None:
        self.schema = schema
        self.asked = asked
        self.metadata = metadata
        self.width: int | None = metadata.get("width")
        self.left_out: Mapping[str, str] = {}
        self.left_out_rows = 0

    def notices(self, place: str) -> Iterator[str]:
        """Tell of nothing: all rows are kept."""
        return iter(())

    @classmethod
    def of(cls, rows: RowStream, exclude: Sequence[str]) -> _AsIs:
        for name in exclude:
            if name not in rows.schema.names:
                raise ColumnError.missing(name, rows.schema.names, place=rows.name, role="column to exclude")
        kept = [name for name in rows.schema.names if name not in exclude]
        noted = layout_of(rows.schema)
        noted = {k: v for k, v in noted.items() if k not in ("version", "rows_per_block", "rows", "blocks")}
        schema = pa.schema([rows.schema.field(name) for name in kept], rows.schema.metadata)
        return cls(schema, kept if exclude else None, noted)

    def shape(self, batch: pa.RecordBatch, first_row: int, place: str) -> pa.RecordBatch:
        """Return the batch itself."""
        return batch


def _shape(
    rows: RowStream, form: _Packed | _AsIs, stream: Stream, task: str
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    """Yield batches in the layout to be written, each with the stored bytes it came from."""
    done = told = 0
    file = ""
    with closing(rows.batches(form.asked)) as batches:
        for batch, nbytes in batches:
            if rows.reached.file != file:
                file, done = rows.reached.file, 0
            yield form.shape(batch, done, file or rows.name), nbytes
            done += batch.num_rows
            told += nbytes
            stream.emit(Advanced(task, nbytes))
    if rows.nbytes is not None and told < rows.nbytes:  # what compression puts after the last row
        stream.emit(Advanced(task, rows.nbytes - told))


def _until(shaped: Iterator[tuple[pa.RecordBatch, int]], nbytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches until they come to so many bytes."""
    for batch, stored in shaped:
        yield batch, stored
        nbytes -= batch.nbytes
        if nbytes <= 0:
            return


def _block_shape(first: list[tuple[pa.RecordBatch, int]], size: int | None, rows: RowStream) -> tuple[int, int]:
    """Return a block's bytes, those wanted or few enough to make many blocks of all the data, and its rows."""
    count = sum(batch.num_rows for batch, _ in first)
    nbytes = sum(batch.nbytes for batch, _ in first)
    if not count:
        return size or LEAST_BLOCK, 1
    read = sum(part for _, part in first)
    whole = nbytes * rows.nbytes // read if rows.nbytes and read else None
    if size is None:
        guess = whole or (nbytes if nbytes < SAMPLE else BLOCK_SIZE * BLOCKS_WANTED)
        most = BLOCK_SIZE if nbytes < WIDE_ROW * count else WIDE_BLOCK
        size = max(min(most, guess // BLOCKS_WANTED), LEAST_BLOCK)
    if whole and rows.count:  # the first rows need not be like the rest
        count, nbytes = rows.count, whole
    return size, max(int(size * count / max(nbytes, 1)), 1)


def _mixed_text(batches: Sequence[pa.RecordBatch], place: str) -> Iterator[str]:
    """Say of each column of text that most of its first values are numbers, and which one is not."""
    for at, field in enumerate(batches[0].schema if batches else ()):
        if not pa.types.is_string(field.type):
            continue
        values = pa.chunked_array([batch.column(at) for batch in batches]).drop_null()
        values = values.filter(pc.not_equal(values, ""))
        numbers = pc.match_substring_regex(values, _NUMBER)
        count = pc.sum(numbers).as_py() or 0
        if len(values) / 2 < count < len(values):
            other = values.filter(pc.invert(numbers))[0].as_py()
            yield (
                f"{place}: column {field.name!r} is kept as text, though {count:,} of its first {len(values):,} values are"
                f" numbers: {other!r} is none; for a column of numbers, correct such values or leave the fields empty"
            )


def _refuse_own_input(path: str, rows: RowStream) -> None:
    for name in rows.files:
        if not is_remote(name) and os.path.exists(path) and os.path.samefile(name, path):
            raise UsageError(f"{path} is the file being read; write to another name")
