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
from penstock.metric_names import title
from penstock.report.text import finite_or_none


def _known(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in given.items() if name in names}


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """One strategy's training run; what is not known is None.

    ``epochs`` are metric rows as `penstock.events.Epoch.row` makes them; a row may carry its own ``prepare_seconds``, for a
    strategy that makes a copy before each epoch. ``prepare_seconds`` of the run is for a copy before the first epoch, ``seconds``
    is all from start to end. ``final`` is the finished model's score: on test rows, else on held-out rows, else on training
    rows. ``epochs_to_99`` and ``seconds_to_99`` say when 99 % of the best final score was reached; ``failed`` why a run failed.

    Examples
    --------
    >>> run = StrategyRun.from_dict({"shuffle": "none", "epochs": [{"epoch": 1, "seconds": 2.0}], "out": "m"})
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
    def from_dict(cls, given: Mapping[str, Any]) -> StrategyRun:
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
        now: float | None = finite_or_none(self.prepare_seconds) or 0.0
        ends: list[float | None] = []
        for row in self.epochs:
            seconds = _row_seconds(row)
            now = None if now is None or seconds is None else now + seconds
            ends.append(now)
        return ends

    def column(self, name: str) -> list[float | None]:
        """Return one metric over the epochs; None where it is missing or not finite."""
        return [finite_or_none(row.get(name)) for row in self.epochs]


def _row_seconds(row: Mapping[str, Any]) -> float | None:
    seconds = finite_or_none(row.get("seconds"))
    return None if seconds is None else seconds + (finite_or_none(row.get("prepare_seconds")) or 0.0)


@dataclass(frozen=True, slots=True)
class OrderPicture:
    """In which order a strategy visits rows: row numbers, and (negatives, positives) among each ``group`` rows visited."""

    position: tuple[int, ...]
    labels: tuple[tuple[float, float], ...] = ()
    group: int = 20

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> OrderPicture:
        """Make a picture from a dict with ``position`` and perhaps ``labels`` and ``group``."""
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
    >>> page = Comparison.from_dict({"data": "clicks.parquet", "runs": [{"shuffle": "none", "epochs": [{"held_out_r2": 0.5}]}]})
    >>> page.metric, page.score_name
    ('r2', 'Held-out R²')
    """

    data: str
    runs: tuple[StrategyRun, ...] = ()
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
        parts["runs"] = tuple(run if isinstance(run, StrategyRun) else StrategyRun.from_dict(run) for run in runs)
        parts["orders"] = {
            str(name): picture if isinstance(picture, OrderPicture) else OrderPicture.from_dict(picture)
            for name, picture in (given.get("orders") or {}).items()
        }
        return cls(**parts)

    @property
    def metric(self) -> str:
        """``"accuracy"`` or ``"r2"``, as the epochs have it."""
        rows = [row for run in self.runs for row in run.epochs]
        return "r2" if any(name.endswith("_r2") for row in rows for name in row) else "accuracy"

    @property
    def measured_on(self) -> str:
        """The rows that the plotted figures are of: ``"test"``, ``"held_out"`` or ``"progressive"``."""
        for kind in ("test", "held_out"):
            if any(value is not None for run in self.runs for value in run.column(f"{kind}_{self.metric}")):
                return kind
        return "progressive"

    @property
    def score_key(self) -> str:
        """The key of the score that is plotted."""
        return f"{self.measured_on}_{self.metric}"

    @property
    def score_name(self) -> str:
        """The plotted score in words."""
        name = title(self.score_key)
        return name[0].upper() + name[1:]

    @property
    def final_name(self) -> str:
        """The score of the finished models in words."""
        return title(f"training_{self.metric}" if self.measured_on == "progressive" else self.score_key)
