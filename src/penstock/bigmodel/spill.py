"""Arrays set aside on disk: written and read at any place by several threads, and gone when the work is over."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.closing import Closing
from penstock.errors import CorruptFileError, WriteError


class Spill(Closing):
    """One file of raw bytes.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Spill(os.path.join(folder.name, "numbers")) as spill:
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
            raise self._failure(error) from error

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
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        try:
            while view:
                done = os.pwrite(self._open, view, at)
                at += done
                view = view[done:]
        except OSError as error:
            raise self._failure(error) from error

    def read(self, at: int, into: NDArray[Any]) -> NDArray[Any]:
        """Fill an array with the bytes at a place, and return it."""
        view = into.reshape(-1).view(np.uint8).data
        while view:
            done = os.preadv(self._open, [view], at)
            if not done:
                raise CorruptFileError(f"{self.path} ends at byte {at}, before what was written there; start again")
            at += done
            view = view[done:]
        return into

    def drop(self) -> None:
        """Give up what was written, also what the system has not brought to disk yet."""
        os.ftruncate(self._open, 0)
        self.size = 0

    def sync(self) -> None:
        """Wait until all is on disk."""
        try:
            os.fsync(self._open)
        except OSError as error:
            raise self._failure(error) from error

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

    def _failure(self, error: OSError) -> WriteError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return WriteError(
                f"{self.path} cannot be written: the disk is full; preparing needs room for about twice the data beside"
                " the model: make room or choose another folder"
            )
        return WriteError(f"{self.path} cannot be written: {error.strerror or error}; choose a folder that can be")
