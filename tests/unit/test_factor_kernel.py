"""The kernels of matrix factorisation against their plain twins."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.sgd.factor import ABSENT, COUNT, SQUARES, TOTALS, factor_rows, factor_scores
from penstock.sgd.reference import factor_rows_reference, factor_scores_reference

F = np.float32


def case(rank, rows=400, users=30, items=20, seed=0):
    rng = np.random.default_rng(seed)
    width = -(-(rank + 1) // 4) * 4
    records = np.zeros((users + items, width), F)
    records[:, :rank] = rng.normal(0, 0.3, (users + items, rank))
    u = rng.integers(0, users, rows).astype(np.uint32)
    i = rng.integers(users, users + items, rows).astype(np.uint32)
    return records, u, i, rng.integers(1, 6, rows).astype(F)


@pytest.mark.parametrize("rank", [1, 3, 8, 100, 1000])
@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_learns_as_its_twin_does(rank, l2):
    records, users, items, ratings = case(rank)
    plain, totals, sums = records.astype(np.float64), np.zeros(TOTALS), np.zeros(TOTALS)
    assert factor_rows(records, users, items, ratings, F(3), F(0.01), F(l2), rank, totals) == -1
    expected = factor_rows_reference(plain, users, items, ratings, mean=3.0, rate=0.01, l2=l2, rank=rank, totals=sums)
    assert expected == -1
    np.testing.assert_allclose(records, plain, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(totals, sums, rtol=1e-4)
    assert totals[COUNT] == len(ratings)
    assert not records[:, rank + 1 :].any(), "the padding was written to"


def test_goes_on_from_totals_and_learns():
    records, users, items, ratings = case(8)
    errors = []
    totals = np.zeros(TOTALS)
    for _ in range(20):
        before = totals[SQUARES]
        factor_rows(records, users, items, ratings, F(3), F(0.05), F(0), 8, totals)
        errors.append(totals[SQUARES] - before)
    assert totals[COUNT] == 20 * len(ratings)
    assert errors[-1] < errors[0] / 2


def test_each_rating_sees_what_the_one_before_it_wrote():
    records, _, _, ratings = case(8)
    plain = records.astype(np.float64)
    users, items = np.zeros(400, np.uint32), np.ones(400, np.uint32)
    totals, sums = np.zeros(TOTALS), np.zeros(TOTALS)
    factor_rows(records, users, items, ratings, F(3), F(0.01), F(0.1), 8, totals)
    factor_rows_reference(plain, users, items, ratings, mean=3.0, rate=0.01, l2=0.1, rank=8, totals=sums)
    np.testing.assert_allclose(records, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_stops_at_a_rating_that_is_not_finite(bad):
    records, users, items, ratings = case(8)
    ratings[37] = bad
    totals = np.zeros(TOTALS)
    assert factor_rows(records, users, items, ratings, F(3), F(0.01), F(0), 8, totals) == 37
    assert totals[COUNT] == 37
    assert np.isfinite(records).all()


def test_stops_where_training_diverges():
    records, users, items, ratings = case(8)
    totals = np.zeros(TOTALS)
    stopped = -1
    for _ in range(50):
        stopped = factor_rows(records, users, items, ratings, F(3), F(2), F(0), 8, totals)
        if stopped >= 0:
            break
    assert stopped >= 0


@pytest.mark.parametrize("rank", [1, 8, 100])
def test_scores_as_its_twin_does_with_users_and_items_unknown(rank):
    records, users, items, _ = case(rank)
    records[:, rank] = np.random.default_rng(1).normal(size=len(records))
    users[::7], items[::5] = ABSENT, ABSENT
    out = np.empty(len(users), F)
    factor_scores(records, users, items, F(3.5), rank, out)
    expected = factor_scores_reference(records, users, items, mean=3.5, rank=rank)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    both = (users == ABSENT) & (items == ABSENT)
    assert both.any()
    assert (out[both] == F(3.5)).all()


def test_the_same_ratings_give_the_same_bytes():
    first, users, items, ratings = case(100)
    second = first.copy()
    for records in (first, second):
        factor_rows(records, users, items, ratings, F(3), F(0.01), F(0.02), 100, np.zeros(TOTALS))
    assert first.tobytes() == second.tobytes()
