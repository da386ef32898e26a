"""Penstock's way over groups against other ways on the same code, and what it reads and holds: part of `benchmarks.groups`.

The other ways are the paper's rivals, of `benchmarks.rivals.group_tasks`: the same rows, workers and solver, so that what differs is
only who trains what, and that configs share each pass. Rows are sorted by group beforehand, untimed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.groups_data import PASSES, PENALTIES, SEED, SHARE, sizes_of, write
from benchmarks.harness import Claim

WORKERS, BUDGET, EPOCHS = 2, 64_000_000, 2
PATIENCE = 600
"""Seconds for training within the budget, of which more is only asked once the disk is told to read less ahead."""
WAYS = {
    "lbfgs": ("group-task", "model-task", "data-parallel", "switching"),
    "sgd": ("group-task",),  # those that add up sums are not for SGD
}
SGD_RATES = (0.1, 0.03, 0.01)
"""Of SGD, by four penalties: twelve configs too."""


def sort(path: str, folder: str) -> int:
    """Sort rows by group, and return their bytes."""
    from penstock.groups.etl import group

    with group(path, "group", folder, label="clicked", memory="1GB", model="logistic") as grouped:
        return grouped.nbytes


def train(folder: str, solver: str, way: str, epochs: int, memory: int, watched: bool) -> dict[str, Any]:
    """Train on sorted rows; return seconds and the loss reached, the bytes read from disk, and the most memory if watched."""
    import penstock
    from benchmarks.rivals.group_tasks import approach
    from penstock.groups import GroupBy

    model = penstock.LogisticRegression(solver=solver, epochs=epochs, seed=SEED, memory=memory)
    search = {"l2": list(PENALTIES)}
    if solver == "sgd":
        search = {"learning_rate": list(SGD_RATES), "l2": list(PENALTIES[::3])}
    with _anonymous() if watched else contextlib.nullcontext(lambda: 0) as most:
        before, began = _read_bytes(), time.perf_counter()
        with approach(way):
            result = GroupBy(folder, by="group").fit(
                model, search=search, validation=SHARE, pooled=False, workers=WORKERS
            )
        seconds = time.perf_counter() - began
    loss = float(np.mean(result.chosen["selection_loss"].to_numpy()))
    return {"seconds": seconds, "loss": loss, "read": _read_bytes() - before, "held": most()}


def claims(folder: Path, path: Path, what: str, rounds: int, *, quick: bool) -> list[Claim]:
    """Measure all of it on a file of skewed groups; if it is to be quick, only some of it."""
    place = folder / "sorted"
    size = harness.run_child(sort, arguments={"path": str(path), "folder": str(place)})["value"]
    found: list[Claim] = []
    for solver, ways in WAYS.items():
        found += _ways(place, solver, ways[:1] if quick else ways, what, rounds)
    found += [_reads(place, solver, size) for solver in (["sgd"] if quick else WAYS)]
    return [*found, *_memory(folder, place, size)]


def _child(place: Path, solver: str, way: str = "grouped", **options: Any) -> dict[str, Any]:
    limit, timeout = options.pop("limit", None), options.pop("timeout", 3600)
    arguments = {"epochs": PASSES, "memory": 512_000_000, "watched": False, **options}
    arguments |= {"folder": str(place), "solver": solver, "way": way}
    return harness.run_child(train, arguments=arguments, limit=limit, timeout=timeout)


def _ways(place: Path, solver: str, ways: tuple[str, ...], what: str, rounds: int) -> list[Claim]:
    kept: dict[str, float] = {}

    def turn(way: str) -> Callable[[], float]:
        def run() -> float:
            found = _child(place, solver, way)
            kept[way] = found["loss"]
            return float(found["seconds"])

        return run

    results = harness.interleave({name: turn(name) for name in ("grouped", *ways)}, repeats=rounds)
    print(f"{solver} by approach, seconds\n{results.table()}", file=sys.stderr)
    told = f"{what}, {PASSES} epochs, {WORKERS} workers, sorting by group not counted"
    found = []
    for way in ways:
        note = f"{told}; {results.median('grouped'):.1f} s against {results.median(way):.1f} s"
        note += f", loss {kept['grouped']:.5f} against {kept[way]:.5f}"
        ratio = results.ratio(way, "grouped")
        found.append(Claim(f"{solver}: faster than {way} on the same code", ratio, "printed", True, note))
    if solver == "lbfgs":  # by SGD rows come in another order, which is as good but not the same
        worst = max(kept["grouped"] / kept[way] for way in ways)
        found.append(Claim.at_most(f"{solver}: mean held-out loss over that of the other ways, at worst", worst, 1.001))
    return found


def _reads(place: Path, solver: str, size: int) -> Claim:
    """Count the bytes that driver and workers read from disk in all epochs together, rows not in memory at first."""
    name, bar = f"{solver}: bytes read in {PASSES} epochs over those of the rows", 1.1
    if not Path("/proc/self/io").exists() or not harness.evict(place):
        return Claim.not_measured(name, f"≤ {bar}×", "this system does not tell bytes read, or lets no file be evicted")
    read = _child(place, solver)["read"]
    if read < 0.9 * size:
        why = f"{read / 1e6:.0f} of {size / 1e6:.0f} MB were read: rows were still in memory, or are on no disk"
        return Claim.not_measured(name, f"≤ {bar}×", why)
    note = (
        f"{read / 1e6:.0f} MB of {size / 1e6:.0f} MB, read_bytes of driver and {WORKERS} workers, rows evicted before"
    )
    return Claim.at_most(name, read / size, bar, note=note)


def _memory(folder: Path, place: Path, size: int) -> list[Claim]:
    """Train by SGD within a budget, in a control group that has no room for the rows beside it.

    What interpreters and libraries take is that of the same training on next to no rows.
    """
    tiny = folder / "tiny"
    source = write(folder / "tiny.arrow", sizes_of("one", 2_000))
    harness.run_child(sort, arguments={"path": str(source), "folder": str(tiny)})
    name = f"sgd: memory beside the interpreters' over memory='{BUDGET // 10**6}MB'"
    options: dict[str, Any] = {"epochs": EPOCHS, "memory": BUDGET, "watched": True}
    idle = _child(tiny, "sgd", limit=16 << 30, **options)
    if not idle["held"]:
        return [Claim.not_measured(name, "≤ 1×", "this system does not tell what processes hold")]
    limit = (idle["child"]["group_peak_bytes"] + BUDGET) if idle["child"]["limited"] else None
    harness.evict(place)  # pages that are cached already would be nobody's
    try:
        found, ahead = _patiently(place, limit=limit, **options)
    except harness.ChildFailed as error:
        if not error.out_of_memory:
            raise
        return [Claim(name, None, "≤ 1×", False, f"killed in a control group of {(limit or 0) / 1e6:.0f} MB")]
    more = found["held"] - idle["held"]
    note = f"driver and {WORKERS} workers, at most {found['held'] / 1e6:.0f} MB of their own against {idle['held'] / 1e6:.0f}"
    note += f" MB on {2_000:,} rows; rows of {size / 1e6:.0f} MB, {EPOCHS} epochs in {found['seconds']:.1f} s"
    note += f", {found['read'] / 1e6:,.0f} MB read{ahead}"
    note += f", in a control group of {limit / 1e6:.0f} MB" if limit else f"; not limited: {found['child']['why']}"
    return [Claim.at_most(name, more / BUDGET, 1, note=note)]


def _patiently(place: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """Train by SGD, and once more with less read ahead if that is what it takes to come to an end."""
    try:
        return _child(place, "sgd", timeout=PATIENCE, **options), ""
    except subprocess.TimeoutExpired:
        harness.evict(place)
        with harness.read_ahead(128):
            found = _child(place, "sgd", **options)
        return found, f" with 128 kB of read-ahead, and no end in {PATIENCE} s with that of the machine"


def _read_bytes() -> int:
    """Return what this process, and those of its children that have ended, have had read from disk."""
    with contextlib.suppress(OSError):
        words = Path("/proc/self/io").read_text().split()
        return int(words[words.index("read_bytes:") + 1])
    return 0


@contextlib.contextmanager
def _anonymous() -> Iterator[Callable[[], int]]:
    """Watch what this process and its children hold of their own; mapped files are the system's to keep or to drop."""
    most, over = 0, threading.Event()

    def held(process: int | str) -> int:
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{process}/status").read_text().split()
            return 1024 * int(words[words.index("RssAnon:") + 1])
        return 0

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            with contextlib.suppress(OSError):
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                most = max(most, sum(map(held, ["self", *children])))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: most
    finally:
        over.set()
        thread.join()
