"""The memory promise on Parquet files of many text columns, whose half-read row groups are the largest thing held.

Each case is a process of its own, measured by its peak resident memory less that of the same work on tiny data. `SLACK`
is a constant, larger than that of the other memory tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

SLACK = 40_000_000  # runs of the same work differ by 15 MB, as Arrow keeps more or less of what it has freed
COLUMNS, GROUP, GROUPS = 26, 40_000, 7
START = """
import json, sys
from penstock.budget import Budget, peak_memory
from penstock.errors import BudgetError
from penstock.native import load_compiler
load_compiler()
task = json.loads(sys.argv[1])
path, folder, memory = task["path"], task["folder"], task["memory"]
roles = {"y": "y", "exclude": ["g"], "hash": [f"c{j}:2^18" for j in range(26)]}
"""
END = """
print(json.dumps(peak_memory()))
"""
DOORS = {
    "bigmodel": """
from penstock.bigmodel import LogisticRegression
model = LogisticRegression(folder + "/model", memory=memory, epochs=1, learning_rate=0.01)
model.fit(path, **roles)
model.evaluate(path)
model.predict(path, out=folder + "/out.parquet")
""",
    "train": """
from penstock import LogisticRegression
LogisticRegression(memory=memory, epochs=1, learning_rate=0.01).fit(path, **roles)
""",
    "predict": """
from penstock import LogisticRegression
model = LogisticRegression(memory=memory, epochs=1, learning_rate=0.01).fit(task["tiny"], **roles)
model.predict(path, out=folder + "/out.parquet")
""",
    "groups": """
from penstock.groups.etl import group
group(path, "g", folder + "/grouped", label="y", memory=memory, block_size=2_000_000, model="logistic", hash=roles["hash"])
""",
    "convert": """
from penstock.blocks import convert
convert(path, folder + "/out.arrow", label="y", exclude=["g"], hash=roles["hash"])
""",
}


def write(path, rows):
    """Write text columns of few and of many values, some missing, in row groups that a block is a small part of."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, GROUP):
        count = min(GROUP, rows - start)
        columns = {"y": pa.array(rng.integers(0, 2, count).astype(np.int8)), "g": pa.array(np.arange(count) % 5)}
        for number in range(COLUMNS):
            missing = rng.random(count) < 0.05 * (number % 3)
            values = pa.array(rng.integers(10**14, 10**14 + (20, 10**12)[number % 2], count), mask=missing)
            columns[f"c{number}"] = pc.cast(values, pa.string())
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=GROUP)
    writer.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write(folder / "tiny.parquet", 1000)
    write(folder / "large.parquet", GROUP * GROUPS)
    return folder


def run(door, data, name, folder, memory):
    folder.mkdir(exist_ok=True)
    task = {"path": f"{data}/{name}.parquet", "tiny": f"{data}/tiny.parquet", "folder": str(folder), "memory": memory}
    program = START + DOORS[door] + END
    return subprocess.run([sys.executable, "-c", program, json.dumps(task)], capture_output=True, text=True)


def grown(door, data, folder, memory):
    """Return by how much the peak on the large file exceeds that on the tiny one."""
    peaks = []
    for name in ("tiny", "large"):
        done = run(door, data, name, folder / name, memory)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    return peaks[1] - peaks[0]


def smallest(door, data, folder, memory):
    """Return the memory that the refusal of a smaller one names."""
    done = run(door, data, "large", folder, memory)
    assert "BudgetError" in done.stderr, done.stderr or done.stdout
    found = re.search(r"(?:smallest that works is|give at least) ([0-9.]+) ?MB", done.stderr)
    assert found, done.stderr
    return int(float(found[1]) * 1_000_000)


@pytest.mark.parametrize("door", ["bigmodel", "train", "groups"])
def test_a_budget_below_a_row_group_is_refused_and_the_one_named_is_kept(data, door, tmp_path):
    memory = smallest(door, data, tmp_path / "refused", 33_000_000)
    most = grown(door, data, tmp_path, memory)
    assert most <= memory + SLACK, f"{most / 1e6:.0f} MB over the baseline where {memory / 1e6:.0f} MB were given"


@pytest.mark.parametrize("door", ["convert", "predict"])
def test_one_row_group_at_a_time_is_held(data, door, tmp_path):
    assert grown(door, data, tmp_path, 300_000_000) <= 100_000_000
