"""``python -m benchmarks.defaults.page``: write the figures of docs/defaults.md from benchmarks/results/defaults/*.json.

Each file is what ``python -m benchmarks.defaults --out FILE`` wrote, of one door or several. Doors become columns of one table
over all tables; the spread over seeds has a table of its own. Those of ``--suite whole`` are in the folder ``whole``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.conditions import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "defaults"
PAGE = ROOT / "docs" / "defaults.md"
PARTS = {"figures of the defaults": RESULTS, "figures of whole tables": RESULTS / "whole"}
"""The generated parts of the page by the names of their marks, and the folders of their results."""
COLUMNS = {
    "file": "file",
    "cli": "command line",
    "duckdb": "DuckDB",
    "postgres": "PostgreSQL",
    "extension": "extension",
    "groups": "one group",
    "file, solver sgd, memory all": "SGD",
    "file, solver sgd, memory 10%": "SGD, 10 % memory",
    "file, solver sgd, memory 2%": "SGD, 2 % memory",
}
"""The doors in the order of the columns, and what their columns are called."""


def load_runs(folder: Path = RESULTS) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Return the comparisons by door and table, the spreads over seeds, and where and when they were measured."""
    doors: dict[str, dict[str, Any]] = {}
    seeds: list[dict[str, Any]] = []
    sources = []
    for path in sorted(folder.glob("*.json")):
        body = json.loads(path.read_text())
        for door, found in body["runs"].items():
            if door == "seeds":
                seeds += found
            elif door not in COLUMNS:
                raise ValueError(f"{path} has the door {door!r}, which has no column; add it to COLUMNS")
            else:
                doors[door] = {one["table"]: one for one in found}
        machine = body["machine"]
        sources.append(f"{path.stem} {machine['date'][:10]} ({machine['cores']} cores, load {machine['load']:g})")
    return doors, seeds, sources


def figures(folder: Path = RESULTS) -> str:
    """Return the generated part of the page as Markdown."""
    doors, seeds, sources = load_runs(folder)
    present = [door for door in COLUMNS if door in doors]
    tables = list(dict.fromkeys(name for door in present for name in doors[door]))
    header = ["table", "rows", "features", "metric", "scikit-learn", "constant", *(COLUMNS[door] for door in present)]
    lines = [_row(header), "|---|---:|---:|---|---:|---:|" + "---:|" * len(present)]
    for name in tables:
        one = next(doors[door][name] for door in present if name in doors[door])
        facts = [name, f"{one['rows']:,}", str(one["features"]), one["metric"]]
        facts += [f"{one['baseline'][key]:.4f}" for key in ("score", "constant")]
        lines.append(_row([*facts, *(_cell(doors[door].get(name)) for door in present)]))
    counts = [_count(list(doors[door].values())) for door in present]
    lines.append(_row(["**met**", "", "", "", "", "", *counts]))
    parts = ["\n".join(lines), f"Measured: {'; '.join(sources)}."]
    if seeds:
        parts.append(_seeds(seeds))
    return "\n\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(one: Mapping[str, Any] | None) -> str:
    """Return the points and the ratio of log losses, in bold where a bar was missed."""
    if one is None:
        return "-"
    if one["points"] is None:
        return "refused" if one["verdict"] == "refused" else "**failed**"
    text = f"{one['points'] + 0.0:+.2f}".replace("-0.00", "+0.00")
    if one["log_loss_ratio"] is not None:
        text += f", {one['log_loss_ratio']:.3f}"
    return f"**{text}**" if one["verdict"] == "MISSED" else text


def _count(found: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [one["verdict"] for one in found]
    refused = verdicts.count("refused")
    return f"{verdicts.count('met')} of {len(verdicts) - refused}" + (f", {refused} refused" if refused else "")


def _seeds(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return the spread of test scores over seeds, of rows sorted by label."""
    lines = [
        _row(["table", "memory", "corgipile: lowest, median, highest", "once: lowest, highest", "verdict"]),
        "|---|---:|---|---|---|",
    ]
    for one in seeds:
        ours, once = sorted(one["corgipile"]), sorted(one["once"])
        if not ours or not once:
            lines.append(_row([one["table"], one["memory"], "-", "-", "not all seeds could be trained"]))
            continue
        middle = (ours[(len(ours) - 1) // 2] + ours[len(ours) // 2]) / 2
        scores = f"{ours[0]:.4f}, {middle:.4f}, {ours[-1]:.4f}"
        verdict = "met" if one["verdict"] == "met" else "**MISSED**"
        lines.append(_row([one["table"], one["memory"], scores, f"{once[0]:.4f}, {once[-1]:.4f}", verdict]))
    return "\n".join(lines)


def fill(text: str, mark: str, body: str) -> str:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- end of mark -->``."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    between = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    return between.sub(lambda _: f"{begin}\n{body}\n{end}", text)


def main() -> int:
    """Rewrite the parts of the page between their marks; a part without results stays."""
    text = PAGE.read_text()
    for mark, folder in PARTS.items():
        if any(folder.glob("*.json")):
            text = fill(text, mark, figures(folder))
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
