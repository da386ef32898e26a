"""``penstock demo``: the main job in a minute, on data that it makes and removes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.cli.screen import Screen

_SHUFFLES = ("none", "sliding-window", "once", "corgipile")
_EPOCHS = 4
_MEMORY = "25%"
# The data, a shuffled copy of them while `once` runs, the test rows, and some air.
_DISK = 2.5


@o.takes("demo")
def demo_command(*, size: str, dir: str | None, seed: int, report: str, json: bool) -> None:
    """See it work: data stored by label, what explain finds, and four ways to shuffle, in about a minute."""
    from penstock.budget import parse_size, show_bytes
    from penstock.cli.demo_data import ROW_BYTES, WIDTH, write_clustered
    from penstock.cli.results import follow, give_comparison, show_table, write_page
    from penstock.cli.screen import Screen
    from penstock.compare import TrainingRequest, compare
    from penstock.config import Config
    from penstock.outputs import require_file, require_folder
    from penstock.training import Columns

    began = time.perf_counter()
    rows = max(2_000, parse_size(size, option="size") // ROW_BYTES)
    target = require_file(report)
    if dir is not None:
        require_folder(dir)
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(json=json, rows=False))
        screen.watch(target)
        place = Path(dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
        _require_room(place, rows * ROW_BYTES)
        data, test = place / "clustered.arrow", place / "test.arrow"
        screen.say(
            f"Making {rows:,} rows of {WIDTH} features, stored by label: first all negatives, then all positives."
        )
        written = write_clustered(data, rows, seed=seed, stream=screen.stream)
        write_clustered(test, min(200_000, max(2_000, rows // 20)), seed=seed, part="test")
        screen.say(
            f"{show_bytes(written)} in {time.perf_counter() - began:.1f} s. A row's label is noisy: 85 % can be told."
        )
        clustering = _explain(screen, data, seed)
        screen.say(
            f"\nTraining {_EPOCHS} epochs by {len(_SHUFFLES)} strategies, each in memory for a quarter of the rows:"
        )
        job = TrainingRequest(
            data=os.fspath(data),
            test=os.fspath(test),
            config=Config(solver="sgd", average=False, epochs=_EPOCHS, learning_rate=0.005, memory=_MEMORY, seed=seed),
            columns=Columns(label="label"),
        )
        compared = compare(job, _SHUFFLES, listen=lambda event: follow(screen, event))
        if dir is None:
            compared["data"] = f"penstock demo: {show_bytes(written)} stored by label"  # its file will be gone
        show_table(screen, compared)
        screen.say()
        write_page(screen, compared, target, clustering=clustering)
        seconds = time.perf_counter() - began
        screen.say(f"The curves are in {target.resolve()} (open it in a browser). {seconds:.0f} s in all.")
        give_comparison(screen, compared, target, clustering=clustering, seconds=seconds)


def _require_room(place: Path, data_bytes: int) -> None:
    """Raise where the disk cannot hold the data and a shuffled copy."""
    from penstock.budget import show_bytes
    from penstock.errors import WriteError

    if not place.is_dir():
        raise WriteError(f"there is no folder {place} for the demo's data; make it first")
    needed, free = int(_DISK * data_bytes), shutil.disk_usage(place).free
    if free < needed:
        raise WriteError(
            f"the demo needs {show_bytes(needed)} of disk for its data and a shuffled copy, and {place} has"
            f" {show_bytes(free)} free; choose another folder with --dir, or less data with --size"
        )


def _explain(screen: Screen, data: Path, seed: int) -> str | None:
    """Show what explain finds, and return its sentence on how the rows lie."""
    from penstock.cli.results import lie_of
    from penstock.cli.wording import command_line
    from penstock.explanation import explain

    found = explain(data, label="label", memory=_MEMORY, seed=seed)
    screen.say()
    for line in found.lines(command_line()):
        screen.say(line)
    return lie_of(found)
