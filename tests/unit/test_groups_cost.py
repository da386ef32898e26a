"""What models as tasks cost, and rates found from timed tasks."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UnknownOptionError, UsageError
from penstock.groups.cost import Pilot, Timed, Work, fit, price_model_tasks

WORK = Work("algebraic", 3, 2, row_bytes=10, model_bytes=100, pilot=Pilot(0.5, 2, 0.1, 7, sent=0.01))


def test_models_as_tasks_by_hand() -> None:
    price = price_model_tasks([6, 2, 2], workers=2, work=WORK)
    compute, reading = 3 * 2 * (10 * 0.5 + 3 * 2), 10 * 10 * 0.1 * (2 + 1)
    last = 6 * 10 * 0.1 + 2 * (6 * 0.5 + 2)
    assert price.moved == 2 * 10 * 10
    assert price.seconds == pytest.approx((compute + reading) / 2 + last)
    assert price.idle == pytest.approx(last / price.seconds)


def test_sgd_changes_a_model_with_every_batch() -> None:
    algebraic, sequential = (
        price_model_tasks([1000, 1000], workers=4, work=Work(p, 4, 2, 1, 1, Pilot(1e-9, 1, 0, 0), batch=10)).seconds
        for p in ("algebraic", "sequential")
    )
    assert sequential == pytest.approx(100 * algebraic, rel=1e-6)


def test_a_pilot_finds_the_rates_behind_noisy_seconds() -> None:
    rng = np.random.default_rng(0)
    true = np.array([3e-8, 1e-5, 5e-10, 2e-4])
    did = np.column_stack([10 ** rng.uniform(5, 8, 60), rng.integers(1, 5000, 60), 10 ** rng.uniform(5, 9, 60)])
    did = np.column_stack([did, rng.integers(0, 500, 60)])
    took = did @ true * rng.uniform(0.97, 1.03, 60)
    found = fit(Timed(float(s), *map(float, d)) for s, d in zip(took, did, strict=True))
    assert [found.row_config, found.update, found.byte, found.message] == pytest.approx(list(true), rel=0.1)


def test_one_timed_task_is_enough_for_a_rate_of_rows() -> None:
    found = fit([Timed(2.0, 1e6)])
    assert found.row_config == pytest.approx(2e-6)
    assert (found.update, found.byte, found.message) == (0, 0, 0)


@pytest.mark.parametrize("tasks", [[], [Timed(0.0, 10.0)], [Timed(1.0, 0.0, 5.0)]])
def test_what_calibrates_nothing_is_refused(tasks: list[Timed]) -> None:
    with pytest.raises(UsageError, match="time"):
        fit(tasks)


def test_wrong_values_are_named() -> None:
    with pytest.raises(UsageError, match="row_config=0"):
        Pilot(0, 0, 0, 0)
    with pytest.raises(UsageError, match="message=-1"):
        Pilot(1, 0, 0, -1)
    with pytest.raises(UnknownOptionError, match="algebraic, sampling, sequential"):
        Work("linear", 1, 1, 1, 1, Pilot(1, 0, 0, 0))
    with pytest.raises(UsageError, match="configs=0"):
        Work("algebraic", 0, 1, 1, 1, Pilot(1, 0, 0, 0))
