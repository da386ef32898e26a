"""Rows between being picked up and being given out: in slots that are used again, or in parcels."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.fields import Fields
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features
from penstock.loader.row_forms import Scaling
from penstock.loader.sweep_buffers import RaggedBuffer, SlotBuffer
from penstock.loader.windows import Feed

ROWS = 400


def feed_of(*columns: str) -> Feed:
    data = pa.table(
        {
            "n": np.arange(ROWS),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(np.arange(ROWS, dtype=np.float32), 3)), 3),
            "text": pa.array(["t" * (i % 4) for i in range(ROWS)]),
        }
    )
    source = open_source(pa.Table.from_batches(data.to_batches(max_chunksize=60), data.schema))
    return Feed.of_records(source, Fields.of(source.schema, columns, numbered=True)).resident()


def located(feed: Feed, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(feed.block_rows)
    owner = np.searchsorted(ends, rows, side="right")
    return owner, rows - (ends - feed.block_rows)[owner]


def pick(held, feed: Feed, rows: np.ndarray, positions: np.ndarray) -> None:
    by_place = np.argsort(rows)
    held.pick(*located(feed, rows[by_place]), positions[by_place])


def make(kind: str, feed: Feed, *, capacity: int = 64, bounds=None):
    if kind == "pool":
        return SlotBuffer(feed, capacity=capacity, window=10, reach=256)
    return RaggedBuffer(feed, np.arange(0, 2 * ROWS, 20) if bounds is None else bounds)


@pytest.mark.parametrize("kind", ["pool", "parcels"])
def test_rows_come_out_at_their_positions_whenever_they_were_picked_up(kind):
    feed = feed_of("n", "x")
    held = make(kind, feed)
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(ROWS)
    # Positions 0 to 60 in three lots; then a window is picked up for each that is given out.
    for lot in np.array_split(rng.permutation(60), 3):
        pick(held, feed, shuffled[lot], lot)
    for low in range(0, ROWS, 20):
        batch = held.assemble(low, 20)
        assert batch.columns["n"].tolist() == shuffled[low : low + 20].tolist()
        assert batch.columns["x"][:, 2].tolist() == shuffled[low : low + 20].tolist()
        assert batch.rows.tolist() == shuffled[low : low + 20].tolist()
        coming = np.arange(low + 60, min(low + 80, ROWS))
        if len(coming):
            pick(held, feed, shuffled[coming], coming)


def test_slots_are_used_again():
    feed = feed_of("n")
    pool = make("pool", feed, capacity=64)
    for low in range(0, 2000, 50):
        rows = np.arange(low, low + 50) % ROWS
        pick(pool, feed, rows, np.arange(low, low + 50))
        assert pool.assemble(low, 50).columns["n"].tolist() == rows.tolist()
    assert [len(slots) for slots, _ in pool._slabs] == [64]


def test_a_pool_grows_by_little_rather_than_wait():
    feed = feed_of("n", "x")
    pool = make("pool", feed, capacity=16)
    rows = np.random.default_rng(1).permutation(ROWS)[:150]
    for start in range(0, 150, 30):
        pick(pool, feed, rows[start : start + 30], np.arange(start, start + 30))
    sizes = [len(slots) for slots, _ in pool._slabs]
    assert sizes[0] == 16
    assert set(sizes[1:]) == {2}
    assert 150 <= sum(sizes) < 152
    for low in range(0, 150, 50):
        batch = pool.assemble(low, 50)
        assert batch.columns["n"].tolist() == rows[low : low + 50].tolist()
        assert batch.columns["x"][:, 0].tolist() == rows[low : low + 50].tolist()
    pick(pool, feed, rows, np.arange(1000, 1150))  # out of what is free, in all slabs
    assert pool.assemble(1000, 150).columns["n"].tolist() == rows.tolist()
    assert sum(len(slots) for slots, _ in pool._slabs) == sum(sizes)


def test_a_window_stays_while_the_next_is_put_together():
    feed = feed_of("n")
    pool = make("pool", feed)
    for low in (0, 10, 20):
        pick(pool, feed, np.arange(low, low + 10), np.arange(low, low + 10))
    first = pool.assemble(0, 10)
    second = pool.assemble(10, 10)
    assert first.columns["n"].tolist() == list(range(10))
    third = pool.assemble(20, 10)
    assert second.columns["n"].tolist() == list(range(10, 20))
    assert np.shares_memory(first.columns["n"], third.columns["n"])


def test_a_window_may_be_empty_or_larger_than_was_foreseen():
    feed = feed_of("n", "x")
    for kind in ("pool", "parcels"):
        held = make(kind, feed, bounds=np.array([0, 30, 60]))
        assert len(held.assemble(0, 0)) == 0
        pick(held, feed, np.arange(30), np.arange(30, 60))
        assert held.assemble(30, 30).columns["n"].tolist() == list(range(30))


def test_parcels_hold_text_and_forget_what_was_given_out():
    feed = feed_of("n", "text")
    assert not feed.filled
    held = make("parcels", feed)
    rows = np.random.default_rng(2).permutation(ROWS)
    for lot in np.array_split(np.random.default_rng(3).permutation(ROWS), 7):
        pick(held, feed, rows[lot], lot)
    for low in range(0, ROWS, 20):
        batch = held.assemble(low, 20)
        assert list(batch.columns["text"]) == ["t" * (i % 4) for i in rows[low : low + 20]]
    assert held._parts == {}


@pytest.mark.parametrize("kind", ["pool", "parcels"])
def test_many_threads_pick_rows_up(kind):
    feed = feed_of("n", "x")
    rows = np.random.default_rng(4).permutation(ROWS)
    bounds = np.arange(0, ROWS + 1, 40)
    held = SlotBuffer(feed, capacity=30, window=40, reach=512) if kind == "pool" else RaggedBuffer(feed, bounds)
    lots = np.array_split(np.random.default_rng(5).permutation(ROWS), 40)
    threads = [
        threading.Thread(target=lambda mine: [pick(held, feed, rows[lot], lot) for lot in mine], args=(lots[k::8],))
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = np.concatenate([held.assemble(int(low), 40).columns["n"].copy() for low in bounds[:-1]])
    assert found.tolist() == rows.tolist()


def test_features_are_standardised_once_on_their_way_into_the_pool():
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    source = ArraySource(x, np.arange(20, dtype=np.float32), block_size=72)
    assert len(source.block_rows) > 1
    recipe = choose_features(source.schema, label="label", place=source.name)
    scaling = Scaling(np.array([1.0, 2.0], np.float32), np.array([0.5, 2.0], np.float32))
    feed = Feed.of(source, recipe, scaling)
    pool = SlotBuffer(feed, capacity=4, window=20, reach=32)
    rows = np.random.default_rng(0).permutation(20)
    pick(pool, feed, rows, np.arange(20))
    batch = pool.assemble(0, 20)
    assert batch.y.tolist() == rows.tolist()
    np.testing.assert_allclose(batch.x, (x[rows] - scaling.shift) * scaling.scale)
