"""What is told of a factorisation on disk beforehand, against what training then measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bigmodel.factor_learner import FactorConfig, factor_job
from penstock.bigmodel.grid import Shares
from penstock.bigmodel.ratings import Roles
from penstock.blocks.open import open as open_source
from penstock.errors import BudgetError, ColumnError, DataError
from penstock.explanation import Explanation, feature_counts
from penstock.explanation.factorization import explain_factor

ROWS = 20_000


def written(folder: Path, *, users: int = 1_500, items: int = 800, seed: int = 0) -> Path:
    chance = np.random.default_rng(seed)
    who = (users ** chance.random(ROWS)).astype(np.int64)
    what = chance.integers(0, items, ROWS)
    table = pa.table({"user": [f"user {n}" for n in who], "item": what, "rating": chance.normal(size=ROWS)})
    path = folder / f"ratings-{seed}.parquet"
    pq.write_table(table, path, row_group_size=500)
    return path


def within(found: float, measured: float, times: float) -> bool:
    return measured / times <= found <= measured * times


@pytest.mark.parametrize(("rank", "memory"), [(50, "160kB"), (50, "25%"), (16, "250kB"), (16, "2MB")])
def test_users_items_bytes_and_traffic_are_foretold(
    rank: int, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = FactorConfig(rank=rank, memory=memory, epochs=3, learning_rate=1e-3), tmp_path / "mf"
    with open_source(written(tmp_path)) as source:

        def told() -> Explanation:
            return explain_factor(source, folder, config=config)

        counted = told()
        assert not folder.exists()
        with monkeypatch.context() as patch:
            patch.setattr(feature_counts, "MOST_BYTES", int(source.block_bytes.sum()) // 8)
            sampled = told()
        model = factor_job(source, folder, config).run()
        prepared = told()
    for name, size in (
        ("users", model.layout.users),
        ("items", model.layout.items),
        ("model_bytes", model.layout.nbytes),
    ):
        assert counted.facts[name] == prepared.facts[name] == size
    assert counted.rows == prepared.rows == sampled.rows == ROWS
    assert (counted.sample_share, counted.prepared, prepared.prepared) == (1, False, True)
    assert sampled.sample_share < 0.5
    assert not counted.warnings + sampled.warnings + prepared.warnings
    measured = model.header["history"][-1]["bytes"]
    for found, times in ((counted, 1.5), (prepared, 1.5), (sampled, 2.0)):
        assert within(found.users, model.layout.users, times)
        assert within(found.items, model.layout.items, times)
        assert within(found.model_bytes, model.layout.nbytes, times)
        assert (found.epoch["pages_read_bytes"] == 0) == (memory == "2MB")
        # What memory holds is written at the checkpoint, which an epoch's bytes leave out.
        page = 4 * model.layout.page_floats
        held = min(found.model_bytes, Shares.of(found.model_memory_bytes).pool // page * page)
        assert within(found.epoch["bytes"] - held, measured, times)
    assert sum(file.stat().st_size for file in folder.glob("pages.*")) <= 2 * counted.model_bytes


def test_it_is_plain_json_and_words(tmp_path: Path) -> None:
    with open_source(written(tmp_path)) as source:
        found = explain_factor(source, tmp_path / "mf", config=FactorConfig(rank=50, memory="25%"))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["model"], told["users"], told["rank"]) == ("factor", found.users, 50)
    assert told["model_bytes"] == found.model_bytes
    assert told["epoch"]["bytes"] == sum(v for k, v in told["epoch"].items() if k != "bytes")
    for words in ("20,000 ratings by ", "parts of users by", "An epoch: about ", "Disk: up to "):
        assert words in str(found)


def test_a_directory_of_other_data_or_columns_is_told_of(tmp_path: Path) -> None:
    config, folder = FactorConfig(rank=4, epochs=1), tmp_path / "mf"
    with open_source(written(tmp_path)) as source:
        factor_job(source, folder, config).run()
        swapped = explain_factor(source, folder, config=config, roles=Roles("item", "user", "rating"))
        assert not swapped.prepared
        assert "holds a model of other columns of these data (user, item, rating)" in swapped.warnings[0]
    with open_source(written(tmp_path, seed=1, users=100)) as source:
        found = explain_factor(source, folder, config=config)
    assert not found.prepared
    assert found.users <= 100
    assert "ratings-0.parquet, where this is " in found.warnings[0]
    assert "training there will be refused" in found.warnings[0]


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with open_source(written(tmp_path)) as source:
        with pytest.raises(ColumnError, match="starz"):
            explain_factor(source, tmp_path / "mf", roles=Roles("user", "item", "starz"))
        config = FactorConfig(rank=50, memory="9kB")
        with pytest.raises(BudgetError) as told:
            explain_factor(source, tmp_path / "mf", config=config)
        with pytest.raises(BudgetError) as refused:
            factor_job(source, tmp_path / "mf", config).run()
        assert str(told.value) == str(refused.value)
    empty = pa.table({"user": [1], "item": [1], "rating": [1.0]}).slice(0, 0)
    with open_source(empty) as source, pytest.raises(DataError, match="no ratings"):
        explain_factor(source, tmp_path / "mf")
