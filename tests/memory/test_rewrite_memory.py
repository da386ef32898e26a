"""The memory promise of preparing: data and features far above the memory given pass through within it and a constant.

Each case is a process of its own, measured by its peak resident memory less that of the same work on tiny data: the
interpreter, Arrow and compiled code. `SLACK` is the constant.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.write import BlockWriter

SLACK = 30_000_000
REWRITE = """
import json, sys
import numpy as np
import penstock
from penstock.bigmodel.index_map import IndexMap
from penstock.bigmodel.rewrite import rewrite
from penstock.columns.choose import choose_features
from penstock.budget import peak_memory
task = json.loads(sys.argv[1])
with penstock.open(task["path"]) as source:
    recipe = choose_features(source.schema, label="y", place="here", wide=True)
    layout = rewrite(source, recipe, task["folder"], memory=task["memory"], hot=task["hot"])
with IndexMap.open(task["folder"], memory=task["memory"]) as index:
    asked = np.arange(0, 500_000, dtype=np.uint64) if layout.rows > 1000 else np.arange(9, dtype=np.uint64)
    index.positions(asked)
print(json.dumps([peak_memory(), layout.entries, layout.features]))
"""


def write(path, rows, *, dimension, nnz=100, piece=5000):
    """Write rows of 1.2 kB with 64-bit features."""
    rng = np.random.default_rng(0)
    lists = [pa.list_(kind) for kind in (pa.int64(), pa.float32())]
    schema = pa.schema([("y", pa.float32()), ("indices", lists[0]), ("values", lists[1])])
    with BlockWriter(path, schema, rows_per_block=200) as writer:
        for start in range(0, rows, piece):
            count = min(piece, rows - start)
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * nnz)
            features = pa.array(rng.integers(0, dimension, count * nnz))
            values = pa.array(rng.random(count * nnz, np.float32))
            columns = [pa.ListArray.from_arrays(ends, inner) for inner in (features, values)]
            writer.write(pa.record_batch([pa.array(rng.random(count, np.float32)), *columns], schema=schema))


def peak(path, folder, memory, hot):
    """Prepare in a process of its own; return the most memory it held, the entries and the features."""
    folder.mkdir()
    task = json.dumps({"path": str(path), "folder": str(folder), "memory": memory, "hot": hot})
    done = subprocess.run([sys.executable, "-c", REWRITE, task], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("dimension", "memory", "hot"), [(2**60, 16_000_000, 10**6), (10**6, 16_000_000, 10**6), (3, 32_000_000, 2)]
)
def test_preparing_stays_within_the_memory(tmp_path, dimension, memory, hot):
    write(tmp_path / "tiny.arrow", 400, dimension=dimension)
    write(tmp_path / "large.arrow", 80_000, dimension=dimension)
    small, _, _ = peak(tmp_path / "tiny.arrow", tmp_path / "a", memory, hot)
    most, entries, features = peak(tmp_path / "large.arrow", tmp_path / "b", memory, hot)
    assert entries == 8_000_000  # 96 MB as stored, and 160 MB of features with counts where none occurs twice
    assert features >= min(dimension, 7_900_000) * 0.99
    grown = most - small
    assert grown <= memory + SLACK, f"{grown / 1e6:.0f} MB over the baseline where {memory / 1e6:.0f} MB were given"
