"""Permutations from a key: uniform, equal to their twins, the same for ever."""

import itertools
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from penstock import seeds
from penstock.errors import UsageError
from penstock.native import kernel
from penstock.shuffle.permute import (
    Draws,
    KeyedPermutation,
    below,
    below_wide,
    mix,
    mix_reference,
    slots,
    slots_reference,
)
from tests.order_quality import label_balance, rank_correlation

KEYS = [seeds.key(0, "test", i) for i in range(4000)]


@kernel(fast=False)
def draw_many(count, bound, wide, state):
    out = np.empty(count, np.uint64)
    for i in range(count):
        if wide:
            out[i], state = below_wide(state, bound)
        else:
            out[i], state = below(state, bound)
    return out, state


def test_mix_equals_its_twin():
    for key in KEYS[:50]:
        assert int(mix(np.uint64(key))) == mix_reference(key)


# Bounds just above half of the range reject nearly half of the draws.
@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 2**31 + 1, 3 * 2**30, 2**32 - 1, 2**32])
def test_below_equals_its_twin_where_draws_are_rejected(bound):
    drawn, state = draw_many(300, np.uint64(bound), False, np.uint64(KEYS[0]))
    twin = Draws(KEYS[0])
    assert drawn.tolist() == [twin.below(bound) for _ in range(300)]
    assert int(state) == twin.state


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 2**32 + 1, 2**40 + 1, 2**63 + 1])
def test_below_wide_equals_its_twin(bound):
    drawn, state = draw_many(300, np.uint64(bound), True, np.uint64(KEYS[0]))
    twin = Draws(KEYS[0])
    assert drawn.tolist() == [twin.below_wide(bound) for _ in range(300)]
    assert int(state) == twin.state


def test_draws_are_unbiased_for_an_awkward_bound():
    bound = 3 * 2**30
    drawn, _ = draw_many(60_000, np.uint64(bound), False, np.uint64(1))
    # Without rejection one third of the numbers would come twice as often.
    thirds = np.bincount((drawn % np.uint64(3)).astype(np.int64), minlength=3)
    assert stats.chisquare(thirds).pvalue > 1e-3


def test_slots_equal_their_twin():
    for rows, key in itertools.product([0, 1, 2, 100, 3000], KEYS[:3]):
        assert np.array_equal(slots(rows, key), slots_reference(rows, key))


def test_all_orders_of_four_rows_are_equally_likely():
    counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.permutations(range(4)), 0)
    for key in KEYS:
        counts[tuple(slots(4, key).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("permute", [slots, lambda n, key: KeyedPermutation(n, key).apply(np.arange(n))])
def test_every_row_is_equally_likely_at_every_place(permute):
    n = 12
    seen = np.zeros((n, n))
    for key in KEYS:
        seen[np.arange(n), permute(n, key)] += 1
    expected = len(KEYS) / n
    assert stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), (n - 1) ** 2) > 1e-3


def test_too_many_rows_for_one_window_are_refused():
    with pytest.raises(UsageError, match="4294967296 rows"):
        slots(2**32, 1)


@pytest.mark.parametrize("n", [5000, 8192, 10_007])
def test_keyed_permutation_cannot_be_told_from_a_random_one(n):
    rows = [KeyedPermutation(n, key).apply(np.arange(n)) for key in KEYS[:400]]
    # Under a true shuffle these are standard normal: with stored position, and with the row before.
    with_position = [rank_correlation(r) * np.sqrt(n - 1) for r in rows]
    with_neighbour = [np.corrcoef(r[1:], r[:-1])[0, 1] * np.sqrt(n - 1) for r in rows]
    assert stats.kstest(with_position, "norm").pvalue > 1e-3
    assert stats.kstest(with_neighbour, "norm").pvalue > 1e-3
    balance = np.mean([label_balance(r < n // 2, 50) for r in rows[:50]])
    assert balance == pytest.approx(1, abs=0.05)
    steps = sum(np.bincount((r[1:] - r[:-1]) % n * 50 // n, minlength=50) for r in rows)
    share = np.bincount(np.arange(1, n) * 50 // n, minlength=50) / (n - 1)
    assert stats.chisquare(steps, share * steps.sum()).pvalue > 1e-3
    fixed = sum(int((r == np.arange(n)).sum()) for r in rows)
    assert fixed == pytest.approx(400, abs=80)


def test_neighbouring_keys_give_unrelated_permutations():
    n = 10_000
    one, other = (KeyedPermutation(n, key).apply(np.arange(n)) for key in (6, 7))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_ten_billion_rows_cost_no_memory():
    permutation = KeyedPermutation(10**10, 3)
    permutation.apply(np.arange(3))
    tracemalloc.start()
    rows = permutation.apply(np.arange(10**10 - 1000, 10**10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert len(np.unique(rows)) == 1000
    assert stats.kstest(rows / 10**10, "uniform").pvalue > 1e-3


def test_positions_outside_are_refused():
    for positions in ([-1], [10]):
        with pytest.raises(UsageError, match="not all in 0 to 9"):
            KeyedPermutation(10, 1).apply(np.array(positions))
    with pytest.raises(UsageError, match="n=0"):
        KeyedPermutation(0, 1)
    assert KeyedPermutation(5, 1).apply(np.empty(0, np.int64)).size == 0


def test_results_are_the_same_in_every_version():
    # A run resumed after an upgrade must go on in the order in which it began.
    assert slots(8, 42).tolist() == [4, 6, 1, 0, 2, 5, 7, 3]
    assert KeyedPermutation(10**10, 42).apply(np.arange(4)).tolist() == [5213774761, 2619875974, 7840653994, 8453273803]


def test_naming_the_orders_does_not_load_numba():
    code = "import sys, penstock.shuffle as s; s.order('corgipile'); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
