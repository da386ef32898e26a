"""Every row once in an epoch over all processes, also after a resume: accelerate, Hugging Face's Trainer, Lightning and Ray Train.

Each job is one launch of several processes with several checks, since the frameworks take seconds to import.
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
import torch

from penstock.torch import UnorderedDataLoader
from tests.framework_jobs import ROWS, Noting

JOBS = Path(__file__).parents[1] / "framework_jobs.py"


def run(job: str, processes: int, folder: Path) -> list[dict[str, list[list[int]]]]:
    """Run a job of several processes; return what each saw."""
    pq.write_table(pa.table({"number": np.arange(ROWS)}), folder / "rows.parquet", row_group_size=4)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    paths = os.pathsep.join([str(JOBS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, *([] if job == "ray" else torchrun), str(JOBS), job, str(folder)]
        launched = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            launched.wait()
        finally:  # a job that was given up leaves no process behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launched.pid, signal.SIGKILL)
    assert launched.returncode == 0, (folder / "log").read_text()[-8000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "processes", "needs"),
    [
        ("ways", 4, "accelerate"),
        ("hugging-face", 2, "transformers"),
        ("lightning", 2, "pytorch_lightning"),
        ("ray", 2, "ray"),
    ],
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


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"seed": 3}, {"val_check_interval": 10}),
        ({"workers": "processes", "num_workers": 2}, {"accumulate_grad_batches": 3}),
        ({"persistent_workers": True}, {"limit_train_batches": 100}),
    ],
    ids=["plain", "seed-and-validation", "processes-and-accumulation", "kept-threads-and-a-limit"],
)
def test_an_unordered_loader_that_lightning_resumes_in_an_epoch_loses_and_doubles_no_row(tmp_path, options, settings):
    lightning = pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Noting()

        def training_step(self, batch, _):
            return self.model(batch)["loss"]

        def validation_step(self, batch, _):
            return None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(*, checkpoint=None, **trained):
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=3,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **settings,
            **trained,
        )
        with (
            UnorderedDataLoader(torch.arange(1000), 7, shuffle=True, **options) as loader,
            UnorderedDataLoader(torch.arange(20), 5) as judged,
        ):
            trainer.fit(module, loader, judged, ckpt_path=checkpoint)
        return [row for batch in module.model.seen for row in batch]

    together = settings.get("accumulate_grad_batches", 1)
    batches = settings.get("limit_train_batches", 143)
    saved = -(-batches // together) + 10  # steps: in the middle of the second epoch
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=saved, save_top_k=-1, filename="{step}")
    whole = fit(callbacks=[saving])
    rest = fit(checkpoint=tmp_path / f"step={saved}.ckpt", enable_checkpointing=False)
    rows = min(1000, 7 * batches)
    before = rows + 10 * together * 7
    assert len(whole) == 3 * rows
    assert len(set(whole[rows : 2 * rows])) == rows, "an epoch has no row twice"
    assert sorted(whole[rows:before] + rest[: 2 * rows - before]) == sorted(whole[rows : 2 * rows])
    assert len(set(rest[2 * rows - before :])) == len(rest) - (2 * rows - before) == rows
