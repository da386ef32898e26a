"""Which features are stored together: vertical partitioning of the model (section 5, Algorithm 3), and what reads cost.

Features are merged, pair by pair, as long as a merge saves more in seeks than it costs in records read for nothing. Same sample,
same partitions: ties go to the more frequent features, then to the lower ones. `partition_reference` specifies `partition`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.bigmodel import affinity
from penstock.copying import gather_runs
from penstock.errors import UsageError, WriteError
from penstock.loader.direct_reads import PAGE
from penstock.storage_timer import MB, ReadTimer, random_file

Int64s = NDArray[np.int64]
Features = NDArray[np.uint64]

FILE_BYTES = 8 * MB
_RECORD_BYTES = 4
# The best round counts: other work on the machine only ever slows.
_ROUNDS = 3
# Below what any clock tells apart; a cost of nothing would make every merge, or none, worth while.
_LEAST_SECONDS = 1e-12


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds to read a partition: ``seek`` once (the paper's t_s) and ``unit`` for each of its records (t_u).

    Only their ratio decides which features are stored together.
    """

    seek: float
    unit: float


def measure_cost(folder: str | os.PathLike[str]) -> Cost:
    """Measure what reads of a model in a folder cost, on a temporary file of 8 MB out of the page cache; both are above zero.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cost = measure_cost(folder)
    >>> cost.seek > 0 and cost.unit > 0
    True
    """
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
    unit = max(_RECORD_BYTES / sequential, _LEAST_SECONDS)
    # A small read also carries its records; what is left is the seek.
    return Cost(max(PAGE / small - PAGE / _RECORD_BYTES * unit, _LEAST_SECONDS), unit)


@dataclass(frozen=True, slots=True)
class RowSample:
    """Some rows of the data, in their order: row ``i`` holds the features ``indices[indptr[i]:indptr[i+1]]``."""

    indptr: NDArray[np.uint64]
    indices: NDArray[Any]

    def __len__(self) -> int:
        return len(self.indptr) - 1


def sample_of(batches: Iterable[Batch], *, seed: int = 0, most_entries: int = 1 << 25) -> RowSample:
    """Draw rows without replacement from a stream of unknown length, as a reservoir does, in one pass.

    Every row draws a number; those with the lowest stay, as many as hold ``most_entries`` features together. Which rows they are
    depends on the seed and on the rows' order, not on how they are cut into batches. Three times as many are held for a moment.

    Examples
    --------
    >>> rows = Csr(np.arange(101, dtype=np.uint64), np.arange(100, dtype=np.uint32), np.ones(100, np.float32), 100)
    >>> sample = sample_of([Batch(rows)], most_entries=5)
    >>> len(sample), bool((np.diff(sample.indices.astype(int)) > 0).all())
    (5, True)
    """
    rng = seeds.generator(seed, "partition", "sample")
    held = [_Draw(np.empty(0), RowSample(np.zeros(1, np.uint64), np.empty(0, np.uint64)))]
    bound, fresh = 1.0, 0
    for batch in batches:
        if not isinstance(batch.x, Csr):
            raise UsageError(
                "a sample for partitions is drawn from sparse rows, but these are dense; their model is small"
            )
        draws = rng.random(len(batch))
        rows = RowSample(batch.x.indptr, batch.x.indices)
        held.append(_pick(_Draw(draws, rows), np.flatnonzero(draws < bound)))
        fresh += len(held[-1].rows.indices)
        if fresh > most_entries // 2:
            lowest, bound = _lowest(held, most_entries, bound)
            held, fresh = [lowest], 0
    return _lowest(held, most_entries, bound)[0].rows


class _Draw(NamedTuple):
    draws: NDArray[np.float64]
    rows: RowSample


def _pick(drawn: _Draw, picks: Int64s) -> _Draw:
    """Return some of the rows as a copy."""
    indptr, indices = drawn.rows.indptr, drawn.rows.indices
    starts = indptr[:-1][picks].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(indptr[1:][picks].astype(np.int64) - starts)])
    out = np.empty(int(offsets[-1]), indices.dtype)
    gather_runs(indices, starts, offsets, out)
    return _Draw(drawn.draws[picks], RowSample(offsets.astype(np.uint64), out))


