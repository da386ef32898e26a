"""The measures of randomness on cases whose answer is known, and the paper's figure 3 in numbers."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from penstock.errors import UsageError
from penstock.shuffle import ORDERS, CorgiPile, Shape
from penstock.shuffle.quality import alpha, block_variance, block_variance_error, describe_hd, visit
from tests.order_quality import label_balance, rank_correlation

# The paper's example: 1000 rows in blocks of 20, the first half negative, a tenth of the data held.
EXAMPLE = Shape(np.full(50, 20), held_rows=100)


def judged(name: str, shape: Shape, batch: int = 20, epoch: int = 1) -> tuple[float, float]:
    """Mean rank correlation and label balance over ten seeds, for data sorted by label."""
    runs = [visit(ORDERS[name], replace(shape, seed=seed), epoch) for seed in range(10)]
    half = shape.rows // 2
    return np.mean([rank_correlation(r) for r in runs]), np.mean([label_balance(r >= half, batch) for r in runs])


def test_rank_correlation_is_spearmans_with_ties():
    rng = np.random.default_rng(0)
    for visited in (np.arange(9), np.arange(9)[::-1], rng.permutation(50), rng.integers(0, 20, 60)):
        expected = stats.spearmanr(np.arange(len(visited)), visited).statistic
        assert rank_correlation(visited) == pytest.approx(expected)
    assert rank_correlation(np.zeros(5, np.int64)) == 0


def test_label_balance_is_one_for_a_shuffle_and_the_batch_size_for_sorted_labels():
    rng = np.random.default_rng(0)
    assert label_balance(np.repeat([0, 1], 25_600), 256) == pytest.approx(256)
    assert label_balance(np.repeat(["a", "b", "c"], 25_600), 256) == pytest.approx(256)
    assert label_balance(rng.permutation(np.repeat([0, 1], 100_000)), 100) == pytest.approx(1, abs=0.1)
    assert label_balance(rng.permutation(np.repeat([0, 1, 2], 100_000)), 100) == pytest.approx(1, abs=0.1)
    assert label_balance(np.tile([0, 1], 500), 20) == 0


def test_measures_refuse_what_they_cannot_judge():
    for call, message in (
        (lambda: block_variance([np.ones((4, 2))], 10), "two blocks or more"),
        (lambda: block_variance([np.ones((1, 2)), np.ones((4, 2))], 10), "two rows or more"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_figure_3_in_numbers():
    correlation = {name: judged(name, EXAMPLE)[0] for name in ORDERS}
    balance = {name: judged(name, EXAMPLE)[1] for name in ORDERS}
    assert correlation["none"] == 1
    assert balance["none"] == pytest.approx(20)
    # A sliding window leaves the order nearly linear; the reservoir is better, and far from a shuffle.
    assert correlation["sliding-window"] > 0.9
    assert balance["sliding-window"] > 10
    assert correlation["mrs"] < correlation["sliding-window"]
    assert 3 < balance["mrs"] < balance["sliding-window"]
    for name in ("once", "epoch", "global"):
        assert abs(correlation[name]) < 0.05
        assert balance[name] == pytest.approx(1, abs=0.2)
    assert abs(correlation["corgipile"]) < 0.2
    assert balance["corgipile"] < balance["mrs"]
    assert balance["block-only"] == pytest.approx(20, rel=0.1)


def test_small_blocks_make_corgipile_a_shuffle_and_large_ones_do_not():
    rows, held = 40_000, 4_000
    by_block = {b: judged("corgipile", Shape(np.full(rows // b, b), held), 100)[1] for b in (5, 40, 1000)}
    assert by_block[5] == pytest.approx(1, abs=0.15)
    assert by_block[5] < by_block[40] < by_block[1000]
    assert by_block[1000] > 10
    assert judged("sliding-window", Shape(np.full(8000, 5), held), 100)[1] > 50


# Row groups of 16 blocks, a tenth of the data held.
ROW_GROUPS = Shape(np.full(1024, 10), held_rows=1024, units=np.repeat(np.arange(64), 16))


def unit_balance(labels: np.ndarray, open_units: int) -> float:
    shapes = [replace(ROW_GROUPS, seed=seed, open_units=open_units) for seed in range(10)]
    return np.mean([label_balance(labels[visit(CorgiPile(), shape, 0)], 20) for shape in shapes])


def test_many_open_units_shuffle_sorted_row_groups_better_than_few():
    labels = np.arange(ROW_GROUPS.rows) >= ROW_GROUPS.rows // 2
    assert unit_balance(labels, 32) < 2 < unit_balance(labels, 4)


def test_rows_sorted_inside_row_groups_are_shuffled_though_units_are_read_side_by_side():
    # Units begun in step would come in step: every window all negative or all positive, a balance of 16.
    labels = np.arange(ROW_GROUPS.rows) % 160 >= 80
    assert unit_balance(labels, 32) < 2


def vectors(blocks: int, b: int, clustered: bool, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = np.repeat([-1.0, 1.0], blocks * b // 2)
    y = y if clustered else rng.permutation(y)
    return np.stack([y, 0.01 * rng.normal(size=blocks * b)], axis=1).reshape(blocks, b, 2)


def test_block_variance_is_one_for_shuffled_rows_and_b_for_clustered_ones():
    b = 200
    assert block_variance(list(vectors(400, b, clustered=False)), b) == pytest.approx(1, abs=0.25)
    assert block_variance(list(vectors(400, b, clustered=True)), b) == pytest.approx(b, rel=0.01)


def test_block_variance_of_a_sample_is_not_biased_by_its_size():
    b, k = 200, 10
    estimates = []
    for seed in range(12):
        sampled = [block[:k] for block in vectors(400, b, clustered=False, seed=seed)]
        estimates.append(block_variance(sampled, b))
    # Taken as they are, means of 10 of 200 rows would say h_D = 20.
    assert np.mean(estimates) == pytest.approx(1, abs=1.2)
    error = block_variance_error(sampled, b)
    assert 0.2 < error < 5
    assert block_variance([block[:k] for block in vectors(400, b, clustered=True)], b) == pytest.approx(b, rel=0.02)


def test_half_clustered_rows_lie_in_between():
    b = 100
    mixed = np.concatenate([vectors(100, b, True), vectors(100, b, False)], axis=2)
    assert block_variance(list(mixed), b) == pytest.approx(b / 2, rel=0.1)


def test_identical_rows_everywhere_count_as_shuffled():
    assert block_variance([np.ones((3, 2))] * 4, 10) == 1
    assert block_variance_error([np.ones((3, 2))] * 4, 10) == 0


def test_the_theorems_factors():
    assert alpha(1, 100) == 0
    assert alpha(100, 100) == 1
    assert alpha(1, 1) == 1
    assert alpha(0.2, 100) == 0


@pytest.mark.parametrize(
    ("h_D", "error", "words"),
    [
        (1.2, 0.0, "as if shuffled"),
        (15.0, 0.0, "somewhat clustered by label"),
        (300.0, 0.0, "are clustered by label: training in stored order would lose accuracy"),
        (15.0, 7.0, "as if shuffled"),
    ],
)
def test_a_sentence_says_what_it_means(h_D, error, words):
    assert words in describe_hd(h_D, 1000, error=error, by="label")
