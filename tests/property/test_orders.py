"""Orders over generated shapes: a permutation always, whatever the blocks."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shuffle import ORDERS, Shape
from penstock.shuffle.deal import equal_groups, stored_runs
from penstock.shuffle.permute import KeyedPermutation, slots, slots_reference, walk_reference
from penstock.shuffle.quality import visit
from penstock.testing.orders import check_mixer, check_repeatable, check_resume, check_union, check_windows, ranks

sizes = st.lists(st.one_of(st.just(0), st.integers(0, 8), st.integers(0, 60)), min_size=0, max_size=25)
keys = st.integers(0, 2**64 - 1)


@st.composite
def shapes(draw):
    block_rows = np.array(draw(sizes), np.int64)
    units = None
    if draw(st.booleans()):
        units = np.sort(np.array(draw(st.lists(st.integers(0, 5), min_size=len(block_rows), max_size=len(block_rows)))))
        units = units.astype(np.int64)
    return Shape(block_rows, held_rows=draw(st.integers(1, 150)), seed=draw(st.integers(0, 2**32)), units=units)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@settings(max_examples=60, deadline=None)
@given(shape=shapes(), world=st.integers(1, 5), epoch=st.integers(0, 2), skip=st.integers(0, 4))
def test_every_promise_holds_for_any_shape(order, shape, world, epoch, skip):
    check_union(order, shape, world=world, epoch=epoch)
    for part in ranks(shape, world):
        check_windows(order, part, epoch=epoch)
        check_mixer(order, part, epoch=epoch)
    check_repeatable(order, replace(shape, rank=world - 1, world=world), epoch=epoch)
    check_resume(order, shape, skip=skip, epoch=epoch)


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), world=st.integers(1, 3))
def test_reservoir_carries_every_unvisited_row_into_the_next_epoch(shape, world):
    mrs = ORDERS["mrs"]
    for part in ranks(shape, world):
        scanned = sum(window.rows for window in mrs.windows(part, 0))
        first = visit(mrs, part, 0)
        assert len(np.unique(first)) == len(first) == scanned - min(shape.held_rows, scanned) // 2
        if len(first) >= 1:
            check_mixer(mrs, part, epoch=1, carried=scanned - len(first))


@settings(max_examples=100, deadline=None)
@given(rows=sizes, limit=st.integers(1, 100), seed=st.integers(0, 99))
def test_groups_are_consecutive_and_within_the_limit(rows, limit, seed):
    rows = np.array(rows, np.int64)
    blocks = np.random.default_rng(seed).permutation(len(rows))
    groups = list(equal_groups(blocks, rows, limit))
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *groups]), blocks)
    held = [int(rows[part].sum()) for part in groups]
    assert all(count <= max(limit, int(rows[part].max())) for count, part in zip(held, groups))
    assert all(held) or not rows.sum()
    # As few as filling one after another would make, or two more for the sake of equal ones.
    assert len(groups) <= max(1, -(-int(rows.sum()) // limit)) + 2 or any(a + b > limit for a, b in pairwise(held))


@settings(max_examples=100, deadline=None)
@given(rows=sizes, limit=st.integers(1, 100), multiple=st.integers(1, 6))
def test_groups_come_in_multiples_where_blocks_are_small_enough(rows, limit, multiple):
    rows = np.array(rows, np.int64)
    groups = list(equal_groups(np.arange(len(rows)), rows, limit, multiple=multiple))
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *groups]), np.arange(len(rows)))
    assert all(int(rows[part].sum()) <= max(limit, int(rows[part].max())) for part in groups)
    equal = list(equal_groups(np.arange(60), np.full(60, 3), max(3, limit), multiple=multiple))
    counts = [3 * len(part) for part in equal]
    assert max(counts) <= max(3, limit)
    assert len(equal) % multiple == 0 or len(equal) == 60


@settings(max_examples=100, deadline=None)
@given(rows=sizes, limit=st.integers(1, 100), world=st.integers(1, 5))
def test_runs_are_dealt_so_that_every_block_is_some_ranks_and_ranks_differ_by_little(rows, limit, world):
    shape = Shape(np.array(rows, np.int64), held_rows=limit, world=world)
    parts = [list(stored_runs(replace(shape, rank=rank), limit)) for rank in range(world)]
    dealt = [np.concatenate([np.empty(0, np.int64), *part]) for part in parts]
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(len(rows)))
    assert all(np.all(np.diff(part) > 0) for part in dealt)
    alike = Shape(np.full(40 * world, 7), held_rows=limit, world=world)
    counts = [sum(map(len, stored_runs(replace(alike, rank=rank), limit))) for rank in range(world)]
    assert min(counts) >= 0.8 * max(counts)


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 20_000), key=keys)
def test_keyed_permutation_is_a_bijection_equal_to_its_twin(n, key):
    permutation = KeyedPermutation(n, key)
    positions = np.arange(n)
    rows = permutation.apply(positions)
    assert np.array_equal(np.sort(rows), positions)
    assert np.array_equal(permutation.inverse(rows), positions)
    if n > 4096:
        assert np.array_equal(rows, walk_reference(positions, permutation, backwards=False))
        assert np.array_equal(positions, walk_reference(rows, permutation, backwards=True))


@settings(max_examples=80, deadline=None)
@given(n=st.integers(4097, 2**62), key=keys, seed=st.integers(0, 99))
def test_large_permutations_invert_and_equal_their_twin(n, key, seed):
    permutation = KeyedPermutation(n, key)
    positions = np.unique(np.append(np.random.default_rng(seed).integers(0, n, 50), [0, n - 1]))
    rows = permutation.apply(positions)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < n
    assert np.array_equal(permutation.inverse(rows), positions)
    assert np.array_equal(rows, walk_reference(positions, permutation, backwards=False))
    assert np.array_equal(positions, walk_reference(rows, permutation, backwards=True))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 400), key=keys)
def test_slots_are_a_permutation_equal_to_its_twin(rows, key):
    places = slots(rows, key)
    assert places.dtype == np.uint32
    assert np.array_equal(np.sort(places), np.arange(rows))
    assert np.array_equal(places, slots_reference(rows, key))


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.integers(1, 20), min_size=1, max_size=120), limit=st.integers(80, 400))
def test_groups_of_small_blocks_are_of_equal_size(rows, limit):
    rows = np.array(rows, np.int64)
    held = [int(rows[part].sum()) for part in equal_groups(np.arange(len(rows)), rows, limit)]
    assert max(held) - min(held) <= 2 * rows.max()


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.integers(1, 12), min_size=1, max_size=10),
    held=st.integers(8, 60),
    opened=st.integers(1, 12),
    world=st.integers(1, 3),
)
def test_windows_over_units_are_of_equal_size(parts, held, opened, world):
    units = np.repeat(np.arange(len(parts)), parts)
    shape = Shape(np.full(len(units), 2), held_rows=held, seed=1, units=units, open_units=opened)
    for part in ranks(shape, world):
        sizes = [window.rows for window in ORDERS["corgipile"].windows(part, 0)]
        assert not sizes or max(sizes) - min(sizes) <= 2
