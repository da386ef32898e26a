"""Multi-process CorgiPile under the stock loader: every sample once, over any ranks and workers, epoch after epoch."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset, IterableDataset

import penstock.torch
from penstock.blocks.conversion import convert
from penstock.blocks.fields import Fields
from penstock.blocks.open import open as open_source
from penstock.budget import Budget
from penstock.errors import BudgetError, ColumnError, DataError, SourceNotFoundError, UnknownOptionError, UsageError
from penstock.loader.loader import Loader
from penstock.shuffle import ORDERS, CorgiPile
from penstock.torch import CorgiPileDataset
from penstock.torch.epochs import Epochs
from penstock.torch.ranks import WorkerPlace, rank_rows, row_runs, worker_rows
from penstock.torch.samples import BlocksOfSamples, SampleStorage, StoredSamples

# More workers than a machine may have cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = 1_000
BLOCK = 30  # the last block is shorter
WIDTH = 500


class Numbers(Dataset):
    """Sample i is i; it counts how it was asked."""

    def __init__(self, count=ROWS):
        self.count, self.asked = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return index


class Together(Numbers):
    """A dataset that takes several indices at once."""

    def __getitem__(self, index):
        raise AssertionError("asked for a single sample")

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return list(indices)


class Pair(Dataset):
    """Sample i is (i, its label); the labels are sorted."""

    def __len__(self):
        return 4_000

    def __getitem__(self, index):
        return index, int(index >= 2_000)


def loader_of(dataset, workers=0, **options):
    if workers:
        options.setdefault("multiprocessing_context", "fork")
    return DataLoader(dataset, num_workers=workers, **options)


def one_pass(dataset, workers=0, *, batch_size=16, **options):
    """Return a pass's batches as lists of numbers."""
    batches = list(loader_of(dataset, workers, batch_size=batch_size, **options))
    return [(b["n"] if isinstance(b, dict) else b[0] if isinstance(b, (list, tuple)) else b).tolist() for b in batches]


def flat(batches):
    return [number for batch in batches for number in batch]


def table(rows=ROWS):
    n = np.arange(rows)
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(n, WIDTH).astype(np.float32)), WIDTH)
    return pa.table({"n": n, "x": x, "name": [f"row {i}" for i in range(rows)]})


@pytest.fixture(scope="module")
def arrow(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("data") / "rows.arrow")
    convert(table(), path, block_size="60KB")
    assert len(open_source(path).block_rows) > 20
    return path


KINDS = ("mapped", "stored")


