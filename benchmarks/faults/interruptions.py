"""Faults while a command runs: SIGKILL, a full disk, changed inputs, a dead worker, a lost connection.

Each fault works on a folder of its own. What must hold afterwards: the same command with ``--resume`` ends in the
answer of an undisturbed run and in the same files, or refuses in a clear message.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.conditions import ROOT
from benchmarks.faults.doors import PENSTOCK, Answer, Door, build
from benchmarks.faults.outcome import Outcome, Verdict

PARALLEL = 2
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A run without faults: the folder it left, the seconds its commands took, and the answer."""

    folder: Path
    seconds: float
    answer: Answer


@contextlib.contextmanager
def undisturbed(door: Door) -> Iterator[Undisturbed]:
    """Give a run of a door without faults."""
    with tempfile.TemporaryDirectory(prefix="penstock-fault-") as folder:
        seconds = build(door, Path(folder))
        yield Undisturbed(Path(folder), seconds, answer_of(door, Path(folder)))


def answer_of(door: Door, folder: Path) -> Answer:
    """Return a door's answer from a copy of a folder, computed in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-fault-") as copied:
        shutil.copytree(folder, copied, dirs_exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.faults.interruptions", door.name, copied],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        with np.load(Path(copied, "answer.npz"), allow_pickle=False) as arrays:
            return [arrays[name] for name in arrays]


def in_parallel(fault: Callable[[int], Outcome], count: int) -> list[Outcome]:
    """Run so many faults, a few at a time."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(fault, range(count)))


def kills(door: Door, truth: Undisturbed, *, faults: int, seed: int) -> list[Outcome]:
    """End the last command by SIGKILL at a random moment, then run it again."""

    def fault(number: int) -> Outcome:
        chance = np.random.default_rng([seed, number])
        with _inputs(door) as folder:
            _prepare(door, folder)
            with _started(door, folder) as process:
                time.sleep(truth.seconds * chance.uniform(0.2, 1.1))
                os.killpg(process.pid, signal.SIGKILL)
            return _again(door, folder, truth, "SIGKILL")

    return in_parallel(fault, faults)


def full_disks(door: Door, truth: Undisturbed, *, faults: int, seed: int) -> list[Outcome]:
    """Run a door's commands on a file system that may be too small, then the last again on a large one."""
    with _inputs(door) as folder:
        needed = _pages(truth.folder) - _pages(folder)

    def fault(number: int) -> Outcome:
        chance = np.random.default_rng([seed, number])
        with _inputs(door) as folder, _small_disk(folder, needed * chance.uniform(0, 1.2)) as small:
            try:
                _prepare(door, small)
            except subprocess.CalledProcessError as error:
                return _judge(door, "full disk", error.returncode, error.stderr, small, truth)
            done = _run(door.commands[-1], small)
            first = _judge(door, "full disk", done.returncode, done.stderr, small, truth)
            if first.verdict != "refused":
                return first
            shutil.copytree(small, folder, dirs_exist_ok=True)
            then = _again(door, folder, truth, "full disk")
            return first if then.verdict == "correct" else then

    return in_parallel(fault, faults)


def changed_inputs(door: Door, truth: Undisturbed, *, faults: int, seed: int) -> list[Outcome]:
    """End a training by SIGKILL, change its input in one of four ways, and resume it.

    A file restored with the same bytes and another time has to be taken; anything else has to be refused unless the
    training begins anew.
    """

    def fault(number: int) -> Outcome:
        chance = np.random.default_rng([seed, number])
        kind = ("restored", "flipped bit", "cut", "replaced")[number % 4]
        with _inputs(door) as folder:
            with _started(door, folder) as process:
                time.sleep(truth.seconds * chance.uniform(0.5, 0.95))
                os.killpg(process.pid, signal.SIGKILL)
            _change(next(folder.glob(door.commands[-1][door.commands[-1].index("train") + 1])), kind, chance)
            if kind == "restored":
                return _again(door, folder, truth, "input restored")
            done = _run([*door.commands[-1], "--resume"], folder)
            if done.returncode:
                return _judge(door, "input changed", done.returncode, done.stderr, folder, truth)
            # It may have begun anew, from the changed data alone; or it had ended before the change.
            other = _fresh(door, folder)
            answer = answer_of(door, folder)
            good = door.same(answer, other) or door.same(answer, truth.answer)
            return Outcome(door.name, "input changed", "correct" if good else "silent", kind)

    return in_parallel(fault, faults)


