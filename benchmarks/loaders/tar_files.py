"""WebDataset: tar files in random order, a shuffle buffer, batches made in this process or in two workers."""

from __future__ import annotations

import io
import math
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "tars"
SHARD = 50_000_000
"""Bytes of rows in a tar: small enough to have many, whose order is the far-reaching part of its shuffle."""
BUFFER = 5_000
"""Rows in each worker's buffer, as its documentation shows."""


def write(folder: Path, data: Data) -> None:
    per_tar, number = max(SHARD // max(data.row_bytes, 512), 1), 0
    tar: tarfile.TarFile | None = None
    for x, labels in data.chunks():
        for row, label in zip(x, labels, strict=True):
            if number % per_tar == 0:
                if tar is not None:
                    tar.close()
                tar = tarfile.open(folder / f"{number // per_tar:06d}.tar", "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - closed when full
            body = label.tobytes() + row.tobytes()  # one member a sample: a second would cost as much again
            entry = tarfile.TarInfo(f"{number:09d}.bin")
            entry.size = len(body)
            assert tar is not None
            tar.addfile(entry, io.BytesIO(body))
            number += 1
    if tar is not None:
        tar.close()


class _Together:
    """Makes two arrays of a batch of members."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __call__(self, samples: Any) -> Batch:
        rows = np.frombuffer(b"".join(sample["bin"] for sample in samples), np.uint8).reshape(len(samples), -1)
        x = np.ascontiguousarray(rows[:, 8:]).view(self.data.dtype)
        return x, np.ascontiguousarray(rows[:, :8]).view(np.int64)[:, 0]


def load(folder: Path, job: Job, *, workers: int) -> Epochs:
    import webdataset

    tars = sorted(str(file) for file in folder.glob("*.tar"))
    dataset = (
        webdataset.WebDataset(tars, shardshuffle=len(tars), empty_check=False, seed=job.seed)
        .shuffle(BUFFER)
        .batched(job.batch_size, collation_fn=_Together(job.data))
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=min(workers, len(tars)))
    return lambda number: iter(loader)


CONTESTANTS = tuple(
    Contestant(
        f"webdataset, {workers} workers, buffer {BUFFER}",
        FORMAT,
        write,
        partial(load, workers=workers),
        imports=("torch.utils.data", "webdataset"),
        most={"rows": math.ceil(2e9 / 1024)},  # a member takes a kilobyte, however small
    )
    for workers in (0, 2)
)
