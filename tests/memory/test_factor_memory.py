"""The memory promise of factorisation: a model seven times the budget is learnt and asked within it and a constant.

Each case is a process of its own, measured by its peak resident memory less that of the same work on tiny data: the
interpreter, Arrow and compiled code. `SLACK` is the constant: keys, page tables, staging of reads and writes, blocks of
the data being read, and what allocators keep.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.conversion import convert

SLACK = 45_000_000
BUDGET = 12_000_000
RANK = 127
USERS, ITEMS, ROWS = 120_000, 60_000, 800_000

TRAIN = """
import json, sys
from penstock.bigmodel.estimators import MatrixFactorization
from penstock.budget import peak_memory
task = json.loads(sys.argv[1])
folder, rank, memory = task["folder"], task["rank"], task["memory"]
model = MatrixFactorization(model_dir=folder, rank=rank, memory=memory, epochs=2, validation=0.1)
model.fit(task["path"])
print(json.dumps([peak_memory(), model.model_.layout.nbytes]))
"""
ASK = """
import json, sys
from penstock.bigmodel.estimators import MatrixFactorization
from penstock.budget import peak_memory
task = json.loads(sys.argv[1])
model = MatrixFactorization.load(task["folder"], memory=task["memory"])
model.predict(task["path"], out=task["folder"] + "/out.parquet")
model.evaluate(task["path"])
print(json.dumps([peak_memory(), model.model_.layout.nbytes]))
"""


def peak(program: str, **task: object) -> tuple[int, int]:
    """Run a program in a process of its own; return the most memory that it held and the size of the model."""
    given = json.dumps(task | {"rank": RANK, "memory": BUDGET}, default=str)
    done = subprocess.run([sys.executable, "-c", program, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def write(path: Path, rows: int, users: int, items: int) -> Path:
    rng = np.random.default_rng(0)
    # Every user and item at least once, so that the model has its full size.
    user = np.concatenate([np.arange(users), rng.integers(0, users, rows - users)])
    item = np.concatenate([np.arange(rows // 2) % items, rng.integers(0, items, rows - rows // 2)])
    columns = {"user": user, "item": item, "rating": rng.integers(1, 6, rows).astype(np.float32)}
    convert(pa.table(columns), path, block_size="64kB")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("factor")
    tiny = write(folder / "tiny.arrow", 2000, 100, 50)
    large = write(folder / "large.arrow", ROWS, USERS, ITEMS)
    small, _ = peak(TRAIN, path=tiny, folder=folder / "tiny")
    most, size = peak(TRAIN, path=large, folder=folder / "large")
    assert size > 7 * BUDGET
    return folder, most - small


def test_training_stays_within_the_budget(models):
    _, grown = models
    assert grown <= BUDGET + SLACK, f"{grown / 1e6:.0f} MB over the baseline where {BUDGET / 1e6:.0f} MB were given"


def test_asking_stays_within_the_budget(models):
    folder, _ = models
    small, _ = peak(ASK, path=folder / "tiny.arrow", folder=folder / "tiny")
    most, _ = peak(ASK, path=folder / "large.arrow", folder=folder / "large")
    grown = most - small
    assert grown <= BUDGET + SLACK, f"{grown / 1e6:.0f} MB over the baseline where {BUDGET / 1e6:.0f} MB were given"
