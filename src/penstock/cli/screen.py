"""What a command shows: a bar on a terminal, a line per epoch for people, one JSON object for machines.

A `Screen` listens to the events of the work. The bar is drawn on stderr, and only where that is a terminal;
results go to stdout. With ``--json`` stdout gets the object and nothing else.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.cli.wording import in_own_words
from penstock.closing import Closing
from penstock.events import Advanced, Epoch, Event, Finished, Started, Stream, Warned
from penstock.measure_lines import show_score, strict_json
from penstock.metric_names import title
from penstock.outputs import Replacement


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
        self._watched: list[Replacement] = []
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
            self.note(f"warning: {in_own_words(event)}")

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

    def watch(self, path: Path) -> None:
        """Say in the end, on stderr, if a file that is there now has been replaced."""
        self._watched.append(Replacement(path))

    def give(self, found: Mapping[str, Any]) -> None:
        """Print the JSON object, where it is asked for."""
        self.close()
        for replacement in self._watched:
            if replacement.done and not self.json:
                self.note(replacement.note)
        self._watched.clear()
        if self.json:
            print(json.dumps(strict_json(found), allow_nan=False), flush=True)

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
        scores = {"held_out": event.held_out_score, "test": event.test_score}
        shown = {kind: score for kind, score in scores.items() if score is not None}
        shown = shown or {"progressive": event.progressive_score}
        names = [title(f"{kind}_{event.metric}") for kind in shown]
        if not self._headed:
            self._headed = True
            heads = "".join(f"  {name}" for name in ("progressive loss", *names))
            self.say(f"{'epoch':>6}{heads}{'seconds':>10}{'rows/s':>13}{'MB/s':>8}")
        seconds = max(event.seconds, 1e-9)
        cells = [f"{event.progressive_loss:>{len('progressive loss')}.5g}"]
        cells += [f"{show_score(score, event.metric):>{len(name)}}" for name, score in zip(names, shown.values())]
        self.say(
            f"{event.epoch:>6}{''.join(f'  {cell}' for cell in cells)}"
            f"{event.seconds:>10.2f}{event.rows / seconds:>13,.0f}{event.bytes / seconds / 1e6:>8,.0f}"
        )
