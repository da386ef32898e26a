"""`CorgiPileDataset`: multi-process CorgiPile (section 6) for the stock ``torch.utils.data.DataLoader``.

Blocks are shuffled by a seed that all processes have in common and dealt out over ranks and workers; each shuffles the
rows of as many as its part of the buffer holds. It has no state to save in the middle of an epoch, since the stock
loader has no place for one: `penstock.torch.DataLoader` has.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import pyarrow as pa
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from penstock.blocks.base import BlockSource
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.errors import DataError, NoLengthError, UnknownOptionError, UsageError
from penstock.loader.batches import Uneven
from penstock.loader.stream_pass import ActivePass, Pass, end_left
from penstock.loader.transforms import check_form
from penstock.messages import Convert, Given, Text, Use, joined
from penstock.shuffle import Order
from penstock.shuffle import order as order_named
from penstock.torch.epochs import Epochs
from penstock.torch.ranks import (
    OuterSharding,
    WorkerPlace,
    check_rank,
    current_rank,
    outer_sharding,
    rank_rows,
    row_runs,
)
from penstock.torch.samples import BlocksOfSamples, SampleStorage, StoredSamples

_MEMORY = "512MB"


class CorgiPileDataset(Closing, IterableDataset[Any]):
    """Shuffled samples for the stock loader with any ``num_workers``, one by one.

    Every rank gives out the same number of samples, and worker ``w`` of one as many as worker ``w`` of any other: in a
    job of several processes none waits for a batch that another does not have. Blocks are dealt out whole; rows that
    one process is dealt more than others are given out by those that are short of them.

    Without `set_epoch` each pass over the loader is the next epoch, with workers that are kept
    (``persistent_workers=True``) as with workers started anew. The place within an epoch cannot be saved:
    `penstock.torch.DataLoader` has ``state_dict``, and needs no worker processes.

    Parameters
    ----------
    data : path, source, table or map-style dataset
        Whatever `penstock.open` takes, opened by each worker for itself; text is counted by each before its first
        sample. Or a dataset with ``dataset[index]`` and ``len(dataset)``, together with ``block_size``.
    block_size : int, optional
        Samples of a block of a map-style dataset: consecutive indices, read together, by ``__getitems__`` where there
        is one.
    buffer : int, optional
        Samples of a map-style dataset that all processes of the job hold together, each an equal part; a tenth of the
        data, if not given.
    memory : str or int
        For stored data: what all processes of the job may hold together, ``512MB`` if not given; each has an equal
        part. Batches that the stock loader has ready come beside it.
    shuffle : str, bool or Order
        ``corgipile`` (also ``True``), ``none`` (also ``False``) or any other order. ``once`` and ``epoch`` write a copy
        of the data for each process; ``global`` does not, and shuffles as well.
    columns : tuple or list of str, or Recipe, optional
        Columns of stored data: a tuple gives samples as tuples in this order, a list or None (all columns) as dicts.
        Values are tensors; text and bytes are ``str`` and ``bytes``.
        Or a recipe (`penstock.recipe_for`): dicts of ``numbers``, ``categories`` (one number a column, for embeddings), ``label``.
    transform : callable, optional
        Applied to each sample, by the worker that read it.
    seed : int
        Chance; the same for all ranks.
    rank, world : int, optional
        This rank's place among all. If not given, each pass asks when it begins: ``torch.distributed`` where that is
        initialised, else the variables ``RANK`` and ``WORLD_SIZE``. Where accelerate (or Hugging Face's Trainer) shares
        samples out itself, the dataset leaves it to that, and gives out all samples.
    uneven : str
        Where samples cannot be shared out evenly: ``pad`` repeats one for the ranks that lack it, ``drop`` leaves out
        those that are over.
    batch_size : int, optional
        That of the loader: workers then give out whole batches, all but the last of an epoch full, and ``len(loader)``
        is right. If not given, each worker's last batch may be smaller, and there may be a few more than ``len`` says.
    row_numbers : bool
        Add a column ``row_number`` to stored data: where each row stands.
    scratch : path, optional
        Where orders that write a shuffled copy may do so.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> dataset = CorgiPileDataset(list(range(1000)), block_size=10, buffer=200, batch_size=100)
    >>> loader = DataLoader(dataset, batch_size=100)
    >>> first, second = [torch.cat(list(loader)) for epoch in range(2)]
    >>> len(loader), bool((first.sort().values == torch.arange(1000)).all()), bool((first == second).all())
    (10, True, False)
    """

    def __init__(
        self,
        data: Any,
        *,
        block_size: int | None = None,
        buffer: int | None = None,
        memory: str | int | Budget | None = None,
        shuffle: str | bool | Order = "corgipile",
        columns: Sequence[str] | Recipe | None = None,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        uneven: Uneven = "pad",
        batch_size: int = 1,
        row_numbers: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(shuffle, bool):
            shuffle = "corgipile" if shuffle else "none"
        self._order: Order = order_named(shuffle) if isinstance(shuffle, str) else shuffle
        if uneven not in ("pad", "drop"):
            raise UnknownOptionError.of("uneven", uneven, ("pad", "drop"))
        check_rank(rank, world)
        for name, value in (("batch_size", batch_size), ("block_size", block_size), ("buffer", buffer)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise UsageError("is not a number of samples", option=name, value=value, fixes=["choose 1 or more"])
        mapped = _is_mapped(data, block_size)
        for_stored = {"memory": memory, "columns": columns, "row_numbers": row_numbers or None, "scratch": scratch}
        given = [Given(name, value) for name, value in for_stored.items() if value is not None]
        if mapped and given:
            hold, choose = "say how many samples to hold with ", ", and choose what is in them with "
            raise UsageError(
                joined(given),
                f" is for stored data, and {type(data).__name__} is a map-style dataset",
                fixes=[Text(hold, Use("buffer"), choose, Use("transform"))],
            )
        if mapped:
            _check_mapped(data, self._order)
        if not mapped and buffer is not None:
            raise UsageError(
                "is for map-style datasets",
                option="buffer",
                value=buffer,
                fixes=[Text("for stored data give ", Use("memory"), ", such as '512MB'")],
            )
        check_form(columns, transform, per_sample=False)
        self.data, self.seed, self.transform = data, seed, transform
        self._uneven, self._batch_size = uneven, batch_size
        self._block_size, self._buffer = block_size if mapped else None, buffer
        self._storage = SampleStorage(
            data, self._order, Budget.parse(_MEMORY if memory is None else memory), columns, seed, row_numbers, scratch
        )
        self._fixed_rank = None if rank is None or world is None else (rank, world)
        self._pickled_rank: tuple[int, int] | None = None
        self._outer: OuterSharding | None = None
        self._pickled_outer: OuterSharding | None = None
        self._epochs = Epochs()
        self._rows: int | None = None
        self._keep_open()

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self._epochs.next

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, also of workers that are kept; the passes after it count on from there."""
        if epoch < 0:
            raise UsageError(": epochs count from 0", option="epoch", value=epoch)
        self._epochs.next = epoch

    def __len__(self) -> int:
        """Return the samples that this rank gives out in an epoch, by all of its workers together."""
        if not self._order.facts.exact:
            raise NoLengthError(
                "gives out another number of samples in each epoch", option="shuffle", value=self._order.name
            )
        if self._rows is None:
            self._rows = len(self.data) if self._block_size is not None else self._storage.rows()
        # Remembered for those who ask the dataset itself, as Hugging Face's Trainer does.
        self._outer = self._shared_outside() or self._outer
        return rank_rows(self._rows, 1 if self._outer else self._rank()[1], self._uneven)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        outer = self._outer = self._shared_outside()
        if outer is None:
            place, batch_size = WorkerPlace(*self._rank(), worker, workers), self._batch_size
        else:
            alone = outer.dispatched and info is None  # the other processes have an iterator, and never ask it
            place = WorkerPlace(0, 1, worker, workers, readers=1 if alone else outer.readers)
            batch_size = outer.batch_size or self._batch_size
        end_left()
        # Begun here and not with the first sample: of two passes, the one asked for first has the earlier epoch.
        return Pass(ActivePass(self._samples(self._epochs.begin(), place, batch_size)))

    def close(self) -> None:
        """Close the files that a pass in this process has left open for the next; there may be one still."""
        _close(self._open)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_open"}
        # Worker processes that are started, not forked, know nothing of torch.distributed.
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            state["_pickled_rank"] = current_rank()
        state["_pickled_outer"] = outer_sharding()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._keep_open()

    def _keep_open(self) -> None:
        self._open: list[tuple[int, WorkerPlace, StoredSamples]] = []
        weakref.finalize(self, _close, self._open)

    def _rank(self) -> tuple[int, int]:
        if self._fixed_rank is not None:
            return self._fixed_rank
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return current_rank()
        return self._pickled_rank or current_rank()

    def _shared_outside(self) -> OuterSharding | None:
        outer = outer_sharding() or (None if get_worker_info() is None else self._pickled_outer)
        if outer is not None and outer.readers > 1 and self._fixed_rank is not None and self._fixed_rank[1] > 1:
            rank, world = self._fixed_rank
            raise UsageError(
                "and ",
                Given("world", world),
                f" give out a share of the samples, and accelerate shares that out again over {outer.readers}"
                " processes",
                option="rank",
                value=rank,
                fixes=[
                    Text("leave ", Use("rank"), " and ", Use("world"), " out"),
                    "do not hand the loader to accelerator.prepare",
                ],
            )
        return outer

    def _samples(self, epoch: int, place: WorkerPlace, batch_size: int) -> Generator[Any, None, None]:
        reader = self._reader(place)
        try:
            share = row_runs(reader.dealt(epoch), place, uneven=self._uneven, batch_size=batch_size)
            for piece in share:
                with closing(reader.read(epoch, piece.process, piece.start, piece.stop)) as samples:
                    yield from samples if self.transform is None else map(self.transform, samples)
        except Exception:
            reader.close()
            raise
        except GeneratorExit:
            self._put_back(place, reader)
            raise
        self._put_back(place, reader)

    def _reader(self, place: WorkerPlace) -> BlocksOfSamples | StoredSamples:
        if self._block_size is not None:
            return BlocksOfSamples(
                self.data,
                self._order,
                self._block_size,
                self._buffer,
                self.seed,
                processes=place.processes,
                readers=place.readers,
            )
        for entry in self._open:
            # Those of the process that this one was forked from stay with it, open as they are.
            if entry[:2] == (os.getpid(), place):
                self._open.remove(entry)
                return entry[2]
        reader = StoredSamples(self._storage, place)
        if self._order.facts.copy != "never" and get_worker_info() is not None:
            Finalize(None, reader.close, exitpriority=1)  # such processes end without the usual farewells
        return reader

    def _put_back(self, place: WorkerPlace, reader: BlocksOfSamples | StoredSamples) -> None:
        """Keep what a pass has opened for the next one, unless one such is kept already."""
        if isinstance(reader, BlocksOfSamples):
            return
        if any(process == os.getpid() for process, _, _ in self._open):
            reader.close()
        else:
            self._open.append((os.getpid(), place, reader))


def _close(readers: list[tuple[int, WorkerPlace, StoredSamples]]) -> None:
    for entry in [entry for entry in readers if entry[0] == os.getpid()]:
        readers.remove(entry)
        entry[2].close()


def _is_mapped(data: Any, block_size: int | None) -> bool:
    """Whether data are a map-style dataset; what else they may be is for `penstock.open` to say."""
    name = type(data).__name__
    paths = isinstance(data, (list, tuple)) and bool(data) and all(isinstance(d, (str, os.PathLike)) for d in data)
    table = isinstance(data, (pa.Table, pa.RecordBatch)) or type(data).__module__.split(".")[0] == "pandas"
    if isinstance(data, (str, os.PathLike, BlockSource)) or paths or table:
        if block_size is not None:
            advice = (
                "blocks of stored data are those of the file: leave it out, and for other blocks write the file anew: "
            )
            raise UsageError(
                "is for map-style datasets",
                option="block_size",
                value=block_size,
                fixes=[Text(advice, Convert("SRC", {"block_size": "64KB"}))],
            )
        return False
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") or hasattr(data, "__getitems__")):
        raise UsageError(
            f"{name} has no samples by index; give a path, a table, a source, or a map-style dataset, as dataset[index]"
        )
    if block_size is None and not isinstance(data, np.ndarray) and not hasattr(data, "tocsr"):
        raise UsageError(
            f"{name} is taken for a map-style dataset, whose blocks are runs of indices",
            fixes=[Text("say how long they are: CorgiPileDataset(dataset, ", Use("block_size", 100), ")")],
        )
    return block_size is not None


def _check_mapped(dataset: Any, order: Order) -> None:
    name = type(dataset).__name__
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise UsageError(f"{name} has no length, so it cannot be cut into blocks; give it a __len__") from error
    if not count:
        raise DataError(f"{name} is empty: len(dataset) is 0, and there is nothing to shuffle")
    if order.facts.copy != "never" or order.facts.carries:
        raise UsageError(
            f"needs rows that it can write or keep, and {name} has samples of any kind",
            option="shuffle",
            value=order.name,
            fixes=["choose 'corgipile', 'global', 'block-only', 'sliding-window' or 'none'"],
        )
