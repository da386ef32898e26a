"""Workers of an `UnorderedDataLoader`: how many, what a thread does first, and which options exclude one another."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from penstock.errors import UnknownOptionError, UsageError
from penstock.messages import Given
from penstock.parallel import cores
from penstock.torch.fetch import restate
from penstock.torch.samplers import SeededSampler

WORKERS = ("threads", "processes")
_here = threading.local()


def worker_info() -> WorkerInfo | None:
    """Return what torch's ``get_worker_info`` returns, in worker threads too.

    Torch keeps one such record for a process, so in a worker thread its own function returns None, as it does in the
    main process: what a map-style dataset expects of a process that it has to itself. Call this one in a
    ``worker_init_fn`` or a dataset that must tell threads apart.

    Examples
    --------
    >>> worker_info() is None
    True
    """
    found: WorkerInfo | None = getattr(_here, "info", None)
    return get_worker_info() if found is None else found


def default_workers(kind: str) -> int:
    """Return the number of workers where none is asked for.

    A thread that waits for a disk costs next to nothing, is started only when there is a sample for it, and is left
    idle where threads would only be in one another's way: 32. Processes are for computing: one for each core, up to 8.
    """
    return min(8, cores()) if kind == "processes" else 32


def can_pin() -> bool:
    """Whether memory can be pinned here; a warning says so if not, as with the stock loader."""
    accelerator = getattr(torch, "accelerator", None)  # torch 2.6 and later
    kind = accelerator.current_accelerator() if accelerator is not None and accelerator.is_available() else None
    found = kind.type if kind is not None else ("cuda" if torch.cuda.is_available() else "none")
    if found in ("none", "mps"):
        where = "there is no accelerator" if found == "none" else "MPS does not support it"
        warnings.warn(f"pin_memory=True has no effect: {where}", stacklevel=3)
        return False
    return True


def enter_thread(
    number: int, *, dataset: Any, workers: int, seed: int, init: Callable[[int], None] | None, device: int | None
) -> None:
    """Prepare a worker thread. It uses ``device``, since a new thread would begin with the first accelerator."""
    _here.info = WorkerInfo(id=number, num_workers=workers, seed=seed + number, dataset=dataset)
    if device is not None:
        torch.cuda.set_device(device)
    if init is not None:
        try:
            init(number)
        except BaseException as error:
            restate(error, f"in worker_init_fn of worker {number}")


def check_options(
    dataset: Any,
    batch_size: object,
    *,
    shuffle: bool | None,
    sampler: object,
    batch_sampler: object,
    num_workers: int | None,
    drop_last: bool,
    timeout: float,
    generator: object,
    prefetch_factor: int | None,
    workers: str,
    seed: int | None,
    context: object,
) -> None:
    """Refuse what cannot work."""
    _check_dataset(dataset)
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise UsageError(
            "is not a positive whole number, nor None for no batches", option="batch_size", value=batch_size
        )
    for name, value in (("num_workers", num_workers), ("timeout", timeout), ("prefetch_factor", prefetch_factor)):
        if value is not None and value < 0:
            raise UsageError("is negative", option=name, value=value, fixes=["it must be 0 or more"])
    if workers not in WORKERS:
        raise UnknownOptionError.of("workers", workers, WORKERS)
    methods = torch.multiprocessing.get_all_start_methods()
    if isinstance(context, str) and context not in methods:
        raise UnknownOptionError.of("multiprocessing_context", context, methods)
    if isinstance(dataset, IterableDataset):
        if seed is not None:
            raise UsageError(
                f"shuffles indices, and {type(dataset).__name__} is an IterableDataset, which has none",
                option="seed",
                value=seed,
                fixes=["leave it out, and let the dataset shuffle"],
            )
        return  # the rest is for torch's own loader to check
    if sampler is not None and shuffle:
        raise UsageError(
            "sampler and ", Given("shuffle", True), " exclude one another", fixes=["leave one of them out"]
        )
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise UsageError("batch_sampler excludes batch_size, shuffle, sampler and drop_last; leave those out")
    if batch_sampler is None and batch_size is None and drop_last:
        raise UsageError(
            "makes no batches, so ",
            Given("drop_last", True),
            " has no meaning",
            option="batch_size",
            value=None,
            fixes=["leave one of them out"],
        )
    if seed is not None and (generator is not None or not (shuffle or _shares_out(sampler, seed))):
        raise UsageError(
            "is for ",
            Given("shuffle", True),
            " without a generator",
            option="seed",
            value=seed,
            fixes=["leave one of them out"],
        )
    if sampler is None and batch_sampler is None and not hasattr(dataset, "__len__"):
        raise UsageError(f"{type(dataset).__name__} has no length; give a sampler that says which indices to use")


def warn_ignored(workers: str, context: object, device: str, *, in_order: bool) -> None:
    """Say which of the options of torch's loader have no effect."""
    ignored = [
        (context is not None and workers == "threads", "multiprocessing_context", "workers='processes' would use it"),
        (bool(device), "pin_memory_device", "the current accelerator is used"),
        (not in_order, "in_order=False", "batches come in the sampler's order"),
    ]
    for applies, name, why in ignored:
        if applies:
            warnings.warn(f"UnorderedDataLoader ignores {name}: {why}", stacklevel=3)


def warn_all_rows(loader: Any) -> None:
    """Say that every process of a job gets all samples, where nothing shares them out."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        if world > 1:
            warnings.warn(
                f"each of the {world} processes of this job gets all samples of {type(loader.dataset).__name__}; to share"
                " them out, give UnorderedDataLoader sampler=torch.utils.data.DistributedSampler(dataset). If all are"
                " wanted in each, give a sampler that says so, such as torch.utils.data.SequentialSampler(dataset)",
                stacklevel=3,
            )


def warn_begins_anew(dataset: object) -> None:
    """Say that a place in data that can only be iterated was not saved."""
    warnings.warn(
        f"{type(dataset).__name__} is an IterableDataset, in which torch's loader keeps no place: its epoch begins anew",
        stacklevel=3,
    )


def _check_dataset(dataset: object) -> None:
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise UsageError(f"{dataset!r} is a path, not a dataset; penstock.torch.DataLoader reads files")
    if isinstance(dataset, IterableDataset):
        return
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__getitems__"):
        name = type(dataset).__name__
        raise UsageError(f"{name} has no __getitem__; UnorderedDataLoader takes map-style datasets, as dataset[index]")


def _shares_out(sampler: object, seed: int) -> bool:
    """Whether this is what Lightning makes of a loader's own shuffle by seed: the same order, shared out over ranks."""
    shuffle = getattr(getattr(sampler, "dataset", None), "_sampler", None)
    return isinstance(shuffle, SeededSampler) and shuffle.seed == seed
