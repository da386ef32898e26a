"""Positions for all features that occur, from entries dealt to buckets on disk: hot ones first, then as they occur.

Three rounds over the buckets, several at a time. `FeaturePositions.count` finds each bucket's features and replaces its entries
by local numbers; `FeaturePositions.choose` draws the line between hot and cold; `FeaturePositions.assign` gives out positions, writes them
in place of the local numbers, and fills the index map. Of all this only tallies and the top features are in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel import buckets
from penstock.bigmodel.buckets import CLASSES, UInt32s, UInt64s, unmix
from penstock.bigmodel.index_map import MapWriter
from penstock.bigmodel.numbering import FeatureNumbering
from penstock.bigmodel.scratch_file import ScratchFile
from penstock.errors import DataError, UsageError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.parallel import in_order

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
