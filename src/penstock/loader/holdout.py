"""Rows set aside for validation, chosen by a keyed hash of (block, row), so that nothing has to be stored.

Every loader over the same source with the same seed agrees on which rows are held out, whatever its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.errors import UsageError


class Keeps(Protocol):
    """What says which rows are wanted."""

    def keeps(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of these rows, named by block (or all of one block) and place in it, are."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a split of the rows: the share held out, or the rest.

    Examples
    --------
    >>> part = Part(share=0.25, seed=1, held_out=True)
    >>> kept = part.keeps(np.zeros(10_000, np.int64), np.arange(10_000))
    >>> bool(2300 < kept.sum() < 2700)
    True
    >>> bool((kept ^ part.other().keeps(np.zeros(10_000, np.int64), np.arange(10_000))).all())
    True
    """

    share: float
    seed: int
    held_out: bool

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(
                f"a held-out share of {self.share!r} leaves nothing on one side; choose one between 0 and 1"
            )

    def other(self) -> Part:
        """Return the other side of the same split."""
        return Part(self.share, self.seed, not self.held_out)

    def keeps(self, blocks: NDArray[np.int64] | np.int64, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of these rows, named by block (or all of one block) and place in it, are on this side."""
        mixed = (blocks.astype(np.uint64) << np.uint64(32)) + rows.astype(np.uint64)
        mixed ^= np.uint64(seeds.key(self.seed, "holdout"))
        # splitmix64's finaliser: neighbouring rows get unrelated values.
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        chosen: NDArray[np.bool_] = mixed < np.uint64(self.share * 2**64)
        return chosen if self.held_out else ~chosen
