"""The tables of the page of a search over groups, the worst and the largest of them and what failed, and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.measure_lines import show_items
from penstock.report.group_data import GroupPage, Numbers
from penstock.report.page import html_table
from penstock.report.text import score_text, show_count, show_number, show_time

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
