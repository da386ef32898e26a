"""How preparing a model's data fits in the memory given: buckets, parts and stretches, from an estimate of the entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.budget import Bytes, show_bytes
from penstock.errors import BudgetError

BUCKET_ENTRIES = 1 << 20
"""A bucket's table of features lies in the processor's cache when it has about so many entries."""
MOST_BITS = 12
STRETCH = 1 << 14
"""Entries among which the order of first occurrence is not kept: what a few pages hold."""
LEAST_PART = 1 << 16
# Bytes a feature takes while two buckets are numbered, if no feature occurs twice: tables, as they grow, and lists.
_NUMBERING = 250
# Bytes an entry takes while parts are read, translated and written, several at once.
_PART = 96
# Bytes a part takes for each bucket, and a stretch for each bucket.
_EDGE, _TALLY = 12, 8
_LEAST = 1 << 24
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class PreparationPlan:
    """How the work is cut.

    Attributes
    ----------
    bits : int
        There are ``2**bits`` buckets of features.
    part : int
        Entries that are dealt to buckets at once.
    stretch : int
        Entries of the data that count as one place of first occurrence.
    """

    bits: int
    part: int
    stretch: int

    @classmethod
    def of(cls, entries: int, memory: int, *, name: str = "the data") -> PreparationPlan:
        """PreparationPlan for so many entries.

        Examples
        --------
        >>> PreparationPlan.of(30_000_000, 200_000_000)
        PreparationPlan(bits=6, part=1875000, stretch=16384)
        """
        found = cls._within(entries, memory)
        if found is not None:
            return found
        least = memory
        while cls._within(entries, least) is None:
            least += least // 8 + 1
        raise BudgetError(
            f"is too little to prepare {name}, which has about {entries} entries",
            option="memory",
            value=Bytes(memory),
            fixes=[f"{show_bytes(least)} is enough"],
        )

    @classmethod
    def _within(cls, entries: int, memory: int) -> PreparationPlan | None:
        most = max(memory, _LEAST)
        needed = max(-(-entries * _NUMBERING // most), 2)
        bits = min((max(-(-entries // BUCKET_ENTRIES), needed) - 1).bit_length(), MOST_BITS)
        part = max(min(memory // _PART, max(entries // 16, LEAST_PART)), LEAST_PART)
        if needed > 1 << bits or (entries // part + 1 << bits) * _EDGE > most // 4:
            return None
        stretch = STRETCH
        while (entries // stretch << bits) * _TALLY > most // 3:
            stretch *= 2
        return cls(bits, part, stretch)


def entries_of(source: BlockSource, read: Callable[[int], tuple[Any, Any]]) -> float:
    """Estimate the entries to a stored byte from a few blocks, the first of the pieces they are decoded with."""
    blocks = np.arange(len(source.block_rows))
    if source.units is not None:
        blocks = np.flatnonzero(np.diff(source.units, prepend=-1))
    picks = np.unique(blocks[np.linspace(0, len(blocks) - 1, _SAMPLE).astype(np.int64)])
    entries = sum(len(read(int(block))[1].indices) for block in picks)
    return 1.1 * entries / max(int(source.block_bytes[picks].sum()), 1)


def stretches_of(entries: NDArray[np.floating], most: int) -> list[tuple[int, int]]:
    """Cut blocks that hold about so many entries each into runs of about so many.

    Examples
    --------
    >>> stretches_of(np.array([3.0, 3.0, 3.0, 9.0, 1.0]), 6)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    numbers = ((np.cumsum(entries) - 1e-9) // max(most, 1)).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(entries)]
    return list(pairwise(edges))


def feature_type(encoder: Encoder, schema: pa.Schema) -> type[np.uint32] | type[np.uint64]:
    """Return the smallest type that holds every feature there can be."""
    most = 0
    for part in encoder.parts:
        if part.width is not None:
            most += part.width
        else:
            most += 1 << schema.field(part.columns[0]).type.value_type.bit_width
    return np.uint32 if most <= 1 << 32 else np.uint64
