"""`DataLoader`: batches of tensors straight from storage, shuffled, in the memory given.

Made by threads of this process: no worker processes, no pickling, one buffer. In a job of several processes it finds
its own part, and every process gets the same number of batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, SequentialSampler, default_collate

from penstock.blocks.fields import ROW_NUMBERS
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.errors import NoMethodError, UsageError
from penstock.loader.batches import Batches, Uneven
from penstock.loader.transforms import check_form
from penstock.messages import Text, Use
from penstock.shuffle import Order
from penstock.torch.image_batches import check_columns, image_columns, image_finisher
from penstock.torch.images import Image
from penstock.torch.ranks import check_rank, current_rank
from penstock.torch.tensors import cut_tensors, pinned, tensors, whole
from penstock.torch.workers import can_pin


class BatchNumbers(SequentialSampler):
    """The numbers of the batches that the next pass over a stream gives out.

    `accelerate.skip_first_batches`, by which Hugging Face's Trainer resumes, takes a loader's ``dataset`` and
    ``batch_sampler`` and makes a stock loader of them that leaves out the first batches. Here the sampler gives numbers of
    batches, and the dataset the batches of these numbers; the first number asked for is where the pass begins, so that
    what is left out is not read.
    """

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


class DataLoader(Closing):
    """Batches of tensors from any source; one pass over it is one epoch.

    Parameters
    ----------
    data : path, source, table or arrays
        Whatever `penstock.open` takes: Parquet, Arrow, ``.npy``, CSV, LibSVM files, tables; an array, or a dict of arrays
        or tensors, which keep their types.
    batch_size : int
        Rows of a batch (of each process).
    shuffle : str, bool or Order
        ``corgipile`` (two-level shuffle at sequential speed; also ``True``), ``global`` (an exact shuffle of all rows),
        ``none`` (also ``False``), or any other order.
    memory : str or int
        What reading ahead and shuffling may hold in this process.
    columns : tuple or list of str, dict, or Recipe, optional
        Which columns: a tuple gives batches as tuples in this order, a list or None (all columns) as dicts.
        A dict says what becomes of each: an `Image` decodes encoded images, None leaves a column as it is stored.
        Or a recipe (`penstock.recipe_for`): dicts of ``numbers``, ``categories`` (one number a column, for embeddings), ``label``.
    transform : callable, optional
        Applied to each batch of tensors (or each row, with ``per_sample``) in threads beside reading. It must not
        change what it shares with other threads.
    per_sample : bool
        Whether ``transform`` takes one row; what it returns is put together by ``collate_fn``.
    collate_fn : callable, optional
        How rows become a batch after a ``per_sample`` transform; torch's own ``default_collate``, if not given.
    workers : int, optional
        Threads that decode images and transform.
    seed : int
        Chance. The same seed gives the same batches, whatever the number of threads.
    pin_memory : bool
        Put batches into page-locked memory, from which copies to a GPU run beside other work.
    rank, world : int, optional
        This process's place among all. If not given, each pass asks when it begins: ``torch.distributed`` where that is
        initialised, else the variables ``RANK`` and ``WORLD_SIZE``; without these it is the only process.
    uneven : str
        ``pad``: processes with fewer rows repeat some of their own at the end of an epoch, so that every row comes
        at least once; ``drop``: the last rows of those that have more are left out, so that none comes twice.
    drop_last : bool
        Leave out the last batch of an epoch where it is smaller than the others.
    row_numbers : bool
        Add a column ``row_number``: where each row stands in the data.
    scratch : path, optional
        Where orders that write a shuffled copy (``once``, ``epoch``) may do so.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"x": pa.array([[0, 1], [2, 3]], pa.list_(pa.float32(), 2)), "y": [0, 1]})
    >>> with DataLoader(table, 2, shuffle="none", columns=("x", "y")) as loader:
    ...     for x, y in loader:
    ...         print(x.shape, x.dtype, y.tolist())
    torch.Size([2, 2]) torch.float32 [0, 1]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 1,
        *,
        shuffle: str | bool | Order = "corgipile",
        memory: str | int | Budget = "512MB",
        columns: Sequence[str] | Mapping[str, Image | None] | Recipe | None = None,
        transform: Callable[[Any], Any] | None = None,
        per_sample: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        workers: int | None = None,
        seed: int = 0,
        pin_memory: bool = False,
        rank: int | None = None,
        world: int | None = None,
        uneven: Uneven = "pad",
        drop_last: bool = False,
        row_numbers: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> None:
        check_rank(rank, world)
        if collate_fn is not None and not per_sample:
            transforms = (
                "give ",
                Use("transform"),
                " for whole batches, or a ",
                Use("transform"),
                " for single rows with ",
            )
            raise UsageError(
                "puts single rows together, and here rows come in batches",
                option="collate_fn",
                fixes=[Text(*transforms, Use("per_sample", True))],
            )
        images = image_columns(columns)
        columns = list(columns) if isinstance(columns, Mapping) else columns
        check_form(columns, transform, per_sample=per_sample)
        self._transform, self._per_sample = transform, per_sample
        self._collate = collate_fn or default_collate
        self._pin = pin_memory and can_pin()
        self.data = data
        threads = transform is not None or self._pin
        finish = None
        if images:
            finish = image_finisher(
                images,
                self._make,
                seed=seed,
                place=str(data) if isinstance(data, (str, os.PathLike)) else "the data",
                workers=workers,
                pin=self._pin,
                row_numbers=row_numbers,
                each_thread=_alone,
            )
        self._batches = Batches(
            data,
            batch_size,
            shuffle={True: "corgipile", False: "none"}[shuffle] if isinstance(shuffle, bool) else shuffle,
            memory=memory,
            columns=columns,
            # In threads only where there is work for them: handing a batch over costs more than making tensors of it.
            transform=self._make if threads else None,
            workers=workers,
            seed=seed,
            rank=rank or 0,
            world=world or 1,
            placement=current_rank if rank is None else None,
            uneven=uneven,
            drop_last=drop_last,
            row_numbers=row_numbers or bool(images),
            scratch=scratch,
            each_thread=_alone,
            cut=cut_tensors,
            finish=finish,
        )
        try:
            check_columns(images, self._batches.fields)
        except BaseException:
            self._batches.close()
            raise

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._batches.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a smaller last batch is left out."""
        return self._batches.drop_last

    @property
    def epoch(self) -> int:
        """The epoch that the next pass gives out, or that a pass under way does."""
        return self._batches.epoch

    def __len__(self) -> int:
        """Return the batches of an epoch, the same for every process."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    # What tools ask for that take a loader apart and make a stock one of its parts.
    num_workers = 0
    prefetch_factor = None
    collate_fn = staticmethod(whole)

    @property
    def dataset(self) -> NumberedBatches:
        """The batches by their numbers; its length is the number of rows of the data."""
        return NumberedBatches(self._batches, self._batches.begin_at)

    @property
    def batch_sampler(self) -> BatchNumbers:
        """The numbers of the batches that come next."""
        return BatchNumbers(self._batches)

    sampler = batch_sampler

    @property
    def worker_init_fn(self) -> Any:
        """Nothing: Ray Train asks for it to make a stock loader with a sampler of its own, by which rows would be shared out twice."""
        raise NoMethodError(
            "a penstock.torch.DataLoader shares rows out over processes itself, and has no workers to tell of it by worker_init_fn",
            fixes=["iterate it as it is, without prepare_data_loader, and move batches to the device"],
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; without this, each pass is the epoch after the last."""
        self._batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream, a small dict of plain values; any process's does for all."""
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved, with the same or another number of processes."""
        self._batches.load_state_dict(state)

    def close(self) -> None:
        """Stop the threads and close the files."""
        self._batches.close()

    def _make(self, batch: Any) -> Any:
        made = tensors(batch)
        if self._transform is not None:
            made = self._collate(list(self._each(made))) if self._per_sample else self._transform(made)
        return pinned(made) if self._pin else made

    def _each(self, batch: Any) -> Iterator[Any]:
        assert self._transform is not None
        for place, row in enumerate(_rows(batch)):
            try:
                yield self._transform(row)
            except Exception as error:
                number = row.get(ROW_NUMBERS) if isinstance(row, dict) else None
                which = f"row {place} of a batch; with row_numbers=True (and columns as a list) it would say which of the data"
                error.add_note(f"while transforming {which if number is None else f'row {int(number)}'} of {self.data}")
                raise


def _rows(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch of tensors: dicts of a dict, tuples of a tuple."""
    if isinstance(batch, dict):
        names = list(batch)
        return (dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True))
    return zip(*batch, strict=True)


def _alone() -> None:
    """Have torch compute in this thread alone: as many pools of threads as there are transforming threads crawl."""
    torch.set_num_threads(1)
