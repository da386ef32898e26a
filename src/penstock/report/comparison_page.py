"""The comparison page: facts, findings, tables, curves and row-order pictures in one HTML file.

Every word that comes from outside is escaped. An R² far below nought is drawn at a floor, and the caption says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from penstock.budget import show_bytes
from penstock.metric_names import title
from penstock.report.comparison_data import Comparison, StrategyRun
from penstock.report.drawing import Labels
from penstock.report.page import fact_list, figure, html_table, page_html, sentence_list
from penstock.report.plot import Axes, Series, line_plot, order_plot, swatch
from penstock.report.style import PlotStyle, plot_styles
from penstock.report.text import ABSENT, escape, finite_or_none, score_text, show_count, show_number, show_time
from penstock.shuffle import ORDERS


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


# An R² far below nought says "diverged"; drawn to scale it would flatten every other line.
_LOWEST_SCORE = -1.0


def render_comparison(page: Comparison) -> str:
    """Return the whole page as HTML.

    Examples
    --------
    >>> text = render_comparison(Comparison("a<b.parquet", runs=(StrategyRun("none", failed="disk full"),)))
    >>> text.startswith("<!doctype html>"), "a&lt;b.parquet" in text, "disk full" in text
    (True, True, True)
    """
    styles = plot_styles([*(run.shuffle for run in page.runs), *page.orders])
    parts = [
        _facts(page),
        f'<p class="note">{escape(page.clustering)}</p>' if page.clustering else "",
        *(f'<p class="lead">{escape(sentence)}</p>' for sentence in [" ".join(comparison_findings(page))] if sentence),
        "<h2>Strategies</h2>",
        summary_table(page, styles) if page.runs else "<p>No strategy was run.</p>",
        _curves(page, styles),
        _orders(page, styles),
    ]
    if any(run.epochs for run in page.runs):
        tables = "".join(_epoch_table(run, page.metric) for run in page.runs if run.epochs)
        parts.append(f'<section class="screen"><h2>Every epoch</h2>{tables}</section>')
    title = f"{page.data}: shuffling strategies compared"
    return page_html(title, kind="penstock compare", heading=page.data, parts=parts)


def comparison_findings(page: Comparison) -> list[str]:
    """Say in sentences which strategy ended best and which came near it first."""
    scored = [
        (score, run) for run in page.runs if run.failed is None and (score := finite_or_none(run.final)) is not None
    ]
    if len(scored) < 2:
        return []
    top, best = max(scored, key=lambda pair: pair[0])
    sentences = [f"The best final {page.final_name} is {score_text(top, page.metric)}, by {best.shuffle}."]
    timed = [(t, run) for _, run in scored if (t := finite_or_none(run.seconds_to_99)) is not None]
    if timed:
        soonest, first = min(timed, key=lambda pair: pair[0])
        own = finite_or_none(best.seconds_to_99)
        sentence = f"It was also the first to come to 99 % of that, after {show_time(soonest)}"
        if first is not best:
            sentence = f"First to 99 % of it was {first.shuffle}, after {show_time(soonest)}"
            sentence += f", which ended at {score_text(first.final, page.metric)}"
            if own is not None and soonest > 0:
                sentence += f"; {best.shuffle} needed {show_time(own)}, {own / soonest:.1f} times as long"
        sentences.append(sentence + ".")
    behind = [run.shuffle for _, run in scored if finite_or_none(run.seconds_to_99) is None]
    if timed and behind:
        sentences.append(f"Never that near: {sentence_list(behind)}.")
    return sentences


def _facts(page: Comparison) -> str:
    memory = show_bytes(page.memory) if isinstance(page.memory, int | float) else page.memory
    pairs = [
        ("Rows", None if page.rows is None else show_count(page.rows)),
        ("Blocks", None if page.blocks is None else show_count(page.blocks)),
        ("Size", None if page.bytes is None else show_bytes(page.bytes)),
        ("Label", page.label),
        ("Model", page.model),
        ("Memory budget", memory),
        ("Seed", page.seed),
        ("Date", page.date),
    ]
    return fact_list(pairs, wide=[("Machine", page.machine)])


def _curves(page: Comparison, styles: dict[str, PlotStyle]) -> str:
    runs = [run for run in page.runs if run.epochs]
    if not runs:
        return ""
    key, metric = page.score_key, page.metric
    latest = max((end for run in runs for end in run.clock() if end is not None), default=0.0)
    unit, clock = (3600.0, "hours") if latest > 3 * 3600 else (60.0, "minutes") if latest > 900 else (1.0, "seconds")
    # One slow strategy would press all others against the left edge.
    ends = sorted(run.clock()[-1] or 0.0 for run in runs)
    log_time = ends[0] > 0 and latest > 4 * ends[len(ends) // 2]
    clock += ", logarithmic" if log_time else ""
    scores = [run.column(key) for run in runs]
    # Progressive figures flatter stored order: each row is scored just after rows like it were learned from.
    progressive = page.measured_on == "progressive"
    losses = [run.column(f"{page.measured_on}_loss") for run in runs]
    known = [v for column in losses for v in column if v is not None]
    log = bool(known) and min(known) > 0 and max(known) > 100 * min(known)
    sunk = any(v is not None and v < _LOWEST_SCORE for column in scores for v in column)
    low = f" Values below {show_number(_LOWEST_SCORE)} are drawn there." if sunk else ""
    led = any(_prepared(run) > 0 for run in runs)
    head = " A thin line ahead of the first epoch is the time spent on a shuffled copy." if led else ""
    percent, score, short = metric == "accuracy", _lower(page.score_name), "R²" if metric == "r2" else "Accuracy"
    kind = title(f"{page.measured_on}_loss")
    loss = kind + (", logarithmic" if log else "")
    caveat = ", each row scored just before its own update: in stored order that flatters" if progressive else ""

    def lines(columns: list[list[float | None]], show: Callable[[float | None], str], *, timed: bool) -> list[Series]:
        made = [_series(run, column, show, unit if timed else None) for run, column in zip(runs, columns)]
        return [
            replace(line, y=_raised(line.y) if columns is scores else line.y, look=styles[line.name]) for line in made
        ]

    def show_value(value: float | None) -> str:
        return score_text(value, metric)

    def show_loss(value: float | None) -> str:
        return f"loss {show_number(value)}"

    return (
        '<h2>Convergence</h2><p class="quiet screen">Point at a mark to read its value.</p><div class="plots">'
        + _figure(lines(scores, show_value, timed=False), "epoch", score, f"{short} by epoch",
                  Axes(whole_x=True, percent_y=percent), f"The {score} after each epoch{caveat}.{low}")
        + _figure(lines(scores, show_value, timed=True), clock, score, f"{short} by time",
                  Axes(log_x=log_time, percent_y=percent), f"The same on the clock, shuffling included.{head}")
        + _figure(lines(losses, show_loss, timed=False), "epoch", loss, "Loss by epoch",
                  Axes(whole_x=True, log_y=log), f"The mean {kind} after each epoch{caveat}.")
        + _figure(lines(losses, show_loss, timed=True), clock, loss, "Loss by time",
                  Axes(log_x=log_time, log_y=log), "The same on the clock, shuffling included.")
        + "</div>"
    )  # fmt: skip


def _series(run: StrategyRun, y: list[float | None], show: Callable[[float | None], str], unit: float | None) -> Series:
    """Make a line over epochs, or, with a unit of so many seconds, over time."""
    epochs, ends = [finite_or_none(row.get("epoch", i + 1)) for i, row in enumerate(run.epochs)], run.clock()
    notes = [f"{run.shuffle}, epoch {show_count(e)}: {show(v)}" for e, v in zip(epochs, y)]
    if unit is None:
        return Series(run.shuffle, epochs, y, notes)
    notes = [f"{note} after {show_time(end)}" for note, end in zip(notes, ends)]
    lead = (0.0, _prepared(run) / unit) if _prepared(run) > 0 else None
    return Series(run.shuffle, [None if end is None else end / unit for end in ends], y, notes, lead)


def _prepared(run: StrategyRun) -> float:
    """Return the seconds before any learning began: the copy made first, or the first epoch's own."""
    first = run.epochs[0].get("prepare_seconds") if run.epochs else None
    return (finite_or_none(run.prepare_seconds) or 0.0) + (finite_or_none(first) or 0.0)


