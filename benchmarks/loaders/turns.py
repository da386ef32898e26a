"""The contest: formats written once, then rounds in which each contestant has a fresh process and equal conditions.

Cold means dropped caches, a memory limit, page cache included, of half the data, and at most one epoch, so that
nothing is read twice; warm means that the files were read through just before, and no limit. Contestants that read through a memory map have a second turn when cold,
with the disks' read-ahead at 128 kB. Whoever fails is out, with the reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.conditions import read_ahead, read_ahead_settings, read_through
from benchmarks.loaders import measure, ours
from benchmarks.loaders.contest import Contestant
from benchmarks.loaders.samples import Data

USUAL = 128
"""The read-ahead of most machines, in kB."""
LEAST_LIMIT = 1_000_000_000
"""Bytes: below it, interpreters and libraries are measured and not loaders, so small data have this limit."""
MARK = "PENSTOCK_BENCH_TURN"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one contest."""

    data: Data
    condition: str
    folder: Path
    rounds: int = 3
    seconds: float = 10.0
    patience: float = 90.0
    batch_size: int = 256
    seed: int = 0
    disk: int | None = None
    block_size: str = "auto"
    shares: Mapping[str, float] = field(default_factory=lambda: {"corgipile": 0.1, "global": 0.25})

    @property
    def limit(self) -> int | None:
        return max(self.data.nbytes // 2, LEAST_LIMIT) if self.condition == "cold" else None


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant with the read-ahead (kB) of its turns; None leaves the machine's."""

    name: str
    contestant: Contestant
    read_ahead: int | None = None


@dataclass(slots=True)
class Outcome:
    """What a contestant's turns gave; ``failure`` is why it is out."""

    entry: Entry
    runs: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""

    def median(self, key: str) -> float:
        found = [run[key] for run in self.runs if run.get(key) is not None]
        return statistics.median(found) if found else math.nan

    @property
    def rate(self) -> float:
        """Rows a second: ours and the floor's from construction on, the peers' from their first batch on."""
        mine = self.entry.contestant.ours or self.entry.contestant.floor
        return self.median("rate" if mine else "steady")

    @property
    def works(self) -> bool:
        return bool(self.runs) and not self.failure

    @property
    def held(self) -> float:
        """The most anonymous memory above that of the process with all its imports."""
        return max((run["peak_bytes"] - run["base_bytes"] for run in self.runs), default=math.nan)


def entries(chosen: Mapping[str, Contestant], *, condition: str) -> list[Entry]:
    """Return the turns of a round: those that map memory have two when cold, where the disk's setting is unusual."""
    found = [Entry(name, contestant) for name, contestant in chosen.items()]
    if condition == "cold" and any(kb != USUAL for kb in read_ahead_settings().values()):
        found += [Entry(f"{e.name} @{USUAL} kB", e.contestant, USUAL) for e in found if e.contestant.mapped]
    return found


def contend(terms: Terms, chosen: Mapping[str, Contestant]) -> dict[str, Outcome]:
    """Write what is missing, run all rounds, and return every outcome by name."""
    outcomes = {entry.name: Outcome(entry) for entry in entries(chosen, condition=terms.condition)}
    for contestant in chosen.values():
        reason = prepare(terms, contestant)
        for outcome in outcomes.values():
            if outcome.entry.contestant is contestant and reason:
                outcome.failure = reason
    harness.interleave(
        {name: _turn(terms, outcome) for name, outcome in outcomes.items() if not outcome.failure} or {"none": int},
        repeats=terms.rounds,
    )
    return outcomes


def place(terms: Terms, contestant: Contestant) -> Path:
    """Return the folder of a contestant's format; its name tells the data, so that kept ones are found again."""
    given = contestant.rows_of(terms.data)
    cut = f"-{terms.block_size}" if contestant.format == ours.FORMAT and terms.block_size != "auto" else ""
    return terms.folder / f"{given.name}-{given.rows}" / f"{contestant.format}{cut}"


def prepare(terms: Terms, contestant: Contestant) -> str:
    """Write a contestant's format unless it is there; return why it could not be written."""
    folder = place(terms, contestant)
    if folder.exists():
        return ""
    unfinished = folder.with_name(f".{folder.name}-{os.getpid()}")
    unfinished.mkdir(parents=True)
    arguments = {
        "name": contestant.name,
        "data": terms.data.name,
        "rows": terms.data.rows,
        "folder": str(unfinished),
        "block_size": terms.block_size,
    }
    found, reason = attempt(measure.write, arguments, timeout=1800)
    if found is None:
        subprocess.run(["rm", "-rf", str(unfinished)], check=False)
        return f"writing its format: {reason}"
    unfinished.rename(folder)
    _say(f"  wrote {contestant.format}: {found['bytes'] / 1e9:.2f} GB in {found['seconds']:.0f} s")
    return ""


def _turn(terms: Terms, outcome: Outcome) -> Callable[[], object]:
    def turn() -> float:
        if outcome.failure:
            return math.nan
        contestant = outcome.entry.contestant
        folder = place(terms, contestant)
        if terms.condition == "cold":
            cold = harness.drop_caches()
        else:
            cold = False
            read_through(folder)
        with _ahead(outcome.entry.read_ahead) as ready:
            if not ready:
                outcome.failure = "the disk's read-ahead cannot be set here"
                return math.nan
            found, reason = attempt(
                measure.read,
                {
                    "name": contestant.name,
                    "data": terms.data.name,
                    "rows": terms.data.rows,
                    "folder": str(folder),
                    "seconds": terms.seconds,
                    "once": terms.condition == "cold",
                    "patience": terms.patience,
                    "batch_size": terms.batch_size,
                    "seed": terms.seed + len(outcome.runs),
                    "shares": dict(terms.shares),
                },
                limit=terms.limit,
                disk=terms.disk,
                timeout=terms.seconds + terms.patience + 60,
            )
        if found is None:
            outcome.failure = reason
            _say(f"  {outcome.entry.name}: {reason}")
            return math.nan
        found["cold"], found["limited"] = cold, found["child"]["limited"]
        outcome.runs.append(found)
        _say(f"  {outcome.entry.name}: {outcome.runs[-1]['steady']:,.0f} rows/s, first batch {found['first']:.2f} s")
        return float(found["rate"])

    return turn


def attempt(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    limit: int | None = None,
    disk: int | None = None,
    timeout: float,
) -> tuple[dict[str, Any] | None, str]:
    """Run a child; return its result, or None and the reason why there is none. No process of it is left behind."""
    mark, late = uuid.uuid4().hex, threading.Event()

    def stop() -> None:
        late.set()
        end_marked(mark)  # while its control group is still there, which cannot go before its processes

    timer = threading.Timer(timeout, stop)
    timer.start()
    with tempfile.TemporaryDirectory(prefix="penstock-turn-", ignore_cleanup_errors=True) as scratch:
        env = {MARK: mark, "TMPDIR": scratch, "RAY_TMPDIR": scratch, "TOKENIZERS_PARALLELISM": "0"}
        try:
            found = harness.run_child(function, arguments=arguments, limit=limit, disk=disk, env=env)
        except harness.ChildFailed as error:
            if late.is_set():
                return None, f"hangs: no end after {timeout:.0f} s"
            if error.out_of_memory:
                return None, f"out of memory under a limit of {(limit or 0) / 1e6:.0f} MB"
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return None, next((line for line in reversed(lines) if _tells(line)), lines[-1])[:200]
        finally:
            timer.cancel()
            end_marked(mark)
    return found, ""


def _tells(line: str) -> bool:
    """Say whether a line of a traceback names the error."""
    name = line.split(":")[0]
    return name.replace(".", "").replace("_", "").isalnum() and name.endswith(("Error", "Exception", "Interrupt"))


def end_marked(mark: str) -> int:
    """End every process that carries the mark in its environment; return how many there were."""
    ended = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), 9)
                ended += 1
    return ended


