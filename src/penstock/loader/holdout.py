"""Rows set aside for validation, chosen by a keyed hash of their place, so that nothing has to be stored.

Every loader over the same source with the same seed agrees on which rows are held out, whatever its order and however
finely the memory given makes it cut the blocks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.blocks.base import BlockSource
from penstock.errors import UsageError
from penstock.messages import Given
from penstock.shuffle import Shape

_SHARE, _MOST, _FEW = 0.1, 10_000, 500
"""What is held out where nobody said how much: this share, about so many rows at most, none of fewer than the last."""

SAMPLE_ROWS = 10_000
"""About how many training rows a finished model is measured on where none are held out."""


def automatic_share(rows: int, *, required: bool = False) -> float:
    """Return the share of rows that is held out where none was asked for: 10 %, about 10,000 rows at most.

    Fewer than 500 rows are all learned from, unless held-out rows are ``required``, as early stopping does.

    Examples
    --------
    >>> automatic_share(499), automatic_share(20_000), automatic_share(1_000_000), automatic_share(50, required=True)
    (0.0, 0.1, 0.01, 0.1)
    """
    if rows < _FEW and not required:
        return 0.0
    return min(_SHARE, _MOST / max(rows, 1))


def chosen_share(validation: float | None, rows: int, *, tested: bool, stopping: bool, hold_out: bool = True) -> float:
    """Return the share of rows to hold out.

    Parameters
    ----------
    validation : float or None
        The share asked for, 0 for none; None leaves it to `automatic_share`.
    rows : int
        How many rows there are.
    tested : bool
        Whether there is a test set, beside which nothing is held out unless asked for.
    stopping : bool
        Whether early stopping needs rows to watch.
    hold_out : bool
        Whether to hold out rows where it is left open.

    Examples
    --------
    >>> chosen_share(None, 1000, tested=False, stopping=False), chosen_share(None, 1000, tested=True, stopping=False)
    (0.1, 0.0)
    """
    if validation is not None:
        return validation
    if stopping or (hold_out and not tested):
        return automatic_share(rows, required=stopping)
    return 0.0


class RowFilter(Protocol):
    """What says which rows are wanted."""

    def keeps(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of these rows, named by block (or all of one block) and place in it, are."""
        ...


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One side of a split of the rows: a share held out, or the rest.

    ``start`` moves the share, so that several can be held out of the same rows, none of them twice; see `RowSplit`.

    Examples
    --------
    >>> part = SplitPart(share=0.25, seed=1, held_out=True)
    >>> kept = part.has(np.int64(0), np.arange(10_000))
    >>> bool(2300 < kept.sum() < 2700)
    True
    >>> bool((kept ^ part.other().has(np.int64(0), np.arange(10_000))).all())
    True
    """

    share: float
    seed: int
    held_out: bool
    start: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(
                f"a held-out share of {self.share!r} leaves nothing on one side; choose one between 0 and 1"
            )

    @property
    def kept_share(self) -> float:
        """The share of all rows that are on this side."""
        return self.share if self.held_out else 1 - self.share

    def other(self) -> SplitPart:
        """Return the other side of the same split."""
        return SplitPart(self.share, self.seed, not self.held_out, self.start)

    def of(self, source: BlockSource) -> SplitPartOf:
        """Return what says which rows of a source's blocks are on this side."""
        return SplitPartOf(self, source)

    def has(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of these rows, named by two numbers each, are on this side."""
        mixed = (blocks.astype(np.uint64) << np.uint64(32)) + rows.astype(np.uint64)
        mixed ^= np.uint64(_key(self.seed))
        # splitmix64's finaliser: neighbouring rows get unrelated values.
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        chosen: NDArray[np.bool_] = mixed < np.uint64((self.start + self.share) * 2**64)
        if self.start:
            chosen &= mixed >= np.uint64(self.start * 2**64)
        return chosen if self.held_out else ~chosen


@dataclass(frozen=True, slots=True)
class RowSplit:
    """A split of the rows by chance in those of a test, those held out, and those to learn from.

    Examples
    --------
    >>> split = RowSplit(seed=1, test_share=0.2, held_out_share=0.1)
    >>> parts = [part.has(np.int64(0), np.arange(10_000)).astype(int) for part in (split.test, split.held_out, split.train)]
    >>> [int(round(part.mean(), 1) * 10) for part in parts], bool((sum(parts) == 1).all())
    ([2, 1, 7], True)
    """

    seed: int
    test_share: float = 0.0
    held_out_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise UsageError(
                "is not a share of the rows",
                option="test_share",
                value=self.test_share,
                fixes=["choose one from 0 to below 1"],
            )
        if self.test_share + self.held_out_share >= 1:
            raise UsageError(
                "and ",
                Given("validation", self.held_out_share),
                " leave no rows to learn from",
                option="test_share",
                value=self.test_share,
                fixes=["choose smaller ones"],
            )

    @property
    def test(self) -> SplitPart | None:
        """The rows of the test."""
        return SplitPart(self.test_share, self.seed, held_out=True) if self.test_share else None

    @property
    def held_out(self) -> SplitPart | None:
        """The rows held out."""
        return (
            SplitPart(self.held_out_share, self.seed, held_out=True, start=self.test_share)
            if self.held_out_share
            else None
        )

    @property
    def train(self) -> SplitPart | None:
        """The rows to learn from; None for all."""
        apart = self.test_share + self.held_out_share
        return SplitPart(apart, self.seed, held_out=False) if apart else None


@functools.cache
def _key(seed: int) -> int:
    """Return the key of a split; blocks may be small, and it is asked for with each."""
    return seeds.key(seed, "holdout")


class SplitPartOf:
    """One side of a split of a source's rows.

    Rows are told apart by their number in the data, or, where rows are not counted (text), by their stored block and
    place in it. Neither depends on how a loader cuts the blocks.
    """

    def __init__(self, part: SplitPart, source: BlockSource) -> None:
        self.part = part
        self._source = source
        self._first = np.cumsum(source.block_rows) - source.block_rows

    def keeps(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of these rows, named by block (or all of one block) and place in it, are on this side."""
        if self._source.exact_rows:
            return self.part.has(np.int64(0), self._first[blocks] + rows)
        if np.ndim(blocks) == 0:
            stored, before = self._source.origin(int(blocks))
            return self.part.has(np.int64(stored), before + rows)
        return self.part.has(blocks, rows)


def mixed_shape(shape: Shape, part: SplitPart | None) -> Shape:
    """Return the shape that a mixer sees: no more held than the rows of this part, or none might go out."""
    if part is None:
        return shape
    share = part.kept_share
    rows = int(shape.rows * share / shape.world)
    return replace(shape, held_rows=max(1, min(shape.held_rows, rows)))
