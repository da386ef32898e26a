"""Arrow streams, one or many, in pieces of a few megabytes.

A stream has no index, but its messages tell their lengths: walking their heads finds every record batch without
reading any. A large batch is then read in ranges of rows, so that a thousand images in one are never held together.
Compressed batches, dictionaries and views cannot be cut; those are held one batch at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from penstock.blocks.file_kinds import STREAM_MARK
from penstock.blocks.ipc import Message, read_header, read_message
from penstock.blocks.ipc_rows import BatchSlice, Walk, buffers_and_nodes, read_rows, slices_of
from penstock.blocks.row_streams import Reached, RowStream
from penstock.blocks.storage import ReadAt, SeekableView, open_file, require_equal, show_names
from penstock.errors import CorruptFileError, DataChangedError, PenstockError
from penstock.parallel import MOST, in_order

PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read at once: a record batch, or a piece of one."""

    stream: StreamFile
    message: Message
    piece: BatchSlice | None
    nbytes: int


class StreamFile:
    """A stream whose record batches have been found.

    Parameters
    ----------
    path : str
        A file in the Arrow stream format.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "a.arrow")
    >>> batch = pa.record_batch({"x": [1, 2, 3]})
    >>> with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
    ...     writer.write(batch)
    >>> stream = StreamFile(path)
    >>> stream.rows, [part.num_rows for part, _ in stream.batches(None)]
    (3, [3])
    >>> stream.close()
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._file: ReadAt | None = None
        file = open_file(path)
        try:
            self.schema = _schema(file)
            local = file.fd is not None
            messages = _messages(file) if local else []
            self.size, self._stamp = file.size, file.stamp()
        finally:
            file.close()  # there may be thousands; each is opened again when its turn comes
        self._batches = [message for message in messages if message.kind == "batch"]
        # What stands between the batches, or what cannot be had cheaply from afar, is left to pyarrow's reader.
        self.plain = local and all(message.kind in ("batch", "schema") for message in messages)
        self._can_cut = all(buffers_and_nodes(field.type) is not None for field in self.schema)
        self.rows = sum(message.rows for message in self._batches) if local else None

    @property
    def file(self) -> ReadAt:
        """The file, opened if it is not."""
        if self._file is None:
            file = open_file(self.name)
            if file.stamp() != self._stamp:
                file.close()
                raise DataChangedError(f"{self.name} was changed while it was in use; start afresh")
            self._file = file
        return self._file

    def batches(self, columns: Sequence[str] | None) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """Yield the rows in order, in batches of a few megabytes, with the stored bytes of each."""
        with closing(read_parts([self], columns)) as parts:
            yield from parts

    def parts(self) -> Iterator[_Part]:
        """Yield what is to be read, from the heads alone."""
        for message in self._batches:
            whole = message.meta + message.body
            if message.body <= PIECE or message.rows <= 1 or not self._can_cut:
                yield _Part(self, message, None, whole)
                continue
            header = read_header(self.file, message.offset, message.meta)
            if header.compressed:
                yield _Part(self, message, None, whole)
                continue
            body = message.offset + message.meta
            for piece in slices_of(header, body, message.body, PIECE):
                for part in self._halve(piece):
                    yield _Part(self, message, part, self._measure(part))

    def read(self, part: _Part, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read one part."""
        names = list(self.schema.names if columns is None else columns)
        try:
            if part.piece is not None:
                batch = read_rows(self.file, part.piece, self.schema, names)
            else:
                data = pa.py_buffer(self.file.read_at(part.message.offset, part.message.meta + part.message.body))
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(data), self.schema).select(names)
            batch.validate(full=True)  # what points outside its buffers would be read from anywhere
        except PenstockError:
            raise
        except (pa.ArrowException, OSError, EOFError, ValueError, IndexError) as error:
            raise CorruptFileError(
                f"{self.name}: the record batch at byte {part.message.offset} is damaged ({error})"
            ) from error
        return batch

    def one_by_one(self, columns: Sequence[str] | None) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """Yield whole record batches by pyarrow's own reader."""
        try:
            for batch in pa.ipc.open_stream(pa.PythonFile(SeekableView(self.file), mode="r")):
                yield (batch if columns is None else batch.select(list(columns))), batch.nbytes
        except PenstockError:
            raise
        except (pa.ArrowException, OSError, EOFError) as error:
            raise CorruptFileError(f"{self.name} is a truncated or damaged Arrow stream ({error})") from error

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _halve(self, piece: BatchSlice) -> Iterator[BatchSlice]:
        """Cut a piece again where its rows are far larger than the batch's others."""
        if piece.stop - piece.start <= 1 or self._measure(piece) <= 2 * PIECE:
            yield piece
            return
        middle = (piece.start + piece.stop) // 2
        yield from self._halve(BatchSlice(piece.header, piece.body, piece.start, middle))
        yield from self._halve(BatchSlice(piece.header, piece.body, middle, piece.stop))

    def _measure(self, piece: BatchSlice) -> int:
        walk = Walk(self.file, piece, 0, 0)
        return sum(walk.measure(field.type, piece.start, piece.stop) for field in self.schema)


