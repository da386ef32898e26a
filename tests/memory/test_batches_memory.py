"""The memory promise of batches: data ten times the budget pass through within the budget and a stated constant.

Each case is a process of its own, measured by its peak resident memory less that of the same work on tiny data: the
interpreter, Arrow and compiled code. `SLACK` is the constant: what allocators keep, and the batches themselves.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.blocks.conversion import convert

SLACK = 20_000_000
BUDGET = 8_000_000
SIZE = 80_000_000
BATCHES = """
import json, sys
from penstock.budget import peak_memory
from penstock.loader.batches import Batches
task = json.loads(sys.argv[1])
rows = 0
with Batches(task["path"], 256, memory=task["memory"], shuffle=task["shuffle"], scratch=task["scratch"]) as stream:
    resident = stream.plan.resident
    for batch in stream:
        rows += len(batch["number"])
print(json.dumps([peak_memory(), rows, resident]))
"""


def rows_of(kind: str, start: int, count: int) -> pa.RecordBatch:
    """Return some rows: of 116 bytes (features), of 10 kB (images), of 400 and of 10,000 bytes on average (ragged)."""
    rng = np.random.default_rng(start)
    numbers = pa.array(np.arange(start, start + count, dtype=np.int32))
    if kind == "features":
        column = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(28 * count, np.float32)), 28)
    elif kind == "images":
        column = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 255, 10_000 * count, np.uint8)), 10_000)
    else:
        mean = 100 if kind == "tokens" else 10_000
        ends = np.concatenate([[0], np.cumsum(rng.integers(0, 2 * mean, count))]).astype(np.int32)
        if kind == "tokens":
            column = pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.integers(0, 999, ends[-1], np.int32)))
        else:
            raw = pa.py_buffer(rng.integers(0, 255, ends[-1], np.uint8))
            column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), raw])
    return pa.RecordBatch.from_arrays([column, numbers], names=["value", "number"])


ROW_BYTES = {"features": 116, "images": 10_004, "tokens": 404, "files": 10_004}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")

    @functools.cache
    def stored(kind: str, suffix: str, *, tiny: bool = False) -> Path:
        path = folder / f"{kind}-{'tiny' if tiny else 'large'}{suffix}"
        rows = 300 if tiny else SIZE // ROW_BYTES[kind]
        piece = 4_000_000 // ROW_BYTES[kind]
        batches = (rows_of(kind, at, min(piece, rows - at)) for at in range(0, rows, piece))
        schema = rows_of(kind, 0, 1).schema
        if suffix == ".arrow":
            convert(pa.RecordBatchReader.from_batches(schema, batches), path, block_size="64kB")
        else:
            with parquet.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
                for batch in batches:
                    writer.write_batch(batch, row_group_size=piece)
        return path

    return stored


def peak(path: Path, shuffle: str, memory: int, scratch: Path) -> tuple[int, int, bool]:
    """Run an epoch in a process of its own; return the most memory it held, the rows, and whether all were kept."""
    task = json.dumps({"path": str(path), "shuffle": shuffle, "memory": memory, "scratch": str(scratch)})
    done = subprocess.run([sys.executable, "-c", BATCHES, task], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("kind", "suffix", "shuffle", "budget"),
    [
        ("features", ".arrow", "corgipile", BUDGET),
        ("features", ".arrow", "global", BUDGET),
        ("images", ".arrow", "global", BUDGET),
        ("tokens", ".arrow", "corgipile", BUDGET),
        ("tokens", ".arrow", "global", BUDGET),
        ("tokens", ".arrow", "once", BUDGET),
        # What is kept over the bytes of unequal rows grows with the budget.
        ("files", ".arrow", "corgipile", 5 * BUDGET),
        ("files", ".arrow", "global", 5 * BUDGET),
        # Row groups of 4 MB are held half read, several of them.
        ("tokens", ".parquet", "corgipile", 4 * BUDGET),
    ],
)
def test_batches_stay_within_the_budget(data, kind, suffix, shuffle, budget, tmp_path):
    small, _, _ = peak(data(kind, suffix, tiny=True), shuffle, budget, tmp_path)
    most, rows, resident = peak(data(kind, suffix), shuffle, budget, tmp_path)
    assert not resident
    assert rows == SIZE // ROW_BYTES[kind]
    grown = most - small
    assert grown <= budget + SLACK, f"{grown / 1e6:.0f} MB over the baseline where {budget / 1e6:.0f} MB were given"
