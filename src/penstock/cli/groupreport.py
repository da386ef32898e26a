"""The page of a folder of models: for ``penstock groups report``, and for ``groups train --report``."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from penstock.groups.results import GroupModels
from penstock.report import GroupPage, write_report
from penstock.report.group_page import group_findings


def write_group_page(result: GroupModels, path: Path, *, title: str, data: str | None = None) -> dict[str, Any]:
    """Write the page, and return what it found in sentences and how large it is.

    Parameters
    ----------
    result : GroupModels
        The models.
    path : Path
        The file to write.
    title, data : str
        Where the models are, and what they were trained on, where that is known.
    """
    page = GroupPage.of(result, title=title, data=data, date=date.today().isoformat())
    write_report(page, path)
    return {"findings": group_findings(page), "report_bytes": path.stat().st_size}
