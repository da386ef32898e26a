"""Encoded rows that are kept in a folder: found again by content, never used for other rows, and written anew where damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks.open import open as open_source
from penstock.budget import parse_cache
from penstock.config import Config
from penstock.errors import UsageError
from penstock.linear import LinearModel
from penstock.loader.decode import BlockDecoder
from penstock.memory_learner import linear_job
from penstock.training import Columns

ROWS = 20_000


def write(path: Path, *, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 5))
    label = (x.sum(axis=1) + rng.normal(size=ROWS) > 0).astype(int)
    columns: dict[str, Any] = {f"x{j}": pa.array(x[:, j], mask=rng.random(ROWS) < 0.05) for j in range(5)}
    pq.write_table(pa.table({**columns, "label": label}), path, compression="zstd", row_group_size=500)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "kept"
    place.mkdir()
    return place


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note every block that is decoded for an epoch."""
    seen: list[int] = []
    decode_many = BlockDecoder.decode_many

    def noted(decoder: BlockDecoder, blocks: Any) -> Any:
        seen.extend(blocks.tolist())
        return decode_many(decoder, blocks)

    monkeypatch.setattr(BlockDecoder, "decode_many", noted)
    return seen


def train(data: Path, cache: Any, **settings: Any) -> LinearModel:
    settings = {"solver": "sgd", "epochs": 3, "memory": "60%", **settings}
    columns = Columns(label="label", exclude=settings.pop("exclude", ()))
    with open_source(str(data)) as source:
        return linear_job(source, Config(**settings), columns, cache=cache).run()


def weights(model: LinearModel) -> bytes:
    return model.weights.coef.tobytes() + model.weights.intercept.tobytes()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_later_run_decodes_no_block_and_learns_the_same(data: Path, folder: Path, decoded: list[int]) -> None:
    plain = train(data, False)
    first = train(data, folder)
    assert len(kept(folder)) == 1
    assert decoded
    decoded.clear()
    later = train(data, folder)
    assert decoded == []
    assert weights(later) == weights(first) == weights(plain)


def test_rows_are_found_by_content_under_another_name_and_time(data: Path, folder: Path) -> None:
    train(data, folder)
    (file,) = kept(folder)
    times = file.stat().st_mtime_ns
    moved = data.rename(data.with_name("moved.parquet"))
    os.utime(moved, (0, 0))
    train(moved, folder)
    assert kept(folder) == [file]
    assert file.stat().st_mtime_ns == times


def test_other_rows_and_other_columns_have_files_of_their_own(data: Path, folder: Path) -> None:
    train(data, folder)
    other = train(write(data, seed=1), folder)
    assert weights(other) == weights(train(data, False))
    assert len(kept(folder)) == 2
    fewer = train(data, folder, exclude=("x3",))
    assert weights(fewer) == weights(train(data, False, exclude=("x3",)))
    assert len(kept(folder)) == 3


@pytest.mark.parametrize("place", ["rows", "table", "cut"])
def test_damage_is_told_and_the_file_written_anew(
    data: Path, folder: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    first = train(data, folder)
    (file,) = kept(folder)
    whole = file.read_bytes()
    at = 1000 if place == "rows" else len(whole) - 100
    damaged = whole[:at] if place == "cut" else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    file.write_bytes(damaged)
    assert weights(train(data, folder)) == weights(first)
    assert any("damaged" in record.getMessage() for record in caplog.records)
    assert weights(train(data, folder)) == weights(first)
    assert file.read_bytes() == whole


def test_a_run_that_was_broken_off_leaves_nothing(data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode_many = BlockDecoder.decode_many
    seen: list[int] = []

    def interrupted(decoder: BlockDecoder, blocks: Any) -> Any:
        seen.extend(blocks.tolist())
        if len(seen) > 20:
            raise KeyboardInterrupt
        return decode_many(decoder, blocks)

    monkeypatch.setattr(BlockDecoder, "decode_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(data, folder)
    assert kept(folder) == []


def test_one_epoch_is_enough_where_a_folder_is_named(data: Path, folder: Path) -> None:
    penstock.LogisticRegression(solver="sgd", epochs=1, memory="60%").fit(str(data), y="label", cache=str(folder))
    assert len(kept(folder)) == 1


def test_a_folder_has_to_be_there(tmp_path: Path) -> None:
    assert parse_cache(str(tmp_path)) == tmp_path
    with pytest.raises(UsageError, match="is no folder") as error:
        parse_cache(str(tmp_path / "nowhere"))
    assert error.value.option == "cache"
    with pytest.raises(UsageError, match="is not a size"):
        parse_cache("maybe")
