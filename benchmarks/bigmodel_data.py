"""Sparse data made for benchmarks: features by zipf's law or evenly, their numbers scattered over the whole dimension."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.blocks.write import BlockWriter

SCHEMA = pa.schema(
    [
        pa.field("label", pa.float64(), nullable=False),
        pa.field("indices", pa.list_(pa.uint32()), nullable=False),
        pa.field("values", pa.list_(pa.float32()), nullable=False),
    ]
)
_STEP = 5000
# Scatters ranks over the dimension: neighbours in frequency are no neighbours in number.
_STRIDE = 2_654_435_761


def sparse(path: str | os.PathLike[str], *, rows: int, nnz: int, dimension: int, zipf: bool, seed: int = 0) -> Path:
    """Write rows of ``nnz`` entries each, in the fast layout; the label is what a seventh of the features say."""
    rng = np.random.default_rng(seed)
    part = {"columns": ["indices", "values"], "kind": "pairs", "width": dimension, "names": [], "hashed": None}
    noted = {"label": "label", "columns": ["indices", "values"], "sparse": True, "width": dimension, "encoder": [part]}
    size = max(1, 256 * 1024 // (8 * nnz))
    with BlockWriter(path, SCHEMA, rows_per_block=size, metadata=noted) as writer:
        for start in range(0, rows, _STEP):
            count = min(_STEP, rows - start)
            draws = rng.random(count * nnz)
            ranks = (dimension**draws if zipf else dimension * draws).astype(np.uint64)
            indices = ((ranks * np.uint64(_STRIDE)) % np.uint64(dimension)).astype(np.uint32).reshape(count, nnz)
            indices.sort(axis=1)
            label = ((indices % 7).astype(np.int64).sum(axis=1) > 3 * nnz).astype(np.float64)
            offsets = pa.array(np.arange(count + 1, dtype=np.int32) * nnz)
            columns = [
                pa.array(label),
                pa.ListArray.from_arrays(offsets, pa.array(indices.ravel())),
                pa.ListArray.from_arrays(offsets, pa.array(np.ones(count * nnz, np.float32))),
            ]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return Path(path)
