"""A bucket's features, numbered as they first occur and counted: a hash table whose order is that of the mixed features.

The bits of a mixed feature after those of its bucket name its slot, so that a table read from end to end is sorted but
for neighbours: no sort is needed for the index map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.buckets import UInt32s, UInt64s, class_of, mix_feature
from penstock.native import kernel, prefetch_line

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
    table: UInt64s | None = None
    firsts: UInt32s | None = None
    _out: UInt32s | None = None

    def add(self, features: UInt32s | UInt64s, stretches: UInt32s, first: int) -> UInt32s:
        """Return the local numbers of entries, so many of which fall to each stretch from ``first`` on.

        They are good until the next call.
        """
        if self._out is None or len(self._out) < len(features):
            self._out = np.empty(len(features), np.uint32)
        out = self._out[: len(features)]
        done = 0
        while True:
            if self.table is None or self.firsts is None:
                self.table, self.firsts = room_for(self.slots)
            done, self.used = number(
                features,
                done,
                stretches,
                first,
                self.key,
                np.uint64(self.bits),
                self.table,
                self.firsts,
                self.used,
                out,
            )
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
        counts, firsts = np.empty_like(order), np.empty(0, np.uint32)
        if self.table is not None and self.firsts is not None:
            read_table(self.table, mixed, counts, order, features, entries)
            firsts = self.firsts[: self.used]
        return mixed, order, counts, firsts

    def clear(self) -> None:
        """Begin another bucket, in the memory of the last."""
        self.used = 0
        if self.table is not None:
            self.table[:] = 0

    def _grow(self) -> None:
        old, firsts = self.table, self.firsts
        self.slots *= 2
        self.table, self.firsts = room_for(self.slots)
        if old is not None and firsts is not None:
            move_table(old, np.uint64(self.bits), self.table)
            self.firsts[: self.used] = firsts[: self.used]


@kernel
def number(
    features: Any,
    start: Any,
    stretches: Any,
    first: Any,
    key: Any,
    bits: Any,
    table: Any,
    firsts: Any,
    used: Any,
    out: Any,
) -> Any:
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
