"""Ray Data over Parquet files: files in random order with a local shuffle buffer, and its global random shuffle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "parquet"
FILE = 64_000_000
STORE = 200_000_000
"""Bytes of the object store: under a memory limit its default, a share of the machine's memory, is far too much."""


def write(folder: Path, data: Data) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    binary = pa.binary(data.row_bytes - 8)  # reads faster than a list does
    schema = pa.schema([("x", binary), ("label", pa.int64())])
    writer: Any = None
    held, number = 0, 0
    for x, label in data.chunks():
        if writer is None:
            writer = pq.ParquetWriter(
                folder / f"{number:05d}.parquet", schema, compression="none", use_dictionary=False
            )
        values = pa.FixedSizeBinaryArray.from_buffers(binary, len(x), [None, pa.py_buffer(np.ascontiguousarray(x))])
        writer.write_table(pa.table([values, pa.array(label)], schema=schema))
        held += x.nbytes
        if held >= FILE:
            writer.close()
            writer, held, number = None, 0, number + 1
    if writer is not None:
        writer.close()


def load(folder: Path, job: Job, *, globally: bool) -> Epochs:
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    import ray
    from ray.data import DataContext

    ray.init(num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(str(folder), shuffle=None if globally else "files")

    def epoch(number: int) -> Iterator[Batch]:
        shuffled = dataset.random_shuffle(seed=job.seed + number) if globally else dataset
        buffer = None if globally else max(job.data.rows // 20, job.batch_size)
        for table in shuffled.iter_batches(
            batch_size=job.batch_size,
            batch_format="pyarrow",
            local_shuffle_buffer_size=buffer,
            local_shuffle_seed=job.seed + number,
            prefetch_batches=4,
        ):
            column = table["x"].combine_chunks()
            size = job.data.row_bytes - 8
            start = column.offset * size
            body = np.frombuffer(column.buffers()[1], np.uint8)[start : start + len(column) * size]
            x = body.reshape(len(column), size).view(job.data.dtype)
            yield x.copy(), table["label"].to_numpy()

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"ray {'random_shuffle' if globally else 'local buffer'}",
        FORMAT,
        write,
        partial(load, globally=globally),
        imports=("ray.data", "pyarrow.parquet"),
        globally=globally,
    )
    for globally in (False, True)
)
