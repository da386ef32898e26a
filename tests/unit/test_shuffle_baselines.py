"""The baselines do what the paper says of them, and their mixers equal their twins."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from penstock.shuffle import ORDERS, Mrs, Shape, SlidingWindow
from penstock.shuffle.mixers import Reservoir, SlidingBuffer, reserve_reference, slide_reference
from penstock.shuffle.permute import slots_reference
from penstock.shuffle.quality import trace, visit
from penstock.testing.orders import ranks

SHAPE = Shape(np.full(100, 10), held_rows=100, seed=1)


def test_none_is_the_stored_order():
    assert np.array_equal(visit(ORDERS["none"], SHAPE, 3), np.arange(1000))


@pytest.mark.parametrize("name", ["none", "once", "epoch", "sliding-window", "mrs"])
def test_ranks_in_stored_order_read_forward_and_none_is_idle(name):
    for shape in (SHAPE, replace(SHAPE, held_rows=10**6)):
        parts = [[w.blocks for w in ORDERS[name].windows(part, 0)] for part in ranks(shape, 4)]
        assert all(np.all(np.diff(np.concatenate(part)) > 0) for part in parts)
        assert {sum(map(len, part)) for part in parts} <= {20, 21, 24, 25, 26, 30}


def test_once_is_one_shuffle_and_epoch_another_each_time():
    once = [visit(ORDERS["once"], SHAPE, epoch) for epoch in range(2)]
    each = [visit(ORDERS["epoch"], SHAPE, epoch) for epoch in range(2)]
    assert np.array_equal(*once)
    assert not np.array_equal(*each)
    assert not np.array_equal(once[0], np.arange(1000))


def test_block_only_keeps_the_rows_of_a_block_in_order():
    visited = visit(ORDERS["block-only"], SHAPE, 0).reshape(100, 10)
    assert np.array_equal(visited - visited[:, :1], np.tile(np.arange(10), (100, 1)))
    assert not np.array_equal(visited[:, 0], np.arange(0, 1000, 10))


@pytest.mark.parametrize(("capacity", "incoming"), [(1, [3, 2]), (5, [2, 2, 9, 0, 4]), (50, [7, 8]), (16, [16, 16, 1])])
def test_sliding_buffer_equals_its_twin(capacity, incoming):
    mixer, held, state = SlidingBuffer(capacity, 2**63 + 5), 0, 2**63 + 5
    for step, rows in enumerate(incoming):
        last = step == len(incoming) - 1
        mix = mixer.step(rows, last=last)
        picks, keeps, state = slide_reference(held, rows, capacity, last, state)
        assert (mix.picks.tolist(), mix.keeps.tolist()) == (picks, keeps)
        held = len(keeps)


def test_sliding_window_gives_no_row_before_it_is_read():
    visited = visit(SlidingWindow(), SHAPE, 0)
    assert np.all(visited[:-100] <= np.arange(900) + 100)
    assert np.array_equal(np.sort(visited), np.arange(1000))


def test_sliding_window_picks_every_place_of_the_buffer_alike():
    waits = [np.flatnonzero(visit(SlidingWindow(), replace(SHAPE, seed=s), 0) == 50)[0] for s in range(300)]
    # Row 50 is in the buffer from the start and leaves at each position with chance 1/100.
    assert stats.kstest([w for w in waits if w < 800], "expon", args=(0, 100)).pvalue > 1e-3


def test_sliding_window_takes_in_an_eighth_of_what_it_holds():
    assert {w.rows for w in SlidingWindow().windows(replace(SHAPE, held_rows=320), 0)} == {40}


@pytest.mark.parametrize("carried", [0, 1, 4])
@pytest.mark.parametrize("capacity", [0, 1, 4, 30])
def test_reservoir_equals_its_twin(capacity, carried):
    key = 2**63 + 9
    mixer, loop = Reservoir(capacity, carried, key), slots_reference(carried, key ^ 1).tolist()
    held = seen = at = 0
    state = key
    for step, rows in enumerate([3, 0, 10, 7]):
        mix = mixer.step(rows, last=step == 3)
        picks, kept, at, state = reserve_reference(held, seen, rows, capacity, loop, at, state)
        assert mix.picks.tolist() == picks
        assert mix.keeps.tolist() == ([] if step == 3 else list(range(carried))) + kept
        held, seen = len(kept), seen + rows


def test_mrs_first_epoch_visits_what_the_reservoir_drops():
    steps = list(trace(Mrs(), SHAPE, 0))
    visited, kept = np.concatenate([s.given for s in steps]), steps[-1].held
    assert len(kept) == 50
    assert np.array_equal(np.sort(np.concatenate([visited, kept])), np.arange(1000))


def test_mrs_reservoir_is_a_uniform_sample_of_the_scan():
    kept = np.concatenate([list(trace(Mrs(), replace(SHAPE, seed=s), 0))[-1].held for s in range(60)])
    assert stats.chisquare(np.bincount(kept // 100, minlength=10)).pvalue > 1e-3


def test_mrs_follows_each_dropped_row_by_one_of_the_last_reservoir():
    carried = list(trace(Mrs(), SHAPE, 0))[-1].held
    visited = visit(Mrs(), SHAPE, 1)
    dropped, looped = visited[::2], visited[1::2]
    assert len(np.unique(dropped)) == len(dropped) == 950
    laps = looped.reshape(-1, 50)
    assert all(np.array_equal(np.sort(lap), np.sort(carried)) for lap in laps)
    assert not np.array_equal(laps[0], laps[1])


def test_mrs_visits_half_of_the_rows_even_when_it_could_hold_all():
    assert len(visit(Mrs(), replace(SHAPE, held_rows=10**6), 0)) == 500
