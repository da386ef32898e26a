"""Every order over every kind of source, held in memory and by windows: every row once, and the same each time."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.loader import Loader
from penstock.loader.holdout import SplitPart
from penstock.shuffle import ORDERS
from tests import kinds

X, Y = kinds.rows()


@pytest.fixture(scope="module", params=kinds.KINDS)
def stored(request, tmp_path_factory):
    with kinds.store(request.param, tmp_path_factory.mktemp(request.param), X, Y) as source:
        yield request.param, source, kinds.recipe(source)


def stream(loader, epoch=0):
    """Return the numbers of an epoch's rows in order, having compared all that stands beside them."""
    found = []
    for window in loader.epoch(epoch):
        batch = window.batch
        x = batch.x if isinstance(batch.x, np.ndarray) else batch.x.to_dense()
        number = x[:, 0].astype(np.int64)
        expected = kinds.sparse(X).toarray() if loader.recipe.sparse else X
        np.testing.assert_array_equal(x, expected[number])
        np.testing.assert_array_equal(batch.y, Y[number])
        if window.located and len(number):
            block, row = window.locate(len(number) // 2)
            rows = loader.source.read(block).slice(row, 1)
            assert kinds.numbers([loader.recipe.encode(rows)])[0] == number[len(number) // 2]
        found.append(number)
    return np.concatenate(found)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("memory", ["large", "small"])
def test_an_epoch_has_every_row_once_and_is_a_function_of_the_seed(stored, order, memory, tmp_path):
    kind, source, recipe = stored
    if order == "global" and memory == "small" and kind not in kinds.EXACT:  # single rows of text are not counted
        with (
            Loader(source, recipe, order, memory=1, stretch=True) as loader,
            pytest.raises(UsageError, match=r"shuffle='global' reads single rows.*penstock convert"),
        ):
            next(iter(loader.epoch(0)))
        return
    size = "50MB" if memory == "large" else kinds.small_memory(source, recipe, order)
    with Loader(source, recipe, order, memory=size, seed=3, scratch=tmp_path) as loader:
        assert loader.plan.resident == (memory == "large")
        first, again, second = stream(loader), stream(loader), stream(loader, 1)
    if ORDERS[order].facts.exact:
        for epoch in (first, second):
            assert np.array_equal(np.sort(epoch), np.arange(len(X)))
    else:
        assert len(np.unique(first)) == len(first) < len(X)
        assert len(np.unique(second)) < len(second)
    assert np.array_equal(first, again)
    assert np.array_equal(first, second) == (order in ("none", "once"))
    assert np.array_equal(first, np.arange(len(X))) == (order == "none")
    with Loader(source, recipe, order, memory=size, seed=3, scratch=tmp_path, threads=3) as other:
        assert np.array_equal(stream(other), first)
    with Loader(source, recipe, order, memory=size, seed=4, scratch=tmp_path) as other:
        assert np.array_equal(stream(other), first) == (order == "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("order", ORDERS)
def test_the_two_sides_of_a_split_are_disjoint_complete_and_the_same_in_every_order(stored, order, tmp_path):
    kind, source, recipe = stored
    part = SplitPart(0.3, seed=1, held_out=True)
    size = "50MB" if kind not in kinds.EXACT else kinds.small_memory(source, recipe, order)
    sides = []
    for side in (part, part.other()):
        with Loader(source, recipe, order, memory=size, part=side, scratch=tmp_path) as loader:
            sides.append(np.unique(np.concatenate([stream(loader), stream(loader, 1)])))
    with Loader(source, recipe, "none", memory="50MB", part=part) as loader:
        held_out = stream(loader)
    assert 0.22 * len(X) < len(held_out) < 0.38 * len(X)
    if ORDERS[order].facts.exact:
        assert np.array_equal(sides[0], held_out)
        assert np.array_equal(np.sort(np.concatenate(sides)), np.arange(len(X)))
    else:
        assert np.isin(sides[0], held_out).all()
        assert len(sides[0])
        assert not np.isin(sides[1], held_out).any()


@pytest.mark.parametrize("order", [name for name, each in ORDERS.items() if each.facts.exact])
@pytest.mark.parametrize("stored", ["packed", "parquet", "csv", "arrays-sparse"], indirect=True)
def test_ranks_share_an_epoch(stored, order, tmp_path):
    kind, source, recipe = stored
    size = "50MB" if kind not in kinds.EXACT else kinds.small_memory(source, recipe, order)
    seen = []
    for rank in range(3):
        with Loader(source, recipe, order, memory=size, rank=rank, world=3, scratch=tmp_path) as loader:
            seen.append(stream(loader))
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(X)))
    assert min(map(len, seen)) > 0.15 * len(X)
