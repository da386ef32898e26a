"""``penstock explain`` as a user runs it: words on stdout, or one JSON object and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "clicks.parquet"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 3))
    columns = {name: x[:, j] for j, name in enumerate("abc")}
    pq.write_table(pa.table({**columns, "clicked": np.arange(6000) // 3000}), path, row_group_size=100)
    return path


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "explain", *args], capture_output=True, text=True, check=False
    )


def test_it_explains_in_words(data: Path) -> None:
    done = run(str(data), "--label", "clicked", "--no-storage")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "6,000 rows in 60 blocks of 100 rows" in done.stdout
    assert "clustered by label: training in stored order would lose accuracy" in done.stdout
    assert "Recommended: penstock train" in done.stdout
    for strategy in ("none", "corgipile", "sliding-window", "mrs", "once", "epoch", "block-only", "global"):
        assert strategy in done.stdout
    assert len(done.stdout.splitlines()) <= 45


def test_json_is_one_object_and_nothing_else(data: Path) -> None:
    done = run(str(data), "--label", "clicked", "--no-storage", "--memory", "10%", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert found["shape"]["rows"] == 6000
    assert found["clustering"]["by"] == "label"
    assert len(found["predictions"]) == 8
    assert found["recommendation"]["strategy"] in ("corgipile", "once")  # by the machine's speed
    assert found["storage"] is None
    assert found["peak_memory_bytes"] > 0


def test_the_storage_is_measured_by_itself(data: Path) -> None:
    found = json.loads(run(str(data), "--json").stdout)
    if found["storage"] is None:
        assert found["storage_note"]
    else:
        assert found["storage"]["points"][0]["block_bytes"] == 4096
        assert found["storage"]["bytes_read"] < 2.2e9
    assert found["clustering"] is None


def test_errors_are_told_and_exit_codes_tell_usage_from_failure(data: Path, tmp_path: Path) -> None:
    misspelt = run(str(data), "--label", "clickd", "--no-storage")
    assert misspelt.returncode == 1
    assert "did you mean 'clicked'" in misspelt.stderr
    missing = run(str(tmp_path / "nothing.parquet"), "--json")
    assert missing.returncode == 1
    assert "there is no file" in json.loads(missing.stdout)["error"]
    unknown = run(str(data), "--label", "clicked", "--model", "forest")
    assert unknown.returncode == 2
    assert "softmax" in unknown.stderr
