"""Arrays set aside on disk: written and read at any place by several threads, and gone when the work is over."""

from __future__ import annotations

import os
import threading
from typing import Any

from numpy.typing import NDArray

from penstock.closing import Closing
from penstock.errors import WriteError
from penstock.outputs import byte_view, read_array, write_at, write_error

_ROOM = "preparing needs room for about twice the data beside the model: make room or choose another folder"


class ScratchFile(Closing):
    """One file of raw bytes.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> with ScratchFile(os.path.join(folder.name, "numbers")) as spill:
    ...     at = spill.append(np.arange(5))
    ...     spill.read(at + 16, np.empty(2, np.int64)).tolist()
    [2, 3]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.size = 0
        self._lock = threading.Lock()
        try:
            self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def reserve(self, nbytes: int) -> int:
        """Set so many bytes aside, and return where they begin."""
        with self._lock:
            at, self.size = self.size, self.size + nbytes
        return at

    def append(self, *arrays: NDArray[Any]) -> int:
        """Write arrays one after another, and return where the first begins."""
        at = self.reserve(sum(array.nbytes for array in arrays))
        to = at
        for array in arrays:
            self.write(to, array)
            to += array.nbytes
        return at

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write an array's bytes at a place."""
        fd = self._open
        try:
            write_at(fd, byte_view(array), at)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def read(self, at: int, into: NDArray[Any]) -> NDArray[Any]:
        """Fill an array with the bytes at a place, and return it."""
        return read_array(self._open, into, at, name=self.path)

    def drop(self) -> None:
        """Give up what was written, also what the system has not brought to disk yet."""
        os.ftruncate(self._open, 0)
        self.size = 0

    def sync(self) -> None:
        """Wait until all is on disk."""
        try:
            os.fsync(self._open)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def close(self) -> None:
        """Close the file; it stays where it is."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @property
    def _open(self) -> int:
        if self._fd is None:
            raise WriteError(f"{self.path} is closed")
        return self._fd
