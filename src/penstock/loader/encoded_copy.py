"""Rows that are encoded once: a scratch file keeps what a decoder made of each block, and later epochs read that.

Decoding compressed Parquet or text, and encoding its columns, takes many times as long as reading the encoded rows. `EncodedCopy`
stands in the place of a `BlockDecoder`: a block that is wanted for the first time is decoded, and its rows are appended to the file in
the layout of converted files; from then on they are read back, with their checksum. Blocks, their order and their rows are
those of the data, so that a training is the same, bit for bit, with the copy and without it.

The file is a `RowsFile`: gone with the process, however that ends, or kept for later runs. Where it cannot be written, outgrows its
limit or is damaged, it is given up with a warning, and every block comes from the data again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.budget import CacheChoice, show_bytes
from penstock.checksum import checksum_at
from penstock.errors import WriteError
from penstock.events import log
from penstock.loader import window_kernels
from penstock.loader.decode import BlockDecoder, equal_runs, rows_of_blocks
from penstock.loader.direct_reads import PAGE, aligned, open_direct
from penstock.loader.row_forms import NOTHING, FeatureForm, Slots
from penstock.loader.rows_file import RowsFile, rows_key
from penstock.outputs import local_path, read_into, write_at

# Blocks begin at multiples of this, so that their arrays are aligned.
_ALIGN = 64
# How many times the encoded rows the disk must have free.
_ROOM = 2
# Bytes that are written at once: enough to make a call worth it, and little beside what decoding holds.
_WRITTEN = 256 << 10
# Numbers that tell where a block lies.
_COLUMNS = 8


def encoded_copy(
    source: BlockSource,
    decoder: object,
    form: object,
    *,
    nbytes: int,
    cache: CacheChoice,
    folder: str | os.PathLike[str] | None,
) -> EncodedCopy | None:
    """Return a decoder that keeps encoded rows on disk, or None where that is not worth it or there is no room.

    Parameters
    ----------
    source, decoder, form
        The data, what decodes its blocks, and what becomes of them.
    nbytes : int
        About what all encoded rows take.
    cache : bool, int or Path
        Whether rows may be kept, in how many bytes at most, or in which folder for later runs.
    folder : path, optional
        Where a file for this run is; the system's place for temporary ones if not given. None where that is in memory.
    """
    # The other decoders read rows as they are stored.
    if type(decoder) is not BlockDecoder or not isinstance(form, FeatureForm) or not source.decodes or not cache:
        return None
    key = rows_key(source, form.recipe) if isinstance(cache, Path) else None
    place = cache if isinstance(cache, Path) else local_path(folder) if folder else Path(tempfile.gettempdir())
    try:
        limit = shutil.disk_usage(place).free // _ROOM
        if not isinstance(cache, bool | Path):
            limit = min(limit, cache)
        if nbytes > limit or (key is None and in_memory(place)):
            why = "which is kept in memory" if nbytes <= limit else f"where {show_bytes(limit)} may be used"
            log.info("%s: encoded rows would take %s in %s, %s", source.name, show_bytes(nbytes), place, why)
            return None
        file = RowsFile(place, key, columns=_COLUMNS, blocks=len(source.block_rows))
        return EncodedCopy(source, decoder, form, file=file, limit=limit, nbytes=nbytes)
    except OSError as error:
        log.info("%s: encoded rows cannot be kept in %s (%s)", source.name, place, error.strerror)
        return None


class EncodedCopy:
    """Decodes each block once; rows that are wanted again come from a scratch file.

    Parameters
    ----------
    source, decoder, form
        The data, what decodes its blocks, and what rows become.
    file : RowsFile
        Where rows are kept; closed with the decoder.
    limit : int
        The most bytes that it may take.
    nbytes : int
        About what it will take: a file too large for the page cache is read past it.

    Attributes
    ----------
    nbytes : int
        What the file has taken at most.
    """

    waits = False
    cached = False
    single = False

    def __init__(
        self, source: BlockSource, decoder: BlockDecoder, form: FeatureForm, *, file: RowsFile, limit: int, nbytes: int
    ) -> None:
        self._source, self._decoder, self._form, self._recipe = source, decoder, form, form.recipe
        self.thread_bytes = decoder.thread_bytes
        count = len(source.block_rows)
        self._table = np.zeros((_COLUMNS, count), np.int64) if file.table is None else file.table
        self._rows, self._entries, self._offsets, self._sizes = self._table[:4]
        self._features_at, self._label_at, self._weight_at = self._table[4:7]
        self._sums = self._table[7].view(np.uint64)
        self._there = np.full(count, file.table is not None)
        self._begun = self._there.copy()
        self._limit, self.nbytes = limit, int((self._offsets + self._sizes).max(initial=0))
        self._lock, self._local = threading.Lock(), threading.local()
        self._process, self._keeping = os.getpid(), True
        self._file = file
        self._direct = open_direct(self._file.fileno(), nbytes=nbytes)
        self._end = weakref.finalize(self, _close, self._file, self._direct)

    @property
    def together(self) -> int:
        """How many blocks a thread may decode at once."""
        return self._decoder.together

    @together.setter
    def together(self, blocks: int) -> None:
        self._decoder.together = blocks

    @property
    def complete(self) -> bool:
        """Whether every block is in the file."""
        return bool(self._there.all())

    def rows_of(self, blocks: Int64s) -> Int64s | None:
        """Return the rows of each of some blocks where all are in the file, else None."""
        return self._rows[blocks] if self._there[blocks].all() else None

    def bytes_of(self, blocks: Int64s) -> int:
        """Return what reading some blocks now fetches: from the file what is there, the rest from the data."""
        there = self._there[blocks]
        return int(self._sizes[blocks[there]].sum() + self._source.block_bytes[blocks[~there]].sum())

    def decode(self, block: int) -> Batch:
        """Return one block's rows in stored order, not scaled."""
        return self.decode_many(np.array([block]))[0]

    def decode_many(self, blocks: Int64s) -> list[Batch]:
        """Return the rows of several blocks, whose numbers ascend."""
        found: dict[int, Batch] = {}
        for block in blocks[self._there[blocks]].tolist():
            batch = self._stored(block)
            if batch is not None:
                found[block] = batch
        missing = np.array([block for block in blocks.tolist() if block not in found], np.int64)
        for at in range(0, len(missing), self.together):
            found.update(self._decoded(missing[at : at + self.together]))
        return [found[block] for block in blocks.tolist()]

    def fill(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        """Put rows of fixed width into slots: row ``i`` of block ``k`` goes to ``slots[starts[k] + i]``."""
        there = self._there[blocks]
        missing = np.flatnonzero(~there)
        if len(missing) < len(blocks):
            kept = np.flatnonzero(there)
            unread = self._fill_stored(blocks[kept], starts[kept], slots, into)
            missing = np.sort(np.append(missing, kept[unread])) if len(unread) else missing
        for at in range(0, len(missing), self.together):
            some = missing[at : at + self.together]
            for start, (_, batch) in zip(starts[some].tolist(), self._decoded(blocks[some]), strict=True):
                self._form.put(batch, slots[start : start + len(batch)], into)

    def pick(self, owner: Int64s, local: Int64s) -> Batch:
        """Return single rows, not scaled; their blocks and places in these come in ascending order."""
        return Batch.concat([self.decode(block).take(local[here]) for block, here in equal_runs(owner)])

    def pick_into(self, owner: Int64s, local: Int64s, slots: NDArray[np.uint32], into: Slots) -> None:
        """Put single rows of fixed width into slots."""
        for each in rows_of_blocks(self._source.block_rows, owner, local, slots):
            self.fill(*each, into)

    def close(self) -> None:
        """Close the file; the source stays open."""
        if self._keeping and self.complete and self._process == os.getpid():
            try:
                self._file.keep(self._table, -(-self.nbytes // _ALIGN) * _ALIGN)
            except (OSError, WriteError) as error:
                log.warning("%s: encoded rows cannot be kept for later runs: %s", self._source.name, error)
        self._there[:] = False
        self._keeping = False
        self._end()
        self._decoder.close()

    def _decoded(self, blocks: Int64s) -> list[tuple[int, Batch]]:
        """Decode blocks from the data, and keep their rows."""
        found = list(zip(blocks.tolist(), self._decoder.decode_many(blocks), strict=True))
        if not self._keeping or self._process != os.getpid():  # a forked process has the file in common with the first
            return found
        some: list[tuple[int, Batch]] = []
        held = 0
        for block, batch in found:
            if held + batch.nbytes > _WRITTEN:
                self._keep(some)
                some, held = [], 0
            some.append((block, batch))
            held += batch.nbytes
        self._keep(some)
        return found

    def _keep(self, blocks: list[tuple[int, Batch]]) -> None:
        """Append the rows of blocks that are not there yet to the file, with one write."""
        with self._lock:
            first = end = self.nbytes
            places: list[tuple[int, Batch, int]] = []
            for block, batch in blocks:
                if not self._begun[block]:
                    places.append((block, batch, end))
                    self._begun[block] = True
                    end += -(-batch.nbytes // _ALIGN) * _ALIGN
            within = end <= self._limit
            self.nbytes = end if within else first
        if not within:
            self._give_up(f"they take more than the {show_bytes(self._limit)} that there is room for")
            return
        raw = np.zeros(end - first, np.uint8)
        for block, batch, at in places:
            mine = raw[at - first : at - first + batch.nbytes]
            _lay_out(batch, mine)
            features = batch.x.nbytes
            self._rows[block], self._offsets[block], self._sizes[block] = len(batch), at, batch.nbytes
            self._entries[block] = len(batch.x.indices) if isinstance(batch.x, Csr) else 0
            self._label_at[block] = features
            self._weight_at[block] = features + (0 if batch.y is None else batch.y.nbytes)
            self._sums[block] = checksum_at(mine.ctypes.data, len(mine), at)
        try:
            write_at(self._file.fileno(), raw.data, first)
        except (OSError, ValueError) as error:
            self._give_up(f"the file cannot be written ({getattr(error, 'strerror', None) or error})")
            return
        with self._lock:
            if self._keeping:  # last: from now on others read them
                self._there[[block for block, _, _ in places]] = True

    def _give_up(self, reason: str) -> None:
        """Keep no rows from here on, and give the disk back."""
        with self._lock:
            if not self._keeping:
                return
            self._keeping = False
            self._there[:] = False
            self._file.clear()
        log.warning(
            "%s: encoded rows are no longer kept on disk: %s; every epoch encodes them anew", self._source.name, reason
        )

    def _fill_stored(self, blocks: Int64s, starts: Int64s, slots: NDArray[np.uint32], into: Slots) -> Int64s:
        """Put rows from the file into slots; return the places of the blocks that could not be read."""
        scaling, page = self._form.scaling, 1 if self._direct is None else PAGE
        status, _, _ = window_kernels.read_packed(
            self._file.fileno() if self._direct is None else self._direct,
            blocks,
            starts,
            slots,
            self._offsets,
            self._sizes,
            self._sums,
            self._rows,
            self._features_at,
            self._label_at,
            self._weight_at,
            NOTHING,
            NOTHING,
            np.empty(0, np.float64),  # labels are targets already
            NOTHING,
            1.0,
            scaling.shift,
            scaling.scale,
            into.x,
            into.y,
            into.w,
            self._staging(int(self._sizes[blocks].max(initial=0))),
            page,
            False,
        )
        if status == window_kernels.DONE:
            return np.empty(0, np.int64)
        self._give_up("the file is damaged")
        return np.arange(len(blocks))

    def _stored(self, block: int) -> Batch | None:
        """Return a block's rows from the file, in memory of their own; None where they cannot be read."""
        at, size = int(self._offsets[block]), int(self._sizes[block])
        if self._direct is None:
            raw = np.empty(size, np.uint8)
            whole, fd, lead = raw, self._file.fileno(), 0
        else:
            lead = at % PAGE
            whole, fd = aligned(lead + size), self._direct
            raw = whole[lead : lead + size]
        with suppress(OSError):
            count = read_into(fd, whole.data, at - lead)
            if count >= lead + size and int(checksum_at(raw.ctypes.data, size, np.uint64(at))) == self._sums[block]:
                return self._batch(block, raw)
        self._give_up("the file is damaged")
        return None

    def _batch(self, block: int, raw: NDArray[np.uint8]) -> Batch:
        """Return a block's bytes as rows."""
        rows, entries, recipe = int(self._rows[block]), int(self._entries[block]), self._recipe
        labels, weights = int(self._label_at[block]), int(self._weight_at[block])
        y = raw[labels : labels + 4 * rows].view(np.float32) if recipe.label is not None else None
        weight = raw[weights : weights + 4 * rows].view(np.float32) if recipe.weighted else None
        if not recipe.sparse:
            return Batch(raw[:labels].view(np.float32).reshape(rows, recipe.width or 0), y, weight)
        first = 8 * (rows + 1)
        middle = first + 4 * entries
        indices, values = raw[first:middle].view(np.uint32), raw[middle:labels].view(np.float32)
        return Batch(Csr(raw[:first].view(np.uint64), indices, values, recipe.width or 0), y, weight)

    def _staging(self, size: int) -> NDArray[np.uint8]:
        """Return this thread's memory for a block as it is stored."""
        memory: NDArray[np.uint8] | None = getattr(self._local, "memory", None)
        if memory is None or len(memory) < size + 2 * PAGE:
            memory = self._local.memory = aligned(size + PAGE)
        return memory


def _lay_out(batch: Batch, raw: NDArray[np.uint8]) -> None:
    """Write the arrays of rows one behind the other."""
    x, end = batch.x, 0
    for array in (*((x.indptr, x.indices, x.values) if isinstance(x, Csr) else (x,)), batch.y, batch.weight):
        if array is not None:
            raw[end : end + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
            end += array.nbytes


def _close(file: RowsFile, direct: int | None) -> None:
    file.close()
    if direct is not None:
        os.close(direct)


def in_memory(folder: Path) -> bool:
    """Whether what is written to a folder stays in memory, as it does on a tmpfs."""
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            if before.split()[2] == name:
                return after.split()[0] in ("tmpfs", "ramfs")
    return False
