"""A stream of batches taken up again goes on where it was left: by as many workers, or by more or fewer."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.blocks.memory import TableSource
from penstock.errors import UsageError
from penstock.loader.batches import Batches
from penstock.shuffle import ORDERS
from tests import samples

ROWS = 157
PLAIN = [name for name, order in ORDERS.items() if order.facts.exact and name != "sliding-window"]
MIXED = ["sliding-window", "mrs"]


def table(rows):
    numbers = np.arange(rows)
    texts = ["x" * (n % 7) for n in range(rows)]
    return pa.table({"number": numbers, "text": pa.array(texts, pa.string())})


def source_of(rows, block_rows, *, ragged=True):
    wanted = table(rows) if ragged else table(rows).select(["number"])
    return TableSource.of(wanted, block_size=block_rows * (20 if ragged else 8))


SOURCES = {"fixed": source_of(ROWS, 7, ragged=False), "ragged": source_of(ROWS, 7)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return sources of two more kinds: with units, and with single rows read by their bytes."""
    folder = tmp_path_factory.mktemp("files")
    kinds = {kind: samples.store(kind, folder, table(ROWS), block_rows=7) for kind in ("parquet", "converted")}
    yield kinds
    for source in kinds.values():
        source.close()


def numbers(stream):
    return [batch["number"].tolist() for batch in stream]


def memory_of(source, order, *, large):
    return "50MB" if large else samples.small_memory(source, order)


def world_of(source, world, **options):
    return [Batches(source, rank=rank, world=world, **options) for rank in range(world)]


def resumed_equals_uninterrupted(source, at, options, *, epochs=3):
    with Batches(source, **options) as stream:
        states, whole = [stream.state_dict()], []
        for _ in range(epochs):
            for batch in stream:
                whole.append(batch["number"].tolist())
                states.append(stream.state_dict())
    at = min(at, len(whole))
    state = json.loads(json.dumps(states[at]))  # a small thing that any file can hold
    assert len(json.dumps(state)) < 500
    with Batches(source, **options) as stream:
        stream.load_state_dict(state)
        assert stream.state_dict() == state
        rest = []
        while stream.epoch < epochs:
            rest += numbers(stream)
        assert rest == whole[at:]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=8)
@given(
    batch_size=st.integers(1, 200),
    at=st.integers(0, 60),
    large=st.booleans(),
    drop_last=st.booleans(),
    place=st.sampled_from([(0, 1), (0, 2), (2, 3)]),
    uneven=st.sampled_from(["pad", "drop"]),
)
def test_resumed_equals_uninterrupted(order, kind, batch_size, at, large, drop_last, place, uneven):
    source = SOURCES[kind]
    memory = memory_of(source, order, large=large)
    options = {"batch_size": batch_size, "shuffle": order, "memory": memory, "rank": place[0], "world": place[1]}
    resumed_equals_uninterrupted(source, at, options | {"uneven": uneven, "drop_last": drop_last})


@pytest.mark.parametrize("order", ORDERS)
def test_resumed_at_every_batch_of_two_epochs(order, tmp_path, files):
    for source in files.values():
        options = {"batch_size": 16, "shuffle": order, "memory": samples.small_memory(source, order), "seed": 2}
        with Batches(source, **options, scratch=tmp_path) as stream:
            states, whole = [stream.state_dict()], []
            for _ in range(2):
                for batch in stream:
                    whole.append(batch["number"].tolist())
                    states.append(stream.state_dict())
        with Batches(source, **options, scratch=tmp_path) as stream:
            for at, state in enumerate(states):
                stream.load_state_dict(json.loads(json.dumps(state)))
                left = [batch for _ in range(2 - stream.epoch) for batch in numbers(stream)]
                assert left == whole[at:]


# A job of several workers, run in steps: so many workers, a batch size, and the batches that each gives out.
JOBS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30), st.integers(0, 12)), min_size=2, max_size=4)


def run(source, jobs, **options):
    """Run one epoch by several sets of workers, one after another, the last to its end; return all rows given out."""
    given, state = [], None
    for number, (world, batch_size, batches) in enumerate(jobs):
        streams = world_of(source, world, batch_size=batch_size, **options)
        if state is not None:
            for stream in streams:
                stream.load_state_dict(state)
        lengths = {stream.epoch_batches() - stream.state_dict()["batches"] for stream in streams}
        assert len(lengths) == 1
        last = number == len(jobs) - 1
        states, sizes = [], []
        for stream in streams:
            at = 0
            part = []
            if last or batches:
                for batch in stream:
                    part.append(batch["number"].tolist())
                    at += 1
                    if at == batches and not last:
                        break
            given += [row for batch in part for row in batch]
            sizes.append([len(batch) for batch in part])
            states.append(json.loads(json.dumps(stream.state_dict())))
            stream.close()
        assert all(each == sizes[0] for each in sizes)
        assert all(each == states[0] for each in states)
        if last:
            assert states[0]["epoch"] == 1
            assert len(sizes[0]) == lengths.pop()
        elif states[0]["epoch"] == 1:
            return given
        state = states[-1]
    return given