def dead_workers(door: Door, truth: Undisturbed, *, faults: int, seed: int) -> list[Outcome]:
    """End one of a command's child processes by SIGKILL at a random moment."""

    def fault(number: int) -> Outcome:
        chance = np.random.default_rng([seed, number])
        with _inputs(door) as folder, _started(door, folder) as process:
            time.sleep(truth.seconds * chance.uniform(0.3, 1.0))
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            with contextlib.suppress(OSError):
                if found := children.read_text().split():
                    os.kill(int(chance.choice(found)), signal.SIGKILL)
            _, stderr = process.communicate()
            return _judge(door, "dead worker", process.returncode, stderr, folder, truth)

    return in_parallel(fault, faults)


def _again(door: Door, folder: Path, truth: Undisturbed, fault: str) -> Outcome:
    """Run the last command to its end, resumed where it can be, and judge what it leaves."""
    done = _run([*door.commands[-1], *["--resume"] * door.resumable], folder)
    return _judge(door, fault, done.returncode, done.stderr, folder, truth)


def _judge(door: Door, fault: str, status: int, stderr: str, folder: Path, truth: Undisturbed) -> Outcome:
    def outcome(verdict: Verdict, detail: str = "") -> Outcome:
        return Outcome(door.name, fault, verdict, detail)

    if status:
        return outcome("crashed" if status < 0 or "Traceback" in stderr else "refused", stderr[-300:])
    if not door.same(answer_of(door, folder), truth.answer):
        return outcome("silent", "another answer")
    left = _files(folder) - _files(truth.folder)
    return outcome("silent", f"left behind: {sorted(left)}") if left else outcome("correct")


def _change(path: Path, kind: str, chance: np.random.Generator) -> None:
    data, stat = bytearray(path.read_bytes()), path.stat()
    if kind == "flipped bit":
        data[int(chance.integers(len(data)))] ^= 1 << int(chance.integers(8))
    elif kind == "cut":
        del data[len(data) * 9 // 10 :]
    elif kind == "replaced":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        pq.write_table(table.slice(table.num_rows // 2), path, row_group_size=250)
        return
    path.write_bytes(data)
    if kind == "flipped bit":
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _fresh(door: Door, folder: Path) -> Answer:
    """Return the answer of a new run over a folder's inputs as they are now."""
    with tempfile.TemporaryDirectory(prefix="penstock-fault-") as made:
        door.inputs(Path(made))
        for path in Path(made).iterdir():
            shutil.copy(folder / path.name, path)
        if _run(door.commands[-1], Path(made)).returncode:
            return []
        return answer_of(door, Path(made))


@contextlib.contextmanager
def _inputs(door: Door) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-fault-") as folder:
        door.inputs(Path(folder))
        yield Path(folder)


def _prepare(door: Door, folder: Path) -> None:
    for command in door.commands[:-1]:
        _run(command, folder).check_returncode()


@contextlib.contextmanager
def _started(door: Door, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PENSTOCK, *door.commands[-1]],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _small_disk(folder: Path, free: float) -> Iterator[Path]:
    """Give a file system with a folder's files and so many pages of free room. Needs root."""
    place = Path(tempfile.mkdtemp(prefix="penstock-disk-"))
    size = (_pages(folder) + int(free)) * PAGE
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
    try:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PENSTOCK, *command], cwd=folder, capture_output=True, text=True, check=False)


def _files(folder: Path) -> set[str]:
    """Return the names of files, without numbers: into how many files workers write depends on their speed."""
    return {re.sub(r"\d+", "N", str(path.relative_to(folder))) for path in folder.rglob("*")}


def _pages(folder: Path) -> int:
    """Return how many pages of a file system a folder takes."""
    return sum(-(-path.stat().st_size // PAGE) for path in (folder, *folder.rglob("*")))


def _main() -> None:
    from benchmarks.faults.doors import doors

    name, folder = sys.argv[1:]
    os.chdir(folder)
    answer = doors()[name].answer()
    np.savez("answer.npz", *[array.astype(str) if array.dtype == object else array for array in answer])
    print(json.dumps(len(answer)))


if __name__ == "__main__":
    _main()
