"""Which features are stored together: vertical partitioning of the model (section 5, Algorithm 3), and what reads cost.

Features are merged, pair by pair, as long as a merge saves more in seeks than it costs in records read for nothing. Same sample,
same partitions: ties go to the more frequent features, then to the lower ones. `partition_reference` specifies `partition`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.bigmodel import affinity
from penstock.budget import Bytes, show_bytes
from penstock.errors import BudgetError, DataError, UsageError, WriteError
from penstock.loader.direct_reads import PAGE
from penstock.messages import Given, Text, Use
from penstock.storage_timer import MB, ReadTimer, random_file

FILE_BYTES = 8 * MB
# The best round counts: other work on the machine only ever slows.
_ROUNDS = 3
# Below what any clock tells apart; a cost of nothing would make every merge, or none, worth while.
_LEAST_SECONDS = 1e-12


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that it takes to read a partition: ``seek`` once and ``unit`` for each of its records.

    Only their ratio decides which features are stored together.

    Examples
    --------
    >>> Cost(seek=100.0, unit=0.5).of(8)
    104.0
    """

    seek: float
    unit: float

    def __post_init__(self) -> None:
        for name, value in (("seek", self.seek), ("unit", self.unit)):
            if not (isfinite(value) and value >= 0):
                raise UsageError("is not a cost", option=name, value=value, fixes=["give seconds, 0 or more"])

    def of(self, size: int) -> float:
        """Return the cost of reading a partition of so many records."""
        return self.seek + size * self.unit


def measure_cost(folder: str | os.PathLike[str], *, record_bytes: int = 4) -> Cost:
    """Measure what reads of a model in a folder cost; both parts are above zero.

    ``record_bytes`` is the size of one record: 4 for a weight, 8 for a weight with its accumulator. The folder must take a
    temporary file of 8 MB.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cost = measure_cost(folder)
    >>> cost.seek > 0 and cost.unit > 0
    True
    """
    if record_bytes < 1:
        raise UsageError("is not a size", option="record_bytes", value=record_bytes, fixes=["give 1 or more bytes"])
    rng = seeds.generator(0, "partition", "cost")
    try:
        with random_file(folder, FILE_BYTES) as path, ReadTimer(path) as timer:
            rounds = [(timer.sequential(rng, threads=1), timer.random(rng, PAGE, threads=1)) for _ in range(_ROUNDS)]
    except OSError as error:
        raise WriteError(
            f"{os.fspath(folder)}: cannot measure storage there ({error.strerror or error});"
            f" give a folder that exists and has {FILE_BYTES // MB} MB free"
        ) from error
    sequential, small = (max(speeds) for speeds in zip(*rounds, strict=True))
    unit = max(record_bytes / sequential, _LEAST_SECONDS)
    # A small read also carries its records; what is left is the seek.
    return Cost(max(PAGE / small - PAGE / record_bytes * unit, _LEAST_SECONDS), unit)


Int64s = NDArray[np.int64]
Features = NDArray[np.uint64]
_CELL_BITS = 20


class FeatureRows(Protocol):
    """Rows of which only the features count: row ``i`` holds ``indices[indptr[i]:indptr[i+1]]``."""

    @property
    def indptr(self) -> NDArray[np.uint64]: ...
    @property
    def indices(self) -> NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Partitions:
    """The features kept, in partitions: the one that most rows ask for comes first.

    Attributes
    ----------
    features : uint64 array
        All of them, partition after partition; inside one by falling frequency, then by feature.
    offsets : int64 array
        Partition ``p`` is ``features[offsets[p]:offsets[p+1]]``.
    frequencies : int64 array
        How often each feature occurs: the rows of the sample that hold it, or the counts that were given.
    rows : int64 array
        The rows of the sample that hold each partition.
    sample_rows : int
        How many rows the sample has.
    requests_before, requests_after : int
        What the sample's rows ask for: features that were kept, and partitions.
    seconds : float
        How long it took.
    """

    features: Features
    offsets: Int64s
    frequencies: Int64s
    rows: Int64s
    sample_rows: int
    requests_before: int
    requests_after: int
    seconds: float

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Features]:
        return (self.features[start:stop] for start, stop in pairwise(self.offsets))

    def report(self) -> str:
        """Return a few lines for people.

        Examples
        --------
        >>> from penstock.batch import Csr
        >>> rows = Csr(np.array([0, 2, 4], np.uint64), np.array([7, 8, 7, 8], np.uint32), np.ones(4, np.float32), 9)
        >>> print(partition(rows, keep=2, cost=Cost(100.0, 1.0)).report().rpartition(chr(10))[0])
        2 features in 1 partitions, the largest of 2
        requests of 2 sampled rows: 4 → 2 (2.0 times fewer)
        """
        largest = int(np.diff(self.offsets).max(initial=0))
        times = self.requests_before / max(self.requests_after, 1)
        return (
            f"{len(self.features):,} features in {len(self):,} partitions, the largest of {largest:,}\n"
            f"requests of {self.sample_rows:,} sampled rows: {self.requests_before:,} → {self.requests_after:,}"
            f" ({times:.1f} times fewer)\n"
            f"partitioned in {self.seconds:.1f} s"
        )

    __str__ = report


