"""The benchmark over groups: rivals hold out the same rows, and those that are not here are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import groups_own, groups_peers
from benchmarks.groups_data import SEED, SHARE, WIDTH, parts, sizes_of, to_parquet, write
from benchmarks.groups_peers import PEERS, Peer
from penstock.groups import Grouped
from penstock.groups.patterns.base import Worker
from penstock.groups.split import Split


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(tmp_path_factory.mktemp("rows") / "rows.arrow", sizes_of("skewed", 2_000, groups=7)))


def kept(x: Any, hold: Any) -> tuple[Any, Any]:
    """Rows to train on, and rows to choose by, in an order of their own."""
    return tuple(rows[np.lexsort(rows.T)] for rows in (x[hold == 0], x[hold == 1]))  # type: ignore[return-value]  # of two


def test_all_hold_out_the_rows_that_penstock_holds_out(path: str, tmp_path: Path) -> None:
    to_parquet(path, str(tmp_path / "parquet"))
    table = pq.read_table(tmp_path / "parquet")
    features = np.stack(table["features"].to_numpy(zero_copy_only=False))
    group, held = table["group"].to_numpy(), table["part"].to_numpy()
    groups_own.sort(path, str(tmp_path / "sorted"))
    worker = Worker(str(tmp_path / "sorted"), Split.of(SHARE, SEED, chooses=True))
    with Grouped(tmp_path / "sorted") as grouped:
        numbers = {key[0]: number for number, key in enumerate(grouped.keys)}
    found, holds = parts(path)
    assert [len(y) for _, y in found] == sizes_of("skewed", 2_000, groups=7).tolist()
    for name, ((x, _), hold) in enumerate(zip(found, holds, strict=True)):
        (batch, own), *_ = worker.rows(numbers[name])
        np.testing.assert_array_equal(x, batch.x)
        np.testing.assert_array_equal(hold, own)
        here = group == name
        for mine, theirs in zip(kept(x, hold), kept(features[here], held[here]), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert features.shape == (len(group), WIDTH)


def test_a_peer_that_is_not_installed_is_named() -> None:
    peer = Peer(groups_peers.spark, needs=("numpy", "no_such_spark"))
    assert peer.missing == "not installed: no_such_spark; pip install no_such_spark"
    assert not PEERS["joblib"].missing


def test_spark_needs_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_peers.shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Java" in Peer(groups_peers.spark, needs=("numpy",), java=True).missing


def test_processes_for_each_core_have_one_thread() -> None:
    assert set(PEERS["joblib"].env.values()) == {"1"}
    assert PEERS["scikit-learn loop, threads"].env == {}
