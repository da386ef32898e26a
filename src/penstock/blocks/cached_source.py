"""Blocks kept in a local file as they are first read, for sources that are slow or that others are working with.

A database is asked for each block once; later epochs come from the file, and the source is let go of as soon as all blocks
are there. The file has no name: it is gone with the process, however that ends. Blocks of one state are never mixed with
those of another: where the file cannot hold them all (`fits` tells beforehand), or the disk is full, none is kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, PackedLayout, Snapshot, Source, require_block, require_columns
from penstock.blocks.ipc import BatchHeader, read_header
from penstock.blocks.ipc_rows import BatchSlice, buffers_and_nodes, read_rows
from penstock.blocks.packed_batches import StoredBatches
from penstock.blocks.refined_source import RefinedSource, by_rows, worth_reading
from penstock.budget import show_bytes
from penstock.checksum import checksum
from penstock.errors import CorruptFileError, SourceError, UsageError
from penstock.events import log
from penstock.outputs import local_path, read_at, write_at

_HEAD = 256, 128
"""Bytes beside a block's values, at most: of its own, and for each column."""


def cached_bytes(source: BlockSource, columns: Sequence[str]) -> int:
    """Return about how many bytes these columns of a source take in a cache.

    Exact for columns of fixed width; others take what they are stored in, at most.

    Examples
    --------
    >>> from penstock.blocks.memory import TableSource
    >>> source = TableSource.of(pa.table({"x": [1.0] * 1000, "y": [1] * 1000}))
    >>> cached_bytes(source, ["x"]) - 1000 * 8
    384
    """
    require_columns(source.schema, columns, place=source.name)
    rows = int(source.block_rows.sum())
    widths = [_width(source.schema.field(name).type) for name in columns]
    values = sum(width or 0 for width in widths) * rows
    if None in widths:
        values = max(values, int(source.block_bytes.sum()))
    return int(values) + (_HEAD[0] + _HEAD[1] * len(columns)) * len(source.block_rows)


def fits(source: BlockSource, columns: Sequence[str], limit: int | None = None, *, folder: str | None = None) -> bool:
    """Whether a cache of these columns stays within a limit, and within nine tenths of the space that is free there."""
    room = 9 * shutil.disk_usage(folder or tempfile.gettempdir()).free // 10
    return cached_bytes(source, columns) <= (room if limit is None else min(room, limit))


