"""Where the crop of an image lies, and its pixels resized into a batch, as compiled loops.

Resizing is Pillow's and TorchVision's bilinear filter with antialiasing: an output pixel is the average of the input under
a triangle as wide as the scale. Rows are combined first, since neighbours along a row are neighbours in memory, and one
output row is finished while it is in the nearest cache. `resample` has a plain twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel
from penstock.shuffle.permute import GAMMA, mix
from penstock.torch.jpeg_kernels import HEADER, read_jpeg_header, read_planes, write_colors

RULE = np.dtype(
    [(name, np.int64) for name in ("crop", "height", "width", "resize", "flip")]
    + [(name, np.float64) for name in ("least_area", "most_area", "least_ratio", "most_ratio")]
)
"""How crops are placed: the crop as a number of `CROPS`, the output's size, and the range of areas and (log) ratios."""
CROPS = ("random-resized", "center", "none")
PLACEMENT = np.dtype(
    [(name, np.int64) for name in ("left", "top", "right", "bottom", "flip", "reduce")]
    + [(name, np.float64) for name in ("x", "y", "span_x", "span_y")]
)
"""Where one crop lies: the pixels it may see, whether it is mirrored, by what the decoder may reduce the image without
loss, and the box (in pixels, with fractions) that becomes the output."""

_U11 = np.uint64(11)
_TRIES = 10
_KEPT = 2
"""The decoder reduces an image no further than to this many times the output's size."""


@kernel(fast=False, inline=True)
def _unit(state: Any) -> Any:
    """Return a number from 0 to 1 (exclusive) for a state."""
    return np.float64(mix(state) >> _U11) * 2.0**-53


@kernel(fast=False)
def place_crop(rules: Any, key: Any, row: Any, height: Any, width: Any, placements: Any, at: Any) -> None:
    """Place the crop of one image; chance is a function of the key and the row alone.

    The random crop is TorchVision's: a share of the area and a ratio are drawn up to ten times, until the crop fits.
    """
    rule, place = rules[0], placements[at]
    state = mix(np.uint64(key) ^ mix(np.uint64(row) + GAMMA))
    left, top, crop_width, crop_height = 0, 0, width, height
    place.flip = 1 if rule.flip and _unit(state) < 0.5 else 0
    if rule.crop == 0:
        fits = False
        for _ in range(_TRIES):
            state += GAMMA
            area = height * width * (rule.least_area + _unit(state) * (rule.most_area - rule.least_area))
            state += GAMMA
            ratio = np.exp(rule.least_ratio + _unit(state) * (rule.most_ratio - rule.least_ratio))
            crop_width, crop_height = int(np.round(np.sqrt(area * ratio))), int(np.round(np.sqrt(area / ratio)))
            fits = 0 < crop_width <= width and 0 < crop_height <= height
            if fits:
                break
        if fits:
            state += GAMMA
            top = int(_unit(state) * (height - crop_height + 1))
            state += GAMMA
            left = int(_unit(state) * (width - crop_width + 1))
        else:  # the largest crop in the middle whose ratio is allowed
            crop_width, crop_height = width, height
            if width < height * np.exp(rule.least_ratio):
                crop_height = max(1, min(height, int(np.round(width / np.exp(rule.least_ratio)))))
            elif width > height * np.exp(rule.most_ratio):
                crop_width = max(1, min(width, int(np.round(height * np.exp(rule.most_ratio)))))
            top, left = (height - crop_height) // 2, (width - crop_width) // 2
    place.left, place.top, place.right, place.bottom = left, top, left + crop_width, top + crop_height
    place.x, place.y, place.span_x, place.span_y = left, top, crop_width, crop_height
    if rule.crop == 1:  # the whole image is resized, and what is outside of the middle is never computed
        if height <= width:
            tall, wide = rule.resize, int(rule.resize * width / height)
        else:
            tall, wide = int(rule.resize * height / width), rule.resize
        place.x = np.round((wide - rule.width) / 2.0) * width / wide
        place.y = np.round((tall - rule.height) / 2.0) * height / tall
        place.span_x, place.span_y = rule.width * width / wide, rule.height * height / tall
    place.reduce = 1
    while (
        place.reduce < 8
        and place.span_x >= 2 * _KEPT * place.reduce * rule.width
        and place.span_y >= 2 * _KEPT * place.reduce * rule.height
    ):
        place.reduce *= 2


