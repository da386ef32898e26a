"""Data made for benchmarks: label-clustered rows from a linear teacher, written in the fast layout in chunks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.blocks.conversion import convert
from penstock.blocks.memory import to_arrow

CHUNK = 250_000


def dense(
    path: str | os.PathLike[str], *, rows: int, width: int = 28, block_size: str = "auto", seed: int = 0, draw: int = 0
) -> Path:
    """Write rows of standard normal features, all negatives before all positives; noise limits accuracy to 85 %.

    Another ``draw`` gives other rows of the same teacher.
    """
    teacher = np.random.default_rng(seed).normal(size=width).astype(np.float32)
    teacher *= np.float32(1 / np.linalg.norm(teacher))

    def batches() -> Iterator[pa.RecordBatch]:
        for label in (0, 1):
            rng = np.random.default_rng((seed, draw, label))
            left = rows // 2
            while left:
                x = rng.standard_normal((CHUNK, width), np.float32)
                margin = x @ teacher + np.float32(0.5) * rng.standard_normal(CHUNK, np.float32)
                x = x[(margin > 0) == bool(label)][:left]
                left -= len(x)
                yield to_arrow(x, np.full(len(x), label, np.int8))

    first = to_arrow(np.zeros((0, width), np.float32), np.zeros(0, np.int8))
    convert(pa.RecordBatchReader.from_batches(first.schema, batches()), path, label="label", block_size=block_size)
    return Path(path)
