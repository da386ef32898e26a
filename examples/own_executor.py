"""An executor of your own: the processes of this machine, at a low priority, so that other programs go first.

An executor brings tasks to workers and answers back, and fills the place of a worker that died. This one leaves all that to
the package's own. `tests/docs/test_own_executor.py` holds it to the conformance suite that all executors pass.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import LogisticRegression
from penstock.closing import Closing
from penstock.groups import GroupBy
from penstock.groups.executor import Done, Lost, Make
from penstock.groups.local import LocalExecutor
from penstock.groups.training_run import EXECUTORS

NICENESS = 10


class BackgroundExecutor(Closing):
    """Processes of this machine that let others go first.

    Parameters
    ----------
    make : callable
        Makes the object whose methods workers call; picklable.
    workers : int, optional
        How many processes; one for each core, if not given.
    """

    def __init__(self, make: Make, *, workers: int | None = None) -> None:
        self._processes = LocalExecutor(make, workers=workers)
        self._step_back()

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._processes.workers

    @property
    def pids(self) -> list[int]:
        """The process of each worker."""
        return self._processes.pids

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        """Have a worker call a method of its object."""
        self._processes.submit(worker, task, method, *arguments)

    def wait(self) -> Done | Lost:
        """Return the next thing that happened; a worker in the place of a lost one steps back, too."""
        happened = self._processes.wait()
        if isinstance(happened, Lost):
            self._step_back()
        return happened

    def close(self) -> None:
        """End the workers."""
        self._processes.close()

    def _step_back(self) -> None:
        for pid in self.pids:
            os.setpriority(os.PRIO_PROCESS, pid, NICENESS)


EXECUTORS["background"] = BackgroundExecutor


def main() -> None:
    """Run the example in a folder of its own."""
    chance = np.random.default_rng(1)
    shop, x = chance.choice(["A", "B", "C"], 3_000), chance.standard_normal(3_000)
    bought = (np.where(shop == "A", x, -x) > 0).astype(np.int8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sales.parquet")
        pq.write_table(pa.table({"shop": shop, "x": x, "bought": bought}), path)
        groups = GroupBy(path, by="shop")
        result = groups.fit(
            LogisticRegression(), y="bought", executor="background", workers=2, out=Path(folder, "models")
        )
        print(result)


if __name__ == "__main__":
    main()
