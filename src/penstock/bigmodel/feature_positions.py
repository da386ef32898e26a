"""Positions for all features that occur, from entries dealt to buckets on disk: hot ones first, then as they occur.

`PreparationPlan` fits the work into the memory. `FeaturePositions` makes three rounds over the buckets: `count` finds each
bucket's features and replaces its entries by local numbers; `choose` draws the line between hot and cold; `assign` writes
positions in place of the local numbers and fills the index map. Only tallies and the top features are in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.bigmodel import buckets
from penstock.bigmodel.buckets import CLASSES, FeatureNumbering, UInt32s, UInt64s, unmix
from penstock.bigmodel.index_map import MapWriter, ScratchFile
from penstock.blocks.base import BlockSource
from penstock.budget import Bytes, show_bytes
from penstock.columns.recipe import Recipe
from penstock.errors import BudgetError, DataError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.parallel import in_order

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


def feature_type(recipe: Recipe, schema: pa.Schema) -> type[np.uint32] | type[np.uint64]:
    """Return the smallest type that holds every feature there can be."""
    most = 0
    for part in recipe.parts:
        if part.width is not None:
            most += part.width
        else:
            most += 1 << schema.field(part.columns[0]).type.value_type.bit_width
    return np.uint32 if most <= 1 << 32 else np.uint64


Int64s = NDArray[np.int64]
OrderHot = Callable[[UInt64s, Int64s], NDArray[np.integer]]
THREADS = 2
MOST_FEATURES = 0xFFFFFFFF
# What a top feature takes while they are sorted: its record, the keys of the sort, and their copies.
_TOP_BYTES = 256
_LEAST_SLOTS = 1 << 10


@dataclass(frozen=True, slots=True)
class BlockRun:
    """A run of blocks whose entries lie together on disk, by bucket."""

    start: int
    stop: int
    rows: int
    offset: int
    edges: Int64s
    """Where each bucket's entries begin among the part's, and the end of the last."""
    tallies: UInt32s
    """Entries by stretch and bucket."""
    largest: int

    @property
    def entries(self) -> int:
        return int(self.edges[-1])


@dataclass(frozen=True, slots=True)
class BucketSplit:
    """Into how many buckets features are split, and what they are mixed with."""

    key: np.uint64
    bits: int
    kind: type[np.uint32] | type[np.uint64]
    """What a feature is on disk."""

    @property
    def buckets(self) -> int:
        return 1 << self.bits

    @property
    def shift(self) -> np.uint64:
        return np.uint64(64 - self.bits)


@dataclass(frozen=True, slots=True)
class HotLine:
    """Where hot features end: classes of counts from ``hot`` on are hot, and from ``top`` on sorted one by one."""

    hot: int
    top: int


@dataclass(slots=True)
class FeaturePositions:
    """The features of the data, as they are found, counted and placed."""

    split: BucketSplit
    parts: Sequence[BlockRun]
    dealt: ScratchFile
    numbers: ScratchFile
    found: ScratchFile
    stream: Stream
    sizes: Int64s = field(init=False)
    features: Int64s = field(init=False)
    entries: Int64s = field(init=False)
    """How many features, and entries of them, there are in each class of counts."""
    line: HotLine = field(init=False)
    _offsets: Int64s = field(init=False)
    _cold: UInt32s = field(init=False)
    _middle: UInt32s = field(init=False)
    _tops: list[tuple[UInt32s, UInt32s]] = field(init=False)

    def count(self) -> None:
        """Find and count the features of every bucket."""
        split, local = self.split, threading.local()
        self.sizes = np.zeros(split.buckets, np.int64)
        self._offsets = np.zeros(split.buckets, np.int64)
        self.features, self.entries = np.zeros(CLASSES, np.int64), np.zeros(CLASSES, np.int64)

        def work(bucket: int) -> tuple[int, int, Int64s, Int64s]:
            numbering = getattr(local, "numbering", None) or FeatureNumbering(split.key, split.bits, _LEAST_SLOTS)
            local.numbering = numbering
            numbering.clear()
            stretch = 0
            for part in self.parts:
                start, stop = part.edges[bucket : bucket + 2].tolist()
                entries = np.empty(stop - start, split.kind)
                self.dealt.read((part.offset + start) * entries.itemsize, entries)
                numbered = numbering.add(entries, part.tallies[:, bucket], stretch)
                self.numbers.write((part.offset + start) * 4, numbered)
                stretch += len(part.tallies)
            features, sums = np.zeros(CLASSES, np.int64), np.zeros(CLASSES, np.int64)
            offset = self.found.append(*numbering.found(features, sums))
            return numbering.used, offset, features, sums

        done = self._rounds("prepare: count", work)
        for bucket, (used, offset, features, sums) in enumerate(done):
            self.sizes[bucket], self._offsets[bucket] = used, offset
            self.features += features
            self.entries += sums
        if int(self.sizes.sum()) > MOST_FEATURES:
            raise DataError(
                f"{int(self.sizes.sum())} different features occur; a model can have {MOST_FEATURES}: hash to fewer"
            )

    def choose(self, *, hot: int, memory: int, order: OrderHot | None) -> int:
        """Draw the line between hot and cold, and return how many are hot."""
        self.line = HotLine(
            _lowest_class(self.features, hot), _lowest_class(self.features, min(hot, max(memory // _TOP_BYTES, 1)))
        )
        stretches = sum(len(part.tallies) for part in self.parts)
        self._cold = np.zeros((self.split.buckets, stretches), np.uint32)
        self._middle = np.zeros((self.split.buckets, self.line.top - self.line.hot), np.uint32)

        def work(bucket: int) -> tuple[UInt64s, UInt32s, UInt32s, UInt32s]:
            counts, firsts = self._counts(bucket)
            line = self.line
            found = buckets.sift(counts, firsts, line.hot, line.top, self._cold[bucket], self._middle[bucket])
            if not found:
                none = np.empty(0, np.uint32)
                return np.empty(0, np.uint64), none, none, none
            mixed, order = self._ordered(bucket)
            picked = np.empty(found, np.uint32)
            buckets.pick(counts, order, line.top, picked)
            local = order[picked]
            return mixed[picked], counts[local], firsts[local], local

        found = self._rounds("prepare: choose", work)
        tops = self._sort_top([f[:3] for f in found], order)
        ends = np.cumsum([len(f[3]) for f in found])
        self._tops = [(f[3], tops[end - len(f[3]) : end]) for f, end in zip(found, ends, strict=True)]
        self._number_classes(len(tops))
        return int(self.features[self.line.hot :].sum())

    def assign(self, index: MapWriter) -> None:
        """Give every feature its position, in the map and in place of its local numbers."""

        def work(bucket: int) -> None:
            counts, firsts = self._counts(bucket)
            positions = np.empty(len(counts), np.uint32)
            buckets.place(
                counts, firsts, self.line.hot, self.line.top, self._cold[bucket], self._middle[bucket], positions
            )
            picked, at = self._tops[bucket]
            positions[picked] = at
            for part in self.parts:
                start, stop = part.edges[bucket : bucket + 2].tolist()
                place = (part.offset + start) * 4
                entries = self.numbers.read(place, np.empty(stop - start, np.uint32))
                buckets.translate(entries, positions)
                self.numbers.write(place, entries)
            mixed, order = self._ordered(bucket)
            index.add(bucket, mixed, positions[order])

        self._rounds("prepare: place", work)

    def _rounds(self, task: str, work: Callable[[int], Any]) -> list[Any]:
        self.stream.emit(Started(task, self.split.buckets, "buckets"))
        results = []
        with closing(in_order(work, range(self.split.buckets), threads=THREADS)) as done:
            for result in done:
                results.append(result)
                self.stream.emit(Advanced(task, 1))
        self.stream.emit(Finished(task))
        return results

    def _counts(self, bucket: int) -> tuple[UInt32s, UInt32s]:
        size = int(self.sizes[bucket])
        both = self.found.read(int(self._offsets[bucket]) + 12 * size, np.empty(2 * size, np.uint32))
        return both[:size], both[size:]

    def _ordered(self, bucket: int) -> tuple[UInt64s, UInt32s]:
        size, offset = int(self.sizes[bucket]), int(self._offsets[bucket])
        mixed = self.found.read(offset, np.empty(size, np.uint64))
        return mixed, self.found.read(offset + 8 * size, np.empty(size, np.uint32))

    def _sort_top(self, found: Sequence[tuple[UInt64s, UInt32s, UInt32s]], order: OrderHot | None) -> UInt32s:
        """Return the position of each top feature: by falling count, first stretch and feature, or by ``order``."""
        features = unmix(np.concatenate([f[0] for f in found]), self.split.key)
        counts = np.concatenate([f[1] for f in found]).astype(np.int64)
        firsts = np.concatenate([f[2] for f in found])
        ranked = np.lexsort((features, firsts - (counts << 32)))
        if order is not None and len(ranked):
            chosen = np.asarray(order(features[ranked], counts[ranked]))
            if chosen.shape != ranked.shape or not (np.bincount(chosen, minlength=len(ranked)) == 1).all():
                raise UsageError(f"order_hot must return each of 0 to {len(ranked) - 1} once")
            ranked = ranked[chosen]
        positions = np.empty(len(ranked), np.uint32)
        positions[ranked] = np.arange(len(ranked), dtype=np.uint32)
        return positions

    def _number_classes(self, start: int) -> None:
        """Turn the tallies of middling and cold features into the first position of each, in place.

        Middling ones go by falling class, cold ones by the stretch in which they first occur; then by bucket.
        """
        for tallies, falling in ((self._middle, True), (self._cold, False)):
            totals = tallies.sum(axis=0, dtype=np.int64)
            totals = totals[::-1] if falling else totals
            first = start + np.cumsum(totals) - totals
            start += int(totals.sum())
            first = (first[::-1] if falling else first).astype(np.uint32)
            for row in tallies:
                size = row.copy()
                row[:] = first
                first += size


def _lowest_class(features: Int64s, most: int) -> int:
    """Return the class from which on at most so many features are; those that occur once never count."""
    above = np.cumsum(features[::-1])[::-1]
    return max(int(np.argmax(above <= most)) if (above <= most).any() else len(features), 2)
