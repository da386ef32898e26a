"""Raw reads and writes at a place of a file, whole or to the end of it, and what a failed write is told as.

One system call may do less than it was asked for: after a signal, on a nearly full disk, or past 2 GB. Nothing here keeps
a position, so that several threads may use one file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import CorruptFileError, PenstockError, WriteError

_ROOM = "make room or choose another folder"


def byte_view(array: NDArray[Any]) -> memoryview:
    """Return an array's memory as bytes; that of a copy where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_at(fd: int, view: memoryview, at: int) -> None:
    """Write all bytes of a view at a place."""
    while view:
        done = os.pwrite(fd, view, at)
        at, view = at + done, view[done:]


def read_at(fd: int, nbytes: int, at: int) -> bytes:
    """Return the bytes at a place; fewer only where the file ends.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile(buffering=0) as file:
    ...     write_at(file.fileno(), memoryview(b"penstock"), 2)
    ...     read_at(file.fileno(), 4, 0), read_at(file.fileno(), 100, 6)
    (b'\\x00\\x00pe', b'tock')
    """
    data = os.pread(fd, nbytes, at)
    while len(data) < nbytes:
        more = os.pread(fd, nbytes - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def read_into(fd: int, view: memoryview, at: int) -> int:
    """Fill a view with the bytes at a place; return how many there were, fewer only where the file ends."""
    begin = at
    while view:
        done = os.preadv(fd, [view], at)
        if not done:
            break
        at, view = at + done, view[done:]
    return at - begin


def read_array(fd: int, out: NDArray[Any], at: int, *, name: str) -> NDArray[Any]:
    """Fill a contiguous array with what this run wrote at a place of a file of that name, and return it."""
    count = read_into(fd, out.reshape(-1).view(np.uint8).data, at)
    if count < out.nbytes:
        raise CorruptFileError(f"{name} ends at byte {at + count}, before what was written there; start again")
    return out


def is_disk_full(error: BaseException) -> bool:
    """Say whether a write failed for want of room; some libraries tell it in words alone."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)


def write_error(path: str | os.PathLike[str], error: OSError, *, room: str = _ROOM) -> WriteError:
    """Return the error for a file that cannot be written; ``room`` says what to do where the disk is full."""
    why = f"the disk is full; {room}" if is_disk_full(error) else f"{error.strerror or error}; choose another folder"
    return WriteError(f"{os.fspath(path)} cannot be written: {why}")


@contextmanager
def writing(path: str | os.PathLike[str], *, room: str = _ROOM) -> Iterator[None]:
    """Raise `write_error` where the system fails to write a file."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise write_error(path, error, room=room) from error
