"""Self-contained HTML pages: one for a comparison of shuffling strategies, one for a search over groups, one for an
evaluation of a model.

Plain data in, text out: no script, no font, no network, nothing beside the file. The plots are inline SVG drawn
here, legible on a phone, on paper and in the dark. Nothing is measured or computed from data sets in this room.
"""

import os
from pathlib import Path

from penstock.outputs import atomic_path
from penstock.report.comparison_data import Comparison, OrderPicture, StrategyRun
from penstock.report.comparison_page import render_comparison
from penstock.report.drawing import Labels
from penstock.report.evaluation_page import Evaluation, render_evaluation
from penstock.report.group_data import GroupPage
from penstock.report.group_page import render_groups
from penstock.report.plot import Axes, Series, line_plot, order_plot

__all__ = [
    "Axes",
    "Comparison",
    "Evaluation",
    "GroupPage",
    "Labels",
    "OrderPicture",
    "Series",
    "StrategyRun",
    "line_plot",
    "order_plot",
    "render",
    "write_report",
]


def render(page: Comparison | Evaluation | GroupPage) -> str:
    """Return the whole page as HTML."""
    if isinstance(page, Comparison):
        return render_comparison(page)
    return render_groups(page) if isinstance(page, GroupPage) else render_evaluation(page)


def write_report(page: Comparison | Evaluation | GroupPage, path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all, and return its path; `WriteError` where that is not possible.

    Examples
    --------
    >>> write_report(Comparison("clicks.parquet"), "report.html").name
    'report.html'
    """
    target = Path(path)
    # A page holds what users named; a lone surrogate among it (an undecodable file name) is replaced, not fatal.
    with atomic_path(target) as temporary:
        temporary.write_bytes(render(page).encode("utf-8", "replace"))
    return target
