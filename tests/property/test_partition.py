"""Algorithm 3, compiled and incremental, gives what the paper's own words give; and nothing is lost on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.batch import Csr
from penstock.bigmodel.partition import Cost, partition, partition_reference

# Sums and products of these are exact in floating point, so that ties are ties in any order of evaluation.
COSTS = st.builds(Cost, st.integers(0, 4096).map(lambda n: n / 16), st.integers(0, 256).map(lambda n: n / 64))
# Few features in short rows, of the same small numbers: many ties, many merges of merged partitions.
ROWS = st.lists(st.lists(st.integers(0, 14), max_size=8), max_size=24)


def csr(rows: list[list[int]]) -> Csr:
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    indices = np.array([feature for row in rows for feature in row], np.uint64)
    return Csr(indptr, indices, np.ones(len(indices), np.float32), 100)


def frequencies(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Features, and how many rows hold each."""
    counts = Counter(feature for row in rows for feature in set(row))
    return np.array(list(counts), np.uint64), np.array(list(counts.values()), np.int64)


def drawn(seed: int, *, rows: int, features: int, density: float, topics: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    chance = density * 2 * rng.random((topics, features)) ** 2
    return [np.flatnonzero(rng.random(features) < chance[rng.integers(topics)]).tolist() for _ in range(rows)]


def assert_same(
    rows: list[list[int]], keep: int, cost: Cost, counts: tuple[np.ndarray, np.ndarray] | None = None
) -> None:
    counts = frequencies(rows) if counts is None else counts
    mine, theirs = (way(csr(rows), counts, keep=keep, cost=cost) for way in (partition, partition_reference))
    assert [part.tolist() for part in mine] == [part.tolist() for part in theirs]
    assert mine.frequencies.tolist() == theirs.frequencies.tolist()
    assert mine.rows.tolist() == theirs.rows.tolist()
    assert (mine.requests_before, mine.requests_after) == (theirs.requests_before, theirs.requests_after)


@settings(max_examples=400)
@given(rows=ROWS, keep=st.integers(1, 16), cost=COSTS)
# Ties between a partition that has just grown and one with a lower, or a higher, name decide what comes of these.
@example(
    rows=[[1, 5], [7], [6, 8, 9], [3, 4, 7], [7], [1, 2, 9], [4, 5, 9], [2], [2], [2, 3, 9], [7]],
    keep=16,
    cost=Cost(6.0, 1.0),
)
@example(rows=[[2, 3], [3], [1], [2, 3], [1, 2, 4], [1], [0, 1, 3]], keep=16, cost=Cost(2.0, 0.5))
def test_the_kernels_do_what_algorithm_3_says(rows: list[list[int]], keep: int, cost: Cost) -> None:
    assert_same(rows, keep, cost)


@settings(max_examples=200)
@given(rows=ROWS, keep=st.integers(1, 16), cost=COSTS, counts=st.lists(st.integers(0, 9), min_size=1, max_size=18))
# Here a partition joins a larger one that holds all of its rows, and then others.
@example(
    rows=[[0, 2, 4, 5], [5], [3, 4, 5], [5], [0, 1, 5], [1, 2, 4, 5], [0, 2, 5], [0, 5], [1, 3, 5], [0], [2, 4, 5], [3, 5], [5]],
    keep=9,
    cost=Cost(6.0, 1.0),
    counts=[9, 8, 7, 6, 5, 4, 3, 2, 1],
)  # fmt: skip
def test_so_it_is_where_given_counts_rank_the_features(
    rows: list[list[int]], keep: int, cost: Cost, counts: list[int]
) -> None:
    assert_same(rows, keep, cost, (np.arange(len(counts), dtype=np.uint64), np.array(counts, np.int64)))


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    features=st.integers(2, 24),
    density=st.sampled_from([0.1, 0.3, 0.6]),
    topics=st.integers(1, 5),
    ratio=st.sampled_from([0.25, 0.5, 1, 2, 4, 8, 16, 64, 1024]),
)
def test_so_it_is_for_rows_with_topics_at_every_ratio_of_costs(
    seed: int, rows: int, features: int, density: float, topics: int, ratio: float
) -> None:
    assert_same(drawn(seed, rows=rows, features=features, density=density, topics=topics), features, Cost(ratio, 1.0))


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    seek=st.floats(1e-9, 1e-2, allow_subnormal=False),
    unit=st.floats(1e-12, 1e-3, allow_subnormal=False),
    keep=st.integers(1, 30),
)
def test_at_any_cost_every_feature_is_in_one_partition_and_reading_grows_no_dearer(
    seed: int, seek: float, unit: float, keep: int
) -> None:
    rows = drawn(seed, rows=50, features=30, density=0.3, topics=3)
    cost = Cost(seek, unit)
    found = partition(csr(rows), frequencies(rows), keep=keep, cost=cost)
    features = found.features.tolist()
    assert len(set(features)) == len(features) == min(keep, len({f for row in rows for f in row}))
    owner = {feature: p for p, part in enumerate(found) for feature in part.tolist()}
    asked = [p for row in rows for p in {owner[f] for f in row if f in owner}]
    assert np.bincount(asked, minlength=len(found)).tolist() == found.rows.tolist()
    assert len(asked) == found.requests_after <= found.requests_before
    after = sum(int(n) * (seek + len(part) * unit) for n, part in zip(found.rows, found))
    assert after <= found.requests_before * (seek + unit) * (1 + 1e-9)
    assert (np.diff(found.rows) <= 0).all()
