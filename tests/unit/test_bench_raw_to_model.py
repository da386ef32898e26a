"""The benchmark of the way from raw rows to a model: its rows, what the rivals make of them, and its bars."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import raw_to_model_data as data
from benchmarks import raw_to_model_rivals as rivals
from benchmarks.raw_to_model import Way, claims_of, run_command


def test_rows_have_text_times_and_nulls_and_are_the_same_each_time() -> None:
    rows = data.make_rows(2_000, (1, 0))
    names = [name for name in rows.column_names if name != data.LABEL]
    assert all(0.02 < rows[name].null_count / 2_000 < 0.08 for name in names)
    assert rows.equals(data.make_rows(2_000, (1, 0)))
    assert not rows.equals(data.make_rows(2_000, (2, 0)))
    assert 0.1 < np.mean(rows[data.LABEL].to_numpy()) < 0.5


@pytest.mark.parametrize("tool", list(rivals.ENCODERS))
def test_a_rival_encodes_all_columns_and_learns_from_them(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool.lower())
    paths = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "test")}
    for at, path in enumerate(paths.values()):
        pq.write_table(data.make_rows(3_000, (at, 0)), path)
    encoded = rivals.encode(tool, **paths, folder=str(tmp_path))
    x, y = next(rivals.chunks(encoded["train"]))
    numbers = 2 * (len(data.NUMBERS) + 1)
    assert x.shape == (3_000, numbers + rivals.FEATURES)
    assert np.abs(x[:, :numbers:2].mean(axis=0)).max() < 1e-3  # missing numbers are the mean, which is 0
    assert 0.02 < x[:, 1].mean() < 0.08
    codes = np.diff(x[:, numbers:].tocsr().indptr)
    assert codes.min() >= len(data.LEVELS) + len(rivals.DATE_PARTS) + 1
    assert sorted(y.tolist()) == sorted(pq.read_table(paths["train"])[data.LABEL].to_pylist())
    losses = rivals.learn(**encoded, passes=2, target=0.0)["losses"]
    assert len(losses) == 2
    assert losses[-1] < 0.65
    assert len(rivals.learn(**encoded, passes=2, target=1.0)["losses"]) == 1  # no worse than asked for


def test_a_command_is_measured_in_a_process_of_its_own() -> None:
    seconds, peak = run_command([sys.executable, "-c", "import time; held = bytearray(200_000_000); time.sleep(0.05)"])
    assert seconds >= 0.05
    assert 200_000_000 < peak < 400_000_000
    with pytest.raises(RuntimeError, match="no such thing"):
        run_command([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_bars_are_about_time_memory_and_loss() -> None:
    claims = claims_of([Way(2, 100, 0.5)], "DuckDB", [Way(12, 300, 0.5)], "1 row")
    assert [claim.figure for claim in claims] == pytest.approx([6, 1 / 3, 1])
    assert [claim.met for claim in claims] == [True, False, True]