def _raised(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else max(value, _LOWEST_SCORE) for value in values]


def _figure(series: list[Series], x: str, y: str, title: str, axes: Axes, caption: str) -> str:
    return figure(partial(line_plot, series, labels=Labels(title, x, y), axes=axes), caption)


def _orders(page: Comparison, styles: dict[str, PlotStyle]) -> str:
    pictures = {name: picture for name, picture in page.orders.items() if picture.position}
    if not pictures:
        return ""
    visits = max(len(p.position) for p in pictures.values())
    rows = max(max(p.position) for p in pictures.values()) + 1
    figures = "".join(
        f"<figure>{order_plot(name, picture, visits=visits, rows=rows, look=styles[name])}<figcaption>"
        f"<b>{escape(name)}</b>{ORDERS[name].facts.caption if name in ORDERS else ''}</figcaption></figure>"
        for name, picture in pictures.items()
    )
    labelled = next((p for p in pictures.values() if p.labels), None)
    keys = (
        f'<p class="keys"><span>Labels in each {labelled.group} rows visited:</span>'
        '<span><i class="k1"></i>positive</span><span><i class="k0"></i>negative</span></p>'
        if labelled
        else ""
    )
    return (
        "<h2>The order of the rows</h2><p>Each dot is a row: across, when it is visited; upward, its number in the"
        " file. A diagonal is the stored order, an even cloud a full shuffle."
        f'{" " + escape(page.orders_note) if page.orders_note else ""}</p>{keys}<div class="orders">{figures}</div>'
    )


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]
