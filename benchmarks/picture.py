"""The picture of the README: test accuracy against the clock on rows sorted by label, for four strategies.

``python -m benchmarks.picture`` makes the data as the demo does, lets ``penstock compare --json`` train on them, and
draws docs/curves.svg. It claims nothing by itself, so it has no ``run`` and is no part of ``make bench``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.conditions import ROOT
from penstock.budget import parse_size, show_bytes
from penstock.cli.demo_data import ROW_BYTES, write_clustered
from penstock.compare import page_run
from penstock.report import Axes, Labels, Series, StrategyRun, line_plot

SHUFFLES = ("none", "sliding-window", "once", "corgipile")
MEMORY, EPOCHS, RATE = "10%", 5, 0.005
# Half of the test rows are of each label, and weights of zero call them all negative.
UNTRAINED = 0.5


def measure(rows: int, folder: Path, *, seed: int = 0) -> dict[str, Any]:
    """Train by every strategy and return what ``penstock compare --json`` printed."""
    data, test = folder / "clustered.arrow", folder / "test.arrow"
    write_clustered(data, rows, seed=seed)
    write_clustered(test, max(2_000, min(200_000, rows // 20)), seed=seed, part="test")
    command = [sys.executable, "-m", "penstock.cli", "compare", data, "--test", test, "--json"]
    command += ["--shuffles", ",".join(SHUFFLES), "--memory", MEMORY, "--epochs", str(EPOCHS)]
    command += ["--learning-rate", str(RATE), "--seed", str(seed), "--report", folder / "page.html"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def draw(found: dict[str, Any]) -> str:
    """Return the drawing: from no training at all, a point an epoch; a thin line while a shuffled copy is written."""
    lines = []
    for given in found["runs"]:
        run = StrategyRun.from_dict(page_run(given))
        begun = run.prepare_seconds
        x, y = [begun, *run.clock()], [UNTRAINED, *run.column("test_accuracy")]
        lines.append(Series(run.shuffle, x, y, lead=(0.0, begun) if begun else None))
    title = f"Test accuracy on {show_bytes(found['bytes'])} of rows sorted by label, with memory for {MEMORY} of them"
    label = "seconds, a mark after each epoch; the thin line: “once” writes its shuffled copy"
    return svg_file(lines, labels=Labels(title, label, "test accuracy"), axes=Axes(percent_y=True), size=(760, 400))


def svg_file(
    series: Sequence[Series], *, labels: Labels, axes: Axes | None = None, size: tuple[int, int] = (720, 400)
) -> str:
    """Draw as `line_plot` does, as the text of an SVG file of its own: on white, with a margin around it."""
    inner = (size[0] - 32, size[1] - 32)
    drawing = line_plot(series, labels=labels, axes=axes, size=inner)
    view = f'viewBox="0 0 {inner[0]} {inner[1]}" width="{inner[0]}" height="{inner[1]}"'
    whole = f'viewBox="-16 -16 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}"'
    head, body = drawing.replace(view, whole, 1).split(">", 1)
    paper = f'<rect x="-16" y="-16" width="{size[0]}" height="{size[1]}" fill="#ffffff"/>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{paper}{body}\n'


def main() -> None:
    """Measure, draw, and print the figures that the caption names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="400MB", help="how much data to make")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "curves.svg", help="the drawing")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-picture-") as folder:
        found = measure(parse_size(chosen.size, option="size") // ROW_BYTES, Path(folder))
    chosen.out.write_text(draw(found), encoding="utf-8")
    print(f"{found['rows']:,} rows, {show_bytes(found['bytes'])}; {found['machine']}; {found['date']}")
    for run in found["runs"]:
        reached = "never" if run["seconds_to_99"] is None else f"{run['seconds_to_99']:.2f} s"
        print(
            f"{run['shuffle']:<16}test {100 * run['final']:.2f} %, progressive {100 * run['epochs'][-1]['progressive_accuracy']:.2f} %;"
            f" 99 % of the best: {reached};"
            f" in all {run['training_seconds']:.2f} s, copy {run['prepare_seconds']:.2f} s"
        )


if __name__ == "__main__":
    main()
