"""Text to numbers: the compiled loops that read CSV and LibSVM lines.

Each takes bytes that end in a newline (so that no loop needs to look for the end) and stops at the first fault,
saying where; turning that into words is left to the formats. Numbers of up to 19 significant digits are
rounded correctly to float64, by one exact division where that is possible and otherwise by Eisel and Lemire's
method; longer ones are off by one float64 step at most. `parse_reference` has the twins. All the loops stand in
one file, long as it is, because Numba's cache does not notice a change in an imported kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
import numpy as np
from numba import types
from numba.core.cgutils import ir
from numpy.typing import NDArray

from penstock.native import kernel

OK, BAD_VALUE, BAD_WIDTH, BAD_QUOTE = 0, 1, 2, 3
BAD_LABEL, BAD_TOKEN, BAD_ORDER, BAD_INDEX = 4, 5, 6, 7

# Positions are unsigned: a signed index costs Numba a test for negative ones at every byte.
_0, _1, _2, _3, _4, _7, _8, _9, _10, _16, _19, _24, _28 = (
    np.uint64(n) for n in (0, 1, 2, 3, 4, 7, 8, 9, 10, 16, 19, 24, 28)
)
_32, _64 = np.uint64(32), np.uint64(64)
_TAB, _LF, _CR, _SPACE, _QUOTE, _HASH, _COMMA = 9, 10, 13, 32, 34, 35, 44
_PLUS, _MINUS, _DOT, _COLON, _E = 43, 45, 46, 58, 101
_ZERO, _ZEROS = np.uint64(ord("0")), np.uint64(0x3030303030303030)
_POINT, _BYTE = np.uint64(ord(".") ^ ord("0")), np.uint64(255)
_TEN_7, _TEN_8 = np.uint64(10**7), np.uint64(10**8)
_EXACT, _HALF = np.uint64(2**53), np.uint64(2**52)
_MOST_INDEX = np.uint64(2**63 - 1)
_LEAST, _MOST = -342, 308
_TENS = 10.0 ** np.arange(23)
_ALL = np.uint64(2**64 - 1)


def _fifths() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the leading 128 bits of 5**q for every q that a float64 can need, high and low halves."""
    words = []
    for q in range(_LEAST, _MOST + 1):
        if q >= 0:
            bits = 5**q
            shift = bits.bit_length() - 128
            bits = bits >> shift if shift > 0 else bits << -shift
        else:  # the reciprocal, rounded up, so that the product errs to one side only
            power = 5**-q
            bits = (1 << (power.bit_length() * 2 + 256)) // power
            bits = (bits >> (bits.bit_length() - 128)) + 1
        words.append(bits)
    high = np.array([b >> 64 for b in words], np.uint64)
    low = np.array([b & (2**64 - 1) for b in words], np.uint64)
    return high, low


_FIFTHS_HIGH, _FIFTHS_LOW = _fifths()


# ---- Reading memory ------------------------------------------------------------------------------------------
# Functions below a kernel take the text as an address: passing an array costs two atomic counts at every call,
# which is more than reading a number does.


def intrinsic(generator: Callable[..., Any]) -> Any:
    """Make a function that is a few instructions, for which Python has no words."""
    return numba.extending.intrinsic(generator)


def _load(builder: Any, text: Any, at: Any, kind: Any) -> Any:
    place = builder.inttoptr(builder.add(text, at), kind.as_pointer())
    return builder.load(place, align=1)


@intrinsic
def _byte(context: Any, text: Any, at: Any) -> Any:
    """Load the byte at a place."""
    return types.uint8(types.uint64, types.uint64), lambda _, b, __, a: _load(b, a[0], a[1], ir.IntType(8))


@intrinsic
def _eight(context: Any, text: Any, at: Any) -> Any:
    """Load the 8 bytes at a place as one little-endian word, whatever its alignment."""
    return types.uint64(types.uint64, types.uint64), lambda _, b, __, a: _load(b, a[0], a[1], ir.IntType(64))


