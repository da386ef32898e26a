"""The file that encoded rows are kept in: without a name, gone with the process; or in a folder of the user's, for later runs.

A file that is kept is named by what its rows are of: the content of the data, how it is cut into blocks, and the recipe. It has the
rows of all blocks, then a table of where each block lies, and takes its name when it is complete. One that is damaged is
written anew.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.checksum import checksum
from penstock.columns.recipe import Recipe
from penstock.events import log
from penstock.outputs import Draft, read_at, write_at

_MARK = b"PenRows1"
_TAIL = 16
"""Bytes behind the table: its checksum, and the mark."""
_SUFFIX = ".rows"


def rows_key(source: BlockSource, recipe: Recipe) -> str:
    """Return a name for the encoded rows of a source: another content, cut or recipe has another name."""
    about = json.dumps([source.fingerprint, recipe.to_dict(), recipe.weighted], sort_keys=True, default=repr)
    cut = checksum(np.ascontiguousarray(source.block_rows, np.int64).view(np.uint8))
    first, second = checksum(about.encode(), cut), checksum(about.encode(), ~cut & (2**64 - 1))
    return f"{first:016x}{second:016x}"


class RowsFile:
    """A file of encoded rows, to be appended to and read from.

    Parameters
    ----------
    folder : path
        Where it is.
    key : str, optional
        The name that it is kept under; it has none if not given.
    columns : int
        How many numbers the table has for a block.
    blocks : int
        How many blocks there are.

    Attributes
    ----------
    table : array or None
        Where the blocks lie, if an earlier run kept the file: a line of ``blocks`` numbers for each column.
    """

    def __init__(self, folder: Path, key: str | None, *, columns: int, blocks: int) -> None:
        self.table: NDArray[np.int64] | None = None
        self._draft: Draft | None = None
        self._path = None if key is None else folder / f"{key}{_SUFFIX}"
        if self._path is None:
            self._fd, name = tempfile.mkstemp(dir=folder)
            os.unlink(name)
        elif self._path.exists() and self._read_table(self._path, columns, blocks):
            log.info("encoded rows are read from %s", self._path)
        else:
            self._draft = Draft(self._path)
            self._fd = os.dup(self._draft.fileno())

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._fd

    def clear(self) -> None:
        """Give the disk back: nothing of it is read any more, now or by a later run."""
        with suppress(OSError):
            if self.table is None:
                os.ftruncate(self._fd, 0)
            elif self._path is not None:
                self._path.unlink()

    def keep(self, table: NDArray[np.int64], end: int) -> None:
        """Write the table behind the rows, and give the file its name; an unnamed file, or one that was kept before, stays as it is."""
        if self._draft is None:
            return
        raw = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
        write_at(self._fd, memoryview(raw.tobytes() + checksum(raw).to_bytes(8, "little") + _MARK), end)
        self._draft.publish()

    def close(self) -> None:
        """Close it; without `keep`, nothing is left of it."""
        if self._draft is not None:
            self._draft.discard()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_table(self, path: Path, columns: int, blocks: int) -> bool:
        """Open a file that was kept; return whether it is whole."""
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        with suppress(OSError, EOFError):
            size = 8 * columns * blocks
            raw = read_at(self._fd, size + _TAIL, os.fstat(self._fd).st_size - size - _TAIL)
            if raw[-8:] == _MARK and raw[size : size + 8] == checksum(raw[:size]).to_bytes(8, "little"):
                self.table = np.frombuffer(raw[:size], np.int64).reshape(columns, blocks).copy()
                return True
        os.close(self._fd)
        log.warning("%s is damaged; its rows are encoded anew", path)
        return False
