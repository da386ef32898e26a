"""Sums of a full pass against their definition, dense and sparse; shards against the whole; losses refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.errors import FeatureError, UnknownOptionError, UsageError
from penstock.sgd import full
from penstock.sgd.full import Sums, sums
from penstock.sgd.losses import find_loss
from penstock.sgd.losses.hinge import BAND
from penstock.sgd.losses.softmax import softmax_run
from penstock.sgd.scalar import RUN

Rows = tuple[Floats, Floats, Floats, NDArray[np.bool_]]


def draw(rows: int, width: int, *, loss: str = "logistic", seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    score = x @ rng.standard_normal(width) + rng.standard_normal(rows) + 0.3
    y = score if loss == "squared" else np.where(score > 0, 1, -1)
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], rows)
    return x, y.astype(np.float32), weight.astype(np.float32), rng.random(rows) < 0.2


def csr_of(x: Floats, *, wide: bool = False) -> Csr:
    row, column = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(x)))]).astype(np.uint64)
    return Csr(indptr, column.astype(np.uint64 if wide else np.uint32), x[row, column], x.shape[1])


def sums_reference(x: Floats, y: Floats, weight: Floats, hold: NDArray[np.bool_], at: Floats, loss: str) -> Sums:
    found, width = find_loss(loss), x.shape[1]
    total = Sums.zeros(width, at.shape[1])
    train, held = np.where(hold, 0, weight).astype(float), np.where(hold, weight, 0).astype(float)
    for c in range(at.shape[1]):
        z = x.astype(float) @ at[:-1, c].astype(float) + float(at[-1, c])
        slope = found.slope(z, y.astype(float)) * train
        value = found.value(z, y.astype(float))
        total.loss[c], total.held_loss[c] = value @ train, value @ held
        total.gradient[:-1, c], total.gradient[-1, c] = x.T.astype(float) @ slope, slope.sum()
        total.held_right[c] = ((z - y) ** 2 if loss == "squared" else found.hits(z, y)) @ held
    return Sums(total.loss, total.gradient, train.sum(), total.held_loss, total.held_right, held.sum())


def assert_same(found: Sums, expected: Sums, tolerance: float) -> None:
    scale = max(expected.weight, 1.0)
    for name in ("loss", "gradient", "held_loss"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=name)
    # A score within rounding of zero may fall on either side.
    np.testing.assert_allclose(found.held_right, expected.held_right, rtol=tolerance, atol=2.0)
    assert found.weight == pytest.approx(expected.weight)
    assert found.held_weight == pytest.approx(expected.held_weight)


@pytest.mark.parametrize("layout", ["dense", "sparse", "wide"])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize(("rows", "width", "configs"), [(0, 3, 2), (1, 1, 1), (700, 7, 12), (3000, 40, 17)])
def test_sums_are_what_they_say(layout: str, loss: str, rows: int, width: int, configs: int) -> None:
    x, y, weight, hold = draw(rows, width, loss=loss)
    if layout != "dense":
        x[np.random.default_rng(1).random(x.shape) < 0.7] = 0
    at = np.random.default_rng(2).standard_normal((width + 1, configs)).astype(np.float32)
    given = x if layout == "dense" else csr_of(x, wide=layout == "wide")
    found = sums(given, y, at=at, loss=loss, weight=weight, hold=hold)
    assert_same(found, sums_reference(x, y, weight, hold, at, loss), 1e-6)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_without_weights_every_row_counts_once(layout: str) -> None:
    x, y, _, _ = draw(300, 5)
    at = np.full((6, 2), 0.1)
    given = x if layout == "dense" else csr_of(x)
    plain = sums(given, y, at=at)
    ones = sums(given, y, at=at, weight=np.ones(300, np.float32), hold=np.zeros(300, bool))
    empty = sums(given, y, at=at, weight=np.zeros(0, np.float32), hold=np.zeros(0, bool))
    assert plain.weight == 300
    assert plain.held_weight == 0
    for other in (ones, empty):
        np.testing.assert_array_equal(plain.gradient, other.gradient)
        np.testing.assert_array_equal(plain.loss, other.loss)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_shards_in_order_add_up_to_the_whole_and_the_same_every_time(layout: str) -> None:
    x, y, weight, hold = draw(5000, 11)
    at = np.random.default_rng(3).standard_normal((12, 4))
    cuts = [0, 13, 2100, 2101, 5000]

    def sharded() -> Sums:
        total = Sums.zeros(11, 4)
        for low, high in itertools.pairwise(cuts):
            rows = x[low:high] if layout == "dense" else csr_of(x[low:high])
            total = total + sums(rows, y[low:high], at=at, weight=weight[low:high], hold=hold[low:high])
        return total

    whole = sums(x if layout == "dense" else csr_of(x), y, at=at, weight=weight, hold=hold)
    first, again = sharded(), sharded()
    assert_same(first, whole, 1e-6)
    np.testing.assert_array_equal(first.gradient, again.gradient)
    np.testing.assert_array_equal(first.loss, again.loss)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_rows_held_out_leave_no_trace_in_training(layout: str) -> None:
    x, y, weight, hold = draw(600, 6)
    at = np.random.default_rng(4).standard_normal((7, 3))
    x[hold] *= 50
    kept = sums(x[~hold], y[~hold], at=at, weight=weight[~hold])
    rows = x if layout == "dense" else csr_of(x)
    found = sums(rows, y, at=at, weight=weight, hold=hold)
    np.testing.assert_allclose(found.loss, kept.loss, rtol=1e-6)
    np.testing.assert_allclose(found.gradient, kept.gradient, rtol=1e-5, atol=1e-4)
    assert (found.held_loss > 0).all()


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_counts_only_where_it_has_weight(layout: str, value: float) -> None:
    x, y, weight, hold = draw(300, 4)
    weight[7], hold[7] = 0, False
    clean = sums(x, y, at=np.ones((5, 2)), weight=weight, hold=hold)
    x[7, 1] = value
    found = sums(x if layout == "dense" else csr_of(x), y, at=np.ones((5, 2)), weight=weight, hold=hold)
    assert_same(found, clean, 1e-6)
    weight[7] = 1
    found = sums(x if layout == "dense" else csr_of(x), y, at=np.ones((5, 2)), weight=weight, hold=hold)
    assert not np.isfinite(found.gradient).all()


def test_a_config_past_all_bounds_harms_no_other() -> None:
    x, y, weight, hold = draw(300, 4)
    at = np.ones((5, 3))
    alone = sums(x, y, at=at, weight=weight, hold=hold)
    at[:, 1] = 1e300
    found = sums(x, y, at=at, weight=weight, hold=hold)
    assert not np.isfinite(found.loss[1])
    np.testing.assert_array_equal(found.loss[[0, 2]], alone.loss[[0, 2]])
    np.testing.assert_array_equal(found.gradient[:, [0, 2]], alone.gradient[:, [0, 2]])


def test_the_loss_is_right_from_sure_to_surely_wrong() -> None:
    z = np.linspace(-80, 80, RUN).astype(np.float32)
    one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
    for score in z:
        y = np.ones(1, np.float32)
        slope = np.array([score])
        loss, pushed, _, _ = find_loss("logistic").run(slope, y, one, none, np.float32(0))
        exact = float(score)
        assert loss == pytest.approx(np.logaddexp(0, -exact), rel=1e-5)
        assert slope[0] == pushed == pytest.approx(-1 / (1 + np.exp(exact)), rel=1e-5)


def test_scratch_is_a_tile_however_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, weight, hold = draw(2000, 3)
    tall = []
    inner = full.bend_tile

    def watched(code: int, z: Floats, *rest: object) -> None:
        tall.append(len(z))
        inner(code, z, *rest)

    monkeypatch.setattr(full, "bend_tile", watched)
    monkeypatch.setattr(full, "_TILE", 1024)
    sums(x, y, at=np.ones((4, 2)), weight=weight, hold=hold)
    assert max(tall) == RUN
    assert sum(tall) == 2000


def test_sums_of_live_configs_are_spread_over_all() -> None:
    x, y, _, _ = draw(50, 3)
    at = np.random.default_rng(5).standard_normal((4, 3))
    live = np.array([True, False, True])
    found = sums(x, y, at=at[:, live]).spread(live)
    whole = sums(x, y, at=at)
    np.testing.assert_allclose(found.gradient[:, live], whole.gradient[:, live], rtol=1e-5)
    assert not found.gradient[:, 1].any()
    assert found.weight == whole.weight


def test_the_hinge_is_smoothed_for_training_and_true_for_held_out_rows() -> None:
    x, y, weight, hold = draw(700, 4)
    at = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    found, expected = sums(x, y, at=at, loss="hinge", weight=weight, hold=hold), []
    band = float(BAND)
    for c in range(3):
        gap = 1 - y * (x.astype(float) @ at[:-1, c] + at[-1, c])
        inside = (gap > 0) & (gap < band)
        assert inside.any()
        value = np.where(inside, gap**2 / (2 * band), np.maximum(gap - band / 2, 0))
        slope = -y * np.where(inside, gap / band, gap > 0)
        train = np.where(hold, 0, weight)
        expected.append([train @ value, *(train * slope) @ x.astype(float), (train * slope).sum()])
        assert found.held_loss[c] == pytest.approx(np.where(hold, weight, 0) @ np.maximum(gap, 0), rel=1e-5)
        assert found.held_right[c] == pytest.approx(np.where(hold, weight, 0) @ ((gap < 1) | (gap == 1) & (y < 0)))
    np.testing.assert_allclose(np.vstack([found.loss, found.gradient]).T, expected, rtol=1e-4, atol=1e-3)


def test_a_loss_of_many_scores_names_the_solver_that_takes_it() -> None:
    x, y, _, _ = draw(5, 2)
    with pytest.raises(UsageError, match="solver='sgd'"):
        sums(x, y, at=np.zeros((3, 1)), loss="softmax")


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (700, 7)])
def test_softmax_slopes_and_sums_are_those_of_the_loss(rows: int, classes: int) -> None:
    rng, loss = np.random.default_rng(0), find_loss("softmax")
    scores, bias = 5 * rng.standard_normal((rows, classes)), rng.standard_normal(classes).astype(np.float32)
    y, share = rng.integers(0, classes, rows), rng.choice([0.0, 0.5, 2.0], rows, p=[0.2, 0.3, 0.5])
    share[0] = 1
    z, pushed = scores.T.astype(np.float32), np.ones(classes)
    given = z.T.astype(float) + bias
    z[:, share == 0] = np.nan  # rows of no weight may hold anything
    z = np.ascontiguousarray(z)
    value, right = softmax_run(z, y.astype(np.float32), share.astype(np.float32), bias, pushed)
    slopes = share[:, None] * loss.slope(given, y)
    np.testing.assert_allclose(z.T, slopes, atol=1e-6)
    np.testing.assert_allclose(pushed, 1 + slopes.sum(0), atol=1e-4)
    assert value == pytest.approx(share @ loss.value(given, y), rel=1e-6)
    assert right == share @ loss.hits(given, y)
    for label in (-1, classes, np.nan):
        assert np.isnan(
            softmax_run(z[:, :1].copy(), np.full(1, label, np.float32), np.ones(1, np.float32), bias, pushed)[0]
        )


def test_misfits_are_refused() -> None:
    x, y, weight, _ = draw(5, 2)
    with pytest.raises(UnknownOptionError, match="logistic"):
        sums(x, y, at=np.zeros((3, 1)), loss="logit")
    with pytest.raises(UsageError, match=r"\(3, configs\)"):
        sums(x, y, at=np.zeros((2, 1)))
    with pytest.raises(UsageError, match="4 entries for 5 rows"):
        sums(x, y[:4], at=np.zeros((3, 1)))
    with pytest.raises(UsageError, match="weight has 3 entries"):
        sums(x, y, at=np.zeros((3, 1)), weight=weight[:3])
    with pytest.raises(UsageError, match="float64"):
        sums(x.astype(np.float64), y, at=np.zeros((3, 1)))  # type: ignore[arg-type]  # the mistake in question
    with pytest.raises(UsageError, match="cannot be added"):
        Sums.zeros(2, 1) + Sums.zeros(3, 1)


def test_a_sparse_row_past_the_width_is_named() -> None:
    x = csr_of(np.ones((4, 3), np.float32))
    x.indices[7] = 3
    with pytest.raises(FeatureError, match="row 2 "):
        sums(x, np.ones(4, np.float32), at=np.zeros((4, 1)))
