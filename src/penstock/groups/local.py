"""Workers as processes of this machine, which share the rows through the page cache.

Nothing large travels: workers map the grouped files, and only weights and sums go through pipes. A worker that is killed is
started again. Each is a fresh interpreter that imports Penstock and nothing of the program that drives it, so that a script
needs no guard around its main part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.closing import Closing
from penstock.errors import UsageError
from penstock.groups.executor import Deaths, Done, Lost, Make
from penstock.groups.worker_process import Raised
from penstock.parallel import cores

# There is a process for each core already.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PROGRAM = "import sys; from penstock.groups.worker_process import serve_pipe; serve_pipe(int(sys.argv[1]))"
_PATIENCE = 5.0
"""Seconds that a worker has to end when it is asked to."""


@dataclass(slots=True)
class _Slot:
    process: subprocess.Popen[bytes]
    pipe: Connection
    pending: deque[int] = field(default_factory=deque)


class LocalExecutor(Closing):
    """Processes of this machine.

    Parameters
    ----------
    make : callable
        Makes the object whose methods workers call; picklable.
    workers : int, optional
        How many processes; as many as the process may use cores, unless said otherwise.
    """

    def __init__(self, make: Make, *, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise UsageError(
                "is not a number of processes", option="workers", value=workers, fixes=["choose 1 or more"]
            )
        self._make = pickled(make, "what makes a worker's object")
        self._slots: list[_Slot] = []
        try:
            for _ in range(workers or cores()):
                self._slots.append(self._started())
            self._deaths = Deaths(len(self._slots))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        return len(self._slots)

    @property
    def pids(self) -> list[int]:
        return [slot.process.pid for slot in self._slots]

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        slot = self._slots[worker]
        packed = pickled(arguments, f"an argument of {method}")
        slot.pending.append(task)
        with suppress(OSError):  # it died; `wait` tells
            slot.pipe.send((task, method))
            slot.pipe.send_bytes(packed)

    def wait(self) -> Done | Lost:
        if not any(slot.pending for slot in self._slots):
            raise UsageError("no worker has anything to do, so there is nothing to wait for; submit a task first")
        ready = wait([slot.pipe for slot in self._slots])[0]
        number = next(n for n, slot in enumerate(self._slots) if slot.pipe is ready)
        slot = self._slots[number]
        try:
            task, value, seconds = slot.pipe.recv()
        except (EOFError, OSError):
            return self._replaced(number)
        slot.pending.remove(task)
        if isinstance(value, Raised):
            raise value.error
        return Done(number, task, value, seconds)

    def close(self) -> None:
        for slot in self._slots:
            slot.pipe.close()
            slot.process.terminate()  # it may be in the middle of a task, or of its imports
        deadline = time.monotonic() + _PATIENCE
        for slot in self._slots:
            try:
                slot.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                slot.process.kill()
                slot.process.wait()
        self._slots = []

    def _replaced(self, number: int) -> Lost:
        """Start another process in a slot whose process died, and tell which tasks are lost."""
        slot = self._slots[number]
        slot.pipe.close()
        code = slot.process.wait()
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._deaths.add(reason)
        self._slots[number] = self._started()
        return Lost(number, tuple(slot.pending), reason)

    def _started(self) -> _Slot:
        mine, theirs = Pipe()
        program = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            program, pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        with suppress(OSError):  # it died; `wait` tells
            mine.send_bytes(self._make)
        return _Slot(process, mine)


def pickled(value: Any, what: str) -> memoryview:
    """Return something as it travels; what cannot is refused by its name."""
    try:
        return ForkingPickler.dumps(value)
    except Exception as error:  # a pickle may fail with anything
        raise UsageError(f"{what} cannot be sent to a worker ({error}); give something that can be pickled") from error
