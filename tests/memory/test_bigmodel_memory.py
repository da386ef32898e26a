"""The memory promise of models on disk: rows, pages, tables and chunks stay within the number given and a constant.

Each case is a process of its own, measured by its peak resident memory less that of the same work on little data, whose model
is larger than its memory too, so that the same kernels are loaded.
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
TRAIN = """
import json, sys
from penstock.bigmodel import LogisticRegression
from penstock.budget import peak_memory
task = json.loads(sys.argv[1])
model = LogisticRegression(
    task["folder"], memory=task["memory"], epochs=2, learning_rate=0.01, optimizer=task["optimizer"], threads=task["threads"]
)
model.fit(task["path"], y="y")
learnt = peak_memory()
model.evaluate(task["path"])
print(json.dumps([learnt, peak_memory(), model.model_.layout.features, model.traffic_["misses"]]))
"""


def write(path, rows, *, nnz=100, piece=5000):
    rng = np.random.default_rng(0)
    lists = [pa.list_(kind) for kind in (pa.int64(), pa.float32())]
    schema = pa.schema([("y", pa.float32()), ("indices", lists[0]), ("values", lists[1])])
    with BlockWriter(path, schema, rows_per_block=200) as writer:
        for start in range(0, rows, piece):
            count = min(piece, rows - start)
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * nnz)
            features = (1e13 ** rng.random(count * nnz)).astype(np.int64)
            columns = [
                pa.ListArray.from_arrays(ends, pa.array(c)) for c in (features, rng.random(count * nnz, np.float32))
            ]
            writer.write(
                pa.record_batch([pa.array(rng.integers(0, 2, count).astype(np.float32)), *columns], schema=schema)
            )


def peaks(path, folder, memory, **options):
    task = json.dumps(
        {"path": str(path), "folder": str(folder), "memory": memory, "optimizer": "sgd", "threads": 1, **options}
    )
    done = subprocess.run([sys.executable, "-c", TRAIN, task], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [{}, {"optimizer": "adagrad"}, {"threads": 2}])
def test_training_and_scoring_stay_within_the_memory(tmp_path, options):
    write(tmp_path / "little.arrow", 2000)
    write(tmp_path / "rows.arrow", 60_000)
    memory = 16_000_000
    little = peaks(tmp_path / "little.arrow", tmp_path / "little.model", 700_000, **options)
    learnt, scored, features, misses = peaks(tmp_path / "rows.arrow", tmp_path / "rows.model", memory, **options)
    assert features * 4 > memory * 0.75  # more than the part of the memory that pages get
    assert misses > 0
    assert little[3] > 0
    assert learnt - little[0] < memory + SLACK
    assert scored - little[1] < memory + SLACK
