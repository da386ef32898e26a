"""The unordered loader in the place of torch's own: its options, what it refuses, and who shares its samples out."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from penstock.errors import UnknownOptionError, UsageError
from penstock.torch.samplers import SeededSampler
from penstock.torch.unordered import UnorderedDataLoader
from tests.unit.test_torch_unordered import Numbers, lists, sets


class Stream(IterableDataset):
    def __init__(self, count):
        self.count, self.epoch = count, None

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_it_is_a_loader_of_torch_and_takes_what_that_takes():
    loader = UnorderedDataLoader(Numbers(6), 2, True, persistent_workers=True, prefetch_factor=3)
    assert isinstance(loader, DataLoader)
    assert UnorderedDataLoader[torch.Tensor]  # generic, as torch's is
    assert isinstance(loader.sampler, RandomSampler)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (0, True, 3)
    theirs = inspect.signature(DataLoader.__init__).parameters
    mine = inspect.signature(UnorderedDataLoader.__init__).parameters
    assert not set(theirs) - set(mine)
    places = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(mine)[: len(places)] == places
    loader.close()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context: workers='processes'"),
        ({"in_order": False}, "in_order=False: batches come in the sampler's order"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device: the current accelerator is used"),
    ],
)
def test_options_without_effect_are_taken_with_a_warning(options, name):
    with pytest.warns(UserWarning, match=f"ignores {name}"):
        loader = UnorderedDataLoader(Numbers(6), 2, ordered=True, **options)
    assert lists(loader) == [[0, 1], [2, 3], [4, 5]]


def test_a_start_method_that_does_not_exist_is_refused_also_where_it_is_ignored():
    with pytest.raises(UnknownOptionError, match=r"multiprocessing_context='spwan' is not known.*'spawn'"):
        UnorderedDataLoader(Numbers(4), 2, multiprocessing_context="spwan")


def test_the_usual_values_of_options_without_effect_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = UnorderedDataLoader(
            Numbers(4), 2, num_workers=100, in_order=True, multiprocessing_context=None, pin_memory_device=""
        )
    assert sets(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_the_batches_depend_on_cannot_be_set_afterwards(name):
    loader = UnorderedDataLoader(Numbers(4), 2)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
        setattr(loader, name, getattr(loader, name))


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_can_only_be_iterated_go_to_torchs_loader(workers):
    data = Stream(7)
    loader = UnorderedDataLoader(data, 3, num_workers=workers)
    assert lists(loader) == lists(DataLoader(data, 3, num_workers=workers))
    assert len(loader) == 3
    loader.set_epoch(4)
    assert data.epoch == 4
    with pytest.warns(UserWarning, match="Stream is an IterableDataset.*its epoch begins anew"):
        loader.load_state_dict(loader.state_dict())


def test_data_that_can_only_be_iterated_have_no_shuffle_and_no_sampler():
    for options in ({"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}):
        with pytest.raises(ValueError, match="DataLoader with IterableDataset"):
            UnorderedDataLoader(Stream(3), **options)
    with pytest.raises(UsageError, match="seed=1 shuffles indices"):
        UnorderedDataLoader(Stream(3), seed=1)


def test_a_job_that_does_not_share_samples_out_is_warned(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    data = Numbers(8)
    for options in ({}, {"shuffle": True}, {"shuffle": True, "seed": 1}):
        with pytest.warns(UserWarning, match=r"each of the 2 processes .* all samples of Numbers.*DistributedSampler"):
            assert len(sets(UnorderedDataLoader(data, 2, **options))) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = DistributedSampler(data, 2, 0, shuffle=False)
        assert sets(UnorderedDataLoader(data, 2, sampler=shared)) == [[0, 2], [4, 6]]
        assert len(sets(UnorderedDataLoader(data, 2, sampler=SequentialSampler(data)))) == 4


def test_the_batch_sampler_passes_epochs_on():
    loader = UnorderedDataLoader(Numbers(8), 2, shuffle=True, seed=3)
    assert type(loader.sampler) is SeededSampler
    orders = []
    for epoch in (0, 1, 0):
        loader.batch_sampler.set_epoch(epoch)
        orders.append(list(loader.batch_sampler))
    assert orders[0] == orders[2] != orders[1]
