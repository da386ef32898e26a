"""Which rows of a group are trained on, which choose among its configs and which judge the chosen one; and the choice.

A row's part follows from the seed, its group and its number in the group, by the same hash as elsewhere, so that every
worker and the final evaluation agree on it. The config with the least loss on the rows to choose by is chosen, the first of
equals; without such rows the one with the least training loss. Failed configs never are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.loader.holdout import SplitPart

TRAINING, SELECTION, HELD_OUT = 0, 1, 2
"""The parts of a group's rows."""
DEFAULT_SHARE = 0.1
"""The share of each group's rows that is held out where nobody says otherwise; the served models learn from it too."""
Parts = NDArray[np.uint8]
"""The part of each of some rows."""


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of each group's rows that are not trained on.

    Attributes
    ----------
    held_out : float
        The share that no choice has seen: the finished models are judged on it.
    selection : float
        The share that configs are compared on, and that training is stopped by.
    seed : int
        Decides which rows these are.

    Examples
    --------
    >>> split = Split.of(0.1, seed=0, chooses=True)
    >>> split.held_out, split.selection, np.bincount(split.parts(7, 0, 10_000)).tolist()
    (0.1, 0.1, [8008, 1000, 992])
    >>> Split.of(0.1, seed=0, chooses=False).selection, Split.of(0.6, seed=0, chooses=True).selection
    (0.0, 0.2)
    """

    held_out: float
    selection: float
    seed: int

    @classmethod
    def of(cls, validation: float, seed: int, *, chooses: bool) -> Split:
        """Return the split by the share that is held out; as large a share is for choosing, where anything is chosen."""
        return cls(validation, min(validation, (1 - validation) / 2) if chooses else 0.0, seed)

    def parts(self, group: int, first: int, rows: int) -> Parts | None:
        """Return the part of each row of a range of a group; None where all are trained on."""
        if not self.held_out:
            return None
        numbers, owner = np.arange(first, first + rows), np.full(1, group)
        found = SplitPart(self.held_out, self.seed, held_out=True).has(owner, numbers).astype(np.uint8)
        if self.selection:
            # Held-out rows have the lowest hashes, those for choosing the next ones.
            found += SplitPart(self.held_out + self.selection, self.seed, held_out=True).has(owner, numbers)
        else:
            found *= HELD_OUT
        return found


def held_out_part(validation: float | None) -> float:
    """Return the share of each group's rows to hold out; raise `UsageError` for what is no share."""
    if validation is not None and not 0 <= validation < 1:
        fixes = ["choose one from 0 to below 1"]
        raise UsageError("is not a share of the rows", option="validation", value=validation, fixes=fixes)
    return DEFAULT_SHARE if validation is None else validation


def choose(
    group: NDArray[Any], loss: NDArray[Any], *, selection_loss: NDArray[Any], usable: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row chosen of each group, by group; rows are by group and config.

    Examples
    --------
    >>> loss, other = np.array([0.3, 0.2, 0.1, 0.5]), np.array([0.4, 0.4, np.nan, np.nan])
    >>> choose(np.array([0, 0, 0, 1]), loss, selection_loss=other, usable=np.ones(4, bool)).tolist()
    [0, 3]
    """
    if not len(group):
        return np.empty(0, np.int64)
    starts = firsts(group)
    number = np.cumsum(np.isin(np.arange(len(group)), starts)) - 1
    compared = np.logical_or.reduceat(usable & np.isfinite(selection_loss), starts)[number]
    value = np.where(compared, selection_loss, loss)
    rows = np.flatnonzero(usable & np.isfinite(value))
    order = rows[np.lexsort([rows, value[rows], number[rows]])]
    return order[firsts(number[order])]


def firsts(group: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), bool), group[1:] != group[:-1]]))


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers, with NaN for what is missing."""
    found: NDArray[Any] = column.to_numpy()
    return found
