"""Optimisers that ask and are told: they reach what scikit-learn reaches, step back, fail alone, and resume."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import Lasso, LogisticRegression

from penstock.batch import Floats
from penstock.errors import ModelFileError, UsageError
from penstock.sgd.full import Doubles, Sums, sums
from penstock.sgd.lbfgs import Descent, Lbfgs
from penstock.sgd.losses import find_loss
from penstock.sgd.terms import CONVERGED, FAILED, SPENT, STALLED, STATUS

Search = Lbfgs | Descent


def draw(rows: int = 800, width: int = 12, *, loss: str = "logistic", seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, width)) * rng.uniform(0.3, 3, width)).astype(np.float32)
    plane = rng.standard_normal(width) * (rng.random(width) < 0.6)
    score = x @ plane + 2 * rng.standard_normal(rows) + 0.5
    return x, (score if loss == "squared" else np.where(score > 0, 1, -1)).astype(np.float32)


def run(search: Search, x: Floats, y: Floats, *, loss: str = "logistic", most: int = 2000, **rows: Any) -> Search:
    for _ in range(most):
        if search.done.all():
            break
        search.tell(sums(x, y, at=search.ask(), loss=loss, **rows))
    return search


def plain_objective(w: Doubles, x: Floats, y: Floats, *, l1: float, l2: float, loss: str = "logistic") -> float:
    z = x.astype(float) @ w[:-1] + w[-1]
    value = find_loss(loss).value(z, y.astype(float)).mean()
    return float(value + l2 / 2 * (w[:-1] @ w[:-1]) + l1 * np.abs(w[:-1]).sum())


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_with_l2_it_reaches_scipys_minimum(loss: str) -> None:
    x, y = draw(loss=loss)
    l2 = np.array([1e-1, 1e-2, 1e-4, 0.0])
    search = run(Lbfgs(np.zeros((13, 4)), l2=l2, rate=[1, 0.5, 1, 0.3], tolerance=1e-5), x, y, loss=loss)
    assert np.isin(search.status, (CONVERGED, STALLED)).all()
    for c in range(4):

        def smooth(w: Doubles, c: int = c) -> tuple[float, Doubles]:
            slope = find_loss(loss).slope(x.astype(float) @ w[:-1] + w[-1], y.astype(float)) / len(y)
            gradient = np.append(x.T.astype(float) @ slope + l2[c] * w[:-1], slope.sum())
            return plain_objective(w, x, y, l1=0, l2=l2[c], loss=loss), gradient

        least = minimize(smooth, np.zeros(13), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}).fun
        assert search.loss[c] == pytest.approx(least, rel=1e-6)
        reached = plain_objective(search.best[:, c], x, y, l1=0, l2=l2[c], loss=loss)
        assert reached == pytest.approx(least, rel=1e-6)


def test_with_l2_it_reaches_scikit_learns_logistic_regression() -> None:
    x, y = draw()
    search = run(Lbfgs(np.zeros((13, 1)), l2=1e-2, tolerance=1e-6), x, y)
    peer = LogisticRegression(C=1 / (1e-2 * len(y)), tol=1e-8, max_iter=5000).fit(x.astype(float), y)
    w = np.append(peer.coef_[0], peer.intercept_[0])
    assert search.loss[0] == pytest.approx(plain_objective(w, x, y, l1=0, l2=1e-2), rel=1e-6)
    np.testing.assert_allclose(search.best[:, 0], w, atol=1e-3)


def test_with_l1_it_reaches_saga() -> None:
    x, y = draw()
    l1 = np.array([0.1, 0.03, 0.003])
    search = run(Lbfgs(np.zeros((13, 3)), l1=l1, tolerance=1e-6), x, y)
    for c in range(3):
        peer = LogisticRegression(l1_ratio=1, C=1 / (l1[c] * len(y)), solver="saga", tol=1e-8, max_iter=20_000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how penalties are spelt differs between versions
            peer.fit(x.astype(float), y)
        w = np.append(peer.coef_[0], peer.intercept_[0])
        assert search.loss[c] == pytest.approx(plain_objective(w, x, y, l1=l1[c], l2=0), rel=1e-4)
        assert ((search.best[:-1, c] == 0) == (np.abs(peer.coef_[0]) < 1e-6)).all()
    assert (search.best[:-1, 0] == 0).sum() > (search.best[:-1, 2] == 0).sum()


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_l1_of_the_squared_loss_is_the_lasso(kind: type[Search]) -> None:
    x, y = draw(loss="squared")
    search = run(
        kind(np.zeros((13, 1)), l1=0.3, rate=1.0 if kind is Lbfgs else 0.08, tolerance=1e-5), x, y, loss="squared"
    )
    peer = Lasso(alpha=0.3, tol=1e-10, max_iter=100_000).fit(x.astype(float), y)
    w = np.append(peer.coef_, peer.intercept_)
    assert search.loss[0] == pytest.approx(plain_objective(w, x, y, l1=0.3, l2=0, loss="squared"), rel=1e-5)


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_the_objective_never_rises_and_is_that_of_the_best_weights(kind: type[Search]) -> None:
    x, y = draw()
    l1, l2 = [0.0, 0.01, 0.0], [0.01, 0.0, 0.0]
    search = kind(np.zeros((13, 3)), l1=l1, l2=l2, rate=[1, 0.3, 0.1])
    last = np.full(3, np.inf)
    for _ in range(30):
        search.tell(sums(x, y, at=search.ask()))
        assert (search.loss <= last).all()
        last = search.loss.copy()
    for c in range(3):
        assert last[c] == pytest.approx(plain_objective(search.best[:, c], x, y, l1=l1[c], l2=l2[c]), rel=1e-6)


def test_gradient_descent_gets_there_too() -> None:
    x, y = draw()
    fast = run(Lbfgs(np.zeros((13, 1)), l2=0.1, tolerance=1e-6), x, y)
    slow = run(Descent(np.zeros((13, 1)), l2=0.1, rate=0.3, tolerance=1e-4), x, y)
    assert slow.status[0] == CONVERGED
    assert slow.loss[0] == pytest.approx(fast.loss[0], rel=1e-4)
    assert slow.evaluations[0] > fast.evaluations[0]


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_a_config_that_diverges_harms_no_other(kind: type[Search]) -> None:
    x, y = draw(loss="squared")
    calm = run(kind(np.zeros((13, 2)), l2=0.01, rate=0.05), x, y, loss="squared")
    wild = kind(np.zeros((13, 3)), l2=0.01, rate=[0.05, 1e30, 0.05])
    run(wild, x, y, loss="squared")
    assert wild.failed.tolist() == [False, True, False]
    assert STATUS[wild.status[1]] == "diverged"
    np.testing.assert_array_equal(wild.best[:, [0, 2]], calm.best)
    assert np.isfinite(wild.best).all()


def test_too_high_a_rate_is_stepped_back_from() -> None:
    x, y = draw()
    search = run(Lbfgs(np.zeros((13, 2)), l2=0.01, rate=[1, 1e9], tolerance=1e-4), x, y)
    assert not search.failed.any()
    assert search.loss[1] == pytest.approx(search.loss[0], rel=1e-4)


def test_a_config_that_never_moved_within_its_epochs_has_failed() -> None:
    x, y = draw()
    search = run(Lbfgs(np.zeros((13, 3)), rate=[1, 1e9, 1e9], epochs=[5, 5, 1]), x, y)
    assert search.status.tolist() == [SPENT, FAILED, SPENT]
    assert search.evaluations.tolist() == [5, 5, 1]
    assert search.loss[1] == pytest.approx(np.log(2))


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
@pytest.mark.parametrize("what", ["nan in the data", "no rows to train on"])
def test_a_start_without_a_finite_objective_fails_at_once(kind: type[Search], what: str) -> None:
    x, y = draw(50)
    weight = np.ones(50, np.float32)
    if what == "nan in the data":
        x[3, 2] = np.nan
    else:
        weight[:] = 0
    search = run(kind(np.zeros((13, 2))), x, y, weight=weight)
    assert search.failed.all()
    assert (search.evaluations == 1).all()
    assert not search.best.any()


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_configs_have_epochs_of_their_own(kind: type[Search]) -> None:
    x, y = draw()
    search = run(kind(np.zeros((13, 3)), l2=1e-4, rate=0.1, epochs=[3, 6, 4], tolerance=0), x, y)
    assert search.evaluations.tolist() == [3, 6, 4]
    assert (search.status == SPENT).all()
    alone = run(kind(np.zeros((13, 1)), l2=1e-4, rate=0.1, epochs=6, tolerance=0), x, y)
    np.testing.assert_allclose(search.best[:, 1], alone.best[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_held_out_sums_belong_to_the_best_weights(kind: type[Search]) -> None:
    x, y = draw()
    hold = np.random.default_rng(1).random(len(y)) < 0.25
    search = run(kind(np.zeros((13, 2)), l2=[0.1, 0.001], rate=[1.0, 50.0], epochs=7), x, y, hold=hold)
    again = sums(x, y, at=search.best, hold=hold)
    np.testing.assert_array_equal(search.held_loss, again.held_loss)
    np.testing.assert_array_equal(search.held_right, again.held_right)
    np.testing.assert_array_equal(search.held_weight, [again.held_weight] * 2)


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_an_intercept_can_be_left_out(kind: type[Search]) -> None:
    x, y = draw()
    search = run(kind(np.zeros((13, 1)), l2=0.1, rate=0.3, intercept=False, epochs=20), x, y)
    assert search.best[-1, 0] == 0
    assert search.best[:-1].any()


def test_weights_asked_for_are_float32_and_done_configs_repeat_their_best() -> None:
    x, y = draw()
    search = Lbfgs(np.zeros((13, 2)), l2=0.01, epochs=[2, 8])
    for _ in range(5):
        at = search.ask()
        np.testing.assert_array_equal(at, at.astype(np.float32))
        search.tell(sums(x, y, at=at))
    np.testing.assert_array_equal(search.ask()[:, 0], search.best[:, 0])


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
def test_resumed_equals_uninterrupted(kind: type[Search]) -> None:
    x, y = draw()

    def fresh() -> Search:
        return kind(np.zeros((13, 3)), l1=[0, 0.01, 0], l2=0.001, rate=[1, 0.5, 30], epochs=12)

    whole = run(fresh(), x, y)
    broken = fresh()
    for _ in range(5):
        broken.tell(sums(x, y, at=broken.ask()))
    resumed = fresh()
    resumed.restore(broken.state())
    run(resumed, x, y)
    for name, value in whole.state().items():
        np.testing.assert_array_equal(resumed.state()[name], value, err_msg=name)


def test_a_state_of_other_data_is_refused_and_changes_nothing() -> None:
    x, y = draw()
    search = Lbfgs(np.zeros((13, 2)))
    search.tell(sums(x, y, at=search.ask()))
    before = search.state()
    with pytest.raises(ModelFileError, match="shape"):
        search.restore(Lbfgs(np.zeros((5, 2))).state())
    with pytest.raises(ModelFileError, match="missing"):
        search.restore({})
    for name, value in before.items():
        np.testing.assert_array_equal(search.state()[name], value)


@pytest.mark.parametrize("kind", [Lbfgs, Descent])
@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"l1": -1.0}, "l1=-1.0"),
        ({"l2": [0.1, np.nan]}, "l2=nan"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"rate": [1.0, 1.0, 1.0]}, "2 configs"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 2.5}, r"epochs=2\.5"),
        ({"tolerance": -1e-4}, "tolerance"),
    ],
)
def test_terms_that_cannot_work_are_named(kind: type[Search], terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        kind(np.zeros((3, 2)), **terms)


def test_misfits_are_refused() -> None:
    with pytest.raises(UsageError, match="history=0"):
        Lbfgs(np.zeros((3, 2)), history=0)
    with pytest.raises(UsageError, match="not weights"):
        Lbfgs(np.zeros(3))
    for search in (Lbfgs(np.zeros((3, 2))), Descent(np.zeros((3, 2)))):
        with pytest.raises(UsageError, match=r"\(3, 2\)"):
            search.tell(Sums.zeros(2, 3))
