"""A kill at any moment leaves the last checkpoint whole: killed again and again and resumed, training ends in the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bigmodel import LogisticRegression
from penstock.bigmodel.checkpoint import STATE
from penstock.bigmodel.model import Saved

TRAIN = """
import sys
from penstock.bigmodel import LogisticRegression
from penstock.events import Epoch
from penstock.native import load_compiler

def hear(event):
    if isinstance(event, Epoch):
        print("epoch", event.epoch, flush=True)

load_compiler()
print("ready", flush=True)
model = LogisticRegression(sys.argv[2], memory="1.2MB", epochs=8, learning_rate=0.05, optimizer=sys.argv[3])
model.fit(sys.argv[1], y="y", resume=True, listeners=[hear])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows, nnz = 4000, 120
    indices = (1e12 ** rng.random((rows, nnz))).astype(np.int64)
    values = rng.normal(size=(rows, nnz)).astype(np.float32)
    y = (np.where(indices % 3 == 0, values, 0).sum(axis=1) > 0).astype(np.int64)
    path = tmp_path_factory.mktemp("crash") / "rows.parquet"
    pq.write_table(pa.table({"indices": list(indices), "values": list(values), "y": y}), path, row_group_size=200)
    return path, np.unique(indices)


def started(path, folder, optimizer):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(path), str(folder), optimizer], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_killed_at_random_and_resumed_the_weights_are_the_same(data, tmp_path, optimizer):
    path, asked = data
    whole = LogisticRegression(tmp_path / "a", memory="1.2MB", epochs=8, learning_rate=0.05, optimizer=optimizer)
    whole.fit(path, y="y")
    assert whole.traffic_["misses"] > 0
    rng = np.random.default_rng(1)
    kills = 0
    for turn in range(40):
        process = started(path, tmp_path / "b", optimizer)
        if turn < 8:
            time.sleep(float(rng.uniform(0, 1.5)))  # in preparing, within an epoch, or while a checkpoint is written
            process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            break
        kills += 1
        assert process.returncode == -signal.SIGKILL
        if (tmp_path / "b" / STATE).exists():
            Saved.read(tmp_path / "b").store(tmp_path / "b", writable=False).close()
    assert kills > 2
    model = LogisticRegression.load(tmp_path / "b")
    np.testing.assert_array_equal(model.weights(asked), whole.weights(asked))
    # Not to the last bit: losses are added up chunk by chunk, and chunks after a break are cut elsewhere.
    assert [row["progressive_loss"] for row in model.history_] == pytest.approx(
        [row["progressive_loss"] for row in whole.history_], rel=1e-12
    )
    assert not (tmp_path / "b" / "prepare.tmp").exists()
    model.close()
    whole.close()


def test_a_full_disk_stops_with_the_page_named_and_leaves_the_checkpoint(data, tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    path, asked = data
    model = LogisticRegression(tmp_path / "m", memory="1.2MB", epochs=1, learning_rate=0.05).fit(path, y="y")
    before = model.weights(asked)
    model.close()
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        " from penstock.bigmodel import LogisticRegression;"
        " LogisticRegression(sys.argv[2], memory='1.2MB', epochs=3, learning_rate=0.05).fit(sys.argv[1], y='y', resume=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, str(path), str(tmp_path / "m")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "cannot write page" in done.stderr
    assert os.strerror(27) in done.stderr  # the file is too large
    with_checkpoint = LogisticRegression.load(tmp_path / "m")
    np.testing.assert_array_equal(with_checkpoint.weights(asked), before)
    with_checkpoint.close()
