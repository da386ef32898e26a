"""Images that `jpeg_kernels` does not decode as pixels: JPEG by simplejpeg (libjpeg-turbo), all else by Pillow.

Where simplejpeg is missing, or finds something odd in a JPEG (CMYK, damage that can be recovered from), Pillow decodes it
too, and its word on what is broken is final. As in TorchVision, images are turned into RGB and EXIF rotation is left alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import MissingExtraError

try:
    import simplejpeg
except ImportError:
    simplejpeg = None
try:
    import PIL.Image
except ImportError:
    PIL = None  # type: ignore[assignment]  # looked at before each use

ByteArray = NDArray[np.uint8]
_DIRECT = frozenset({"YCbCr", "RGB", "Gray"})
"""Colors that simplejpeg decodes as Pillow does."""


def check_decoders() -> None:
    """Refuse to begin where nothing can decode an image."""
    if simplejpeg is None and PIL is None:
        raise MissingExtraError.of("simplejpeg and pillow", "images", "decoding images")


def is_whole_jpeg(content: ByteArray) -> bool:
    """Whether bytes begin and end as a JPEG does."""
    return len(content) > 3 and content[:2].tobytes() == b"\xff\xd8" and content[-2:].tobytes() == b"\xff\xd9"


def has_usual_colors(content: ByteArray) -> bool:
    """Whether a JPEG is in colors that every decoder takes alike, as far as can be told."""
    return simplejpeg is None or _usual_size(content) is not None


def _usual_size(content: ByteArray) -> tuple[int, int] | None:
    """Return the height and width of a JPEG in usual colors; None of anything else."""
    if simplejpeg is None or len(content) < 2 or content[0] != 0xFF or content[1] != 0xD8:
        return None
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    return (int(height), int(width)) if colors in _DIRECT else None


class ImageDecoder:
    """Decodes one image after the other, in one thread; pixels are good until the next."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.uint8)

    def decode(self, content: ByteArray, place: Callable[[int, int], int]) -> tuple[ByteArray, int]:
        """Return an image's rows of red, green and blue bytes, and by what it was reduced.

        ``place`` is told the height and width, and returns by what the image may be reduced: 1, 2, 4 or 8.
        """
        size = _usual_size(content)
        if size is not None:
            height, width = size
            reduce = place(height, width)
            tall, wide = -(-height // reduce), -(-width // reduce)
            if self._buffer.size < tall * wide * 3:
                self._buffer = np.empty(tall * wide * 3, np.uint8)
            try:
                pixels = simplejpeg.decode_jpeg(
                    content, "RGB", min_height=tall if reduce > 1 else 0, min_width=wide if reduce > 1 else 0,
                    min_factor=reduce, buffer=self._buffer,
                )  # fmt: skip
                return pixels.reshape(tall, wide * 3), reduce
            except ValueError:  # damaged, or something that the strict decoder will not guess
                pass
        if PIL is None:
            raise MissingExtraError.of("pillow", "images", "decoding images other than plain JPEG")
        return _by_pillow(content, place)


def _by_pillow(content: ByteArray, place: Callable[[int, int], int]) -> tuple[ByteArray, int]:
    with PIL.Image.open(io.BytesIO(content.data)) as image:
        width, height = image.size
        reduce = place(height, width)
        if reduce > 1:  # only JPEG has it
            drafted: Any = image.draft("RGB", (width // reduce, height // reduce))
            reduce = 1 if drafted is None else round(width / drafted[1][2])
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # type: ignore[assignment]  # Pillow warns of losing it otherwise
        pixels: ByteArray = np.array(
            image.convert("RGB")
        )  # a copy may be written, as what simplejpeg gives: one type to compile for
    return pixels.reshape(len(pixels), -1), reduce
