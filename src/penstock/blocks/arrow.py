"""Arrow IPC files: a record batch is a block, read by one ``pread`` and decoded without a copy.

Files that `penstock convert` wrote say in their metadata how many rows a block has, so that opening one costs
the same for ten blocks and for a hundred thousand; each of their blocks is verified against its checksum whenever it is
read. Foreign files are opened by reading every batch's header.
An Arrow *stream* has no index of its blocks and is refused with the line that converts it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import Int64s, PackedLayout, Source, require_block, require_columns, select_columns
from penstock.blocks.block_sums import content_of, verify_block
from penstock.blocks.common_schema import common_schema, conform
from penstock.blocks.fields import Fields
from penstock.blocks.file_formats import FILE_FORMATS
from penstock.blocks.ipc import BatchHeader, Footer, read_footer, read_header
from penstock.blocks.ipc_rows import BatchSlice, leading_buffers, read_rows, slices_of
from penstock.blocks.packed_batches import StoredBatches
from penstock.blocks.refined_source import RefinedSource, by_rows, worth_reading
from penstock.blocks.row_layout import RowLayout, StoredBlocks, row_layout
from penstock.blocks.storage import (
    PathLike,
    ReadAt,
    SeekableView,
    expand,
    fingerprint,
    open_file,
    show_names,
)
from penstock.columns.schema_notes import layout_of
from penstock.errors import CorruptFileError, SourceError

BLOCK_SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A file's blocks: rows, bytes, offset, header's length and record batch of each; and which are pieces."""

    columns: tuple[Int64s, ...]
    pieces: dict[int, BatchSlice]


