"""`UnorderedDataLoader`: RINAS's control plane (sections 4.3, 4.4) for any map-style dataset.

A drop-in for torch's ``DataLoader``: the samples of a batch are fetched and preprocessed side by side and take
their places as they arrive, since a batch's loss does not depend on the order within it. Batches come in the
sampler's order. Data that can only be iterated are read by torch's own loader, which this class inherits: so Lightning
and accelerate share its samples out over processes as they do with any loader.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from penstock.closing import Closing
from penstock.errors import UsageError
from penstock.messages import Given
from penstock.torch.deliver import Deliveries, ProcessDeliveries, StreamPlace, Wanted, WholeBatches, enter_process, shut
from penstock.torch.fetch import BatchMaker, Threads
from penstock.torch.samplers import (
    SeededSampler,
    ShuffleSampler,
    capture,
    draw_seed,
    forward_epochs,
    generators,
    replay,
    tell_epoch,
    told_epochs,
)
from penstock.torch.tensors import whole
from penstock.torch.tune import Tuner
from penstock.torch.workers import (
    can_pin,
    check_options,
    default_workers,
    enter_thread,
    warn_all_rows,
    warn_begins_anew,
    warn_ignored,
)

T_co = TypeVar("T_co", covariant=True)


class UnorderedDataLoader(Closing, DataLoader[T_co]):
    """Batches of a map-style dataset, each made of samples fetched at the same time.

    Parameters
    ----------
    dataset
        Anything with ``__getitem__`` and, for the default samplers, ``__len__``. Where it has ``__getitems__``, that is
        called with some of a batch's indices at a time. Threads share it; see ``workers``. An ``IterableDataset`` is
        read by torch's own loader, with processes where ``num_workers`` is more than 0.
    batch_size
        Samples in a batch. ``None`` turns batching off: each index of the sampler gives one item.
    shuffle
        Whether to use every index in random order. The order is that of torch's ``DataLoader`` for the same generator,
        or after the same ``torch.manual_seed``.
    sampler, batch_sampler
        As in torch: an iterable of indices, or of lists of indices. In a job of several processes give a
        ``DistributedSampler``; Lightning and accelerate do so for you. Without one each process gets all samples, as
        with torch's loader, and a warning says so.
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
    multiprocessing_context
        How processes are started (``"fork"``, ``"spawn"``, ``"forkserver"``), as in torch. Threads ignore it, with a
        warning.
    generator
        The torch generator that the shuffle draws from.
    prefetch_factor
        Batches in the making while one is used, in all (torch counts for each worker). By default two, and more where
        these have fewer samples than would keep the workers busy.
    persistent_workers
        Whether threads or processes stay from one epoch to the next; end them with ``close`` or ``with``.
    pin_memory_device
        Ignored, with a warning: the current accelerator is used.
    in_order
        Batches always come in the sampler's order; ``False`` is ignored, with a warning.
    workers
        ``"threads"``; or ``"processes"`` for a dataset that is not thread-safe or holds the interpreter's lock while it
        computes. A process makes whole batches, whose samples then come in the sampler's order.
    ordered
        Whether samples stand in their batch in the sampler's order rather than in that of their arrival. With the
        default, *which* samples a batch has is determined by the sampler, and their order within it is not.
    seed
        Instead of ``generator``: the shuffle depends on this number and the epoch alone. Epochs count up by themselves;
        ``set_epoch`` says which comes next.

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
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: str = "threads",
        ordered: bool = False,
        seed: int | None = None,
    ) -> None:
        check_options(
            dataset,
            batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            drop_last=drop_last,
            timeout=timeout,
            generator=generator,
            prefetch_factor=prefetch_factor,
            workers=workers,
            seed=seed,
            context=multiprocessing_context,
        )
        streamed = isinstance(dataset, IterableDataset)
        stock: dict[str, Any] = {"num_workers": num_workers or 0}
        self._chosen = sampler is not None or batch_sampler is not None
        if streamed:
            stock |= {"shuffle": shuffle, "prefetch_factor": prefetch_factor, "persistent_workers": persistent_workers}
            stock |= {"pin_memory_device": pin_memory_device}
            stock |= {} if in_order else {"in_order": in_order}  # torch before 2.6 does not have it
        else:
            warn_ignored(workers, multiprocessing_context, pin_memory_device, in_order=in_order)
            if workers == "processes":
                stock["num_workers"] = num_workers or default_workers(workers)
            else:
                multiprocessing_context = None
            if shuffle:
                shuffled = ShuffleSampler(dataset, generator=generator)
                sampler = shuffled if seed is None else SeededSampler(dataset, seed)
        super().__init__(
            dataset,
            batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            **stock,
        )
        self.in_order = in_order
        self.workers = workers
        self.ordered = ordered
        if not streamed:
            # Torch takes these with processes alone, and the first not after construction.
            self.__dict__["persistent_workers"] = persistent_workers
            self.prefetch_factor = prefetch_factor
            forward_epochs(self.batch_sampler)
        self._seed = None if self._chosen else seed
        self._most = num_workers or default_workers(workers)
        self._tuner = Tuner(self._most)
        self._epoch = 0
        self._told: int | None = None
        self._place: StreamPlace | None = None
        self._resume: dict[str, Any] | None = None
        self._kept: Threads | None = None
        self._stock: DataLoader[Any] | None = None
        self._wanted = Wanted()
        self._running: weakref.WeakSet[Deliveries | ProcessDeliveries] = weakref.WeakSet()

    @property
    def seed(self) -> int | None:
        """The number that the shuffle depends on, where one was given."""
        return self._seed

    def check_worker_number_rationality(self) -> None:
        """Have torch warn of more processes than cores where it starts them itself; threads may be more."""
        if isinstance(self.dataset, IterableDataset):
            super().check_worker_number_rationality()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch's own iterator is private
        if isinstance(self.dataset, IterableDataset):
            return super().__iter__()
        if not self._chosen:
            warn_all_rows(self)
        resume, self._resume = self._resume, None
        sources, epoch = self._generators(), self._epoch
        if self._seed is not None:
            tell_epoch(epoch, self.sampler)
        place = StreamPlace(epoch, self._told, capture(sources) if resume is None else resume["chance"])
        source: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        if resume is None:
            base = draw_seed(self.generator)
            wanted = iter(source)
        else:
            with replay(resume["chance"], sources):
                base = draw_seed(self.generator)
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
        tell_epoch(epoch, *self._listeners(), self.dataset if isinstance(self.dataset, IterableDataset) else None)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands: the epoch, the batches delivered of it, and the chance it began with."""
        place = self._place
        if isinstance(self.dataset, IterableDataset):
            return {"streamed": type(self.dataset).__name__}
        if self._resume is not None:
            return dict(self._resume)
        if place is None or place.ended:
            place = StreamPlace(self._epoch, self._told, capture(self._generators()))
        return {
            "epoch": place.epoch,
            # Lightning tells the sampler, not the loader; and after a resume only when the first indices were drawn.
            "told": next(told_epochs(*self._listeners()), place.told),
            "batches": place.batches,
            "chance": place.chance,
            "batch_size": self.batch_size,
            "samples": len(self.dataset) if hasattr(self.dataset, "__len__") else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, with the next loop, from where a loader stood; over the same data, with the same settings."""
        if isinstance(self.dataset, IterableDataset):
            warn_begins_anew(self.dataset)
            return
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
                    "the state was saved with ",
                    Given(name, state[name]),
                    f" and this loader has {value}",
                    fixes=["use the same"],
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

    def __del__(self) -> None:
        kept = getattr(self, "_kept", None)
        if kept is not None:
            kept.stop()

    def _listeners(self) -> tuple[object, ...]:
        return self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)

    def _recipe(self, *, pin: bool) -> BatchMaker:
        return BatchMaker(self.dataset, self.collate_fn, self.batch_sampler is not None, self.ordered, pin)

    def _generators(self) -> list[torch.Generator]:
        return generators(self.generator, self.sampler, self.batch_sampler)

    def _by_threads(self, batches: Iterator[list[Any]], place: StreamPlace, *, base: int, pin: bool) -> Deliveries:
        device = torch.cuda.current_device() if pin and torch.cuda.is_available() else None
        enter = partial(
            enter_thread,
            dataset=self.dataset,
            workers=self._most,
            seed=base,
            init=self.worker_init_fn,
            device=device,
        )

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

    def _by_processes(
        self, batches: Iterator[list[Any]], place: StreamPlace, *, base: int, pin: bool
    ) -> ProcessDeliveries:
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
            ahead = self.prefetch_factor
            stock: DataLoader[Any] = DataLoader(
                WholeBatches(self._recipe(pin=False)),
                batch_size=None,
                sampler=wanted,
                num_workers=self._most,
                collate_fn=whole,
                pin_memory=pin,
                timeout=self.timeout,
                worker_init_fn=partial(enter_process, self.worker_init_fn),
                multiprocessing_context=self.multiprocessing_context,
                generator=torch.Generator().manual_seed(base),
                prefetch_factor=2 if ahead is None else max(1, -(-ahead // self._most)),
                persistent_workers=keep,
            )
            if keep:
                self._stock = stock
            return stock

        return ProcessDeliveries(wanted, start, place=place, keep=keep, forget=self._forget_stock)

    def _forget_stock(self) -> None:
        stock, self._stock = self._stock, None
        if stock is not None:
            shut(getattr(stock, "_iterator", None))
