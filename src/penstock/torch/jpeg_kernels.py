"""A part of a baseline JPEG decoded by compiled loops, so that threads decode without ever meeting in the interpreter.

A call of a library takes the interpreter's lock before and after every image, which holds up more than a few threads; it also
decodes what a crop leaves out. Here only the coefficients of all blocks are read, up to the last row of the crop; blocks of the
crop are transformed, 32 at a time, and brought to red, green and blue. Colors are blended between samples as libjpeg does by
default, and pixels are libjpeg's within a level. Whatever is not a plain baseline JPEG, or is damaged, is left to other decoders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel

HEADER = np.dtype(
    [(name, np.int64) for name in ("height", "width", "components", "across", "down", "restart", "scan")]
    + [(name, np.int64, 3) for name in ("quantization", "dc", "ac")]
)
"""What a header says: size, components, how many luma blocks a unit has across and down, units between restarts, where the
coefficients begin, and the tables of each component."""
_ZIGZAG = np.array(
    [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
     35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55,
     62, 63]
)  # fmt: skip
_ORDER = (np.concatenate([_ZIGZAG, np.full(16, 63)]) * 32).astype(np.uint64)
"""Where each coefficient of a group stands; damaged runs may lead 15 further before they are noticed."""
_AAN = np.array([1.0] + [np.cos(k * np.pi / 16) * np.sqrt(2) for k in range(1, 8)])
_PREPARED = (np.outer(_AAN, _AAN) / 8).reshape(64)[_ZIGZAG].astype(np.float32)
"""Factors of the transform by Arai, Agui and Nakajima that go into the quantization tables, in the order of the file."""
_LOOK = 10
"""Bits that are looked up at once; longer codes are rare."""
_GROUP = 32
_MOST = 1 << 26
"""Pixels of the largest image that is decoded here."""
_F = np.float32


@kernel(fast=False)
def read_jpeg_header(data: Any, heads: Any, tables: Any, counts: Any, symbols: Any) -> Any:
    """Read a header; return whether the image can be decoded here.

    ``tables`` (4, 80) takes the quantization, ``counts`` (8, 16) and ``symbols`` (8, 256) the Huffman codes: four tables for
    the first coefficients, then four for the others.
    """
    head = heads[0]
    size = len(data)
    if size < 4 or data[0] != 0xFF or data[1] != 0xD8 or data[size - 2] != 0xFF or data[size - 1] != 0xD9:
        return False
    at: Any = 2
    jfif = False
    seen: Any = 0
    adobe: Any = -1
    first: Any = 0
    second: Any = 0
    third: Any = 0
    known_tables: Any = 0
    known_codes: Any = 0
    head.restart = 0
    while at + 4 <= size:
        if data[at] != 0xFF:
            return False
        marker = np.int64(data[at + 1])
        if marker == 0xFF:
            at += 1
            continue
        length = (np.int64(data[at + 2]) << 8) | np.int64(data[at + 3])
        begin, end = at + 4, at + 2 + length
        if length < 2 or end > size or marker < 0xC0 or 0xD0 <= marker <= 0xD9:
            return False
        if marker == 0xDB:
            while begin < end:
                wide, table = np.int64(data[begin]) >> 4, np.int64(data[begin]) & 15
                if wide > 1 or table > 3 or begin + 1 + 64 * (wide + 1) > end:
                    return False
                for k in range(64):
                    value: Any = np.int64(data[begin + 1 + k * (wide + 1)])
                    if wide:
                        value = (value << 8) | np.int64(data[begin + 2 + 2 * k])
                    tables[table, k] = _F(value) * _PREPARED[k]
                known_tables |= 1 << table
                begin += 1 + 64 * (wide + 1)
        elif marker == 0xC4:
            while begin < end:
                kind, table = np.int64(data[begin]) >> 4, np.int64(data[begin]) & 15
                if kind > 1 or table > 3 or begin + 17 > end:
                    return False
                total: Any = 0
                for i in range(16):
                    counts[4 * kind + table, i] = data[begin + 1 + i]
                    total += np.int64(data[begin + 1 + i])
                if total > 256 or begin + 17 + total > end:
                    return False
                for i in range(total):
                    symbols[4 * kind + table, i] = data[begin + 17 + i]
                known_codes |= 1 << (4 * kind + table)
                begin += 17 + total
        elif marker == 0xC0 or marker == 0xC1:
            if seen or length < 11 or data[begin] != 8:
                return False
            seen = np.int64(data[begin + 5])
            head.height = (np.int64(data[begin + 1]) << 8) | np.int64(data[begin + 2])
            head.width = (np.int64(data[begin + 3]) << 8) | np.int64(data[begin + 4])
            if (seen != 1 and seen != 3) or length != 8 + 3 * seen:
                return False
            if head.height == 0 or head.width == 0 or head.height * head.width > _MOST:
                return False
            head.components = seen
            head.across, head.down = np.int64(data[begin + 7]) >> 4, np.int64(data[begin + 7]) & 15
            for c in range(seen):
                head.quantization[c] = data[begin + 8 + 3 * c]
                if head.quantization[c] > 3 or (c and data[begin + 7 + 3 * c] != 0x11):
                    return False
            if seen == 1:
                head.across = head.down = 1
            else:
                first, second, third = data[begin + 6], data[begin + 9], data[begin + 12]
            if not (head.across == 1 and head.down == 1) and not (head.across == 2 and 1 <= head.down <= 2):
                return False
        elif 0xC2 <= marker <= 0xCF:
            return False
        elif marker == 0xDD:
            if length != 4:
                return False
            head.restart = (np.int64(data[begin]) << 8) | np.int64(data[begin + 1])
        elif marker == 0xE0 and length >= 7 and data[begin] == 0x4A and data[begin + 1] == 0x46:
            jfif = True
        elif marker == 0xEE and length >= 14 and data[begin] == 0x41 and data[begin + 1] == 0x64:
            adobe = np.int64(data[begin + 11])
        elif marker == 0xDA:
            if not seen or length != 6 + 2 * seen or data[begin] != seen or data[end - 3] != 0:
                return False
            if data[end - 2] != 63 or data[end - 1] != 0:
                return False
            for c in range(seen):
                head.dc[c] = np.int64(data[begin + 2 + 2 * c]) >> 4
                head.ac[c] = 4 + (np.int64(data[begin + 2 + 2 * c]) & 15)
                if head.dc[c] > 3 or head.ac[c] > 7 or not (known_tables >> head.quantization[c]) & 1:
                    return False
                if not (known_codes >> head.dc[c]) & 1 or not (known_codes >> head.ac[c]) & 1:
                    return False
                if c and data[begin + 1 + 2 * c] == data[begin + 2 * c - 1]:
                    return False
            if seen == 3:
                if data[begin + 1] != first or data[begin + 3] != second or data[begin + 5] != third:
                    return False
                if not jfif and (adobe == 0 or adobe == 2 or (adobe < 0 and first == 82 and second == 71)):
                    return False  # red, green and blue as they are
            head.scan = end
            return True
        at = end
    return False


@kernel(fast=False)
def _build_codes(counts: Any, symbols: Any, table: Any, look: Any, short: Any, last: Any, shift: Any) -> Any:
    """Make of the numbers of codes of each length what codes are looked up by; return whether they are possible.

    ``look`` gives the length and the symbol of codes of few bits, ``short`` the value, the run before it and all bits where
    these are few too. ``last`` is the first code of each length that is too large, and ``shift`` what makes of a code of that
    length the place of its symbol.
    """
    base = table << _LOOK
    look[base : base + (1 << _LOOK)] = 0
    short[base : base + (1 << _LOOK)] = 0
    code = place = np.int64(0)
    for length in range(1, 17):
        shift[table, length] = place - code
        for _ in range(np.int64(counts[table, length - 1])):
            if code >= 1 << length:
                return False
            if length <= _LOOK:
                symbol = np.int64(symbols[table, place])
                bits = symbol & 15
                begin = base + (code << (_LOOK - length))
                for i in range(1 << (_LOOK - length)):
                    look[begin + i] = (length << 8) | symbol
                    if 0 < bits <= _LOOK - length:
                        value = i >> (_LOOK - length - bits)
                        if value < 1 << (bits - 1):
                            value -= (1 << bits) - 1
                        short[begin + i] = (value << 16) | ((symbol >> 4) << 8) | (length + bits)
            code += 1
            place += 1
        last[table, length] = code
        code <<= 1
    return True


@kernel(fast=False)
def _fill(data: Any, at: Any, held: Any, left: Any, missing: Any) -> Any:
    """Take in bytes, of which a zero after 255 is none, until there are more than 32 bits; zeros from a marker on."""
    while left <= 32:
        byte = np.uint64(0)
        if at + 1 < len(data):
            byte = np.uint64(data[at])
            if byte == np.uint64(0xFF):
                if data[at + 1] == 0:
                    at += 2
                else:
                    byte = np.uint64(0)
                    missing += 8
            else:
                at += 1
        else:
            missing += 8
        held |= byte << np.uint64(56 - left)
        left += 8
    return at, held, left, missing


@kernel(fast=False)
def _long_code(held: Any, table: Any, last: Any, shift: Any, symbols: Any) -> Any:
    """Return the length and the symbol of a code that is too long to be looked up; a length of 17 if there is none."""
    for length in range(_LOOK + 1, 17):
        code = np.int64(held >> np.uint64(64 - length))
        if code < last[table, length]:
            return length, np.int64(symbols[table, code + shift[table, length]])
    return 17, np.int64(0)


@kernel(inline=True)
def _transform_line(values: Any, start: Any, step: Any) -> None:
    """Transform one line of eight values in each block of a group (Arai, Agui and Nakajima)."""
    for b in range(_GROUP):
        i = np.uint64(start + b)
        in0, in1, in2, in3 = (
            values[i],
            values[i + step],
            values[i + np.uint64(2) * step],
            values[i + np.uint64(3) * step],
        )
        in4, in5 = values[i + np.uint64(4) * step], values[i + np.uint64(5) * step]
        in6, in7 = values[i + np.uint64(6) * step], values[i + np.uint64(7) * step]
        even0, even1, even3 = in0 + in4, in0 - in4, in2 + in6
        even2 = (in2 - in6) * _F(1.414213562) - even3
        a0, a3, a1, a2 = even0 + even3, even0 - even3, even1 + even2, even1 - even2
        z13, z10, z11, z12 = in5 + in3, in5 - in3, in1 + in7, in1 - in7
        b7 = z11 + z13
        z5 = (z10 + z12) * _F(1.847759065)
        b6 = z5 - z10 * _F(2.613125930) - b7
        b5 = (z11 - z13) * _F(1.414213562) - b6
        b4 = z5 - z12 * _F(1.082392200) - b5
        values[i], values[i + np.uint64(7) * step] = a0 + b7, a0 - b7
        values[i + step], values[i + np.uint64(6) * step] = a1 + b6, a1 - b6
        values[i + np.uint64(2) * step], values[i + np.uint64(5) * step] = a2 + b5, a2 - b5
        values[i + np.uint64(3) * step], values[i + np.uint64(4) * step] = a3 + b4, a3 - b4


@kernel
def _finish_group(coefficients: Any, used: Any, places: Any, strides: Any, words: Any, packed: Any) -> None:
    """Transform the blocks of a group to bytes, write each to its place (in words of 8 bytes), and empty the group."""
    for column in range(8):
        _transform_line(coefficients, column * _GROUP, np.uint64(8 * _GROUP))
    for row in range(8):
        _transform_line(coefficients, row * 8 * _GROUP, np.uint64(_GROUP))
    for row in range(8):
        for b in range(_GROUP):
            word = np.uint64(0)
            for x in range(8):
                value = coefficients[np.uint64((row * 8 + x) * _GROUP + b)] + _F(128.5)
                value = min(max(value, _F(0.0)), _F(255.0))
                word |= np.uint64(np.uint32(np.int32(value))) << np.uint64(8 * x)
            packed[np.uint64(row * _GROUP + b)] = word
    for b in range(used):
        for row in range(8):
            words[places[b] + row * strides[b]] = packed[row * _GROUP + b]
    coefficients[:] = _F(0.0)


@kernel(fast=False)
def read_planes(
    data: Any, heads: Any, tables: Any, counts: Any, symbols: Any, left_unit: Any, right_unit: Any, top_unit: Any,
    bottom_unit: Any, words: Any, starts: Any, strides: Any,
) -> Any:  # fmt: skip
    """Decode the units of a range (columns and rows) to planes of bytes; return whether all was well.

    Plane ``c`` begins at ``starts[c]`` and has rows of ``strides[c]``, in words of 8 bytes.
    """
    head = heads[0]
    look, short = np.empty(8 << _LOOK, np.uint16), np.empty(8 << _LOOK, np.int32)
    last, shift = np.zeros((8, 17), np.int64), np.zeros((8, 17), np.int64)
    for c in range(head.components):
        for table in (head.dc[c], head.ac[c]):
            if not _build_codes(counts, symbols, table, look, short, last, shift):
                return False
    coefficients = np.zeros(64 * _GROUP, np.float32)
    places, steps = np.zeros(_GROUP, np.int64), np.zeros(_GROUP, np.int64)
    packed = np.zeros(8 * _GROUP, np.uint64)
    befores = np.zeros(3, np.int64)
    size, units = len(data), -(-head.width // (8 * head.across))
    at, held, left, missing, used = head.scan, np.uint64(0), np.int64(0), np.int64(0), 0
    until, marker = head.restart, 0
    for unit in range(bottom_unit * units):
        y, x = unit // units, unit % units
        if head.restart:
            if until == 0:
                if left < missing or at + 1 >= size or data[at] != 0xFF or data[at + 1] != 0xD0 + marker:
                    return False
                at += 2
                held, left, missing = np.uint64(0), np.int64(0), np.int64(0)
                until, marker = head.restart, (marker + 1) & 7
                befores[:] = 0
            until -= 1
        keep = y >= top_unit and left_unit <= x < right_unit
        for c in range(head.components):
            across, down = (head.across, head.down) if c == 0 else (1, 1)
            scales = tables[head.quantization[c]]
            for block in range(across * down):
                k, codes = np.int64(0), head.dc[c]
                slot = np.uint64(used)
                while k < 64:
                    if left <= 32:
                        four = np.uint64(0xFFFFFFFF)
                        if at + 4 <= size:
                            i = np.uint64(at)
                            four = (
                                (np.uint64(data[i]) << np.uint64(24))
                                | (np.uint64(data[i + np.uint64(1)]) << np.uint64(16))
                                | (np.uint64(data[i + np.uint64(2)]) << np.uint64(8))
                                | np.uint64(data[i + np.uint64(3)])
                            )
                        # No byte is 255 where no byte of the other is 0.
                        other = (four ^ np.uint64(0xFFFFFFFF)) - np.uint64(0x01010101)
                        if (other & four & np.uint64(0x80808080)) == np.uint64(0):
                            held |= four << np.uint64(32 - left)
                            left += 32
                            at += 4
                        else:
                            at, held, left, missing = _fill(data, at, held, left, missing)
                    entry = (np.uint64(codes) << np.uint64(_LOOK)) | (held >> np.uint64(64 - _LOOK))
                    if k:
                        found = np.int64(short[entry])
                        if found:
                            held <<= np.uint64(found & 255)
                            left -= found & 255
                            k += (found >> 8) & 255
                            if keep:
                                coefficients[_ORDER[np.uint64(k)] + slot] = _F(found >> 16) * scales[np.uint64(k)]
                            k += 1
                            continue
                    length, symbol = np.int64(look[entry]) >> 8, np.int64(look[entry]) & 255
                    if length == 0:
                        length, symbol = _long_code(held, codes, last, shift, symbols)
                        if length > 16:
                            return False
                    held <<= np.uint64(length)
                    left -= length
                    bits = symbol & 15
                    if k == 0:
                        if symbol > 11:
                            return False
                    elif bits == 0:
                        if symbol != 0xF0:
                            break
                        k += 16
                        continue
                    k += symbol >> 4
                    value = np.int64(0)
                    if bits:
                        value = np.int64(held >> np.uint64(64 - bits))
                        held <<= np.uint64(bits)
                        left -= bits
                        if value < 1 << (bits - 1):
                            value -= (1 << bits) - 1
                    if k == 0:
                        befores[c] += value
                        value = befores[c]
                        codes = head.ac[c]
                    if keep:
                        coefficients[_ORDER[np.uint64(k)] + slot] = _F(value) * scales[np.uint64(k)]
                    k += 1
                if k > 64:
                    return False
                if keep:
                    row = (y - top_unit) * down * 8 + (block // across) * 8
                    places[used] = starts[c] + row * strides[c] + (x - left_unit) * across + block % across
                    steps[used] = strides[c]
                    used += 1
                    if used == _GROUP:
                        _finish_group(coefficients, used, places, steps, words, packed)
                        used = 0
    if used:
        _finish_group(coefficients, used, places, steps, words, packed)
    return left >= missing


@kernel(inline=True)
def _level(value: Any) -> Any:
    """Round to a byte."""
    return np.uint8(np.int32(min(max(value + _F(0.5), _F(0.0)), _F(255.0))))


@kernel
def write_colors(
    bytes_: Any, heads: Any, starts: Any, strides: Any, left_unit: Any, top_unit: Any, bounds: Any, line: Any, out: Any
) -> None:
    """Bring planes of a range of units to red, green and blue, for the pixels of ``bounds`` (left, top, right, bottom).

    ``out`` is (3, height, width) for these pixels. Colors that are stored at half the size are blended, three parts of the near
    sample and one of the next, in both directions, with libjpeg's rounding.
    """
    head = heads[0]
    left, top, right, bottom = bounds[0], bounds[1], bounds[2], bounds[3]
    first_x, first_y = left_unit * 8 * head.across, top_unit * 8 * head.down
    luma = bytes_[8 * starts[0] :]
    if head.components == 1:
        for y in range(top, bottom):
            begin = (y - first_y) * 8 * strides[0] + left - first_x
            row = luma[begin : begin + right - left]
            for c in range(3):
                target = out[c, y - top]
                for x in range(right - left):
                    target[x] = row[x]
        return
    # The samples of this range of units begin at a color sample of their own.
    color_x, color_y = left_unit * 8, top_unit * 8
    wide, tall = -(-head.width // head.across), -(-head.height // head.down)
    stride = 8 * strides[1]
    low = max(left // head.across - 1, 0) - color_x
    high = min((right - 1) // head.across + 2, wide) - color_x
    count, skipped = high - low, left - (low + color_x) * head.across
    sums = np.empty(
        count + 2, np.float32
    )  # with a sample before and one behind, at the edges of the image the same again
    for y in range(top, bottom):
        near = y // head.down
        far = near
        if head.down == 2:
            far = min(max(near + (1 if y & 1 else -1), 0), tall - 1)
        for c in range(1, 3):
            begin = 8 * starts[c] + low
            some = bytes_[begin + (near - color_y) * stride : begin + (near - color_y) * stride + count]
            others = bytes_[begin + (far - color_y) * stride : begin + (far - color_y) * stride + count]
            inner, blended = sums[1 : count + 1], line[c - 1]
            if head.across == 1:
                for i in range(count):
                    blended[i] = _F(some[i]) - _F(128.0)
                continue
            if head.down == 2:
                for i in range(count):
                    inner[i] = _F(3.0) * _F(some[i]) + _F(others[i])
            else:
                for i in range(count):
                    inner[i] = _F(some[i])
            sums[0], sums[count + 1] = inner[0], inner[count - 1]
            # In quarters, or sixteenths where rows were blended; rounded down after these are added.
            part = _F(0.0625) if head.down == 2 else _F(0.25)
            even, odd = (_F(8.0), _F(7.0)) if head.down == 2 else (_F(1.0), _F(2.0))
            before, behind = sums[:count], sums[2 : count + 2]
            for i in range(count):
                blended[2 * i] = _F(np.int32((_F(3.0) * inner[i] + before[i] + even) * part)) - _F(128.0)
                blended[2 * i + 1] = _F(np.int32((_F(3.0) * inner[i] + behind[i] + odd) * part)) - _F(128.0)
        begin = (y - first_y) * 8 * strides[0] + left - first_x
        row = luma[begin : begin + right - left]
        blue, red = line[0, skipped : skipped + right - left], line[1, skipped : skipped + right - left]
        target = out[0, y - top]
        for x in range(right - left):
            target[x] = _level(_F(row[x]) + _F(1.402) * red[x])
        target = out[1, y - top]
        for x in range(right - left):
            target[x] = _level(_F(row[x]) - _F(0.344136) * blue[x] - _F(0.714136) * red[x])
        target = out[2, y - top]
        for x in range(right - left):
            target[x] = _level(_F(row[x]) + _F(1.772) * blue[x])
