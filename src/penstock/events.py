"""One stream of events: the progress bar, the log, the report and any tracker listen to the same one.

An event is a frozen dataclass of plain fields; a listener is any callable that takes one. Work code emits,
it never prints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.messages import PYTHON, Text, Wording

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
    """The paper's metric row for one epoch. ``metric`` names what the scores are: accuracy, r2 or rmse.

    Progressive figures are measured on each row just before it is learned from, so they describe no finished model, and
    they flatter where similar rows follow one another. Held-out rows are never learned from; test rows are other data.
    """

    epoch: int
    metric: str
    progressive_loss: float
    progressive_score: float
    seconds: float
    rows: int
    bytes: int
    held_out_loss: float | None = None
    held_out_score: float | None = None
    held_out_rows: int | None = None
    test_loss: float | None = None
    test_score: float | None = None
    held_out_weighted_loss: float | None = None
    test_weighted_loss: float | None = None
    """With class weights: the loss in which rows count by these too, as they do in training."""
    prepare_seconds: float = 0.0
    """What a shuffled copy took to write before this epoch; not part of ``seconds``."""

    def row(self) -> dict[str, Any]:
        """Return the metric row as a plain dict, each score under its own name."""
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "progressive_loss": self.progressive_loss,
            f"progressive_{self.metric}": self.progressive_score,
            "seconds": self.seconds,
            "rows": self.rows,
            "bytes": self.bytes,
            "rows_per_second": self.rows / self.seconds if self.seconds else 0.0,
            "mb_per_second": self.bytes / 1e6 / self.seconds if self.seconds else 0.0,
        }
        if self.held_out_score is not None:
            row["held_out_loss"] = self.held_out_loss
            row[f"held_out_{self.metric}"] = self.held_out_score
            row["held_out_rows"] = self.held_out_rows
        if self.test_score is not None:
            row["test_loss"] = self.test_loss
            row[f"test_{self.metric}"] = self.test_score
        for name in ("held_out_weighted_loss", "test_weighted_loss"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        if self.prepare_seconds:
            row["prepare_seconds"] = self.prepare_seconds
        return row


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something a user should know, though the work goes on; where it names options, ``text`` has them as parts."""

    text: Text | str
    wording: Wording = PYTHON

    @property
    def message(self) -> str:
        """The text in the words of the face that emitted it: Python's, or a statement's."""
        return self.render(self.wording)

    def render(self, wording: Wording) -> str:
        """Return the text in the words of one face."""
        return Text(self.text).render(wording)


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

    def __init__(self, listeners: list[Listener] | None = None, *, wording: Wording = PYTHON) -> None:
        self._listeners = [log_event, *(listeners or [])]
        self._wording = wording

    @classmethod
    def muted(cls) -> Stream:
        """Return a stream that nobody hears, the log included: for work whose warnings say nothing of what was asked for."""
        stream = cls()
        stream._listeners = []
        return stream

    def emit(self, event: Event) -> None:
        """Tell every listener; warnings get the wording of the stream."""
        if isinstance(event, Warned) and self._wording is not PYTHON:
            event = replace(event, wording=self._wording)
        for listener in self._listeners:
            listener(event)

    def worded(self, wording: Wording) -> Stream:
        """Return a stream to the same listeners whose warnings name options in the words of one face."""
        stream = Stream(wording=wording)
        stream._listeners = self._listeners
        return stream


def log_event(event: Event) -> None:
    """Write an event to the ``penstock`` logger."""
    if isinstance(event, Warned):
        log.warning("%s", event.message)
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("%s %s", type(event).__name__, asdict(event))