class CachedSource(Source):
    """A source whose blocks are read once and come from a local file afterwards.

    Once every block is there, the source's ``release`` is called, if it has one, and the rows of each block are known, also where the
    source had not counted them. The source must serve one state of its data until then. Where the file outgrows its limit or the disk is full, the cache is given up with a warning, and
    all blocks come from the source again.

    Parameters
    ----------
    source : BlockSource
        Where blocks come from; it is closed with this one.
    columns : sequence of str
        The columns that are kept, and served.
    folder : str, optional
        Where the file is; the system's place for temporary ones if not given.
    limit : int, optional
        The most bytes that the file may take.
    listen : callable, optional
        Is told warnings; they are logged if there is none.

    Examples
    --------
    >>> from penstock.blocks.memory import TableSource
    >>> with CachedSource(TableSource.of(pa.table({"x": [1, 2], "y": [3, 4]})), ["y"]) as source:
    ...     source.read(0).to_pydict(), source.complete, source.read(0).to_pydict()
    ({'y': [3, 4]}, True, {'y': [3, 4]})
    """

    def __init__(
        self,
        source: BlockSource,
        columns: Sequence[str],
        *,
        folder: str | os.PathLike[str] | None = None,
        limit: int | None = None,
        listen: Callable[[str], None] | None = None,
    ) -> None:
        wanted = list(dict.fromkeys(columns))
        require_columns(source.schema, wanted, place=source.name)
        if any(pa.types.is_dictionary(source.schema.field(name).type) for name in wanted):
            raise UsageError(f"{source.name} has columns stored by dictionary, which cannot be kept block by block")
        self.inner = source
        self.name, self.exact_rows = source.name, source.exact_rows
        self.schema = pa.schema([source.schema.field(name) for name in wanted], source.schema.metadata)
        self.block_rows, self.block_bytes = source.block_rows, source.block_bytes
        self._counted = source.block_rows.copy()  # rows that were not counted are counted as they come
        self.units, self.max_open = source.units, source.max_open
        self.unit_bytes = source.unit_bytes_of(wanted)
        self.threads = source.threads
        self.nbytes = 0
        self.warnings: list[str] = []
        self._limit = limit
        self._listen = listen or log.warning
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int, int]] = {}
        self._headers: dict[int, tuple[BatchHeader, int]] = {}
        self._divisible = all(buffers_and_nodes(field.type) is not None for field in self.schema)
        self._coming: dict[int, Future[pa.RecordBatch]] = {}
        self._file = tempfile.TemporaryFile(dir=None if folder is None else local_path(folder), buffering=0)  # noqa: SIM115  # closed with the source
        self._cache = _Cache(self._file.fileno(), f"the local copy of {self.name}")
        self._end = weakref.finalize(self, self._file.close)
        self._kept = True
        self._closed = False
        self._process = os.getpid()

    @property
    def complete(self) -> bool:
        """Whether every block is in the file."""
        return self._kept and len(self._places) == len(self.block_rows)

    @property
    def fingerprint(self) -> str:
        """The data's own."""
        return self.inner.fingerprint

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block: from the file if it is there, or else from the source, once for all who ask."""
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        require_block(block, len(self.block_rows), name=self.name)
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        if self._process != os.getpid():
            return self._read_forked(block, wanted)
        with self._lock:
            place = self._places.get(block)
            kept = self._kept
            coming = self._coming.get(block)
            first = place is None and coming is None
            if first and kept:
                coming = self._coming[block] = Future()
        if place is not None:
            return self._stored(block, *place).select(wanted)
        if not kept:
            return self.inner.read(block, wanted)
        assert coming is not None  # made above
        return (self._fetch(block, coming) if first else coming.result()).select(wanted)

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in smaller blocks: of a block in the file, only the bytes of these are read.

        A block that is not there yet is fetched as a whole, once; see `BlockSource.refine`.
        """
        fetched = (1 if self.complete else 2) * int(self.block_bytes.max(initial=0))
        rows = worth_reading(self, rows, most) if self._divisible else most
        sizes, sure = self.block_rows, self.complete or self.exact_rows
        packed = self._packed_verified if sure else None  # or parts would be shares of other rows than those that came

        def read(block: int, start: int, stop: int, columns: Sequence[str] | None) -> pa.RecordBatch:
            return self._read_rows(block, start, stop, columns, counted=max(1, int(sizes[block])))

        return by_rows(self, rows, read, read_bytes=fetched, packed=packed)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where the rows lie in the file, once all blocks are there; None where a column needs decoding."""
        if not self.complete or self._closed or self._process != os.getpid():
            return None
        blocks = range(len(self.block_rows))
        at, size = (np.array([self._places[block][n] for block in blocks], np.int64) for n in range(2))
        sums = np.array([self._places[block][2] for block in blocks], np.uint64)
        headers, bodies = zip(*(self._read_header(offset) for offset in at.tolist()), strict=True)
        rows = np.array([header.rows for header in headers], np.int64)
        if not np.array_equal(rows, self.block_rows):
            return None
        metas = np.array(bodies, np.int64) - at
        stored = StoredBatches(self._file.fileno(), self.schema, at, size, metas, rows, sums)
        return stored.layout(features, label, weight, headers=lambda _: headers)

    def _packed_verified(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return what `packed` does, once every block has been verified: parts of blocks have no checksums."""
        if not self.complete:
            return None
        for block in range(len(self.block_rows)):
            self._header(block, self._places[block])
        return self.packed(features, label, weight)

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """The source's own."""
        return self.inner.snapshots

    def file_of(self, block: int) -> tuple[str, int]:
        """Return the name of the file that a block lies in, and the first block of that file."""
        return self.inner.file_of(block)

    def begin(self, epoch: int) -> None:
        """Pass it on where blocks are not kept: those that are, are of one state, which the others must be of, too."""
        if not self._kept:
            self.inner.begin(epoch)

    def check(self) -> None:
        """Raise `DataChangedError` if the data are no longer those that were opened; once all are here, they may be."""
        if not self.complete:
            self.inner.check()

    def discard(self) -> None:
        """Remove the file, and leave the source open."""
        self._closed = True
        self._end()

    def close(self) -> None:
        """Remove the file, and close the source."""
        self.discard()
        self.inner.close()

    def _fetch(self, block: int, coming: Future[pa.RecordBatch]) -> pa.RecordBatch:
        """Read a block from the source, for others who wait for it, too, and keep it."""
        try:
            batch = self.inner.read(block, self.schema.names)
            self._keep(block, batch)
        except BaseException as error:
            coming.set_exception(error)
            raise
        else:
            coming.set_result(batch)
        finally:
            with self._lock:
                self._coming.pop(block, None)
        if self.complete:
            self.block_rows, self.exact_rows = self._counted, True
            self.inner.release()
        return batch

    def _keep(self, block: int, batch: pa.RecordBatch) -> None:
        data = batch.serialize()
        with self._lock:
            at, self.nbytes = self.nbytes, self.nbytes + data.size
            if not self._kept:
                return
        found = checksum(memoryview(data), at)
        if self._limit is not None and at + data.size > self._limit:
            self._give_up(f"it would take more than the {show_bytes(self._limit)} allowed for it")
            return
        try:
            write_at(self._file.fileno(), memoryview(data), at)
        except OSError as error:
            self._give_up(f"its file cannot be written ({error.strerror or error})")
            return
        with self._lock:
            if self._kept:
                self._places[block] = (at, data.size, found)
                self._counted[block] = batch.num_rows

    def _give_up(self, reason: str) -> None:
        """Keep no blocks from here on, and give the disk back."""
        with self._lock:
            if not self._kept:
                return
            self._kept = False
            self._places.clear()
            self._headers.clear()
            os.ftruncate(self._file.fileno(), 0)
        message = f"blocks of {self.name} are no longer kept in a local file: {reason}; every epoch reads them anew"
        self.warnings.append(message)
        self._listen(message)

    def _stored(self, block: int, at: int, size: int, expected: int) -> pa.RecordBatch:
        data = read_at(self._file.fileno(), size, at)
        if len(data) < size:
            if not self._kept:  # given up since its place was looked up
                return self.inner.read(block, self.schema.names)
            raise CorruptFileError(f"the local copy of block {block} of {self.name} is cut short; start again")
        if checksum(data, at) != expected and self._kept:
            raise CorruptFileError(
                f"the local copy of block {block} of {self.name} is damaged (its checksum differs); start again"
            )
        return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self.schema)

    def _read_rows(
        self, block: int, start: int, stop: int, columns: Sequence[str] | None, *, counted: int
    ) -> pa.RecordBatch:
        """Read a run of a block's rows, of which so many were ``counted``, or guessed: then bounds are shares of those there are."""
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        with self._lock:
            place = self._places.get(block)
        if place is None or not self._divisible or self._closed:
            batch = self.read(block, wanted)
            start, stop = (bound * batch.num_rows // counted for bound in (start, stop))
            return batch.slice(start, stop - start)
        header, body = self._header(block, place)
        file = self._cache
        start, stop = (bound * header.rows // counted for bound in (start, stop))
        try:
            return read_rows(file, BatchSlice(header, body, start, stop), self.schema, wanted)
        except CorruptFileError:
            if self._kept:
                raise
            return self.inner.read(block, wanted).slice(start, stop - start)  # given up since its place was looked up

    def _header(self, block: int, place: tuple[int, int, int]) -> tuple[BatchHeader, int]:
        """Return a stored block's header, and where its values begin; the block is verified once, as its parts are of the same bytes."""
        found = self._headers.get(block)
        if found is None:
            at, size, expected = place
            file = self._cache
            if checksum(file.read_at(at, size), at) != expected and self._kept:
                raise CorruptFileError(f"{file.name} is damaged in block {block} (its checksum differs); start again")
            found = self._headers[block] = self._read_header(at)
        return found

    def _read_header(self, at: int) -> tuple[BatchHeader, int]:
        """Return the header of a block that begins at a byte of the file, and where its values begin."""
        meta = 8 + int.from_bytes(
            self._cache.read_at(at + 4, 4), "little"
        )  # the stream's mark, then the header's length
        return read_header(self._cache, at, meta), at + meta

    def _read_forked(self, block: int, wanted: list[str]) -> pa.RecordBatch:
        """Read in a process that was forked off: what was there by then from the file, which only the first writes."""
        place = self._places.get(block)
        return self.inner.read(block, wanted) if place is None else self._stored(block, *place).select(wanted)


class _Cache:
    """The file's bytes, as what reads parts of Arrow batches wants them."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name, self.size = fd, name, 0

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        data = read_at(self.fd, nbytes, offset)
        if len(data) < nbytes:
            raise CorruptFileError(f"{self.name} is cut short; start again")
        return data

    def check(self) -> None:
        """Nobody else has the file."""

    def stamp(self) -> str:
        """The file has no name, and needs none."""
        return ""

    def tag(self) -> str | None:
        """There is nothing to tell versions of it by."""
        return None

    def close(self) -> None:
        """The source closes it."""


def _width(kind: pa.DataType) -> float | None:
    """Return the bytes of a value, where all have the same."""
    if pa.types.is_fixed_size_list(kind):
        inner = _width(kind.value_type)
        return None if inner is None else inner * kind.list_size
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None
