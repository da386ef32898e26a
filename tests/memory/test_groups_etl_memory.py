"""The memory promise of grouping: data several times the memory given pass through within it and a constant.

Each case is a process of its own, measured by its peak resident memory less that of the same work on tiny data: the
interpreter, Arrow and compiled code. `SLACK` is the constant, and `KEY` what each group takes, whatever its rows.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.blocks.write import BlockWriter

SLACK = 30_000_000
KEY = 600
WIDTH = 40
GROUP = """
import json, sys
from penstock.budget import peak_memory
from penstock.groups.etl import group
from penstock.native import load_compiler
load_compiler()  # tiny data would do without
task = json.loads(sys.argv[1])
grouped = group(
    task["path"], "key", task["folder"], label="y", memory=task["memory"], block_size=task["block"], model="linear"
)
print(json.dumps([peak_memory(), int(grouped.rows.sum()), len(grouped), grouped.nbytes]))
"""


def pieces(rows, groups, *, sparse, step=20_000):
    """Yield rows of 160 bytes of features; of a few groups the first has half of them, many are alike."""
    rng = np.random.default_rng(0)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        key = (start + np.arange(count)) % groups
        if groups < 1000:
            key *= rng.random(count) < 0.5
        values = pa.array(rng.random(count * WIDTH, np.float32))
        columns = {"key": pa.array(key), "y": pa.array(rng.random(count, np.float32))}
        if sparse:
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * (WIDTH // 2))
            indices = pa.array(rng.integers(0, 10**6, count * WIDTH // 2).astype(np.uint32))
            columns["indices"] = pa.ListArray.from_arrays(ends, indices)
            columns["values"] = pa.ListArray.from_arrays(ends, values[: count * WIDTH // 2])
        else:
            columns["features"] = pa.FixedSizeListArray.from_arrays(values, WIDTH)
        yield pa.record_batch(columns)


def write(path, rows, groups, *, sparse):
    batches = pieces(rows, groups, sparse=sparse)
    first = next(batches)
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, first.schema, compression="NONE", use_dictionary=False) as writer:
            for batch in (first, *batches):
                writer.write_batch(batch)
        return
    with BlockWriter(path, first.schema, rows_per_block=400) as writer:
        for batch in (first, *batches):
            writer.write(batch)


def peak(path, folder, *, memory, block):
    """Group in a process of its own; return the most memory it held, the rows, the groups and their bytes."""
    task = json.dumps({"path": str(path), "folder": str(folder), "memory": memory, "block": block})
    done = subprocess.run([sys.executable, "-c", GROUP, task], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Let a first process compile, which takes memory that later ones do not need."""
    folder = tmp_path_factory.mktemp("compiled")
    for sparse in (False, True):
        write(folder / "a.arrow", 1000, 3, sparse=sparse)
        peak(folder / "a.arrow", folder / f"g{sparse}", memory=40_000_000, block=4_000_000)


@pytest.mark.parametrize(
    ("kind", "groups", "sparse", "memory", "block"),
    [
        ("arrow", 1, False, 40_000_000, 4_000_000),
        ("arrow", 280, False, 40_000_000, 4_000_000),
        ("arrow", 100_000, False, 40_000_000, 4_000_000),
        ("arrow", 280, True, 40_000_000, 4_000_000),
        ("parquet", 280, False, 40_000_000, 4_000_000),
        ("arrow", 3, False, 80_000_000, 25_000_000),
    ],
)
def test_grouping_stays_within_the_memory(tmp_path, kind, groups, sparse, memory, block):
    rows = 3 * memory // (4 * WIDTH)
    for name, count in (("tiny", 1000), ("large", rows)):
        write(tmp_path / f"{name}.{kind}", count, groups, sparse=sparse)
    small, *_ = peak(tmp_path / f"tiny.{kind}", tmp_path / "a", memory=memory, block=block)
    most, found, kinds, nbytes = peak(tmp_path / f"large.{kind}", tmp_path / "b", memory=memory, block=block)
    assert (found, kinds) == (rows, groups)
    assert nbytes > 3 * memory
    grown = most - small
    assert grown <= memory + SLACK + KEY * groups, (
        f"{grown / 1e6:.0f} MB over the baseline where {memory / 1e6:.0f} MB were given"
    )
