"""The tables of the report: one line per strategy with the best of each column marked, and every epoch's figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.budget import show_bytes
from penstock.metric_names import title
from penstock.report.comparison_data import Comparison, StrategyRun
from penstock.report.page import html_table
from penstock.report.plot import swatch
from penstock.report.style import PlotStyle
from penstock.report.text import ABSENT, escape, finite_or_none, score_text, show_count, show_number, show_time


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    value: Callable[[StrategyRun], float | None]
    show: Callable[[float | None], str]
    most: bool = False


def _bytes(value: float | None) -> str:
    number = finite_or_none(value)
    return ABSENT if number is None else show_bytes(number)


def _columns(page: Comparison) -> list[_Column]:
    return [
        _Column(f"final {page.final_name}", lambda r: r.final,
                lambda v: score_text(v, page.metric), most=True),
        _Column("epochs to 99 % of the best", lambda r: r.epochs_to_99, show_count),
        _Column("time to 99 % of the best", lambda r: r.seconds_to_99, show_time),
        _Column("time per epoch (median)", lambda r: r.epoch_seconds, show_time),
        _Column("total time with shuffling", lambda r: r.seconds, show_time),
        _Column("extra disk", lambda r: r.extra_disk_bytes, _bytes),
        _Column("peak memory", lambda r: r.peak_memory_bytes, _bytes),
    ]  # fmt: skip


def _best(column: _Column, runs: list[StrategyRun]) -> str | None:
    """Return the best value as it is shown, so that values that look the same are marked the same."""
    known = [v for v in (finite_or_none(column.value(run)) for run in runs) if v is not None]
    if not known:
        return None
    best = column.show(max(known) if column.most else min(known))
    # What most of them share is no distinction.
    return best if 2 * sum(column.show(v) == best for v in known) <= len(known) else None


def summary_table(page: Comparison, styles: dict[str, PlotStyle]) -> str:
    """Return the table of strategies; a failed one says why in place of its figures."""
    columns = _columns(page)
    done = [run for run in page.runs if run.failed is None]
    best = {column.name: _best(column, done) for column in columns}
    head = "".join(f'<th scope="col">{escape(c.name)}</th>' for c in columns)
    body = []
    for run in page.runs:
        name = f'<th scope="row">{swatch(styles[run.shuffle])}{escape(run.shuffle)}</th>'
        if run.failed is not None:
            reason = f"failed: {run.failed}" if run.failed else "failed"
            body.append(f'<tr class="failed">{name}<td colspan="{len(columns)}">{escape(reason)}</td></tr>')
            continue
        cells = []
        for column in columns:
            shown = column.show(column.value(run))
            won = shown == best[column.name] and shown != ABSENT
            mark, says = (' class="best"', '<span class="hidden"> (best)</span>') if won else ("", "")
            cells.append(f'<td data-name="{escape(column.name)}"{mark}><span>{escape(shown)}{says}</span></td>')
        body.append(f"<tr>{name}{''.join(cells)}</tr>")
    return (
        f'<table class="cards"><thead><tr><th scope="col">strategy</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def epoch_tables(page: Comparison) -> str:
    """Return every epoch's figures, one folded table per strategy."""
    return "".join(_epoch_table(run, page.metric) for run in page.runs if run.epochs)


def _epoch_table(run: StrategyRun, metric: str) -> str:
    kinds = ["progressive", *(kind for kind in ("held_out", "test") if any(run.column(f"{kind}_loss")))]
    scores = [title(f"{kind}_{metric}") for kind in kinds]
    lines = []
    for i, row in enumerate(run.epochs):
        seconds, rows = finite_or_none(row.get("seconds")), finite_or_none(row.get("rows"))
        lines.append(
            [
                show_count(row.get("epoch", i + 1)),
                show_number(row.get("progressive_loss")),
                *(score_text(row.get(f"{kind}_{metric}"), metric) for kind in kinds),
                show_time(seconds),
                show_count(rows),
                show_count(rows / seconds if rows is not None and seconds else None),
                _bytes(row.get("bytes")),
            ]
        )
    head = ["epoch", "progressive loss", *scores, "time", "rows", "rows/s", "read"]
    return f"<details><summary>{escape(run.shuffle)}</summary>{html_table(head, lines)}</details>"
