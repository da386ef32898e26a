"""How a comparison is shown: a table on stdout, and the page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.budget import peak_memory, show_bytes
from penstock.cli.screen import Screen
from penstock.events import Event, Started
from penstock.measure_lines import show_score
from penstock.metric_names import headline, title
from penstock.sgd.losses import loss_of

if TYPE_CHECKING:
    from penstock.explanation import Explanation


def follow(screen: Screen, event: Event) -> None:
    """Show a strategy's progress: by the bar on a terminal, elsewhere by a line as each begins."""
    screen.listen(event)
    if isinstance(event, Started) and event.task.endswith(": train") and not sys.stderr.isatty():
        screen.note(f"{event.task.removesuffix(': train')}: training")


def show_table(screen: Screen, compared: Mapping[str, Any]) -> None:
    """Print a line for each strategy, and beneath why some have none."""
    if screen.json:
        return
    from rich.console import Console
    from rich.table import Table

    screen.close()
    metric = loss_of(compared["model"]).metric
    scores = [score for run in compared["runs"] if (score := headline(run)) is not None]
    shown = scores[0].title if scores else title(metric)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("strategy", no_wrap=True)
    heads = (
        f"final {shown}",
        "epochs to 99 % of best",
        "seconds per epoch",
        "total seconds",
        "extra disk",
        "peak memory",
    )
    for head in heads:
        table.add_column(head, justify="right", no_wrap=False)
    for run in compared["runs"]:
        table.add_row(run["shuffle"], *(["failed"] if run["failed"] is not None else _cells(run, metric)))
    width = None if sys.stdout.isatty() else 100
    Console(file=sys.stdout, width=width, highlight=False).print(table)
    for run in compared["runs"]:
        if run["failed"] is not None:
            screen.say(f"{run['shuffle']} failed: {run['failed']}")


def _cells(run: Mapping[str, Any], metric: str) -> list[str]:
    from penstock.compare import page_run
    from penstock.report import StrategyRun

    median = StrategyRun.from_dict(page_run(run)).epoch_seconds
    return [
        show_score(run["final"], metric),
        "never" if run["epochs_to_99"] is None else str(run["epochs_to_99"]),
        "–" if median is None else f"{median:.2f}",
        f"{run['training_seconds']:.2f}",
        show_bytes(run["extra_disk_bytes"]),
        show_bytes(run["peak_memory_bytes"]),
    ]


def lie_of(found: Explanation) -> str | None:
    """Return in a sentence how the rows lie, from what explain found."""
    from penstock.explanation.explanation import capitalized

    known = found.clustering
    if known is None:
        return None
    where = f"where 1 is shuffled and {known.piece_rows:,.0f} sorted"
    return f"{capitalized(known.meaning)} h_D is {known.h_D:.3g}, {where}."


def write_page(screen: Screen, compared: Mapping[str, Any], path: Path, *, clustering: str | None = None) -> None:
    """Write the page, and print its findings."""
    from penstock.compare import page_facts
    from penstock.report import Comparison, write_report
    from penstock.report.comparison_page import comparison_findings

    page = Comparison.from_dict(page_facts(compared, clustering=clustering))
    write_report(page, path)
    for sentence in comparison_findings(page):
        screen.say(sentence)


def give_comparison(
    screen: Screen, compared: Mapping[str, Any], path: Path, *, clustering: str | None, seconds: float
) -> None:
    """Print the JSON object of a comparison."""
    more = {"clustering": clustering, "seconds": seconds, "peak_memory_bytes": peak_memory()}
    screen.give({**compared, **more, "report": str(path), "out": str(path)})
