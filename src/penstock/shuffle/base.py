"""The contract of every shuffling strategy.

An order is a pure function of (block sizes, rows that may be held, seed, epoch, rank, world) to an iterator
of windows. Nothing is read here and nothing proportional to the data set's rows is stored: a window names
its blocks and a key from which the loader derives the places of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.messages import Given

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an order may know of the data and of its place in the job.

    ``held_rows`` is how many rows one window may hold. ``units`` is the source's, see `BlockSource`; each unit
    that is half read keeps a decoder in memory, so at most ``open_units`` are.
    """

    block_rows: Int64s
    held_rows: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    units: Int64s | None = None
    open_units: int = 32

    def __post_init__(self) -> None:
        if self.open_units < 1:
            raise UsageError(
                ": at least one unit has to be open to be read", option="open_units", value=self.open_units
            )
        if not 0 <= self.rank < self.world:
            raise UsageError(
                "of ", Given("world", self.world), ": ranks count from 0 to world - 1", option="rank", value=self.rank
            )
        if self.held_rows < 1:
            raise UsageError(
                ": a window holds at least one row",
                option="held_rows",
                value=self.held_rows,
                fixes=["give more memory"],
            )
        if self.units is not None and len(self.units) != len(self.block_rows):
            raise UsageError(
                f"units names {len(self.units)} blocks and block_rows {len(self.block_rows)}; give one unit a block"
            )

    @property
    def rows(self) -> int:
        """Rows of the whole data set, over all ranks."""
        return int(self.block_rows.sum())


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks held together. ``key`` places their rows at random; without one they keep the stored order.

    Rows count through the blocks in the order listed; with a key, row ``i`` goes to place
    ``permute.slots(rows, key)[i]``. A window is without rows only where all of its rank's blocks are.
    """

    index: int
    blocks: Int64s
    rows: int
    key: int | None


@dataclass(frozen=True, slots=True)
class RowWindow:
    """A run of single rows from anywhere in the data: positions ``start`` to ``stop`` of a permutation."""

    index: int
    numbers: Int64s

    @property
    def rows(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True)
class Mix:
    """One step of a mixer: which rows to give out and which to keep.

    Places count the rows held first and then the incoming ones. Before the last step ``keeps[s]`` is either
    ``s`` itself or an incoming row's place, so a buffer can be updated where it lies.
    """

    picks: NDArray[np.int64]
    keeps: NDArray[np.int64]


class Mixer(Protocol):
    """Holds rows back from window to window (a sliding buffer, a reservoir); sees places, never rows."""

    def step(self, incoming: int, *, last: bool) -> Mix:
        """Take in so many rows and say what goes out; after the last window nothing more comes in."""


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What others need to know of an order: loaders, to serve it, and `penstock.explain`, to price and describe it.

    Attributes
    ----------
    caption : str
        What a picture of it is called, in a few words.
    exact : bool
        Whether an epoch visits every row exactly once.
    copy : str
        Whether a shuffled copy of the data is written first: never, once, or before each epoch.
    by_block : bool
        Whether blocks come in random order, so that smaller ones shuffle better: a loader cuts them to fit its windows.
    by_row : bool
        Whether windows name single rows (`RowWindow`), by positions of ``permutation(shape, epoch)``.
    places_rows : bool
        Whether the rows of a window's blocks get random places in it.
    mixing : str
        How rows are held back from window to window: none, by a sliding buffer, or by a reservoir.
    carries : bool
        Whether the rows that the last step of an epoch's mixer keeps are those its next epoch begins with.
    visits : int
        How many rows are learned from for each that is read.
    note : str
        What a user should know before choosing it.
    """

    caption: str
    exact: bool = True
    copy: Literal["never", "once", "epoch"] = "never"
    by_block: bool = False
    by_row: bool = False
    places_rows: bool = False
    mixing: Literal["none", "buffer", "reservoir"] = "none"
    carries: bool = False
    visits: int = 1
    note: str = ""


class Order(Protocol):
    """A shuffling strategy: the word that a user writes, what is known of it, and its plan of an epoch."""

    name: str
    facts: OrderFacts

    def windows(self, shape: Shape, epoch: int) -> Iterator[Window] | Iterator[RowWindow]:
        """Plan one epoch."""

    def mixer(self, shape: Shape, epoch: int, carried: int = 0) -> Mixer | None:
        """Return what holds rows back between windows, if this order does.

        ``carried`` rows are held from the start: those kept by the last step of the epoch before.
        """
