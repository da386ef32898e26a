"""The unordered loader taken up in the middle of an epoch, and how it finds its setting."""

from __future__ import annotations

import io
import threading
import time

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from penstock.errors import UsageError
from penstock.torch.tune import Tuner
from penstock.torch.unordered import UnorderedDataLoader
from tests.unit.test_torch_unordered import KINDS, Numbers, flat, lists, sets

DATA = Numbers(43)


def by_generator():
    return UnorderedDataLoader(DATA, 5, shuffle=True, generator=torch.Generator().manual_seed(2), num_workers=3)


def by_seed():
    return UnorderedDataLoader(DATA, 5, shuffle=True, seed=8, num_workers=3)


def by_global_chance():
    return UnorderedDataLoader(DATA, 5, shuffle=True, num_workers=3)


def by_weights():
    return UnorderedDataLoader(DATA, 5, sampler=WeightedRandomSampler([1.0] * 43, 30), num_workers=3)


def by_a_sampler_in_a_batch_sampler():
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(4))
    return UnorderedDataLoader(DATA, batch_sampler=BatchSampler(sampler, 5, True), num_workers=3)


def by_ranks():
    return UnorderedDataLoader(DATA, 5, sampler=DistributedSampler(DATA, 2, 1), num_workers=3)


def in_order():
    return UnorderedDataLoader(DATA, 5, num_workers=3)


def single():
    return UnorderedDataLoader(DATA, None, shuffle=True, seed=1, num_workers=3)


MAKERS = [
    by_generator,
    by_seed,
    by_global_chance,
    by_weights,
    by_a_sampler_in_a_batch_sampler,
    by_ranks,
    in_order,
    single,
]


def saved(loader):
    """Return the state as a checkpoint would keep it."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def content(batch):
    return sorted(batch.tolist()) if isinstance(batch, torch.Tensor) else [batch]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("prefetch", [None, 0])
def test_resumed_equals_uninterrupted_at_every_batch(make, prefetch):
    torch.manual_seed(6)
    loader = make()
    loader.prefetch_factor = prefetch
    for _ in loader:  # the first epoch is another one
        pass
    states, whole = [saved(loader)], []
    for batch in loader:
        whole.append(content(batch))
        states.append(saved(loader))
    after = [content(b) for b in loader]
    for done, state in enumerate(states):
        torch.manual_seed(1000 + done)
        again = make()
        again.load_state_dict(state)
        assert [content(b) for b in again] == whole[done:]
        if make not in (by_global_chance, by_weights):  # the next epoch follows too, but for the global generator
            assert [content(b) for b in again] == after
    assert len(whole) > 4


def test_a_resume_leaves_the_global_generator_alone():
    torch.manual_seed(6)
    loader = by_global_chance()
    next(batches := iter(loader))
    state = saved(loader)
    batches.close()
    torch.manual_seed(77)
    chance = torch.get_rng_state()
    again = by_global_chance()
    again.load_state_dict(state)
    list(again)
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize("workers", KINDS)
def test_resume_with_either_kind_of_worker(workers):
    def make():
        return UnorderedDataLoader(DATA, 5, shuffle=True, seed=3, workers=workers, num_workers=2)

    loader = make()
    whole = sets(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = saved(loader)
    batches.close()
    again = make()
    again.load_state_dict(state)
    assert again.state_dict()["batches"] == 4  # not yet begun
    assert sets(again) == whole[4:]


def test_epochs_that_were_told_are_told_again():
    def make():
        return UnorderedDataLoader(DATA, 5, sampler=DistributedSampler(DATA, 2, 0, seed=3), ordered=True)

    loader = make()
    loader.set_epoch(5)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    rest = lists(batches)
    again = make()
    again.load_state_dict(state)
    assert lists(again) == rest
    again.load_state_dict(state)
    again.set_epoch(5)  # as loops over epochs do; the place is kept
    assert lists(again) == rest
    again.load_state_dict(state)
    again.set_epoch(6)  # another epoch: from its start
    loader.set_epoch(6)
    assert lists(again) == lists(loader)


def test_states_that_do_not_fit_are_refused():
    state = by_seed().state_dict()
    with pytest.raises(UsageError, match="it has no batches, chance"):
        by_seed().load_state_dict({"epoch": 0, "told": None, "batch_size": 5, "samples": 43})
    with pytest.raises(UsageError, match="saved with batch_size=5 and this loader has 6"):
        UnorderedDataLoader(DATA, 6).load_state_dict(state)
    with pytest.raises(UsageError, match="saved with samples=43 and this loader has 44"):
        UnorderedDataLoader(Numbers(44), 5).load_state_dict(state)
    with pytest.raises(UsageError, match="another sampler or generator"):
        by_generator().load_state_dict(state)


class Machine:
    """A make-believe pool: how fast samples come at each number of threads, and how much computing they are."""

    def __init__(self, speed, cpu, most=32):
        self.tuner, self.speed, self.cpu, self.now = Tuner(most), speed, cpu, 0.0

    def deliver(self, batches, waited=1.0):
        for _ in range(batches):
            took = 100 / self.speed(self.tuner.limit)
            self.now += took
            self.tuner.fetched(100, wall=took * self.tuner.limit, cpu=took * self.cpu)
            self.tuner.delivered(waited=waited * took, now=self.now)


def test_threads_in_one_anothers_way_become_few():
    machine = Machine(speed=lambda threads: 10_000 / threads, cpu=1.0)
    machine.deliver(100)
    best = [machine.tuner.limit for _ in range(200) if machine.deliver(1) is None]
    assert best.count(1) > 150  # but for a trial now and then
    assert machine.tuner.run(100) > 1


def test_threads_that_wait_stay_many():
    machine = Machine(speed=lambda threads: 300 * threads, cpu=0.2)
    machine.deliver(300)
    assert machine.tuner.limit == 32
    assert machine.tuner.run(256) == 1  # 3 ms a sample
    quick = Machine(speed=lambda threads: 30_000 * threads, cpu=0.2)
    quick.deliver(300)
    assert quick.tuner.run(256) == 8  # over all threads


def test_a_best_in_between_is_found():
    machine = Machine(speed=lambda threads: 10_000 - 1_500 * abs(threads - 4) if threads < 8 else 1_000, cpu=0.9)
    machine.deliver(200)
    settled = [machine.tuner.limit for _ in range(200) if machine.deliver(1) is None]
    assert max(set(settled), key=settled.count) == 4


def test_a_loop_that_is_slower_than_the_loader_changes_nothing():
    machine = Machine(speed=lambda threads: 10_000 / threads, cpu=1.0)
    machine.deliver(300, waited=0.1)
    assert machine.tuner.limit == 32


def test_a_limit_lowered_and_raised_again_is_obeyed():
    at_once, most, lock = 0, 0, threading.Lock()

    class Counting(Numbers):
        def __getitem__(self, index):
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.001)
            with lock:
                at_once -= 1
            return index

    loader = UnorderedDataLoader(Counting(2_000), 16, num_workers=8, ordered=True)
    loader._tuner.delivered = lambda **_: None  # let the test alone set it
    batches = iter(loader)
    got, highest = [], []
    for limit in (8, 2, 8):
        loader._tuner.limit = limit
        got += [next(batches).tolist() for _ in range(6)]  # what is under way settles
        most = 0
        got += [next(batches).tolist() for _ in range(6)]
        highest.append(most)
    got += lists(batches)
    assert flat(got) == list(range(2_000))
    assert highest[1] == 2
    assert highest[0] > 2
    assert highest[2] > 2
