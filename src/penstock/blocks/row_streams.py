"""Rows that come one batch after another: what `convert` reads from.

Any source read ahead in order; text under gzip, zstd, bz2 or xz, decompressed as it is
read and cut at line ends; JSON lines; Arrow streams; any `RecordBatchReader`; and data sets of samples (`samples/`). Never more than a few blocks are held.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource, require_distinct_names
from penstock.blocks.csv import CsvFormat
from penstock.blocks.file_formats import FILE_FORMATS, format_of_suffix, known_suffixes
from penstock.blocks.file_kinds import COMPRESSED, compression_of_head, refuse_other_format
from penstock.blocks.folder_columns import AddedColumns, FolderSource
from penstock.blocks.open import (
    JSON_LINES,
    detect,
    detect_bytes,
    is_stream,
    is_table,
)
from penstock.blocks.open import open as open_source
from penstock.blocks.samples.formats import FORMATS, sample_format, sample_reader
from penstock.blocks.storage import ReadAt, SeekableView, expand, open_file, show_names
from penstock.blocks.text import TextSource
from penstock.errors import CorruptFileError, ParseError, PenstockError, UnknownOptionError, UsageError
from penstock.parallel import in_order

CHUNK = 4 << 20
SAMPLE = 1 << 20
Batches = Generator[tuple[pa.RecordBatch, int], None, None]


@dataclass(slots=True)
class Reached:
    """The file that the batch last given out came from; empty where that is not known."""

    file: str = ""


@dataclass(frozen=True, slots=True)
class RowStream:
    """A run of batches, each with the stored bytes it came from.

    ``batches`` takes the columns wanted (None for all) and may be called once, unless the run is ``repeatable``.
    """

    name: str
    schema: pa.Schema
    nbytes: int | None
    files: tuple[str, ...]
    batches: Callable[[Sequence[str] | None], Batches]
    close: Callable[[], None]
    count: int | None = None
    """How many rows there are, if that is known beforehand."""
    skipped: int = 0
    """Files passed over because they hold no rows."""
    typed: bool = True
    """Whether the data state the types of their columns; those of text are guessed from its first lines."""
    reached: Reached = field(default_factory=Reached)
    repeatable: bool = False
    """Whether ``batches`` may be called again."""

    def __post_init__(self) -> None:
        require_distinct_names(self.schema.names, place=self.name)


def rows_of(data: Any, *, format: str | None = None, split: str | None = None, **options: Any) -> RowStream:
    """Return the rows of whatever a user names; columns in the names of folders (``day=3/``) come after the files' own."""
    if format is not None and format not in (*FILE_FORMATS, *FORMATS, "jsonl"):
        raise UnknownOptionError.of("format", format, [*FILE_FORMATS, *FORMATS, "jsonl"])
    if isinstance(data, (str, os.PathLike, list, tuple)) and not is_table(data):
        samples = sample_format(data) if format is None else format
        if samples in FORMATS:
            return sample_reader(samples)(data, split=split, **options)
    if split is not None:
        raise UsageError(f"is for data that come in splits: {', '.join(sorted(FORMATS))}", option="split", value=split)
    if isinstance(data, pa.RecordBatchReader):
        return RowStream("the reader", data.schema, None, (), lambda columns: _from_reader(data, columns), lambda: None)
    if not isinstance(data, (str, os.PathLike, list, tuple)) or is_table(data):
        source = open_source(data, **options)
        return _from_source(source, (), close=source is not data)
    return _with_folders(_from_files(data, expand(data), format, options), data)


def _from_files(data: Any, files: list[str], format: str | None, options: dict[str, Any]) -> RowStream:
    lines = _json_lines_among(files) if format in (None, "jsonl") else []
    first = format or ("jsonl" if lines else detect(files[0]))
    if first == "jsonl":
        return _from_json_lines(lines or files, options)
    if first == "arrow" and (streams := _streams_among(files)):
        from penstock.blocks.arrow_streams import stream_rows

        return stream_rows(streams)
    if first in COMPRESSED.values() or any(f.endswith(tuple(COMPRESSED)) for f in files):
        return _from_text(files, format, options)
    return _from_source(open_source(data, format=format, **options), tuple(files), close=True)


