"""The conformance suite for orders: what a loader relies on, whatever the strategy.

Subclass `OrderContract` in a test file and name your order; pytest collects the rest::

    class TestMine(OrderContract):
        order = MyOrder()

The ``check_*`` functions are the same promises for one shape, to be driven by generated shapes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from penstock.shuffle.base import Int64s, Order, RowWindow, Shape, Window
from penstock.shuffle.quality import trace, visit

SHAPES = (
    Shape(np.full(50, 20), held_rows=200, seed=1),
    Shape(np.array([7, 0, 31, 1, 0, 12, 90, 3, 3, 3, 18, 0]), held_rows=40, seed=2),
    Shape(np.array([64]), held_rows=10, seed=3),
    Shape(np.full(48, 5), held_rows=60, seed=4, units=np.repeat(np.arange(6), 8)),
    Shape(np.full(20, 6), held_rows=1000, seed=5),
    Shape(np.zeros(3, np.int64), held_rows=4, seed=6),
    Shape(np.empty(0, np.int64), held_rows=4, seed=7),
)


def ranks(shape: Shape, world: int) -> list[Shape]:
    """Return the shape as each rank of a job of so many sees it."""
    return [replace(shape, rank=rank, world=world) for rank in range(world)]


def same(one: Window | RowWindow, other: Window | RowWindow) -> bool:
    """Tell whether two windows are the same plan."""
    if isinstance(one, RowWindow) or isinstance(other, RowWindow):
        both = isinstance(one, RowWindow) and isinstance(other, RowWindow)
        return both and one.index == other.index and np.array_equal(_content(one), _content(other))
    return (one.index, one.rows, one.key) == (other.index, other.rows, other.key) and np.array_equal(
        one.blocks, other.blocks
    )


def _content(window: Window | RowWindow) -> Int64s:
    return window.numbers if isinstance(window, RowWindow) else window.blocks


def _planned(order: Order, shape: Shape, epoch: int) -> Iterator[Window | RowWindow]:
    return iter(order.windows(shape, epoch))


def check_union(order: Order, shape: Shape, *, world: int, epoch: int = 0) -> None:
    """All ranks' windows together are every block (or row) once; so are the rows visited, if exact."""
    windows = [window for part in ranks(shape, world) for window in _planned(order, part, epoch)]
    if windows:
        planned = np.sort(np.concatenate([_content(window) for window in windows]))
        everything = shape.rows if isinstance(windows[0], RowWindow) else len(shape.block_rows)
        assert np.array_equal(planned, np.arange(everything))
    else:
        assert shape.rows == 0
    if order.facts.exact:
        visited = np.sort(np.concatenate([visit(order, part, epoch) for part in ranks(shape, world)]))
        assert np.array_equal(visited, np.arange(shape.rows))


def check_windows(order: Order, shape: Shape, *, epoch: int = 0) -> None:
    """Windows are numbered from 0, say their rows truly, and hold no more than they may."""
    largest = int(shape.block_rows.max(initial=0))
    mine = list(_planned(order, shape, epoch))
    for index, window in enumerate(mine):
        assert window.index == index
        assert window.rows <= max(shape.held_rows, largest)
        assert len(_content(window)) > 0
        if isinstance(window, Window):
            assert window.rows == shape.block_rows[window.blocks].sum()
            assert window.rows > 0 or len(mine) == 1, "a window without rows among windows with rows"


def check_mixer(order: Order, shape: Shape, *, epoch: int = 0, carried: int = 0) -> None:
    """A mixer names places that exist, holds no more than it may, and loses no row."""
    mixer = order.mixer(shape, epoch, carried)
    if mixer is None:
        return
    sizes = [window.rows for window in _planned(order, shape, epoch)]
    held = carried
    for step, incoming in enumerate(sizes):
        last = step == len(sizes) - 1
        mix = mixer.step(incoming, last=last)
        places = np.concatenate([mix.picks, mix.keeps])
        assert len(places) == 0 or (places.min() >= 0 and places.max() < held + incoming)
        assert len(np.unique(mix.keeps)) == len(mix.keeps) <= shape.held_rows
        # A row that came in goes out or is kept, once; only rows carried over may be visited again.
        once = places[places >= carried]
        assert np.array_equal(np.sort(once), np.arange(carried, held + incoming))
        if not last:
            kept_where_it_lay = mix.keeps[:held] == np.arange(min(held, len(mix.keeps)))
            assert np.all(kept_where_it_lay | (mix.keeps[:held] >= held))
        held = len(mix.keeps)
    if sizes and not order.facts.carries:
        assert held == 0, "the last step drains the buffer"


