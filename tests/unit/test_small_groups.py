"""A small group solved in one call against its twin, an Lbfgs told sums: same weights, same ends, same failures."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from penstock.batch import Csr, Floats
from penstock.errors import UsageError
from penstock.sgd.full import sums
from penstock.sgd.lbfgs import Lbfgs
from penstock.sgd.scalar import RUN
from penstock.sgd.small import Solved, solve_rows, solve_small
from penstock.sgd.terms import CONVERGED, FAILED, SPENT, STALLED

GRID: dict[str, Any] = {
    "rate": np.tile([1.0, 0.5, 0.1], 4),
    "l2": np.repeat([1e-2, 1e-3, 1e-4, 1e-5], 3),
}


def draw(rows: int, width: int, *, loss: str = "logistic", seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    score = x @ rng.standard_normal(width) + 2 * rng.standard_normal(rows)
    y = (score if loss == "squared" else np.where(score > 0, 1, -1)).astype(np.float32)
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], rows).astype(np.float32)
    return {"x": x, "y": y, "weight": weight, "hold": rng.random(rows) < 0.15}


def solve_reference(
    x: Floats | Csr,
    y: Floats,
    *,
    configs: int,
    loss: str = "logistic",
    weight: Any = None,
    hold: Any = None,
    start: Any = None,
    **terms: Any,
) -> Solved:
    width = x.width if isinstance(x, Csr) else x.shape[1]
    search = Lbfgs(np.zeros((width + 1, configs)) if start is None else start, **terms)
    while not search.done.all():
        search.tell(sums(x, y, at=search.ask(), loss=loss, weight=weight, hold=hold))
    return Solved(search.best, search.loss, search.held_loss, search.held_right, search.evaluations, search.status)


def assert_twins(found: Solved, twin: Solved) -> None:
    # At the bottom the last bit decides whether one more step is seen to fall; before it, both decide alike.
    ended = (CONVERGED, STALLED)
    settled = np.isin(found.status, ended) | np.isin(twin.status, ended)
    np.testing.assert_array_equal(found.evaluations[~settled], twin.evaluations[~settled])
    np.testing.assert_array_equal(found.status[~settled], twin.status[~settled])
    np.testing.assert_allclose(found.objective, twin.objective, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.w[:, ~settled], twin.w[:, ~settled], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(found.w, twin.w, rtol=5e-3, atol=5e-3)
    np.testing.assert_allclose(found.held_loss, twin.held_loss, rtol=5e-3, atol=1e-3)
    np.testing.assert_allclose(found.held_right, twin.held_right, rtol=1e-2, atol=2.0)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("l1", [0.0, 0.02])
@pytest.mark.parametrize(("rows", "width"), [(200, 40), (RUN, 3), (2 * RUN + 5, 6), (40, 1)])
def test_equals_its_twin(loss: str, l1: float, rows: int, width: int) -> None:
    data = draw(rows, width, loss=loss)
    terms: dict[str, Any] = {**GRID, "configs": 12, "l1": l1, "epochs": np.arange(1, 13) % 8 + 1, "loss": loss}
    assert_twins(solve_small(**data, **terms), solve_reference(**data, **terms))


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 300),
    width=st.integers(1, 12),
    loss=st.sampled_from(["logistic", "squared"]),
    l1=st.sampled_from([0.0, 0.01, 0.3]),
    rate=st.sampled_from([0.1, 1.0, 30.0]),
    history=st.sampled_from([1, 3, 10]),
    intercept=st.booleans(),
    weighted=st.booleans(),
)
@settings(max_examples=60)
def test_equals_its_twin_on_any_group(
    seed: int, rows: int, width: int, loss: str, l1: float, rate: float, history: int, intercept: bool, weighted: bool
) -> None:
    data = draw(rows, width, loss=loss, seed=seed)
    if not weighted:
        data["weight"] = data["hold"] = None
    terms: dict[str, Any] = {
        "configs": 3, "l1": [0.0, l1, l1], "l2": [0.1, 0.1, 0.02], "rate": [1.0, 1.0, rate], "epochs": 6,
        "history": history, "intercept": intercept, "loss": loss,
    }  # fmt: skip
    found, twin = solve_small(**data, **terms), solve_reference(**data, **terms)
    # Where a comparison depends on the last bit the two may part; both then are as low, beside the 0.5 or so of weights of 0.
    finite = np.isfinite(twin.objective)
    np.testing.assert_array_equal(np.isfinite(found.objective), finite)
    np.testing.assert_allclose(found.objective[finite], twin.objective[finite], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.status == FAILED, twin.status == FAILED)


def test_to_the_end_it_is_scikit_learns_logistic_regression() -> None:
    data = draw(200, 10)
    found = solve_small(data["x"], data["y"], configs=1, l2=0.01, tolerance=1e-6)
    peer = LogisticRegression(C=1 / (0.01 * 200), tol=1e-8, max_iter=5000).fit(data["x"].astype(float), data["y"])
    np.testing.assert_allclose(found.w[:, 0], np.append(peer.coef_[0], peer.intercept_[0]), atol=1e-3)
    assert found.status[0] in (CONVERGED, STALLED)
    margin = data["y"] * (data["x"].astype(float) @ peer.coef_[0] + peer.intercept_[0])
    least = np.logaddexp(0, -margin).mean() + 0.005 * (peer.coef_[0] @ peer.coef_[0])
    assert found.objective[0] == pytest.approx(least, rel=1e-6)


def test_it_repeats_itself_to_the_last_bit_and_configs_do_not_touch_each_other() -> None:
    data = draw(200, 8)
    whole = solve_small(**data, configs=12, **GRID, epochs=10)
    again = solve_small(**data, configs=12, **GRID, epochs=10)
    np.testing.assert_array_equal(whole.w, again.w)
    for c in (0, 7):
        alone = solve_small(**data, configs=1, rate=GRID["rate"][c], l2=GRID["l2"][c], epochs=10)
        np.testing.assert_array_equal(alone.w[:, 0], whole.w[:, c])


def test_rows_that_cannot_be_written_to_are_solved_as_they_are() -> None:
    data = draw(200, 8)
    expected, at = solve_small(**data, configs=2, epochs=5), np.ones((9, 2))
    summed = sums(**data, at=at)
    for array in data.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(solve_small(**data, configs=2, epochs=5).w, expected.w)
    np.testing.assert_array_equal(sums(**data, at=at).gradient, summed.gradient)


def test_a_config_that_diverges_fails_alone() -> None:
    data = draw(200, 8, loss="squared")
    found = solve_small(**data, configs=3, rate=[1, 1e30, 1], l2=0.01, epochs=30, loss="squared")
    calm = solve_small(**data, configs=1, l2=0.01, epochs=30, loss="squared")
    assert (found.status == FAILED).tolist() == [False, True, False]
    np.testing.assert_array_equal(found.w[:, 2], calm.w[:, 0])
    assert np.isfinite(found.w).all()


@pytest.mark.parametrize("where", ["train", "held", "weight zero"])
def test_what_is_not_finite_fails_a_group_only_where_it_is_trained_on(where: str) -> None:
    data = draw(100, 4)
    data["weight"][5], data["hold"][5] = (0 if where == "weight zero" else 1), where == "held"
    data["x"][5, 1] = np.nan
    found = solve_small(**data, configs=2, l2=0.1, epochs=5)
    assert (found.status == (FAILED if where == "train" else SPENT)).all()
    assert np.isfinite(found.w).all()
    assert np.isfinite(found.held_loss).all() == (where != "held")


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_groups_of_next_to_nothing_end_without_an_error(rows: int) -> None:
    data = draw(rows, 4)
    found = solve_small(data["x"], data["y"], configs=2, l2=0.1, epochs=10)
    assert found.w.shape == (5, 2)
    assert (found.status == FAILED).all() == (rows == 0)
    everything = solve_small(data["x"], data["y"], hold=np.ones(rows, bool), configs=2, l2=0.1, epochs=10)
    assert (everything.status == FAILED).all()


def test_a_single_class_is_learnt_from_as_far_as_penalties_let_it() -> None:
    data = draw(50, 3)
    found = solve_small(data["x"], np.ones(50, np.float32), configs=1, l2=0.1, epochs=20)
    assert np.isfinite(found.w).all()
    assert found.status[0] != FAILED


def test_it_goes_on_from_given_weights() -> None:
    data = draw(300, 6)
    x: Any = data.pop("x")
    terms: dict[str, Any] = {"configs": 2, "l2": [0.1, 0.01], "tolerance": 1e-6}
    whole = solve_small(x, **data, **terms, epochs=100)
    start = solve_small(x, **data, **terms, epochs=4).w
    found = solve_small(x, **data, **terms, epochs=3, start=start)
    assert_twins(found, solve_reference(x, **data, **terms, epochs=3, start=start))
    assert (found.objective < solve_small(x, **data, **terms, epochs=4).objective).all()
    again = solve_small(x, **data, **terms, epochs=100, start=whole.w)
    assert (again.evaluations < whole.evaluations / 2).all()
    np.testing.assert_allclose(again.w, whole.w, atol=1e-3)


def test_threads_solve_side_by_side() -> None:
    assert solve_rows.targetoptions["nogil"]
    data = draw(RUN, 4)
    expected = solve_small(**data, configs=12, **GRID, epochs=10)
    found: list[Solved] = []
    threads = [
        threading.Thread(target=lambda: found.append(solve_small(**data, configs=12, **GRID, epochs=10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for other in found:
        np.testing.assert_array_equal(other.w, expected.w)


def test_misfits_are_refused() -> None:
    data = draw(20, 2)
    with pytest.raises(UsageError, match="solver='sgd'"):
        solve_small(**data, configs=1, loss="softmax")
    with pytest.raises(UsageError, match="history=0"):
        solve_small(**data, configs=1, history=0)
    with pytest.raises(UsageError, match="l2=-1"):
        solve_small(**data, configs=1, l2=-1)