@intrinsic
def _matches(context: Any, text: Any, at: Any, byte: Any) -> Any:
    """Return which of the 64 bytes at a place equal ``byte``, as the bits of a word, lowest first."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 64)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[2], ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), 64), None))
        found = builder.icmp_unsigned("==", _load(builder, arguments[0], arguments[1], vector), wanted)
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64, types.uint8), generate


@intrinsic
def _zeros_below(context: Any, word: Any) -> Any:
    """Count the zero bits below the lowest set one (64 for none)."""
    return types.uint64(types.uint64), lambda _, b, __, a: b.cttz(a[0], ir.Constant(ir.IntType(1), 0))


@intrinsic
def _ones(context: Any, word: Any) -> Any:
    """Count the bits that are set."""
    return types.uint64(types.uint64), lambda _, b, __, a: b.ctpop(a[0])


@intrinsic
def _zeros_above(context: Any, word: Any) -> Any:
    """Count the zero bits above the highest set one (64 for none)."""
    return types.uint64(types.uint64), lambda _, b, __, a: b.ctlz(a[0], ir.Constant(ir.IntType(1), 0))


@kernel(fast=False)
def count_byte(data: Any, byte: Any) -> Any:
    """Count one byte."""
    count = 0
    for c in data:
        count += c == byte
    return count


# ---- Numbers -------------------------------------------------------------------------------------------------


@intrinsic
def _divide(context: Any, x: Any, y: Any) -> Any:
    """Divide floats without asking whether the divisor is zero, a question that keeps loops from being unrolled."""
    return types.float64(types.float64, types.float64), lambda _, b, __, a: b.fdiv(a[0], a[1])


@intrinsic
def _product_above(context: Any, x: Any, y: Any) -> Any:
    """Return the upper 64 bits of a product of 128."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        wide = [builder.zext(a, ir.IntType(128)) for a in arguments]
        above = builder.lshr(builder.mul(*wide), ir.Constant(ir.IntType(128), 64))
        return builder.trunc(above, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@kernel(fast=False)
def scale(digits: Any, power: Any) -> Any:
    """Return the float64 nearest to ``digits * 10**power`` (``digits`` below 2**64, ties to even)."""
    if digits == _0 or power < _LEAST:
        return 0.0
    if power > _MOST:
        return np.inf
    zeros = _zeros_above(digits)
    wide = digits << zeros
    at = np.uint64(power - _LEAST)
    high, low = _product_above(wide, _FIFTHS_HIGH[at]), wide * _FIFTHS_HIGH[at]
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):  # too close to a boundary for 64 bits of the power
        more = _product_above(wide, _FIFTHS_LOW[at])
        low += more
        if more > low:
            high += _1
    top = high >> np.uint64(63)
    shift = top + _9
    mantissa = high >> shift
    exponent = ((217706 * power) >> 16) + 63 + np.int64(top) - np.int64(zeros) + 1023
    if exponent <= 0:  # below the normal numbers
        if exponent <= -63:
            return 0.0
        mantissa >>= np.uint64(1 - exponent)
        mantissa = (mantissa + (mantissa & _1)) >> _1
        return np.float64(mantissa) * 5e-324
    # Exactly half way (possible for small powers only): to even, not up.
    tie = low <= _1 and -4 <= power <= 23 and mantissa & _3 == _1
    if tie and mantissa << shift == high:
        mantissa &= ~_1
    mantissa = (mantissa + (mantissa & _1)) >> _1
    if mantissa >= _EXACT:
        mantissa = _HALF
        exponent += 1
    if exponent >= 2047:
        return np.inf
    return np.uint64((mantissa & (_HALF - _1)) | (np.uint64(exponent) << np.uint64(52))).view(np.float64)


@kernel(fast=False)
def _long_digits(text: Any, i: Any) -> Any:
    """Return the first 19 significant digits of a number with more, and the power of ten they stand at."""
    digits, kept, power, point = _0, 0, 0, False
    while True:
        c = _byte(text, i)
        digit = np.uint64(c) - _ZERO
        if digit <= _9:
            if kept == 19:
                power += 0 if point else 1
            else:
                digits = digits * _10 + digit
                kept += 1 if digits > _0 else 0
                power -= 1 if point else 0
        elif c == _DOT and not point:
            point = True
        else:
            return digits, power
        i += _1


_INF, _INFINITY, _NAN, _NA, _N_A, _NULL, _NONE = (
    np.frombuffer(w, np.uint8) for w in (b"inf", b"infinity", b"nan", b"na", b"n/a", b"null", b"none")
)


@kernel(fast=False)
def _says(text: Any, i: Any, word: Any) -> Any:
    """Whether the lower-case ``word`` stands at ``i`` in any case."""
    for k in range(len(word)):
        if (_byte(text, i + np.uint64(k)) | 32) != word[k]:
            return False
    return True