def _lowest(parts: list[_Draw], most_entries: int, bound: float) -> tuple[_Draw, float]:
    """Keep the rows with the lowest draws, in their order; return them and the draw from which on none is kept."""
    draws = np.concatenate([part.draws for part in parts])
    lengths = np.concatenate([np.diff(part.rows.indptr) for part in parts]).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    indices = [part.rows.indices for part in parts if len(part.rows.indices)]
    joined = _Draw(draws, RowSample(indptr, np.concatenate(indices) if indices else np.empty(0, np.uint64)))
    order = np.argsort(draws, kind="stable")
    count = int(np.searchsorted(np.cumsum(lengths[order]), most_entries, side="right"))
    if count >= len(order):
        return joined, bound
    return _pick(joined, np.sort(order[:count])), float(draws[order[count]])


@dataclass(frozen=True, slots=True)
class Partitions:
    """The features kept, in partitions: the one that most rows ask for comes first.

    Partition ``p`` is ``features[offsets[p]:offsets[p+1]]``, by falling frequency, then by feature. ``frequencies`` are the counts
    of features that were given, ``rows`` the rows of the sample that hold each partition. The sample's rows ask for
    ``requests_before`` features, and for ``requests_after`` partitions.
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


def partition(sample: RowSample | Csr, counts: tuple[Features, Int64s], *, keep: int, cost: Cost) -> Partitions:
    """Partition the most frequent features by Algorithm 3; time and memory grow with the square of their number.

    Parameters
    ----------
    sample : RowSample or Csr
        Rows that tell which features occur together. A feature that a row holds twice counts once.
    counts : (features, counts)
        Frequencies in all the data, to choose and order the features by.
    keep : int
        The number of features to partition (the paper's K).
    cost : Cost
        What reading a partition costs, see `measure_cost`.

    Examples
    --------
    >>> rows = Csr(np.array([0, 2, 4, 5], np.uint64), np.array([7, 8, 7, 8, 3], np.uint32), np.ones(5, np.float32), 9)
    >>> counts = np.array([7, 8, 3]), np.array([2, 2, 1])
    >>> [part.tolist() for part in partition(rows, counts, keep=3, cost=Cost(seek=100.0, unit=1.0))]
    [[7, 8], [3]]
    """
    began = time.perf_counter()
    indptr, indices = sample.indptr, sample.indices
    kept, frequencies = _top(*counts, keep=keep)
    count, rows = len(kept), len(indptr) - 1
    if count == 0:
        return _result(kept, frequencies, np.empty(0, np.int64), np.empty(0, np.int64), 0, rows, began)

    bits = max(4, (2 * count).bit_length())  # of a table with room to spare
    keys, used, shift = np.zeros(1 << bits, np.uint64), np.zeros(1 << bits, np.int64), np.uint64(64 - bits)
    affinity.place_ranks(kept, keys, shift, used)
    held = np.zeros(count, np.int64)
    affinity.count_holders(indptr, indices, keys, shift, used, held, np.zeros(count, np.int64))
    starts = np.concatenate([[0], np.cumsum(held)])
    total = int(starts[-1])
    rank_type = np.uint16 if count <= 1 << 16 else np.uint32
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
    sample: RowSample | Csr, counts: tuple[Features, Int64s], *, keep: int, cost: Cost
) -> Partitions:
    """Specify `partition`: Algorithm 3 to the letter, without rounding, affinities counted anew for every merge."""
    began = time.perf_counter()
    sets = [set(sample.indices[int(a) : int(b)].tolist()) for a, b in pairwise(sample.indptr)]
    found = {int(f): int(c) for f, c in zip(*counts)}
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


def _top(features: NDArray[Any], counts: NDArray[Any], *, keep: int) -> tuple[Features, Int64s]:
    """Return the features with the highest counts; ties go to the lower feature."""
    features, counts = np.asarray(features, np.uint64), np.asarray(counts, np.int64)
    if len(features) > keep:
        some = counts >= np.partition(counts, -keep)[-keep]
        features, counts = features[some], counts[some]
    order = np.lexsort((features, -counts))[:keep]
    return features[order], counts[order]


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