def read_ahead(source: BlockSource, columns: Sequence[str] | None, reached: Reached | None = None) -> Batches:
    """Read all blocks in order, a few ahead of the one being used."""
    blocks = range(len(source.block_rows))
    with closing(in_order(lambda block: source.read(block, columns), blocks, threads=source.threads or 2)) as read:
        for block, (batch, nbytes) in enumerate(zip(read, source.block_bytes.tolist(), strict=True)):
            if reached is not None:
                reached.file = source.file_of(block)[0]
            yield batch, nbytes


def _from_source(source: BlockSource, files: tuple[str, ...], *, close: bool) -> RowStream:
    total = int(source.block_bytes.sum())
    end = source.close if close else (lambda: None)
    reached = Reached()
    return RowStream(
        source.name,
        source.schema,
        total,
        files,
        lambda columns: read_ahead(source, columns, reached),
        end,
        typed=not isinstance(source.stored if isinstance(source, FolderSource) else source, TextSource),
        reached=reached,
        repeatable=True,
    )


def _with_folders(rows: RowStream, data: Any) -> RowStream:
    """Add the columns that stand in the names of the files' folders."""
    suffixes = [*known_suffixes(), *JSON_LINES, *COMPRESSED]
    added = AddedColumns.of(data, rows.schema, suffixes=suffixes)
    if added is None:
        return rows

    def batches(columns: Sequence[str] | None) -> Batches:
        wanted = list(added.schema.names if columns is None else columns)
        with closing(rows.batches(added.stored(wanted))) as read:
            for batch, nbytes in read:
                yield added.join(batch, wanted, rows.reached.file), nbytes

    return replace(rows, schema=added.schema, batches=batches)


def _from_reader(reader: Any, columns: Sequence[str] | None) -> Batches:
    for batch in reader:
        yield (batch if columns is None else batch.select(list(columns))), batch.nbytes


def _streams_among(files: list[str]) -> list[str]:
    known = [name for name in files if name.lower().endswith(FILE_FORMATS["arrow"].suffixes)] or files
    streams = [name for name in known if is_stream(name)]
    if streams and len(streams) < len(known):
        other = next(name for name in known if name not in streams)
        raise UsageError(f"{streams[0]} is an Arrow stream and {other} an Arrow file; convert each by itself")
    return streams


def _json_lines_among(files: list[str]) -> list[str]:
    """Return the files whose names say that they hold JSON lines; other data beside them are refused."""
    lines = [name for name in files if _stem(name).endswith(JSON_LINES)]
    other = next((name for name in files if name not in lines and _stem(name).endswith(known_suffixes())), None)
    if lines and other is not None:
        raise UsageError(f"{lines[0]} holds JSON lines and {other} does not; convert each by itself")
    return lines


def _from_json_lines(files: list[str], options: dict[str, Any]) -> RowStream:
    from penstock.blocks.json_lines import json_lines_rows

    return json_lines_rows(files, options)


def _from_text(files: list[str], format: str | None, options: dict[str, Any]) -> RowStream:
    """Take compressed or remote text: the first chunk tells the format, then all is parsed as it comes."""
    opened = [open_file(name) for name in files]
    streams = [decompressed(file) for file in opened]
    heads = [read_chunk(streams[0], opened[0].name)]
    found = format or _inner_format(files[0], heads[0])
    if found == "jsonl":
        for stream, file in zip(streams, opened):
            stream.close()
            file.close()
        return _from_json_lines(files, options)
    text = _text_format(found, heads[0], files[0], options)

    reached = Reached()

    def batches(columns: Sequence[str] | None) -> Batches:
        for number, (file, stream) in enumerate(zip(opened, streams)):
            head = heads.pop() if number == 0 else read_chunk(stream, file.name)
            # Types come from the first file, so that all agree; each file has its own header, and order of columns.
            own = text
            if number and isinstance(text, CsvFormat):
                own = text.format_of(head, file.name)
                columns = text.schema.names if columns is None else columns
            elif number:
                own = _text_format(found, head, file.name, options)
            line = 1 + head[: own.skip].count(b"\n")
            before = 0
            for chunk in whole_lines(head[own.skip :], stream, file.name):
                reached.file = file.name
                yield own.parse(chunk, columns, name=file.name, first_line=line), position(stream) - before
                line += chunk.count(b"\n")
                before = position(stream)

    def close() -> None:
        for stream, file in zip(streams, opened):
            stream.close()
            file.close()

    total = sum(f.size for f in opened)
    return RowStream(show_names(files), text.schema, total, tuple(files), batches, close, typed=False, reached=reached)


