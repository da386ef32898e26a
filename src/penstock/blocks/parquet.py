"""Parquet files: a row group is a block, or is served as several smaller ones.

A row group can only be decoded from its start. Where its decoded size exceeds the block size it is cut into
sub-blocks of equal rows; ``units`` says which row group each belongs to. Reading a row group's sub-blocks in
ascending order decodes it exactly once, through a cursor that stays open between the reads. Reads in another
order are right, but begin the row group anew. `ParquetSource.pieces` serves blocks for such reads.

A row group's metadata says nothing about its pages, and these differ by writer: most cut them at 1 MB, some write one
page for a whole column. What decoding takes is therefore estimated from the first page headers: a decoder in the middle of a
row group keeps, for every column, the dictionary with a pointer to each entry, the page in use, and its compressed form. See
"Data Pages" in the Parquet format.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.blocks.base import Source, require_block, require_columns
from penstock.blocks.common_schema import common_schema, conform
from penstock.blocks.file_formats import FILE_FORMATS
from penstock.blocks.storage import (
    PathLike,
    ReadAt,
    SeekableView,
    expand,
    fingerprint,
    open_file,
    show_names,
)
from penstock.errors import CorruptFileError, PenstockError, SourceError

BLOCK_SIZE = 256 * 1024
LEAST_BLOCK = 16 * 1024
BLOCKS_WANTED = 1024
MAX_OPEN = 32
_DECODED_ROWS = 64, 1024
"""Rows that are decoded at a time, at least and at most, where pieces are smaller: very few cost as much as these."""
_TEXT = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class ParquetSource(Source):
    """Parquet files as blocks.

    An open cursor holds, for each column read, a page with its dictionary, a read buffer of 64 KB, and the sub-block
    being built; see `unit_bytes_of`. At most ``max_open`` are kept, least recently used first out.

    Parameters
    ----------
    paths : path, folder, glob, or a list of these
        Files with the same columns; their order, and how wide their types are, may differ.
    block_size : int
        The decoded bytes above which a row group is served in sub-blocks; 256 KiB if not given, and less, down to
        16 KiB, where the data would make under 1024 blocks.
    max_open : int
        How many row groups may be half read at once.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "a.parquet")
    >>> pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), path)
    >>> with ParquetSource(path, block_size=16) as source:
    ...     source.block_rows.tolist(), source.read(1).to_pydict()
    ([2, 1], {'x': [3.0]})
    """

    decodes = True

    def __init__(
        self, paths: PathLike | Sequence[PathLike], block_size: int | None = None, *, max_open: int = MAX_OPEN
    ) -> None:
        names = expand(paths, suffixes=FILE_FORMATS["parquet"].suffixes)
        self.name = show_names(names)
        self._files: list[ReadAt] = []
        self._metadata: list[Any] = []
        schemas: list[pa.Schema] = []
        self._cursors: OrderedDict[tuple[Any, ...], _Cursor] = OrderedDict()
        self._lock = threading.Lock()
        self.max_open = max_open
        self._closed = False
        self._owned = True
        self._one_reader: AbstractContextManager[Any] = nullcontext()
        try:
            for number, name in enumerate(names):
                self._files.append(open_file(name))
                schemas.append(self._read_metadata(number))
            self.schema = common_schema(schemas, names)
            self._memory = self._column_memory()
            self._size = block_size or self._fitting_size()
            self._lay_out()
        except BaseException:
            self.close()
            raise
        self.threads = 1

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the data's content, or a sample of it."""
        return fingerprint(self._files)

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        require_block(block, len(self.block_rows), name=self.name)
        wanted = tuple(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        self._files[int(self._number[block])].check()
        with self._one_reader:
            return self._read(block, wanted)

    def _read(self, block: int, wanted: tuple[str, ...]) -> pa.RecordBatch:
        key = (int(self._unit[block]), wanted)
        with self._lock:
            cursor = self._cursors.get(key)
            if cursor is None:
                cursor = self._cursors[key] = _Cursor()
            self._cursors.move_to_end(key)
            while len(self._cursors) > self.max_open:
                self._cursors.popitem(last=False)  # a thread that is using it goes on, and it ends with that read
        start, rows = int(self._at[block]), int(self.block_rows[block])
        with cursor.lock:
            if cursor.batches is None or cursor.at > start:
                cursor.end()
                cursor.batches = self._decode(
                    int(self._number[block]), int(self._group[block]), wanted, self._step(block)
                )
            try:
                while cursor.at < start:
                    cursor.at += next(cursor.batches).num_rows
                batch = next(cursor.batches)
            except PenstockError:
                cursor.end()
                raise
            except (pa.ArrowException, OSError, StopIteration) as error:
                cursor.end()
                self._files[int(self._number[block])].check()
                raise CorruptFileError(f"{self.name}: block {block} cannot be decoded ({error})") from error
            cursor.at += batch.num_rows
            over = block + 1 == len(self.block_rows) or self._at[block + 1] == 0
            if over:
                cursor.end()
        if over:
            with self._lock:
                if self._cursors.get(key) is cursor:
                    del self._cursors[key]
        if batch.num_rows != rows:
            raise CorruptFileError(f"{self.name}: block {block} has {batch.num_rows} rows where {rows} were expected")
        return conform(batch.select(list(wanted)), self.schema)

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        number = self._number[block]
        return str(self._files[number].name), int(np.searchsorted(self._number, number))

    def unit_bytes_of(self, columns: Sequence[str]) -> int:
        """Return what a row group that is half read keeps in memory, if these columns are read."""
        wanted = set(columns)
        return self._building + sum(found.held for name, found in self._memory.values() if name in wanted)

    def refine(self, rows: int, most: int) -> ParquetSource:
        """Return the same files in smaller sub-blocks, with cursors of its own; see `BlockSource.refine`.

        Row groups are still decoded from their start, so how many of them meet in a window depends on how many are
        open.
        """
        return self._laid_out(lambda count, parts: max(parts, -(-count // max(1, rows))))

    def whole_units(self) -> ParquetSource:
        """Return the same files with every row group as one block, so that none is ever half read."""
        return self._laid_out(lambda count, parts: 1)

    def pieces(self, rows: int) -> ParquetSource:
        """Return the same files in blocks of about ``rows`` rows that may be read in any order.

        Each read decodes its row group from the start, unless it follows one before it in the same row group. One row group
        is decoded at a time, whoever asks, so that ``unit_bytes`` are held once; ``units`` is None.
        """
        at_once = min(max(_DECODED_ROWS[0], 4 * rows), _DECODED_ROWS[1])
        other = self._laid_out(lambda count, parts: -(-count // max(1, rows)), at_once)
        other.units, other.max_open, other._one_reader = None, 1, threading.Lock()
        return other

    def _laid_out(self, parts: Callable[[int, int], int], decoded_rows: int = 1) -> ParquetSource:
        other = copy.copy(self)
        other._cursors, other._lock, other._owned = OrderedDict(), threading.Lock(), False
        other._lay_out(parts, decoded_rows)
        return other

    def check(self) -> None:
        """Raise `DataChangedError` if a file is not the one that was opened."""
        for file in self._files:
            file.check()

    def close(self) -> None:
        """Close cursors and files."""
        self._closed = True
        with self._lock:
            cursors = list(self._cursors.values())
            self._cursors.clear()
        for cursor in cursors:
            with cursor.lock:
                cursor.end()
        for file in self._files if self._owned else ():
            file.close()

    def _step(self, block: int) -> int:
        """Rows of a sub-block in this block's row group: those of its first, since only the last is shorter."""
        return int(self.block_rows[np.searchsorted(self._unit, self._unit[block])])

    def _decode(self, number: int, group: int, columns: tuple[str, ...], step: int) -> Iterator[pa.RecordBatch]:
        metadata = self._metadata[number]
        stored = metadata.row_group(group)
        largest = max(stored.column(c).total_compressed_size for c in range(stored.num_columns))
        file = pq.ParquetFile(
            self._native(number),
            metadata=metadata,
            pre_buffer=False,
            buffer_size=max(1, min(BUFFER, largest)),  # a buffer is allocated whole for every column
            page_checksum_verification=True,
        )
        # The columns are read in the file's order, each once; they are put in the order asked for afterwards.
        at_once = step * max(1, self._decoded_rows // step)
        batches = file.iter_batches(batch_size=at_once, row_groups=[group], columns=list(columns), use_threads=False)
        left = stored.num_rows
        held: list[pa.RecordBatch] = []
        have = 0
        for batch in batches:
            at = 0
            while at < batch.num_rows:  # a reader may hand over less at the border of pages
                piece = batch.slice(at, min(step, left) - have)
                held.append(piece)
                have += piece.num_rows
                at += piece.num_rows
                if have == min(step, left):
                    left -= have
                    if at_once > step:
                        held.append(batch.slice(0, 0))  # makes a copy, which does not keep the rows beside it
                    yield held[0] if len(held) == 1 else pa.concat_batches(held)
                    held, have = [], 0

    def _native(self, number: int) -> Any:
        file = self._files[number]
        return os.fspath(file.name) if file.fd is not None else pa.PythonFile(SeekableView(file), mode="r")

    def _read_metadata(self, number: int) -> pa.Schema:
        file = self._files[number]
        if file.size == 0:
            raise CorruptFileError(f"{file.name} is empty (0 bytes); it is no Parquet file")
        try:
            with pq.ParquetFile(self._native(number), pre_buffer=False) as opened:
                self._metadata.append(opened.metadata)
                return opened.schema_arrow
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, PenstockError):
                raise
            raise CorruptFileError(
                f"{file.name} is truncated, damaged, or no Parquet file ({error}); write or copy it again"
            ) from error

    def _fitting_size(self) -> int:
        """Return a block size that makes many blocks even of small data."""
        total = sum(int(m.row_group(g).total_byte_size) for m in self._metadata for g in range(m.num_row_groups))
        return max(LEAST_BLOCK, min(BLOCK_SIZE, total // BLOCKS_WANTED))

    def _column_memory(self) -> dict[str, tuple[str, ColumnMemory]]:
        """Return what decoding the largest row group takes: for each stored column, its field and what it takes."""
        groups = [
            (m.row_group(g).total_byte_size, n, g)
            for n, m in enumerate(self._metadata)
            for g in range(m.num_row_groups)
        ]
        if not groups:
            return {}
        _, number, group = max(groups)
        largest = self._metadata[number].row_group(group)
        names = set(self.schema.names)
        found = {}
        for column in map(largest.column, range(largest.num_columns)):
            path = column.path_in_schema
            field = path if path in names else path.split(".")[0]
            found[path] = (field, column_memory(self._files[number], column))
        return found

    def _decoded_bytes(self, column: Any) -> int:
        """Return what a column chunk takes in memory; text stored by dictionary takes more than is stored."""
        known = self._memory.get(column.path_in_schema)  # writers differ in what they call the values of lists
        width = None if known is None else known[1].value_bytes
        stored = int(column.total_uncompressed_size)
        if width is None:
            return stored
        decoded = int(width * column.num_values)
        return max(stored, decoded) if column.physical_type in _TEXT else decoded

    def _lay_out(self, cut: Callable[[int, int], int] = lambda rows, parts: parts, decoded_rows: int = 1) -> None:
        """Cut every row group: into parts of the block size, or what ``cut`` makes of its rows and these parts.

        Blocks are decoded so many rows at a time, or one by one where they have more.
        """
        self._decoded_rows = decoded_rows
        pieces: list[tuple[int, int, int, int, int, int]] = []
        self._building = 0
        unit = 0
        for number, metadata in enumerate(self._metadata):
            for group in range(metadata.num_row_groups):
                found = self._cut(number, group, unit, cut)
                pieces += found
                unit += bool(found)
        table = np.array(pieces, np.int64).reshape(-1, 6)
        self._number, self._group, self._unit, self._at, self.block_rows, self.block_bytes = np.ascontiguousarray(
            table.T
        )
        self.units = self._unit
        self.unit_bytes = self.unit_bytes_of(self.schema.names)

    def _cut(
        self, number: int, group: int, unit: int, cut: Callable[[int, int], int]
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Return (file, group, unit, first row, rows, stored bytes) of each block of a row group."""
        found = self._metadata[number].row_group(group)
        rows = found.num_rows
        if not rows:
            return []
        columns = [found.column(c) for c in range(found.num_columns)]
        decoded = max(sum(self._decoded_bytes(c) for c in columns), 1)
        stored = sum(c.total_compressed_size for c in columns)
        parts = cut(rows, -(-decoded // self._size))
        step = -(-rows // min(parts, rows))
        self._building = max(self._building, min(decoded, 2 * decoded * max(step, self._decoded_rows) // rows))
        return [
            (number, group, unit, at, min(step, rows - at), max(stored * min(step, rows - at) // rows, 1))
            for at in range(0, rows, step)
        ]


class _Cursor:
    """A row group being decoded: what comes next, and from which row."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: Iterator[pa.RecordBatch] | None = None
        self.at = 0

    def end(self) -> None:
        self.batches = None
        self.at = 0


BUFFER = 64 * 1024
"""Bytes of a column that are read at a time, at most."""
_PAGE = 1 << 20
"""Bytes of a page or dictionary as most writers cut them."""
_POINTER = 16
"""Bytes that Arrow keeps for each dictionary entry of text beside its bytes."""
_HEADER = 64
"""Bytes that hold the fields of a page header that are read here."""
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BOOLEAN": 1}
_I32, _STRUCT = 5, 12


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The sizes of one page: its bytes as decoded and as stored, and its values."""

    uncompressed: int
    compressed: int
    values: int


@dataclass(frozen=True, slots=True)
class ColumnMemory:
    """What a column takes in memory: what its decoder keeps, and the bytes of a value (None if they are as stored)."""

    held: int
    value_bytes: float | None


def column_memory(file: ReadAt, column: Any) -> ColumnMemory:
    """Return what decoding a column chunk takes; ``column`` is its metadata as pyarrow gives it.

    Headers are read from local files only: over a wire each would cost a request. There, and where a header cannot be
    read, pages and dictionaries are taken to be as large as most writers cut them.
    """
    text = column.physical_type == "BYTE_ARRAY"
    stored, decoded = int(column.total_compressed_size), int(column.total_uncompressed_size)
    dictionary = PageHeader(0, 0, 0)
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        size = min(_PAGE, decoded)
        dictionary = _header(file, column.dictionary_page_offset) or PageHeader(size, size, size // 8)
    page = min(_PAGE, max(decoded - dictionary.uncompressed, 0))
    first = _header(file, column.data_page_offset)
    if first is not None:
        page = max(page, first.uncompressed)
    kept = dictionary.uncompressed + (_POINTER * dictionary.values if text else 0)
    # A compressed page is read whole, and decompressed into memory that stays as large as the largest page was.
    unpacked = page if column.compression == "UNCOMPRESSED" else max(page, dictionary.uncompressed) + min(page, stored)
    width: float | None = _WIDTHS.get(column.physical_type)
    if width is None and dictionary.values:
        width = dictionary.uncompressed / dictionary.values
    return ColumnMemory(kept + unpacked + min(BUFFER, stored), width)


def parse_header(data: bytes) -> PageHeader | None:
    """Read the start of a page header in Thrift's compact protocol, or return None if it is none.

    Examples
    --------
    >>> parse_header(bytes([0x15, 4, 0x15, 200, 1, 0x15, 120, 0x4C, 0x15, 20, 0x15, 0, 0, 0]))
    PageHeader(uncompressed=100, compressed=60, values=10)
    """
    at = field = 0
    found: dict[int, int] = {}
    try:
        while data[at]:
            field += data[at] >> 4
            kind, at = data[at] & 15, at + 1
            if kind == _STRUCT:  # of a data page or a dictionary: its first field is the number of values
                if data[at] != 1 << 4 | _I32:
                    return None
                values, at = _number(data, at + 1)
                return PageHeader(found[2], found[3], values)
            if kind != _I32:
                return None
            found[field], at = _number(data, at)
    except (IndexError, KeyError):
        pass
    return None


def _header(file: ReadAt, offset: int) -> PageHeader | None:
    if file.fd is None:
        return None
    try:
        found = parse_header(file.read_at(offset, min(_HEADER, file.size - offset)))
    except (PenstockError, OSError, ValueError):
        return None  # reading the page itself will say what is wrong
    return found if found is not None and min(found.uncompressed, found.compressed, found.values) >= 0 else None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and where the next byte stands."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
