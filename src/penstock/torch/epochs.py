"""Which epoch a pass is, agreed on by the process that loops over a stock loader and the workers that serve it.

The stock loader tells a dataset nothing when a pass begins: workers are started anew with a copy of it, or kept. So
the count is in a file without a name that all of them share; the first worker of a pass moves it on.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import multiprocessing.context
import os
import tempfile
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any

from torch.utils.data import get_worker_info

_KEPT = 16
"""Passes remembered, for workers that are late to begin theirs."""


class Epochs:
    """Counts passes, for every process that loops over the data by itself.

    Examples
    --------
    >>> epochs = Epochs()
    >>> epochs.begin(), epochs.begin(), epochs.next
    (0, 1, 2)
    >>> epochs.next = 7
    >>> epochs.begin()
    7
    """

    def __init__(self, first: int = 0) -> None:
        with tempfile.TemporaryFile() as file:
            self._share(first, os.dup(file.fileno()))

    def _share(self, first: int, file: int) -> None:
        self._first, self._file = first, file
        self._begun = (0, 0)
        weakref.finalize(self, os.close, file)

    @property
    def next(self) -> int:
        """The epoch of the next pass."""
        with self._record() as record:
            return int(record["next"])

    @next.setter
    def next(self, epoch: int) -> None:
        self._first = epoch  # for processes that are forked from this one and loop by themselves
        with self._record() as record:
            record["next"] = epoch

    def begin(self) -> int:
        """Begin a pass, or join the others that make it, and return its epoch."""
        info = get_worker_info()
        with self._record() as record:
            if info is not None:
                # Workers of a pass have a seed in common; those that are kept serve several, each the same number.
                name, passes = [info.seed - info.id, self._turn()], record["passes"]
                for each in reversed(passes):
                    if each["name"] == name and info.id not in each["workers"]:
                        each["workers"].append(info.id)
                        return int(each["epoch"])
                passes.append({"name": name, "epoch": record["next"], "workers": [info.id]})
                del passes[:-_KEPT]
            record["next"] += 1
            return int(record["next"]) - 1

    def _turn(self) -> int:
        """Return how many passes this worker process has begun before."""
        process, begun = self._begun
        begun = begun if process == os.getpid() else 0
        self._begun = (os.getpid(), begun + 1)
        return begun

    @contextmanager
    def _record(self) -> Generator[dict[str, Any], None, None]:
        """Give what the processes of one loop share, to be changed by one of them at a time."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # given up also when the process is killed
        try:
            size = os.fstat(self._file).st_size
            records = json.loads(os.pread(self._file, size, 0) or b"{}")
            record = records.setdefault(str(_home()), {"next": self._first, "passes": []})
            yield record
            os.pwrite(self._file, json.dumps(records).encode().ljust(size), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {"first": self.next}
        if multiprocessing.context.get_spawning_popen() is not None:  # for a process that is being started
            state["file"] = DupFd(self._file)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            self._share(state["first"], state["file"].detach())
        else:
            self.__init__(state["first"])  # type: ignore[misc]  # a copy counts by itself


def _home() -> int:
    """Return the process that loops: this one, or the one whose worker this is."""
    parent = multiprocessing.parent_process()
    return os.getpid() if get_worker_info() is None or parent is None or parent.pid is None else parent.pid