@kernel(fast=False)
def place_crops(rules: Any, key: Any, rows: Any, sizes: Any, placements: Any) -> None:
    """Place the crops of several images, of these heights and widths."""
    for at in range(len(rows)):
        place_crop(rules, key, rows[at], sizes[at, 0], sizes[at, 1], placements, at)


@kernel
def _taps(start: Any, span: Any, low: Any, high: Any, mirrored: Any, firsts: Any, counts: Any, weights: Any) -> None:
    """Fill in which input pixels make each output pixel, and their weights."""
    size = len(firsts)
    scale = span / size
    reach = max(scale, 1.0)
    for place in range(size):
        center = start + (place + 0.5) * scale
        first = max(low, int(np.floor(center - reach + 0.5)))
        count = min(high, int(np.floor(center + reach + 0.5))) - first
        at = size - 1 - place if mirrored else place
        total = 0.0
        for tap in range(count):
            weight = max(0.0, 1.0 - abs((first + tap + 0.5 - center) / reach))
            weights[at, tap] = weight
            total += weight
        for tap in range(count):
            weights[at, tap] /= total
        firsts[at], counts[at] = first, count


@kernel
def resample(planes: Any, origin_x: Any, origin_y: Any, reduced: Any, placements: Any, at: Any, out: Any) -> None:
    """Crop, resize and mirror an image into ``out`` (channels, height, width).

    ``planes`` (3, height, width) begins at the origin of the image, which the decoder has reduced ``reduced`` times.
    """
    place = placements[at]
    height, width = out.shape[1], out.shape[2]
    low_x, low_y = max(place.left // reduced, origin_x), max(place.top // reduced, origin_y)
    high_x = min(-(-place.right // reduced), origin_x + planes.shape[2])
    high_y = min(-(-place.bottom // reduced), origin_y + planes.shape[1])
    span_x, span_y = place.span_x / reduced, place.span_y / reduced
    first_x, count_x = np.empty(width, np.int64), np.empty(width, np.int64)
    first_y, count_y = np.empty(height, np.int64), np.empty(height, np.int64)
    weight_x = np.empty((width, int(2 * max(span_x / width, 1.0)) + 3), np.float32)
    weight_y = np.empty((height, int(2 * max(span_y / height, 1.0)) + 3), np.float32)
    _taps(place.x / reduced, span_x, low_x, high_x, place.flip != 0, first_x, count_x, weight_x)
    _taps(place.y / reduced, span_y, low_y, high_y, False, first_y, count_y, weight_y)
    begin, end = low_x - origin_x, high_x - origin_x
    line = np.empty((3, end - begin), np.float32)
    for y in range(height):
        for color in range(3):
            lines = planes[color, first_y[y] - origin_y :]
            sums, row, weight = line[color], lines[0, begin:end], weight_y[y, 0]
            for i in range(len(sums)):
                sums[i] = weight * np.float32(row[i])
            for tap in range(1, count_y[y]):
                row, weight = lines[tap, begin:end], weight_y[y, tap]
                for i in range(len(sums)):
                    sums[i] += weight * np.float32(row[i])
        reds, greens, blues = line[0], line[1], line[2]
        for x in range(width):
            red = green = blue = np.float32(0.5)
            first: Any = np.uint64(first_x[x] - low_x)  # an unsigned index is not looked at for a minus
            for tap in range(count_x[x]):
                weight, source = weight_x[x, tap], first + np.uint64(tap)
                red += weight * reds[source]
                green += weight * greens[source]
                blue += weight * blues[source]
            out[0, y, x] = np.uint8(np.int32(red))
            out[1, y, x] = np.uint8(np.int32(green))
            out[2, y, x] = np.uint8(np.int32(blue))


@kernel
def write_floats(levels: Any, scale: Any, shift: Any, out: Any) -> None:
    """Write ``scale * level + shift`` for images (images, channels, pixels), with a scale and a shift for each channel."""
    for i in range(len(levels)):
        for color in range(3):
            some, others, times, plus = levels[i, color], out[i, color], scale[color], shift[color]
            for at in range(len(some)):
                others[at] = times * np.float32(some[at]) + plus


@kernel(fast=False)
def _seen(place: Any, height: Any, width: Any, bounds: Any) -> None:
    """Fill in which pixels a crop is made of: left, top, right and bottom."""
    reach_x, reach_y = max(place.span_x / width, 1.0) + 1.0, max(place.span_y / height, 1.0) + 1.0
    bounds[0] = max(place.left, int(np.floor(place.x - reach_x)))
    bounds[1] = max(place.top, int(np.floor(place.y - reach_y)))
    bounds[2] = min(place.right, int(np.ceil(place.x + place.span_x + reach_x)))
    bounds[3] = min(place.bottom, int(np.ceil(place.y + place.span_y + reach_y)))


@kernel(fast=False)
def write_images(
    values: Any, offsets: Any, rows: Any, rules: Any, key: Any, placements: Any, out: Any, done: Any
) -> None:
    """Decode, crop, resize and mirror the images of several rows into ``out``; ``done`` says which could be decoded here."""
    heads, bounds = np.zeros(1, HEADER), np.empty(4, np.int64)
    tables = np.zeros((4, 80), np.float32)
    counts, symbols = np.empty((8, 16), np.uint8), np.empty((8, 256), np.uint8)
    words, planes = np.empty(0, np.uint64), np.empty(0, np.uint8)
    starts, strides = np.zeros(3, np.int64), np.zeros(3, np.int64)
    line = np.empty((2, 0), np.float32)
    for i in range(len(rows)):
        data = values[offsets[i] : offsets[i + 1]]
        if not read_jpeg_header(data, heads, tables, counts, symbols):
            continue
        head = heads[0]
        place_crop(rules, key, rows[i], head.height, head.width, placements, 0)
        if placements[0].reduce > 1:
            continue
        _seen(placements[0], out.shape[2], out.shape[3], bounds)
        unit_x, unit_y = 8 * head.across, 8 * head.down
        # Blended colors reach a sample further.
        left_unit, top_unit = max(bounds[0] - 2, 0) // unit_x, max(bounds[1] - 2, 0) // unit_y
        right_unit = -(-min(bounds[2] + 2, head.width) // unit_x)
        bottom_unit = -(-min(bounds[3] + 2, head.height) // unit_y)
        across, down = right_unit - left_unit, bottom_unit - top_unit
        total = 0
        for c in range(head.components):
            starts[c], strides[c] = total, across * (head.across if c == 0 else 1)
            total += strides[c] * down * 8 * (head.down if c == 0 else 1)
        if len(words) < total:
            words = np.empty(total, np.uint64)
        if not read_planes(
            data, heads, tables, counts, symbols, left_unit, right_unit, top_unit, bottom_unit, words, starts, strides
        ):
            continue
        wide, tall = bounds[2] - bounds[0], bounds[3] - bounds[1]
        if len(planes) < 3 * wide * tall:
            planes = np.empty(3 * wide * tall, np.uint8)
        if line.shape[1] < wide + 8:
            line = np.empty((2, wide + 8), np.float32)
        pixels = planes[: 3 * wide * tall].reshape(3, tall, wide)
        write_colors(words.view(np.uint8), heads, starts, strides, left_unit, top_unit, bounds, line, pixels)
        resample(pixels, bounds[0], bounds[1], 1, placements, 0, out[i])
        done[i] = True


def weight_matrix(start: float, span: float, low: int, high: int, *, size: int, pixels: int) -> NDArray[np.float64]:
    """Return the weights of all input pixels for each output pixel."""
    scale = span / size
    reach = max(scale, 1.0)
    centers = start + (np.arange(size) + 0.5) * scale
    places = np.arange(pixels)
    weights = np.maximum(0.0, 1.0 - np.abs((places + 0.5 - centers[:, None]) / reach))
    weights[:, (places < low) | (places >= high)] = 0.0
    normal: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
    return normal


def resample_reference(pixels: NDArray[np.uint8], place: Any, *, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return what `resample` writes for an image (height, width, 3) that was not reduced."""
    x = weight_matrix(place["x"], place["span_x"], place["left"], place["right"], size=size[1], pixels=pixels.shape[1])
    y = weight_matrix(place["y"], place["span_y"], place["top"], place["bottom"], size=size[0], pixels=pixels.shape[0])
    values = np.einsum("yh,hwc,xw->cyx", y, pixels.astype(np.float64), x[::-1] if place["flip"] else x, optimize=True)
    rounded: NDArray[np.uint8] = np.floor(values + 0.5).astype(np.uint8)
    return rounded
