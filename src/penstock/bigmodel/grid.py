"""Where users and items lie in the pages of a factorisation, and in which order ratings visit them.

A record is a user's or an item's factors, its bias and padding; users fill the first pages, items the rest. Pages are
cut into user parts and item parts, and a bucket is the ratings of one user part with one item part. Buckets are chosen
so that the pages of one fit in the pool while the next is read. An epoch visits them in a random order in which
neighbours share a part; going to and fro would read as much, and parts, being by frequency, would not be mixed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.store import Int64s
from penstock.budget import SMALL, Budget, show_bytes
from penstock.errors import BudgetError, UsageError
from penstock.loader.plan import round_up
from penstock.messages import Text
from penstock.sgd.factor import ABSENT

PAGE_BYTES = 65_536
_SECTOR = 1024
"""Numbers in 4,096 bytes: a page is a whole number of these."""
_MOST_RECORDS = 4096
_BUCKET = 4
"""What a bucket costs beside its pages, counted in pages."""
BLOCK = 4096
"""The most ratings in a block: what is read at once, and what is shuffled between epochs as one."""
CHUNK_BYTES = 52
"""What a rating of a piece takes in all: as read, its place, and twice as slots."""
MOST_ROWS = 1 << 18
"""Ratings in a piece: enough that its pages are worth sorting, few enough that its slots stay in the cache."""
_LEAST_ROWS = 8192
_LEAST_PAGES = 4
"""Pages that the memory must have room for: with fewer, an epoch reads the model over and over."""
_SMALL_PAGES = 128
"""Pages that the memory has room for, at least, unless they would be smaller than 4,096 bytes."""


@dataclass(frozen=True, slots=True)
class FactorLayout:
    """The places of users and items.

    Examples
    --------
    >>> layout = FactorLayout.of(rank=100, users=1000, items=50)
    >>> layout.width, layout.page_records, layout.user_pages, layout.pages, layout.first_item
    (104, 128, 8, 9, 1024)
    """

    rank: int
    users: int
    items: int
    width: int
    page_records: int

    @classmethod
    def of(cls, rank: int, *, users: int, items: int, page_bytes: int = PAGE_BYTES) -> FactorLayout:
        """Choose the records of a page: as many as fit in ``page_bytes``, but not so few that a fifth is padding."""
        choices = [1 << power for power in range(_MOST_RECORDS.bit_length())]
        choices = [n for n in choices if 4 * _width(rank, n) <= 5 * _width(rank, _MOST_RECORDS)]
        records = max((n for n in choices if 4 * n * _width(rank, n) <= page_bytes), default=choices[0])
        layout = cls(rank, users, items, _width(rank, records), records)
        if layout.pages * records >= int(ABSENT):
            raise UsageError(
                f"{users} users and {items} items are more than the {int(ABSENT) - 1} that a model can hold"
            )
        return layout

    @property
    def shift(self) -> int:
        """The power of two of the records in a page."""
        return self.page_records.bit_length() - 1

    @property
    def page_floats(self) -> int:
        """Numbers in a page."""
        return self.page_records * self.width

    @property
    def user_pages(self) -> int:
        """Pages of users, which come first."""
        return -(-self.users // self.page_records)

    @property
    def item_pages(self) -> int:
        return -(-self.items // self.page_records)

    @property
    def pages(self) -> int:
        return self.user_pages + self.item_pages

    @property
    def first_item(self) -> int:
        return self.user_pages * self.page_records

    @property
    def nbytes(self) -> int:
        """Bytes of the whole model."""
        return self.pages * self.page_floats * 4

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Grid:
    """User parts by item parts, in pages.

    Parameters
    ----------
    layout : FactorLayout
        Where the records lie.
    user_part, item_part : int
        Pages in a part; the last part may have fewer.
    by_items : bool
        Whether an item part stays while the user parts pass, rather than the other way round.

    Examples
    --------
    >>> layout = FactorLayout.of(rank=1000, users=6000, items=4000)
    >>> grid = Grid.plan(layout, frames=layout.pages // 4)
    >>> grid.user_parts, grid.item_parts, round(grid.page_reads() / layout.pages, 1)
    (25, 2, 1.6)
    >>> Grid.plan(layout, frames=layout.pages).buckets
    1
    """

    layout: FactorLayout
    user_part: int
    item_part: int
    by_items: bool = False

    @classmethod
    def plan(cls, layout: FactorLayout, *, frames: int) -> Grid:
        """Choose the grid that reads the fewest pages an epoch with so many frames.

        A bucket's parts and the moving part of the next bucket must fit together. When the part that stays is exchanged
        at last, the next one is waited for: room for two of them would make parts smaller and epochs read more.
        """
        users, items = layout.user_pages, layout.item_pages
        if layout.pages <= frames:
            return cls(layout, users, items)
        best: tuple[float, Grid] | None = None
        for by_items in (False, True):
            outer, inner = (items, users) if by_items else (users, items)
            moving = np.arange(1, inner + 1)  # the size of an inner part
            more = moving < inner
            staying = np.where(more, frames - 2 * moving, (frames - moving) // 2)
            staying = np.where(outer + moving * (1 + more) <= frames, outer, np.minimum(staying, outer))
            possible = staying >= 1
            if not possible.any():
                continue
            staying, moving = staying[possible], moving[possible]
            costs = _reads(outer, inner, staying, moving) + _BUCKET * _parts(outer, staying) * _parts(inner, moving)
            at = int(np.argmin(costs))
            sizes = int(staying[at]), int(moving[at])
            grid = cls(layout, *(sizes[::-1] if by_items else sizes), by_items)
            if best is None or costs[at] < best[0]:
                best = float(costs[at]), grid
        if best is None:
            page = layout.page_floats * 4
            raise BudgetError(
                f"{frames} pages of {show_bytes(page)} fit in the memory given, where a user's, an item's and the one"
                f" that is needed next must; give at least {show_bytes(4 * page)} in all, or choose a lower rank"
            )
        return best[1]

    @property
    def user_parts(self) -> int:
        """How many parts the users have."""
        return -(-self.layout.user_pages // self.user_part)

    @property
    def item_parts(self) -> int:
        """How many parts the items have."""
        return -(-self.layout.item_pages // self.item_part)

    @property
    def buckets(self) -> int:
        """How many buckets there are."""
        return self.user_parts * self.item_parts

    def page_reads(self) -> float:
        """Return about how many pages an epoch reads, if it begins with none."""
        users, items = self.layout.user_pages, self.layout.item_pages
        if self.by_items:
            return float(_reads(items, users, self.item_part, self.user_part))
        return float(_reads(users, items, self.user_part, self.item_part))

    def bucket_of(self, users: NDArray[np.uint32], items: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the bucket of each pair of records; one that is absent counts as of the first part."""
        shift, first = np.uint32(self.layout.shift), np.uint32(self.layout.user_pages)
        mine = np.where(users == ABSENT, 0, (users >> shift) // np.uint32(self.user_part))
        other = np.where(items == ABSENT, 0, ((items >> shift) - first) // np.uint32(self.item_part))
        return (mine * np.uint32(self.item_parts) + other).astype(np.uint32)

    def order(self, chance: np.random.Generator | None) -> Int64s:
        """Return the buckets in the order in which an epoch visits them; for None, the same to and fro every time.

        All parts come in random order, but those that pass begin with the one that was there last.
        """
        outer, inner = self.user_parts, self.item_parts
        if self.by_items:
            outer, inner = inner, outer
        rows, across = np.arange(outer), np.arange(inner)
        if chance is not None:
            rows, across = chance.permutation(outer), chance.permutation(inner)
        path = []
        for row in rows:
            path.append(across * self.item_parts + row if self.by_items else row * self.item_parts + across)
            across = across[::-1]
            if chance is not None:
                across = np.concatenate([across[:1], chance.permutation(across[1:])])
        return np.concatenate(path).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        return {"user_part": self.user_part, "item_part": self.item_part, "by_items": self.by_items}


@dataclass(frozen=True, slots=True)
class Shares:
    """How the memory is divided: the ratings of a piece (``rows``), and the bytes for pages (``pool``)."""

    rows: int
    pool: int

    @classmethod
    def of(cls, memory: int) -> Shares:
        """Divide the memory: up to an eighth for ratings, but never fewer than a minimum, the rest for pages."""
        rows = min(MOST_ROWS, memory // 8 // CHUNK_BYTES)
        return cls(max(_LEAST_ROWS, rows), memory - rows * CHUNK_BYTES)

    @property
    def block(self) -> int:
        """Ratings in a block of the file: several to a piece, so that pieces differ between epochs."""
        return max(64, min(BLOCK, self.rows // 8))


def model_memory(memory: str | int, rank: int, *, users: int, items: int) -> tuple[int, Text | None]:
    """Return the memory for a model: a share is of its own size, and raised where it is too little, with what to say of that."""
    budget = Budget.parse(memory)
    asked = budget.resolve((users + items) * (rank + 1) * 4)
    if budget.share is not None:
        try:
            layout = planned(rank, users, items, memory=asked)
            Grid.plan(layout, frames=min(layout.pages, Shares.of(asked).pool // (layout.page_floats * 4)))
        except BudgetError:
            return SMALL, budget.raised_notice("the model", asked=asked)
    return asked, None


def least_bytes(layout: FactorLayout) -> int:
    """Return the bytes of the fewest pages that factors can be learned and read with."""
    return min(_LEAST_PAGES, layout.pages) * layout.page_floats * 4


def planned(rank: int, users: int, items: int, *, memory: int) -> FactorLayout:
    """Return where users and items lie, in pages that the memory has room for.

    Raises `BudgetError` where the memory is too little even for the smallest pages.
    """
    layout = FactorLayout.of(rank, users=users, items=items, page_bytes=min(PAGE_BYTES, memory // _SMALL_PAGES))
    least = least_bytes(layout)
    if Shares.of(memory).pool < least:
        raise BudgetError(
            f"{show_bytes(memory)} of memory are too little for {users:,} users and {items:,} items of rank {rank} in pages of"
            f" {show_bytes(layout.page_floats * 4)}; the smallest that works is {round_up(-(-least * 8 // 7))}"
        )
    return layout


def _width(rank: int, records: int) -> int:
    """Return the numbers in a record for so many records to fill a page: the factors and the bias, rounded up."""
    step = max(4, _SECTOR // records)
    return -(-(rank + 1) // step) * step


def _parts(pages: Any, size: Any) -> Any:
    return -(-pages // size)


def _reads(outer: Any, inner: Any, staying: Any, moving: Any) -> Any:
    """Return the pages read in an epoch: outer ones once, inner ones with every outer part but for a shared one."""
    rows, across = _parts(outer, staying), _parts(inner, moving)
    return outer + inner * (1 + (rows - 1) * (across - 1) / across)
