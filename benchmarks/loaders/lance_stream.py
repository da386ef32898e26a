"""LanceDB's ``StreamingDataset``: rows of a table, shuffled singly or in clumps, that threads take ahead of the loop."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.hugging_face import tensors
from benchmarks.loaders.samples import Data

FORMAT = "lancedb"
CLUMP = 64
"""Rows that stay together: what it names for storage that does not like single rows."""


def write(folder: Path, data: Data) -> None:
    import lancedb

    lancedb.connect(str(folder)).create_table("data", data.batches())


def load(folder: Path, job: Job, *, clump: int | None) -> Epochs:
    import lancedb
    import pyarrow as pa
    import torch
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = lancedb.connect(str(folder)).open_table("data")
    width = job.data.width

    def rows(batch: Any) -> list[tuple[Any, Any]]:
        x, label = tensors(pa.Table.from_batches([batch]), width)
        return list(zip(x.numpy(), label.numpy(), strict=True))

    def collate(samples: list[tuple[Any, Any]]) -> Batch:
        x, label = zip(*samples, strict=True)
        return torch.from_numpy(np.stack(x)), torch.from_numpy(np.array(label))

    def epoch(number: int) -> Iterator[Batch]:
        dataset = StreamingDataset(
            table,
            shuffle_seed=job.seed,
            epoch=number,
            read_batch_size=job.batch_size,
            columns=["x", "label"],
            shuffle_clump_size=clump,
            transform=rows,
        )
        return iter(StreamingDataLoader(dataset, batch_size=job.batch_size, collate_fn=collate))

    return epoch


CONTESTANTS = tuple(
    Contestant(
        "lancedb streaming" + (f", clumps of {clump}" if clump else ""),
        FORMAT,
        write,
        partial(load, clump=clump),
        imports=("torch.utils.data", "lancedb.streaming", "pyarrow"),
        globally=clump is None,
    )
    for clump in (None, CLUMP)
)
