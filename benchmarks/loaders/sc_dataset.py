"""scDataset: blocks of neighbouring rows in random order, several batches of them fetched and shuffled together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.memory_mapped import FORMAT, Samples, write

BLOCK = 16
"""Rows that lie together, and are fetched together."""


def load(folder: Path, job: Job, *, workers: int) -> Epochs:
    from scdataset import BlockShuffling, scDataset
    from torch.utils.data import DataLoader

    # Each worker holds what it has fetched: together as many rows as our `corgipile` may hold.
    held = job.data.rows * job.shares["corgipile"] / max(1, workers)
    dataset = scDataset(
        Samples(folder, job.data),
        BlockShuffling(block_size=BLOCK),
        batch_size=job.batch_size,
        fetch_factor=max(1, int(held) // job.batch_size),
        batch_callback=_some,
        seed=job.seed,
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)

    def epoch(number: int) -> Iterator[Batch]:  # it counts epochs itself
        return iter(loader)

    return epoch


def _some(fetched: Batch, picks: Any) -> Batch:
    x, label = fetched
    return x[picks], label[picks]


CONTESTANTS = tuple(
    Contestant(
        f"scdataset, blocks of {BLOCK}, {workers} workers",
        FORMAT,
        write,
        partial(load, workers=workers),
        imports=("torch.utils.data", "scdataset"),
        mapped=True,
    )
    for workers in (0, 2)
)