def partition(
    sample: FeatureRows,
    *,
    keep: int,
    cost: Cost,
    counts: tuple[Features, Int64s] | None = None,
    memory: int | None = None,
) -> Partitions:
    """Partition the most frequent features of a sample by Algorithm 3.

    Parameters
    ----------
    sample : FeatureRows
        Such as a `Csr`. A feature that a row holds twice counts once.
    keep : int
        The number of features to partition (the paper's K); time and memory grow with its square.
    cost : Cost
        What reading a partition costs, see `measure_cost`.
    counts : (features, counts), optional
        Frequencies in all the data, to choose and order the features by, instead of those in the sample.
    memory : int, optional
        Bytes that this may take; where that is too little, `BudgetError` names the ``keep`` that would fit.

    Examples
    --------
    >>> from penstock.batch import Csr
    >>> rows = Csr(np.array([0, 2, 4, 5], np.uint64), np.array([7, 8, 7, 8, 3], np.uint32), np.ones(5, np.float32), 9)
    >>> [part.tolist() for part in partition(rows, keep=3, cost=Cost(seek=100.0, unit=1.0))]
    [[7, 8], [3]]
    """
    began = time.perf_counter()
    indptr, indices = _checked(sample, keep)
    kept, frequencies = most_frequent(sample, keep=keep) if counts is None else _given(*counts, keep=keep)
    count, rows = len(kept), len(indptr) - 1
    if count == 0:
        return _result(kept, frequencies, np.empty(0, np.int64), np.empty(0, np.int64), 0, rows, began)

    keys, used, shift = _table(count)
    affinity.place_ranks(kept, keys, shift, used)
    if counts is None:
        held = frequencies
    else:
        held = np.zeros(count, np.int64)
        affinity.count_holders(indptr, indices, keys, shift, used, held, np.zeros(count, np.int64))
    starts = np.concatenate([[0], np.cumsum(held)])
    total = int(starts[-1])
    rank_type = np.uint16 if count <= 1 << 16 else np.uint32
    _afford(count, rest=total * (4 + np.dtype(rank_type).itemsize) + rows * 24 + count * 100, memory=memory)

    holders, lengths = np.empty(total, np.uint32), np.zeros(rows, np.int64)
    affinity.list_holders(indptr, indices, keys, shift, used, starts, starts[:-1].copy(), holders, lengths)
    row_starts = np.cumsum(lengths) - lengths
    fill, entries = np.zeros(rows, np.int64), np.empty(total, rank_type)
    triangle = np.zeros(count * (count - 1) // 2, np.int32)
    best, partner = np.empty(count), np.empty(count, np.int64)
    lists = (starts, holders, row_starts, fill, entries, triangle, float(cost.seek), float(cost.unit), best, partner)
    affinity.pair_counts(*lists)
    owner, asked = np.empty(count, np.int64), np.empty(count, np.int64)
    affinity.merge_pairs(*lists, owner, asked)
    return _result(kept, frequencies, owner, asked, total, rows, began)


def partition_reference(
    sample: FeatureRows, *, keep: int, cost: Cost, counts: tuple[Features, Int64s] | None = None
) -> Partitions:
    """Say what `partition` does: Algorithm 3 to the letter, without rounding, affinities counted anew for every merge."""
    began = time.perf_counter()
    indptr, indices = _checked(sample, keep)
    sets = [set(indices[int(a) : int(b)].tolist()) for a, b in pairwise(indptr)]
    found = Counter(feature for row in sets for feature in row)
    if counts is not None:
        found = Counter({int(f): int(c) for f, c in zip(*counts)})
    kept = sorted(found, key=lambda feature: (-found[feature], feature))[:keep]
    ranks = {feature: rank for rank, feature in enumerate(kept)}
    examples = [{ranks[feature] for feature in row if feature in ranks} for row in sets]
    parts = {rank: [rank] for rank in range(len(kept))}
    seek, unit = Fraction(cost.seek), Fraction(cost.unit)
    while True:
        owner = {rank: part for part, members in parts.items() for rank in members}
        asked, both = Counter[int](), Counter[tuple[int, int]]()
        for example in examples:
            accessed = sorted({owner[rank] for rank in example})
            asked.update(accessed)
            both.update(combinations(accessed, 2))
        single = {i: asked[i] * (seek + len(parts[i]) * unit) for i in parts}
        pair, most = None, Fraction(0)
        for i, j in combinations(sorted(parts), 2):
            merged = (asked[i] + asked[j] - both[i, j]) * (seek + (len(parts[i]) + len(parts[j])) * unit)
            if single[i] + single[j] - merged > most:
                pair, most = (i, j), single[i] + single[j] - merged
        if pair is None:
            break
        parts[pair[0]] += parts.pop(pair[1])
    owners = np.array([owner[rank] for rank in range(len(kept))], np.int64)
    rows = np.array([asked[rank] for rank in range(len(kept))], np.int64)
    frequencies = np.array([found[feature] for feature in kept], np.int64)
    requests = sum(map(len, examples))
    return _result(np.array(kept, np.uint64), frequencies, owners, rows, requests, len(sets), began)


def most_frequent(sample: FeatureRows, *, keep: int) -> tuple[Features, Int64s]:
    """Return the features that most rows hold, and how many rows do; ties go to the lower feature.

    Features of which a sketch tells that they are too rare are never counted one by one, so that memory grows with
    ``keep``, not with the features that there are. The answer is exact: where a count falls short of what the sketch
    was trusted for, it is the bound of a second try.

    Examples
    --------
    >>> from penstock.batch import Csr
    >>> rows = Csr(np.array([0, 2, 4], np.uint64), np.array([7, 8, 7, 9], np.uint32), np.ones(4, np.float32), 10)
    >>> [part.tolist() for part in most_frequent(rows, keep=2)]
    [[7, 8], [2, 1]]
    """
    indptr, indices = _checked(sample, keep)
    bits = min(_CELL_BITS, max(4, len(indices).bit_length()))
    cells, cell_shift = np.zeros((2, 1 << bits), np.uint32), np.uint64(64 - bits)
    affinity.sketch(indices, cell_shift, cells)
    # Half of what the sketch says of the last one kept: a cell is shared by several features.
    least = max(1, int(np.partition(cells[0], -keep)[-keep]) // 2) if keep < 1 << bits else 1
    while True:
        room = int(np.count_nonzero(cells[0] >= least))
        while True:
            keys, counts, shift = _table(room)
            seen = np.zeros(len(keys), np.int64)
            found = affinity.tally_rows(indptr, indices, cells, cell_shift, least, keys, shift, counts, seen)
            if found >= 0:
                break
            room *= 2
        taken = counts > 0
        kept, frequencies = _top(keys[taken], counts[taken], keep=keep)
        last = int(frequencies[-1]) if len(kept) == keep else 1
        if last >= least:
            return kept, frequencies
        least = last


def _checked(sample: FeatureRows, keep: int) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    if keep < 1:
        raise UsageError("keeps no features", option="keep", value=keep, fixes=["give 1 or more"])
    indptr, indices = sample.indptr, sample.indices
    if len(indptr) < 1 or int(indptr[-1]) > len(indices) or bool((indptr[1:] < indptr[:-1]).any()):
        raise DataError(
            f"the sample's indptr does not cut its {len(indices)} indices into rows; it must rise from 0 to their number"
        )
    return indptr, indices


def _top(features: NDArray[Any], counts: NDArray[Any], *, keep: int) -> tuple[Features, Int64s]:
    """Return the features with the highest counts; ties go to the lower feature."""
    features, counts = np.asarray(features, np.uint64), np.asarray(counts, np.int64)
    if len(features) > keep:
        some = counts >= np.partition(counts, -keep)[-keep]
        features, counts = features[some], counts[some]
    order = np.lexsort((features, -counts))[:keep]
    return features[order], counts[order]


def _given(features: NDArray[Any], counts: NDArray[Any], *, keep: int) -> tuple[Features, Int64s]:
    if len(features) != len(counts):
        raise UsageError(f"counts gives {len(features)} features and {len(counts)} counts; give one count for each")
    kept, frequencies = _top(features, counts, keep=keep)
    if len(np.unique(kept)) < len(kept):
        raise UsageError("counts names a feature twice; give each feature once, with its count in all the data")
    return kept, frequencies


def _table(count: int) -> tuple[Features, Int64s, np.uint64]:
    """Return an empty table of features with room to spare, and the shift that its places are found with."""
    bits = max(4, (2 * count).bit_length())
    return np.zeros(1 << bits, np.uint64), np.zeros(1 << bits, np.int64), np.uint64(64 - bits)


def _afford(count: int, *, rest: int, memory: int | None) -> None:
    """Refuse what does not fit: the triangle of affinities, and what grows with the sample."""
    needed = 2 * count * (count - 1) + rest
    if memory is not None and needed > memory:
        fits = int(max(memory - rest, 0) / 2) ** 0.5
        advice = Text(Use("keep", int(fits)), " would fit") if fits >= 2 else "take a smaller sample"
        raise BudgetError(
            f"partitioning {count} features takes {show_bytes(needed)}, but ",
            Given("memory", Bytes(memory)),
            fixes=[advice],
        )


def _result(
    kept: Features, frequencies: Int64s, owner: Int64s, asked: Int64s, requests: int, sample_rows: int, began: float
) -> Partitions:
    """Put partitions in order: ``owner`` is each rank's, called by its lowest rank, at which ``asked`` counts its rows."""
    order = np.lexsort((np.arange(len(kept)), owner, -asked[owner]))
    heads = owner[order]
    first = np.flatnonzero(np.diff(heads, prepend=-1))
    rows = asked[heads[first]]
    return Partitions(
        features=kept[order],
        offsets=np.append(first, len(kept)),
        frequencies=frequencies[order],
        rows=rows,
        sample_rows=sample_rows,
        requests_before=requests,
        requests_after=int(rows.sum()),
        seconds=time.perf_counter() - began,
    )