@contextlib.contextmanager
def _ahead(kb: int | None) -> Iterator[bool]:
    if kb is None:
        yield True
    else:
        with read_ahead(kb) as done:
            yield done


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(outcomes: Mapping[str, Outcome]) -> str:
    """Return one line per contestant, the fastest first: figures, and those of ours over them."""
    ours = {name.split()[-1]: o for name, o in outcomes.items() if o.entry.contestant.ours and o.works}
    width = max(map(len, outcomes))
    head = f"{'contestant':<{width}}  {'rows/s':>10}  {'±':>4}  {'first s':>7}  {'quality':>7}  {'MB held':>7}  {'epochs':>6}  {'GB disk':>7}"
    lines = [head + "".join(f"  {name + ' ×':>11}" for name in ours)]
    for name, outcome in sorted(outcomes.items(), key=lambda item: -item[1].rate if item[1].works else math.inf):
        if not outcome.works:
            lines.append(f"{name:<{width}}  failed: {outcome.failure or 'no turn'}")
            continue
        rates = [run["rate"] for run in outcome.runs]
        covered = statistics.median(run["rows"] / run["given"] for run in outcome.runs)
        lines.append(
            f"{name:<{width}}  {outcome.rate:>10,.0f}  {(max(rates) - min(rates)) / 2 / statistics.median(rates):>4.0%}"
            f"  {outcome.median('first'):>7.2f}  {outcome.median('quality'):>7.3g}  {outcome.held / 1e6:>7.0f}  {covered:>6.2f}"
            f"  {outcome.median('disk_bytes') / 1e9:>7.2f}"
            + "".join(f"  {mine.rate / outcome.rate:>11.2f}" for mine in ours.values())
        )
    return "\n".join(lines)
