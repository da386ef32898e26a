"""Writes docs/figures.md from the JSON files of benchmarks/results: ``python -m benchmarks.figures``.

A benchmark writes its file with ``--json`` (or all with ``python -m benchmarks --results benchmarks/results``): the command,
the machine with the date, the versions, and every claim with its bar, met or missed. Two entries may be added by hand:
``tables`` (a title, columns, rows) and ``remarks`` (sentences). No number on the page comes from anywhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.conditions import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures.md"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of the page and the benchmarks below it, by the names of their files."""

    title: str
    benchmarks: tuple[str, ...]


SECTIONS = (
    Section("Shuffling", ("convergence", "defaults", "epochs", "reads", "encode_once")),
    Section("Kernels and parsers", ("throughput", "kernels", "parsing")),
    Section(
        "Loaders for neural networks",
        ("loaders", "warm_rows", "training", "images", "gpu", "gpu_images", "gpu_accuracy"),
    ),
    Section("Models bigger than memory", ("bigmodel", "threads", "factor", "hashed")),
    Section("A model for every group", ("groups", "groups_torch", "groups_trees")),
    Section("Tables with text and nulls", ("mixed_tables", "raw_to_model")),
    Section("Databases", ("database", "database_groups", "extension")),
    Section("Faults", ("faults",)),
)
HEAD = """# Figures

Every figure here was measured by a script in [`benchmarks/`](../benchmarks/), on the machine and date given below it. Missed bars
are listed like met ones. The page is made by `python -m benchmarks.figures` from the JSON files in
[`benchmarks/results/`](../benchmarks/results/); do not edit it by hand. `make bench` measures all of it again and rewrites these files.

{count}

How the default settings compare with scikit-learn is on a page of its own: [what the defaults reach](defaults.md).
"""


def load_results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Read all results, by the names of their benchmarks; one that no section has is refused."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    known = {name for section in SECTIONS for name in section.benchmarks}
    if unknown := sorted(found.keys() - known):
        raise ValueError(
            f"no section of the page has {', '.join(unknown)}; add them to SECTIONS in benchmarks/figures.py"
        )
    return found


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the whole page as Markdown."""
    verdicts = [_verdict(claim) for each in results.values() for claim in each["claims"]]
    bars = len(verdicts) - verdicts.count(NO_BAR)
    count = (
        f"Of {bars} bars {verdicts.count(MET)} are met, {verdicts.count(MISSED)} missed and"
        f" {verdicts.count(NOT_MEASURED)} not measured."
    )
    parts = [HEAD.format(count=count)]
    for section in SECTIONS:
        present = [name for name in section.benchmarks if name in results]
        if present:
            parts.append(f"## {section.title}\n")
            parts += [_one(name, results[name]) for name in present]
    return "\n".join(parts)


MET, MISSED, NOT_MEASURED, NO_BAR = "met", "**missed**", "not measured", "no bar"


def _verdict(claim: Mapping[str, Any]) -> str:
    if claim["bar"].startswith("printed"):
        return NO_BAR
    return {True: MET, False: MISSED, None: NOT_MEASURED}[claim["met"]]


def _one(name: str, result: Mapping[str, Any]) -> str:
    """Return a benchmark's part of the page."""
    parts = [f"### {name}\n"]
    if result["claims"]:
        rows = [
            [claim["name"], _figure(claim), _bar(claim), _verdict(claim), claim["note"]] for claim in result["claims"]
        ]
        parts.append(_table(["claim", "figure", "bar", "verdict", "note"], rows))
    for table in result.get("tables", ()):
        parts.append(f"{table['title']}:\n")
        parts.append(_table(table["columns"], table["rows"]))
    parts += [f"{remark}\n" for remark in result.get("remarks", ())]
    quick = " (quick: small data, figures are only indicative)" if result["quick"] else ""
    parts.append(f"`{result['command']}`{quick}; {_machine(result['machine'])}; {_versions(result['versions'])}.\n")
    return "\n".join(parts)


def _figure(claim: Mapping[str, Any]) -> str:
    if claim["figure"] is None:
        return "–"
    digits = f"{claim['figure']:.5g}" if abs(claim["figure"]) < 1e5 else f"{claim['figure']:,.0f}"
    return digits + claim.get("unit", "")


def _bar(claim: Mapping[str, Any]) -> str:
    return "–" if claim["bar"].startswith("printed") else claim["bar"]


def _machine(machine: Mapping[str, Any]) -> str:
    """Return what is known of the machine, and the day."""
    parts = [machine.get("cpu", ""), f"{machine['cores']} cores"]
    if machine.get("memory_bytes"):
        parts.append(f"{machine['memory_bytes'] / 1e9:.0f} GB")
    if machine.get("python"):
        parts.append(f"Python {machine['python']}")
    return ", ".join(part for part in [*parts, machine["date"][:10]] if part)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions of libraries not recorded"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with ``--check`` say whether it is up to date."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description="Write docs/figures.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page is out of date")
    options = parser.parse_args(argv)
    text = page(load_results())
    if options.check:
        return 0 if PAGE.exists() and PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
