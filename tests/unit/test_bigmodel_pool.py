"""The pool: pages in use stay, others make room, and nothing that was changed is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bigmodel.pages import (
    distinct_pages,
    distinct_pages_reference,
    to_slots,
    to_slots_reference,
)
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.store import PageStore
from penstock.errors import BudgetError

FLOATS, BYTES = 1024, 4096


@pytest.fixture
def store(tmp_path):
    with PageStore(tmp_path, pages=64, page_floats=FLOATS) as opened:
        yield opened


def numbers(*pages):
    return np.array(pages, np.int64)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=5, unique=True), min_size=1, max_size=60))
def test_every_change_is_there_when_the_page_is_asked_for_again(tmp_path_factory, asked):
    folder = tmp_path_factory.mktemp("pool")
    truth = np.zeros(64)
    with PageStore(folder, pages=64, page_floats=FLOATS) as store:
        pool = PagePool(store, memory=8 * BYTES)
        for turn, pages in enumerate(asked):
            pages = np.array(pages, np.int64)
            pool.acquire(pages)
            np.testing.assert_array_equal(pool.buffer[pool.frame_of[pages], 7], truth[pages])
            pool.buffer[pool.frame_of[pages]] += turn
            truth[pages] += turn
            pool.release(pages)
        pool.flush()
        buffer = np.empty((64, FLOATS), np.float32)
        store.read(np.arange(64), np.arange(64), buffer)
        np.testing.assert_array_equal(buffer, np.repeat(truth[:, None], FLOATS, axis=1))


def test_a_pinned_page_is_never_evicted(store):
    pool = PagePool(store, memory=4 * BYTES)
    pool.acquire(numbers(5))
    pool.buffer[pool.frame_of[5]] = 3
    for page in range(10, 60):
        pool.acquire(numbers(page, page + 1))
        assert pool.frame_of[5] >= 0
        assert (pool.buffer[pool.frame_of[5]] == 3).all()
        pool.release(numbers(page, page + 1), dirty=False)
    pool.release(numbers(5))


def test_more_than_fits_is_refused_and_nothing_changes(store):
    pool = PagePool(store, memory=4 * BYTES)
    pool.acquire(numbers(1, 2))
    before = pool.frame_of.copy()
    assert not pool.try_acquire(numbers(3, 4, 5), fresh=9)
    assert not pool.try_acquire(numbers(1, 3, 4), fresh=1)
    assert pool.room == 2
    with pytest.raises(BudgetError, match=r"3 pages .* 2 of the pool's 4 frames"):
        pool.acquire(numbers(3, 4, 5))
    np.testing.assert_array_equal(pool.frame_of, before)
    pool.acquire(numbers(2, 3, 4))
    assert pool.room == 0
    assert pool.pinned


def test_hot_pages_outlive_those_met_once(store):
    pool = PagePool(store, memory=8 * BYTES)
    for cold in range(8, 60):
        for _ in range(2):
            pool.acquire(numbers(0, 1, 2))
            pool.release(numbers(0, 1, 2), dirty=False)
        pool.acquire(numbers(cold))
        pool.release(numbers(cold), dirty=False)
    assert pool.misses == 3 + 52


def test_only_changed_pages_are_written(store):
    pool = PagePool(store, memory=4 * BYTES)
    for page in range(20):
        pool.acquire(numbers(page))
        pool.release(numbers(page), dirty=page % 2 == 0)
    pool.flush()
    assert store.bytes_written == 10 * BYTES


def test_a_model_that_fits_is_all_there_and_writes_what_changed(store):
    pool = PagePool(store, memory=100 * BYTES)
    assert pool.whole
    assert (pool.frame_of == np.arange(64)).all()
    pool.buffer[9] = 1
    pool.flush()
    assert store.bytes_written == BYTES
    pool.flush()
    assert store.bytes_written == BYTES


def test_no_memory_for_a_page(store):
    with pytest.raises(BudgetError, match="one page"):
        PagePool(store, memory=BYTES - 1)


def test_a_failing_read_leaves_the_pool_usable(store, monkeypatch):
    pool = PagePool(store, memory=4 * BYTES)

    def fail(*_):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read", fail)
        with pytest.raises(OSError, match="no"):
            pool.acquire(numbers(1, 2))
    assert pool.room == 4
    pool.acquire(numbers(1, 2, 3, 4))


@given(st.lists(st.integers(0, 5000), max_size=200), st.integers(0, 8))
def test_pages_and_slots_are_their_twins_(positions, shift):
    at = np.array(positions, np.uint32)
    stamps, out = np.zeros((5000 >> shift) + 1, np.int32), np.empty(len(at), np.int64)
    count = distinct_pages(at, np.uint32(shift), stamps, np.int32(1), out)
    np.testing.assert_array_equal(out[:count], distinct_pages_reference(at, shift))
    frame_of = np.random.default_rng(0).permutation((5000 >> shift) + 1).astype(np.int32)
    slots = np.empty(len(at), np.uint32)
    to_slots(at, np.uint32(shift), frame_of, slots)
    np.testing.assert_array_equal(slots, to_slots_reference(at, shift, frame_of))


def test_too_many_pages_are_told():
    stamps = np.zeros(10, np.int32)
    assert (
        distinct_pages(np.arange(10, dtype=np.uint32), np.uint32(0), stamps, np.int32(1), np.empty(3, np.int64)) == -1
    )
