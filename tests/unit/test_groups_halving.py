"""Halving: who goes on, when, within which budget; and that no group is left with nothing."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BudgetError, UsageError
from penstock.groups.halving import Halving, rungs


def play(halving, loss, *, workers=1, pick=lambda waiting: 0, converge=lambda run: None, lose=lambda run: False):
    """Train with so many workers, each run ending when it is picked; return the runs in the order of their reports."""
    runs, waiting = [], []
    while True:
        while len(waiting) < workers and (run := halving.next()):
            waiting.append(run)
        if not waiting:
            return runs
        run = waiting.pop(pick(waiting))
        if lose(run):
            halving.lost(run.group, run.config)
            continue
        runs.append(run)
        epoch = converge(run) or run.to_epoch
        halving.report(run.group, run.config, epoch, loss(run), converged=epoch < run.to_epoch)


def by_config(run):
    return float(run.config)


def test_rungs():
    assert rungs(1, 27, 3) == [1, 3, 9, 27]
    assert rungs(2, 9, 2) == [2, 4, 8, 9]
    assert rungs(10, 4, 3) == [4]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("workers", [1, 4, 50])
def test_a_complete_rung_passes_one_in_eta_on(asynchronous, workers):
    halving = Halving(2, 9, eta=3, least=1, most=9, asynchronous=asynchronous)
    runs = play(halving, by_config, workers=workers)
    for group in range(2):
        mine = [run for run in runs if run.group == group]
        assert sorted(run.config for run in mine if run.from_epoch == 0) == list(range(9))
        assert [run.config for run in mine if run.to_epoch == 9] == [0]
        if not asynchronous:
            assert sorted(run.config for run in mine if run.to_epoch == 3) == [0, 1, 2]
        assert halving.best(group) == 0
        assert halving.standing(group) == ["done"] + 8 * ["stopped"]
    assert halving.done
    assert halving.spent == sum(run.to_epoch - run.from_epoch for run in runs)


def test_waiting_for_the_rung_never_promotes_early_and_asha_does():
    worst_first = lambda run: -float(run.config)  # noqa: E731
    together = play(Halving(1, 9, most=9, asynchronous=False), worst_first)
    assert [run.config for run in together[:9]] == list(range(9))
    early = play(Halving(1, 9, most=9, asynchronous=True), worst_first)
    assert (early[3].config, early[3].from_epoch) == (2, 1)  # the best of the first three
    assert len(early) >= len(together)


def test_a_config_overtaken_while_it_waits_is_not_promoted():
    halving = Halving(1, 6, eta=3, most=3, asynchronous=True)
    for _ in range(6):
        halving.next()
    for config in range(3):
        halving.report(0, config, 1, 5.0 + config)
    halving.report(0, 3, 1, 1.0)  # config 0 may go on by now, but nobody asked before a better one came in
    assert halving.next() == (0, 3, 1, 3)
    assert halving.next() is None


def test_all_first_configs_start_before_any_second():
    halving = Halving(5, 4, most=4)
    assert [halving.next()[:2] for _ in range(7)] == [(g, 0) for g in range(5)] + [(0, 1), (1, 1)]


def test_equal_losses_go_to_the_lower_config():
    halving = Halving(1, 3, most=3)
    play(halving, lambda run: 1.0, workers=3, pick=lambda waiting: len(waiting) - 1)
    assert halving.best(0) == 0


def test_the_same_reports_give_the_same_runs():
    def once():
        rng, losses = random.Random(4), random.Random(5)
        table = [[losses.random() for _ in range(8)] for _ in range(6)]
        halving = Halving(6, 8, eta=2, most=10)
        return play(
            halving,
            lambda run: table[run.group][run.config] / run.to_epoch,
            workers=5,
            pick=lambda w: rng.randrange(len(w)),
        )

    assert once() == once()


def test_a_failed_config_is_never_promoted_and_another_takes_the_place_of_a_failed_finalist():
    def loss(run):
        if run.config == 2:
            return math.nan
        return math.inf if run.config == 0 and run.to_epoch == 9 else float(run.config)

    halving = Halving(1, 5, most=9)
    runs = play(halving, loss)
    assert all(run.to_epoch == 1 for run in runs if run.config == 2)
    assert [run.config for run in runs if run.to_epoch == 9] == [0, 1]
    assert halving.best(0) == 1
    assert halving.standing(0) == ["failed", "done", "failed", "stopped", "stopped"]


def test_a_group_whose_configs_all_fail_is_over_and_the_others_go_on():
    halving = Halving(2, 3, most=9)
    play(halving, lambda run: math.nan if run.group == 0 else 1.0)
    assert halving.done
    assert halving.best(0) is None
    assert halving.standing(0) == ["failed"] * 3
    assert halving.best(1) == 0


def test_divergence_ends_a_run_at_once():
    halving = Halving(1, 1, least=4, most=8)
    run = halving.next()
    halving.report(0, 0, 1, 0.5)
    assert halving.standing(0) == ["running"]
    halving.report(0, 0, 2, math.nan)
    assert (run.to_epoch, halving.spent, halving.standing(0)) == (4, 2, ["failed"])
    assert halving.done


def test_converged_configs_cost_no_more_passes():
    halving = Halving(1, 3, most=27)
    runs = play(halving, by_config, converge=lambda run: 2 if run.to_epoch == 3 else None)
    assert [run[1:] for run in runs] == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 1, 3)]
    assert halving.best(0) == 0
    assert halving.spent == 4


def test_configs_of_differing_epochs():
    halving = Halving(1, 3, most=[2, 9, 5])
    runs = play(halving, by_config, workers=3)
    assert [run[1:] for run in runs] == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 1, 2)]
    assert halving.best(0) == 0


def test_lost_runs_are_given_out_again():
    seen = set()

    def lose(run):
        return run not in seen and not seen.add(run)

    halving = Halving(2, 3, most=9)
    runs = play(halving, by_config, workers=3, lose=lose)
    assert len(runs) == len(set(runs)) == len(seen)
    assert halving.spent == sum(run.to_epoch - run.from_epoch for run in runs)
    assert halving.done


def test_a_budget_bounds_what_is_explored_and_is_shared():
    whole = Halving(10, 9, most=9)
    play(whole, by_config)
    tight = Halving(10, 9, most=9, budget=140)
    runs = play(tight, lambda run: float(run.config) / run.to_epoch)
    assert tight.spent <= 140 < whole.spent
    started = [sum(run.group == group and run.from_epoch == 0 for run in runs) for group in range(10)]
    assert max(started) - min(started) <= 1
    assert max(started) > 1
    assert all(tight.best(group) is not None for group in range(10))


def test_the_least_budget_is_one_config_for_each_group():
    halving = Halving(3, 9, most=9, budget=27)
    runs = play(halving, by_config, workers=2)
    assert {run.config for run in runs} == {0}
    assert halving.spent == 27
    with pytest.raises(BudgetError, match=r"a budget of 26 passes .* each of 3 groups to epoch 9; give at least 27"):
        Halving(3, 9, most=9, budget=26)


def test_passes_may_cost_what_groups_are_large():
    halving = Halving(2, 9, most=9, budget=9 * 101 + 30, cost=[100, 1])
    runs = play(halving, by_config)
    assert {run.config for run in runs if run.group == 0} == {0}
    assert {run.config for run in runs if run.group == 1} == set(range(9))
    assert halving.spent <= 9 * 101 + 30


def test_ended_tells_each_group_once():
    halving = Halving(4, 3, most=3)
    told = []
    while run := halving.next():
        halving.report(run.group, run.config, run.to_epoch, float(run.config))
        told += halving.ended()
    assert sorted(told) == [0, 1, 2, 3]
    assert all(halving.over(group) for group in range(4))


def test_no_groups_is_done():
    halving = Halving(0, 3, most=3)
    assert halving.done
    assert halving.next() is None


@given(
    groups=st.integers(1, 5),
    configs=st.integers(1, 12),
    eta=st.integers(2, 4),
    least=st.integers(1, 4),
    most=st.integers(1, 20),
    asynchronous=st.booleans(),
    extra=st.none() | st.integers(0, 100),
    failing=st.floats(0, 1),
    workers=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_every_group_ends_with_a_config_that_ran_to_the_end(
    groups, configs, eta, least, most, asynchronous, extra, failing, workers, seed
):
    chance = random.Random(seed)
    cost = [chance.randrange(3) for _ in range(groups)]
    budget = None if extra is None else sum(cost) * most + extra
    halving = Halving(
        groups, configs, eta=eta, least=least, most=most, asynchronous=asynchronous, budget=budget, cost=cost
    )
    failed = set()

    def loss(run):
        if chance.random() < failing / 2:
            failed.add((run.group, run.config))
            return math.nan
        return chance.random()

    runs = play(
        halving,
        loss,
        workers=workers,
        pick=lambda waiting: chance.randrange(len(waiting)),
        converge=lambda run: run.from_epoch + 1 if chance.random() < 0.1 else None,
        lose=lambda run: chance.random() < 0.1,
    )
    assert halving.done
    assert sorted(halving.ended()) == list(range(groups))
    at = {}
    for run in runs:
        pair = run.group, run.config
        assert run.from_epoch == at.get(pair, 0) < run.to_epoch <= most
        at[pair] = run.to_epoch
    for group in range(groups):
        if halving.best(group) is None:
            assert {config for owner, config in failed if owner == group} == set(range(configs))
        else:
            assert (group, halving.best(group)) not in failed
    if budget is not None and not failed:
        assert halving.spent <= budget


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Halving(1, 0, most=3), "configs=0 cannot be halved; choose at least 1"),
        (lambda: Halving(1, 1, most=3, eta=1), "eta=1 cannot be halved; choose at least 2"),
        (lambda: Halving(1, 1, most=0), r"most=\[0\] is not a number of epochs"),
        (lambda: Halving(1, 2, most=[3]), r"most=\[3\] is not a number of epochs for each of 2 configs"),
        (lambda: Halving(2, 2, most=3, cost=[1]), "cost must be zero or more for each of 2 groups; it has 1 values"),
        (lambda: Halving(1, 1, most=3).report(0, 0, 1, 0.5), "config 0 of group 0 is not being trained"),
        (lambda: Halving(1, 1, most=3).lost(7, 0), "config 0 of group 7 is not being trained"),
    ],
)
def test_mistakes(make, told):
    with pytest.raises(UsageError, match=told):
        make()


def test_reports_of_other_epochs_are_refused():
    halving = Halving(1, 1, least=2, most=3)
    halving.next()
    with pytest.raises(UsageError, match="epoch 3 of config 0 in group 0 is not in its run from 0 to 2"):
        halving.report(0, 0, 3, 0.5)