def check_repeatable(order: Order, shape: Shape, *, epoch: int = 0) -> None:
    """The same seed and epoch give the same plan and the same visits."""
    one, other = list(_planned(order, shape, epoch)), list(_planned(order, shape, epoch))
    assert len(one) == len(other)
    assert all(same(a, b) for a, b in zip(one, other))
    assert np.array_equal(visit(order, shape, epoch), visit(order, shape, epoch))


def check_resume(order: Order, shape: Shape, *, skip: int, epoch: int = 0) -> None:
    """A plan taken up after so many windows goes on as the uninterrupted one."""
    whole = list(trace(order, shape, epoch))
    rest = list(islice(_planned(order, shape, epoch), skip, None))
    assert len(rest) == max(0, len(whole) - skip)
    assert all(same(step.window, window) for step, window in zip(whole[skip:], rest))


class OrderContract:
    """What every order promises. Set ``order``; set ``fixed`` if epochs do not differ."""

    order: Order
    fixed: bool = False

    def test_every_block_and_row_comes_once_over_all_ranks(self) -> None:
        """No rank's part overlaps another's, and nothing is left out."""
        for shape in SHAPES:
            for world in (1, 2, 3, 7):
                for epoch in (0, 3):
                    check_union(self.order, shape, world=world, epoch=epoch)

    def test_windows_hold_no_more_than_they_may(self) -> None:
        """Nor are they empty, nor do they miscount."""
        for shape in SHAPES:
            for part in ranks(shape, 3):
                check_windows(self.order, part)

    def test_mixers_lose_no_row(self) -> None:
        """And hold no more than they may."""
        for shape in SHAPES:
            for epoch in (0, 1):
                check_mixer(self.order, shape, epoch=epoch)

    def test_its_facts_are_true(self) -> None:
        """What loaders and `penstock.explain` take from ``facts`` is what the plan does."""
        shape, facts = SHAPES[0], self.order.facts
        windows = list(_planned(self.order, shape, 0))
        assert facts.caption
        assert facts.by_row == isinstance(windows[0], RowWindow)
        assert facts.places_rows == all(isinstance(window, Window) and window.key is not None for window in windows)
        assert (facts.mixing == "none") == (self.order.mixer(shape, 0) is None)
        stored = np.concatenate([_content(window) for window in windows])
        in_random_order = not np.array_equal(stored, np.arange(len(stored)))
        assert facts.by_block == (in_random_order and not facts.by_row)
        once = np.array_equal(np.sort(visit(self.order, shape, 1)), np.arange(shape.rows))
        assert facts.exact == once

    def test_same_seed_same_order(self) -> None:
        """Plans are pure functions."""
        for shape in SHAPES:
            check_repeatable(self.order, shape, epoch=1)

    def test_another_epoch_is_another_order(self) -> None:
        """Unless the order is fixed, in which case it is the same."""
        shape = SHAPES[0]
        first, second = visit(self.order, shape, 0), visit(self.order, shape, 1)
        assert np.array_equal(first, second) == self.fixed

    def test_another_seed_is_another_order(self) -> None:
        """Unless nothing is shuffled at all."""
        shape = SHAPES[0]
        first, second = visit(self.order, shape, 0), visit(self.order, replace(shape, seed=99), 0)
        assert np.array_equal(first, second) == (self.fixed and self.order.facts.copy == "never")

    def test_resumed_equals_uninterrupted(self) -> None:
        """Skipping the windows done leaves those to do."""
        for shape in SHAPES:
            for skip in (0, 1, 3):
                check_resume(self.order, shape, skip=skip)

    def test_windows_are_an_iterator(self) -> None:
        """Plans are made as they are needed."""
        windows = self.order.windows(SHAPES[0], 0)
        assert iter(windows) is windows

    def test_nothing_grows_with_the_rows(self) -> None:
        """The first windows of 10**10 rows take no more memory than the blocks' numbers and a window's rows."""
        shape = Shape(np.full(10_000, 10**6), held_rows=5_000)
        next(iter(self.order.windows(SHAPES[0], 0)))  # what is loaded or compiled once is not the order's
        tracemalloc.start()
        try:
            windows = list(islice(_planned(self.order, shape, 0), 3))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert len(windows) == 3
        assert peak < 4_000_000
