"""Batches whose images are decoded by threads, each straight into its place in the batch.

A batch is cut into parts of a few images, and the parts of two batches ahead are worked on by all threads at a time, so
memory is bounded by three batches. The thread that finishes the last part of a batch makes tensors of the other columns
and applies the user's transform.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from penstock.blocks.fields import ROW_NUMBERS, Fields
from penstock.errors import ColumnError, UsageError
from penstock.loader.plan import default_threads
from penstock.loader.transforms import BatchFinisher, single_batches
from penstock.parallel import in_order
from penstock.records import Ragged, Records
from penstock.torch.image_decode import check_decoders
from penstock.torch.image_device import DeviceImageBatches, nvjpeg
from penstock.torch.images import Image, ImageWriter

_PART = 8
"""Images of a part: few enough that threads end together, and enough that handing parts over costs little."""
_AHEAD = 2
"""Batches in the making beside the one in use."""


def image_columns(columns: object) -> dict[str, Image]:
    """Return the columns of images of a dict of columns, after a look at what it says."""
    if not isinstance(columns, Mapping):
        return {}
    for name, wanted in columns.items():
        if wanted is not None and not isinstance(wanted, Image):
            raise UsageError(
                f"does not know what becomes of column {name!r} by {wanted!r}",
                option="columns",
                value=columns,
                fixes=["give a penstock.torch.Image for images", "None for values as they are stored"],
            )
    return {name: wanted for name, wanted in columns.items() if wanted is not None}


def image_finisher(
    images: Mapping[str, Image],
    make: Callable[[dict[str, Any]], Any],
    *,
    workers: int | None,
    pin: bool,
    each_thread: Callable[[], None],
    **common: Any,
) -> BatchFinisher:
    """Return how batches with these images are finished: by processors, or on a GPU."""
    devices = {image.device for image in images.values()}
    if len(devices) > 1:
        raise UsageError(
            f"has images for several devices: {', '.join(sorted(devices))}",
            option="columns",
            value=dict(images),
            fixes=["choose one for all"],
        )
    if devices == {"cpu"}:
        threads = workers or default_threads(decoding=True)
        return ImageBatches(images, make, workers=threads, pin=pin, each_thread=each_thread, **common)
    device = torch.device(devices.pop())
    return DeviceImageBatches(images, make, device=device, decode=nvjpeg(device), **common)


def check_columns(images: Mapping[str, Image], fields: Fields) -> None:
    """Refuse columns of images that hold no bytes, or that nothing here can decode."""
    if images:
        check_decoders()
    for field_ in fields.fields:
        if field_.name in images and field_.kind != "bytes":
            raise ColumnError(
                f"column {field_.name!r} holds {field_.type}, and an Image is decoded from a file's bytes",
                place=fields.place,
                fixes=[f"give None for it: {{{field_.name!r}: None}}"],
            )


@dataclass(slots=True)
class _Batch:
    """A batch in the making: its rows, where its images go, and the parts that are not written yet."""

    records: Records
    slots: dict[str, torch.Tensor]
    left: int
    made: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class ImageBatches:
    """How batches with images are finished.

    Parameters
    ----------
    images : mapping
        What becomes of which column; the others stay as they are.
    make : callable
        What is called with each batch, a dict of columns with tensors for images; its result is given out.
    seed : int
        What chance depends on, beside epoch and row.
    place : str
        What messages call the data.
    workers : int
        Threads.
    pin : bool
        Whether images are written into page-locked memory.
    row_numbers : bool
        Whether the rows' numbers are given out.
    each_thread : callable, optional
        Called once in each thread, before anything else.
    """

    images: Mapping[str, Image]
    make: Callable[[dict[str, Any]], Any]
    seed: int
    place: str
    workers: int
    pin: bool
    row_numbers: bool
    each_thread: Callable[[], None] | None = None

    def run(self, runs: Iterable[Records], size: int, epoch: int) -> Generator[Any, None, None]:
        """Give out finished batches, in order."""
        writers = {
            name: ImageWriter(image, seed=self.seed, epoch=epoch, place=self.place, column=name)
            for name, image in self.images.items()
        }
        parts = self._parts(single_batches(runs, size), writers)
        first = next(parts, None)
        if first is None:
            return

        def chained() -> Generator[tuple[_Batch, int, int], None, None]:
            yield first
            yield from parts

        def work(part: tuple[_Batch, int, int]) -> tuple[_Batch, int, int]:
            self._write(*part, writers)
            return part

        most = max((_AHEAD + 1) * first[0].left, 2 * self.workers)
        with closing(
            in_order(work, chained(), threads=self.workers, most=most, name="image", start=self.each_thread)
        ) as done:
            for batch, _, stop in done:
                if stop == len(batch.records):
                    yield batch.made

    def _parts(
        self, batches: Iterable[Records], writers: Mapping[str, ImageWriter]
    ) -> Generator[tuple[_Batch, int, int], None, None]:
        for records in batches:
            slots = {name: writer.empty(len(records), pin=self.pin) for name, writer in writers.items()}
            batch = _Batch(records, slots, -(-len(records) // _PART))
            for start in range(0, len(records), _PART):
                yield batch, start, min(start + _PART, len(records))

    def _write(self, batch: _Batch, start: int, stop: int, writers: Mapping[str, ImageWriter]) -> None:
        rows = batch.records.rows
        assert rows is not None
        for name, writer in writers.items():
            column = batch.records.columns[name]
            assert isinstance(column, Ragged)
            writer.write(column.slice(start, stop), rows[start:stop], batch.slots[name][start:stop].numpy())
        with batch.lock:
            batch.left -= 1
            last = not batch.left
        if last:
            columns: dict[str, Any] = {**batch.records.columns, **batch.slots}
            if self.row_numbers:
                columns[ROW_NUMBERS] = np.ascontiguousarray(rows)
            batch.made = self.make(columns)
