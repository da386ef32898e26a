"""Features dealt to buckets, numbered and counted: the native half of `penstock.bigmodel.rewrite`.

A feature is mixed into 64 uniform bits, and back; the top bits name its bucket. Within a bucket features are numbered as they
first occur, by a hash table: that is the feature's *local* number. The bits after those of the bucket name the slot, so that a
table read from end to end is sorted but for neighbours, and the index map needs no sort.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel, prefetch_line

UInt64s = NDArray[np.uint64]
UInt32s = NDArray[np.uint32]

_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_FIRST_BACK, _SECOND_BACK = pow(_FIRST, -1, 1 << 64), pow(_SECOND, -1, 1 << 64)
_FOLD = np.uint64(33)
_EXACT = 256
_PER_OCTAVE = 32
CLASSES = _EXACT + _PER_OCTAVE * 24
"""Classes of counts: each count below 256 is one of its own, larger ones share 32 to an octave."""


@kernel(inline=True)
def mix_feature(feature: Any, key: Any) -> Any:
    """Turn a feature into 64 uniform bits, one to one."""
    x = np.uint64(feature) ^ key
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST)
    x = (x ^ (x >> _FOLD)) * np.uint64(_SECOND)
    return x ^ (x >> _FOLD)


@kernel
def mix_all(features: Any, key: Any, out: Any) -> None:
    """Mix many features."""
    for i in range(len(features)):
        out[i] = mix_feature(features[i], key)


def mix_features_reference(features: UInt64s, key: np.uint64) -> UInt64s:
    """Do the same in NumPy."""
    x = features ^ key
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST)
    x = (x ^ (x >> _FOLD)) * np.uint64(_SECOND)
    return x ^ (x >> _FOLD)


def unmix(mixed: UInt64s, key: np.uint64) -> UInt64s:
    """Return the features that were mixed.

    Examples
    --------
    >>> features = np.array([0, 7, 2**63], np.uint64)
    >>> unmix(mix_features_reference(features, np.uint64(5)), np.uint64(5)).tolist() == features.tolist()
    True
    """
    x = mixed ^ (mixed >> _FOLD)
    x = x * np.uint64(_SECOND_BACK)
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST_BACK)
    features: UInt64s = (x ^ (x >> _FOLD)) ^ key
    return features


@kernel(inline=True)
def class_of(count: Any) -> Any:
    """Return the class of a count; see `CLASSES`."""
    if count < _EXACT:
        return np.int64(count)
    octave = np.int64(8)
    while count >> (octave + 1):
        octave += 1
    return np.int64(_EXACT + (octave - 8) * _PER_OCTAVE + ((count >> (octave - 5)) - _PER_OCTAVE))


def least_of(number: int) -> int:
    """Return the smallest count of a class.

    Examples
    --------
    >>> least_of(3), least_of(256), least_of(257), least_of(256 + 32)
    (3, 256, 264, 512)
    """
    if number < _EXACT:
        return number
    octave, part = divmod(number - _EXACT, _PER_OCTAVE)
    return (_PER_OCTAVE + part) << (octave + 3)


@kernel
def tally_entries(features: Any, at: Any, step: Any, key: Any, shift: Any, tallies: Any, most: Any) -> Any:
    """Count entries by stretch of ``step`` entries and bucket, the first entry being number ``at``; return the maximum."""
    for i in range(len(features)):
        tallies[(at + i) // step, mix_feature(features[i], key) >> shift] += np.uint32(1)
        most = max(most, np.uint64(features[i]))
    return most


@kernel
def deal(features: Any, key: Any, shift: Any, cursors: Any, out: Any) -> None:
    """Move entries to their buckets, in order; ``cursors`` says how far each is filled, and is moved on."""
    for i in range(len(features)):
        bucket = mix_feature(features[i], key) >> shift
        out[cursors[bucket]] = features[i]
        cursors[bucket] += np.uint64(1)


@kernel
def collect(features: Any, key: Any, shift: Any, cursors: Any, stored: Any, limit: Any, out: Any) -> Any:
    """Fetch what `deal` moved back in the order of the entries; False where a bucket has fewer than are asked for."""
    for i in range(len(features)):
        bucket = mix_feature(features[i], key) >> shift
        at = cursors[bucket]
        if at >= limit[bucket]:
            return False
        out[i] = stored[at]
        cursors[bucket] = at + np.uint64(1)
    return True


@kernel
def sift(counts: Any, firsts: Any, hot: Any, top: Any, cold: Any, middle: Any) -> Any:
    """Count cold features by first stretch and middling ones by class; return how many are above both.

    A feature is hot whose count's class is at least ``hot``, and a top one where it is at least ``top``.
    """
    found = 0
    for local in range(len(counts)):
        number_ = class_of(np.int64(counts[local]))
        if number_ < hot:
            cold[firsts[local]] += np.uint32(1)
        elif number_ < top:
            middle[number_ - hot] += np.uint32(1)
        else:
            found += 1
    return found


@kernel
def pick(counts: Any, order: Any, top: Any, picked: Any) -> None:
    """List the places of the top features among those ordered."""
    found = 0
    for at in range(len(order)):
        if found < len(picked) and class_of(np.int64(counts[order[at]])) >= top:
            picked[found] = at
            found += 1


@kernel
def place(counts: Any, firsts: Any, hot: Any, top: Any, cold: Any, middle: Any, positions: Any) -> None:
    """Write the positions of all but the top features; ``cold`` and ``middle`` hold the next ones and are moved on."""
    for local in range(len(counts)):
        number_ = class_of(np.int64(counts[local]))
        if number_ < hot:
            positions[local] = cold[firsts[local]]
            cold[firsts[local]] += np.uint32(1)
        elif number_ < top:
            positions[local] = middle[number_ - hot]
            middle[number_ - hot] += np.uint32(1)


@kernel
def translate(local: Any, positions: Any) -> None:
    """Replace local numbers by positions."""
    for i in range(len(local)):
        local[i] = positions[local[i]]


# Slots are anywhere in the table: they are asked for this many entries before they are looked at.
_AHEAD = 12
# Slots past the last one, so that a run of taken slots never has to go round to the first.
_TAIL = 512
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1 << 32)
_HALF = np.uint64(32)


@dataclass(slots=True)
class FeatureNumbering:
    """A bucket's features as they are found; `add` takes entries in the order of the data.

    Examples
    --------
    >>> bucket = FeatureNumbering(np.uint64(9), 0)
    >>> bucket.add(np.array([70, 7, 70], np.uint32), np.array([2, 1], np.uint32), 0).tolist()
    [0, 1, 0]
    >>> bucket.used
    2
    """

    key: np.uint64
    bits: int
    slots: int = 1 << 10
    used: int = 0
    table: UInt64s = field(init=False)
    firsts: UInt32s = field(init=False)
    _out: UInt32s = field(init=False)

    def __post_init__(self) -> None:
        self.table, self.firsts = room_for(self.slots)
        self._out = np.empty(0, np.uint32)

    def add(self, features: UInt32s | UInt64s, stretches: UInt32s, first: int) -> UInt32s:
        """Return the local numbers of entries, ``stretches[i]`` of which fall to stretch ``first + i``; good until the next call."""
        if len(self._out) < len(features):
            self._out = np.empty(len(features), np.uint32)
        out, bits = self._out[: len(features)], np.uint64(self.bits)
        done = 0
        while True:
            tables = self.table, self.firsts, self.used
            done, self.used = number(features, done, stretches, first, self.key, bits, *tables, out)
            if done == len(features):
                return out
            self._grow()

    def found(
        self, features: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[UInt64s, UInt32s, UInt32s, UInt32s]:
        """Return the mixed features ascending, their local numbers, and by these counts and first stretches.

        The features of each class of counts, and their entries, are added to the sums given.
        """
        mixed, order = np.empty(self.used, np.uint64), np.empty(self.used, np.uint32)
        counts = np.empty_like(order)
        read_table(self.table, mixed, counts, order, features, entries)
        return mixed, order, counts, self.firsts[: self.used]

    def clear(self) -> None:
        """Begin another bucket, in the memory of the last."""
        self.used = 0
        self.table[:] = 0

    def _grow(self) -> None:
        old, firsts = self.table, self.firsts
        self.slots *= 2
        self.table, self.firsts = room_for(self.slots)
        move_table(old, np.uint64(self.bits), self.table)
        self.firsts[: self.used] = firsts[: self.used]


@kernel
def number(
    features: Any, start: Any, stretches: Any, first: Any, key: Any, bits: Any, table: Any, firsts: Any, used: Any,
    out: Any,
) -> Any:  # fmt: skip
    """Write each entry's local number, counting features that are known and entering those that are not.

    ``stretches`` holds how many entries fall to each stretch from ``first`` on. ``table`` has two words a slot: the
    mixed feature, and its count above its number plus one. Stops where the table is full; the return value is how
    many entries are done and how many features there are.
    """
    slots = len(table) // 2 - _TAIL
    size = np.uint64(0)
    while (1 << size) < slots:
        size += np.uint64(1)
    down = np.uint64(64) - size
    most = slots * 3 // 4
    at = np.int64(0)
    total = len(features)
    for stretch in range(len(stretches)):
        stop = at + np.int64(stretches[stretch])
        for i in range(max(at, start), stop):
            if i + _AHEAD < total:
                prefetch_line(table, np.int64((mix_feature(features[i + _AHEAD], key) << bits) >> down) * 2)
            mixed = mix_feature(features[i], key)
            slot = np.int64((mixed << bits) >> down) * 2
            while True:
                word = table[slot + 1]
                if word == 0:
                    if used >= most or slot >= len(table) - 4:
                        return i, used
                    table[slot] = mixed
                    table[slot + 1] = _ONE | np.uint64(used + 1)
                    firsts[used] = first + stretch
                    out[i] = used
                    used += 1
                    break
                if table[slot] == mixed:
                    out[i] = np.uint32((word & _LOW) - np.uint64(1))
                    if word < (_LOW << _HALF):
                        table[slot + 1] = word + _ONE
                    break
                slot += 2
        at = stop
    return total, used


@kernel
def move_table(table: Any, bits: Any, larger: Any) -> None:
    """Enter all features of a table into a larger, empty one."""
    slots = len(larger) // 2 - _TAIL
    size = np.uint64(0)
    while (1 << size) < slots:
        size += np.uint64(1)
    down = np.uint64(64) - size
    for at in range(0, len(table), 2):
        if table[at + 1] != 0:
            slot = np.int64((table[at] << bits) >> down) * 2
            while larger[slot + 1] != 0:
                slot += 2
            larger[slot] = table[at]
            larger[slot + 1] = table[at + 1]


@kernel
def read_table(table: Any, mixed: Any, counts: Any, order: Any, features: Any, entries: Any) -> None:
    """Write a table's mixed features ascending with their local numbers, counts by local number, and sums by class."""
    found = 0
    for at in range(0, len(table), 2):
        word = table[at + 1]
        if word == 0:
            continue
        local = np.int64((word & _LOW) - np.uint64(1))
        count = np.int64(word >> _HALF)
        counts[local] = count
        number_ = class_of(count)
        features[number_] += 1
        entries[number_] += count
        to = found
        while to > 0 and mixed[to - 1] > table[at]:
            mixed[to] = mixed[to - 1]
            order[to] = order[to - 1]
            to -= 1
        mixed[to] = table[at]
        order[to] = local
        found += 1


def room_for(slots: int) -> tuple[UInt64s, UInt32s]:
    """Make an empty table of so many slots, a power of two, and the list of first stretches beside it."""
    return np.zeros(2 * (slots + _TAIL), np.uint64), np.empty(slots * 3 // 4 + 1, np.uint32)