def decompressed(file: ReadAt) -> Any:
    """Return a file to be read from its start to its end, decompressed if its first bytes say so."""
    raw = io.BufferedReader(SeekableView(file), 1 << 20)
    head = file.read_at(0, min(file.size, 6))
    kind = compression_of_head(head)
    if kind == "gzip":
        stream: Any = gzip.GzipFile(fileobj=raw)
    elif kind == "bz2":
        stream = bz2.BZ2File(raw)
    elif kind == "xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115 - closed with the rows
    elif kind == "zstd":
        stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    else:
        return raw
    return _Counted(stream, raw)


class _Counted:
    """A decompressed stream that remembers the one below it, for progress in stored bytes."""

    def __init__(self, stream: Any, raw: Any) -> None:
        self._stream = stream
        self.raw_stream = raw

    def read(self, nbytes: int) -> bytes:
        return bytes(self._stream.read(nbytes))

    def close(self) -> None:
        self._stream.close()


def position(stream: Any) -> int:
    """Return how many stored bytes have been read of a stream that may be compressed."""
    raw = getattr(stream, "raw_stream", stream)
    return int(raw.tell())


def read_chunk(stream: Any, name: str, nbytes: int = CHUNK) -> bytes:
    """Read so many bytes of a stream; fewer at its end only."""
    with read_errors(name):
        pieces = []
        while nbytes and (piece := stream.read(nbytes)):
            pieces.append(piece)
            nbytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Tell what goes wrong in decompressing a file as an error of ours."""
    try:
        yield
    except PenstockError:
        raise
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise CorruptFileError(f"{name} is truncated or damaged and cannot be decompressed ({error})") from error


def whole_lines(head: bytes, stream: Any, name: str) -> Iterator[bytes]:
    """Yield what was read of a stream, and the rest of it, in pieces that end with a line."""
    left = b""
    chunk = head
    while chunk:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield left + chunk[:cut]
            left = chunk[cut:]
        else:
            left += chunk
            if len(left) > 64 * CHUNK:
                raise ParseError(f"{name} has a line of over {len(left)} bytes; is it text with one row a line?")
        chunk = read_chunk(stream, name)
    if left:
        yield left + b"\n"


def _inner_format(path: str, head: bytes) -> str:
    inner = os.path.splitext(os.path.splitext(path)[0])[1].lower()
    if format_of_suffix(inner) in ("csv", "libsvm"):
        return str(format_of_suffix(inner))
    found = detect_bytes(head, name=path)
    if found not in ("csv", "libsvm", "jsonl"):
        raise UsageError(f"{path} holds {found} under compression; decompress it first")
    return found


def _text_format(format: str, head: bytes, name: str, options: dict[str, Any]) -> Any:
    refuse_other_format(head[:4096], name=name)
    sample = head[: head.rfind(b"\n", 0, SAMPLE) + 1] or head
    if format == "csv":
        from penstock.blocks.csv import csv_format

        return csv_format(sample, name, whole=len(sample) == len(head) < CHUNK, **options)
    from penstock.blocks.libsvm import libsvm_format

    return libsvm_format(name, sample, **options)


def _stem(name: str) -> str:
    """Return a file's name without the suffix of its compression, in lower case."""
    name = name.split("?")[0].lower()
    return next((name.removesuffix(suffix) for suffix in COMPRESSED if name.endswith(suffix)), name)
