"""Writes a page of any kind: a comparison, the models of groups, or an evaluation."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.report.comparison_data import Comparison
from penstock.report.comparison_page import render_comparison
from penstock.report.evaluation_page import Evaluation, render_evaluation
from penstock.report.group_data import GroupPage
from penstock.report.group_page import render_groups
from penstock.report.page import write_html


def render(page: Comparison | Evaluation | GroupPage) -> str:
    """Return the whole page as HTML."""
    if isinstance(page, Comparison):
        return render_comparison(page)
    return render_groups(page) if isinstance(page, GroupPage) else render_evaluation(page)


def write_report(page: Comparison | Evaluation | GroupPage, path: str | os.PathLike[str]) -> Path:
    """Write a page to a file, whole or not at all, and return its path; `WriteError` where that is not possible.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_report(Comparison("clicks.parquet"), Path(folder.name, "report.html")).name
    'report.html'
    >>> folder.cleanup()
    """
    return write_html(render(page), path)
