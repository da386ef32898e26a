"""Rows that are all in memory: the same order as from windows and sweeps, columns of any fixed width, memory of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks.conversion import convert
from penstock.blocks.open import open as open_source
from penstock.loader.held_rows import HeldDecoder
from penstock.loader.windows import WindowReader

ROWS = 5_000


def table(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3),
            "n": np.arange(rows),
            "small": rng.integers(0, 255, rows).astype(np.uint8),
            "flag": rng.random(rows) < 0.5,
            "day": pa.array(rng.integers(0, 10**15, rows), pa.timestamp("us")),
        }
    )


@pytest.fixture(params=["arrow", "parquet"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / f"rows.{request.param}"
    if request.param == "parquet":
        pq.write_table(table(), path, row_group_size=700)
        return str(path)
    return converted(path)


def converted(path: Path) -> str:
    with open_source(table()) as source:
        convert(source, path, block_size=4_000)
    return str(path)


def stream(data: str, shuffle: str = "global", **more: Any) -> penstock.Batches:
    return penstock.batches(data, 64, shuffle=shuffle, memory="1GB", **more)


def decoder_of(batches: penstock.Batches) -> object:
    return batches._loader._ready.feed.decoder


@pytest.mark.parametrize("shuffle", ["global", "corgipile", "block-only", "none", "sliding-window"])
def test_every_row_comes_once_with_all_its_columns(data: str, shuffle: str) -> None:
    whole = table()
    with stream(data, shuffle, row_numbers=True) as batches:
        rows = list(batches)
        assert isinstance(decoder_of(batches), HeldDecoder)
    order = np.concatenate([batch["n"] for batch in rows])
    assert sorted(order.tolist()) == list(range(ROWS))
    assert (np.arange(ROWS).tolist() == order.tolist()) == (shuffle == "none")
    for name in ("x", "small", "flag", "day"):
        found = np.concatenate([batch[name] for batch in rows])
        stored = whole[name].combine_chunks()
        expected = stored.flatten().to_numpy().reshape(-1, 3) if name == "x" else stored.to_numpy(zero_copy_only=False)
        np.testing.assert_array_equal(found, expected[order])
    np.testing.assert_array_equal(np.concatenate([batch["row_number"] for batch in rows]), order)


def test_windows_of_blocks_come_in_the_order_in_which_they_would_be_filled(data: str) -> None:
    with stream(data, "corgipile") as batches:
        order = np.concatenate([batch["n"] for batch in batches])
        loader = batches._loader
        plan: Any = list(loader.order.windows(loader._shape, 0))
        feed = loader._feed
        reader = WindowReader(feed, capacity=loader._shape.held_rows, threads=1)
        try:
            filled = [reader.read(window).batch.columns["n"].copy() for window in plan]
        finally:
            reader.close()
    np.testing.assert_array_equal(order, np.concatenate(filled))


@pytest.mark.parametrize("shuffle", ["global", "corgipile"])
def test_single_rows_come_as_from_sweeps_and_from_small_windows_resumed(data: str, shuffle: str) -> None:
    with stream(data, shuffle) as batches:
        whole = [batch["n"].copy() for batch in batches]
    with stream(data, shuffle) as batches:
        begun = iter(batches)
        some = [next(begun)["n"] for _ in range(17)]
        state = batches.state_dict()
    with stream(data, shuffle) as batches:
        batches.load_state_dict(state)
        rest = [batch["n"] for batch in batches]
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate([*some, *rest]))
    if shuffle == "global":
        with penstock.batches(data, 64, shuffle="global", memory="400KB") as swept:
            assert not isinstance(decoder_of(swept), HeldDecoder)
            np.testing.assert_array_equal(np.concatenate(whole), np.concatenate([batch["n"] for batch in swept]))


def test_batches_stay_as_they_are_when_later_ones_come(data: str) -> None:
    with stream(data) as batches:
        kept = list(batches)
        copies = [batch["x"].copy() for batch in kept]
        for _ in batches:
            pass
    for batch, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(batch["x"], copy)


def test_workers_share_the_rows_also_where_the_rest_of_an_epoch_is_dealt_anew(tmp_path: Path) -> None:
    data = converted(tmp_path / "rows.arrow")

    def part(rank: int, world: int, state: dict[str, Any] | None, most: int | None = None) -> tuple[list[int], Any]:
        with stream(data, "corgipile", rank=rank, world=world, uneven="drop") as batches:
            if state is not None:
                batches.load_state_dict(state)
            rows: list[int] = []
            for number, batch in enumerate(batches, 1):
                rows += batch["n"].tolist()
                if number == most:
                    break
            return rows, batches.state_dict()

    begun = [part(rank, 2, None, 10) for rank in range(2)]
    rest = [part(rank, 3, begun[0][1]) for rank in range(3)]
    rows = [row for each, _ in (*begun, *rest) for row in each]
    assert len(rows) == len(set(rows))
    assert len(rows) > ROWS - 3 * 64
