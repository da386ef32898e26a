"""Grain over ArrayRecord files: a global shuffle by a computed permutation, read by its threads or its workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "arrayrecord"
SHARD = 250_000_000


def write(folder: Path, data: Data) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    per_file, number = max(SHARD // data.row_bytes, 1), 0
    to: Any = None
    for x, labels in data.chunks():
        for row, label in zip(x, labels, strict=True):
            if number % per_file == 0:
                if to is not None:
                    to.close()
                # A record to a group: what its documentation advises for random access.
                to = ArrayRecordWriter(
                    str(folder / f"{number // per_file:05d}.array_record"), "group_size:1,uncompressed"
                )
            to.write(label.tobytes() + row.tobytes())
            number += 1
    if to is not None:
        to.close()


class _Parsed:
    """Makes arrays of a record."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __call__(self, record: bytes) -> dict[str, Any]:
        return {"x": np.frombuffer(record, self.data.dtype, offset=8), "label": np.frombuffer(record, np.int64, 1)[0]}


def load(folder: Path, job: Job, *, workers: int) -> Epochs:
    import grain

    source = grain.sources.ArrayRecordDataSource([str(file) for file in sorted(folder.glob("*.array_record"))])

    def epoch(number: int) -> Iterator[Batch]:
        dataset = grain.MapDataset.source(source).shuffle(seed=job.seed + number).map(_Parsed(job.data))
        batches = dataset.batch(job.batch_size).to_iter_dataset(
            grain.ReadOptions(num_threads=16, prefetch_buffer_size=32)
        )
        if workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        return ((batch["x"], batch["label"]) for batch in batches)

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"grain, {f'{workers} workers' if workers else '16 threads'}",
        FORMAT,
        write,
        partial(load, workers=workers),
        imports=("grain", "torch"),
        globally=True,
    )
    for workers in (0, 2)
)
