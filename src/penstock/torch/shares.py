"""Who gives out which samples: the same number in every rank, whatever the blocks dealt to each process.

Blocks are dealt whole, so some processes get a few rows more than others. What one has too many is given out by
those that have too few, which read it themselves; every process works out the same division from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.loader.batches import Uneven


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
