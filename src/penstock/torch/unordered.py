"""`UnorderedDataLoader`: RINAS's control plane (sections 4.3, 4.4) for any map-style dataset.

A drop-in for torch's ``DataLoader``: the samples of a batch are fetched and preprocessed side by side and take
their places as they arrive, since a batch's loss does not depend on the order within it. Batches come in the
sampler's order. Data that can only be iterated are refused.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    default_collate,
    default_convert,
)

from penstock.errors import UnknownOptionError, UsageError
from penstock.torch.deliver import Deliveries, Place
from penstock.torch.fetch import Recipe, Threads
from penstock.torch.processes import ProcessDeliveries, Wanted, shut, stock_loader
from penstock.torch.samplers import ShuffleSampler, capture, draw, generators, replay
from penstock.torch.tune import Tuner
from penstock.torch.workers import WORKERS, ThreadEntry, can_pin, default_workers


class UnorderedDataLoader:
    """Batches of a map-style dataset, each made of samples fetched at the same time.

    Parameters
    ----------
    dataset
        Anything with ``__getitem__`` and, for the default samplers, ``__len__``. Where it has ``__getitems__``, that is
        called with some of a batch's indices at a time. Threads share it; see ``workers``.
    batch_size
        Samples in a batch. ``None`` turns batching off: each index of the sampler gives one item.
    shuffle
        Whether to use every index in random order. The order is that of torch's ``DataLoader`` for the same generator,
        or after the same ``torch.manual_seed``.
    sampler, batch_sampler
        As in torch: an iterable of indices, or of lists of indices.
    num_workers
        The most threads, or processes, at work. ``None`` or 0 chooses: 32 threads; a process for each core up to 8.
        Threads are started as there are samples for them, and fewer are used where that proves faster.
    collate_fn
        Makes a batch of a list of samples; torch's ``default_collate`` unless given. Called in the workers.
    pin_memory
        Whether batches are put in pinned memory, by the threads. Without an accelerator it warns and does nothing.
    drop_last
        Whether a last batch of fewer samples is left out.
    timeout
        Seconds to wait for a batch before `BatchTimeoutError` is raised; 0 waits for ever.
    worker_init_fn
        Called in each worker with its number before its first sample. In threads, `worker_info` tells what
        ``torch.utils.data.get_worker_info`` tells in processes.
    generator
        The torch generator that the shuffle draws from.
    prefetch_factor
        Batches in the making while one is used, in all (torch counts for each worker). By default two, and more where
        these have fewer samples than would keep the workers busy.
    persistent_workers
        Whether threads or processes stay from one epoch to the next; end them with ``close`` or ``with``.
    workers
        ``"threads"``; or ``"processes"`` for a dataset that is not thread-safe or holds the interpreter's lock while it
        computes. A process makes whole batches, whose samples then come in the sampler's order.
    ordered
        Whether samples stand in their batch in the sampler's order rather than in that of their arrival. With the
        default, *which* samples a batch has is determined by the sampler, and their order within it is not.
    seed
        Instead of ``generator``: the shuffle depends on this number and the epoch alone. Epochs count up by themselves;
        ``set_epoch`` says which comes next.
    multiprocessing_context
        How processes are started (``"fork"``, ``"spawn"``, ``"forkserver"``), as in torch.

    Notes
    -----
    A sample that fails raises its own exception, with its own traceback, and a note that names its index. Threads end
    when the loop ends, however it does.

    Transforms that draw from global generators do so in whatever order threads come to them: to repeat a run exactly,
    let them draw from one that is seeded by the index, or use ``workers="processes"``.

    ``state_dict`` and ``load_state_dict`` take up an epoch in the middle, with the same samples in the same batches.
    A sampler of your own must then give the same indices when it is iterated again.

    Examples
    --------
    >>> squares = [n * n for n in range(10)]
    >>> loader = UnorderedDataLoader(squares, batch_size=4, ordered=True)
    >>> [batch.tolist() for batch in loader]
    [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    >>> shuffled = UnorderedDataLoader(squares, batch_size=5, shuffle=True, seed=1)
    >>> sorted(torch.cat(list(shuffled)).tolist()) == squares
    True
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        *,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        workers: str = "threads",
        ordered: bool = False,
        seed: int | None = None,
        multiprocessing_context: Any = None,
    ) -> None:
        _check_dataset(dataset)
        _check_numbers(batch_size, num_workers=num_workers, timeout=timeout, prefetch_factor=prefetch_factor)
        if workers not in WORKERS:
            raise UnknownOptionError.of("workers", workers, WORKERS)
        if multiprocessing_context is not None and workers == "threads":
            raise UsageError("multiprocessing_context is for processes; add workers='processes', or leave it out")
        if sampler is not None and shuffle:
            raise UsageError("sampler and shuffle=True exclude one another; leave one of them out")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise UsageError("batch_sampler excludes batch_size, shuffle, sampler and drop_last; leave those out")
        if batch_sampler is None and batch_size is None and drop_last:
            raise UsageError(
                "batch_size=None makes no batches, so drop_last=True has no meaning; leave one of them out"
            )
        if seed is not None and (generator is not None or not shuffle):
            raise UsageError(f"seed={seed} is for shuffle=True without a generator; leave one of them out")
        if sampler is None and batch_sampler is None and not hasattr(dataset, "__len__"):
            raise UsageError(f"{type(dataset).__name__} has no length; give a sampler that says which indices to use")
        if sampler is None and shuffle:
            sampler = ShuffleSampler(dataset, generator=generator, seed=seed)
        elif sampler is None:
            sampler = SequentialSampler(dataset)
        if batch_sampler is not None:
            batch_size = None
        elif batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        batched = batch_sampler is not None
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers or default_workers(workers)
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self.pin_memory = pin_memory
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers
        self.workers = workers
        self.ordered = ordered
        self.seed = seed
        self.multiprocessing_context = multiprocessing_context
        self._tuner = Tuner(self.num_workers)
        self._epoch = 0
        self._told: int | None = None
        self._place: Place | None = None
        self._resume: dict[str, Any] | None = None
        self._kept: Threads | None = None
        self._stock: DataLoader[Any] | None = None
        self._wanted = Wanted()
        self._running: weakref.WeakSet[Deliveries | ProcessDeliveries] = weakref.WeakSet()

    def __len__(self) -> int:
        source: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        return len(source)

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        sources, epoch = self._generators(), self._epoch
        if self.seed is not None:
            self._tell(epoch, self.sampler)
        place = Place(epoch, self._told, capture(sources) if resume is None else resume["chance"])
        source: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        if resume is None:
            base = draw(self.generator)
            wanted = iter(source)
        else:
            with replay(resume["chance"], sources):
                base = draw(self.generator)
                place.batches = resume["batches"]
                rest = itertools.islice(source, place.batches, None)
                # Samplers draw when they are first asked, which has to be within the replay.
                wanted = itertools.chain(list(itertools.islice(rest, 1)), rest)
        self._place, self._epoch = place, epoch + 1
        pin = self.pin_memory and can_pin()
        batches = (list(b) for b in wanted) if self.batch_sampler is not None else ([index] for index in wanted)
        begin = self._by_threads if self.workers == "threads" else self._by_processes
        running = begin(batches, place, base=base, pin=pin)
        self._running.add(running)
        return running

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, to the shuffle by ``seed`` and to every sampler that has a ``set_epoch``.

        A place to go on from in another epoch, set by ``load_state_dict``, is forgotten.
        """
        if self._resume is not None and self._resume["epoch"] != epoch:
            self._resume = None
        self._epoch = self._told = epoch
        self._tell(epoch, self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: the epoch, the batches delivered of it, and the chance it began with."""
        place = self._place
        if self._resume is not None:
            return dict(self._resume)
        if place is None or place.ended:
            place = Place(self._epoch, self._told, capture(self._generators()))
        return {
            "epoch": place.epoch,
            "told": place.told,
            "batches": place.batches,
            "chance": place.chance,
            "batch_size": self.batch_size,
            "samples": len(self.dataset) if hasattr(self.dataset, "__len__") else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, with the next loop, from where a loader stood; over the same data, with the same settings."""
        missing = {"epoch", "told", "batches", "chance", "batch_size", "samples"} - set(state)
        if missing:
            raise UsageError(f"not the state of an UnorderedDataLoader: it has no {', '.join(sorted(missing))}")
        here = {
            "batch_size": self.batch_size,
            "samples": len(self.dataset) if hasattr(self.dataset, "__len__") else None,
        }
        for name, value in here.items():
            if state[name] != value:
                raise UsageError(
                    f"the state was saved with {name}={state[name]} and this loader has {value}; use the same"
                )
        if len(state["chance"]["generators"]) != len(self._generators()):
            raise UsageError("the state was saved by a loader with another sampler or generator; use the same")
        if state["told"] is not None:
            self.set_epoch(state["told"])
        self._resume, self._epoch = dict(state), state["epoch"]

    def close(self) -> None:
        """End all threads and processes. The loader can be iterated again."""
        for running in list(self._running):
            running.close()
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.stop(wait=5.0)
        self._forget_stock()

    def __enter__(self) -> UnorderedDataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        kept = getattr(self, "_kept", None)
        if kept is not None:
            kept.stop()

    def _recipe(self, *, pin: bool) -> Recipe:
        return Recipe(self.dataset, self.collate_fn, self.batch_sampler is not None, self.ordered, pin)

    def _generators(self) -> list[torch.Generator]:
        return generators(self.generator, self.sampler, self.batch_sampler)

    def _by_threads(self, batches: Iterator[list[Any]], place: Place, *, base: int, pin: bool) -> Deliveries:
        device = torch.cuda.current_device() if pin and torch.cuda.is_available() else None
        enter = ThreadEntry(self.dataset, self.num_workers, base, self.worker_init_fn, device)

        def hire() -> Threads:
            if self._kept is not None and self._kept.usable:
                return self._kept
            threads = Threads(self._recipe(pin=pin), tuner=self._tuner, enter=enter)
            if self.persistent_workers:
                self._kept = threads
            return threads

        return Deliveries(
            batches,
            hire,
            tuner=self._tuner,
            place=place,
            ahead=self.prefetch_factor,
            timeout=self.timeout,
            keep=self.persistent_workers,
        )

    def _by_processes(self, batches: Iterator[list[Any]], place: Place, *, base: int, pin: bool) -> ProcessDeliveries:
        keep = self.persistent_workers
        wanted = self._wanted if keep else Wanted()
        if keep:
            for running in list(self._running):
                if isinstance(running, ProcessDeliveries):
                    running.supersede()
        wanted.only(batches)

        def start() -> DataLoader[Any]:
            if self._stock is not None:
                return self._stock
            stock = stock_loader(
                self._recipe(pin=False),
                wanted,
                workers=self.num_workers,
                ahead=self.prefetch_factor,
                timeout=self.timeout,
                init=self.worker_init_fn,
                context=self.multiprocessing_context,
                keep=keep,
                pin=pin,
                generator=torch.Generator().manual_seed(base),
            )
            if keep:
                self._stock = stock
            return stock

        return ProcessDeliveries(wanted, start, place=place, keep=keep, forget=self._forget_stock)

    def _forget_stock(self) -> None:
        stock, self._stock = self._stock, None
        if stock is not None:
            shut(getattr(stock, "_iterator", None))

    @staticmethod
    def _tell(epoch: int, *samplers: object) -> None:
        told: list[object] = []
        for sampler in samplers:
            tell = getattr(sampler, "set_epoch", None)
            if callable(tell) and not any(sampler is other for other in told):
                tell(epoch)
                told.append(sampler)


def _check_dataset(dataset: object) -> None:
    name = type(dataset).__name__
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise UsageError(f"{dataset!r} is a path, not a dataset; penstock.torch.DataLoader reads files")
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{name} is an IterableDataset, whose samples cannot be fetched by index; use torch.utils.data.DataLoader,"
            " or penstock.torch.CorgiPileDataset to shuffle data that are read in order"
        )
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__getitems__"):
        raise UsageError(f"{name} has no __getitem__; UnorderedDataLoader takes map-style datasets, as dataset[index]")


def _check_numbers(batch_size: object, *, num_workers: int | None, timeout: float, prefetch_factor: int | None) -> None:
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise UsageError(f"batch_size={batch_size!r} is not a positive whole number, nor None for no batches")
    for name, value in (("num_workers", num_workers), ("timeout", timeout), ("prefetch_factor", prefetch_factor)):
        if value is not None and value < 0:
            raise UsageError(f"{name}={value} is negative; it must be 0 or more")
