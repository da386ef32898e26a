"""No fault may go unnoticed: the short form of ``benchmarks.faults``, for every door."""

from __future__ import annotations

import pytest

from benchmarks.faults.connections import lost_connections
from benchmarks.faults.doors import doors
from benchmarks.faults.outcome import Outcome
from benchmarks.faults.suite import SEED, run_door


def wrong(outcomes: list[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.verdict in ("silent", "crashed")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", doors())
def test_no_fault_is_silent(name: str) -> None:
    outcomes = run_door(doors()[name], quick=True)
    assert outcomes
    assert not wrong(outcomes)


def test_a_lost_connection_is_not_silent() -> None:
    assert not wrong(lost_connections(faults=1, seed=SEED))
