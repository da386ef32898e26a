"""Batches whose images are decoded and resized on a GPU, beside the model: the processors only hand over files' bytes.

JPEG is decoded by nvJPEG (through TorchVision), a group of images at a time; what it does not take, and what it fails on, is
decoded by the processors, which find out which row is broken. Crops are resized by two products with matrices of weights,
the same triangles as in `image_kernels`. Two threads, each with a stream of its own, work on the next batches.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.blocks.fields import ROW_NUMBERS
from penstock.errors import UsageError
from penstock.loader.transforms import single_batches
from penstock.messages import Use
from penstock.parallel import in_order
from penstock.records import Ragged, Records
from penstock.torch.image_decode import ByteArray, has_usual_colors, is_whole_jpeg
from penstock.torch.images import Image, ImageWriter
from penstock.torch.tensors import tensors_in

_GROUP, _GROUP_BYTES = 64, 16 << 20
"""Images that are decoded together, and their bytes: what bounds the memory for whole images."""
_THREADS, _HELD = 2, 4
"""Threads, and batches held: in the making, ready and in use."""

JpegDecoder = Callable[[list[torch.Tensor]], list[torch.Tensor]]
"""Decodes whole JPEGs (bytes, in memory) to images (3, height, width) on the device."""


def nvjpeg(device: torch.device) -> JpegDecoder:
    """Return the decoder of a GPU; what it needs is looked for here."""
    if not torch.cuda.is_available():
        raise _without(device, "is for a GPU, and torch finds none here")
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        made = f"needs torchvision, the one made for torch {torch.__version__}, which cannot be imported ({error})"
        raise _without(device, made) from error

    def decode(contents: list[torch.Tensor]) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decode_jpeg(contents, ImageReadMode.RGB, device=device)
        return images

    return decode


def _without(device: torch.device, reason: str) -> UsageError:
    return UsageError(reason, option="device", value=str(device), fixes=[Use("device", "cpu")])


@dataclass(frozen=True, slots=True)
class DeviceImageBatches:
    """How batches with images on a device are finished; parameters are those of `ImageBatches`, and these.

    Parameters
    ----------
    device : torch.device
        Where images go.
    decode : callable
        What decodes JPEGs there.
    """

    images: Mapping[str, Image]
    make: Callable[[dict[str, Any]], Any]
    seed: int
    place: str
    row_numbers: bool
    device: torch.device
    decode: JpegDecoder
    _here: threading.local = field(default_factory=threading.local)

    def run(self, runs: Iterable[Records], size: int, epoch: int) -> Generator[Any, None, None]:
        """Give out finished batches, in order."""
        writers = {
            name: ImageWriter(image, seed=self.seed, epoch=epoch, place=self.place, column=name)
            for name, image in self.images.items()
        }

        def work(records: Records) -> Any:
            with self._beside() as stream:
                made = self._make(records, writers)
                if stream is not None:
                    # nvJPEG has a stream of its own, and would write into memory that is given back before it was read.
                    stream.synchronize()
                return made

        batches = single_batches(runs, size)
        with closing(in_order(work, batches, threads=_THREADS, most=_HELD, name="image")) as done:
            for batch in done:
                if self.device.type == "cuda":
                    for tensor in tensors_in(batch):
                        if tensor.is_cuda:  # not to be written again before the model has read it
                            tensor.record_stream(torch.cuda.current_stream(tensor.device))
                yield batch

    @contextlib.contextmanager
    def _beside(self) -> Iterator[torch.cuda.Stream | None]:
        """Have this thread's work done beside the model's."""
        if self.device.type != "cuda":
            yield None
            return
        if not hasattr(self._here, "stream"):
            self._here.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch gives it no types
        with torch.cuda.stream(self._here.stream):
            yield self._here.stream

    def _make(self, records: Records, writers: Mapping[str, ImageWriter]) -> Any:
        columns: dict[str, Any] = dict(records.columns)
        assert records.rows is not None
        for name, writer in writers.items():
            column = columns[name]
            assert isinstance(column, Ragged)
            columns[name] = self._images(column, records.rows, writer)
        if self.row_numbers:
            columns[ROW_NUMBERS] = np.ascontiguousarray(records.rows)
        return self.make(columns)

    def _images(self, column: Ragged, rows: NDArray[np.int64], writer: ImageWriter) -> torch.Tensor:
        if not column.values.flags.writeable:  # of which torch makes no tensors
            column = Ragged.concat([column])
        out = writer.empty(len(rows), device=self.device)
        offsets = column.offsets.tolist()
        contents = [column.values[start:stop] for start, stop in itertools.pairwise(offsets)]
        for group in _groups(contents):
            pixels = self._decoded(contents[group], rows[group].tolist(), writer)
            places = writer.places([image.shape[1:] for image in pixels], rows[group].tolist())
            out[group] = resize_images(pixels, places, writer)
        return out

    def _decoded(self, contents: Sequence[ByteArray], rows: Sequence[int], writer: ImageWriter) -> list[torch.Tensor]:
        direct = [at for at, each in enumerate(contents) if is_whole_jpeg(each) and has_usual_colors(each)]
        try:
            found = self.decode([torch.from_numpy(contents[at]) for at in direct]) if direct else []
        except RuntimeError:  # about one of them
            direct, found = [], []
        images = dict(zip(direct, found, strict=True))
        return [
            images[at] if at in images else writer.pixels(content, row).to(self.device)
            for at, (content, row) in enumerate(zip(contents, rows, strict=True))
        ]


def _groups(contents: Sequence[ByteArray]) -> Iterator[slice]:
    """Cut a batch into groups that are decoded together."""
    start = nbytes = 0
    for at, content in enumerate(contents):
        nbytes += len(content)
        if at > start and (nbytes > _GROUP_BYTES or at - start == _GROUP):
            yield slice(start, at)
            start, nbytes = at, len(content)
    yield slice(start, len(contents))


def resize_images(pixels: Sequence[torch.Tensor], places: NDArray[Any], writer: ImageWriter) -> torch.Tensor:
    """Crop, resize and mirror images (3, height, width) of any sizes into one tensor, where they are."""
    device = pixels[0].device
    tall, wide = (places["bottom"] - places["top"]).tolist(), (places["right"] - places["left"]).tolist()
    kind = torch.float16 if device.type == "cuda" else torch.float32  # half a level at most, and fast
    stack = torch.zeros((len(pixels), 3, max(tall), max(wide)), dtype=kind, device=device)
    corners = zip(places["left"].tolist(), places["top"].tolist(), wide, tall, strict=True)
    for slot, image, (left, top, width, height) in zip(stack, pixels, corners, strict=True):
        slot[:, :height, :width] = image[:, top : top + height, left : left + width]
    _, height, width = writer.image.shape
    spans = np.stack([
        *(places["y"] - places["top"], places["span_y"], places["bottom"] - places["top"]),
        *(places["x"] - places["left"], places["span_x"], places["right"] - places["left"]),
    ]).astype(np.float32)  # fmt: skip
    y_start, y_span, y_end, x_start, x_span, x_end = torch.from_numpy(spans).to(device)
    mirrored = torch.from_numpy(places["flip"] != 0).to(device)
    rows = _weights(y_start, y_span, y_end, size=height, length=max(tall))
    columns = _weights(x_start, x_span, x_end, size=width, length=max(wide))
    columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    values = (rows.to(kind)[:, None] @ stack) @ columns.to(kind)[:, None].transpose(2, 3)
    levels = values.float().add_(0.5).floor_().clamp_(0, 255)
    if writer.image.dtype == "uint8":
        return levels.to(torch.uint8)
    scale, shift = (torch.from_numpy(each).to(device)[:, None, None] for each in (writer.scale, writer.shift))
    return levels.mul_(scale).add_(shift)


def _weights(start: torch.Tensor, span: torch.Tensor, end: torch.Tensor, *, size: int, length: int) -> torch.Tensor:
    """Return for each image a matrix (size, length): how much each input pixel counts in each output pixel."""
    scale = (span / size)[:, None, None]
    centers = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    places = torch.arange(length, device=start.device)
    weights = (1 - ((places + 0.5 - centers) / scale.clamp(min=1)).abs()).clamp_(min=0)
    weights *= places < end[:, None, None]
    return weights / weights.sum(2, keepdim=True)
