"""Schedulers keep the invariants in whatever order turns end, and SGD that hops is SGD in the order that is said."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.groups.place import Placement, sequential, spread
from penstock.groups.schedule import Hopper, Passes, Turn, Wait, shard_order
from tests.schedule_traces import check, trace_of, traced


def drive(scheduler: Hopper | Passes, workers: int, seed: int, run: object = None, *, stop: float = 0.0) -> list[Turn]:
    """Run a scheduler to its end, letting turns end and things arrive in a random order; ``stop`` some early."""
    rng, under_way, free, order = random.Random(seed), [], set(range(workers)), []
    while True:
        for worker in scheduler.woken():
            turn = scheduler.next(worker) if worker in free else None
            if turn is not None:
                free.discard(worker)
                under_way.append(turn)
        if not under_way:
            break
        event = under_way.pop(rng.randrange(len(under_way)))
        finished = rng.random() < stop
        if isinstance(event, Wait):
            scheduler.ready(event, finished=finished)
            continue
        if callable(run):
            run(event)
        order.append(event)
        free.add(event.worker)
        wait = scheduler.done(event, finished=finished and event.whole)
        if wait is not None:
            under_way.append(wait)
    return order


def had(turns: list[Turn], placed: Placement, epochs: list[int]) -> dict[tuple[int, int, int], list[int]]:
    """Of each (group, config, shard), the epochs it had, in their order."""
    seen: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for turn in turns:
        for config in range(turn.config, turn.config + turn.configs):
            seen[turn.group, config, turn.shard] += range(turn.epoch, min(turn.epoch + turn.epochs, epochs[config]))
    return seen


PLACED = st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 7), st.integers(1, 6))


@settings(max_examples=150, deadline=None)
@given(case=PLACED, seed=st.integers(0, 99), data=st.data(), way=st.sampled_from(["hops", "passes", "lanes"]))
def test_every_config_has_all_its_epochs_on_every_shard_and_the_invariants_hold(
    case: tuple[list[int], int, int], seed: int, data: st.DataObject, way: str
) -> None:
    sizes, workers, configs = case
    epochs = data.draw(st.lists(st.integers(1, 4), min_size=configs, max_size=configs))
    placed = sequential(sizes, workers, configs) if way == "hops" else spread(sizes, workers)
    scheduler: Hopper | Passes
    if way == "hops":
        scheduler = traced(Hopper(placed, configs=configs, epochs=epochs))
    else:
        scheduler = traced(Passes(placed, configs=configs, epochs=epochs, lanes=1 if way == "passes" else 3))
    turns = drive(scheduler, workers, seed)
    assert scheduler.finished
    check(scheduler, placed)
    seen = had(turns, placed, epochs)
    for group, held in placed.held.items():
        for config in range(configs):
            for number in held:
                assert seen[group, config, number] == list(range(epochs[config]))
    assert sum(turn.units for turn in turns) == sum(sizes) * sum(epochs)


@settings(max_examples=60, deadline=None)
@given(case=PLACED, seed=st.integers(0, 99), hops=st.booleans())
def test_what_stops_early_does_not_keep_the_others_from_ending(
    case: tuple[list[int], int, int], seed: int, hops: bool
) -> None:
    sizes, workers, configs = case
    placed = sequential(sizes, workers, configs) if hops else spread(sizes, workers)
    make = Hopper if hops else Passes
    scheduler = traced(make(placed, configs=configs, epochs=4))
    drive(scheduler, workers, seed, stop=0.4)
    assert scheduler.finished
    check(scheduler, placed)


def test_sgd_that_hops_gives_what_sgd_over_the_same_order_of_shards_gives() -> None:
    sizes, workers, configs, epochs = [500, 90, 40, 40, 7], 5, 6, 3
    data = {g: [random.Random(g).random() for _ in range(size)] for g, size in enumerate(sizes)}
    placed = sequential(sizes, workers, configs)
    assert placed.splits > 2

    def learn(weight: float, group: int, config: int, first: int, rows: int) -> float:
        for value in data[group][first : first + rows]:
            weight -= 0.1 * (config + 1) * (weight - value) * value  # not the same in another order, in any bit
        return weight

    plain = {}
    for group, held in placed.held.items():
        for config in range(configs):
            weight = 0.0
            for _ in range(epochs):
                for position in shard_order(config, shards=len(held)):
                    shard = placed.shards[held[position]]
                    weight = learn(weight, group, config, shard.first, shard.rows)
            plain[group, config] = weight
    for seed in range(5):
        found = dict.fromkeys(plain, 0.0)

        def run(turn: Turn, found: dict[tuple[int, int], float] = found) -> None:
            shard = placed.shards[turn.shard]
            for config in range(turn.config, turn.config + turn.configs):
                for _ in range(turn.epochs):
                    found[turn.group, config] = learn(
                        found[turn.group, config], turn.group, config, shard.first, shard.rows
                    )

        drive(Hopper(placed, configs=configs, epochs=epochs), workers, seed, run)
        assert found == plain


def test_the_same_events_give_the_same_turns() -> None:
    placed = sequential([300, 50, 50, 20], 4, 5)
    one, two = (drive(Hopper(placed, configs=5, epochs=2), 4, 7) for _ in range(2))
    assert one == two


def test_split_groups_come_first_and_whole_ones_in_turns_that_others_can_wait_for() -> None:
    """One worker has a sixth of the large group and whole ones; nobody is to wait for more than a round."""
    placed = spread([70, 10, 10, 10, 2], 3)
    passes = Passes(placed, configs=2, epochs=10)
    turns = drive(passes, 3, 0)
    mixed = next(w for w in range(3) if 0 < sum(s.rows for s in placed.shards if s.group == 0 and s.worker == w) < 30)
    mine = [turn for turn in turns if turn.worker == mixed]
    assert mine[0].group == 0
    before_the_end = mine[: max(place for place, turn in enumerate(mine) if turn.group == 0)]
    assert all(turn.units <= placed.makespan * 2 for turn in before_the_end)
    assert any(turn.whole and turn.epochs < 10 for turn in mine)


def test_alone_on_its_worker_a_whole_group_is_one_turn() -> None:
    turns = drive(Hopper(sequential([5, 5], 2, 3), configs=3, epochs=[1, 2, 3]), 2, 0)
    assert [(turn.configs, turn.epochs, turn.units) for turn in turns] == [(3, 3, 30), (3, 3, 30)]


def test_a_run_is_taken_up_where_it_was_left() -> None:
    placed = sequential([40, 6, 6], 2, 2)
    begun = {(0, 0): 2, (0, 1): 3, (1, 0): 1, (2, 0): 3, (2, 1): 3}
    hopper = Hopper(placed, configs=2, epochs=3, begun=begun)
    seen = had(drive(hopper, 2, 0), placed, [3, 3])
    assert hopper.finished
    assert {(g, c): runs for (g, c, _), runs in seen.items() if runs} == {
        (0, 0): [2],
        (1, 0): [1, 2],
        (1, 1): [0, 1, 2],
    }


def test_two_lanes_go_on_while_sums_are_under_way() -> None:
    passes = Passes(spread([8], 2), configs=4, epochs=2, lanes=2)
    first = [passes.next(worker) for worker in (0, 1)]
    assert [(turn.config, turn.configs) for turn in first if turn] == [(0, 2), (0, 2)]
    waits = [passes.done(turn) for turn in first if turn]
    assert waits == [None, Wait(0, 0, 2, (0, 1))]
    second = passes.next(0)
    assert second is not None
    assert (second.config, second.epoch) == (2, 0)


def test_a_turn_that_was_not_given_out_is_named() -> None:
    hopper = Hopper(sequential([4], 2, 2), configs=2, epochs=1)
    turn = hopper.next(0)
    assert turn is not None
    hopper.done(turn)
    with pytest.raises(UsageError, match="is not running"):
        hopper.done(turn)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"worker": 1}, "data sharding"),
        ({"config": 1}, "worker exclusivity"),
    ],
)
def test_check_finds_a_trace_that_breaks_an_invariant(change: dict[str, int], broken: str) -> None:
    placed = sequential([4], 2, 2)
    hopper = traced(Hopper(placed, configs=2, epochs=1))
    turn = hopper.next(0)
    assert turn is not None
    if "worker" in change:
        trace_of(hopper).clear()
    trace_of(hopper).append(("begin", turn._replace(**change)))
    with pytest.raises(AssertionError, match=broken):
        check(hopper, placed)


def test_check_finds_a_config_at_two_places_and_shards_out_of_order() -> None:
    placed = sequential([4], 2, 2)
    hopper = traced(Hopper(placed, configs=2, epochs=1))
    turn = hopper.next(0)
    assert turn is not None
    trace_of(hopper).append(("begin", turn._replace(worker=1, shard=1)))
    with pytest.raises(AssertionError, match="config isolation"):
        check(hopper, placed)
    trace_of(hopper)[:] = [("begin", turn._replace(worker=1, shard=1))]
    with pytest.raises(AssertionError, match="order of shards"):
        check(hopper, placed)
