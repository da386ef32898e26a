"""What is told of a factorisation on disk beforehand, against what training then measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bigmodel import survey as surveying
from penstock.bigmodel.explain_factor import FactorExplanation, explain_factor
from penstock.bigmodel.factor_training import FactorConfig, FactorTraining, Shares
from penstock.bigmodel.ratings import Roles
from penstock.blocks import open as open_source
from penstock.errors import BudgetError, ColumnError, DataError

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

        def told() -> FactorExplanation:
            return explain_factor(source, folder, config=config)

        counted = told()
        assert not folder.exists()
        with monkeypatch.context() as patch:
            patch.setattr(surveying, "MOST_BYTES", int(source.block_bytes.sum()) // 8)
            sampled = told()
        model = FactorTraining(source, folder, config).run()
        prepared = told()
    assert counted.layout == prepared.layout == model.layout
    assert counted.rows == prepared.rows == sampled.rows == ROWS
    assert (counted.share, counted.prepared, prepared.prepared) == (1, False, True)
    assert sampled.share < 0.5
    assert not counted.warnings + sampled.warnings + prepared.warnings
    measured = model.header["history"][-1]["bytes"]
    for found, times in ((counted, 1.5), (prepared, 1.5), (sampled, 2.0)):
        assert within(found.layout.users, model.layout.users, times)
        assert within(found.layout.items, model.layout.items, times)
        assert within(found.layout.nbytes, model.layout.nbytes, times)
        assert found.whole == (memory == "2MB")
        # What memory holds is written at the checkpoint, which an epoch's bytes leave out.
        page = 4 * found.layout.page_floats
        held = min(found.layout.pages, Shares.of(found.memory).pool // page) * page
        assert within(found.epoch_bytes - held, measured, times)
    assert sum(file.stat().st_size for file in folder.glob("pages.*")) <= 2 * counted.layout.nbytes


def test_it_is_plain_json_and_words(tmp_path: Path) -> None:
    with open_source(written(tmp_path)) as source:
        found = explain_factor(source, tmp_path / "mf", config=FactorConfig(rank=50, memory="25%"))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["model"], told["users"], told["rank"]) == ("factor", found.layout.users, 50)
    assert told["model_bytes"] == found.layout.nbytes
    assert told["epoch"]["bytes"] == found.epoch_bytes == sum(v for k, v in told["epoch"].items() if k != "bytes")
    for words in ("20,000 ratings by ", "parts of users by", "An epoch: about ", "Disk: up to "):
        assert words in str(found)


def test_a_directory_of_other_data_or_columns_is_told_of(tmp_path: Path) -> None:
    config, folder = FactorConfig(rank=4, epochs=1), tmp_path / "mf"
    with open_source(written(tmp_path)) as source:
        FactorTraining(source, folder, config).run()
        swapped = explain_factor(source, folder, config=config, roles=Roles("item", "user", "rating"))
        assert not swapped.prepared
        assert "holds a model of other columns of these data (user, item, rating)" in swapped.warnings[0]
    with open_source(written(tmp_path, seed=1, users=100)) as source:
        found = explain_factor(source, folder, config=config)
    assert not found.prepared
    assert found.layout.users <= 100
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
            FactorTraining(source, tmp_path / "mf", config).run()
        assert str(told.value) == str(refused.value)
    empty = pa.table({"user": [1], "item": [1], "rating": [1.0]}).slice(0, 0)
    with open_source(empty) as source, pytest.raises(DataError, match="no ratings"):
        explain_factor(source, tmp_path / "mf")
