"""How many workers, and what a worker thread is told before its first sample."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from penstock.parallel import cores
from penstock.torch.fetch import restate

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


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """What a worker thread does first."""

    dataset: Any
    workers: int
    seed: int
    init: Callable[[int], None] | None
    device: int | None
    """The accelerator in use where memory is pinned: a thread of its own would begin with the first one."""

    def __call__(self, number: int) -> None:
        """Prepare the thread of this number."""
        _here.info = WorkerInfo(id=number, num_workers=self.workers, seed=self.seed + number, dataset=self.dataset)
        if self.device is not None:
            torch.cuda.set_device(self.device)
        if self.init is not None:
            try:
                self.init(number)
            except BaseException as error:
                restate(error, f"in worker_init_fn of worker {number}")
