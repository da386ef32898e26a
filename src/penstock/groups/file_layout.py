"""Files of grouped rows whose rows come later, in any order: headers and footers are written first, and leave holes.

How many rows each group has tells where in which file each of its rows will lie. Arrow itself writes the files, into a sink
that keeps everything but the values; room for these is set aside on the disk, so that one too small is told at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.blocks.base import Int64s
from penstock.groups.grouped import padded
from penstock.outputs import is_disk_full, read_into, write_at, writing


class HollowFile:
    """A file for Arrow to write to that passes over values: those of ``blank``, which stand for rows to come.

    What the file holds already stays, if it is as long as it should be.
    """

    def __init__(self, path: Path, blank: NDArray[np.float32]) -> None:
        self.closed = False
        self.holes = self._at = 0
        self._blank = blank.ctypes.data
        self._path = path
        self._before = path.stat().st_size if path.exists() else -1
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._held: list[bytes] = []

    @property
    def whole(self) -> bool:
        """Whether the file was there before, as long as it is now, and nothing was written over its rows."""
        return self._at == self._before and self.holes > 0

    def tell(self) -> int:
        """Return where the next bytes go."""
        return self._at

    def write(self, data: bytes | pa.Buffer) -> int:
        """Write bytes, unless they are blank."""
        if isinstance(data, pa.Buffer) and data.address == self._blank:
            self.holes += 1
            self._flush()
        else:
            self._held.append(bytes(data))
        self._at += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: all is written at the next hole."""

    def close(self) -> None:
        """End the file, with room for all that it will hold."""
        if self.closed:
            return
        self.closed = True
        try:
            self._flush()
            if self._before > self._at:
                os.ftruncate(self._fd, self._at)
            _reserve(self._fd, self._at)
        finally:
            os.close(self._fd)

    def _flush(self) -> None:
        data = b"".join(self._held)
        self._held = []
        if data:
            write_at(self._fd, memoryview(data), self._at - len(data))


@dataclass(frozen=True, slots=True)
class Laid:
    """Where rows will lie.

    Attributes
    ----------
    paths : list of Path
        The files.
    file, at, rows : int64 array
        Of each block: its file, where its values begin, and how many rows it has.
    first : int64 array
        Of each group: its first block.
    fits : int
        The rows of a block that is full.
    whole : bool
        Whether all files were there before, so that rows already in them are still there.
    """

    paths: Sequence[Path]
    file: Int64s
    at: Int64s
    rows: Int64s
    first: Int64s
    fits: int
    whole: bool

    def put(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch) -> None:
        """Write rows that are sorted by group, to where they lie.

        Parameters
        ----------
        groups, starts, counts : int64 array
            The groups in ascending order, the number within each of the first of the rows, and how many there are.
        rows : Batch
            The rows of all these groups, dense.
        """
        self._move(groups, starts, counts, rows, os.O_WRONLY)

    def read_back(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch) -> None:
        """Read rows from where `put` wrote them, into others of the same size."""
        self._move(groups, starts, counts, rows, os.O_RDONLY)

    def _move(self, groups: Int64s, starts: Int64s, counts: Int64s, rows: Batch, mode: int) -> None:
        # A group's rows may fall into several of its blocks: each such piece is written by itself.
        pieces = (starts + counts - 1) // self.fits - starts // self.fits + 1
        run = np.repeat(np.arange(len(groups)), pieces)
        block = starts[run] // self.fits + np.arange(len(run)) - (np.cumsum(pieces) - pieces)[run]
        low = np.maximum(starts[run], block * self.fits)
        high = np.minimum((starts + counts)[run], (block + 1) * self.fits)
        source = (np.cumsum(counts) - counts)[run] + low - starts[run]
        low, high = low - block * self.fits, high - block * self.fits
        block += self.first[groups][run]
        places = self.at[block]
        files = self.file[block]
        # One open file at a time, since there may be thousands.
        for number in np.unique(files).tolist():
            here = slice(*np.searchsorted(files, [number, number + 1]))
            with writing(self.paths[number]):
                fd = os.open(self.paths[number], mode | os.O_CLOEXEC)
                try:
                    move = write_at if mode == os.O_WRONLY else _read
                    within = places[here], self.rows[block[here]], source[here], low[here], high[here]
                    self._move_pieces(fd, rows, *within, move)
                finally:
                    os.close(fd)

    def _move_pieces(
        self,
        fd: int,
        rows: Batch,
        at: Int64s,
        block_rows: Int64s,
        source: Int64s,
        low: Int64s,
        high: Int64s,
        move: Callable[[int, memoryview, int], None],
    ) -> None:
        """Move pieces: rows from ``source`` on are those from ``low`` to ``high`` of the block at ``at``."""
        for column in (rows.x, rows.y, rows.weight):
            if not isinstance(column, np.ndarray):
                continue
            size = column[:1].nbytes
            view = column.reshape(-1).view(np.uint8).data
            begins, ends = source * size, (source + high - low) * size
            for begin, end, place in zip(begins.tolist(), ends.tolist(), (at + low * size).tolist()):
                move(fd, view[begin:end], place)
            at = at + padded(block_rows * size)


def _read(fd: int, view: memoryview, at: int) -> None:
    if read_into(fd, view, at) < len(view):
        raise OSError(errno.EIO, "the file is cut short")


def _reserve(fd: int, nbytes: int) -> None:
    """Set room aside on the disk, where the system can."""
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except (AttributeError, OSError) as error:
        if is_disk_full(error):
            raise
        os.ftruncate(fd, nbytes)