def dataset_of(kind, arrow, **options):
    if kind == "mapped":
        return CorgiPileDataset(Numbers(), block_size=BLOCK, buffer=240, **options)
    return CorgiPileDataset(arrow, memory="6MB", columns=["n", "x"], **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_every_sample_comes_once(kind, world, workers, arrow):
    seen = []
    for rank in range(world):
        dataset = dataset_of(kind, arrow, rank=rank, world=world)
        batches = one_pass(dataset, workers)
        assert len(flat(batches)) == len(dataset) == ROWS // world
        seen += flat(batches)
    assert sorted(seen) == list(range(ROWS))
    assert seen != sorted(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_the_seeds_and_the_epochs(kind, arrow):
    first, again = dataset_of(kind, arrow, seed=3), dataset_of(kind, arrow, seed=3)
    epochs = [flat(one_pass(first, workers)) for workers in (0, 0, 2, 2)]
    assert [flat(one_pass(again, workers)) for workers in (0, 0, 2, 2)] == epochs
    assert len({tuple(order) for order in epochs}) == 4
    again.set_epoch(1)
    assert flat(one_pass(again)) == epochs[1]
    assert flat(one_pass(dataset_of(kind, arrow, seed=4))) != epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_epochs_go_on_with_workers_kept_and_started_anew(method, arrow):
    wanted = dataset_of("stored", arrow)
    epochs = [flat(one_pass(wanted, 2)) for _ in range(4)]
    rounds = [True] if method == "spawn" else [True, False]  # starting processes that import torch takes seconds
    for kept in rounds:
        dataset = dataset_of("stored", arrow)
        loader = loader_of(dataset, 2, batch_size=16, persistent_workers=kept, multiprocessing_context=method)
        assert [flat(b["n"].tolist() for b in loader) for _ in range(2)] == epochs[:2]
        dataset.set_epoch(0)  # after workers have begun: those that are kept must hear of it
        assert flat(b["n"].tolist() for b in loader) == epochs[0]
        next(iter(loader))  # epoch 1, left early
        assert flat(b["n"].tolist() for b in loader) == epochs[2]
        assert dataset.epoch == 3


@pytest.mark.slow
def test_spawned_workers_started_anew_go_on(arrow):
    dataset = dataset_of("stored", arrow)
    passes = [flat(one_pass(dataset, 1, multiprocessing_context="spawn")) for _ in range(2)]
    same = dataset_of("stored", arrow)
    assert passes == [flat(one_pass(same)) for _ in range(2)]
    assert passes[0] != passes[1]


def test_passes_at_the_same_time_keep_apart(arrow):
    for workers in (0, 2):
        dataset = dataset_of("stored", arrow)
        loader = loader_of(dataset, workers, batch_size=16)
        pairs = list(zip(loader, loader, strict=True))
        one, two = (flat(pair[side]["n"].tolist() for pair in pairs) for side in (0, 1))
        assert sorted(one) == sorted(two) == list(range(ROWS))
        assert one != two


def test_the_same_torch_seed_every_pass_does_not_stop_the_epochs():
    dataset = CorgiPileDataset(Numbers(), block_size=BLOCK)
    passes = []
    for _ in range(2):
        torch.manual_seed(0)
        passes.append(flat(one_pass(dataset, 2)))
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(ROWS))


def _rank_loops(dataset, queue):
    queue.put([dataset.epoch, [flat(one_pass(dataset, 2)) for _ in range(2)]])


@pytest.mark.slow
def test_processes_that_share_a_dataset_count_for_themselves():
    dataset = CorgiPileDataset(Numbers(), block_size=BLOCK)
    dataset.set_epoch(5)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=_rank_loops, args=(dataset, queue)) for _ in range(2)]
    for each in ranks:
        each.start()
    found = [queue.get(timeout=60) for _ in ranks]
    for each in ranks:
        each.join()
    assert found[0] == found[1]
    assert found[0][0] == 5
    assert found[0][1] == [flat(one_pass(dataset, 2)) for _ in range(2)]


def test_a_late_worker_joins_its_pass(monkeypatch):
    epochs = Epochs()
    begin = lambda seed, worker: _begin_as(monkeypatch, epochs, seed, worker)  # noqa: E731
    assert begin(100, 0) == 0
    assert begin(200, 0) == 1  # the next pass, while worker 1 of the first has not begun
    assert begin(100, 1) == 0
    assert begin(200, 1) == 1
    assert begin(300, 1) == 2
    assert epochs.next == 3


def _begin_as(monkeypatch, epochs, seed, worker):
    from penstock.torch import epochs as module

    class Info:
        pass

    info = Info()
    info.id, info.seed = worker, seed + worker
    monkeypatch.setattr(module, "get_worker_info", lambda: info)
    monkeypatch.setattr(module, "_home", lambda: 1)
    epochs._begun = (0, 0)  # a process of its own each time
    return epochs.begin()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_dealt_whole(kind, arrow):
    """No block is read by two processes, but for the ends that make them equal."""
    owners = {}
    block = np.arange(ROWS) // BLOCK
    if kind == "stored":
        source = open_source(arrow)
        fields = Fields.of(source.schema, ["n", "x"], place="")
        rows = Loader(source, fields, memory="2MB").source.block_rows  # as they are cut for a third of the memory
        block = np.repeat(np.arange(len(rows)), rows)
    for rank in range(3):
        dataset = dataset_of(kind, arrow, rank=rank, world=3)
        for number in flat(one_pass(dataset)):
            owners.setdefault(int(block[number]), set()).add(rank)
    shared = [b for b, ranks in owners.items() if len(ranks) > 1]
    assert len(owners) == block.max() + 1
    # A worker short of rows takes them from the last window of another, which has at most a few blocks.
    assert len(shared) <= len(owners) / 3


