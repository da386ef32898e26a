"""Algorithm 3 on small examples, the counting before it, the sample, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from penstock.batch import Batch, Csr
from penstock.bigmodel import partition as module
from penstock.bigmodel.partition import Cost, sample_of
from penstock.errors import UsageError


def rows_of(*rows: list[int], dtype: type = np.uint32) -> Csr:
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    indices = np.array([feature for row in rows for feature in row], dtype)
    return Csr(indptr, indices, np.ones(len(indices), np.float32), int(indices.max(initial=0)) + 1)


def frequencies(rows: Csr | module.RowSample) -> tuple[np.ndarray, np.ndarray]:
    """Features, and how many rows hold each."""
    counts = Counter(feature for row in _sets(rows) for feature in row)
    return np.array(list(counts), np.uint64), np.array(list(counts.values()), np.int64)


def partition(sample: Csr | module.RowSample, *, keep: int, cost: Cost) -> module.Partitions:
    return module.partition(sample, frequencies(sample), keep=keep, cost=cost)


def partition_reference(sample: Csr, *, keep: int, cost: Cost) -> module.Partitions:
    return module.partition_reference(sample, frequencies(sample), keep=keep, cost=cost)


# Twelve rows as in figure 2: 2 meets 3 seven times, 1 meets 5 four times, and 6 meets 2 four times.
FIGURE_2 = rows_of(
    [2, 3, 6], [2, 3, 6], [2, 3, 6], [2, 3, 4], [2, 3], [2, 3], [2, 3],
    [1, 5], [1, 5], [1, 5, 4], [1, 5, 6], [2, 6],
)  # fmt: skip


def lists(found: module.Partitions) -> list[list[int]]:
    return [part.tolist() for part in found]


@pytest.mark.parametrize("way", [partition, partition_reference])
def test_figure_2(way: Callable[..., module.Partitions]) -> None:
    pairs = Counter(frozenset((a, b)) for row in _sets(FIGURE_2) for a in row for b in row if a < b)
    assert (pairs[frozenset({2, 3})], pairs[frozenset({1, 5})], pairs[frozenset({2, 6})]) == (7, 4, 4)
    found = way(FIGURE_2, keep=6, cost=Cost(seek=1.0, unit=1.0))
    assert lists(found) == [[2, 3], [6], [1, 5], [4]]
    assert found.rows.tolist() == [8, 5, 4, 2]
    assert (found.requests_before, found.requests_after, found.sample_rows) == (30, 19, 12)
    assert found.frequencies.tolist() == [8, 7, 5, 4, 4, 2]


def test_dear_records_keep_apart_what_does_not_always_meet() -> None:
    assert lists(partition(FIGURE_2, keep=6, cost=Cost(1.0, 10.0))) == [[2], [3], [6], [1, 5], [4]]
    assert lists(partition(FIGURE_2, keep=6, cost=Cost(0.0, 1.0))) == [[2], [3], [6], [1], [5], [4]]


def test_free_records_join_all_that_ever_meet() -> None:
    assert lists(partition(FIGURE_2, keep=6, cost=Cost(1.0, 0.0))) == [[2, 3, 6, 1, 5, 4]]


def test_rare_features_are_left_out_and_ties_go_to_the_lower() -> None:
    found = partition(rows_of([9, 5], [9, 4], [9, 7]), keep=2, cost=Cost(1.0, 0.0))
    assert lists(found) == [[9, 4]]
    assert (found.requests_before, found.requests_after) == (4, 3)


def test_a_feature_twice_in_a_row_counts_once() -> None:
    twice, once = rows_of([1, 1, 2], [3, 3, 3], [2, 1]), rows_of([1, 2], [3], [2, 1])
    for cost in (Cost(1.0, 0.25), Cost(1.0, 100.0)):
        mine, theirs = partition(twice, keep=3, cost=cost), partition(once, keep=3, cost=cost)
        assert lists(mine) == lists(theirs)
        assert mine.frequencies.tolist() == theirs.frequencies.tolist() == [2, 2, 1]
        assert mine.requests_before == 5


def test_given_counts_choose_and_order_the_features() -> None:
    counts = (np.array([5, 8, 2], np.uint64), np.array([10, 70, 30], np.int64))
    sample = rows_of([2, 5, 1, 2], [2, 5, 1], [1])
    for way in (module.partition, module.partition_reference):
        found = way(sample, counts, keep=2, cost=Cost(1.0, 0.0))
        assert lists(found) == [[2], [8]]
        assert found.frequencies.tolist() == [30, 70]
        assert found.rows.tolist() == [2, 0]


@pytest.mark.parametrize("sample", [rows_of(), rows_of([], []), rows_of([4])])
def test_hardly_any_rows(sample: Csr) -> None:
    found = partition(sample, keep=3, cost=Cost(1.0, 1.0))
    assert lists(found) == lists(partition_reference(sample, keep=3, cost=Cost(1.0, 1.0)))
    assert len(found) == len(sample.indices)


def test_the_largest_features_are_told_apart() -> None:
    top = 2**64 - 1
    found = partition(rows_of([top, 0], [top, 0], [top - 1], dtype=np.uint64), keep=3, cost=Cost(1.0, 1.0))
    assert lists(found) == [[0, top], [top - 1]]


def test_many_features_in_topics_are_merged_as_the_reference_does() -> None:
    rng = np.random.default_rng(5)
    rows = [sorted(set((rng.integers(0, 6) * 8 + rng.integers(0, 8, 6)).tolist())) for _ in range(150)]
    for unit in (0.0, 0.0625, 0.25, 1.0):
        mine = partition(rows_of(*rows), keep=40, cost=Cost(1.0, unit))
        theirs = partition_reference(rows_of(*rows), keep=40, cost=Cost(1.0, unit))
        assert lists(mine) == lists(theirs)
        assert mine.rows.tolist() == theirs.rows.tolist()
        assert mine.requests_after == theirs.requests_after


def test_a_sample_is_all_rows_where_they_are_few() -> None:
    sample = sample_of([Batch(FIGURE_2.slice(0, 5)), Batch(FIGURE_2.slice(5, 12))])
    assert sample.indices.tolist() == FIGURE_2.indices.tolist()
    assert sample.indptr.tolist() == FIGURE_2.indptr.tolist()
    assert len(sample) == 12
    assert lists(partition(sample, keep=6, cost=Cost(1.0, 1.0))) == [[2, 3], [6], [1, 5], [4]]


def test_a_sample_of_nothing_is_empty() -> None:
    assert len(sample_of([])) == 0


def test_a_sample_takes_no_more_than_its_entries() -> None:
    rows = numbered(20_000)
    assert len(sample_of(cut(rows, 700), most_entries=600).indices) == 600
    assert len(sample_of(cut(rows, 700), most_entries=30_000)) == 20_000


@pytest.mark.parametrize("size", [1, 37, 1000, 5000])
def test_a_sample_depends_on_the_seed_not_on_the_batches(size: int) -> None:
    rows = numbered(5000)
    for most in (20, 90, 500):
        whole = sample_of([Batch(rows)], seed=3, most_entries=most)
        assert sample_of(cut(rows, size), seed=3, most_entries=most).indices.tolist() == whole.indices.tolist()
        assert sample_of(cut(rows, size), seed=4, most_entries=most).indices.tolist() != whole.indices.tolist()


def test_every_row_is_as_likely_to_be_drawn() -> None:
    rows, times = numbered(60), 400
    drawn = np.concatenate([sample_of(cut(rows, 7), most_entries=10, seed=seed).indices for seed in range(times)])
    counts = np.bincount(drawn, minlength=60)
    expected = times * 10 / 60
    assert counts.sum() == times * 10
    assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-squared of 59 degrees: once in 10 000


def test_dense_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="sparse rows"):
        sample_of([Batch(np.ones((2, 3), np.float32))])


def numbered(count: int) -> Csr:
    """Rows of one feature each: their number."""
    indices = np.arange(count, dtype=np.uint32)
    return Csr(np.arange(count + 1, dtype=np.uint64), indices, np.ones(count, np.float32), count)


def cut(rows: Csr, size: int) -> list[Batch]:
    return [Batch(rows.slice(k, min(k + size, len(rows)))) for k in range(0, len(rows), size)]


def _sets(rows: Csr | module.RowSample) -> list[set[int]]:
    return [set(rows.indices[int(a) : int(b)].tolist()) for a, b in zip(rows.indptr[:-1], rows.indptr[1:])]
