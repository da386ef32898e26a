"""The program of a worker process: run tasks that come through a pipe until it is closed."""

from __future__ import annotations

import os
import select
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.errors import PenstockError, WorkerDiedError


@dataclass(frozen=True, slots=True)
class Raised:
    """An error on its way to whoever drives."""

    error: Exception


class Served:
    """An object that is made from a pickle when it is first needed, and whose methods are called by name."""

    def __init__(self, make: bytes) -> None:
        self._make = make
        self._object: Any = None

    def answer(self, task: int, method: str, arguments: bytes) -> memoryview:
        """Call a method with pickled arguments; return its task, its value and the seconds it took, pickled."""
        began = time.perf_counter()
        try:
            if self._object is None:
                self._object = ForkingPickler.loads(self._make)()
            value: Any = getattr(self._object, method)(*ForkingPickler.loads(arguments))
        except Exception as error:
            value = _raised(error, method)
        seconds = time.perf_counter() - began
        try:
            return ForkingPickler.dumps((task, value, seconds))
        except Exception as error:  # a pickle may fail with anything
            return ForkingPickler.dumps((task, _raised(error, method), seconds))


def serve_pipe(descriptor: int) -> None:
    """Serve the pipe that was handed down to this process, and end with it."""
    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    serve(Connection(descriptor))
    os._exit(0)  # maps and pools need no farewell


def serve(pipe: Connection) -> None:
    """Take the maker of the object to serve, then tasks; answer each with its value and the seconds it took."""
    with suppress(EOFError, OSError):
        served = Served(pipe.recv_bytes())
        while True:
            task, method = pipe.recv()
            pipe.send_bytes(served.answer(task, method, pipe.recv_bytes()))


def _watch(descriptor: int) -> None:
    """End in the middle of a task when the other end of the pipe is gone, so that none outlives a driver that was killed."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    os._exit(0)


def _raised(error: Exception, method: str) -> Raised:
    """Make an error ready to travel, with the place where it was raised."""
    told = error
    if not isinstance(error, PenstockError):
        told = WorkerDiedError(f"a worker failed at {method}: {type(error).__name__}: {error}")
    told.add_note("In the worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return Raised(told)
