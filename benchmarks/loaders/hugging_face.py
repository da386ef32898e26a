"""Hugging Face datasets: map-style under the stock DataLoader, and iterable with a shuffle buffer.

Map-style is run as most people do (NumPy format, default collation; torch asks it for whole batches by itself) and
at its best (Arrow format, a batch sampler, our own conversion of the table); iterable in the Arrow format with a
buffer of a tenth of the rows, the shards in random order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.memory_mapped import RandomBatches
from benchmarks.loaders.samples import Data

FORMAT = "hf"
SHARD = 500_000_000
"""Bytes: what `save_to_disk` takes."""
SHARDS = 64
"""Of an iterable dataset: their order is all the shuffle that reaches further than its buffer."""


def write(folder: Path, data: Data) -> None:
    from datasets import Features
    from datasets.arrow_writer import ArrowWriter

    features, batches = Features.from_arrow_schema(data.schema), iter(data.batches())
    first, shard = next(batches, None), 0
    while first is not None:
        written = 0
        with ArrowWriter(path=str(folder / f"data-{shard:05d}.arrow"), features=features, writer_batch_size=1000) as to:
            for batch in chain([first], batches):
                for start in range(0, batch.num_rows, 1000):
                    to.write_table(pa.Table.from_batches([batch.slice(start, 1000)]))
                written += batch.nbytes
                if written >= SHARD:
                    break
            to.finalize()
        first, shard = next(batches, None), shard + 1


def _dataset(folder: Path) -> Any:
    from datasets import Dataset, concatenate_datasets

    return concatenate_datasets([Dataset.from_file(str(file)) for file in sorted(folder.glob("*.arrow"))])


def tensors(table: Any, width: int) -> Batch:
    """Return an Arrow table's columns as tensors, without a detour through lists."""
    import torch

    x = table["x"].combine_chunks()
    x = x.chunk(0) if hasattr(x, "chunk") else x
    values = x.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return torch.from_numpy(np.array(values)), torch.from_numpy(np.array(table["label"].to_numpy()))


def load_map(folder: Path, job: Job, *, workers: int) -> Epochs:
    """Set the NumPy format and pass the dataset to the stock DataLoader."""
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(
        _dataset(folder).with_format("numpy", dtype=np.dtype(job.data.dtype)),
        batch_size=job.batch_size,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(job.seed),
    )
    return lambda number: ((batch["x"], batch["label"]) for batch in loader)


class _Tables:
    """Gives a batch of the dataset for a batch of numbers."""

    def __init__(self, dataset: Any, width: int) -> None:
        self.dataset, self.width = dataset, width

    def __getitem__(self, numbers: Any) -> Batch:
        return tensors(self.dataset[numbers.tolist()], self.width)


def load_batched(folder: Path, job: Job, *, workers: int) -> Epochs:
    """Ask for whole batches in the Arrow format."""
    from torch.utils.data import DataLoader

    dataset = _dataset(folder).with_format("arrow")
    sampler = RandomBatches(len(dataset), job)
    loader: Any = DataLoader(
        _Tables(dataset, job.data.width),
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
    )

    def epoch(number: int) -> Iterator[Batch]:
        sampler.epoch = number
        return iter(loader)

    return epoch


def load_iterable(folder: Path, job: Job) -> Epochs:
    dataset = _dataset(folder).to_iterable_dataset(num_shards=SHARDS).with_format("arrow")
    shuffled = dataset.shuffle(seed=job.seed, buffer_size=max(job.data.rows // 10, job.batch_size))

    def epoch(number: int) -> Iterator[Batch]:
        shuffled.set_epoch(number)
        for table in shuffled.iter(batch_size=job.batch_size):
            yield tensors(table, job.data.width)

    return epoch


IMPORTS = ("torch.utils.data", "datasets", "pyarrow.compute")

CONTESTANTS = (
    *(
        Contestant(f"hf map, {workers} workers", FORMAT, write, partial(load_map, workers=workers), IMPORTS, True, True)
        for workers in (0, 2)
    ),
    *(
        Contestant(
            f"hf map arrow batched, {workers} workers",
            FORMAT,
            write,
            partial(load_batched, workers=workers),
            IMPORTS,
            True,
            True,
        )
        for workers in (0, 2)
    ),
    Contestant("hf iterable, buffer 10 %", FORMAT, write, load_iterable, IMPORTS, mapped=True),
)