def read_parts(
    streams: Sequence[StreamFile], columns: Sequence[str] | None, reached: Reached | None = None
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    """Yield the rows of several streams, one stream after another, reading ahead within a few megabytes."""
    reached = reached or Reached()
    for run in _runs(streams):
        if not run[0].plain:
            reached.file = run[0].name
            yield from run[0].one_by_one(columns)
            continue
        work = in_order(
            lambda p: (p.stream.read(p, columns), p), _parts(run), threads=4, weigh=lambda part: part.nbytes
        )
        with closing(work):
            for batch, part in work:
                reached.file = part.stream.name
                yield batch, part.nbytes


def open_streams(files: Sequence[str]) -> list[StreamFile]:
    """Open streams that have equal columns."""
    opened: list[StreamFile] = []
    for name in files:
        opened.append(StreamFile(name))
        require_equal(opened[0].schema, opened[-1].schema, names=(files[0], name))
    return opened


def stream_rows(files: Sequence[str]) -> RowStream:
    """Return the rows of Arrow streams, in the files' order."""
    opened = open_streams(files)
    reached = Reached()

    def close() -> None:
        for stream in opened:
            stream.close()

    return RowStream(
        show_names(files),
        opened[0].schema,
        sum(stream.size for stream in opened),
        tuple(files),
        lambda columns: read_parts(opened, columns, reached),
        close,
        count=total_rows(opened),
        reached=reached,
    )


def total_rows(streams: Sequence[StreamFile]) -> int | None:
    """Return the rows of all streams, if every one knows."""
    known = [stream.rows for stream in streams if stream.rows is not None]
    return sum(known) if len(known) == len(streams) else None


def _runs(streams: Sequence[StreamFile]) -> Iterator[list[StreamFile]]:
    """Join neighbours that can be read in one go."""
    run: list[StreamFile] = []
    for stream in streams:
        if run and not (stream.plain and run[-1].plain):
            yield run
            run = []
        run.append(stream)
    if run:
        yield run


def _parts(run: Sequence[StreamFile]) -> Iterator[_Part]:
    for number, stream in enumerate(run):
        if number > MOST:  # no part of that one can still be under way
            run[number - MOST - 1].close()
        yield from stream.parts()


def _messages(file: ReadAt) -> list[Message]:
    found: list[Message] = []
    offset = 0
    while (message := read_message(file, offset)) is not None:
        found.append(message)
        offset += message.meta + message.body
    return found


def _schema(file: ReadAt) -> pa.Schema:
    if file.size < 8 or file.read_at(0, 4) != STREAM_MARK:
        raise CorruptFileError(f"{file.name} is not an Arrow stream: it does not begin with a message")
    try:
        schema = pa.ipc.open_stream(pa.PythonFile(SeekableView(file), mode="r")).schema
        schema.names  # noqa: B018 - names that are not text are found out here
        return schema
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{file.name} is a damaged Arrow stream ({error})") from error
