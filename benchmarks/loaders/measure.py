"""What happens in a child: a format is written, or a loader runs against the clock and what it gives is checked.

The clock stops after some seconds or, if asked, with the first epoch: what is read a second time may come from
memory. The bytes that came from disk are counted, so that a run cannot pass for cold. Each row's number is read from its bytes, so that a loader that
repeats rows, or mixes labels up, is found out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders import ours
from benchmarks.loaders.contest import Batch, Contestant, Job, contestants
from benchmarks.loaders.samples import KINDS, Data, balance

SAMPLING = 0.1
"""Seconds between two looks at the memory in use."""


def write(name: str, data: str, rows: int, folder: str, *, block_size: int | str) -> dict[str, Any]:
    """Write a contestant's format, ours with the block size given; return seconds and bytes on disk."""
    ours.BLOCK_SIZE = block_size
    contestant = contestants()[name]
    began = time.perf_counter()
    contestant.write(Path(folder), contestant.rows_of(KINDS[data](rows)))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())}


def read(
    name: str,
    data: str,
    rows: int,
    folder: str,
    *,
    seconds: float,
    once: bool,
    patience: float,
    batch_size: int,
    seed: int,
    shares: dict[str, float],
) -> dict[str, Any]:
    """Run a contestant for some seconds after its first batch, which must come within ``patience`` seconds.

    With ``once`` it also stops with its first epoch.
    """
    contestant = contestants()[name]
    given = contestant.rows_of(KINDS[data](rows))
    job = Job(given, batch_size=batch_size, seed=seed, shares=shares)
    for module in contestant.imports:
        importlib.import_module(module)
    record = Record(job)
    with _alarm(seconds + patience), _Memory() as memory:
        result = _run(contestant, Path(folder), job, seconds, once=once, record=record)
    return {
        **result,
        "quality": None if contestant.floor else record.judge(),
        "base_bytes": memory.base,
        "peak_bytes": memory.peak,
        "disk_bytes": memory.disk_bytes,
        "given": given.rows,
    }


class Record:
    """What was delivered, up to an epoch's worth, in memory that is there before the measurement begins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.numbers = np.full(job.data.rows, -1, np.int32)
        self.labels = np.full(job.data.rows, -1, np.int8)
        self.sizes: list[int] = []
        self.count = 0

    def add(self, x: Any, label: Any) -> int:
        """Note a batch unless there is no more room; return its rows."""
        x = np.asarray(x)
        end = self.count + len(x)
        if end <= len(self.numbers):
            self.numbers[self.count : end] = self.job.data.numbers(x)
            self.labels[self.count : end] = label
            self.sizes.append(len(x))
            self.count = end
        return len(x)

    def judge(self) -> float:
        """Check what was delivered, and return how well it was shuffled."""
        numbers, labels = self.numbers[: self.count], self.labels[: self.count]
        # In little memory and piece by piece: the limit still holds, and what the loader held is still there.
        seen = np.zeros(self.job.data.rows, np.bool_)
        seen[numbers] = True
        twice = len(numbers) - int(seen.sum())
        if twice:
            raise ValueError(f"{twice} of {len(numbers)} rows of an epoch came twice")
        pieces = range(0, len(numbers), 1 << 20)
        wrong = sum(
            int((self.job.data.labels(numbers[at : at + (1 << 20)]) != labels[at : at + (1 << 20)]).sum())
            for at in pieces
        )
        if wrong:
            raise ValueError(f"{wrong} of {len(numbers)} labels belong to other rows")
        # Batches at the end of an epoch or of a worker's share may be short: only whole ones are comparable.
        whole = np.repeat(np.array(self.sizes) == self.job.batch_size, self.sizes)
        return balance(labels[whole], self.job.batch_size)


def _run(
    contestant: Contestant, folder: Path, job: Job, seconds: float, *, once: bool = False, record: Record
) -> dict[str, Any]:
    began = time.perf_counter()
    epochs = contestant.open(folder, job)
    count, first, head, end, opened = 0.0, 0.0, 0.0, 0.0, 0
    while not opened or (not once and time.perf_counter() - began - first < seconds):
        before, batches = count, epochs(opened)
        opened += 1
        for x, label in batches:
            count += label if contestant.floor else record.add(x, label)
            end = time.perf_counter() - began
            if not first:
                first, head = end, count
            elif end - first >= seconds:
                break
        _close(batches)
        if count == before:
            raise ValueError(f"epoch {opened - 1} has no batches")
    return {
        "rows": count,
        "epochs": opened,
        "seconds": end,
        "first": first,
        "rate": count / end,
        "steady": (count - head) / (end - first) if end > first else count / end,
    }


def _close(batches: Iterator[Batch]) -> None:
    close = getattr(batches, "close", None)
    if callable(close):
        close()


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise in this thread when the time is up, so that a loader that hangs is left in an orderly way."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no end after {seconds:.0f} s")

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


class _Memory:
    """Watches what this process and all its children hold of their own, and what they have read from disk."""

    def __init__(self) -> None:
        self.base = self.peak = resident(os.getpid())
        self._start = disk_reads(os.getpid())
        self._reads = dict(self._start)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def disk_bytes(self) -> int:
        return sum(count - self._start.get(process, 0) for process, count in self._reads.items())

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLING):
            self.peak = max(self.peak, resident(os.getpid()))
            self._reads |= disk_reads(os.getpid())

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._reads |= disk_reads(os.getpid())


def family(process: int) -> Iterator[int]:
    """Go through a process and all that descend from it."""
    waiting = [process]
    while waiting:
        yield (number := waiting.pop())
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{number}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())


def disk_reads(process: int) -> dict[int, int]:
    """Return the bytes that each process of a family has had read from disk, by whatever way."""
    found = {}
    for number in family(process):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{number}/io").read_text().splitlines()
            found[number] = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return found


def resident(process: int) -> int:
    """Return the bytes of anonymous memory that a family of processes holds, shared memory counted once."""
    own, shared = 0, 0
    for number in family(process):
        with contextlib.suppress(OSError, KeyError):  # it may have ended meanwhile
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
            own += sizes["RssAnon"]
            shared = max(shared, sizes["RssShmem"])
    return own + shared


def sizes(data: Data) -> str:
    """Say how large the data are."""
    return f"{data.rows:,} {data.name} of {data.row_bytes:,} bytes, {data.nbytes / 1e9:.2f} GB"
