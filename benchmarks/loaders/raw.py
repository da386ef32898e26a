"""The floor: reading our file from end to end and doing nothing with it.

Once through the page cache by one thread, as any sequential reader does, and once around it with many reads in
flight, which is what the disk can give. A row is counted for each row's worth of bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.loaders import ours
from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job

PIECE = 1 << 20
IN_FLIGHT = 16


def read_sequentially(folder: Path, job: Job) -> Epochs:
    """Read a megabyte at a time through the page cache."""
    path = folder / ours.FILE

    def epoch(number: int) -> Iterator[Batch]:
        buffer = bytearray(PIECE)
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield None, count / job.data.row_bytes

    return epoch


def read_directly(folder: Path, job: Job) -> Epochs:
    """Read megabytes around the page cache, many at a time."""
    path = folder / ours.FILE
    free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
    for _ in range(IN_FLIGHT):
        free.put(mmap.mmap(-1, PIECE))

    def epoch(number: int) -> Iterator[Batch]:
        size, stopped = path.stat().st_size, threading.Event()
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)

        def read(start: int) -> int:
            if stopped.is_set():
                return 0
            buffer = free.get()
            try:
                return os.preadv(file, [buffer], start)
            finally:
                free.put(buffer)

        with contextlib.ExitStack() as stack:
            stack.callback(os.close, file)
            pool = stack.enter_context(ThreadPoolExecutor(IN_FLIGHT))
            stack.callback(stopped.set)
            for count in pool.map(read, range(0, size, PIECE)):
                yield None, count / job.data.row_bytes

    return epoch


CONTESTANTS = (
    Contestant("raw sequential read", ours.FORMAT, ours.write, read_sequentially, floor=True),
    Contestant(f"raw direct read, {IN_FLIGHT} in flight", ours.FORMAT, ours.write, read_directly, floor=True),
)
