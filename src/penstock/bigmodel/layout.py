"""What preparing a model's data found: how many features there are, and how often they occur."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """What `rewrite` found and wrote.

    Attributes
    ----------
    rows, entries : int
        Rows of the data, and features in all of them together.
    features : int
        Different features that occur; positions are 0 to ``features - 1``.
    hot : int
        How many of them have the first positions.
    dimension : int
        How many features there could be: the width declared, or the largest index and one.
    singles : int
        Features that occur once.
    hot_share : float
        Share of the entries that fall on hot features.
    tally : list of [least, features, entries]
        For each power of two: features that occur at least so often and less than twice as often, and their entries.
    map_bytes, rows_bytes : int
        Sizes of the files written.
    seconds : float
        What it took; by phase in ``phases``.
    """

    rows: int
    entries: int
    features: int
    hot: int
    dimension: int
    singles: int
    hot_share: float
    tally: list[list[int]]
    map_bytes: int
    rows_bytes: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FeatureLayout:
        """Build the layout again."""
        return cls(**data)
