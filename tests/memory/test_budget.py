"""The memory promise: data ten times the budget are learned from within the budget and a stated constant.

Each case is a process of its own, measured by its peak resident memory, less that of the same work on tiny data:
the interpreter, Arrow and compiled code. `SLACK` is the constant; `CONVERTING` is what `convert` may take for any size.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp

from penstock.blocks.conversion import convert
from penstock.blocks.memory import ArraySource
from penstock.blocks.write import BlockWriter

SLACK = 30_000_000
CONVERTING = 300_000_000
WIDTH, PIECE = 28, 50_000
TINY = 2_000
NAMES = [f"f{j}" for j in range(WIDTH)]

TRAIN = """
import json, sys
from penstock.blocks.open import open
from penstock.budget import peak_memory
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.training import Columns
task = json.loads(sys.argv[1])
with open(task["path"]) as source:
    linear_job(source, Config(epochs=2, **task["config"]), Columns(label="label"), scratch=task["scratch"]).run()
print(peak_memory())
"""
CONVERT = """
import json, sys
from penstock.blocks import convert
from penstock.budget import peak_memory
task = json.loads(sys.argv[1])
convert(task["path"], task["out"], label="label")
print(peak_memory())
"""
PREDICT = """
import json, sys
from penstock.blocks.open import open
from penstock.budget import peak_memory
from penstock.config import Config
from penstock.model import write_predictions
from penstock.memory_learner import linear_job
from penstock.training import Columns
task = json.loads(sys.argv[1])
with open(task["train"]) as source:
    model = linear_job(source, Config(epochs=1), Columns(label="label")).run()
with open(task["path"]) as source:
    write_predictions(model, source, task["out"])
print(peak_memory())
"""


def peak(program: str, **task: object) -> int:
    """Run a program in a process of its own and return the most memory that it held."""
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(task, default=str)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@functools.cache
def piece() -> pa.Table:
    x = np.random.default_rng(0).standard_normal((PIECE, WIDTH)).astype(np.float32)
    columns = {name: np.ascontiguousarray(x[:, j]) for j, name in enumerate(NAMES)}
    return pa.table({**columns, "label": (x[:, 0] + x[:, 1] > 0).astype(np.int8)})


def pieces(rows: int) -> list[pa.RecordBatch]:
    whole = piece().to_batches()[0]
    return [whole.slice(0, min(PIECE, rows - at)) for at in range(0, rows, PIECE)]


def write_packed(path: Path, rows: int) -> None:
    rest = piece().schema
    convert(pa.RecordBatchReader.from_batches(rest, iter(pieces(rows))), path, label="label")


def write_parquet(path: Path, rows: int) -> None:
    with parquet.ParquetWriter(path, piece().schema, use_dictionary=False, compression="none") as writer:
        for batch in pieces(rows):
            writer.write_batch(batch, row_group_size=PIECE)


def write_csv(path: Path, rows: int) -> None:
    with csv.CSVWriter(path, piece().schema) as writer:
        for batch in pieces(rows):
            writer.write_batch(batch)


def write_sparse(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    indptr = np.arange(PIECE + 1, dtype=np.int32) * 20
    indices = np.sort(rng.integers(0, 10_000, (PIECE, 20)), axis=1).astype(np.int32).ravel()
    matrix = sp.csr_matrix((np.ones(len(indices), np.float32), indices, indptr))
    batch = ArraySource(matrix, np.arange(PIECE, dtype=np.int8) % 2, block_size=10**9).read(0)
    schema = pa.schema([field.with_nullable(False) for field in batch.schema])
    with BlockWriter(path, schema, rows_per_block=1000) as writer:
        for at in range(0, rows, PIECE):
            writer.write(batch.slice(0, min(PIECE, rows - at)))


# Writer, suffix, rows, and the budget: a tenth of the decoded rows or less.
DATA = {
    "packed": (write_packed, ".arrow", 3_000_000, 34_000_000),
    "parquet": (write_parquet, ".parquet", 2_500_000, 28_000_000),
    "csv": (write_csv, ".csv", 700_000, 8_000_000),
    "sparse": (write_sparse, ".arrow", 800_000, 14_000_000),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")

    @functools.cache
    def stored(kind: str, *, tiny: bool = False) -> Path:
        write, suffix, rows, _ = DATA[kind]
        path = folder / f"{kind}-{'tiny' if tiny else 'large'}{suffix}"
        write(path, TINY if tiny else rows)
        return path

    return stored


@functools.cache
def baseline(kind: str, path: Path) -> int:
    return peak(TRAIN, path=path, scratch=path.parent, config={"memory": DATA[kind][3]})


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("packed", {"shuffle": "corgipile"}),
        ("packed", {"shuffle": "corgipile", "validation": 0.1, "standardize": True}),
        ("packed", {"shuffle": "none"}),
        ("packed", {"shuffle": "sliding-window"}),
        ("packed", {"shuffle": "mrs"}),
        ("packed", {"shuffle": "once"}),
        ("parquet", {"shuffle": "corgipile"}),
        ("csv", {"shuffle": "corgipile"}),
        ("csv", {"shuffle": "once"}),
        ("sparse", {"shuffle": "corgipile"}),
        ("sparse", {"shuffle": "once"}),
        ("sparse", {"shuffle": "sliding-window"}),
        ("packed", {"solver": "lbfgs"}),
        ("sparse", {"solver": "lbfgs"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_training_stays_within_the_budget(data, kind, config, tmp_path):
    path, budget = data(kind), DATA[kind][3]
    most = peak(TRAIN, path=path, scratch=tmp_path, config={"memory": budget, **config})
    grown = most - baseline(kind, data(kind, tiny=True))
    assert grown <= budget + SLACK, f"{grown / 1e6:.0f} MB over the baseline where {budget / 1e6:.0f} MB were given"


def test_a_larger_budget_is_used_and_kept(data, tmp_path):
    config = {"memory": 120_000_000, "shuffle": "once"}
    most = peak(TRAIN, path=data("packed"), scratch=tmp_path, config=config)
    grown = most - baseline("packed", data("packed", tiny=True))
    assert 80_000_000 < grown <= 120_000_000 + SLACK


def test_single_rows_in_random_order_stay_within_the_budget(tmp_path):
    write_packed(tmp_path / "large.arrow", 700_000)
    write_packed(tmp_path / "tiny.arrow", TINY)
    config = {"memory": 8_000_000, "shuffle": "global"}
    small, most = (
        peak(TRAIN, path=tmp_path / f"{size}.arrow", scratch=tmp_path, config=config) for size in ("tiny", "large")
    )
    assert most - small <= 8_000_000 + SLACK


@pytest.mark.parametrize("kind", ["parquet", "csv", "sparse"])
def test_converting_takes_a_few_blocks_of_memory(data, kind, tmp_path):
    small, most = (peak(CONVERT, path=data(kind, tiny=tiny), out=tmp_path / "a.arrow") for tiny in (True, False))
    assert most - small <= CONVERTING


@pytest.mark.parametrize("kind", ["packed", "csv"])
def test_predictions_are_streamed(data, kind, tmp_path):
    train = data(kind, tiny=True)
    small, most = (
        peak(PREDICT, train=train, path=data(kind, tiny=tiny), out=tmp_path / "a.parquet") for tiny in (True, False)
    )
    assert most - small <= 120_000_000
