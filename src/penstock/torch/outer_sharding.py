"""Whether accelerate shares the samples of an iterable dataset out over processes, on top of what the dataset does.

Hugging Face's accelerate, and with it the Trainer, takes a stock loader over an ``IterableDataset`` and puts another in its
place, in one of two ways. ``DataLoaderDispatcher``, the default, reads on rank 0 alone and sends each process its part of
every batch. ``IterableDatasetShard`` (``dispatch_batches=False``) reads on every rank, and keeps a part. Both want all
rows, in the same order on every rank: from a dataset that gives out its rank's share they make a share of a share.

Neither tells the dataset, so the dataset looks at who asks it for samples or for its length: one of those two is then
among the objects whose methods are running, also in worker processes that were forked or that carry a copy of the dataset.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")


@dataclass(frozen=True, slots=True)
class OuterSharding:
    """How samples are shared out by who asks for them."""

    batch_size: int | None
    """Samples that are divided among the processes together, so that workers should give out such runs whole."""
    readers: int
    """Processes that read all rows."""
    dispatched: bool
    """Whether what the first process reads is sent to the others, and they read ahead in vain."""


def outer_sharding() -> OuterSharding | None:
    """Return how accelerate shares out what the caller gives out; None where it does not."""
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
