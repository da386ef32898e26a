"""Damage to files at rest: each fault flips one bit of a file that the product wrote, or cuts the file short.

Faults run in a child process, because a damaged file may end the process that reads it: ``python -m
benchmarks.faults.damage DOOR FOLDER SEED FIRST COUNT`` prints one JSON object a fault. The parent counts a child that
dies as a crash and goes on with the next fault in another child.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.conditions import ROOT
from benchmarks.faults.doors import Answer, Door, Refused, doors
from benchmarks.faults.outcome import Outcome

TRUNCATED = 8
"""One fault in so many cuts the file short; the others flip a bit."""
PATIENCE = 100
"""Seconds after which a process that works on one fault is taken to hang."""


def damage_files(door: Door, built: Path, *, faults: int, seed: int) -> list[Outcome]:
    """Damage copies of a door's files, one fault a copy, and return what came of each."""
    outcomes: list[Outcome] = []
    while len(outcomes) < faults:
        command = [sys.executable, "-m", "benchmarks.faults.damage", door.name, str(built), str(seed)]
        command += [str(len(outcomes)), str(faults - len(outcomes))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        outcomes += [Outcome(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode and len(outcomes) < faults:
            detail = f"ended with status {done.returncode}: {done.stderr[-300:]}"
            if done.returncode > 0:
                raise RuntimeError(f"{door.name}: {detail}")
            outcomes.append(Outcome(door.name, "damaged file", "crashed", detail))
    return outcomes


def written(door: Door, folder: Path) -> list[Path]:
    """Return the files that the product wrote in a folder, without the user's inputs and files of no bytes."""
    with tempfile.TemporaryDirectory() as empty:
        if door.commands:
            door.inputs(Path(empty))
        given = {path.name for path in Path(empty).iterdir()} or {"clicks.parquet", "new.parquet", "epochs.txt"}
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    return [path for path in files if path.parts[0] not in given]


def _faults(door: Door, built: Path, seed: int, first: int, count: int) -> Iterator[Outcome]:
    files = written(door, built)
    with _workplace(built):
        truth = door.answer()
    for number in range(first, first + count):
        signal.alarm(PATIENCE)  # ends a process that hangs, which is then counted as a crash
        chance = np.random.default_rng([seed, number])
        path = files[number % len(files)]
        with _workplace(built):
            what = _damage(path, chance, truncate=number % TRUNCATED == TRUNCATED - 1)
            yield _judge(door, truth, "truncated file" if what.endswith("cut") else "flipped bit", f"{path}: {what}")


class _workplace:  # noqa: N801 - used like a function
    """A copy of a folder as the current one."""

    def __init__(self, built: Path) -> None:
        self.built = built

    def __enter__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-fault-")
        shutil.copytree(self.built, self.folder.name, dirs_exist_ok=True)
        self.before = os.getcwd()
        os.chdir(self.folder.name)

    def __exit__(self, *_: object) -> None:
        os.chdir(self.before)
        self.folder.cleanup()


def _damage(path: Path, chance: np.random.Generator, *, truncate: bool) -> str:
    """Damage a file and keep its time stamp; return what was done."""
    size, stat = path.stat().st_size, path.stat()
    with open(path, "r+b") as file:
        at = int(chance.integers(size))
        if truncate:
            file.truncate(at)
            what = f"{at} of {size} bytes left, the rest cut"
        else:
            file.seek(at)
            byte, bit = file.read(1)[0], int(chance.integers(8))
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))
            what = f"bit {bit} of byte {at} of {size}"
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return what


def _judge(door: Door, truth: Answer, fault: str, detail: str) -> Outcome:
    from penstock.errors import PenstockError

    try:
        answer = door.answer()
    except (PenstockError, Refused) as error:
        return Outcome(door.name, fault, "refused", f"{detail}: {str(error)[:200]}")
    except Exception as error:
        return Outcome(door.name, fault, "crashed", f"{detail}: {type(error).__name__}: {str(error)[:200]}")
    return Outcome(door.name, fault, "correct" if door.same(truth, answer) else "silent", detail)


def _main() -> None:
    name, built, seed, first, count = sys.argv[1:]
    warnings.simplefilter("ignore")
    for outcome in _faults(doors()[name], Path(built), int(seed), int(first), int(count)):
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    _main()
