"""Rows as arrays: slices, picks and joins of dense and sparse rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import Batch, Csr


def csr(rows, width=6, seed=0):
    matrix = sp.random(rows, width, density=0.4, format="csr", random_state=np.random.default_rng(seed))
    return Csr(matrix.indptr.astype(np.uint64), matrix.indices.astype(np.uint32), matrix.data.astype(np.float32), width)


def batch(rows, *, sparse, seed=0):
    x = csr(rows, seed=seed)
    numbers = np.arange(rows)
    return Batch(x if sparse else x.to_dense(), numbers.astype(np.float32), numbers / np.float32(2), numbers)


def dense(b):
    return b.x.to_dense() if isinstance(b.x, Csr) else b.x


def test_csr_is_what_scipy_says():
    matrix = sp.random(20, 7, density=0.3, format="csr", random_state=1, dtype=np.float32)
    rows = Csr(matrix.indptr.astype(np.uint64), matrix.indices.astype(np.uint32), matrix.data, 7)
    np.testing.assert_array_equal(rows.to_dense(), matrix.toarray())
    assert len(rows) == 20
    assert rows.nbytes == 21 * 8 + matrix.nnz * 8


def test_equal_indices_in_a_row_add_up():
    rows = Csr(np.array([0, 2], np.uint64), np.array([1, 1], np.uint32), np.array([2, 3], np.float32), 3)
    assert rows.to_dense().tolist() == [[0, 5, 0]]


@pytest.mark.parametrize("sparse", [False, True])
@given(start=st.integers(0, 20), length=st.integers(0, 20))
def test_slices_are_views(sparse, start, length):
    whole = batch(20, sparse=sparse)
    stop = min(20, start + length)
    part = whole.slice(start, stop)
    np.testing.assert_array_equal(dense(part), dense(whole)[start:stop])
    np.testing.assert_array_equal(part.rows, np.arange(start, stop))
    assert len(part) == stop - start
    assert part.width == 6
    values = (part.x.values, whole.x.values) if sparse else (part.x, whole.x)
    assert not values[0].size or np.shares_memory(*values)


@pytest.mark.parametrize("sparse", [False, True])
@given(picks=st.lists(st.integers(0, 19), max_size=40))
def test_picks_are_copies_in_the_order_picked(sparse, picks):
    whole, picks = batch(20, sparse=sparse), np.array(picks, np.int64)
    part = whole.take(picks)
    np.testing.assert_array_equal(dense(part), dense(whole)[picks])
    for name in ("y", "weight", "rows"):
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[picks])
    values = (part.x.values, whole.x.values) if sparse else (part.x, whole.x)
    assert not np.shares_memory(*values)


@pytest.mark.parametrize("sparse", [False, True])
def test_joins_are_the_rows_end_to_end(sparse):
    parts = [batch(n, sparse=sparse, seed=n) for n in (5, 0, 7)]
    whole = Batch.concat(parts)
    np.testing.assert_array_equal(dense(whole), np.concatenate([dense(p) for p in parts]))
    np.testing.assert_array_equal(whole.y, np.concatenate([p.y for p in parts]))
    assert whole.nbytes >= sum(p.y.nbytes for p in parts)
    assert Batch.concat(parts[:1]) is parts[0]
    bare = Batch.concat([Batch(p.x) for p in parts])
    assert bare.y is bare.weight is bare.rows is None