@pytest.mark.parametrize("uneven", ["pad", "drop"])
@pytest.mark.parametrize("rows", [7, 61, 100])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_ranks_agree_on_every_workers_batches(uneven, rows, batch_size):
    world, workers = 3, 2
    found = []
    for rank in range(world):
        dataset = CorgiPileDataset(
            Numbers(rows), block_size=10, rank=rank, world=world, uneven=uneven, batch_size=batch_size
        )
        batches = one_pass(dataset, workers, batch_size=8)
        found.append(batches)
        assert len(flat(batches)) == len(dataset)
        if batch_size == 8:
            assert len(batches) == len(loader_of(dataset, workers, batch_size=8))
    sizes = [[len(batch) for batch in batches] for batches in found]
    assert sizes[0] == sizes[1] == sizes[2]
    seen = [number for batches in found for number in flat(batches)]
    if uneven == "pad":
        assert set(seen) == set(range(rows))
        assert len(seen) < rows + world
    else:
        assert len(set(seen)) == len(seen) > rows - world


def test_len_gives_rise_to_no_warning(arrow):
    for workers in (0, 1, 2, 3):  # warnings are errors here
        loader = loader_of(dataset_of("stored", arrow, rank=1, world=3), workers, batch_size=None)
        assert len(loader) == 334
        assert sum(1 for _ in loader) == 334


@pytest.mark.parametrize("dealt", [[30, 10], [0, 7, 0, 1], [5, 5, 5, 5], [1, 0, 0, 0, 0, 0], [9, 0, 3, 0, 0, 40]])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_shares_leave_nothing_out(dealt, batch_size):
    for world in (w for w in range(1, len(dealt) + 1) if len(dealt) % w == 0):
        workers = len(dealt) // world
        for uneven in ("pad", "drop"):
            given, sizes = [], []
            for rank in range(world):
                places = [WorkerPlace(rank, world, worker, workers) for worker in range(workers)]
                shares = [row_runs(dealt, place, uneven=uneven, batch_size=batch_size) for place in places]
                sizes.append([sum(p.stop - p.start for p in share) for share in shares])
                given += [(p.process, row) for share in shares for p in share for row in range(p.start, p.stop)]
            each = rank_rows(sum(dealt), world, uneven)
            assert sizes == [worker_rows(each, workers, batch_size=batch_size)] * world
            assert sum(sizes[0]) == each
            every = {(process, row) for process, has in enumerate(dealt) for row in range(has)}
            assert set(given) <= every
            assert uneven == "drop" or set(given) == every
            assert uneven == "pad" or len(set(given)) == len(given)


def label_variance(batches):
    shares = np.array([np.mean(np.array(batch) >= 2_000) for batch in batches])
    return shares.var() / (0.25 / len(batches[0]))


@pytest.mark.parametrize("workers", [0, 2])
def test_sorted_labels_are_mixed(workers):
    orders = ("corgipile", "none", "block-only")
    mixed, plain, only = (
        CorgiPileDataset(Pair(), block_size=5, buffer=1_000, batch_size=50, shuffle=name) for name in orders
    )
    found, stored, blocks = (label_variance(one_pass(d, workers, batch_size=50)) for d in (mixed, plain, only))
    assert found < 2.0
    assert stored > 20
    assert blocks > 2 * found


class Alive:
    """A sample that counts how many of it there are."""

    now = most = 0

    def __init__(self, number):
        self.number = number
        Alive.now += 1
        Alive.most = max(Alive.most, Alive.now)

    def __del__(self):
        Alive.now -= 1


class Living(Numbers):
    def __getitem__(self, index):
        return Alive(index)


