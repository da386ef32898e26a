"""Losses and learning rates: slopes are derivatives, schedules and their native form agree, names are checked."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UnknownOptionError, UsageError
from penstock.sgd import losses, rates
from penstock.sgd.scalar import rate_at


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_slope_is_the_derivative_of_the_value(name: str) -> None:
    loss, rng, eps = losses.find_loss(name), np.random.default_rng(1), 1e-6
    scores = rng.standard_normal((50, 3)) if loss.many else rng.standard_normal(50)
    y = rng.integers(0, 3, 50).astype(float) if loss.many else rng.choice([-1.0, 1.0], 50)
    slope = loss.slope(scores, y)
    assert slope.shape == scores.shape
    for c in range(3 if loss.many else 1):
        nudge = np.zeros_like(scores)
        if loss.many:
            nudge[:, c] = eps
        else:
            nudge[:] = eps
        numeric = (loss.value(scores + nudge, y) - loss.value(scores - nudge, y)) / (2 * eps)
        np.testing.assert_allclose(numeric, slope[:, c] if loss.many else slope, atol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_losses_survive_large_scores(name: str) -> None:
    loss = losses.find_loss(name)
    scores = np.array([[1e4, -1e4], [-1e4, 1e4]]) if loss.many else np.array([1e4, -1e4])
    y = np.array([0.0, 0.0]) if loss.many else np.array([1.0, 1.0])
    value = loss.value(scores, y)
    assert value[0] == 0
    assert np.isfinite(value).all()
    assert np.isfinite(loss.slope(scores, y)).all()


def test_metrics() -> None:
    assert {name: loss.metric for name, loss in losses.LOSSES.items()} == {
        "logistic": "accuracy",
        "hinge": "accuracy",
        "softmax": "accuracy",
        "squared": "r2",
    }


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(UnknownOptionError, match=r"loss='logisitc'.*hinge, logistic.*did you mean 'logistic'"):
        losses.find_loss("logisitc")
    with pytest.raises(UnknownOptionError, match=r"rate='linear'.*auto, constant, exponential, inverse-scaling"):
        rates.make_rate("linear", 0.1)


@pytest.mark.parametrize("name", rates.RATES)
@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (3, 17), (40, 10**6)])
def test_native_rate_equals_the_schedule(name: str, epoch: int, step: int) -> None:
    rate = rates.make_rate(name, 0.2, bounded=True, decay=0.9, power=0.4)
    base, power = rate.native(epoch)
    assert rate_at(base, power, float(step)) == pytest.approx(rate.at(epoch, step))


def test_schedules() -> None:
    assert rates.exponential(0.1).at(2, 999) == pytest.approx(0.1 * 0.95**2)
    assert rates.Rate(0.1, power=1.0).at(5, 9) == pytest.approx(0.01)
    assert rates.Rate(0.1).at(5, 9) == 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rates.exponential(0.0), "learning_rate=0.0 must be a positive"),
        (lambda: rates.Rate(float("nan")), "learning_rate=nan must be a positive"),
        (lambda: rates.exponential(0.1, decay=1.5), "decay=1.5 must be above 0 and at most 1"),
        (lambda: rates.Rate(0.1, power=-1.0), "power=-1.0 must not be negative"),
    ],
)
def test_wrong_rates_are_refused(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()  # type: ignore[operator]  # the table's callables have no common type
