"""All faults of all doors, and the bars they are held to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.connections import lost_connections
from benchmarks.faults.damage import damage_files
from benchmarks.faults.doors import Door, build, doors
from benchmarks.faults.interruptions import changed_inputs, dead_workers, full_disks, kills, undisturbed
from benchmarks.faults.outcome import Outcome, table
from benchmarks.harness import Claim

SEED = 0
FLIPS = 120
INTERRUPTIONS = 12
SLOW = ("rows by group",)
"""Doors whose answer starts processes: fewer bits are flipped there."""
QUICK = ("linear",)
"""Doors whose commands are interrupted in the short form, too."""


def run_all(*, quick: bool) -> list[Claim]:
    """Run all faults, print the table and every fault that went wrong, and return the claims."""
    outcomes = run_faults(quick=quick)
    print(table(outcomes))
    for outcome in outcomes:
        if outcome.verdict in ("silent", "crashed"):
            print(f"{outcome.verdict}: {outcome.door}, {outcome.fault}: {outcome.detail}", file=sys.stderr)
    return claims(outcomes, quick=quick)


def claims(outcomes: list[Outcome], *, quick: bool) -> list[Claim]:
    """Return the bars: nothing silent, nothing crashed, and enough faults for that to mean something."""
    found = [
        Claim.at_most(f"faults that end {verdict}", sum(o.verdict == verdict for o in outcomes), 0, unit="")
        for verdict in ("silent", "crashed")
    ]
    return found if quick else [*found, Claim.at_least("faults", len(outcomes), 1000, unit="")]


def run_faults(*, quick: bool) -> list[Outcome]:
    """Put every door through its faults."""
    outcomes: list[Outcome] = []
    for door in doors().values():
        print(f"  {door.name} …", file=sys.stderr, flush=True)
        found = run_door(door, quick=quick)
        print(table(found), file=sys.stderr, flush=True)  # for those who cannot wait for the rest
        outcomes += found
    return outcomes + lost_connections(faults=1 if quick else INTERRUPTIONS, seed=SEED)


def run_door(door: Door, *, quick: bool) -> list[Outcome]:
    """Put one door through its faults; ``quick`` leaves out most that need processes of their own."""
    flips = FLIPS // (8 if door.name in SLOW else 1) // (10 if quick else 1)
    with tempfile.TemporaryDirectory(prefix="penstock-faults-") as made:
        build(door, Path(made))
        outcomes = damage_files(door, Path(made), faults=flips, seed=SEED)
    if door.commands and not (quick and door.name not in QUICK):
        with undisturbed(door) as truth:
            for interrupt in _interruptions(door):
                outcomes += interrupt(door, truth, faults=1 if quick else INTERRUPTIONS, seed=SEED)
    return outcomes


def _interruptions(door: Door) -> Iterator[Callable[..., list[Outcome]]]:
    yield kills
    if os.geteuid() == 0:  # others may not mount a small disk
        yield full_disks
    if door.resumable:
        yield changed_inputs
    if door.name == "groups":
        yield dead_workers
