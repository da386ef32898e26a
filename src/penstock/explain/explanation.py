"""What `explain` found, as plain values: JSON for machines, lines for people."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from penstock.explain.advice import Recommendation
from penstock.explain.clustering import Clustering
from penstock.explain.cost import Prediction
from penstock.explain.gain import Converting
from penstock.explain.speed import Speeds
from penstock.explain.storage import Curve


@dataclass(frozen=True, slots=True)
class Shape:
    """How the data lie.

    Attributes
    ----------
    rows, blocks : int
        How many; ``exact_rows`` says whether rows were counted or estimated.
    rows_per_block, block_bytes : float
        On average.
    stored_bytes, decoded_bytes : int
        On storage, and as rows in memory.
    columns : int
        Columns of the file.
    features : int
        Features made of them; where sparse data do not say, the highest seen.
    sparse : bool
        Whether rows are sparse.
    layout : str
        ``packed`` (rows go from the file to their places as they are) or ``decoded``.
    row_groups : int
        Row groups larger than a block, which are served in parts; 0 where there are none.
    row_groups_open : int
        How many of them are read side by side with the memory given.
    """

    rows: int
    exact_rows: bool
    blocks: int
    rows_per_block: float
    block_bytes: float
    stored_bytes: int
    decoded_bytes: int
    columns: int
    features: int
    sparse: bool
    layout: str
    row_groups: int
    row_groups_open: int


@dataclass(frozen=True, slots=True)
class Shuffled:
    """How well a window of the recommended memory shuffles.

    Attributes
    ----------
    alpha : float
        The theorem's α.
    factor : float
        (1 - α)·h_D.
    balance : float
        Variance of the label's share over batches of 256 rows, over that of a full shuffle.
    """

    alpha: float
    factor: float
    balance: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that `explain` found.

    Attributes
    ----------
    data, label, model : str
        What was explained.
    memory : int
        The bytes given to train with.
    resident : bool
        Whether all rows fit in them, and are decoded once.
    shape : Shape
        How the data lie.
    storage : Curve or None
        Bandwidth by block size; ``storage_note`` says why it is missing.
    clustering : Clustering or None
        h_D; ``clustering_note`` says why it is missing.
    shuffled : Shuffled or None
        What the recommended memory makes of it.
    predictions : tuple of Prediction
        Seconds per epoch, by strategy.
    recommendation : Recommendation
        What to train with.
    converting : Converting or None
        What the fast layout would gain, where the data are not in it.
    speeds : Speeds
        What was timed.
    warnings : tuple of str
        What to look out for.
    seconds : float
        How long the explanation took.
    """

    data: str
    label: str | None
    model: str
    memory: int
    resident: bool
    shape: Shape
    storage: Curve | None
    storage_note: str
    clustering: Clustering | None
    clustering_note: str
    shuffled: Shuffled | None
    predictions: tuple[Prediction, ...]
    recommendation: Recommendation
    converting: Converting | None
    speeds: Speeds
    warnings: tuple[str, ...]
    seconds: float

    def prediction(self, strategy: str) -> Prediction:
        """Return what was predicted of one strategy."""
        return next(p for p in self.predictions if p.strategy == strategy)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON; numbers that are not finite are None."""
        found: dict[str, Any] = {
            "data": self.data,
            "label": self.label,
            "model": self.model,
            "memory_bytes": self.memory,
            "resident": self.resident,
            "shape": asdict(self.shape),
            "storage": None if self.storage is None else self.storage.to_dict(),
            "storage_note": self.storage_note,
            "clustering": None if self.clustering is None else self.clustering.to_dict(),
            "clustering_note": self.clustering_note,
            "shuffled": None if self.shuffled is None else asdict(self.shuffled),
            "predictions": [p.to_dict() for p in self.predictions],
            "recommendation": self.recommendation.to_dict(),
            "converting": None if self.converting is None else self.converting.to_dict(),
            "speeds": self.speeds.to_dict(),
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }
        plain: dict[str, Any] = _plain(found)
        return plain

    def lines(self) -> list[str]:
        """Return the explanation for people."""
        from penstock.explain.words import lines

        return lines(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
