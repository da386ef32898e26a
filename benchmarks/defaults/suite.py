"""Every table through a door, in both orders, and the spread over seeds."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.defaults.doors import DOORS, Door, Enter, file_door
from benchmarks.defaults.scores import DEFAULT_BARS, SGD_BARS, Bars, Comparison, ModelScore, baseline, score
from benchmarks.defaults.tables import LARGEST, READERS, DefaultsTable, cut, read, sorted_by_label
from benchmarks.defaults.whole_tables import WHOLE_READERS
from penstock.errors import BudgetError

SUITES = {"numbers": READERS, "whole": WHOLE_READERS}
"""Tables of numbers alone, and tables with all their columns; by name."""
ORDERS = ("published", "sorted")
SHARES = ("all", "10%", "2%")
"""Memory for the rows: the default, which holds all of these tables, or a share of the data."""
SEED_TABLES = ("cod_rna", "kdd99", "higgs_10k", "us_flights", "sylva")
"""Tables large enough for 2 % of them to hold several blocks."""


def compare(table: DefaultsTable, enter: Enter, bars: Bars, cache: Path | None) -> Comparison:
    """Put one table through a door in both orders."""
    train, test = table.split()
    ours = {}
    for order in ORDERS:
        rows = sorted_by_label(train) if order == "sorted" else train
        ours[order] = attempt(table, partial(enter, table, rows, test))
    metric = "accuracy" if table.classes else "R²"
    found = baseline(table, cache)
    return Comparison(
        table.name, len(table.rows), table.rows.width, metric, table.cut_from, len(test), found, ours, bars
    )


def attempt(table: DefaultsTable, work: Any) -> ModelScore:
    """Score what the door answers; a refusal or a failure is a missed bar, not the end of the run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return score(table, work())
    except BudgetError as error:
        return ModelScore(error=f"memory: {str(error).rsplit('; ', 1)[-1][:80]}", refused=True)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return ModelScore(error=f"{type(error).__name__}: {lines[-1 if lines[0].startswith('Usage') else 0][:160]}")


def run_door(
    door: Door,
    names: Sequence[str],
    *,
    suite: str = "numbers",
    bars: Bars = DEFAULT_BARS,
    most: int = LARGEST,
    cache: Path | None = None,
) -> list[Comparison]:
    """Put tables of a suite through one door."""
    found = []
    with tempfile.TemporaryDirectory(prefix="penstock-defaults-") as place, door(Path(place)) as enter:
        for name in names:
            began = time.monotonic()
            found.append(compare(cut(SUITES[suite][name](), most), enter, bars, cache))
            print(
                f"  {name}: {found[-1].verdict}, {time.monotonic() - began:.1f} s  {found[-1].remarks}",
                file=sys.stderr,
                flush=True,
            )
    return found


def named_door(name: str, *, layout: str | None = None) -> Door:
    """Return a door by its name; files can be of another layout than their table's own."""
    return partial(file_door, layout=layout) if name == "file" else DOORS[name]


def sgd_door(share: str, *, layout: str | None = None, optimizer: str = "sgd") -> Door:
    """Return the file door with ``solver="sgd"`` forced; less memory than the data needs a layout of small blocks."""
    forced = {"solver": "sgd", "optimizer": optimizer}
    if share == "all":
        return partial(file_door, layout=layout or "parquet", **forced)
    return partial(file_door, layout=layout or "arrow", memory=share, **forced)


def run_sgd(
    names: Sequence[str], share: str, *, layout: str | None = None, optimizer: str = "sgd", **options: Any
) -> list[Comparison]:
    """Put tables through the file door by SGD with memory for a share of the data."""
    return run_door(sgd_door(share, layout=layout, optimizer=optimizer), names, bars=SGD_BARS, **options)


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """Test accuracies (R²) over seeds, of rows sorted by label: corgipile with little memory, and a full shuffle."""

    table: str
    memory: str
    corgipile: list[float]
    once: list[float]

    @property
    def spread(self) -> float:
        return 100 * (max(self.corgipile) - min(self.corgipile))

    @property
    def spread_once(self) -> float:
        return 100 * (max(self.once) - min(self.once))

    @property
    def worst(self) -> float:
        """Points by which the worst seed is below the median."""
        return 100 * (statistics.median(self.corgipile) - min(self.corgipile))

    @property
    def misses(self) -> list[str]:
        if not self.corgipile or not self.once:
            return ["not all seeds could be trained"]
        found = []
        if self.spread > 2 * self.spread_once + 1e-9:
            found.append("spread over twice that of once")
        if self.worst > 0.5:
            found.append("a seed over 0.5 point below the median")
        return found

    @property
    def verdict(self) -> str:
        return "MISSED" if self.misses else "met"

    def line(self) -> str:
        if not self.corgipile or not self.once:
            return f"{self.table:<16} {self.memory:>5}  MISSED  {'; '.join(self.misses)}"
        return (
            f"{self.table:<16} {self.memory:>5}  corgipile {min(self.corgipile):.4f} to {max(self.corgipile):.4f},"
            f" median {statistics.median(self.corgipile):.4f}; once {min(self.once):.4f} to {max(self.once):.4f};"
            f" spread {self.spread:.2f} and {self.spread_once:.2f} points, worst seed {self.worst:.2f} below the median"
            f"  {self.verdict}  {'; '.join(self.misses)}".rstrip()
        )


def run_seeds(names: Sequence[str], seeds: int, *, most: int = LARGEST) -> list[SeedSpread]:
    """Train tables sorted by label with several seeds, through corgipile with little memory and a full shuffle."""
    found = []
    for name in names:
        table = read(name, most=most)
        train, test = table.split()
        rows = sorted_by_label(train)

        def scores(table: DefaultsTable = table, rows: Any = rows, test: Any = test, **options: Any) -> list[float]:
            reached = []
            for seed in range(seeds):
                with tempfile.TemporaryDirectory(prefix="penstock-defaults-") as place:
                    door = file_door(Path(place), layout="arrow", solver="sgd", seed=seed, **options)
                    with door as enter:
                        one = attempt(table, partial(enter, table, rows, test))
                if one.error:
                    print(f"  {table.name}, seed {seed}: {one.error}", file=sys.stderr, flush=True)
                if one.score is not None:
                    reached.append(one.score)
            return reached if len(reached) == seeds else []

        once = scores(shuffle="once")
        for memory in ("10%", "2%"):
            found.append(SeedSpread(name, memory, scores(memory=memory), once))
            print(found[-1].line(), file=sys.stderr, flush=True)
    return found
