"""``global`` is a true shuffle: nothing tells it from a permutation drawn at random, and nothing but the seed moves it."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from penstock.blocks.memory import TableSource
from penstock.loader.batches import Batches
from tests import kinds, samples
from tests.order_quality import label_balance, rank_correlation

EPOCHS = 60
# Few rows are shuffled by a table, many by a keyed permutation.
SIZES = (500, 8000)


def chi_square(counts, degrees, share=None):
    """Return how probable it is that counts stray so far from their shares, equal ones if none are given."""
    mean = counts.mean() if share is None else counts.sum() * share / share.sum()
    return float(stats.chi2.sf(((counts - mean) ** 2 / mean).sum(), degrees))


def verdicts(orders):
    """Return what tests of randomness say of many orders of the same rows: probabilities, low where one is not."""
    rows = len(orders[0])
    bins = 20
    places = np.arange(rows) * bins // rows
    cells = np.zeros((bins, bins))
    for order in orders:
        np.add.at(cells, (places, places[order]), 1)
    # A permutation has all sums of rows and columns fixed.
    found = {"positions": chi_square(cells, (bins - 1) ** 2)}
    bin_of = np.arange(rows - 1) * 50 // (rows - 1)
    steps = np.concatenate([np.diff(order) % rows for order in orders]) - 1
    found["steps"] = chi_square(np.bincount(bin_of[steps]), 49, np.bincount(bin_of))
    found["triples"] = chi_square(np.bincount(np.concatenate([_patterns(order) for order in orders])), 5)
    correlations = np.array([rank_correlation(order) for order in orders]) * np.sqrt(rows - 1)
    found["correlation"] = float(stats.kstest(correlations, "norm").pvalue)
    fixed = sum(int((order == np.arange(rows)).sum()) for order in orders)
    found["fixed points"] = float(min(stats.poisson.cdf(fixed, len(orders)), stats.poisson.sf(fixed - 1, len(orders))))
    return found


def _patterns(order):
    """Return which of the six orders each three rows in sequence, none in two triples, stand in."""
    first, second, third = order[: len(order) // 3 * 3].reshape(-1, 3).T
    pattern = (first < second) * 4 + (second < third) * 2 + (first < third)
    return np.array([0, 0, 1, 2, 3, 4, 0, 5])[pattern]  # two of the eight cannot be


def orders_of(rows, seed):
    source = TableSource.of(pa.table({"number": np.arange(rows)}), block_size=2000)
    with Batches(source, 100, shuffle="global", seed=seed, columns=("number",)) as stream:
        return [np.concatenate([number for (number,) in stream]) for _ in range(EPOCHS)]


@pytest.mark.parametrize("rows", SIZES)
def test_it_passes_for_a_random_permutation(rows):
    for seed in range(2):
        found = verdicts(orders_of(rows, seed))
        assert min(found.values()) > 1e-4, found


@pytest.mark.parametrize("rows", SIZES)
def test_the_tests_can_tell(rows):
    rng = np.random.default_rng(0)
    random = [rng.permutation(rows) for _ in range(EPOCHS)]
    assert min(verdicts(random).values()) > 1e-4
    half = [np.concatenate([rng.permutation(rows // 2), rng.permutation(rows // 2) + rows // 2]) for _ in range(EPOCHS)]
    assert verdicts(half)["positions"] < 1e-9


def test_labels_are_spread_over_batches_as_chance_spreads_them():
    rows, rng = 8000, np.random.default_rng(1)
    labels = np.repeat([0, 1], rows // 2)
    ours = [label_balance(labels[order], 100) for order in orders_of(rows, 5)]
    theirs = [label_balance(labels[rng.permutation(rows)], 100) for _ in range(EPOCHS)]
    assert 0.9 < np.mean(ours) < 1.1
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3


def test_the_order_is_the_seeds_alone(tmp_path, monkeypatch):
    rows = samples.table(300).select(samples.PLAIN)
    expected = None
    for kind in ("table", "converted", "arrow-large", "arrow-lz4", "parquet"):
        for columns in (["number"], samples.PACKED, samples.RAGGED):
            with samples.store(kind, tmp_path, rows, block_rows=30) as source:
                small = samples.small_memory(source, "global", columns)
                for memory, threads in ((small, 1), (small, 7), (3 * small, 2)):
                    monkeypatch.setattr(os, "sched_getaffinity", lambda _, threads=threads: set(range(threads)))
                    with Batches(source, 64, shuffle="global", memory=memory, columns=columns, seed=4) as stream:
                        found = [n for batch in stream for n in batch["number"].tolist()]
                    expected = expected or found
                    assert found == expected, (kind, columns, memory, threads)


def test_ranks_take_turns_in_one_order(tmp_path):
    x, y = kinds.rows(500)
    with kinds.store("packed", tmp_path, x, y) as source:
        with Batches(source, 10, shuffle="global", row_numbers=True) as stream:
            whole = np.concatenate([batch["row_number"] for batch in stream])
        for rank in range(3):
            with Batches(source, 10, shuffle="global", row_numbers=True, rank=rank, world=3, uneven="drop") as stream:
                mine = np.concatenate([batch["row_number"] for batch in stream])
            assert np.array_equal(mine, whole[rank::3][:166])
