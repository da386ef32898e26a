"""Rows that come one batch after another: what `convert` reads from.

Any source read ahead in order; text under gzip, zstd, bz2 or xz, decompressed as it is
read and cut at line ends; Arrow streams; any `RecordBatchReader`; and data sets of samples, each kind in a file of its
own. Never more than a few blocks are held.
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
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.blocks.open import COMPRESSED, SUFFIXES, detect, detect_bytes, is_stream, is_table
from penstock.blocks.open import open as open_source
from penstock.blocks.samples import SAMPLES, samples_format, samples_reader
from penstock.blocks.storage import ReadAt, SeekableView, expand, open_file, require_equal, show_names
from penstock.errors import CorruptFileError, ParseError, PenstockError, UnknownOptionError, UsageError
from penstock.parallel import in_order

CHUNK = 4 << 20
SAMPLE = 1 << 20
AHEAD = 4
_Batches = Generator[tuple[pa.RecordBatch, int], None, None]


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of batches, each with the stored bytes it came from.

    ``batches`` takes the columns wanted (None for all) and may be called once.
    """

    name: str
    schema: pa.Schema
    nbytes: int | None
    files: tuple[str, ...]
    batches: Callable[[Sequence[str] | None], _Batches]
    close: Callable[[], None]
    count: int | None = None
    """How many rows there are, if that is known beforehand."""
    skipped: int = 0
    """Files passed over because they hold no rows."""


def rows_of(data: Any, *, format: str | None = None, split: str | None = None, **options: Any) -> Rows:
    """Return the rows of whatever a user names."""
    if format is not None and format not in (*SUFFIXES, *SAMPLES):
        raise UnknownOptionError.of("format", format, [*SUFFIXES, *SAMPLES])
    if isinstance(data, (str, os.PathLike, list, tuple)) and not is_table(data):
        samples = samples_format(data) if format is None else format
        if samples in SAMPLES:
            rows: Rows = samples_reader(samples)(data, split=split, **options)
            return rows
    if split is not None:
        raise UsageError(f"split={split!r} is for data that come in splits: {', '.join(sorted(SAMPLES))}")
    if isinstance(data, pa.RecordBatchReader):
        return Rows("the reader", data.schema, None, (), lambda columns: _from_reader(data, columns), lambda: None)
    if not isinstance(data, (str, os.PathLike, list, tuple)) or is_table(data):
        source = open_source(data, **options)
        return _from_source(source, (), close=source is not data)
    files = expand(data)
    first = detect(files[0]) if format is None else format
    if first == "arrow" and (streams := _streams_among(files)):
        from penstock.blocks.arrow_streams import stream_rows

        return stream_rows(streams)
    if first in COMPRESSED.values() or any(f.endswith(tuple(COMPRESSED)) for f in files):
        return _from_text(files, format, options)
    return _from_source(open_source(data, format=format, **options), tuple(files), close=True)


def read_ahead(source: BlockSource, columns: Sequence[str] | None) -> _Batches:
    """Read all blocks in order, a few ahead of the one being used."""
    blocks = range(len(source.block_rows))
    with closing(in_order(lambda block: source.read(block, columns), blocks, threads=source.threads or 2)) as read:
        yield from zip(read, source.block_bytes.tolist(), strict=True)


def _from_source(source: BlockSource, files: tuple[str, ...], *, close: bool) -> Rows:
    total = int(source.block_bytes.sum())
    end = source.close if close else (lambda: None)
    return Rows(source.name, source.schema, total, files, lambda columns: read_ahead(source, columns), end)


def _from_reader(reader: Any, columns: Sequence[str] | None) -> _Batches:
    for batch in reader:
        yield (batch if columns is None else batch.select(list(columns))), batch.nbytes


def _streams_among(files: list[str]) -> list[str]:
    known = [name for name in files if name.lower().endswith(SUFFIXES["arrow"])] or files
    streams = [name for name in known if is_stream(name)]
    if streams and len(streams) < len(known):
        other = next(name for name in known if name not in streams)
        raise UsageError(f"{streams[0]} is an Arrow stream and {other} an Arrow file; convert each by itself")
    return streams


def _from_text(files: list[str], format: str | None, options: dict[str, Any]) -> Rows:
    """Take compressed or remote text: the first chunk tells the format, then all is parsed as it comes."""
    opened = [open_file(name) for name in files]
    streams = [decompressed(file) for file in opened]
    heads = [_read(streams[0], opened[0].name)]
    found = format or _inner_format(files[0], heads[0])
    text = _text_format(found, heads[0], files[0], options)

    def batches(columns: Sequence[str] | None) -> _Batches:
        for number, (file, stream) in enumerate(zip(opened, streams)):
            head = heads.pop() if number == 0 else _read(stream, file.name)
            # Types come from the first file, so that all agree; each file has its own header to pass over.
            own = text if number == 0 else _text_format(found, head, file.name, options)
            require_equal(_untyped(text.schema), _untyped(own.schema), names=(files[0], file.name))
            line = 1 + head[: own.skip].count(b"\n")
            before = 0
            for chunk in _whole_lines(head[own.skip :], stream, file.name):
                yield text.parse(chunk, columns, name=file.name, first_line=line), position(stream) - before
                line += chunk.count(b"\n")
                before = position(stream)

    def close() -> None:
        for stream, file in zip(streams, opened):
            stream.close()
            file.close()

    return Rows(show_names(files), text.schema, sum(f.size for f in opened), tuple(files), batches, close)


def decompressed(file: ReadAt) -> Any:
    """Return a file to be read from its start to its end, decompressed if its first bytes say so."""
    raw = io.BufferedReader(SeekableView(file), 1 << 20)
    head = file.read_at(0, min(file.size, 6))
    try:
        kind = detect_bytes(head, name=file.name)
    except UsageError:
        kind = ""
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


def _read(stream: Any, name: str) -> bytes:
    with read_errors(name):
        pieces = []
        have = 0
        while have < CHUNK:
            piece = stream.read(CHUNK - have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Tell what goes wrong in decompressing a file as an error of ours."""
    try:
        yield
    except PenstockError:
        raise
    except (EOFError, OSError, zlib.error, lzma.LZMAError, pa.ArrowException) as error:
        raise CorruptFileError(f"{name} is truncated or damaged and cannot be decompressed ({error})") from error


def _whole_lines(head: bytes, stream: Any, name: str) -> Iterator[bytes]:
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
        chunk = _read(stream, name)
    if left:
        yield left + b"\n"


def _inner_format(path: str, head: bytes) -> str:
    inner = os.path.splitext(os.path.splitext(path)[0])[1].lower()
    for name in ("csv", "libsvm"):
        if inner in SUFFIXES[name]:
            return name
    found = detect_bytes(head, name=path)
    if found not in ("csv", "libsvm"):
        raise UsageError(f"{path} holds {found} under compression; decompress it first")
    return found


def _text_format(format: str, head: bytes, name: str, options: dict[str, Any]) -> Any:
    sample = head[: head.rfind(b"\n", 0, SAMPLE) + 1] or head
    if format == "csv":
        from penstock.blocks.csv import csv_format

        return csv_format(sample, name, whole=len(sample) == len(head) < CHUNK, **options)
    from penstock.blocks.libsvm import libsvm_format

    return libsvm_format(name, sample, **options)


def _untyped(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(name, pa.null()) for name in schema.names])
