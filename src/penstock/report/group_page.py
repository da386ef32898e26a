"""The page of a search over groups: how well each is learnt, what was chosen for it, what failed, and who worked when.

Of many groups the plots count, and the tables name the largest and the worst. Every word that comes from outside is
escaped, group names first of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.groups.score_words import COMPARABLE, pooled_words, spread_words
from penstock.groups.split import DEFAULT_SHARE
from penstock.measure_lines import show_items
from penstock.report.distributions import Bins, Named, bars, histogram, scatter_plot
from penstock.report.drawing import Labels
from penstock.report.gantt import detailed, gantt, work_style
from penstock.report.group_data import Doubles, GroupPage, Numbers
from penstock.report.page import elided, fact_list, figure, html_table, keys_of, page_html
from penstock.report.style import style_of
from penstock.report.text import escape, score_text, show_count, show_number, show_part, show_time

_TIPS = 300
"""Groups up to which each has a tip of its own in the cloud of points; of more, those that are listed."""
_NAMED_VALUES = 12
"""Values of a parameter up to which each has a bar of its own."""
# An R² far below nought says that a group was not learnt at all; drawn to scale it would flatten the others.
_LOWEST = -1.0
_CHOSEN, _POOLED, _WORST, _MIDDLE = style_of(0), style_of(1), style_of(1), style_of(2)
_GANTT = (1090, 330)


def render_groups(page: GroupPage) -> str:
    """Return the whole page as HTML."""
    parts = [
        _facts(page),
        "" if page.finished else '<p class="note">Training was not finished: groups may lack their models.</p>',
        f'<p class="lead">{escape(" ".join(group_findings(page)))}</p>',
        _quality(page),
        _parameters(page),
        _workers(page),
        _stopped(page),
        group_tables(page),
        failures(page),
    ]
    return page_html(f"{page.title}: a model for every group", kind="penstock groups", heading=page.title, parts=parts)


def group_findings(page: GroupPage) -> list[str]:
    """Say in sentences how the groups came out."""
    if not len(page.chosen):
        return [f"None of the {show_count(page.groups)} groups has a model: see why below."]
    sentences = []
    if len(page.measured):
        values, show = page.values[page.measured], score_formatter(page)
        what = f"{score_name_of(page)} on held-out rows" if page.held_out else "training loss"
        if len(values) == 1:
            whose = "" if page.groups == 1 else f" of {elided(page.text[int(page.measured[0])])}"
            sentences.append(f"The {what}{whose} is {show(values[0])}.")
        else:
            spread = page.spread
            assert spread is not None
            last = f"; the worst is {elided(page.text[int(page.worst[0])])}" if spread["compared"] else ""
            goes = "goes " if spread["compared"] else "says little: "
            sentences.append(f"The {what} {goes}{spread_words(spread, show)}{last}.")
        gain = _gain(page)
        if gain:
            sentences.append(gain)
    if len(page.modelless):
        sentences.append(_lacking(page))
    if page.timeline is not None:
        busy = page.timeline.busy()
        sentences.append(
            f"The worker was busy {show_part(busy.mean())} of the time."
            if len(busy) == 1
            else f"The {len(busy)} workers were busy {show_part(busy.mean())} of the time, the least busy {show_part(busy.min())}."
        )
    return sentences


def _lacking(page: GroupPage) -> str:
    why = Counter(page.reason[page.modelless].tolist()).most_common()
    groups = f"{show_items(len(page.modelless), 'group')} {'has' if len(page.modelless) == 1 else 'have'} no model"
    if not why[0][0]:
        return f"{groups}."
    return f"{groups}: {why[0][0]}." if len(why) == 1 else f"{groups}, {show_count(why[0][1])} of them: {why[0][0]}."


def _gain(page: GroupPage) -> str:
    """Say how the models do over all held-out rows, and whether one model for all groups would do better."""
    own, one = (page.overall.get(f"{who}_{page.metric}") for who in ("held_out", "pooled"))
    if own is None:
        return ""
    show = score_formatter(page)
    sentence = (
        f"Over the {show_count(int(page.overall['held_out_rows']))} held-out rows of all groups it is {show(own)}"
    )
    if one is None:
        return f"{sentence}."
    verdict = "the groups' own models do better" if own > one else "one model for all does as well or better"
    counted = ""
    if page.beside is not None:
        better, groups = int((page.beside > page.values[page.measured]).sum()), len(page.measured)
        counted = f", and in {show_count(better)} of {show_count(groups)} groups the one model is better"
    hint = f" Compare with a model that has {'it' if len(page.without) == 1 else 'them'} too." if page.without else ""
    return f"{sentence}; {pooled_words(page.without)}{',' if page.without else ''} has {show(one)} on the same rows: {verdict}{counted}.{hint}"


def _held_out(settings: Mapping[str, Any]) -> str | None:
    """Return the share of rows that were held out; None where nothing is known of it."""
    if "validation" not in settings:
        return None
    share = settings["validation"]
    if share is None:
        return f"{show_part(DEFAULT_SHARE)}, learned from at the end"
    return show_part(float(share)) if share else "nothing"


def _facts(page: GroupPage) -> str:
    failed = int((page.status == "failed").sum())
    solver = page.settings.get("solver")
    rows = int(page.rows[page.firsts].sum())
    return fact_list(
        [
            ("Groups", show_count(page.groups)),
            ("Configs for each", show_count(len(page.configs))),
            ("Rows", show_count(rows)),
            ("Models", show_count(int((page.status == "done").sum()))),
            ("Failed", show_count(failed) if failed else "none"),
            ("Grouped by", ", ".join(page.by)),
            ("Label", page.label),
            ("Model", f"{page.model}, {solver}" if solver else page.model),
            ("Held out", _held_out(page.settings)),
            ("Work", show_time(float(np.nansum(page.seconds)))),
            ("On the clock", None if page.timeline is None else show_time(page.timeline.seconds)),
            ("Date", page.date),
        ],
        wide=[("Data", page.data)],
    )


def _quality(page: GroupPage) -> str:
    if len(page.measured) < 2:
        return ""
    places, name, percent = page.compared, score_name_of(page), _percents(page)
    values = _floored(page, page.values[places])
    log = not page.held_out and values.min() > 0 and values.max() > 100 * values.min()
    other = None
    if page.beside is not None and page.pooled is not None:
        other = _floored(page, page.pooled[places][np.isfinite(page.pooled[places])])
    bins = Bins.of(values if other is None else np.concatenate([values, other]), percent=percent, log=log)
    short = name[0].upper() + name[1:]
    middle = score_formatter(page)(float(np.median(values)))
    where = "on held-out rows" if page.held_out else "in training"
    labels = Labels(
        f"{short} over groups",
        f"{name} {where}" + (", logarithmic" if log else ""),
        "groups",
        says=f"{short} {where} over {show_count(len(values))} groups: the middle one has {middle}.",
    )
    over = None if other is None else (bins.count(other).astype(np.float64), _POOLED)
    sunk = int((page.values[places] < _LOWEST).sum()) if page.metric == "r2" and page.held_out else 0
    caption = "How many groups have so good a model."
    if page.held_out and len(page.configs) > 1:
        caption += " Configs were chosen on other rows than these."
    if sunk:
        caption += (
            f" {show_items(sunk, 'group')} below {show_number(_LOWEST)} {'is' if sunk == 1 else 'are'} counted there."
        )
    missing = len(page.chosen) - len(page.measured)
    if missing:
        caption += (
            f" {show_items(missing, 'group')} had no rows held out, and {'is' if missing == 1 else 'are'} not counted."
        )
    few = len(page.measured) - len(places)
    if few:
        caption += f" {show_items(few, 'group')} with fewer than {COMPARABLE} held-out rows {'is' if few == 1 else 'are'} not counted."
    keys = ""
    if other is not None:
        keys = keys_of([("the group's own model", _CHOSEN), (f"{pooled_words(page.without)} (outline)", _POOLED)])
    draw = partial(histogram, values, bins, labels=labels, look=_CHOSEN, other=over)
    head = "How well groups are learnt" if page.held_out else "How well groups are learnt, by the rows they learnt from"
    rows = page.rows[page.measured]
    cloud = ""
    if rows.max() > 1.05 * rows.min():  # of groups that are all alike in size it would be a stroke
        cloud = _cloud(
            page,
            _floored(page, page.values[page.measured]),
            labels=Labels(f"{short} by size", "rows of the group, logarithmic", labels.x),
            log=log,
        )
    return (
        f'<h2>{head}</h2><p class="quiet screen">Point at a bar or a mark to read it.</p><div class="plots few">'
        + figure(draw, caption, keys=keys)
        + cloud
        + "</div>"
    )


def _cloud(page: GroupPage, values: Doubles, *, labels: Labels, log: bool) -> str:
    """Draw the size of groups against how well they are learnt."""
    places, rows = page.measured, page.rows[page.measured].astype(np.float64)
    score_at = dict(zip(places.tolist(), values.tolist()))

    def named(which: Numbers, **more: Any) -> Named:
        listed_ = which.tolist()
        return Named(
            page.rows[which].tolist(), [score_at[at] for at in listed_], [_tip(page, at) for at in listed_], **more
        )

    few = len(places) <= _TIPS
    worst = page.worst[: min(LISTED, max(1, len(places) // 4))]
    largest = [at for at in page.largest.tolist() if at in score_at][:LISTED]
    rest = places if few else np.array(largest, np.int64)
    line = _means(rows, values)
    draw = partial(
        scatter_plot,
        rows,
        values,
        labels=Labels(labels.title, labels.x, labels.y, f"{labels.title}: {show_count(len(places))} groups."),
        look=_CHOSEN,
        named=[named(rest), named(worst, look=_WORST)],
        middle=None if line is None else (*line, _MIDDLE),
        percent=_percents(page),
        log_y=log,
    )
    caption = "A point for each group"
    caption += (
        f"; the {len(worst)} worst are marked" if len(worst) > 1 else "; the worst is marked" if len(worst) else ""
    )
    caption += ". The line is the mean of groups of about the same size." if line else "."
    return figure(draw, caption)


def _means(rows: Doubles, values: Doubles) -> tuple[list[float], list[float]] | None:
    if len(rows) < 60 or rows.max() < 2 * rows.min():
        return None
    order = np.argsort(rows, kind="stable")
    parts = [part for part in np.array_split(order, int(np.clip(len(rows) // 20, 4, 12))) if len(part)]
    line = {float(np.median(rows[part])): float(values[part].mean()) for part in parts}
    return (list(line), list(line.values())) if len(line) > 1 else None


def _parameters(page: GroupPage) -> str:
    names = page.parameters()
    if not names or not len(page.chosen):
        return ""
    chosen = page.config[page.chosen]
    counts = Counter(chosen.tolist()).most_common(5)
    lines = [
        (config_text(page.configs[config]), show_count(count), show_part(count / len(chosen)))
        for config, count in counts
    ]
    rest = len(set(chosen.tolist())) - len(lines)
    shown = html_table(("config", "groups", "share"), lines, rest=show_items(rest, "other config") if rest > 0 else "")
    figures = "".join(_parameter(page, name, chosen) for name in names)
    return f'<h2>What was chosen</h2><div class="plots few">{figures}</div>{shown}'


def _parameter(page: GroupPage, name: str, chosen: Numbers) -> str:
    """Draw how many groups chose each value of a parameter."""
    offered = [config.get(name) for config in page.configs]
    values = list(dict.fromkeys(offered))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    says = f"{name}: how many groups chose each value."
    if len(values) > _NAMED_VALUES and numeric:
        known = np.array(offered, np.float64)
        log = known.min() > 0 and known.max() >= 50 * known.min()
        bins = Bins.of(known, log=log)
        chance = bins.count(known) * (len(chosen) / len(known))
        labels = Labels(name, f"{name}{', logarithmic' if log else ''}", "groups", says)
        draw_range = partial(histogram, known[chosen], bins, labels=labels, look=_CHOSEN, other=(chance, _MIDDLE))
        return figure(
            draw_range,
            "How many groups chose a value there; the outline is what they would have chosen by chance.",
        )
    if numeric:
        values.sort()
    taken = Counter(repr(offered[config]) for config in chosen.tolist())
    pairs = [(value_text(value), taken[repr(value)]) for value in values]
    if len(pairs) > _NAMED_VALUES:
        pairs.sort(key=lambda pair: -pair[1])
        rest = pairs[_NAMED_VALUES - 1 :]
        pairs = [*pairs[: _NAMED_VALUES - 1], (f"{len(rest)} others", sum(count for _, count in rest))]
    draw = partial(
        bars, [n for n, _ in pairs], [c for _, c in pairs], labels=Labels(name, "", "groups", says), look=_CHOSEN
    )
    return figure(draw, "How many groups chose each value.")


def _workers(page: GroupPage) -> str:
    spans = page.timeline
    if spans is None:
        return ""
    busy, runs = spans.busy(), len(spans.starts) - 1
    labels = Labels(
        "Workers over time",
        "seconds",
        "",
        f"What {show_items(len(spans.workers), 'worker')} did in {show_time(spans.seconds)}: busy {show_part(busy.mean())}.",
    )
    names = {int(group): page.text[int(at)] for group, at in zip(page.group[page.firsts], page.firsts)}
    draw = partial(gantt, spans, labels=labels, name=lambda group: elided(names.get(group, f"group {group}")))
    caption = "A bar is work" if detailed(spans) else "The height of a bar is the share of the time that was worked"
    caption += "; at the end of a line, the share of all the time. Before the first bars workers were started."
    if runs > 1:
        caption += f" Training was taken up again {'once' if runs == 2 else f'{runs - 1} times'}: at the broken lines."
    keys = keys_of([(_WORK.get(kind, kind), work_style(kind)) for kind in spans.kinds])
    return "<h2>Who worked when</h2>" + figure(draw, caption, keys=keys, desk=_GANTT)


_WORK = {
    "solve": "whole groups solved",
    "sum": "sums over parts of large groups",
    "train": "trained",
    "measure": "measured on the rows to choose by",
    "look": "rows looked at",
    "boost": "trees grown",
}


def _stopped(page: GroupPage) -> str:
    """Tell of what halving gave up."""
    stopped = page.status == "stopped"
    if not stopped.any():
        return ""
    whole = page.planned[page.config]
    ran = page.status != "failed"
    share = page.epochs[ran].sum() / max(1, whole[ran].sum())
    counts = Counter(page.epochs[stopped].tolist())
    lines = [f"{show_items(epochs, 'pass', 'passes')}" for epochs in sorted(counts)]
    labels = Labels("Stopped early", "", "models, by the passes they had made", "Models stopped early, by passes made.")
    draw = partial(bars, lines, [counts[each] for each in sorted(counts)], labels=labels, look=_CHOSEN, what="model")
    return (
        "<h2>Stopped early</h2>"
        f"<p>{show_count(int(stopped.sum()))} of {show_count(int(ran.sum()))} models were given up for better ones of the"
        f" same group. All together made {show_part(float(share))} of the passes that each to its end would have taken.</p>"
        f'<div class="plots few">{figure(draw, "How long those trained that were given up.")}</div>'
    )


def _tip(page: GroupPage, at: int) -> str:
    score = f"{score_name_of(page)} {score_formatter(page)(page.values[at])}"
    return f"{elided(page.text[at])}: {score}, {show_items(int(page.rows[at]), 'row')}, {config_text(page.configs[int(page.config[at])])}"


def _percents(page: GroupPage) -> bool:
    return page.held_out and page.metric == "accuracy"


def _floored(page: GroupPage, values: Doubles) -> Doubles:
    return np.maximum(values, _LOWEST) if page.metric == "r2" and page.held_out else values


LISTED = 20
"""Groups of a table."""
_FEW = 30
"""Rows held out below which a score is mostly chance."""


def group_tables(page: GroupPage) -> str:
    """Return the worst groups and the largest, each as a table; groups that no model was found for are at neither end."""
    parts = []
    if len(page.measured) > 1:
        worst = page.worst[:LISTED]
        note = ""
        if page.held_out and np.median(page.held_out_rows[worst]) < _FEW:
            note = (
                '<p class="quiet">Where few rows were held out, a score is mostly chance, and both ends are theirs.</p>'
            )
        parts.append(f"<h2>{_heading('worst', len(worst), len(page.measured))}</h2>{note}{_listed(page, worst)}")
    largest = page.largest[:LISTED]
    parts.append(f"<h2>{_heading('largest', len(largest), page.groups)}</h2>{_listed(page, largest)}")
    return "".join(parts)


def _heading(which: str, count: int, total: int) -> str:
    if total == 1:
        return "The group"
    return f"The {count} {which} groups" if count < total else f"The groups, the {which} first"


def _listed(page: GroupPage, places: Numbers) -> str:
    show, chosen = score_formatter(page), set(page.chosen.tolist())
    head = ["group", "rows", *(["held out", score_name_of(page), "loss there"] if page.held_out else ["training loss"])]
    lines = []
    for at in places.tolist():
        figures = [show(page.values[at])]
        if page.held_out:
            figures = [show_count(int(page.held_out_rows[at])), *figures, show_number(page.held_out_loss[at])]
        seconds = float(np.nansum(page.seconds[page.group == page.group[at]]))
        took = show_time(seconds) if seconds >= 0.001 or not seconds else f"{1000 * seconds:.2g}\u202fms"
        last = config_text(page.configs[int(page.config[at])]) if at in chosen else str(page.reason[at])
        lines.append((page.text[at], show_count(int(page.rows[at])), *figures, took, last))
    return html_table((*head, "work", "config"), lines, wordy=True)


def failures(page: GroupPage) -> str:
    """Return why models failed, each reason with the largest group that it befell."""
    reasons = page.reasons()
    if not reasons:
        return ""
    lines = [(reason, show_count(groups), show_count(models), example) for reason, groups, models, example in reasons]
    rest = show_items(len(lines) - LISTED, "other reason") if len(lines) > LISTED else ""
    bare = len(page.modelless)
    lead = f"{show_items(bare, 'group')} without any model." if bare else "Every group has a model all the same."
    shown = html_table(("reason", "groups", "models", "such as"), lines[:LISTED], wordy=True, rest=rest)
    return f"<h2>What failed</h2><p>{lead}</p>{shown}"


def score_name_of(page: GroupPage) -> str:
    """Return what models are told apart by."""
    return {"r2": "R²"}.get(page.metric, page.metric) if page.held_out else "loss"


def score_formatter(page: GroupPage) -> Callable[[float], str]:
    """Return how that is written."""
    return partial(score_text, metric=page.metric) if page.held_out else show_number


def config_text(config: Mapping[str, Any]) -> str:
    """Write a config."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in config.items()) or "as given"


def value_text(value: Any) -> str:
    """Write a parameter's value."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