def each_row_is_given_out(source, jobs, rows=ROWS, **options):
    dropped = run(source, jobs, uneven="drop", **options)
    assert len(set(dropped)) == len(dropped)
    assert set(run(source, jobs, uneven="pad", **options)) == set(range(rows))


@pytest.mark.parametrize("order", [name for name in PLAIN if ORDERS[name].facts.copy == "never"])
@settings(max_examples=25)
@given(
    rows=st.integers(60, 250),
    block_rows=st.integers(1, 12),
    jobs=JOBS,
    ragged=st.booleans(),
    large=st.booleans(),
    seed=st.integers(0, 3),
)
def test_the_rest_of_an_epoch_is_dealt_out_anew(order, rows, block_rows, jobs, ragged, large, seed):
    source = source_of(rows, block_rows, ragged=ragged)
    options = {"shuffle": order, "memory": memory_of(source, order, large=large), "seed": seed, "row_numbers": True}
    each_row_is_given_out(source, jobs, rows, **options)


@pytest.mark.parametrize("order", ["once", "epoch"])
@settings(max_examples=4)
@given(jobs=JOBS, large=st.booleans())
def test_so_is_that_of_a_shuffled_copy(order, jobs, large):
    source = SOURCES["ragged"]
    each_row_is_given_out(source, jobs, shuffle=order, memory=memory_of(source, order, large=large))


@pytest.mark.parametrize("order", [name for name in PLAIN if ORDERS[name].facts.copy == "never"])
@settings(max_examples=6)
@given(jobs=JOBS, large=st.booleans())
def test_so_is_that_of_row_groups_and_files(order, jobs, large, files):
    for source in files.values():
        each_row_is_given_out(source, jobs, shuffle=order, memory=memory_of(source, order, large=large))


@pytest.mark.parametrize("order", MIXED)
def test_orders_that_keep_rows_back_say_that_they_cannot_be_dealt_out_anew(order):
    options = {"shuffle": order, "memory": samples.small_memory(SOURCES["ragged"], order)}
    with Batches(SOURCES["ragged"], 8, **options) as stream:
        fresh = stream.state_dict()
        next(iter(stream))
        state = stream.state_dict()
    for other in ({"rank": 1, "world": 2}, {"batch_size": 9}):
        with Batches(SOURCES["ragged"], **({"batch_size": 8} | options | other)) as stream:
            with pytest.raises(UsageError, match=rf"shuffle='{order}' keeps rows back.*resume with the same"):
                stream.load_state_dict(state)
            stream.load_state_dict(fresh)  # nothing was given out: there is nothing to deal out anew
            batches_left = stream.epoch_batches()
            assert len(numbers(stream)) == batches_left


@settings(max_examples=60)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    rows=st.integers(1, 120),
    block_rows=st.integers(1, 20),
    world=st.integers(1, 5),
    batch_size=st.integers(1, 20),
    uneven=st.sampled_from(["pad", "drop"]),
    drop_last=st.booleans(),
    large=st.booleans(),
)
def test_all_workers_get_as_many_batches(order, rows, block_rows, world, batch_size, uneven, drop_last, large):
    source = source_of(rows, block_rows)
    memory = memory_of(source, order, large=large)
    streams = world_of(
        source, world, batch_size=batch_size, shuffle=order, memory=memory, uneven=uneven, drop_last=drop_last
    )
    given = []
    try:
        for _ in range(2):
            lengths = {stream.epoch_batches() for stream in streams}
            epoch = [numbers(stream) for stream in streams]
            assert {len(each) for each in epoch} == lengths
            assert len(lengths) == 1
            assert len({tuple(map(len, each)) for each in epoch}) == 1
            given.append([row for each in epoch for batch in each for row in batch])
    except UsageError:
        with pytest.raises(UsageError, match=f"of world={world} workers would get no row"):
            streams[0].epoch_batches()
        assert not given
        assert (rows if order in ("global", "once", "epoch") else len(source.block_rows)) < world
        return
    for each in given:
        if ORDERS[order].facts.exact and uneven == "drop":
            assert len(set(each)) == len(each)
        elif ORDERS[order].facts.exact and not drop_last:
            assert set(each) == set(range(rows))


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("order", [name for name in ORDERS if name not in ("once", "epoch")])
def test_fewer_blocks_than_workers_is_an_error_for_every_worker(order, uneven):
    source = source_of(30, 10) if order != "global" else source_of(3, 10)
    count = len(source.block_rows) if order != "global" else 3
    for rank in range(5):
        with Batches(source, 4, shuffle=order, rank=rank, world=5, uneven=uneven) as stream:
            for use in (Batches.epoch_batches, iter):
                with pytest.raises(
                    UsageError, match=rf"{5 - count} of world=5 workers would get no row.*fewer workers"
                ):
                    next(use(stream))
