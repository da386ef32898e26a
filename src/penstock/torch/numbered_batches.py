"""A `DataLoader` taken apart as torch's is: batches that are asked for by their numbers.

`accelerate.skip_first_batches`, by which Hugging Face's Trainer resumes, takes a loader's ``dataset`` and
``batch_sampler`` and makes a stock loader of them that leaves out the first batches. Here the sampler gives numbers of
batches, and the dataset the batches of these numbers; the first number asked for is where the pass begins, so that
what is left out is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, SequentialSampler

from penstock.loader.batches import Batches


class BatchNumbers(SequentialSampler):
    """The numbers of the batches that the next pass over a stream gives out."""

    def __init__(self, stream: Batches) -> None:
        self._stream = stream

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self._stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._stream.next_batch, self._stream.epoch_batches()))

    def __len__(self) -> int:
        return len(self._stream)


class NumberedBatches(Dataset[Any]):
    """The batches of a stream by their numbers, which have to rise by one; another number begins another pass."""

    def __init__(self, stream: Batches, begin_at: Callable[[int], Iterator[Any]]) -> None:
        self._stream, self._begin_at = stream, begin_at
        self._batches: Iterator[Any] = iter(())
        self._next = -1

    def __len__(self) -> int:
        """Return the number of rows of the data."""
        return self._stream.rows

    def __getitems__(self, number: int) -> Any:
        """Return the batch of this number."""
        if number != self._next:
            self._batches = self._begin_at(number)
        batch = next(self._batches)
        self._next = number + 1
        if self._next == self._stream.epoch_batches():
            # Nobody asks for more, and the epoch ends only when it is asked.
            next(self._batches, None)
            self._next = -1
        return batch


def whole(batch: Any) -> Any:
    """Return what is a batch already."""
    return batch
