"""The tables of the page of a search over groups, the worst and the largest of them and what failed, and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.report.groupdata import Forest, Numbers
from penstock.report.words import escape, many, show_count, show_number, show_score, show_seconds

LISTED = 20
"""Groups of a table."""
_LONG = 48
_FEW = 30
"""Rows held out below which a score is mostly chance."""


def group_tables(page: Forest) -> str:
    """Return the worst groups and the largest, each as a table; groups that no model was found for are at neither end."""
    parts = []
    if len(page.measured) > 1:
        worst = page.worst[:LISTED]
        note = ""
        if page.held_out and np.median(page.held_rows[worst]) < _FEW:
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


def _listed(page: Forest, places: Numbers) -> str:
    show, chosen = shower(page), set(page.chosen.tolist())
    head = ["group", "rows", *(["held out", name_of(page), "loss there"] if page.held_out else ["training loss"])]
    lines = []
    for at in places.tolist():
        figures = [show(page.values[at])]
        if page.held_out:
            figures = [show_count(int(page.held_rows[at])), *figures, show_number(page.held_loss[at])]
        seconds = float(np.nansum(page.seconds[page.group == page.group[at]]))
        took = show_seconds(seconds) if seconds >= 0.001 or not seconds else f"{1000 * seconds:.2g}\u202fms"
        last = told(page.configs[int(page.config[at])]) if at in chosen else str(page.reason[at])
        lines.append((page.text[at], show_count(int(page.rows[at])), *figures, took, last))
    return table((*head, "work", "config"), lines, wordy=True)


def failures(page: Forest) -> str:
    """Return why models failed, each reason with the largest group that it befell."""
    found = page.reasons()
    if not found:
        return ""
    lines = [(reason, show_count(groups), show_count(models), example) for reason, groups, models, example in found]
    rest = many(len(lines) - LISTED, "other reason") if len(lines) > LISTED else ""
    bare = len(page.modelless)
    lead = f"{many(bare, 'group')} without any model." if bare else "Every group has a model all the same."
    shown = table(("reason", "groups", "models", "such as"), lines[:LISTED], wordy=True, rest=rest)
    return f"<h2>What failed</h2><p>{lead}</p>{shown}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]], *, wordy: bool = False, rest: str = "") -> str:
    """Return a table; the last column of a ``wordy`` one is text. ``rest`` says what it leaves out."""

    def cell(text: str, place: int, tag: str) -> str:
        kind = ' class="told"' if wordy and place == len(head) - 1 else ""
        whole = f' title="{escape(text)}"' if len(text) > _LONG else ""
        return f"<{tag}{kind}{whole}>{escape(cut(text))}</{tag[:2]}>"

    heads = "".join(cell(name, place, 'th scope="col"') for place, name in enumerate(head))
    rows = [
        "".join(cell(text, place, "td" if place else 'th scope="row"') for place, text in enumerate(line))
        for line in lines
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f'<p class="quiet">And {escape(rest)}.</p>' if rest else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def name_of(page: Forest) -> str:
    """Return what models are told apart by."""
    return {"r2": "R²"}.get(page.metric, page.metric) if page.held_out else "loss"


def shower(page: Forest) -> Callable[[float], str]:
    """Return how that is written."""
    return partial(show_score, metric=page.metric) if page.held_out else show_number


def told(config: Mapping[str, Any]) -> str:
    """Write a config."""
    return ", ".join(f"{name}={value_of(value)}" for name, value in config.items()) or "as given"


def value_of(value: Any) -> str:
    """Write a parameter's value."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cut(text: str) -> str:
    """Cut a name that would fill a line."""
    return text if len(text) <= _LONG else text[: _LONG - 1] + "…"
