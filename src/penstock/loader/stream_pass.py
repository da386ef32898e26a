"""One pass over a stream: what a ``for`` loop holds, and what stops its threads wherever the loop is left.

A loop that is left early drops its pass at once, in its own thread, and the threads are stopped there. A pass that is
collected as garbage instead would wait for its threads inside whatever line some thread had come to, and two of
them might wait for each other: it is set aside and ended when a stream is next used. A forked process has none of the
threads, so it never ends what its parent began.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Generator
from typing import Any

from penstock.errors import UsageError


class ActivePass:
    """A pass under way, as its stream knows it; nothing but `end` ends it."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches: Generator[Any, None, None] | None = batches
        self._process = os.getpid()
        self._why = ""
        _under_way.add(self)  # a generator that is held here is not collected as garbage

    def next(self) -> Any:
        """Return the next batch."""
        if self._why:
            raise UsageError(f"this pass has ended: {self._why}")
        if self._batches is None:
            raise StopIteration
        if self._process != os.getpid():
            raise UsageError("this pass was begun in another process, whose threads are not here; begin a new one")
        try:
            return next(self._batches)
        except BaseException:
            self._batches = None
            _under_way.discard(self)
            raise

    def end(self, why: str = "") -> None:
        """Stop the threads; asking for another batch fails, for this reason."""
        if self._process == os.getpid() and self._batches is not None:
            batches, self._batches, self._why = self._batches, None, why
            _under_way.discard(self)
            batches.close()


class Pass:
    """A pass as its loop knows it: dropping it ends it."""

    def __init__(self, running: ActivePass) -> None:
        self._running = running

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        return self._running.next()

    def __del__(self) -> None:
        if getattr(_collecting, "now", False):
            _left.append(self._running)  # to be ended later
        else:
            # There is nobody to tell; a name of this module is gone where the interpreter ends before the pass does.
            try:  # noqa: SIM105, for the same reason
                self._running.end()
            except Exception:
                pass


def end_left() -> None:
    """End the passes that were collected as garbage."""
    while _left:
        with contextlib.suppress(Exception):
            _left.pop().end()


_under_way: set[ActivePass] = set()
_left: list[ActivePass] = []
_collecting = threading.local()


def _note(phase: str, _: dict[str, int], *, collecting: threading.local = _collecting) -> None:
    collecting.now = phase == "start"


gc.callbacks.append(_note)
