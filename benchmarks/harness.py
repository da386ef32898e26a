"""How claims are measured: contestants take turns, and every bar is printed with its figure, met or missed.

Speeds on a shared machine wander, so contestants are interleaved in alternating order and compared by medians
of the same rounds. The conditions (cold caches, memory limits, fresh children) are in `benchmarks.conditions`
and can be imported from here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.conditions import (
    ROOT,
    ChildFailed,
    Limit,
    drop_caches,
    evict,
    machine,
    memory_limit,
    read_ahead,
    read_ahead_settings,
    run_child,
)

__all__ = [
    "ROOT",
    "ChildFailed",
    "Claim",
    "Limit",
    "Results",
    "Run",
    "collect",
    "drop_caches",
    "evict",
    "interleave",
    "machine",
    "main",
    "memory_limit",
    "read_ahead",
    "read_ahead_settings",
    "report",
    "run_child",
    "versions",
    "write_results",
]


@dataclass(frozen=True, slots=True)
class Results:
    """What each contestant's figure was in each round: wall seconds, or the number it returned."""

    figures: dict[str, list[float]]
    values: dict[str, list[Any]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def spread(self, name: str) -> float:
        """Return (largest - smallest) / median: 0.1 means that rounds differ by 10 %."""
        series = self.figures[name]
        return (max(series) - min(series)) / abs(statistics.median(series)) if statistics.median(series) else math.inf

    def ratio(self, a: str, b: str) -> float:
        """Return the median of ``a`` over the median of ``b``."""
        below = self.median(b)
        return self.median(a) / below if below else math.inf

    def ratio_range(self, a: str, b: str) -> tuple[float, float]:
        """Return the smallest and largest ratio of ``a`` to ``b`` within one round."""
        ratios = [x / y if y else math.inf for x, y in zip(self.figures[a], self.figures[b], strict=True)]
        return min(ratios), max(ratios)

    def table(self) -> str:
        """Return one line per contestant: median, spread and every round."""
        width = max(map(len, self.figures))
        return "\n".join(
            f"{name:<{width}}  {self.median(name):12.6g}  ±{self.spread(name) / 2:4.0%}  "
            + " ".join(f"{x:.4g}" for x in series)
            for name, series in self.figures.items()
        )


def interleave(
    contestants: Mapping[str, Callable[[], Any]], *, repeats: int = 5, before: Callable[[], object] | None = None
) -> Results:
    """Run all contestants once per round, in turn forwards and backwards, and collect their figures.

    A contestant that returns a number (rows/s, say) is judged by it, any other by its wall seconds; what it
    returned is kept in ``values``. ``before`` runs ahead of each turn, untimed: `drop_caches`, for example.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    values: dict[str, list[Any]] = {name: [] for name in contestants}
    for turn in range(repeats):
        names = list(contestants) if turn % 2 == 0 else list(contestants)[::-1]
        for name in names:
            if before is not None:
                before()
            start = time.perf_counter()
            value = contestants[name]()
            seconds = time.perf_counter() - start
            own = isinstance(value, int | float) and not isinstance(value, bool)
            figures[name].append(float(value) if own else seconds)
            values[name].append(value)
    return Results(figures, values)


@dataclass(frozen=True, slots=True)
class Claim:
    """A bar and what was measured against it. ``met`` is None where it could not be measured; ``note`` says why.

    ``note`` also says how it was measured: cold or warm, limited or not, the figures behind a ratio.
    """

    name: str
    figure: float | None
    bar: str
    met: bool | None
    note: str = ""
    unit: str = ""

    @classmethod
    def at_least(cls, name: str, figure: float, bar: float, *, unit: str = "×", note: str = "") -> Claim:
        """Make a claim that the figure reaches the bar."""
        return cls(name, figure, f"≥ {bar:g}{unit}", figure >= bar, note, unit)

    @classmethod
    def at_most(cls, name: str, figure: float, bar: float, *, unit: str = "×", note: str = "") -> Claim:
        """Make a claim that the figure stays below the bar."""
        return cls(name, figure, f"≤ {bar:g}{unit}", figure <= bar, note, unit)

    @classmethod
    def not_measured(cls, name: str, bar: str, why: str) -> Claim:
        """Make a claim that could not be put to the test, a peer not being installed, say."""
        return cls(name, None, bar, None, why)

    @property
    def verdict(self) -> str:
        return {True: "met", False: "MISSED", None: "NOT MEASURED"}[self.met]


def report(claims: Sequence[Claim], *, quick: bool) -> str:
    """Return the plain table of all claims, the machine above it and the count below it."""
    m = machine()
    disks = ", ".join(f"{disk} {kb} kB" for disk, kb in m["read_ahead_kb"].items()) or "unknown"
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB, read-ahead {disks}, load {m['load']}, "
        f"Python {m['python']}, {m['date']}" + (" (quick: small data, figures are only indicative)" if quick else "")
    ]
    width, bars = (max([len(getattr(c, f)) for c in claims] + [5]) for f in ("name", "bar"))
    lines += ["", f"{'claim':<{width}}  {'figure':>10}  {'bar':<{bars}}  verdict"]
    for c in claims:
        figure = "-" if c.figure is None else f"{c.figure:.4g}"
        lines.append(
            f"{c.name:<{width}}  {figure:>10}  {c.bar:<{bars}}  {c.verdict}" + (f"  ({c.note})" * bool(c.note))
        )
    counts = [f"{sum(c.verdict == v for c in claims)} {v}" for v in ("met", "MISSED", "NOT MEASURED")]
    return "\n".join([*lines, "", ", ".join(counts)])


def versions() -> dict[str, str]:
    """Return the versions of Penstock and of the libraries that its speed depends on, where they are installed."""
    found = {}
    for name in ("penstock", "numpy", "numba", "pyarrow", "scikit-learn", "torch", "duckdb", "ray", "lightgbm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def write_results(path: Path, claims: Sequence[Claim], *, quick: bool, command: str, **more: Any) -> None:
    """Write a run as JSON: the command, the machine with the date, the versions and all claims.

    `benchmarks.figures` makes docs/figures.md of such files. ``more`` are other entries of the file.
    """
    body = {
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "quick": quick,
        "claims": [asdict(c) for c in claims],
        **more,
    }
    path.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n")


Run = Callable[..., list[Claim]]


def collect(runs: Mapping[str, Run], *, quick: bool) -> dict[str, list[Claim]]:
    """Run every benchmark; one that breaks is a missed claim, not a silence."""
    claims: dict[str, list[Claim]] = {}
    for name, run in runs.items():
        print(f"running {name} …", file=sys.stderr, flush=True)
        try:
            claims[name] = run(quick=quick)
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            claims[name] = [Claim(f"{name} runs", None, "ends", False, reason)]
    return claims


def main(runs: Run | Mapping[str, Run], argv: Sequence[str] | None = None) -> int:
    """Serve a benchmark's command line (``--quick``, ``--json FILE``); return 1 if a bar was missed.

    A module ends with ``if __name__ == "__main__": sys.exit(harness.main(run))``.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure claims and print them all.")
    if isinstance(runs, Mapping):
        parser.add_argument("names", nargs="*", help=f"which to run (all unless named): {', '.join(runs)}")
        parser.add_argument("--results", metavar="DIR", type=Path, help="write NAME.json for each benchmark there")
    parser.add_argument("--quick", action="store_true", help="small data: shows that it works, not how fast it is")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write machine, versions and claims as JSON")
    options = parser.parse_args(argv)
    if isinstance(runs, Mapping):
        unknown = set(options.names) - set(runs)
        if unknown:
            parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(runs)}")
        if options.results and options.quick:
            parser.error("--results is for whole runs: figures of --quick are only indicative")
        chosen = {name: runs[name] for name in options.names or runs}
    else:
        chosen = {_module_of(runs): runs}
    found = collect(chosen, quick=options.quick)
    claims = [claim for each in found.values() for claim in each]
    print(report(claims, quick=options.quick))
    command = f"python -m benchmarks {' '.join(chosen)}"
    if options.json:
        write_results(options.json, claims, quick=options.quick, command=command)
    if isinstance(runs, Mapping) and options.results:
        for name, each in found.items():
            write_results(options.results / f"{name}.json", each, quick=False, command=f"python -m benchmarks {name}")
    return 1 if any(c.met is False for c in claims) else 0


def _module_of(run: Run) -> str:
    """Return the name of a benchmark that was started alone."""
    spec = sys.modules["__main__"].__spec__ if run.__module__ == "__main__" else None
    return (spec.name if spec is not None else run.__module__).rpartition(".")[2]
