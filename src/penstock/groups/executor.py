"""What carries tasks to workers and brings answers back: the face that all executors have.

A worker is a slot that runs one task at a time, in the order given; the object that runs them is made once for each slot,
from a plain description that can travel. A slot whose process dies is filled again, and its tasks are reported lost: they
hold no state, so whoever drives gives them out anew.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from penstock.errors import WorkerDiedError


@dataclass(frozen=True, slots=True)
class Done:
    """A task's answer."""

    worker: int
    task: int
    value: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died with these tasks not answered; another is in its place."""

    worker: int
    tasks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an item of work on a group gave no answer, with the traceback where an exception was raised.

    Examples
    --------
    >>> try:
    ...     [][3]
    ... except IndexError as error:
    ...     print(Failure.of(error).reason)
    IndexError: list index out of range (<doctest penstock.groups.executor.Failure[0]>, line 2, in <module>)
    """

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an exception, naming the line that raised it."""
        frames = tracebacks.extract_tb(error.__traceback__)
        message = " ".join(str(error).split())
        place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        return cls(reason + place, "".join(tracebacks.format_exception(error)).rstrip())


class Executor(Protocol):
    """Runs tasks on workers."""

    @property
    def workers(self) -> int:
        """How many slots there are."""

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        """Have a worker call a method of its object; the number comes back with the answer."""

    def wait(self) -> Done | Lost:
        """Return the next thing that happened; an exception that a task raised is raised here."""

    def close(self) -> None:
        """End the workers, whatever they are doing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


RESTARTS = 20
"""Deaths that are put up with for each worker: those that train a group together also die together."""


@dataclass(slots=True)
class Deaths:
    """Counts the workers that died."""

    workers: int
    count: int = 0

    def add(self, reason: str) -> None:
        """Take note of one; raise `WorkerDiedError` where there are too many."""
        self.count += 1
        if self.count > RESTARTS * self.workers:
            raise WorkerDiedError(
                f"workers died {self.count} times, the last one {reason}; look whether memory ran out, and try fewer workers"
            )


Make = Callable[[], Any]
"""Makes a worker's object, in the worker; must be picklable."""
