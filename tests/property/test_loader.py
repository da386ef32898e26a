"""A stream taken up again is the stream that was not interrupted, wherever it was left and however it is cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.blocks.memory import ArraySource
from penstock.errors import BudgetError
from penstock.loader import Loader
from penstock.loader.holdout import Part
from penstock.shuffle import ORDERS
from tests import kinds
from tests.unit.test_loader_plan import smallest_named

X, Y = kinds.rows(300)
SOURCES = {
    "dense": ArraySource(X, Y, block_size=400),
    "sparse": ArraySource(kinds.sparse(X), Y, block_size=600),
}
ENCODERS = {name: kinds.encoder(source) for name, source in SOURCES.items()}
EPOCHS = 4


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    with kinds.store("csv", tmp_path_factory.mktemp("text"), X, Y, block_rows=20) as source:
        yield source


def equal(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        for name in ("y", "weight"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        a, b = (m.x if isinstance(m.x, np.ndarray) else m.x.to_dense() for m in (mine, theirs))
        np.testing.assert_array_equal(a, b)


def resumed_equals_uninterrupted(source, encoder, options, *, batch_size, left):
    with Loader(source, encoder, **options) as loader:
        stream = loader.batches(batch_size, epochs=EPOCHS)
        states, whole = [loader.state_dict()], []
        for batch in stream:
            whole.append(batch)
            states.append(loader.state_dict())
    at = min(left, len(whole))
    state = json.loads(json.dumps(states[at]))  # a small thing that any file can hold
    assert len(json.dumps(state)) < 500
    with Loader(source, encoder, **options) as loader:
        loader.load_state_dict(state)
        equal(list(loader.batches(batch_size, epochs=EPOCHS)), whole[at:])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=8)
@given(
    batch_size=st.integers(16, 350),
    left=st.integers(0, 60),
    seed=st.integers(0, 5),
    large=st.booleans(),
    share=st.sampled_from([None, 0.2, 0.7]),
)
def test_resumed_equals_uninterrupted(order, kind, batch_size, left, seed, large, share):
    source, encoder = SOURCES[kind], ENCODERS[kind]
    part = None if share is None else Part(share, seed, held_out=False)
    options = {"order": order, "seed": seed, "part": part}
    options["memory"] = "50MB" if large else kinds.small_memory(source, encoder, order)
    resumed_equals_uninterrupted(source, encoder, options, batch_size=batch_size, left=left)


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "global"])
def test_text_resumes_as_well(text, order):
    encoder = kinds.encoder(text)
    for memory in (kinds.small_memory(text, encoder, order), "50MB"):
        options = {"order": order, "memory": memory}
        resumed_equals_uninterrupted(text, encoder, options, batch_size=32, left=25)


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
    encoder = kinds.encoder(source)
    try:
        Loader(source, encoder, order, memory=memory)
    except BudgetError as error:
        size, share = smallest_named(type("Told", (), {"value": error}))
        # More than all of the data is more than a share can say.
        for named in (size,) if float(share[:-1]) > 100 else (size, share):
            with Loader(source, encoder, order, memory=named) as loader:
                found = kinds.numbers(w.batch for w in loader.epoch(0))
            assert not ORDERS[order].exact or np.array_equal(np.sort(found), np.arange(rows))