@kernel(fast=False)
def _named_number(text: Any, start: Any) -> Any:
    """Read inf, infinity or nan."""
    if _says(text, start, _INFINITY):
        return np.inf, start + _8, True
    if _says(text, start, _INF):
        return np.inf, start + _3, True
    if _says(text, start, _NAN):
        return np.nan, start + _3, True
    return np.nan, start, False


@kernel(fast=False, inline=True)
def _strangers(word: Any) -> Any:
    """Return the high bit of each byte of ``word`` that is not a digit 0 to 9 (the lowest such is sure)."""
    return ((word + np.uint64(0x7676767676767676)) | word) & np.uint64(0x8080808080808080)


@kernel(fast=False, inline=True)
def _join(word: Any) -> Any:
    """Return the number that eight digits make, the first of them in the lowest byte."""
    pair = word * _10 + (word >> _8)
    odd = (pair & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    even = ((pair >> _16) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return (odd + even) >> _32


@kernel(fast=False)
def read_number(text: Any, i: Any, size: Any) -> Any:
    """Read the number at ``i`` of ``size`` bytes; return it, the place after it, and whether there was one."""
    negative = _byte(text, i) == _MINUS
    if negative or _byte(text, i) == _PLUS:
        i += _1
    start = i
    digits = _0
    digit = np.uint64(_byte(text, i)) - _ZERO
    while digit <= _9:
        digits = digits * _10 + digit
        i += _1
        digit = np.uint64(_byte(text, i)) - _ZERO
    count = i - start
    power = np.int64(0)
    if _byte(text, i) == _DOT:
        i += _1
        point = i
        while i + _8 <= size:
            word = _eight(text, i) ^ _ZEROS
            if _strangers(word) != _0:
                break
            digits = digits * _TEN_8 + _join(word)
            i += _8
        digit = np.uint64(_byte(text, i)) - _ZERO
        while digit <= _9:
            digits = digits * _10 + digit
            i += _1
            digit = np.uint64(_byte(text, i)) - _ZERO
        count += i - point
        power = -np.int64(i - point)
    if count == _0:
        value, i, good = _named_number(text, start)
        return (-value if negative else value), i, good
    if count > _19:
        digits, power = _long_digits(text, start)
    if _byte(text, i) | 32 == _E:
        i += _1
        down = _byte(text, i) == _MINUS
        if down or _byte(text, i) == _PLUS:
            i += _1
        digit = np.uint64(_byte(text, i)) - _ZERO
        if digit > _9:
            return np.nan, i, False
        exponent = np.int64(0)
        while digit <= _9:
            exponent = min(exponent * 10 + np.int64(digit), np.int64(1_000_000_000))
            i += _1
            digit = np.uint64(_byte(text, i)) - _ZERO
        power += -exponent if down else exponent
    if digits <= _EXACT and -22 <= power <= 22:  # both factors are exact, so one rounding is all there is
        value = np.float64(digits)
        value = value / _TENS[np.uint64(-power)] if power < 0 else value * _TENS[np.uint64(power)]
    else:
        value = scale(digits, power)
    return (-value if negative else value), i, True


@kernel(fast=False, inline=True)
def _plain_word(word: Any, keep: Any) -> Any:
    """Read the last ``keep`` of eight characters: digits, and a point among them perhaps.

    Return the number they make without the point, the mark of the point (see `_strangers`), and zero if there
    is nothing else among them.
    """
    word = (word ^ _ZEROS) & (_ALL << (_64 - (keep << _3)) if keep > _0 else _0)
    strange = _strangers(word)
    marks = strange >> _7
    impure = (word & (marks * _BYTE)) ^ (marks * _POINT)
    below = marks - _1
    # Close the gap that the point leaves; without a point "below" is everything, and nothing moves.
    word = (word & ~(below << _8 | _BYTE)) | ((word & below) << (_8 if strange > _0 else _0))
    return _join(word), strange, impure


@kernel(fast=False, inline=True)
def _place_point(number: Any, power: Any, bad: Any, size: Any, points: Any, zeros: Any) -> Any:
    """Return a number's power, its value, and how far that is right: see `_plain_numbers`."""
    power -= np.int64(zeros >> _3 if points > _0 else _0)
    value = _divide(np.float64(number), _TENS[np.uint64(min(max(-power, 0), 22))])
    good = (bad | (points & (points - _1))) == _0 and size - (_2 if points > _0 else _1) < _19
    exact = number <= _EXACT and power >= -22 and power <= 0
    return power, value, (1 if exact else 2) if good else 0


@kernel(fast=False)
def _plain_numbers(
    count: Any, longest: Any, words: Any, sizes: Any, powers: Any, digits: Any, values: Any, fine: Any
) -> Any:
    """Read numbers of 1 to 24 characters, digits with at most one point; ``words`` holds the last 24 of each.

    There are no branches in the loops, so that the compiler does eight numbers at a time. Not all of them come
    out: ``fine`` is 1 where ``values`` is right, 2 where ``digits`` and ``powers`` are but need `scale`.
    """
    if longest <= _8:
        for k in range(count):
            number, points, bad = _plain_word(words[0, k], sizes[k])
            digits[k] = number
            zeros = _zeros_above(points)
            powers[k], values[k], fine[k] = _place_point(number, powers[k], bad, sizes[k], points, zeros)
        return
    for k in range(count):
        size = sizes[k]
        low, a, bad_a = _plain_word(words[0, k], min(size, _8))
        middle, b, bad_b = _plain_word(words[1, k], min(max(size, _8), _16) - _8)
        high, c, bad_c = _plain_word(words[2, k], min(max(size, _16), _24) - _16)
        number = low + (_TEN_7 if a > _0 else _TEN_8) * (middle + (_TEN_7 if b > _0 else _TEN_8) * high)
        digits[k] = number
        zeros = _zeros_above(a) + (_zeros_above(b) + (_zeros_above(c) if b == _0 else _0) if a == _0 else _0)
        bad, points = bad_a | bad_b | bad_c, a | b >> _1 | c >> _2
        powers[k], values[k], fine[k] = _place_point(number, powers[k], bad, size, points, zeros)


# ---- CSV -----------------------------------------------------------------------------------------------------


@kernel(fast=False)
def find_ends(data: Any, delimiter: Any, ends: Any) -> Any:
    """Write the places of all delimiters and newlines to ``ends``, which is one longer than ``data``.

    Return their number, that of newlines alone, and that of quotes.
    """
    text, size = np.uint64(data.ctypes.data), np.uint64(len(data))
    count, lines, quotes, i = _0, _0, _0, _0
    while i + _64 <= size:
        breaks = _matches(text, i, np.uint8(_LF))
        found = _matches(text, i, np.uint8(delimiter)) | breaks
        lines += _ones(breaks)
        quotes += _ones(_matches(text, i, np.uint8(_QUOTE)))
        while found != _0:
            for _ in range(4):  # four at a time, needed or not, so that there is less to guess
                ends[count] = i + _zeros_below(found)
                count += np.uint64(found != _0)
                found &= found - _1
        i += _64
    while i < size:
        if data[i] == delimiter or data[i] == _LF:
            ends[count] = i
            count += _1
        lines += np.uint64(data[i] == _LF)
        quotes += np.uint64(data[i] == _QUOTE)
        i += _1
    return count, lines, quotes


@kernel(fast=False)
def _skip_field(text: Any, i: Any, delimiter: Any) -> Any:
    """Return the place after the CSV field at ``i``, and whether its quotes come in pairs."""
    paired = True
    if _byte(text, i) == _QUOTE:
        i += _1
        while True:
            if _byte(text, i) == _LF:
                return i, False
            if _byte(text, i) == _QUOTE:
                i += _1
                if _byte(text, i) != _QUOTE:
                    break
            i += _1
    while _byte(text, i) != delimiter and _byte(text, i) != _LF:
        paired ^= _byte(text, i) == _QUOTE
        i += _1
    return i, paired


@kernel(fast=False)
def _read_field(text: Any, start: Any, stop: Any, size: Any) -> Any:
    """Read a number that may have spaces or quotes about it, or none.

    Return it (or NaN), whether there is one, and whether the field says that it is missing: nothing, NA, N/A,
    null or None.
    """
    while stop > start and _byte(text, start) == _SPACE:
        start += _1
    while stop > start and _byte(text, stop - _1) == _SPACE:
        stop -= _1
    if stop >= start + _2 and _byte(text, start) == _QUOTE and _byte(text, stop - _1) == _QUOTE:
        start, stop = start + _1, stop - _1
        while stop > start and _byte(text, start) == _SPACE:
            start += _1
        while stop > start and _byte(text, stop - _1) == _SPACE:
            stop -= _1
    value, i, good = read_number(text, start, size)
    if good and i == stop:
        return value, True, False
    length = stop - start
    missing = (
        length == _0
        or (length == _2 and _says(text, start, _NA))
        or (length == _3 and _says(text, start, _N_A))
        or (length == _4 and (_says(text, start, _NULL) or _says(text, start, _NONE)))
    )
    return np.nan, False, missing


@kernel(fast=False)
def csv_rows_quoted(data: Any, delimiter: Any, slots: Any, values: Any, missing: Any, strange: Any) -> Any:
    """Do the work of `csv_rows` on text that has quotes, field after field."""
    text, size = np.uint64(data.ctypes.data), np.uint64(len(data))
    i, row = _0, _0
    width = np.uint64(len(slots))
    while i < size:
        if data[i] == _LF or (data[i] == _CR and data[i + _1] == _LF):
            i += _1 if data[i] == _LF else _2
            continue
        line = i
        for column in range(width):
            start = i
            end, paired = _skip_field(text, i, delimiter)
            if not paired:
                return BAD_QUOTE, row, np.int64(column), start
            last = data[end] == _LF
            if last != (column == width - _1):
                return BAD_WIDTH, row, np.int64(column), line
            if slots[column] >= 0:
                to = np.uint64(slots[column])
                stop = end - _1 if last and end > start and data[end - _1] == _CR else end
                value, good, empty = _read_field(text, start, stop, size)
                values[to, row] = value
                if not good:
                    missing[to, row] = 1
                    if not empty:
                        if len(strange) == 0:
                            return BAD_VALUE, row, np.int64(column), start
                        strange[to] = 1
            i = end + _1
        row += _1
    return OK, row, 0, i


@kernel(fast=False)
def _note_fields(
    data: Any, ends: Any, k: Any, slots: Any, rows: Any, starts: Any, stops: Any, sizes: Any, words: Any, powers: Any
) -> Any:
    """Note where the fields of some rows lie, from the ``k``-th end on, and their last 24 characters.

    Return the next end, the rows, the fields noted, the length of the longest, and, if a line has not as many fields as there are slots,
    the column and the place where that line begins.
    """
    text = np.uint64(data.ctypes.data)
    total, width = np.uint64(len(ends)), np.uint64(len(slots))
    start = np.uint64(ends[k - _1]) + _1 if k > _0 else _0
    n, row, longest = _0, _0, _0
    while k < total and row < rows:
        line, end = start, np.uint64(ends[k])
        if data[end] == _LF and (end == start or (end == start + _1 and data[start] == _CR)):
            start = end + _1
            k += _1
            continue
        for column in range(width):
            end = np.uint64(ends[k])
            k += _1
            last = data[end] == _LF
            if last != (column == width - _1):
                return k, row, n, longest, np.int64(column), line
            if slots[column] >= 0:
                stop = end - _1 if last and end > start and data[end - _1] == _CR else end
                starts[n], stops[n], powers[n], sizes[n] = start, stop, 0, 0
                if stop >= _24:  # else the words would begin before the text
                    if data[stop - _4] | 32 == _E and stop > start + _4:  # C and Python write e-05, e+10
                        tens, ones = np.uint64(data[stop - _2]) - _ZERO, np.uint64(data[stop - _1]) - _ZERO
                        sign = np.int64(_COMMA) - np.int64(data[stop - _3])
                        if tens <= _9 and ones <= _9 and (sign == 1 or sign == -1) and stop >= _28:
                            stop -= _4
                            powers[n] = sign * np.int64(tens * _10 + ones)
                    size = stop - start - np.uint64(data[start] == _MINUS)
                    longest = max(longest, size)
                    sizes[n] = size
                    words[0, n], words[1, n] = _eight(text, stop - _8), _eight(text, stop - _16)
                    words[2, n] = _eight(text, stop - _24)
                n += _1
            start = end + _1
        row += _1
    return k, row, n, longest, np.int64(-1), start


@kernel(fast=False)
def csv_rows(data: Any, ends: Any, slots: Any, values: Any, missing: Any, strange: Any) -> Any:
    """Read the numeric columns of whole CSV lines without quotes; return (fault, rows, column, place).

    With the ends of all fields known, many can be read at once: two to four times as fast as one by one.

    Parameters
    ----------
    data : uint8 array
        Whole lines, ending in a newline.
    ends : uint32 array
        The places of all delimiters and newlines, from `find_ends`.
    slots : int64 array
        For each column of the file the row of ``values`` it goes to, or -1 to pass it by.
    values, missing : (slots, rows) arrays
        Filled column by column; ``missing`` (zeros) is set where a field is empty.
    strange : uint8 array
        Empty, to stop at the first field that is no number; or one per slot, to mark its column and go on.
    """
    text, size = np.uint64(data.ctypes.data), np.uint64(len(data))
    wanted = np.flatnonzero(slots >= 0)
    targets, width = slots[wanted], np.uint64(len(wanted))
    batch = np.uint64(max(1, 512 // max(1, len(wanted))))
    room = np.int64(batch) * len(wanted)
    starts, stops = np.empty(room, np.uint64), np.empty(room, np.uint64)
    sizes, digits = np.empty(room, np.uint64), np.empty(room, np.uint64)
    words, powers = np.empty((3, room), np.uint64), np.empty(room, np.int64)
    plain, fine = np.empty(room), np.empty(room, np.uint8)
    k, row = _0, _0
    while k < np.uint64(len(ends)):
        k, rows, n, longest, wrong, line = _note_fields(
            data, ends, k, slots, batch, starts, stops, sizes, words, powers
        )
        _plain_numbers(n, longest, words, sizes, powers, digits, plain, fine)
        to_row, j = row, _0
        for f in range(n):
            to = np.uint64(targets[j])
            value = plain[f]
            if fine[f] == 2:
                value = scale(digits[f], powers[f])
            value = -value if data[starts[f]] == _MINUS else value
            if fine[f] == 0:
                value, good, empty = _read_field(text, starts[f], stops[f], size)
                if not good:
                    missing[to, to_row] = 1
                    if not empty:
                        if len(strange) == 0:
                            return BAD_VALUE, to_row, wanted[j], starts[f]
                        strange[to] = 1
            values[to, to_row] = value
            j += _1
            if j == width:
                to_row, j = to_row + _1, _0
        row += rows
        if wrong >= 0:
            return BAD_WIDTH, row, wrong, line
    return OK, row, np.int64(0), size


# ---- LibSVM --------------------------------------------------------------------------------------------------


@kernel(fast=False, inline=True)
def _closes(c: Any) -> Any:
    """Whether a byte ends a LibSVM token."""
    return c in (_SPACE, _LF, _TAB, _CR, _HASH)


@kernel(fast=False)
def libsvm_rows(data: Any, labels: Any, indptr: Any, indices: Any, values: Any) -> Any:
    """Read whole LibSVM lines; return (fault, rows, entries, place).

    ``labels``, ``indptr`` (one more), ``indices`` and ``values`` must be large enough: as many rows as there
    are newlines, as many entries as there are colons.
    """
    text, size = np.uint64(data.ctypes.data), np.uint64(len(data))
    i, row, entry = _0, _0, _0
    indptr[0] = 0
    while i < size:
        c = data[i]
        if c in (_SPACE, _TAB, _CR, _LF):
            i += _1
            continue
        if c == _HASH:
            while data[i] != _LF:
                i += _1
            continue
        start = i
        label, i, good = read_number(text, i, size)
        if not good or not _closes(data[i]):
            return BAD_LABEL, row, entry, start
        labels[row] = label
        bound = _0  # the least index that may come next
        while True:
            while data[i] == _SPACE or data[i] == _TAB or data[i] == _CR:
                i += _1
            c = data[i]
            if c == _LF:
                break
            if c == _HASH:
                while data[i] != _LF:
                    i += _1
                break
            start = i
            index = _0
            digit = np.uint64(c) - _ZERO
            while digit <= _9:
                index = index * _10 + digit
                i += _1
                digit = np.uint64(data[i]) - _ZERO
            if data[i] != _COLON or i == start:
                # "qid:7" groups the rows of a ranking data set; there is nothing here to learn from it.
                if c == 113 and data[i + _1] == 105 and data[i + _2] == 100 and data[i + _3] == _COLON:
                    while not _closes(data[i]):
                        i += _1
                    continue
                return BAD_TOKEN, row, entry, start
            if index > _MOST_INDEX or i - start > _19:
                return BAD_INDEX, row, entry, start
            if index < bound:
                return BAD_ORDER, row, entry, start
            value, i, good = read_number(text, i + _1, size)
            if not good or not _closes(data[i]):
                return BAD_TOKEN, row, entry, start
            indices[entry] = index
            values[entry] = value
            bound = index + _1
            entry += _1
        i += _1
        row += _1
        indptr[row] = entry
    return OK, row, entry, i
