"""A loader made before its job: rank and world are those of the moment when a pass begins."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader as StockDataLoader

from penstock.errors import NoLengthError, UsageError
from penstock.torch import CorgiPileDataset, DataLoader

ROWS = 120
TABLE = pa.table({"number": np.arange(ROWS)})


@pytest.fixture
def job(monkeypatch):
    """Put this process in a job, as `init_process_group` or torchrun would; or out of it."""
    place = [None]
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: place[0] is not None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: place[0][0])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: place[0][1])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def join(rank=None, world=None, *, by="group"):
        place[0] = None if rank is None or by == "environment" else (rank, world)
        if by == "environment":
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))

    return join


def open_rows(**options):
    return DataLoader(TABLE, 10, shuffle="global", columns=("number",), seed=3, **options)


def rows(batches):
    return [row for (numbers,) in batches for row in numbers.tolist()]


@pytest.mark.parametrize("by", ["group", "environment"])
def test_loaders_made_before_the_job_share_the_rows_out(job, by):
    loaders = [open_rows() for _ in range(2)]
    assert [len(loader) for loader in loaders] == [12, 12]  # there is no job yet
    seen = []
    for rank, loader in enumerate(loaders):
        job(rank, 2, by=by)
        assert len(loader) == 6
        seen.append(rows(loader))
        assert loader.state_dict()["world"] == 2
        loader.close()
    assert [len(part) for part in seen] == [60, 60]
    assert sorted(seen[0] + seen[1]) == list(range(ROWS))


def test_a_group_comes_before_the_environment_and_arguments_before_both(job):
    job(3, 4, by="environment")
    with open_rows() as loader, open_rows(rank=0, world=1) as alone:
        assert len(rows(loader)) == 30
        job(0, 2)
        assert len(rows(loader)) == 60
        assert (len(alone), len(rows(alone))) == (12, ROWS)


def test_a_pass_under_way_keeps_its_world(job):
    with open_rows() as loader:
        stream = iter(loader)
        seen = rows([next(stream)])
        job(1, 2)
        assert len(loader) == 12
        assert loader.state_dict()["world"] == 1
        assert sorted(seen + rows(stream)) == list(range(ROWS))
        assert len(rows(loader)) == 60  # the next epoch


def test_a_state_loaded_before_the_job_is_dealt_out_when_the_pass_begins(job):
    with open_rows(rank=0, world=1) as loader:
        stream = iter(loader)
        before = rows([next(stream) for _ in range(4)])
        state = json.loads(json.dumps(loader.state_dict()))
        rest = rows(stream)
    loaders = [open_rows() for _ in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
    parts = []
    for rank, loader in enumerate(loaders):
        job(rank, 2)
        assert len(loader) == 4
        parts += rows(loader)
        loader.close()
    assert sorted(parts) == sorted(rest)
    assert sorted(parts + before) == list(range(ROWS))


def test_a_state_of_the_same_world_loaded_before_the_job_goes_on_row_for_row(job):
    for rank in range(2):
        job(rank, 2)
        with open_rows() as loader:
            stream = iter(loader)
            next(stream)
            state, rest = loader.state_dict(), rows(stream)
            after = rows(loader)
        job()
        with open_rows() as loader:
            loader.load_state_dict(state)
            job(rank, 2)
            assert rows(loader) == rest
            assert rows(loader) == after


def test_variables_that_are_no_rank_are_refused(job):
    job(2, 2, by="environment")
    with pytest.raises(UsageError, match=r"RANK='2' and WORLD_SIZE='2'"):
        open_rows()
    with pytest.raises(UsageError, match=r"RANK='2' and WORLD_SIZE='2'"):
        iter(CorgiPileDataset(list(range(10)), block_size=2))


def test_a_dataset_takes_its_share_by_the_environment_too(job):
    seen = []
    for rank in range(2):
        job(rank, 2, by="environment")
        dataset = CorgiPileDataset(list(range(ROWS)), block_size=10, batch_size=10)
        assert len(dataset) == 60
        for numbers in StockDataLoader(dataset, 10):
            seen += numbers.tolist()
    assert sorted(seen) == list(range(ROWS))


def test_an_order_whose_epochs_differ_has_no_length():
    with DataLoader(TABLE, 10, shuffle="mrs", columns=("number",)) as loader:
        counts = [sum(1 for _ in loader) for _ in range(2)]
        assert counts[0] != counts[1]
        with pytest.raises(NoLengthError, match="shuffle='mrs' has another number of batches in each epoch"):
            len(loader)
