"""One stream of events: the progress bar, the log, the report and any tracker listen to the same one.

An event is a frozen dataclass of plain fields; a listener is any callable that takes one. Work code emits,
it never prints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A piece of long work begins: ``task`` in words, ``total`` of ``unit`` if known."""

    task: str
    total: int | None
    unit: str


@dataclass(frozen=True, slots=True)
class Advanced(Event):
    """So much more of a task is done; ``note`` is shown beside the bar (the live loss, say)."""

    task: str
    amount: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """A task is over."""

    task: str


@dataclass(frozen=True, slots=True)
class Epoch(Event):
    """The paper's metric row for one epoch. ``score`` is named by ``metric``: accuracy or r2."""

    epoch: int
    loss: float
    metric: str
    score: float
    seconds: float
    rows: int
    bytes: int
    test_score: float | None = None
    test_loss: float | None = None
    prepare_seconds: float = 0.0
    """What a shuffled copy took to write before this epoch; not part of ``seconds``."""

    def row(self) -> dict[str, Any]:
        """Return the metric row as a plain dict, the score under its own name."""
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "loss": self.loss,
            self.metric: self.score,
            "seconds": self.seconds,
            "rows": self.rows,
            "bytes": self.bytes,
            "rows_per_second": self.rows / self.seconds if self.seconds else 0.0,
            "mb_per_second": self.bytes / 1e6 / self.seconds if self.seconds else 0.0,
        }
        if self.test_score is not None:
            row[f"test_{self.metric}"] = self.test_score
            row["test_loss"] = self.test_loss
        if self.prepare_seconds:
            row["prepare_seconds"] = self.prepare_seconds
        return row


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something a user should know, though the work goes on."""

    message: str


Listener = Callable[[Event], None]


class Stream:
    """Passes each event on to every listener.

    Examples
    --------
    >>> heard = []
    >>> Stream([heard.append]).emit(Finished("train"))
    >>> heard
    [Finished(task='train')]
    """

    def __init__(self, listeners: list[Listener] | None = None) -> None:
        self._listeners = [log_event, *(listeners or [])]

    def emit(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            listener(event)


def log_event(event: Event) -> None:
    """Write an event to the ``penstock`` logger."""
    if isinstance(event, Warned):
        log.warning("%s", event.message)
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s", type(event).__name__, asdict(event))
