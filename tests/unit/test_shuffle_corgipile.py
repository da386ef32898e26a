"""CorgiPile's plan: the paper's two levels, its ranks, and units that decode from their start."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.shuffle import BlockOnly, CorgiPile, Shape
from penstock.shuffle.quality import visit
from penstock.testing.orders import ranks


def test_windows_are_few_and_about_equal():
    windows = list(CorgiPile().windows(Shape(np.full(10, 10), held_rows=35), 0))
    assert sorted(w.rows for w in windows) == [20, 20, 30, 30]  # not 30, 30, 30 and a last one of a single block


def test_blocks_of_a_window_come_from_all_over_the_data():
    windows = list(CorgiPile().windows(Shape(np.full(1000, 10), held_rows=1000), 0))
    assert all(w.blocks.min() < 150 and w.blocks.max() > 850 for w in windows)


def test_ranks_together_have_the_windows_of_one_process_with_all_their_memory():
    # Theorem 3: window k of all ranks is window k of a single process whose buffer is world times as large.
    shape = Shape(np.full(48, 10), held_rows=40, seed=3)
    alone = [set(w.blocks.tolist()) for w in CorgiPile().windows(replace(shape, held_rows=160), 2)]
    each = [list(CorgiPile().windows(part, 2)) for part in ranks(shape, 4)]
    assert alone == [set(np.concatenate([w.blocks for w in together]).tolist()) for together in zip(*each)]


def test_no_two_windows_share_a_key():
    shape = Shape(np.full(20, 10), held_rows=40)
    keys = [w.key for part in ranks(shape, 2) for epoch in range(5) for w in CorgiPile().windows(part, epoch)]
    assert len(set(keys)) == len(keys)
    assert None not in keys


def test_rows_of_a_window_are_mixed_and_stay_in_their_window():
    shape = Shape(np.full(20, 50), held_rows=200, seed=1)
    visited = visit(CorgiPile(), shape, 0)
    for index, window in enumerate(CorgiPile().windows(shape, 0)):
        rows = visited[index * 200 : (index + 1) * 200]
        assert set(rows // 50) == set(window.blocks.tolist())
        assert len(set(rows[:20] // 50)) > 1


def test_it_takes_the_blocks_in_the_same_sequence_as_block_only():
    shape = Shape(np.full(12, 10), held_rows=30, seed=5)
    pairs = zip(CorgiPile().windows(shape, 1), BlockOnly().windows(shape, 1))
    assert all(set(a.blocks.tolist()) == set(b.blocks.tolist()) for a, b in pairs)


UNITS = Shape(np.full(16 * 8, 10), held_rows=80, seed=2, units=np.repeat(np.arange(16), 8))


def test_a_window_takes_its_blocks_from_as_many_units_as_it_can():
    for window in CorgiPile().windows(UNITS, 0):
        assert len(window.blocks) == 8
        assert len(set(UNITS.units[window.blocks])) >= 7  # towards the end one may come twice


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_each_unit_is_read_by_one_rank_from_a_block_on_to_its_end_and_then_its_beginning(cap):
    shape = replace(UNITS, open_units=cap)
    owners, begun = defaultdict(set), 0
    for part in ranks(shape, 3):
        blocks = np.concatenate([w.blocks for w in CorgiPile().windows(part, 0)])
        for unit in set(shape.units[blocks]):
            owners[unit].add(part.rank)
            mine, all_ = blocks[shape.units[blocks] == unit], np.flatnonzero(shape.units == unit)
            cut = len(all_) - int(mine[0] - all_[0])
            assert np.array_equal(np.roll(mine, -cut), all_)
            begun += cut < len(all_)
    assert all(len(ranks_of) == 1 for ranks_of in owners.values())
    # Only the units that a rank opens first are begun part-way; one of them at its start.
    assert begun <= 3 * (min(cap, 8) - 1)
    assert CorgiPile().units_open(shape) == min(cap, 8)


def test_units_are_begun_in_another_order_each_epoch():
    shape = replace(UNITS, open_units=1)
    first = [next(iter(CorgiPile().windows(shape, epoch))).blocks.tolist() for epoch in range(6)]
    assert len({tuple(blocks) for blocks in first}) > 3


def test_with_fewer_units_than_ranks_no_rank_is_left_idle():
    shape = replace(UNITS, units=np.repeat(np.arange(2), 64))
    counts = [sum(len(w.blocks) for w in CorgiPile().windows(part, 0)) for part in ranks(shape, 5)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == 128


def test_no_open_unit_is_refused():
    with pytest.raises(UsageError, match="open_units=0"):
        replace(UNITS, open_units=0)
