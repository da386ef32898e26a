"""What is left of an epoch is the end of the uninterrupted one, wherever it was left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.blocks.memory import ArraySource
from penstock.errors import BudgetError
from penstock.loader import Loader
from penstock.shuffle import ORDERS
from tests import kinds
from tests.unit.test_loader_plan import smallest_named

X, Y = kinds.rows(300)
SOURCES = {
    "dense": ArraySource(X, Y, block_size=400),
    "sparse": ArraySource(kinds.sparse(X), Y, block_size=600),
}
ENCODERS = {name: kinds.recipe(source) for name, source in SOURCES.items()}
EPOCHS = 3


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=8)
@given(skip=st.integers(0, 320), seed=st.integers(0, 5), large=st.booleans())
def test_resumed_equals_uninterrupted(order, kind, skip, seed, large):
    source, recipe = SOURCES[kind], ENCODERS[kind]
    memory = "50MB" if large else kinds.small_memory(source, recipe, order)
    options = {"order": order, "seed": seed, "memory": memory}
    with Loader(source, recipe, **options) as loader:
        whole = [kinds.numbers(window.batch for window in loader.epoch(epoch)) for epoch in range(EPOCHS)]
    for epoch, rows in enumerate(whole):
        with Loader(source, recipe, **options) as loader:
            left = [kinds.numbers([window.batch]) for window in loader.rest(epoch, skip=skip)]
        np.testing.assert_array_equal(np.concatenate([np.empty(0, np.int64), *left]), rows[skip:])


@given(
    rows=st.integers(1, 120),
    block=st.integers(100, 3000),
    order=st.sampled_from(sorted(ORDERS)),
    memory=st.integers(1, 3000),
    sparse=st.booleans(),
)
@settings(max_examples=30)
def test_the_smallest_budget_named_works_whatever_the_blocks(rows, block, order, memory, sparse):
    source = ArraySource(kinds.sparse(X[:rows]) if sparse else X[:rows], Y[:rows], block_size=block)
    recipe = kinds.recipe(source)
    try:
        Loader(source, recipe, order, memory=memory)
    except BudgetError as error:
        size, share = smallest_named(type("Told", (), {"value": error}))
        # More than all of the data is more than a share can say, and none is named.
        for named in (size,) if share is None else (size, share):
            with Loader(source, recipe, order, memory=named) as loader:
                found = kinds.numbers(w.batch for w in loader.epoch(0))
            assert not ORDERS[order].facts.exact or np.array_equal(np.sort(found), np.arange(rows))
