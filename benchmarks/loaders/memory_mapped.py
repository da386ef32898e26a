"""The stock DataLoader over `np.memmap`: a sample at a time, and a batch at a time by a batch sampler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "memmap"


def write(folder: Path, data: Data) -> None:
    labels = []
    with open(folder / "x.bin", "wb") as file:
        for x, label in data.chunks():
            file.write(x)
            labels.append(label.astype(np.int8))
    np.concatenate(labels).astype(np.int64).tofile(folder / "label.bin")


class Samples:
    """A map-style dataset that copies rows out of the map."""

    def __init__(self, folder: Path, data: Data) -> None:
        self.x = np.memmap(folder / "x.bin", data.dtype, "r", shape=(data.rows, data.width))
        self.label = np.memmap(folder / "label.bin", np.int64, "r")

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: Any) -> Batch:
        import torch

        if isinstance(index, int):
            return torch.from_numpy(self.x[index].copy()), int(self.label[index])
        return torch.from_numpy(self.x[index]), torch.from_numpy(self.label[index])


class RandomBatches:
    """A batch sampler that keeps its permutation as one array: the stock one makes a Python list of all numbers."""

    def __init__(self, rows: int, job: Job) -> None:
        self.rows, self.job, self.epoch = rows, job, 0

    def __len__(self) -> int:
        return -(-self.rows // self.job.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng((self.job.seed, self.epoch)).permutation(self.rows)
        for start in range(0, self.rows, self.job.batch_size):
            yield order[start : start + self.job.batch_size]


def load(folder: Path, job: Job, *, batched: bool, workers: int = 0) -> Epochs:
    import torch
    from torch.utils.data import DataLoader

    samples = Samples(folder, job.data)
    if batched:
        sampler = RandomBatches(len(samples), job)
        loader: Any = DataLoader(samples, sampler=sampler, batch_size=None, num_workers=workers)
    else:
        generator = torch.Generator().manual_seed(job.seed)
        loader = DataLoader(samples, batch_size=job.batch_size, shuffle=True, num_workers=workers, generator=generator)

    def epoch(number: int) -> Iterator[Batch]:
        if batched:
            sampler.epoch = number
        return iter(loader)

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"torch over memmap, {'batched' if batched else 'per item'}",
        FORMAT,
        write,
        partial(load, batched=batched),
        imports=("torch.utils.data",),
        globally=True,
        mapped=True,
    )
    for batched in (False, True)
)
