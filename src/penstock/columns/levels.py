"""Looks up the levels of a category: a hash table of their UTF-8 bytes, made once, and a compiled loop over the rows.

Blocks are small and levels may be thousands, so that a table made anew for every block would cost more than the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.columns.hashing import murmur3, murmur3_reference, text_bytes
from penstock.native import kernel

_EMPTY = -1


@dataclass(frozen=True, slots=True)
class LevelTable:
    """Texts and the code of each.

    Examples
    --------
    >>> table = LevelTable.of({"red": 0, "blue": 1})
    >>> table.codes(pa.array(["blue", "pink", "red"]), other=7).tolist()
    [1, 7, 0]
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    values: NDArray[np.int64]
    slots: NDArray[np.int64]

    @classmethod
    def of(cls, codes: Mapping[str, int]) -> LevelTable:
        """Make the table."""
        texts = [text.encode() for text in codes]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(text) for text in texts], dtype=np.int64)])
        slots = np.full(1 << max(2 * len(texts), 1).bit_length(), _EMPTY, np.int64)
        for number, text in enumerate(texts):
            slot = murmur3_reference(text, 0) & (len(slots) - 1)
            while slots[slot] != _EMPTY:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = number
        data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        return cls(offsets, data, np.array(list(codes.values()), np.int64), slots)

    def codes(self, array: pa.Array, other: int) -> NDArray[np.int64]:
        """Return the code of each text, ``other`` where it is none of the table; a null is the empty text."""
        starts, content = text_bytes(array)
        found = np.empty(len(array), np.int64)
        find_levels(starts, content, self.offsets, self.data, self.values, self.slots, other, found)
        return found


@kernel
def find_levels(
    starts: Any, content: Any, offsets: Any, data: Any, values: Any, slots: Any, other: Any, found: Any
) -> None:
    """Write the code of each row's text, found by its hash and compared byte by byte."""
    mask = len(slots) - 1
    for row in range(len(found)):
        start = starts[row]
        length = starts[row + 1] - start
        slot = np.int64(murmur3(content, start, start + length, np.uint32(0))) & mask
        found[row] = other
        while slots[slot] >= 0:
            level = slots[slot]
            at = offsets[level]
            same = offsets[level + 1] - at == length
            i = 0
            while same and i < length:
                same = data[at + i] == content[start + i]
                i += 1
            if same:
                found[row] = values[level]
                break
            slot = (slot + 1) & mask


def find_levels_reference(texts: list[str], codes: Mapping[str, int], other: int) -> list[int]:
    """Return the codes by a dictionary."""
    return [codes.get(text, other) for text in texts]
