"""Text files in blocks: byte ranges, found by seeking, with whole lines in them.

Block ``k`` of a file holds the lines that *start* in its range: a read begins one byte early to see whether a
line starts there, skips what belongs to the block before, and goes on to the end of its last line. Nothing is
scanned beforehand, so the rows of a block are estimates. Compressed text cannot be cut and is refused with the
line that converts it; what a line means is left to a `TextFormat`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import Int64s, Source
from penstock.blocks.file_kinds import refuse_other_format
from penstock.blocks.refined_source import BlockParts, RefinedSource
from penstock.blocks.storage import PathLike, ReadAt, expand, fingerprint, open_file, show_names
from penstock.budget import parse_size
from penstock.errors import ColumnError, DataError, ParseError, SourceError, UsageError

Chunk = bytes | bytearray | memoryview | NDArray[np.uint8]
LineNumber = int | Callable[[], int]

SAMPLE_BYTES = 1_000_000
LARGEST_BLOCK, SMALLEST_BLOCK = 1_000_000, 4096
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextFormat(Protocol):
    """How lines become rows.

    Attributes
    ----------
    name : str
        What messages call the text.
    schema : pyarrow.Schema
        The columns and their types.
    skip : int
        Bytes ahead of the first row, where text begins: a byte order mark, a header.
    """

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def skip(self) -> int: ...

    def parse(
        self,
        chunk: Chunk,
        columns: Sequence[str] | None = None,
        *,
        name: str | None = None,
        first_line: LineNumber = 1,
    ) -> pa.RecordBatch:
        """Read whole lines (the last one's newline may be missing).

        ``name`` and ``first_line``, the number of the chunk's first line or a function that finds it, are for
        messages.
        """
        ...


def as_lines(chunk: Chunk) -> NDArray[np.uint8]:
    """Return a chunk as an array of bytes that ends in a newline, without a copy where it does."""
    data = np.frombuffer(chunk, np.uint8)
    return data if not len(data) or data[-1] == 10 else np.append(data, np.uint8(10))


def line_at(data: NDArray[np.uint8], place: int) -> str:
    """Return the line about a place, without its end."""
    raw = data.tobytes()
    end = raw.find(b"\n", place)
    line = raw[raw.rfind(b"\n", 0, place) + 1 : len(raw) if end < 0 else end]
    return line.removesuffix(b"\r").decode("utf-8", "replace")


def line_number(data: NDArray[np.uint8], place: int, first_line: LineNumber) -> int:
    """Return the number of the line about a place, given that of the first."""
    before = first_line if isinstance(first_line, int) else first_line()
    return before + int(np.count_nonzero(data[:place] == 10))


def column_numbers(schema: pa.Schema, columns: Sequence[str] | None, *, place: str) -> list[int]:
    """Return the places in the schema of the columns asked for."""
    if columns is None:
        return list(range(len(schema)))
    where = {name: i for i, name in enumerate(schema.names)}
    for column in columns:
        if column not in where:
            raise ColumnError.missing(column, schema.names, place=place)
    return [where[column] for column in columns]


def show_text(text: str, *, limit: int = 60) -> str:
    """Return text in quotes, shortened, for a message."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


class TextFile:
    """One file of a text source: where its rows begin, and its lines by number.

    Refuses what is not plain text: compressed files, other formats, UTF-16, an empty file.
    """

    def __init__(self, path: PathLike) -> None:
        self.file: ReadAt = open_file(path)
        self.name = self.file.name
        try:
            if self.file.size == 0:
                raise DataError(f"{self.name} is empty; give a file with at least one row")
            refuse_other_format(self.file.read_at(0, min(4096, self.file.size)), name=self.name)
        except BaseException:
            self.file.close()
            raise
        self.skip = 0
        self.format: TextFormat | None = None  # where it is not that of all files

    def sample(self, nbytes: int = SAMPLE_BYTES) -> bytes:
        """Return about so many bytes from the start, whole lines, and at least one of them."""
        while True:
            data = self.file.read_at(0, min(nbytes, self.file.size))
            if len(data) == self.file.size:
                return data
            end = data.rfind(b"\n") + 1
            if end and data[:end].strip():
                return data[:end]
            nbytes *= 4

    def last_lines(self, nbytes: int) -> bytes:
        """Return the whole lines of the last bytes of the file, from the first row on."""
        start = max(self.skip, self.file.size - nbytes)
        data = self.file.read_at(start, self.file.size - start)
        return data if start == self.skip else data[data.find(b"\n") + 1 :]

    def line_number(self, offset: int) -> int:
        """Return the number of the line that starts at an offset, by counting: for messages only."""
        count = 1
        for at in range(0, offset, SAMPLE_BYTES):
            count += self.file.read_at(at, min(SAMPLE_BYTES, offset - at)).count(b"\n")
        return count

    def lines(self, start: int, stop: int, *, slack: int) -> tuple[NDArray[np.uint8], int]:
        """Return the lines that start in a range, and the offset of the first of them.

        ``slack`` is how far a line is expected to reach beyond the range, so that one read will mostly do.
        """
        size = self.file.size
        begin = max(start - 1, self.skip)
        ask = min(stop + slack, size)
        data = self.file.read_at(begin, ask - begin)
        first = data.find(b"\n", 0, stop - begin) + 1 if start > self.skip else 0
        if (first == 0 and start > self.skip) or begin + first >= stop:
            return np.empty(0, np.uint8), start
        end = data.find(b"\n", stop - begin - 1) + 1
        while end == 0 and ask < size:  # a line longer than was thought
            more = self.file.read_at(ask, min(max(ask - begin, slack), size - ask))
            ask += len(more)
            found = more.find(b"\n") + 1
            end = len(data) + found if found else 0
            data += more
        end = end or len(data)
        return np.frombuffer(data, np.uint8)[first:end], begin + first


class TextSource(Source):
    """Files of lines as blocks; `CsvSource` and `LibsvmSource` say what the lines mean."""

    exact_rows = False
    decodes = True

    def __init__(
        self, files: Sequence[TextFile], format: TextFormat, *, line_bytes: float, block_size: int | str | None
    ) -> None:
        total = sum(f.file.size - f.skip for f in files)
        size = block_size_for(total, line_bytes=line_bytes, block_size=block_size)
        self.name = show_names([f.name for f in files])
        self.format = format
        self.schema = format.schema
        self._files = list(files)
        self._slack = int(2 * line_bytes) + 256
        self._closed = False
        owner, starts, stops = [], [], []
        for number, f in enumerate(files):
            data = f.file.size - f.skip
            cuts = f.skip + np.linspace(0, data, -(-data // size) + 1).astype(np.int64)
            starts.append(cuts[:-1])
            stops.append(cuts[1:])
            owner.append(np.full(len(cuts) - 1, number, np.int64))
        self._owner, self._starts, self._stops = np.concatenate(owner), np.concatenate(starts), np.concatenate(stops)
        self.block_bytes: Int64s = self._stops - self._starts
        self.block_rows: Int64s = np.maximum(1, np.rint(self.block_bytes / line_bytes)).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the data's content, or a sample of it."""
        return fingerprint(f.file for f in self._files)

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        number = self._owner[block]
        return self._files[number].name, int(np.searchsorted(self._owner, number))

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order, or all."""
        if not 0 <= block < len(self._owner):
            raise IndexError(f"{self.name} has no block {block}; it has {len(self._owner)}")
        return self._read_range(block, 0, int(self.block_bytes[block]), columns)

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in smaller blocks: byte ranges within those there are; see `BlockSource.refine`."""
        row_bytes = self.block_bytes.sum() / max(1, self.block_rows.sum())
        parts = BlockParts.of(self.block_bytes, max(1, int(rows * row_bytes)))

        def read(part: int, columns: Sequence[str] | None) -> pa.RecordBatch:
            return self._read_range(int(parts.owners[part]), int(parts.starts[part]), int(parts.stops[part]), columns)

        lines = np.maximum(1, np.rint(parts.sizes / row_bytes)).astype(np.int64)
        return RefinedSource(self, owners=parts.owners, rows=lines, nbytes=np.maximum(1, parts.sizes), read=read)

    def _read_range(self, block: int, start: int, stop: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read the lines that start in a range of a block's bytes."""
        if self._closed:
            raise SourceError(f"{self.name} is closed; open it again to read from it")
        file, begin = self._files[self._owner[block]], int(self._starts[block])
        file.file.check()
        data, offset = file.lines(begin + start, begin + stop, slack=self._slack)
        try:
            format = file.format or self.format
            wanted = self.schema.names if columns is None and file.format is not None else columns
            return format.parse(data, wanted, name=file.name, first_line=lambda: file.line_number(offset))
        except ParseError:
            file.file.check()  # lines of a file being rewritten are not the user's to correct
            raise

    def close(self) -> None:
        """Close the files."""
        self._closed = True
        close_all(self._files)


def block_size_for(total: int, *, line_bytes: float, block_size: int | str | None) -> int:
    """Return the block size asked for, or one that suits the file: 1 MB, less where that is under 64 blocks.

    Examples
    --------
    >>> block_size_for(10**9, line_bytes=100, block_size=None), block_size_for(10**6, line_bytes=100, block_size=None)
    (1000000, 15625)
    """
    if block_size is None or block_size == "auto":
        # A block of fewer than 32 rows costs more to ask for than to read.
        return int(min(LARGEST_BLOCK, max(SMALLEST_BLOCK, 32 * line_bytes, total / 64)))
    size = parse_size(block_size, option="block_size")
    if size < 1:
        raise UsageError(
            "is too small", option="block_size", value=block_size, fixes=["give at least 1 byte, better '64KB' or more"]
        )
    return size


def open_text(paths: PathLike | Sequence[PathLike], *, suffixes: Sequence[str]) -> list[TextFile]:
    """Open all files meant by a path, a folder, a glob or a list of these, or none of them."""
    files: list[TextFile] = []
    try:
        for path in expand(paths, suffixes=suffixes):
            files.append(TextFile(path))  # noqa: PERF401 - those opened before a failure are to be closed
    except BaseException:
        close_all(files)
        raise
    return files


def close_all(files: Sequence[TextFile]) -> None:
    """Close files."""
    for f in files:
        f.file.close()
