"""The unordered loader as a drop-in: which batches it gives, in which order, with which samplers and collates."""

from __future__ import annotations

import collections
import itertools
import threading
import time

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from penstock.errors import UsageError
from penstock.torch.samplers import SeededSampler, ShuffleSampler
from penstock.torch.unordered import UnorderedDataLoader
from penstock.torch.workers import worker_info

KINDS = ("threads", "processes")


class Numbers(Dataset):
    """Sample i is i; early indices of a batch take longest, so that arrival is not the order asked for."""

    def __init__(self, count, pause=0.0):
        self.count, self.pause = count, pause

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.pause:
            time.sleep(self.pause * (5 - index % 5))
        return index


class Together(Numbers):
    """A dataset that takes several indices at once and counts the calls."""

    def __init__(self, count, pause=0.0):
        super().__init__(count, pause)
        self.calls = []

    def __getitem__(self, index):
        raise AssertionError("__getitems__ is there to be used")

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        return list(indices)


def lists(loader):
    return [batch.tolist() for batch in loader]


def sets(loader):
    return [sorted(batch.tolist()) for batch in loader]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def torch_order(count, seed, batch_size=7, **options):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(Numbers(count), batch_size, generator=generator, **options), generator


@pytest.mark.parametrize("workers", KINDS)
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"prefetch_factor": 0}, {"prefetch_factor": 5}])
def test_batches_come_in_order_and_hold_the_right_samples(workers, options):
    loader = UnorderedDataLoader(Numbers(23, 0.0005), 5, workers=workers, num_workers=2, **options)
    expected = [list(range(at, min(at + 5, 23))) for at in range(0, 23, 5)]
    if "drop_last" in options:
        expected.pop()
    assert sets(loader) == expected
    assert sets(loader) == expected  # and once more
    assert len(loader) == len(expected)


class Backwards(Numbers):
    """The samples of the first batch arrive last index first, however threads are scheduled.

    A thread begins a sample of the second batch when that of the first has taken its place. Those of the second wait
    until the first batch is complete, so that as many have begun as samples of the first have arrived.
    """

    def __init__(self, count, batch_size):
        super().__init__(count)
        self.batch_size, self.begun = batch_size, 0
        self.turn, self.complete = threading.Condition(), threading.Event()

    def __getitem__(self, index):
        with self.turn:
            if index >= self.batch_size:
                self.begun += 1
                self.turn.notify_all()
            else:
                self.turn.wait_for(lambda: self.begun >= self.batch_size - 1 - index)
        if index >= self.batch_size:
            self.complete.wait()
        return index


def test_samples_stand_in_order_of_arrival_unless_ordered():
    for ordered, first in ((False, [4, 3, 2, 1, 0]), (True, [0, 1, 2, 3, 4])):
        data = Backwards(20, 5)
        loader = UnorderedDataLoader(data, 5, num_workers=5, ordered=ordered)
        loader._tuner.fetched = lambda *_, **__: None  # or it may hand out samples in runs, as they come so quickly
        batches = iter(loader)
        assert next(batches).tolist() == first
        data.complete.set()
        assert sets(batches) == [list(range(at, at + 5)) for at in (5, 10, 15)]


