"""The pages in use: frames in memory, and which page each holds.

A page that is acquired is pinned until it is released; what must go to make room for others is chosen by a clock that
spares pages met often, so that pages met once pass through without driving the hot ones out. Used by one thread.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.bigmodel.pages import note_checksums, pin, unpin, victims
from penstock.bigmodel.store import Int64s, PageStore
from penstock.budget import show_bytes
from penstock.errors import BudgetError
from penstock.loader.direct_reads import aligned

_HOTTEST = 7
"""How often a page met time and again is passed by before it may go."""


class PagePool:
    """Frames for the pages in use.

    Parameters
    ----------
    store : PageStore
        Where pages come from and go back to.
    memory : int
        Bytes that the frames may take.
    beside : int
        Cells of float32 to have behind the frames, for whoever works on these.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, PageStore(folder, pages=100, page_floats=1024) as store:
    ...     pool = PagePool(store, memory=10 * 4096)
    ...     pool.acquire(np.array([3, 70]))
    ...     pool.buffer[pool.frame_of[70], 5] = 1.5
    ...     pool.release(np.array([3, 70]))
    ...     (len(pool.buffer), pool.hits, pool.misses)
    (10, 0, 2)
    """

    def __init__(self, store: PageStore, *, memory: int, beside: int = 0) -> None:
        self.store = store
        frames = min(store.pages, memory // store.page_bytes)
        if frames < 1:
            raise BudgetError(
                f"{show_bytes(memory)} cannot hold one page of {show_bytes(store.page_bytes)}; give more memory to the model"
            )
        self.whole = frames >= store.pages
        self.hits = self.misses = 0
        nbytes = frames * store.page_bytes + 4 * beside
        self.arena: Floats = aligned(nbytes)[:nbytes].view(np.float32)
        """All cells: those of the frames, then those beside them."""
        self.buffer: Floats = self.arena[: frames * store.page_floats].reshape(frames, store.page_floats)
        self.frame_of = np.full(store.pages, -1, np.int32)
        self._page_in = np.full(frames, -1, np.int64)
        self._pins = np.zeros(frames, np.int32)
        self._dirty = np.zeros(frames, np.bool_)
        self._heat = np.zeros(frames, np.uint8)
        self._hand = 0
        self.room = frames
        """Frames that are not pinned."""
        if self.whole:
            self._bring_all()

    def reload(self) -> None:
        """Forget all pages, none of which is in use: what the store has now is read anew."""
        self._dirty[:] = False
        if self.whole:
            self._bring_all()
        else:
            self.frame_of[:] = -1
            self._page_in[:] = -1
            self._heat[:] = 0

    def _bring_all(self) -> None:
        self.frame_of[:] = np.arange(len(self._page_in))
        self._page_in[:] = np.arange(len(self._page_in))
        self.store.read(self._page_in, self._page_in, self.buffer)
        self._sums = self._checksums()

    @property
    def pinned(self) -> bool:
        """Whether any page is in use."""
        return self.room < len(self._pins)

    def acquire(self, pages: Int64s) -> None:
        """Pin distinct pages, after reading those that are not here.

        Raises
        ------
        BudgetError
            There are more than the frames that are not pinned; none is then acquired.
        """
        if not self.try_acquire(pages, fresh=len(self._pins)):
            raise BudgetError(
                f"{len(pages)} pages of {show_bytes(self.store.page_bytes)} are wanted at once where {self.room} of the"
                f" pool's {len(self._pins)} frames are free; give more memory to the model"
            )

    def try_acquire(self, pages: Int64s, *, fresh: int) -> bool:
        """Pin distinct pages if there is room for them and at most ``fresh`` have to be read; return whether it was done."""
        missing = np.empty(len(pages), np.int64)
        count, taken = pin(pages, self.frame_of, self._pins, self._heat, np.uint8(_HOTTEST), missing)
        if count > fresh or count > self.room - taken:
            unpin(pages, self.frame_of, self._pins, self._dirty, False)
            return False
        self.room -= taken
        self.hits += len(pages) - count
        if count:
            try:
                self._bring(missing[:count])
            except BaseException:
                self.room += unpin(pages, self.frame_of, self._pins, self._dirty, False)
                raise
        return True

    def _bring(self, pages: Int64s) -> None:
        frames = np.empty(len(pages), np.int64)
        self._hand = int(victims(len(pages), self._page_in, self._pins, self._heat, self._hand, frames))
        leaving = frames[self._dirty[frames]]
        try:
            if len(leaving):
                self.store.write(self._page_in[leaving], leaving, self.buffer)
                self._dirty[leaving] = False
            left = self._page_in[frames]
            self.frame_of[left[left >= 0]] = -1
            self._page_in[frames] = -1
            # Read in the pages' order into the frames' order: neighbours on disk are then neighbours here.
            pages, frames = np.sort(pages), np.sort(frames)
            self.store.read(pages, frames, self.buffer)
        except BaseException:
            self._pins[frames] = 0
            raise
        self.room -= len(frames)
        self.frame_of[pages] = frames
        self._page_in[frames] = pages
        self._heat[frames] = 0
        self._pins[frames] = 1
        self.misses += len(pages)

    def release(self, pages: Int64s, *, dirty: bool = True) -> None:
        """Unpin pages, which were changed unless said otherwise."""
        self.room += unpin(pages, self.frame_of, self._pins, self._dirty, dirty)

    def flush(self) -> None:
        """Write all changed pages; they stay."""
        if self.whole:  # nobody says which were changed, since nothing had to be acquired
            sums = self._checksums()
            self._dirty |= sums != self._sums
            self._sums = sums
        frames = np.flatnonzero(self._dirty)
        if len(frames):
            self.store.write(self._page_in[frames], frames, self.buffer)
            self._dirty[frames] = False

    def _checksums(self) -> NDArray[np.uint64]:
        sums = np.empty(len(self._page_in), np.uint64)
        note_checksums(self.buffer.view(np.uint64), self._page_in, sums)
        return sums
