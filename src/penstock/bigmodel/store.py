"""Pages of a model in several files, so that the last checkpoint is whole whatever happens after it.

Each page has a home in each. A page that is written goes to a side that the last checkpoint does not use; a checkpoint
syncs the files and then has the caller save which side is good and each page's checksum. Two sides are enough, unless the
pages of the best epoch are kept too (`keep_best`): a page then has a third side. Pages that were never written
take no space and no reading. Pages of models too large to be cached pass the page cache by: the pool is their cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.bigmodel.pages import DONE, NEVER, find_damage, write_pages
from penstock.budget import available_memory
from penstock.closing import Closing
from penstock.errors import CorruptFileError, ModelFileError, UsageError, WriteError
from penstock.loader.direct_reads import LEAST, PAGE, aligned
from penstock.loader.read_kernels import read_pieces
from penstock.messages import Text, Use

Int64s = NDArray[np.int64]
Blank = Callable[[Int64s, Int64s, Floats], None]
"""Fills frames with what pages hold that were never written: (pages, frames, buffer)."""

SIDES = ("pages.a", "pages.b", "pages.c")
_CODES = (0, 1, 3)
"""What stands for each side in a checkpoint; 2 is `NEVER`."""
STAGING = 1 << 20
"""Bytes that a thread joins neighbouring pages in."""
THREADS = 8
"""Requests in flight."""
_TASK = 16
"""The fewest pages that are worth a thread."""


class PageStore(Closing):
    """A model's pages on disk.

    Parameters
    ----------
    folder : path
        Where the two files are, or are made.
    pages : int
        How many pages there are.
    page_floats : int
        float32 cells in a page; its bytes are a multiple of 4,096.
    saved : mapping, optional
        What `arrays` gave at the last checkpoint; without it the model is new, and any pages there are given up.
        Where it has pages of a best epoch, these are read unless the store is writable.
    blank : callable, optional
        Fills pages that were never written; zeros if not given.
    staging : int
        Bytes that each of the reading and writing threads may join neighbouring pages in.

    Examples
    --------
    >>> import tempfile
    >>> buffer = np.zeros((2, 1024), np.float32)
    >>> with tempfile.TemporaryDirectory() as folder, PageStore(folder, pages=10, page_floats=1024) as store:
    ...     buffer[1] = 7
    ...     store.write(np.array([4]), np.array([1]), buffer)
    ...     store.read(np.array([4]), np.array([0]), buffer)
    ...     print(buffer[0, 0], store.bytes_written)
    7.0 4096
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        pages: int,
        page_floats: int,
        saved: Mapping[str, NDArray[Any]] | None = None,
        blank: Blank | None = None,
        writable: bool = True,
        staging: int = STAGING,
    ) -> None:
        if page_floats < 1 or page_floats * 4 % PAGE:
            raise UsageError(f"a page of {page_floats * 4} bytes is not a whole number of {PAGE}; choose a multiple")
        self.folder = Path(folder)
        self.pages = pages
        self.page_floats = page_floats
        self.requests = self.bytes_read = self.bytes_written = 0
        self._blank = blank or _zeros
        self._room = max(staging, page_floats * 4)
        self._sides = np.full(pages, NEVER, np.uint8)
        self._sums = np.zeros(pages, np.uint64)
        self._best: tuple[NDArray[np.uint8], NDArray[np.uint64]] | None = None
        if saved is not None:
            self._restore(saved)
            if not writable:
                self.show_best()
        self._good = self._sides.copy()
        self._local = threading.local()
        self._fds: list[int] = []
        if saved is None and writable:
            (self.folder / SIDES[2]).unlink(missing_ok=True)
        flags = (os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY) | (os.O_TRUNC if saved is None else 0)
        size = pages * self.page_bytes
        # What the cache can hold is left to it; the pool of a larger model would only be copied there.
        if hasattr(os, "O_DIRECT") and size >= max(LEAST, available_memory() // 2):
            flags |= os.O_DIRECT
        try:
            third = (self.folder / SIDES[2]).exists() or (self._sides == _CODES[2]).any()
            for name in SIDES[: 3 if third else 2]:
                self._fds.append(_opened(self.folder / name, flags))
        except OSError as error:
            self.close()
            raise ModelFileError(f"cannot open {error.filename}: {error.strerror}; is the model whole?") from error
        self._flags = flags
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-pages")

    @property
    def page_bytes(self) -> int:
        """Bytes in a page."""
        return self.page_floats * 4

    def read(self, pages: Int64s, frames: Int64s, buffer: Floats) -> None:
        """Bring pages into frames of a buffer, in the files' order, with several requests in flight.

        Raises
        ------
        CorruptFileError
            A page is not what was written, or is not there; it is named.
        """
        order = np.argsort(pages)
        pages, frames = pages[order], frames[order]
        sides = self._sides[pages]
        never = sides == NEVER
        if never.any():
            self._blank(pages[never], frames[never], buffer)
        for side, fd in zip(_CODES, self._fds):
            here = sides == side
            self._in_parts(self._read_some, fd, pages[here], frames[here], buffer)
        self.requests += len(pages) - int(never.sum())
        self.bytes_read += (len(pages) - int(never.sum())) * self.page_bytes

    def write(self, pages: Int64s, frames: Int64s, buffer: Floats) -> None:
        """Write frames as pages, in the files' order, each to a side that neither the last checkpoint nor the best epoch uses.

        Raises
        ------
        WriteError
            The disk is full, say; the page is named, and the last checkpoint is whole.
        """
        order = np.argsort(pages)
        pages, frames = pages[order], frames[order]
        sides = self._free_sides(pages)
        for side, fd in zip(_CODES, self._fds):
            here = sides == side
            self._in_parts(self._write_some, fd, pages[here], frames[here], buffer)
        self._sides[pages] = sides
        self.requests += len(pages)
        self.bytes_written += len(pages) * self.page_bytes

    def sync(self) -> None:
        """Have all that was written reach the disk."""
        for fd in self._fds:
            try:
                os.fsync(fd)
            except OSError as error:
                raise WriteError(f"cannot sync the pages in {self.folder}: {error.strerror}") from error

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the caller saves to make a checkpoint, after `sync`: each page's side and checksum."""
        found: dict[str, NDArray[Any]] = {"pages.side": self._sides.copy(), "pages.checksum": self._sums.copy()}
        if self._best is not None:
            found |= {"best.side": self._best[0], "best.checksum": self._best[1]}
        return found

    def keep_best(self) -> None:
        """Take note that the pages as they are now, all written, are the best so far: they will not be written over."""
        self._best = (self._sides.copy(), self._sums.copy())

    def show_best(self) -> None:
        """Have `read` give the pages of the best epoch, where they are kept; nothing may be written afterwards."""
        if self._best is not None:
            self._sides, self._sums = self._best[0].copy(), self._best[1].copy()

    def committed(self) -> None:
        """Take note that `arrays` are saved: what was written up to then will not be written over."""
        np.copyto(self._good, self._sides)

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.shutdown()
        while self._fds:
            os.close(self._fds.pop())

    def _restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        sides, sums = saved.get("pages.side"), saved.get("pages.checksum")
        if sides is None or sums is None or sides.shape != (self.pages,) or sums.shape != (self.pages,):
            raise ModelFileError(
                f"{self.folder}: its state does not tell of {self.pages} pages; it is not a whole model"
            )
        self._sides[:], self._sums[:] = sides, sums
        if "best.side" in saved:
            self._best = (np.array(saved["best.side"], np.uint8), np.array(saved["best.checksum"], np.uint64))

    def _free_sides(self, pages: Int64s) -> NDArray[np.uint8]:
        """Return for each page the first side that is neither in the last checkpoint nor of the best epoch."""
        kept = [self._good[pages]] if self._best is None else [self._good[pages], self._best[0][pages]]
        found = np.full(len(pages), _CODES[-1], np.uint8)
        for side in reversed(_CODES[:-1]):
            found[np.logical_and.reduce([each != side for each in kept])] = side
        if len(self._fds) < len(SIDES) and (found == _CODES[-1]).any():
            name = self.folder / SIDES[-1]
            try:
                self._fds.append(_opened(name, self._flags))
            except OSError as error:
                raise WriteError(f"cannot make {name}: {error.strerror}; the last checkpoint is whole") from error
        return found

    def _in_parts(
        self,
        work: Callable[[int, Int64s, Int64s, Floats], None],
        fd: int,
        pages: Int64s,
        frames: Int64s,
        buffer: Floats,
    ) -> None:
        """Work on runs of pages in several threads; all have ended when this returns or raises."""
        size = max(_TASK, -(-len(pages) // (2 * THREADS)))
        if len(pages) <= _TASK:
            if len(pages):
                work(fd, pages, frames, buffer)
            return
        tasks = [
            self._pool.submit(work, fd, pages[at : at + size], frames[at : at + size], buffer)
            for at in range(0, len(pages), size)
        ]
        errors = [task.exception() for task in tasks]
        for error in errors:
            if error is not None:
                raise error

    def _read_some(self, fd: int, pages: Int64s, frames: Int64s, buffer: Floats) -> None:
        at, sizes = pages * self.page_bytes, np.full(len(pages), self.page_bytes, np.int64)
        to = buffer.ctypes.data + frames * self.page_bytes
        staging = self._staging()
        status, k, _ = read_pieces(fd, at, sizes, to, 0, staging.ctypes.data, self._room, PAGE)
        if status != DONE:
            raise self._unreadable(fd, int(pages[k]))
        damaged = int(find_damage(_words(buffer), pages, frames, self._sums))
        if damaged >= 0:
            name = self.folder / SIDES[self._fds.index(fd)]
            raise CorruptFileError(
                f"page {int(pages[damaged])} of {name} is not what was written there (its checksum differs): unless a"
                " training is running in that folder, the file or the disk is damaged; restore it from a copy, or train anew"
            )

    def _write_some(self, fd: int, pages: Int64s, frames: Int64s, buffer: Floats) -> None:
        staging = self._staging()
        status, page = write_pages(
            fd, pages, frames, _words(buffer), buffer.ctypes.data, self._sums, staging.ctypes.data, self._room
        )
        if status != DONE:
            raise self._unwritable(fd, int(page), buffer[frames[np.searchsorted(pages, page)]])

    def _staging(self) -> NDArray[np.uint8]:
        staging: NDArray[np.uint8] | None = getattr(self._local, "staging", None)
        if staging is None:
            staging = self._local.staging = aligned(self._room)
        return staging

    def _unreadable(self, fd: int, page: int) -> CorruptFileError:
        name = self.folder / SIDES[self._fds.index(fd)]
        try:
            staging = self._staging()[: self.page_bytes]
            got = os.preadv(fd, [staging.data], page * self.page_bytes)
            why = f"it has {got} bytes where {self.page_bytes} should be"
        except OSError as error:
            why = error.strerror or str(error)
        return CorruptFileError(
            f"cannot read page {page} of {name}: {why}; restore the folder from a copy, or train anew"
        )

    def _unwritable(self, fd: int, page: int, content: Floats) -> WriteError:
        name = self.folder / SIDES[self._fds.index(fd)]
        staging = self._staging()[: self.page_bytes]
        staging[:] = content.view(np.uint8)
        try:
            os.pwrite(fd, staging.data, page * self.page_bytes)
            why = "the system would not say why"
        except OSError as error:
            why = error.strerror or str(error)
        return WriteError(
            f"cannot write page {page} of {name}: {why}",
            fixes=[Text("the last checkpoint is whole: make room, then go on with ", Use("resume", True))],
        )


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except OSError:
        direct = getattr(os, "O_DIRECT", 0)
        if not flags & direct:
            raise
        return os.open(path, flags & ~direct, 0o666)  # a file system, such as tmpfs, that has no direct reads


def _words(buffer: Floats) -> NDArray[np.uint64]:
    return buffer.view(np.uint64)


def _zeros(pages: Int64s, frames: Int64s, buffer: Floats) -> None:
    buffer[frames] = 0