@pytest.mark.parametrize("shuffle", ["corgipile", "global", "sliding-window", "none"])
@pytest.mark.parametrize(("world", "held"), [(1, 240), (2, 120), (4, 60)])
def test_buffers_are_a_part_each(world, held, shuffle):
    Alive.now = Alive.most = 0
    dataset = CorgiPileDataset(Living(), block_size=10, buffer=240, rank=0, world=world, shuffle=shuffle)
    for sample in dataset:
        del sample
    assert held * 0.7 < Alive.most <= held + 2
    gc.collect()
    assert Alive.now == 0


def test_memory_is_a_part_each(arrow):
    held = {}
    for memory, world, workers in (("4MB", 1, 1), ("8MB", 2, 1), ("16MB", 2, 2), ("4MB", 2, 2), ("200%", 2, 2)):
        storage = SampleStorage(
            arrow, CorgiPile(), Budget.parse(memory) if memory != "200%" else Budget(share=2.0), ["x"], 0, False, None
        )
        samples = StoredSamples(storage, WorkerPlace(0, world, 0, workers))
        held[memory, world * workers] = samples.held_rows
        samples.close()
    assert held["4MB", 1] == held["8MB", 2] == held["16MB", 4]
    assert BLOCK < held["4MB", 4] < held["4MB", 1] / 3  # about a quarter: smaller blocks take less to be read
    assert BLOCK < held["200%", 4] < ROWS / 4


def test_windows_are_filled_while_others_are_given_out():
    """A block is read as soon as there is room for it, not the whole window at its end."""
    numbers = Together()
    dataset = CorgiPileDataset(numbers, block_size=10, buffer=100)
    stream = iter(dataset)
    next(stream)
    assert len(numbers.asked) == 10
    for _ in range(50):
        next(stream)
    assert len(numbers.asked) == 15


