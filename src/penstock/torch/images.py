"""`Image`: what becomes of a column of encoded images, from the file's bytes to its place in a batch.

Options are those of TorchVision's transforms, and pixels are theirs within a few levels. The work is compiled and runs in threads
without the interpreter's lock; chance depends on the seed, the epoch and the row alone.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import seeds
from penstock.errors import DataError, MissingExtraError, UnknownOptionError, UsageError
from penstock.messages import LeaveOut, Location, TextPart, Use
from penstock.records import Ragged
from penstock.torch.image_decode import ByteArray, ImageDecoder
from penstock.torch.image_kernels import (
    CROPS,
    PLACEMENT,
    RULE,
    place_crop,
    place_crops,
    resample,
    write_floats,
    write_images,
)

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of red, green and blue in ImageNet, of values from 0 to 1."""


class _Decoders(threading.local):
    """A decoder for each thread."""

    def __init__(self) -> None:
        self.decoder = ImageDecoder()


_decoders = _Decoders()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A column of encoded images, decoded into batches of (rows, 3, height, width).

    Plain JPEG is decoded by kernels, progressive and large ones by simplejpeg and all else by Pillow (``pip install
    'penstock[images]'`` brings both); without simplejpeg, Pillow decodes these JPEGs too.

    Parameters
    ----------
    crop : str
        ``random-resized``: a random part of the image, of a random ratio, as TorchVision's ``RandomResizedCrop``, for
        training. ``center``: the middle, after the shorter side was resized to ``resize``, as ``Resize`` and ``CenterCrop``, for
        evaluation. ``none``: the whole image, whatever its ratio.
    size : int or (int, int)
        The height and width of the result.
    flip : bool
        Mirror every second image, at random.
    resize : int, optional
        With ``center``, the shorter side before the crop; 8/7 of the size (256 for 224), if not given.
    scale : (float, float)
        With ``random-resized``, the least and the largest part of the image's area.
    ratio : (float, float)
        With ``random-resized``, the least and the largest ratio of width to height.
    normalize : str or (means, deviations), optional
        ``imagenet``, or three means and three standard deviations of values from 0 to 1, to be subtracted and divided by.
        The result is float32.
    dtype : str, optional
        ``uint8`` (if not given), or ``float32``: values from 0 to 1.
    device : str
        ``cuda``, or ``cuda:1``: decode JPEG there, by nvJPEG, which takes TorchVision and hardly a core; batches then have the
        images there. It is for loops in one process that train on this device.

    Examples
    --------
    >>> Image(crop="random-resized", size=224, flip=True).shape
    (3, 224, 224)
    >>> Image(crop="center", size=224, normalize="imagenet").dtype
    'float32'
    """

    crop: Literal["random-resized", "center", "none"]
    size: int | tuple[int, int] = 224
    flip: bool = False
    resize: int | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None
    dtype: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise UnknownOptionError.of("crop", self.crop, CROPS)
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise UsageError(
                "is not the size of an image", option="size", value=self.size, fixes=["give pixels: 224, or (224, 320)"]
            )
        if self.resize is not None and (self.crop != "center" or self.resize < max(sides)):
            fixes: list[TextPart] = [LeaveOut("resize")]
            if self.crop != "center":
                raise UsageError("is for a crop from the middle", option="resize", value=self.resize, fixes=fixes)
            fixes = [f"choose {max(sides)} or more", *fixes]
            raise UsageError(f"is less than the size, {self.size}", option="resize", value=self.resize, fixes=fixes)
        for option, (low, high), most in (("scale", self.scale, 1.0), ("ratio", self.ratio, math.inf)):
            if not 0 < low <= high <= most:
                raise UsageError(
                    "is not a range of " + ("parts of an area" if option == "scale" else "ratios of width to height"),
                    option=option,
                    value=(low, high),
                    fixes=[
                        "give the least and the largest, as in " + ("(0.08, 1)" if option == "scale" else "(3/4, 4/3)")
                    ],
                )
        if self.normalize is not None:
            self._check_normalize()
        kind = self.dtype or ("uint8" if self.normalize is None else "float32")
        if kind not in ("uint8", "float32"):
            raise UnknownOptionError.of("dtype", self.dtype, ("uint8", "float32"))
        if kind == "uint8" and self.normalize is not None:
            fixes = [Use("dtype", "float32"), LeaveOut("dtype")]
            raise UsageError("holds no normalized values", option="dtype", value=self.dtype, fixes=fixes)
        object.__setattr__(self, "dtype", kind)
        if self.device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", str(self.device)):
            raise UnknownOptionError.of("device", self.device, ("cpu", "cuda"))

    def _check_normalize(self) -> None:
        given = self.normalize
        if isinstance(given, str):
            if given != "imagenet":
                raise UnknownOptionError.of("normalize", given, ("imagenet",))
        elif given is None or len(given) != 2 or any(len(part) != 3 for part in given) or min(given[1]) <= 0:
            raise UsageError(
                "is not three means and three deviations above 0",
                option="normalize",
                value=given,
                fixes=[Use("normalize", "imagenet"), "give ((r, g, b), (r, g, b)), of values from 0 to 1"],
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return (3, *self.size) if isinstance(self.size, tuple) else (3, self.size, self.size)

    def rules(self) -> NDArray[Any]:
        """Return what `place_crop` takes."""
        _, height, width = self.shape
        resize = self.resize or -(-max(height, width) * 8 // 7)
        logs = math.log(self.ratio[0]), math.log(self.ratio[1])
        return np.array([(CROPS.index(self.crop), height, width, resize, self.flip, *self.scale, *logs)], RULE)

    def affine(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return for each channel by what a byte is multiplied, and what is added to it then."""
        if self.dtype == "uint8":
            return np.ones(3, np.float32), np.zeros(3, np.float32)
        means, deviations = ((0.0,) * 3, (1.0,) * 3) if self.normalize is None else (
            IMAGENET if isinstance(self.normalize, str) else self.normalize
        )  # fmt: skip
        scale = np.divide(1.0, deviations)
        return (scale / 255).astype(np.float32), (-np.asarray(means) * scale).astype(np.float32)


