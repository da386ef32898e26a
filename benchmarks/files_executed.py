"""How many files of the package a job runs through: ``python -m benchmarks.files_executed``.

Counted are the files of which a function is called, in any thread, from the call that a user makes to its end; importing a
module counts as nothing, nor do compiled kernels. Kernels are compiled and modules imported by a first run that is not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

PACKAGE = os.path.dirname(str(penstock.__file__)) + os.sep
BARS = {"train a Parquet file": 40, "train a model on disk": 45, "GroupBy.fit": 40}


def files_of(job: Callable[[], object]) -> set[str]:
    """Return the files of the package of which a function is called while a job runs."""
    seen: set[str] = set()

    def hear(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGE):
            seen.add(code.co_filename.removeprefix(PACKAGE))

    threading.setprofile(hear)
    sys.setprofile(hear)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, as for sys.setprofile
    return seen


def jobs(folder: Path) -> dict[str, Callable[[str], object]]:
    """Write a small table, and return the jobs by name; each takes a name for what it writes."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 4))
    columns = {f"x{j}": x[:, j] for j in range(4)}
    table = pa.table({**columns, "g": np.arange(4000) % 20, "y": (x[:, 0] + rng.standard_normal(4000) > 0).astype(int)})
    path = folder / "rows.parquet"
    pq.write_table(table, path, row_group_size=500)

    def train(name: str) -> object:
        return penstock.LogisticRegression().fit(path, y="y").save(folder / name)

    def on_disk(name: str) -> object:
        return penstock.bigmodel.LogisticRegression(folder / name, memory="20MB").fit(path, y="y", hash=["g:2^20"])

    def groups(name: str) -> object:
        work = penstock.groups.GroupBy(path, by="g")
        return work.fit(penstock.LogisticRegression(), y="y", search={"l2": [0.1, 0.01]}, out=folder / name, workers=2)

    return dict(zip(BARS, (train, on_disk, groups), strict=True))


def main() -> int:
    """Print the counts, by room too."""
    with tempfile.TemporaryDirectory() as folder:
        for name, job in jobs(Path(folder)).items():
            job(f"{name} first")
            seen = files_of(lambda job=job, name=name: job(name))  # type: ignore[misc]  # bound now, not when called
            rooms = Counter(file.split(os.sep)[0] if os.sep in file else "ground" for file in seen)
            verdict = "met" if len(seen) <= BARS[name] else "MISSED"
            by_room = ", ".join(f"{room} {count}" for room, count in rooms.most_common())
            print(f"{name}: {len(seen)} files (bar {BARS[name]}, {verdict}): {by_room}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