def test_blocks_are_read_together_where_the_dataset_can():
    numbers = Together()
    assert sorted(CorgiPileDataset(numbers, block_size=BLOCK, buffer=240)) == list(range(ROWS))
    assert all(block == list(range(block[0], block[0] + len(block))) for block in numbers.asked)
    assert len(numbers.asked) == -(-ROWS // BLOCK)
    alone = Numbers()
    assert sorted(CorgiPileDataset(alone, block_size=BLOCK, buffer=240)) == list(range(ROWS))
    assert len(alone.asked) == ROWS


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_any_order_of_stored_data(name, arrow, tmp_path):
    seen, lengths = [], set()
    for rank in range(2):
        dataset = dataset_of("stored", arrow, shuffle=name, rank=rank, world=2, scratch=tmp_path)
        numbers = flat(one_pass(dataset, 2))
        lengths.add(len(numbers))
        seen += numbers
    assert len(lengths) == 1
    assert list(tmp_path.iterdir()) == []
    if ORDERS[name].facts.exact:
        assert sorted(seen) == list(range(ROWS))
    else:
        assert set(seen) <= set(range(ROWS))
        with pytest.raises(TypeError, match="another number of samples in each epoch"):
            len(dataset)


@pytest.mark.parametrize("name", ["block-only", "corgipile", "global", "none", "sliding-window"])
def test_any_order_of_a_map_style_dataset(name):
    for world, workers in ((1, 0), (3, 2)):
        seen = []
        for rank in range(world):
            dataset = CorgiPileDataset(Numbers(), block_size=7, buffer=120, shuffle=name, rank=rank, world=world)
            seen += flat(one_pass(dataset, workers))
        assert sorted(set(seen)) == list(range(ROWS))
        assert len(seen) < ROWS + world
        assert (seen == sorted(seen)) == (name == "none" and world == 1)


def test_parquet_whose_blocks_are_parts_of_row_groups(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table(), path, row_group_size=300)
    for world, workers in ((1, 2), (3, 0), (2, 3)):
        seen = []
        for rank in range(world):
            seen += flat(one_pass(CorgiPileDataset(path, columns=("n",), rank=rank, world=world), workers))
        assert sorted(set(seen)) == list(range(ROWS))
        assert len(seen) < ROWS + world


def test_fewer_blocks_than_processes():
    seen = []
    for rank in range(2):
        dataset = CorgiPileDataset(table(), columns=("n",), rank=rank, world=2)  # one block
        seen.append(flat(one_pass(dataset, 2)))
    assert [len(numbers) for numbers in seen] == [ROWS // 2] * 2
    assert sorted(seen[0] + seen[1]) == list(range(ROWS))


def test_samples_are_dicts_or_tuples_of_tensors(arrow):
    first = next(iter(CorgiPileDataset(arrow, row_numbers=True)))
    assert list(first) == ["n", "x", "name", "row_number"]
    number = int(first["n"])
    assert first["x"].tolist() == [number] * WIDTH
    assert (first["name"], int(first["row_number"])) == (f"row {number}", number)
    assert first["x"].dtype == torch.float32
    x, n = next(iter(CorgiPileDataset(arrow, columns=("x", "n"))))
    assert x.shape == (WIDTH,)
    assert n.shape == ()
    assert n.dtype == torch.int64


def test_samples_outlive_their_window(arrow):
    for sample, copy in [(s, s["x"].clone()) for s in CorgiPileDataset(arrow, memory="800KB")]:
        assert torch.equal(sample["x"], copy)
        assert int(sample["x"][0]) == int(sample["n"])


def test_a_transform_is_applied_to_each_sample(arrow):
    for dataset in (
        CorgiPileDataset(arrow, columns=("n",), transform=lambda row: row[0] + 1),
        CorgiPileDataset(Numbers(), block_size=BLOCK, transform=lambda number: number + 1),
    ):
        assert sorted(flat(b.tolist() for b in loader_of(dataset, 2, batch_size=7))) == list(range(1, ROWS + 1))


def test_sources_and_arrays(arrow):
    with open_source(arrow) as source:
        assert sorted(flat(one_pass(CorgiPileDataset(source, columns=["n"]), 2))) == list(range(ROWS))
        assert source.read(0).num_rows  # ours to close, not the dataset's
    array = np.arange(60, dtype=np.float32).reshape(20, 3)
    seen = torch.stack([next(iter(row.values())) for row in CorgiPileDataset(array)])
    assert sorted(seen[:, 0].tolist()) == array[:, 0].tolist()
    rows = list(CorgiPileDataset(array, block_size=4))
    assert sorted(row[0] for row in rows) == array[:, 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_it_is_a_dataset_of_its_own(kind, arrow):
    dataset = dataset_of(kind, arrow, seed=2)
    first = flat(one_pass(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.epoch == 1
    second = flat(one_pass(copy))
    assert dataset.epoch == 1
    assert flat(one_pass(dataset)) == second != first


def test_nothing_is_left_open(arrow):
    dataset = dataset_of("stored", arrow)
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        next(iter(dataset))
    assert threading.active_count() <= before[0] + 40
    dataset.close()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
    assert len(list(dataset)) == ROWS  # it opens again
    del dataset
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (before[0], before[1] - 1)


def test_rank_and_world_are_torch_distributeds(monkeypatch):
    dataset = CorgiPileDataset(Numbers(), block_size=BLOCK)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert len(dataset) == ROWS // 4
    expected = list(dataset)
    sent = pickle.dumps(dataset)  # as to a worker that is spawned, where nothing is initialised
    monkeypatch.undo()
    arrived = pickle.loads(sent)
    arrived.set_epoch(0)
    assert list(arrived) == expected
    assert len(CorgiPileDataset(Numbers(), block_size=BLOCK, rank=0, world=2)) == ROWS // 2


def test_it_is_exported():
    assert penstock.torch.CorgiPileDataset is CorgiPileDataset
    assert "CorgiPileDataset" in penstock.torch.__all__


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class Broken(Numbers):
    def __getitem__(self, index):
        if index == 77:
            raise ValueError("no such image")
        return index


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (Numbers(), {}, UsageError, r"CorgiPileDataset\(dataset, block_size=100\)"),
        (Unsized(), {"block_size": 5}, UsageError, "Unsized has no length.*__len__"),
        (Numbers(0), {"block_size": 5}, DataError, "Numbers is empty"),
        ([], {"block_size": 5}, DataError, "list is empty"),
        (Endless(), {"block_size": 5}, UsageError, "Endless has no samples by index"),
        (object(), {}, UsageError, "object has no samples by index"),
        (
            "a.arrow",
            {"block_size": 5},
            UsageError,
            "block_size=5 is for map-style.*penstock convert SRC DST.arrow --block-size",
        ),
        (["a.arrow", "b.arrow"], {"block_size": 5}, UsageError, "block_size=5 is for map-style"),
        (pa.table({"x": [1]}), {"block_size": 5}, UsageError, "block_size=5 is for map-style"),
        ("a.arrow", {"buffer": 5}, UsageError, "buffer=5 is for map-style datasets.*memory="),
        ("a.arrow", {"memory": "much"}, UsageError, "memory='much' is not an amount"),
        ("a.arrow", {"columns": "x"}, UsageError, r"columns=\('x',\)"),
        ("a.arrow", {"rank": 1}, UsageError, "give both"),
        ("a.arrow", {"rank": 2, "world": 2}, UsageError, "rank=2 of world=2"),
        ("a.arrow", {"shuffle": "corgi"}, UnknownOptionError, "corgipile"),
        ("a.arrow", {"uneven": "fill"}, UnknownOptionError, "drop, pad"),
        (Numbers(), {"block_size": 0}, UsageError, "block_size=0 is not a number of samples"),
        (Numbers(), {"block_size": 5, "buffer": 2.5}, UsageError, "buffer=2.5 is not a number"),
        (Numbers(), {"block_size": 5, "memory": "1MB"}, UsageError, "memory='1MB' is for stored data.*buffer="),
        (Numbers(), {"block_size": 5, "columns": ["x"]}, UsageError, "for stored data"),
        (Numbers(), {"block_size": 5, "shuffle": "once"}, UsageError, "shuffle='once'.*'global'"),
        (Numbers(), {"block_size": 5, "shuffle": "mrs"}, UsageError, "shuffle='mrs'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(data, options, error, message):
    with pytest.raises(error, match=message):
        CorgiPileDataset(data, **options)


def test_what_the_data_show_later(arrow, tmp_path):
    with pytest.raises(SourceNotFoundError):
        len(CorgiPileDataset(str(tmp_path / "none.arrow")))
    with pytest.raises(ColumnError, match="'z'"):
        next(iter(CorgiPileDataset(arrow, columns=["z"])))
    with pytest.raises(DataError, match="no rows"):
        len(CorgiPileDataset(table(0)))
    with pytest.raises(BudgetError, match=r"(?s)memory=4.0 kB is for 4 processes.*4 times that"):
        next(iter(CorgiPileDataset(arrow, memory=4_000, rank=0, world=4)))
    with pytest.raises(BudgetError, match=r"buffer=40 samples for 2 processes is 20 for each.*give buffer=60 or more"):
        next(iter(CorgiPileDataset(Numbers(), block_size=BLOCK, buffer=40, rank=0, world=2)))
    with pytest.raises(UsageError, match="epochs count from 0"):
        CorgiPileDataset(arrow).set_epoch(-1)


def test_a_sample_that_fails_is_named():
    with pytest.raises(ValueError, match="no such image") as caught:
        list(CorgiPileDataset(Broken(), block_size=BLOCK))
    assert "sample 77 of Broken" in " ".join(caught.value.__notes__)


def test_blocks_of_samples_take_no_more_than_the_data():
    blocks = BlocksOfSamples(Numbers(5), CorgiPile(), block_size=100, buffer=None, seed=0, processes=3)
    assert sum(blocks.dealt(0)) == 5


def test_few_blocks_in_a_window_of_stored_data_are_warned_of(tmp_path, caplog):
    path = tmp_path / "a.arrow"
    table = pa.table({"x": np.random.default_rng(0).random(20_000)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")  # cannot be read in parts
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1000)
    assert sum(1 for _ in CorgiPileDataset(str(path), memory="70%")) == 20_000
    assert caplog.text.count("should: rows that lie sorted") == 1
