"""Which process of a job this is, and which samples it gives out.

Every rank gives out the same number of samples. Blocks are dealt whole, so some processes get a few rows more than others;
what one has too many is given out by those that have too few, which read it themselves. Every process computes the same
division from the same numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch.distributed

from penstock.errors import UsageError
from penstock.loader.batches import Uneven
from penstock.messages import Given, Text, Use


def check_rank(rank: int | None, world: int | None) -> None:
    """Refuse a rank without a world, or one outside of it."""
    if (rank is None) != (world is None):
        raise UsageError(
            "and ",
            Given("world", world),
            ": give both, or none to have torch.distributed say",
            option="rank",
            value=rank,
        )
    if rank is not None and world is not None and not 0 <= rank < world:
        raise UsageError("of ", Given("world", world), ": ranks count from 0 to world - 1", option="rank", value=rank)


def current_rank() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    By ``torch.distributed`` where it is initialised. Before that, by the variables ``RANK`` and ``WORLD_SIZE``, which
    torchrun sets. Otherwise this is the only process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world is None:
        return 0, 1
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise UsageError(
            f"the environment has RANK={rank!r} and WORLD_SIZE={world!r}, which are no rank of a job",
            fixes=["unset them", Text("give ", Use("rank"), " and ", Use("world"))],
        )
    return int(rank), int(world)


_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")


@dataclass(frozen=True, slots=True)
class OuterSharding:
    """How samples are shared out by who asks for them."""

    batch_size: int | None  # samples that are divided among the processes together: workers give out such runs whole
    readers: int  # processes that read all rows
    dispatched: bool  # whether what the first process reads is sent to the others, which read ahead in vain


def outer_sharding() -> OuterSharding | None:
    """Return how accelerate shares out what the caller gives out; None where it does not.

    Hugging Face's accelerate, and with it the Trainer, replaces a stock loader over an ``IterableDataset`` in one of two
    ways. ``DataLoaderDispatcher``, the default, reads on rank 0 alone and sends each process its part of every batch.
    ``IterableDatasetShard`` (``dispatch_batches=False``) reads on every rank, and keeps a part. Both need all rows, in the
    same order on every rank: of a rank's share they would make a share of a share. Neither tells the dataset, which
    therefore looks for one of them among the objects whose methods are running, also in worker processes that were
    forked or that carry a copy of the dataset.
    """
    if not any(name in sys.modules for name in _MODULES):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _MODULES:
            found = _of(frame.f_locals.get("self"))
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _of(owner: Any) -> OuterSharding | None:
    kind = type(owner).__name__  # not its __class__, which pretends to be a stock loader
    if kind == "DataLoaderDispatcher":
        return OuterSharding(owner.base_dataloader.batch_size, owner.state.num_processes, dispatched=True)
    if kind == "IterableDatasetShard":
        together = 1 if getattr(owner, "split_batches", False) else owner.num_processes
        size = None if owner.batch_size is None else owner.batch_size * together
        return OuterSharding(size, owner.num_processes, dispatched=False)
    return None


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A process's place in the job: a worker of a rank.

    Examples
    --------
    >>> WorkerPlace(rank=1, world=2, worker=1, workers=3).process
    3
    """

    rank: int
    world: int
    worker: int = 0
    workers: int = 1
    readers: int = 1
    """Ranks that read all rows, each with a part of the memory; the rows are shared out by another."""

    @property
    def process(self) -> int:
        """Its number among all; ranks come first, so that a rank's blocks are the same for any number of workers."""
        return self.rank + self.world * self.worker

    @property
    def processes(self) -> int:
        """How many there are: the paper's PN."""
        return self.world * self.workers


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows ``start`` to ``stop`` of those dealt to a process, in the order in which that would give them out."""

    process: int
    start: int
    stop: int


def rank_rows(rows: int, world: int, uneven: Uneven) -> int:
    """Return how many rows each rank gives out: all of them shared out, the last one repeated or left out.

    Examples
    --------
    >>> rank_rows(101, 2, "pad"), rank_rows(101, 2, "drop")
    (51, 50)
    """
    return -(-rows // world) if uneven == "pad" else rows // world


def worker_rows(rows: int, workers: int, *, batch_size: int = 1) -> list[int]:
    """Share a rank's rows out over its workers, by whole batches; only the batch that comes last is smaller.

    Examples
    --------
    >>> worker_rows(95, 3, batch_size=10)
    [35, 30, 30]
    >>> worker_rows(2, 3)
    [1, 1, 0]
    """
    count = -(-rows // batch_size)
    batches = [len(range(worker, count, workers)) for worker in range(workers)]
    short = count * batch_size - rows
    return [b * batch_size - (short if count and w == (count - 1) % workers else 0) for w, b in enumerate(batches)]


def row_runs(dealt: Sequence[int], place: WorkerPlace, *, uneven: Uneven = "pad", batch_size: int = 1) -> list[RowRun]:
    """Return what a process gives out, in this order.

    Parameters
    ----------
    dealt : sequence of int
        Rows dealt to each process.
    place : WorkerPlace
        Which process.
    uneven : str
        ``pad`` or ``drop``, where the rows cannot be shared out evenly.
    batch_size : int
        Rows that workers should give out together.

    Examples
    --------
    >>> row_runs([30, 10], WorkerPlace(rank=1, world=2))
    [RowRun(process=1, start=0, stop=10), RowRun(process=0, start=20, stop=30)]
    """
    mine = worker_rows(rank_rows(sum(dealt), place.world, uneven), place.workers, batch_size=batch_size)
    wanted = [mine[process // place.world] for process in range(place.processes)]
    spare = [RowRun(p, want, has) for p, (has, want) in enumerate(zip(dealt, wanted, strict=True)) if has > want]
    spare.reverse()
    for process, (has, want) in enumerate(zip(dealt, wanted, strict=True)):
        taken = [RowRun(process, 0, min(has, want))] if min(has, want) else []
        lacking = want - min(has, want)
        while lacking and spare:
            piece = spare.pop()
            cut = min(piece.stop, piece.start + lacking)
            taken.append(RowRun(piece.process, piece.start, cut))
            lacking -= cut - piece.start
            if cut < piece.stop:
                spare.append(RowRun(piece.process, cut, piece.stop))
        if process == place.process:
            return taken + _repeated(taken, lacking, dealt)
    raise AssertionError(f"{place} is not among {place.processes} processes")


def _repeated(taken: list[RowRun], lacking: int, dealt: Sequence[int]) -> list[RowRun]:
    """Return so many rows again, from the first: of those given out, or of any where there are none."""
    taken = taken or [RowRun(p, 0, has) for p, has in enumerate(dealt) if has]
    again: list[RowRun] = []
    while lacking and taken:
        for piece in taken:
            count = min(lacking, piece.stop - piece.start)
            if count:
                again.append(RowRun(piece.process, piece.start, piece.start + count))
            lacking -= count
    return again