class ImageWriter:
    """Writes the images of one column and epoch into their places; several threads may share it.

    Parameters
    ----------
    image : Image
        What becomes of them.
    seed, epoch : int
        What chance depends on, beside the row.
    place : str
        What the data are called.
    column : str
        What the column is called.
    """

    def __init__(self, image: Image, *, seed: int, epoch: int, place: str, column: str = "image") -> None:
        self.image, self.place, self.column = image, place, column
        self._key = np.uint64(seeds.key(seed, "images", epoch))
        self._rules = image.rules()
        self.scale, self.shift = image.affine()

    def empty(self, rows: int, *, pin: bool = False, device: torch.device | None = None) -> torch.Tensor:
        """Return memory for images."""
        kind = getattr(torch, str(self.image.dtype))
        return torch.empty((rows, *self.image.shape), dtype=kind, pin_memory=pin, device=device)

    def write(self, column: Ragged, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Decode the images of these rows into their places (rows, channels, height, width)."""
        levels = out if out.dtype == np.uint8 else np.empty(out.shape, np.uint8)
        done, placements = np.zeros(len(rows), np.bool_), np.zeros(1, PLACEMENT)
        write_images(column.values, column.offsets, rows, self._rules, self._key, placements, levels, done)
        for at in np.flatnonzero(~done).tolist():
            content = column.values[column.offsets[at] : column.offsets[at + 1]]
            self._write_other(content, int(rows[at]), placements, levels[at])
        if levels is not out:
            flat = (len(out), 3, -1)
            write_floats(levels.reshape(flat), self.scale, self.shift, out.reshape(flat))

    def _write_other(self, content: ByteArray, row: int, placements: NDArray[Any], out: NDArray[Any]) -> None:
        """Decode an image that is not a plain JPEG."""

        def place(height: int, width: int) -> int:
            place_crop(self._rules, self._key, row, height, width, placements, 0)
            return int(placements["reduce"][0])

        pixels, reduced = self._decode(content, row, place)
        planes = np.ascontiguousarray(pixels.reshape(len(pixels), -1, 3).transpose(2, 0, 1))
        resample(planes, 0, 0, reduced, placements, 0, out)

    def pixels(self, content: ByteArray, row: int) -> torch.Tensor:
        """Decode one image as it is: (channels, height, width)."""
        lines, _ = self._decode(content, row, lambda height, width: 1)
        return torch.from_numpy(lines).view(len(lines), -1, 3).permute(2, 0, 1).contiguous()

    def places(self, sizes: Sequence[Sequence[int]], rows: Sequence[int]) -> NDArray[Any]:
        """Place the crops of images of these heights and widths."""
        placements = np.zeros(len(sizes), PLACEMENT)
        place_crops(self._rules, self._key, np.asarray(rows), np.asarray(sizes), placements)
        return placements

    def _decode(self, content: ByteArray, row: int, place: Callable[[int, int], int]) -> tuple[ByteArray, int]:
        try:
            return _decoders.decoder.decode(content, place)
        except MissingExtraError:
            raise
        except Exception as error:  # whatever a decoder raises for what it does not understand
            raise DataError(
                f"this image cannot be decoded: {str(error) or type(error).__name__}",
                place=Location(self.place, row=row, column=self.column),
                fixes=["mend it, or leave the row out"],
            ) from error
