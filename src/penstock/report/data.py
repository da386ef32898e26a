"""What a comparison report is drawn from: plain facts, one run per strategy, one row-order picture per strategy.

Each is a frozen dataclass and each is made from a dict by `from_dict`, which passes over keys it does not know,
so the objects that ``penstock compare --json`` prints can be given as they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.errors import UsageError
from penstock.report.words import finite


def _known(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in given.items() if name in names}


@dataclass(frozen=True, slots=True)
class Run:
    """One strategy's training run.

    Attributes
    ----------
    shuffle : str
        The strategy's name.
    epochs : tuple of mappings
        Metric rows as `penstock.events.Epoch.row` makes them. A row may carry its own ``prepare_seconds``,
        for a strategy that makes a copy before each epoch.
    prepare_seconds : float
        What it took to make a shuffled copy before the first epoch.
    seconds : float or None
        Everything from start to end, shuffling included.
    final : float or None
        The final test score, or the training score where there was no test set.
    epochs_to_99, seconds_to_99 : number or None
        When 99 % of the best final score was reached; None if it was not.
    failed : str or None
        Why the run failed, if it did.

    Examples
    --------
    >>> run = Run.from_dict({"shuffle": "none", "epochs": [{"epoch": 1, "seconds": 2.0, "accuracy": 0.5}], "out": "m"})
    >>> run.epoch_seconds, run.clock()
    (2.0, [2.0])
    """

    shuffle: str
    epochs: tuple[Mapping[str, Any], ...] = ()
    prepare_seconds: float = 0.0
    seconds: float | None = None
    extra_disk_bytes: int | None = None
    peak_memory_bytes: int | None = None
    final: float | None = None
    epochs_to_99: int | None = None
    seconds_to_99: float | None = None
    failed: str | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Run:
        """Make a run from a dict; only ``shuffle`` must be there."""
        if "shuffle" not in given:
            raise UsageError(f"a run of the report has no 'shuffle' among its keys: {', '.join(map(str, given))}")
        parts = _known(cls, given)
        return cls(**{**parts, "epochs": tuple(parts.get("epochs") or ())})

    @property
    def epoch_seconds(self) -> float | None:
        """The median time of an epoch, with its own shuffling where there is any."""
        known = [s for s in map(_row_seconds, self.epochs) if s is not None]
        return statistics.median(known) if known else None

    def clock(self) -> list[float | None]:
        """Return the seconds on the clock at the end of each epoch, the time to make a copy included."""
        now: float | None = finite(self.prepare_seconds) or 0.0
        ends: list[float | None] = []
        for row in self.epochs:
            seconds = _row_seconds(row)
            now = None if now is None or seconds is None else now + seconds
            ends.append(now)
        return ends

    def column(self, name: str) -> list[float | None]:
        """Return one metric over the epochs; None where it is missing or not finite."""
        return [finite(row.get(name)) for row in self.epochs]


def _row_seconds(row: Mapping[str, Any]) -> float | None:
    seconds = finite(row.get("seconds"))
    return None if seconds is None else seconds + (finite(row.get("prepare_seconds")) or 0.0)


@dataclass(frozen=True, slots=True)
class OrderPicture:
    """In which order a strategy visits rows, for a picture.

    Attributes
    ----------
    position : tuple of int
        Row numbers in the order visited; a thousand or two are enough.
    labels : tuple of (negatives, positives)
        The labels in each ``group`` rows visited; may be empty.
    group : int
        How many rows stand behind one pair of ``labels``.
    every : int
        Each how-many-th visited row ``position`` holds, where it is a sample.
    """

    position: tuple[int, ...]
    labels: tuple[tuple[float, float], ...] = ()
    group: int = 20
    every: int = 1

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> OrderPicture:
        """Make a picture from a dict with ``position`` and perhaps ``labels``, ``group`` and ``every``."""
        parts = _known(cls, given)
        parts["position"] = tuple(int(row) for row in given.get("position", ()))
        pairs = given.get("labels")
        for pair in pairs if pairs is not None else ():
            if len(pair) != 2:
                raise UsageError(f"label counts of a row-order picture are (negatives, positives), not {pair!r}")
        parts["labels"] = tuple((float(low), float(high)) for low, high in pairs) if pairs is not None else ()
        return cls(**parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything on the page: the facts of its title, the runs, and the row-order pictures by strategy.

    ``clustering`` is the sentence about h_D; ``orders_note`` says what the row-order pictures were made from.

    Examples
    --------
    >>> page = Comparison.from_dict({"data": "clicks.parquet", "runs": [{"shuffle": "none", "epochs": [{"r2": 0.5}]}]})
    >>> page.metric, page.score_name
    ('r2', 'Training R²')
    """

    data: str
    runs: tuple[Run, ...] = ()
    orders: Mapping[str, OrderPicture] = field(default_factory=dict)
    rows: int | None = None
    blocks: int | None = None
    bytes: int | None = None
    label: str | None = None
    model: str | None = None
    memory: str | int | None = None
    seed: int | None = None
    date: str | None = None
    machine: str | None = None
    clustering: str | None = None
    orders_note: str | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Comparison:
        """Make a comparison from nested dicts; only ``data`` must be there."""
        if "data" not in given:
            raise UsageError(f"the report's facts have no 'data' among their keys: {', '.join(map(str, given))}")
        parts = _known(cls, given)
        runs = given.get("runs") or ()
        parts["runs"] = tuple(run if isinstance(run, Run) else Run.from_dict(run) for run in runs)
        parts["orders"] = {
            str(name): picture if isinstance(picture, OrderPicture) else OrderPicture.from_dict(picture)
            for name, picture in (given.get("orders") or {}).items()
        }
        return cls(**parts)

    @property
    def metric(self) -> str:
        """``"accuracy"`` or ``"r2"``, as the epochs have it."""
        rows = [row for run in self.runs for row in run.epochs]
        return "r2" if any("r2" in row or "test_r2" in row for row in rows) else "accuracy"

    @property
    def tested(self) -> bool:
        """Whether any epoch was scored on a test set."""
        key = f"test_{self.metric}"
        return any(value is not None for run in self.runs for value in run.column(key))

    @property
    def score_key(self) -> str:
        """The key of the score that is plotted: the test set's where there is one."""
        return f"test_{self.metric}" if self.tested else self.metric

    @property
    def score_name(self) -> str:
        """The plotted score in words."""
        return f"{'Test' if self.tested else 'Training'} {'R²' if self.metric == 'r2' else 'accuracy'}"
