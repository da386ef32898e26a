"""What is said of the scores of groups, in the same words by the summary and by the report: their spread, and the pooled model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COMPARABLE = 10
"""Held-out rows from which on the score of a group says anything of its model; of fewer it is mostly chance."""


def spread_of(values: NDArray[Any], held_out_rows: NDArray[Any] | None) -> dict[str, Any] | None:
    """Return how a figure is spread over groups, those of enough held-out rows if they are given; None where no group has one.

    Examples
    --------
    >>> spread_of(np.array([0.25, 0.75, 1.0, np.nan]), np.array([10, 400, 3, 0]))
    {'groups': 3, 'compared': 2, 'min': 0.25, 'median': 0.5, 'max': 0.75}
    """
    there = np.isfinite(values)
    if not there.any():
        return None
    groups = int(there.sum())
    if held_out_rows is not None:
        there &= held_out_rows >= COMPARABLE
    kept = values[there]
    ends: dict[str, float | None] = dict.fromkeys(("min", "median", "max"))
    if len(kept):
        ends = {"min": float(kept.min()), "median": float(np.median(kept)), "max": float(kept.max())}
    return {"groups": groups, "compared": len(kept), **ends}


def spread_words(spread: Mapping[str, Any], show: Callable[[float], str]) -> str:
    """Say how a figure is spread over groups, as `spread_of` found it.

    Examples
    --------
    >>> spread_words({"groups": 3, "compared": 2, "min": 0.25, "median": 0.5, "max": 0.75}, str)
    'from 0.25 to 0.75 over the 2 of 3 groups with at least 10 held-out rows, median 0.5'
    >>> spread_words({"groups": 3, "compared": 0}, str)
    'no group has 10 held-out rows, too few to compare groups by'
    """
    compared, groups = spread["compared"], spread["groups"]
    if not compared:
        return f"no group has {COMPARABLE} held-out rows, too few to compare groups by"
    few = f"the {compared:,} of {groups:,} groups with at least {COMPARABLE} held-out rows"
    least, median, most = (show(spread[name]) for name in ("min", "median", "max"))
    return f"from {least} to {most} over {few if compared < groups else 'groups'}, median {median}"


def pooled_words(without: Sequence[str]) -> str:
    """Name the pooled model, and the group columns that are not among its features.

    Examples
    --------
    >>> pooled_words(["region", "plan"]), pooled_words([])
    ("one model for all groups, without 'region' and 'plan'", 'one model for all groups')
    """
    names = " and ".join(filter(None, (", ".join(map(repr, without[:-1])), *map(repr, without[-1:]))))
    return "one model for all groups" + (f", without {names}" if names else "")
