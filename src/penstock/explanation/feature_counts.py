"""How many features occur and how often, before anything is prepared: counted in a sample, and extrapolated.

Blocks are drawn at random. How the number of different features grows from a quarter of the sample to a half to all of
it tells what it grows to: a power law whose exponent falls off as it was seen to. Features met often are taken to occur
as often everywhere; what is left is spread over the rarer ones so that features and entries come out right.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Csr
from penstock.bigmodel.storage import FeatureLayout
from penstock.blocks.base import BlockSource, Int64s
from penstock.columns.recipe import Recipe
from penstock.explanation.sample import unit_heads
from penstock.linear import encoded
from penstock.parallel import in_order

MOST_ENTRIES, MOST_BYTES = 1 << 23, 128_000_000
"""What a sample has at most: entries, and bytes as they are stored."""
Class = tuple[float, float]
"""Features that occur about equally often, and their entries."""

# A feature met so often in the sample is taken to occur in proportion everywhere.
_OFTEN = 8
_MAP_BYTES = 12
_PIECES = 64
_MEAN = 1.3
"""The mean count between a power of two and the next, for counts that fall off fast."""


@dataclass(frozen=True, slots=True)
class FeatureCounts:
    """What is known of the features of some data: rows, features in all of them together, and different features.

    ``dimension`` is how many there could be; where the data do not say, up to the largest index seen. ``classes`` are features
    that occur about equally often, and their entries, the most frequent first. ``rows_bytes`` and ``map_bytes`` are the copy of
    the rows and the index map on disk. ``share`` of the data was looked at; with 1, the figures are counts.
    """

    rows: int
    entries: int
    features: int
    dimension: int
    classes: tuple[Class, ...]
    rows_bytes: int
    map_bytes: int
    share: float

    @property
    def exact(self) -> bool:
        """Whether these are counts rather than estimates."""
        return self.share >= 1

    @classmethod
    def of(cls, layout: FeatureLayout) -> FeatureCounts:
        """Return the counts that preparing found."""
        classes = tuple(
            (float(features), float(entries)) for _, features, entries in reversed(layout.tally) if features
        )
        return cls(
            rows=layout.rows,
            entries=layout.entries,
            features=layout.features,
            dimension=layout.dimension,
            classes=classes,
            rows_bytes=layout.rows_bytes,
            map_bytes=layout.map_bytes,
            share=1.0,
        )


def count_features(
    source: BlockSource, recipe: Recipe, *, seed: int = 0, most_entries: int = MOST_ENTRIES
) -> FeatureCounts:
    """Look at some blocks, drawn by the seed, and return what is to be expected of all.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> from penstock.columns import choose_features
    >>> source = open(pa.table({"indices": [[3, 5], [5], [5, 9]], "values": [[1.0, 1.0], [1.0], [1.0, 1.0]]}))
    >>> counts = count_features(source, choose_features(source.schema))
    >>> counts.features, counts.entries, counts.exact, counts.classes
    (3, 5, True, ((1.0, 3.0), (2.0, 2.0)))
    """
    indices: list[NDArray[Any]] = []
    read: list[int] = []
    rows = entries = largest = 0
    with closing(_sampled(source, recipe, seed)) as blocks:
        for block, x in blocks:
            read.append(block)
            indices.append(x.indices)
            rows, entries = rows + len(x), entries + len(x.indices)
            largest = max(largest, int(x.indices.max(initial=0)))
            if entries >= most_entries:
                break
    known = recipe.width is not None
    dimension = recipe.width if recipe.width is not None else largest + 1
    sample = np.concatenate([np.zeros(0, np.uint64), *indices])
    return extrapolate(sample, rows, share=sampled_share(source, read, rows), dimension=dimension, known=known)


def sampled_share(source: BlockSource, blocks: Sequence[int], rows: int) -> float:
    """Return the share of the data that some blocks, with so many rows, are."""
    if len(blocks) == len(source.block_bytes):
        return 1.0
    if source.exact_rows:
        return rows / int(source.block_rows.sum())
    return min(int(source.block_bytes[list(blocks)].sum()) / max(1, int(source.block_bytes.sum())), 1.0)


def company(source: BlockSource, recipe: Recipe, *, seed: int = 0, most_entries: int = 1 << 20) -> float:
    """Return how often features that come again come with the same others: 0 for never, 1 for always.

    Neighbours by number are looked at in each row: two that are met together again, over those that are met again.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> from penstock.columns import choose_features
    >>> rows = {"indices": [[3, 5], [7, 9]] * 50, "values": [[1.0, 1.0]] * 100}
    >>> source = open(pa.table(rows))
    >>> round(company(source, choose_features(source.schema)), 1)
    1.0
    """
    neighbours: list[NDArray[Any]] = []
    entries = 0
    with closing(_sampled(source, recipe, seed)) as blocks:
        for _, x in blocks:
            row = np.repeat(np.arange(len(x)), np.diff(x.indptr).astype(np.int64))
            order = np.lexsort((x.indices, row))
            indices, same = x.indices[order], np.diff(row[order]) == 0
            neighbours.append(np.stack([indices[:-1][same], indices[1:][same]], axis=1).astype(np.uint64))
            entries += len(indices)
            if entries >= most_entries:
                break
    pairs = np.concatenate([np.zeros((0, 2), np.uint64), *neighbours])
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    again = pairs[1:] == pairs[:-1]
    # A pair can come again only where its first feature does.
    return float(again.all(axis=1).sum() / max(1, again[:, 0].sum()))


def _sampled(source: BlockSource, recipe: Recipe, seed: int) -> Generator[tuple[int, Csr], None, None]:
    """Yield blocks drawn at random, each with its number; close it where it may be left half used."""
    plain = replace(recipe, label=None, weight=None, labels=None)

    def read(block: int) -> tuple[int, Csr]:
        batch = encoded(plain, source, block, source.read(block, plain.columns), wide=True)
        assert isinstance(batch.x, Csr)
        return block, batch.x

    return in_order(read, sample_blocks(source, seeds.generator(seed, "survey")), threads=source.threads)


def sample_blocks(source: BlockSource, chance: np.random.Generator) -> list[int]:
    """Return blocks in an order of chance; of units that are decoded from their start, the first ones of several."""
    count = len(source.block_rows)
    most = max(4, int(MOST_BYTES / max(1.0, float(source.block_bytes.mean())))) if count else 0
    if source.units is None or len(np.unique(source.units)) == count or most >= count:
        drawn: list[int] = chance.permutation(count)[:most].tolist()
        return drawn
    heads: list[int] = unit_heads(source.units, most, chance).tolist()
    return heads


def extrapolate(indices: NDArray[Any], rows: int, *, share: float, dimension: int, known: bool) -> FeatureCounts:
    """Return the counts of a sample that is such a share of the data, extrapolated to all of them."""
    entries = len(indices)
    counts = np.unique(indices, return_counts=True)[1]
    features: float = len(counts)
    classes = _octaves(counts)
    if share < 1 and entries:
        features, singles = growth_estimate(_growth(indices), 1 / share)
        if known:
            features = min(features, float(dimension))
        classes = _spread(counts, share, features=features, singles=singles * features)
    rows, entries = round(rows / share), round(entries / share)
    return FeatureCounts(
        rows=rows,
        entries=entries,
        features=round(features),
        dimension=dimension,
        classes=classes,
        rows_bytes=8 * entries + 16 * rows,
        map_bytes=_MAP_BYTES * round(features),
        share=share,
    )


def _growth(indices: NDArray[Any]) -> tuple[float, float, float]:
    """Return the different features to be expected in a quarter of the sample, in a half, and those in all of it.

    Neighbouring rows may share features, so what is drawn is pieces of the sample, each as it lies.
    """
    pieces = np.array_split(indices, _PIECES)
    met = np.unique(np.concatenate([np.unique(piece) for piece in pieces]), return_counts=True)[1]
    features = np.bincount(met, minlength=_PIECES + 1).astype(np.float64)
    number = np.arange(_PIECES, dtype=np.float64)

    def drawn(count: int) -> float:
        # The chance that none of the pieces with a feature is drawn, by how many they are.
        absent = np.cumprod(np.clip((_PIECES - count - number) / (_PIECES - number), 0, None))
        return float((features[1:] * (1 - absent)).sum())

    return drawn(_PIECES // 4), drawn(_PIECES // 2), float(len(met))


def growth_estimate(seen: Sequence[float], times: float) -> tuple[float, float]:
    """Return how many different features there are in ``times`` the sample, and what share of them occurs once.

    ``seen`` are different features in a quarter of the sample, in a half, and in all of it.

    Examples
    --------
    >>> [round(x, 2) for x in growth_estimate((100, 200, 400), 8)]
    [3200.0, 1.0]
    >>> [round(x, 2) for x in growth_estimate((90, 99, 99), 100)]
    [99.0, 0.0]
    """
    quarter, half, whole = (max(1.0, n) for n in seen)
    # What an exponent lacks of 1: constant for a power law, and doubling with the data where features run out.
    before, lacks = (max(1e-12, 1 - math.log2(b / a)) for a, b in ((quarter, half), (half, whole)))
    growth = min(2.0, max(1.0, lacks / before))
    left, exponent = math.log2(max(1.0, times)), 0.0
    while left > 0:
        lacks = min(1.0, lacks * growth)
        exponent += (1 - lacks) * min(1.0, left)
        left -= 1
    features, once = whole * 2.0**exponent, 1 - min(1.0, lacks)
    # The nearer to doubling, the more as if all features were equally likely, for which the curve is known.
    alike = (growth - 1) ** 2
    known, known_once = _grown_alike(half, whole, times)
    return features ** (1 - alike) * known**alike, (1 - alike) * once + alike * known_once


def _grown_alike(half: float, whole: float, times: float) -> tuple[float, float]:
    """Return the same for features that are all equally likely."""
    rate = -2 * math.log(min(max(whole / half - 1, 1e-9), 1 - 1e-9))  # entries to a feature, in the sample
    all_there_are, later = whole / -math.expm1(-rate), rate * max(1.0, times)
    met = -math.expm1(-later)
    return all_there_are * met, later * math.exp(-later) / met


def _octaves(counts: Int64s, *, times: float = 1.0) -> tuple[Class, ...]:
    """Return features and entries by powers of two of the count, the most frequent first."""
    octave = np.floor(np.log2(counts)).astype(np.int64) if len(counts) else np.zeros(0, np.int64)
    features, entries = np.bincount(octave), np.bincount(octave, weights=counts)
    return tuple((float(f), float(e) * times) for f, e in zip(features[::-1], entries[::-1], strict=True) if f)


def _spread(counts: Int64s, share: float, *, features: float, singles: float) -> tuple[Class, ...]:
    """Return the classes of all data: those met often as they were met, the rest as it must be for the sums to be right."""
    often = counts[counts >= _OFTEN]
    rare, entries = features - len(often), float(counts.sum() - often.sum()) / share
    rare = min(max(rare, 1.0), max(entries, 1.0))
    singles = min(singles, rare)
    more, left = rare - singles, entries - singles
    tail = ((singles, singles),) if singles >= 1 else ()
    if more >= 1:
        means = _MEAN * 2.0 ** np.arange(1, max(2.0, math.log2(_OFTEN / share)))
        mean = min(max(left / more, float(means[0])), float(means[-1]))
        low, high = -8.0, 8.0
        for _ in range(60):
            power = (low + high) / 2
            weights = means**-power
            low, high = (power, high) if float(weights @ means / weights.sum()) > mean else (low, power)
        weights = more * weights / weights.sum()
        middle = tuple((float(f), float(f * m)) for f, m in zip(weights[::-1], means[::-1], strict=True))
        tail = (*middle, *tail)
    return (*_octaves(often, times=1 / share), *tail)
