"""Algorithm 3 on small examples, the counting before it, the sample, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from penstock.batch import Batch, Csr
from penstock.bigmodel import partition as module
from penstock.bigmodel.partition import Cost, most_frequent, partition, partition_reference
from penstock.bigmodel.prepare import sample_of
from penstock.errors import BudgetError, DataError, UsageError


def rows_of(*rows: list[int], dtype: type = np.uint32) -> Csr:
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    indices = np.array([feature for row in rows for feature in row], dtype)
    return Csr(indptr, indices, np.ones(len(indices), np.float32), int(indices.max(initial=0)) + 1)


def zipf_rows(rows: int, length: int, *, dims: int, seed: int = 0) -> Csr:
    drawn = np.exp(np.random.default_rng(seed).random(rows * length) * np.log(dims)).astype(np.uint64)
    indptr = np.arange(rows + 1, dtype=np.uint64) * np.uint64(length)
    return Csr(indptr, drawn * np.uint64(2**40 + 15), np.ones(len(drawn), np.float32), 2**63)


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
    for way in (partition, partition_reference):
        found = way(sample, keep=2, cost=Cost(1.0, 0.0), counts=counts)
        assert lists(found) == [[2], [8]]
        assert found.frequencies.tolist() == [30, 70]
        assert found.rows.tolist() == [2, 0]
    with pytest.raises(UsageError, match="names a feature twice"):
        partition(sample, keep=2, cost=Cost(1.0, 0.0), counts=(np.array([1, 1]), np.array([5, 5])))
    with pytest.raises(UsageError, match="2 features and 1 counts"):
        partition(sample, keep=2, cost=Cost(1.0, 0.0), counts=(np.array([1, 2]), np.array([5])))


@pytest.mark.parametrize("sample", [rows_of(), rows_of([], []), rows_of([4])])
def test_hardly_any_rows(sample: Csr) -> None:
    found = partition(sample, keep=3, cost=Cost(1.0, 1.0))
    assert lists(found) == lists(partition_reference(sample, keep=3, cost=Cost(1.0, 1.0)))
    assert len(found) == len(sample.indices)
    assert "times fewer" in str(found)


def test_the_largest_features_are_told_apart() -> None:
    top = 2**64 - 1
    found = partition(rows_of([top, 0], [top, 0], [top - 1], dtype=np.uint64), keep=3, cost=Cost(1.0, 1.0))
    assert lists(found) == [[0, top], [top - 1]]


def test_the_report_says_what_was_won() -> None:
    lines = str(partition(FIGURE_2, keep=6, cost=Cost(1.0, 1.0))).splitlines()
    assert lines[0] == "6 features in 4 partitions, the largest of 2"
    assert lines[1] == "requests of 12 sampled rows: 30 → 19 (1.6 times fewer)"


def test_memory_that_does_not_suffice_is_refused_with_what_would() -> None:
    sample = zipf_rows(50, 30, dims=10_000)
    whole = partition(sample, keep=300, cost=Cost(1.0, 0.01))
    assert lists(partition(sample, keep=300, cost=Cost(1.0, 0.01), memory=10**6)) == lists(whole)
    with pytest.raises(
        BudgetError, match=r"partitioning 300 features takes .* memory=100 kB; keep=\d+ would fit"
    ) as got:
        partition(sample, keep=300, cost=Cost(1.0, 0.01), memory=100_000)
    fits = int(str(got.value).rpartition("keep=")[2].split()[0])
    assert len(partition(sample, keep=fits, cost=Cost(1.0, 0.01), memory=100_000).features) == fits
    with pytest.raises(BudgetError, match="smaller sample"):
        partition(sample, keep=300, cost=Cost(1.0, 0.01), memory=100)


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(UsageError, match="keep=0"):
        partition(FIGURE_2, keep=0, cost=Cost(1.0, 1.0))
    for indptr in ([0, 9], [0, 2, 1], []):
        broken = Csr(np.array(indptr, np.uint64), np.arange(3, dtype=np.uint32), np.ones(3, np.float32), 3)
        with pytest.raises(DataError, match="does not cut its 3 indices into rows"):
            partition(broken, keep=2, cost=Cost(1.0, 1.0))


@pytest.mark.parametrize("keep", [1, 7, 100, 5000])
@pytest.mark.parametrize("bits", [4, 8, 20])
def test_the_most_frequent_are_exact_however_coarse_the_sketch(
    keep: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CELL_BITS", bits)
    sample = zipf_rows(200, 40, dims=20_000)
    counts = Counter(feature for row in _sets(sample) for feature in row)
    expected = sorted(counts, key=lambda f: (-counts[f], f))[:keep]
    kept, frequencies = most_frequent(sample, keep=keep)
    assert kept.tolist() == expected
    assert frequencies.tolist() == [counts[f] for f in expected]


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
    assert (len(sample), sample.rows_seen) == (12, 12)
    assert lists(partition(sample, keep=6, cost=Cost(1.0, 1.0))) == [[2, 3], [6], [1, 5], [4]]


def test_a_sample_of_nothing_is_empty() -> None:
    assert (len(sample_of([])), sample_of([]).rows_seen) == (0, 0)


def test_a_sample_takes_its_share_and_no_more_than_its_entries() -> None:
    rows = numbered(20_000)
    assert len(sample_of(cut(rows, 700), least=50, share=0.001)) == 50
    assert 1800 < len(sample_of(cut(rows, 700), least=50, share=0.1)) < 2200
    assert len(sample_of(cut(rows, 700), least=500, share=0.1, most_entries=600).indices) == 600


@pytest.mark.parametrize("size", [1, 37, 1000, 5000])
def test_a_sample_hangs_on_the_seed_not_on_the_batches(size: int) -> None:
    rows = numbered(5000)
    for options in ({"least": 20}, {"least": 20, "share": 0.1}, {"least": 300, "share": 0.0, "most_entries": 90}):
        whole = sample_of([Batch(rows)], seed=3, **options)
        assert sample_of(cut(rows, size), seed=3, **options).indices.tolist() == whole.indices.tolist()
        assert sample_of(cut(rows, size), seed=4, **options).indices.tolist() != whole.indices.tolist()


def test_every_row_is_as_likely_to_be_drawn() -> None:
    rows, times = numbered(60), 400
    drawn = np.concatenate([sample_of(cut(rows, 7), least=10, seed=seed).indices for seed in range(times)])
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


def _sets(rows: Csr) -> list[set[int]]:
    return [set(rows.indices[int(a) : int(b)].tolist()) for a, b in zip(rows.indptr[:-1], rows.indptr[1:])]