class ArrowSource(Source):
    """Arrow IPC files as blocks.

    Parameters
    ----------
    paths : path, folder, glob, or a list of these
        Files in the Arrow IPC file format with the same columns; their order, and how wide their types are, may differ.
    block_size : int, optional
        Record batches of other writers that are larger than this (1 MB if not given) are served in pieces,
        where they are uncompressed. Those of converted files are always one block.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "a.arrow")
    >>> batch = pa.record_batch({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    >>> with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
    ...     writer.write(batch)
    >>> with ArrowSource(path) as source:
    ...     source.read(0, ["y"]).to_pydict()
    {'y': [0, 1, 0]}
    """

    decodes = True

    def __init__(self, paths: PathLike | Sequence[PathLike], block_size: int | None = None) -> None:
        names = expand(paths, suffixes=FILE_FORMATS["arrow"].suffixes)
        self.name = show_names(names)
        self._files: list[ReadAt] = []
        self._footers: list[Footer] = []
        self._readers: dict[int, Any] = {}
        self._reader_lock = threading.Lock()
        try:
            for name in names:
                self._files.append(open_file(name, random=True))
                self._footers.append(read_footer(self._files[-1]))
            self.schema = common_schema([footer.schema for footer in self._footers], names)
            blocks = [self._find_blocks(n, block_size or BLOCK_SIZE) for n in range(len(self._files))]
        except BaseException:
            self.close()
            raise
        self.block_rows, self.block_bytes, self._offsets, self._metas, self._batches = (
            np.concatenate(parts) for parts in zip(*(found.columns for found in blocks))
        )
        self._first = np.cumsum([0] + [len(found.columns[0]) for found in blocks])
        self._pieces = {
            int(self._first[n]) + block: piece
            for n, found in enumerate(blocks)
            for block, piece in found.pieces.items()
        }
        self._noted = [bool(layout_of(footer.schema)) for footer in self._footers]
        stored = np.cumsum([0] + [len(footer.sums) for footer in self._footers])
        # Of the stored batch that each block is, or is a piece of: its number among all, and its checksum.
        self._stored = self._batches + np.repeat(stored[:-1], np.diff(self._first))
        self._sums = np.concatenate([footer.sums for footer in self._footers])[self._stored]
        self._verified = np.zeros(int(stored[-1]), np.bool_)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the files' content: the checksums of their blocks, or else a sample of their bytes."""
        return fingerprint(self._files, known=[self._content(n) for n in range(len(self._files))])

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one record batch; only the columns named, in that order."""
        number, file = self._locate(block)
        file.check()
        if block in self._pieces:
            return self._read_piece(block, self._pieces[block], columns)
        if self._footers[number].dictionaries:
            batch = self._read_with_dictionaries(number, int(self._batches[block]))
        else:
            offset = int(self._offsets[block])
            data = file.read_at(offset, int(self.block_bytes[block]))
            verify_block(file, data, offset=offset, expected=int(self._sums[block]), block=block)
            try:
                message = pa.ipc.read_message(pa.py_buffer(data))
                batch = pa.ipc.read_record_batch(message, self._footers[number].schema)
            except (pa.ArrowException, OSError, EOFError) as error:
                raise CorruptFileError(f"{file.name}: block {block} is damaged ({error})") from error
        if batch.num_rows != self.block_rows[block]:
            raise CorruptFileError(
                f"{file.name}: block {block} has {batch.num_rows} rows where {self.block_rows[block]} were expected"
            )
        if columns is None and batch.schema.names != self.schema.names:
            columns = self.schema.names
        return conform(select_columns(batch, columns, place=self.name), self.schema)

    def refine(self, rows: int, most: int) -> RefinedSource | None:
        """Return the same rows in smaller blocks, of which only the bytes are read; see `BlockSource.refine`.

        Blocks of a converted file go straight to their slots as they are, so they are cut only where ``most`` asks for it.
        None where a batch is compressed, or has dictionaries.
        """
        if all(self._noted) and int(self.block_rows.max(initial=0)) <= most:
            return None
        rows = worth_reading(self, rows, most)
        pieces: dict[int, BatchSlice] = {}
        for block in np.flatnonzero(self.block_rows > rows).tolist():
            piece = self._pieces.get(block) or self._as_piece(block)
            if piece is None:
                return None
            pieces[block] = piece

        def read(block: int, start: int, stop: int, columns: Sequence[str] | None) -> pa.RecordBatch:
            if block not in pieces:
                return self.read(block, columns)
            piece = pieces[block]
            part = replace(piece, start=piece.start + start, stop=piece.start + stop)
            return self._read_piece(block, part, columns)

        # A batch with a checksum is read as a whole once, to verify it.
        verified = int(self.block_bytes.max(initial=0)) if any(footer.summed for footer in self._footers) else 0
        return by_rows(self, rows, read, read_bytes=verified)

    def _read_piece(self, block: int, piece: BatchSlice, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Read some rows of a block."""
        number, file = self._locate(block)
        file.check()
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        self._verify_new(np.array([block]))
        return conform(read_rows(file, piece, self._footers[number].schema, wanted), self.schema)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where the rows lie, or None where a column needs decoding.

        There is a layout for one local file whose features are a `FixedSizeList<float32>` and whose label and
        weight are plain numbers, uncompressed and without nulls.
        """
        fd = self._files[0].fd if len(self._files) == 1 else None
        if fd is None or not len(self.block_rows) or self._pieces or self._footers[0].dictionaries:
            return None
        stored = StoredBatches(
            fd, self.schema, self._offsets, self.block_bytes, self._metas, self.block_rows, self._sums
        )
        return stored.layout(features, label, weight, headers=self._headers)

    def row_layout(self, fields: Fields) -> RowLayout | None:
        """Return where single rows lie, or None where they need decoding; see `penstock.blocks.row_layout`."""
        if any(
            footer.schema.names != self.schema.names or footer.schema.types != self.schema.types
            for footer in self._footers
        ):
            return None
        noted = [layout_of(footer.schema) for footer in self._footers]
        stored = StoredBlocks(
            self.name,
            self._files,
            self._footers,
            noted,
            self._first,
            offsets=self._offsets,
            metas=self._metas,
            nbytes=self.block_bytes,
            rows=self.block_rows,
            sums=self._sums,
            pieces=self._pieces,
            verify=self._verify_new,
        )
        return row_layout(stored, fields)

    def check(self) -> None:
        """Raise `DataChangedError` if a file is not the one that was opened."""
        for file in self._files:
            file.check()

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._readers.clear()

    def _headers(self, wanted: list[str]) -> list[BatchHeader]:
        """Return the headers of all blocks, or of the first and last where the middle ones must equal the first."""
        footer = self._footers[0]
        count = len(footer.offset)
        uniform = all(bool((a[:-1] == a[0]).all()) for a in (footer.meta, footer.body, self.block_rows))
        # The converter checks columns that it marks as never null; elsewhere each header must be asked.
        sure = bool(layout_of(self.schema)) and not any(self.schema.field(n).nullable for n in wanted)
        blocks = [0, count - 1] if uniform and sure and count > 2 else range(count)
        if len(blocks) < count:  # they stand for the others, which are verified as they are read
            self._verify_new(np.array(blocks))
        return [read_header(self._files[0], int(footer.offset[b]), int(footer.meta[b])) for b in blocks]

    def _verify_new(self, blocks: Int64s) -> None:
        """Verify the stored batches that blocks are, or are pieces of, the first time that something of them is read."""
        for block in blocks[~self._verified[self._stored[blocks]]].tolist():
            number, file = self._locate(block)
            batch, footer = int(self._batches[block]), self._footers[number]
            offset, nbytes = int(footer.offset[batch]), int(footer.meta[batch] + footer.body[batch])
            expected = int(self._sums[block])
            if expected and not self._verified[self._stored[block]]:
                data = file.read_at(offset, nbytes)
                verify_block(file, data, offset=offset, expected=expected, block=block)
            self._verified[self._stored[block]] = True

    def _find_blocks(self, number: int, block_size: int) -> _Blocks:
        """Return a file's blocks: its record batches, the large ones of other writers in pieces."""
        file, footer = self._files[number], self._footers[number]
        count = len(footer.offset)
        columns = (footer.meta + footer.body, footer.offset, footer.meta, np.arange(count))
        rows = self._noted_rows(file, footer)
        if rows is not None:
            return _Blocks((rows, *columns), {})
        headers = [read_header(file, int(o), int(m)) for o, m in zip(footer.offset, footer.meta)]
        rows = np.array([header.rows for header in headers], np.int64)
        can_cut = not footer.dictionaries and leading_buffers(footer.schema) is not None
        large = [can_cut and footer.body[b] > block_size and not headers[b].compressed for b in range(count)]
        if not any(large):
            return _Blocks((rows, *columns), {})
        found: list[tuple[int, ...]] = []
        pieces: dict[int, BatchSlice] = {}
        for batch, header in enumerate(headers):
            place = [int(column[batch]) for column in columns[1:]]
            if not large[batch]:
                found.append((header.rows, int(columns[0][batch]), *place))
                continue
            body = int(footer.body[batch])
            for piece in slices_of(header, int(footer.offset[batch] + footer.meta[batch]), body, block_size):
                pieces[len(found)] = piece
                size = piece.stop - piece.start
                found.append((size, max(body * size // header.rows, 1), *place))
        return _Blocks(tuple(np.array(found, np.int64).T), pieces)

    def _content(self, number: int) -> bytes | None:
        """Return what stands for a file's content, where its blocks have checksums."""
        footer = self._footers[number]
        return content_of(self._files[number], footer.at, len(footer.sums)) if footer.summed else None

    def _as_piece(self, block: int) -> BatchSlice | None:
        """Return a whole record batch as something to read parts of, or None where it has to be read at once."""
        number, file = self._locate(block)
        footer = self._footers[number]
        if footer.dictionaries or leading_buffers(footer.schema) is None:
            return None
        offset, meta = int(self._offsets[block]), int(self._metas[block])
        header = read_header(file, offset, meta)
        return None if header.compressed else BatchSlice(header, offset + meta, 0, header.rows)

    def _noted_rows(self, file: ReadAt, footer: Footer) -> Int64s | None:
        """Return the rows of each block from the converter's note, if the file is still as it was written."""
        count = len(footer.offset)
        noted = layout_of(footer.schema)
        size = noted.get("rows_per_block", 0)
        if count and noted.get("blocks") == count and size:
            last = read_header(file, int(footer.offset[-1]), int(footer.meta[-1])).rows
            if (count - 1) * size + last == noted.get("rows"):
                return np.concatenate([np.full(count - 1, size, np.int64), np.array([last], np.int64)])
        return None

    def _read_with_dictionaries(self, number: int, block: int) -> pa.RecordBatch:
        # Dictionaries stand in batches of their own, which pyarrow's reader collects; it is not thread-safe.
        with self._reader_lock:
            if number not in self._readers:
                view = pa.PythonFile(SeekableView(self._files[number]), mode="r")
                self._readers[number] = pa.ipc.open_file(view)
            try:
                return self._readers[number].get_batch(block)
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, SourceError):
                    raise
                raise CorruptFileError(f"{self._files[number].name}: block {block} is damaged ({error})") from error

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        number, file = self._locate(block)
        return str(file.name), int(self._first[number])

    def _locate(self, block: int) -> tuple[int, ReadAt]:
        require_block(block, len(self.block_rows), name=self.name)
        number = int(np.searchsorted(self._first, block, side="right")) - 1
        return number, self._files[number]