@pytest.mark.parametrize("ordered", [False, True])
def test_cheap_samples_keep_their_batches_over_many_batches(ordered):
    loader = UnorderedDataLoader(Numbers(50_000), 64, num_workers=8, ordered=ordered)
    expected = lists(DataLoader(Numbers(50_000), 64))
    assert (lists(loader) if ordered else sets(loader)) == expected


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_the_default_is_torchs(batch_size):
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    mine = list(UnorderedDataLoader(data, batch_size, ordered=True))
    theirs = list(DataLoader(data, batch_size))
    assert [type(b) for b in mine] == [type(b) for b in theirs]
    assert all(torch.equal(x, y) for a, b in zip(mine, theirs, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("workers", KINDS)
def test_batch_size_none_gives_converted_samples_in_the_samplers_order(workers):
    data = [torch.tensor([n]) for n in range(40)]
    order = list(range(39, -1, -1))
    loader = UnorderedDataLoader(data, None, sampler=order, workers=workers, num_workers=2)
    assert [int(x) for x in loader] == order
    assert len(loader) == 40
    batches = UnorderedDataLoader(
        Together(10), None, sampler=BatchSampler(range(10), 4, False), collate_fn=list, num_workers=2
    )
    with pytest.raises(AssertionError, match="is there to be used"):  # the item asked for is dataset[list]
        next(iter(batches))


def test_samplers_and_batch_samplers():
    data = Numbers(12)
    assert sets(UnorderedDataLoader(data, 4, sampler=[5, 1, 3, 2, 11])) == [[1, 2, 3, 5], [11]]
    given = [[3, 1], [7], (0, 2, 4), torch.tensor([9, 8])]
    loader = UnorderedDataLoader(data, batch_sampler=given, ordered=True)
    assert lists(loader) == [[3, 1], [7], [0, 2, 4], [9, 8]]
    assert len(loader) == 4
    assert loader.batch_size is None
    subset = UnorderedDataLoader(Subset(data, [8, 6, 4, 2]), 2, ordered=True)
    assert lists(subset) == [[8, 6], [4, 2]]


def test_keys_need_not_be_numbers_and_a_length_is_needed_only_by_the_default_sampler():
    named = {"a": 1, "b": 2, "c": 3}
    assert sets(UnorderedDataLoader(named, 2, sampler=["c", "a", "b"])) == [[1, 3], [2]]

    class Endless:
        def __getitem__(self, index):
            return index

    assert sets(UnorderedDataLoader(Endless(), 2, sampler=[7, 8])) == [[7, 8]]
    with pytest.raises(UsageError, match="Endless has no length; give a sampler"):
        UnorderedDataLoader(Endless(), 2)


def test_an_endless_sampler_is_followed_a_few_batches_ahead_only():
    asked = []

    def endless():
        index = 0
        while True:
            asked.append(index)
            yield [index % 4]
            index += 1

    class Sampler:
        def __iter__(self):
            return endless()

    loader = UnorderedDataLoader(Numbers(4), batch_sampler=Sampler(), num_workers=3, prefetch_factor=2)
    batches = iter(loader)
    assert [next(batches).item() for _ in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert len(asked) == 9 + 2
    batches.close()


@pytest.mark.parametrize("count", [1, 5, 100, 4096, 10_000])
def test_the_shuffle_is_that_of_torchs_random_sampler(count):
    mine, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    a, b = ShuffleSampler(range(count), generator=mine), RandomSampler(range(count), generator=theirs)
    for _ in range(3):  # the generator moves on alike
        assert list(a) == list(b)
    assert torch.equal(mine.get_state(), theirs.get_state())
    torch.manual_seed(11)
    first = list(ShuffleSampler(range(count)))
    torch.manual_seed(11)
    assert first == list(RandomSampler(range(count)))


@pytest.mark.parametrize("workers", KINDS)
def test_a_generator_gives_the_batches_that_torchs_loader_gives(workers):
    stock, theirs = torch_order(50, 5, shuffle=True)
    mine = torch.Generator().manual_seed(5)
    loader = UnorderedDataLoader(
        Numbers(50), 7, shuffle=True, generator=mine, ordered=True, workers=workers, num_workers=2
    )
    for _ in range(3):
        assert lists(loader) == lists(stock)
    assert torch.equal(mine.get_state(), theirs.get_state())


def test_the_global_seed_gives_the_batches_that_torchs_loader_gives():
    torch.manual_seed(9)
    stock = DataLoader(Numbers(30), 4, shuffle=True)
    theirs = [lists(stock) for _ in range(2)]
    torch.manual_seed(9)
    loader = UnorderedDataLoader(Numbers(30), 4, shuffle=True, ordered=True)
    assert [lists(loader) for _ in range(2)] == theirs


def test_a_seed_and_an_epoch_decide_the_order_alone():
    def make(**options):
        return UnorderedDataLoader(Numbers(40), 6, shuffle=True, seed=3, ordered=True, **options)

    loader = make()
    epochs = [lists(loader) for _ in range(3)]
    assert len({str(e) for e in epochs}) == 3
    torch.manual_seed(123)
    again = make(num_workers=1)
    again.set_epoch(2)
    assert lists(again) == epochs[2]
    again.set_epoch(0)
    assert [lists(again), lists(again)] == epochs[:2]
    assert lists(UnorderedDataLoader(Numbers(40), 6, shuffle=True, seed=4, ordered=True)) != epochs[0]


def test_the_default_shuffle_holds_no_list_of_all_indices():
    sampler = iter(SeededSampler(range(1_000_000), seed=1))
    next(sampler)
    held = sampler.gi_frame.f_locals
    assert held["order"].dtype == torch.int32
    assert not [name for name, value in held.items() if isinstance(value, list) and len(value) > 10_000]


def test_the_other_samplers_of_torch_work():
    data = Numbers(20)
    loader = UnorderedDataLoader(data, 6, sampler=SubsetRandomSampler([1, 5, 9]))
    assert sets(loader) == [[1, 5, 9]]
    loader = UnorderedDataLoader(data, 6, sampler=WeightedRandomSampler([0.0] * 19 + [1.0], 8))
    assert sets(loader) == [[19] * 6, [19] * 2]


def test_distributed_samplers_share_the_data_out_and_hear_of_epochs():
    data = Numbers(22)
    for epoch in (0, 3):
        seen = []
        for rank in range(2):
            sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=True, seed=5)
            loader = UnorderedDataLoader(data, 4, sampler=sampler, ordered=True)
            loader.set_epoch(epoch)
            assert sampler.epoch == epoch
            batches = lists(loader)
            assert batches == lists(DataLoader(data, 4, sampler=sampler))
            seen += flat(batches)
        assert sorted(seen) == list(range(22))


def test_set_epoch_reaches_the_samplers_within_a_batch_sampler_once():
    heard = []

    class Sampler(list):
        def set_epoch(self, epoch):
            heard.append(epoch)

    class Batches(BatchSampler):
        def set_epoch(self, epoch):
            heard.append(-epoch)

    UnorderedDataLoader(Numbers(4), batch_sampler=Batches(Sampler([1, 2]), 2, False)).set_epoch(7)
    assert sorted(heard) == [-7, 7]
    UnorderedDataLoader(Numbers(4), 2, sampler=Sampler([1, 2])).set_epoch(8)
    assert sorted(heard) == [-7, 7, 8]


Pair = collections.namedtuple("Pair", ["x", "y"])


class Nested(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.full((2, 3), float(index))
        return {"x": x, "pair": Pair(index, [str(index), (x.numpy(), index / 2)])}


@pytest.mark.parametrize("workers", KINDS)
def test_nested_samples_are_collated_as_torch_does(workers):
    loader = UnorderedDataLoader(Nested(), 3, ordered=True, workers=workers, num_workers=2)
    for mine, theirs in zip(loader, DataLoader(Nested(), 3), strict=True):
        assert torch.equal(mine["x"], theirs["x"])
        assert type(mine["pair"]) is Pair
        assert torch.equal(mine["pair"].x, theirs["pair"].x)
        assert [*mine["pair"].y[0]] == [*theirs["pair"].y[0]]
        assert torch.equal(mine["pair"].y[1][0], theirs["pair"].y[1][0])
        assert torch.equal(mine["pair"].y[1][1], theirs["pair"].y[1][1])


def test_a_collate_of_ones_own_runs_in_the_pool_and_may_wrap_torchs():
    names = set()

    def collate(samples):
        names.add(threading.current_thread().name)
        return {"n": len(samples), "rows": default_collate(samples)}

    batches = list(UnorderedDataLoader(Numbers(10), 4, collate_fn=collate))
    assert [b["n"] for b in batches] == [4, 4, 2]
    assert all(name.startswith("penstock-fetch-") for name in names)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_small_and_empty_datasets(count, shuffle):
    loader = UnorderedDataLoader(Numbers(count), 5, shuffle=shuffle)
    assert sets(loader) == ([[0, 1, 2]] if count else [])
    assert len(loader) == (1 if count else 0)


def test_samples_of_a_batch_are_fetched_at_the_same_time():
    meeting = threading.Barrier(8)

    class Meeting(Numbers):
        def __getitem__(self, index):
            meeting.wait(30)  # only eight fetches at once get past it
            return index

    assert sets(UnorderedDataLoader(Meeting(32), 8, num_workers=8)) == sets(DataLoader(Numbers(32), 8))
    # Batches of two samples: eight at once are those of several batches.
    assert sets(UnorderedDataLoader(Meeting(32), 2, num_workers=8)) == sets(DataLoader(Numbers(32), 2))


def test_batches_are_made_while_one_is_used():
    made = threading.Event()

    class Watched(Numbers):
        def __getitem__(self, index):
            if index >= 8:
                made.set()
            return index

    batches = iter(UnorderedDataLoader(Watched(64), 4, num_workers=2, prefetch_factor=2))
    next(batches)
    assert made.wait(30)  # the third batch, with nobody asking for the second
    batches.close()


def test_many_indices_are_asked_for_at_once_where_the_dataset_can():
    data = Together(100)
    loader = UnorderedDataLoader(data, 50, num_workers=4, ordered=True)
    assert lists(loader) == lists(DataLoader(Numbers(100), 50))
    assert sorted(flat(data.calls)) == list(range(100))
    assert 2 <= len(data.calls) <= 50
    assert len(data.calls[0]) == 13  # a batch over four threads
    shuffled = UnorderedDataLoader(Together(100), 50, shuffle=True, seed=0, workers="processes", num_workers=1)
    assert sorted(flat(sets(shuffled))) == list(range(100))


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_is_called_once_in_each_thread_with_its_number(persistent):
    calls = []

    def init(number):
        info = worker_info()
        calls.append((number, threading.current_thread().name, info.id, info.num_workers, info.dataset is data))

    data = Numbers(24, 0.001)
    with UnorderedDataLoader(data, 6, num_workers=3, worker_init_fn=init, persistent_workers=persistent) as loader:
        for _ in range(3):
            list(loader)
    expected = [(n, f"penstock-fetch-{n}", n, 3, True) for n in range(3)]
    assert sorted(calls) == sorted(expected * (1 if persistent else 3))
    assert worker_info() is None


def test_persistent_threads_serve_several_loops_at_once():
    with UnorderedDataLoader(Numbers(30), 4, num_workers=4, persistent_workers=True, ordered=True) as loader:
        expected = lists(DataLoader(Numbers(30), 4))
        assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == [(x, x) for x in expected]
        next(iter(loader))
        assert lists(loader) == expected
        names = [t.name for t in threading.enumerate() if t.name.startswith("penstock-fetch")]
        assert len(names) == len(set(names)) <= 4


def test_worker_threads_leave_torchs_own_threads_as_they_were():
    inside = set()

    class Asking(Numbers):
        def __getitem__(self, index):
            inside.add(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(UnorderedDataLoader(Asking(40), 4, num_workers=4))
        found = []
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert (torch.get_num_threads(), found) == (2, [2])
    finally:
        torch.set_num_threads(before)
    assert inside == {1}


def test_pinning_without_an_accelerator_warns_and_goes_on():
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    for workers in KINDS:
        loader = UnorderedDataLoader(Numbers(6), 3, pin_memory=True, workers=workers, num_workers=1)
        with pytest.warns(UserWarning, match="pin_memory=True has no effect: there is no accelerator"):
            assert sets(loader) == [[0, 1, 2], [3, 4, 5]]


def test_pinning_is_done_in_the_pool_where_it_can_be(monkeypatch):
    where = []

    class Batch:
        def pin_memory(self):
            where.append(threading.current_thread().name)
            return "pinned"

    monkeypatch.setattr("penstock.torch.unordered.can_pin", lambda: True)
    loader = UnorderedDataLoader(Numbers(6), 3, pin_memory=True, collate_fn=lambda samples: Batch())
    assert list(loader) == ["pinned", "pinned"]
    assert all(name.startswith("penstock-fetch-") for name in where)
