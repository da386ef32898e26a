"""What a command shows: a bar on a terminal, a line per epoch for people, one JSON object for machines.

A `Screen` listens to the events of the work. The bar is drawn on stderr, and only where that is a terminal;
results go to stdout. With ``--json`` stdout gets the object and nothing else.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from penstock.closing import Closing
from penstock.events import Advanced, Epoch, Event, Finished, Started, Stream, Warned


class Screen(Closing):
    """The face of one command; a context manager that takes the bar away at the end.

    Parameters
    ----------
    json : bool
        Whether a machine reads stdout.
    rows : bool
        Whether each epoch is a line of a table.
    """

    def __init__(self, *, json: bool, rows: bool = True) -> None:
        self.json = json
        self._rows = rows and not json
        self._headed = False
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        # Warnings are shown below in our own words; the log stays free for those who configure it.
        logging.getLogger("penstock").addHandler(logging.NullHandler())

    @property
    def stream(self) -> Stream:
        """The stream to give to the work."""
        return Stream([self.listen])

    def listen(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Advanced) and event.task in self._tasks:
            note = {"note": event.note} if event.note else {}
            self._bar.update(self._tasks[event.task], advance=event.amount, **note)
        elif isinstance(event, Finished) and event.task in self._tasks:
            self._bar.remove_task(self._tasks.pop(event.task))
        elif isinstance(event, Epoch) and self._rows:
            self._row(event)
        elif isinstance(event, Warned):
            self.note(f"warning: {event.message}")

    def say(self, text: str = "") -> None:
        """Print a line of the result for people; machines get the object instead."""
        if self.json:
            return
        if self._bar is not None and sys.stdout.isatty():
            # Both are the same terminal, so the line has to go above the bar.
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Print a line beside the result, to stderr."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def give(self, found: Mapping[str, Any]) -> None:
        """Print the JSON object, where it is asked for."""
        self.close()
        if self.json:
            print(json.dumps(found, allow_nan=False), flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks = {}

    def _start(self, event: Started) -> None:
        if not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=28),
                TaskProgressColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()
        self._tasks[event.task] = self._bar.add_task(event.task, total=event.total, note="")

    def _row(self, event: Epoch) -> None:
        tested = event.test_score is not None
        if not self._headed:
            self._headed = True
            name = name_of(event.metric)
            test = f"{'test':>10}" if tested else ""
            self.say(f"{'epoch':>6}{'loss':>12}{name:>10}{test}{'seconds':>10}{'rows/s':>13}{'MB/s':>9}")
        seconds = max(event.seconds, 1e-9)
        test = f"{show_score(event.test_score, event.metric):>10}" if tested else ""
        self.say(
            f"{event.epoch:>6}{event.loss:>12.5g}{show_score(event.score, event.metric):>10}{test}"
            f"{event.seconds:>10.2f}{event.rows / seconds:>13,.0f}{event.bytes / seconds / 1e6:>9,.0f}"
        )


def name_of(metric: str) -> str:
    """Return a score's name as people write it."""
    return {"r2": "R²", "rmse": "RMSE"}.get(metric, metric)


def show_score(score: float | None, metric: str) -> str:
    """Write an accuracy as a percentage, and an R² or RMSE as it is.

    Examples
    --------
    >>> show_score(0.98765, "accuracy"), show_score(0.98765, "r2"), show_score(None, "r2")
    ('98.77 %', '0.9877', '–')
    """
    if score is None:
        return "–"
    return f"{100 * score:.2f} %" if metric.endswith("accuracy") else f"{score:.4f}"


def final_score(found: Mapping[str, Any]) -> str:
    """Say the score of a run in words: of the test set where there was one."""
    for name, words in (
        ("test_accuracy", "test accuracy"),
        ("test_r2", "test R²"),
        ("test_rmse", "test RMSE"),
        ("accuracy", "accuracy"),
        ("r2", "R²"),
        ("rmse", "RMSE"),
    ):
        if found.get(name) is not None:
            return f"{words} {show_score(found[name], name)}"
    return "no score"
