"""Every row once in an epoch over all processes, also after a resume: accelerate, Hugging Face's Trainer and Lightning.

Each job is one launch of torchrun with several checks, since the frameworks take seconds to import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.framework_jobs import ROWS

JOBS = Path(__file__).parents[1] / "framework_jobs.py"


def run(job: str, processes: int, folder: Path) -> list[dict[str, list[list[int]]]]:
    """Run a job of several processes; return what each saw."""
    pq.write_table(pa.table({"number": np.arange(ROWS)}), folder / "rows.parquet", row_group_size=4)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    paths = os.pathsep.join([str(JOBS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        torchrun = subprocess.Popen(
            [*launch, str(JOBS), job, str(folder)], env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            torchrun.wait()
        finally:  # a job that was given up leaves no process behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(torchrun.pid, signal.SIGKILL)
    assert torchrun.returncode == 0, (folder / "log").read_text()[-8000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "processes", "needs"),
    [("ways", 4, "accelerate"), ("hugging-face", 2, "transformers"), ("lightning", 2, "pytorch_lightning")],
)
def test_every_row_comes_once_in_an_epoch_over_all_processes(tmp_path, job, processes, needs):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    seen = run(job, processes, tmp_path)
    wrong = {}
    for case in seen[0]:
        for epoch, parts in enumerate(zip(*(each[case] for each in seen), strict=True)):
            counts = [len(part) for part in parts]
            if sorted(row for part in parts for row in part) != list(range(ROWS)) or len(set(counts)) > 1:
                wrong[case, epoch] = counts, len({row for part in parts for row in part})
    assert not wrong
