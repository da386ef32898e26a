"""Which rows of which group lie on which worker: the non-uniform partitioning of section 4.4, and ours.

`wrap_around` (Algorithm 1) and `constrained` (Algorithm 2) are the paper's. `spread` is for sums that can be added
in parts (algebraic work), `sequential` for SGD, whose configs hop from shard to shard. All are pure: sizes in, shards
out, in rows; `snap` moves the borders to those of blocks. No row is copied to a second worker.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UsageError

Int64s = NDArray[np.int64]
_Pieces = list[list[tuple[int, int]]]
"""Of each group, how many rows go to which worker."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows ``first`` to ``first + rows`` of a group, which lie on one worker."""

    group: int
    worker: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Shards in the order of groups and of the rows in them, the rows that each worker has, and the bound.

    The bound is the fewest rows that the busiest worker can have, given what the work allows to be split.

    Examples
    --------
    >>> placed = spread([6, 1, 1], 2)
    >>> placed.load.tolist(), placed.splits, placed.bound
    ([4, 4], 1, 4)
    >>> placed.check([6, 1, 1])
    """

    shards: tuple[Shard, ...]
    load: Int64s
    bound: int
    held: dict[int, list[int]] = field(init=False, repr=False)
    """Of each group that has rows, the numbers of its shards, in the order of its rows."""

    def __post_init__(self) -> None:
        held: dict[int, list[int]] = {}
        for number, shard in enumerate(self.shards):
            held.setdefault(shard.group, []).append(number)
        object.__setattr__(self, "held", held)

    @property
    def workers(self) -> int:
        return len(self.load)

    @property
    def makespan(self) -> int:
        """Rows of the busiest worker."""
        return int(self.load.max())

    @property
    def splits(self) -> int:
        """How many times a group is cut."""
        return len(self.shards) - len(self.held)

    def check(self, sizes: ArrayLike) -> None:
        """Raise unless every row of every group lies on exactly one worker, and loads are what shards add up to."""
        rows = _sizes(sizes)
        load = np.zeros(self.workers, np.int64)
        for shard in self.shards:
            load[shard.worker] += shard.rows
        if not np.array_equal(load, self.load):
            raise UsageError(
                f"shards add up to loads of {load.tolist()}, not {self.load.tolist()}; place the groups anew"
            )
        for group, size in enumerate(rows.tolist()):
            shards, at = [self.shards[number] for number in self.held.get(group, [])], 0
            for shard in shards:
                if shard.first != at or shard.rows < 1:
                    raise UsageError(f"a shard of group {group} begins at row {shard.first}, not {at}; place it anew")
                at += shard.rows
            if at != size:
                raise UsageError(f"group {group} has {size} rows, its shards hold {at}; place it anew")
            if len({shard.worker for shard in shards}) < len(shards):
                raise UsageError(f"two shards of group {group} lie on one worker; place it anew")
        if self.held and max(self.held) >= len(rows):
            raise UsageError(f"there is a shard of group {max(self.held)}, but only {len(rows)} groups")


def bound_algebraic(sizes: ArrayLike, workers: int) -> int:
    """Return the fewest rows of the busiest worker where any group can be cut anywhere: n / p, rounded up."""
    return -(-int(_sizes(sizes).sum()) // _workers(workers))


def bound_wrap_around(sizes: ArrayLike, workers: int) -> int:
    """Return equation 2's C*, in rows: a group's parts run one after another, so none takes less than its size."""
    return max(bound_algebraic(sizes, workers), int(_sizes(sizes).max(initial=0)))


def bound_sequential(sizes: ArrayLike, workers: int, configs: int) -> int:
    """Return the bound for SGD, as rows of an epoch of *all* configs: the makespan of an epoch is ``configs`` times it.

    An epoch of all configs is ``configs * n`` rows of work for p workers. And one config of the largest group goes
    through its rows one after another, on one worker at a time, however many hold them: no epoch takes less than
    ``n_max``, which is ``n_max / configs`` of an epoch of all. That so much suffices is seen from a Latin square: let
    no worker have more than C rows and no group more than ``configs`` shards; in slot t, of C rows' time, shard c of
    every group is visited by config ``(c - t) mod configs``. Each config is then at one place at a time, each worker
    is done with its shards within the slot, and after as many slots as configs an epoch is over.

    Examples
    --------
    >>> bound_sequential([26, 74], 64, 12), bound_sequential([26, 74], 4, 12), bound_sequential([26, 74], 4, 1)
    (7, 25, 74)
    """
    if configs < 1:
        raise UsageError("trains nothing", option="configs", value=configs, fixes=["give at least 1"])
    largest = int(_sizes(sizes).max(initial=0))
    return max(bound_algebraic(sizes, workers), -(-largest // min(workers, configs)))


def wrap_around(sizes: ArrayLike, workers: int) -> Placement:
    """Fill workers one after another to C*, cutting a group where a worker is full (Algorithm 1).

    Examples
    --------
    >>> [(s.group, s.worker, s.rows) for s in wrap_around([3, 4, 5], 3).shards]
    [(0, 0, 3), (1, 0, 2), (1, 1, 2), (2, 1, 3), (2, 2, 2)]
    """
    rows, bound = _sizes(sizes), bound_wrap_around(sizes, workers)
    pieces: _Pieces = []
    worker, room = 0, bound
    for size in rows.tolist():
        mine: list[tuple[int, int]] = []
        while size:
            if not room:
                worker, room = worker + 1, bound
            mine.append((worker, min(size, room)))
            size, room = size - mine[-1][1], room - mine[-1][1]
        pieces.append(mine)
    return _placement(pieces, workers, bound)


def constrained(sizes: ArrayLike, workers: int, *, overhead: int = 0) -> Placement:
    """Cut a group into equal shards, as many as its size is nearest to in units of n / p (Algorithm 2).

    Largest first, each shard to the worker with the least so far. Differs from the paper's listing in that the shards
    of a group always go to workers of their own: two on one worker would be one shard. ``overhead`` is what a shard
    costs before its first row, in rows.

    Examples
    --------
    >>> placed = constrained([50, 30, 5, 5], 3)
    >>> [(s.group, s.worker, s.rows) for s in placed.shards], placed.makespan
    ([(0, 0, 25), (0, 1, 25), (1, 2, 30), (2, 0, 5), (3, 1, 5)], 30)
    """
    rows, p = _sizes(sizes), _workers(workers)
    n = int(_weigh(rows, overhead).sum())
    pieces: _Pieces = [[] for _ in range(len(rows))]
    queue = [(0, worker) for worker in range(p)]
    for group in np.argsort(-rows, kind="stable").tolist():
        size = int(rows[group])
        if not size:
            break
        parts = min(size, max(1, (2 * (size + overhead) * p + n) // (2 * n)))
        taken = [heapq.heappop(queue) for _ in range(parts)]
        for part, (filled, worker) in enumerate(taken):
            share = size // parts + (part < size % parts)
            pieces[group].append((worker, share))
            heapq.heappush(queue, (filled + share + overhead, worker))
    return _placement(pieces, p, bound_algebraic(rows, p))


def spread(sizes: ArrayLike, workers: int, *, overhead: int = 0) -> Placement:
    """Fill every worker to n / p, cutting large groups at any row: for work whose sums are added in parts.

    Groups larger than a worker's fill take workers whole. The others are packed uncut, each where it fits most
    tightly, and what remains of the large ones is poured into the gaps; of the small ones only those are cut that
    nothing held. There are at most p - 1 cuts, for each fills a worker. Where a group costs as much as so many rows
    (``overhead``) before its first, workers with many small groups get fewer rows.

    Examples
    --------
    >>> placed = spread([70, 20, 5, 5], 4)
    >>> placed.load.tolist(), [len(shards) for shards in placed.held.values()]
    ([25, 25, 25, 25], [3, 1, 1, 1])
    """
    rows, p = _sizes(sizes), _workers(workers)
    weight = _weigh(rows, overhead)
    return _placement(_rows_of(_pack(weight, p, chain=0, pour=True), rows, weight), p, bound_algebraic(rows, p))


def sequential(sizes: ArrayLike, workers: int, configs: int, *, overhead: int = 0) -> Placement:
    """Fill workers to `bound_sequential`, for SGD whose configs hop over the shards of a group.

    As `spread`, but a worker may have as many rows as the slot of the largest group's config takes, where that is
    more than n / p, and no group is cut for less. What remains of a large group stays in one piece where pouring it
    out would give the group more shards than there are configs: some of them would always wait. ``overhead`` is what
    a group costs before its first row, in rows.

    Examples
    --------
    >>> placed = sequential([37, 37, 13, 13], 8, 2)
    >>> placed.bound, placed.load.tolist(), placed.splits
    (19, [19, 18, 19, 18, 13, 13, 0, 0], 2)
    """
    rows = _sizes(sizes)
    bound = bound_sequential(rows, workers, configs)
    weight = _weigh(rows, overhead)
    chain = -(-int(weight.max(initial=0)) // min(workers, configs))
    pieces = _pack(weight, workers, chain=chain, pour=True)
    if max(map(len, pieces), default=0) > configs:
        pieces = min(pieces, _pack(weight, workers, chain=chain, pour=False), key=lambda found: max(map(len, found)))
    return _placement(_rows_of(pieces, rows, weight), workers, bound)


def _pack(rows: Int64s, workers: int, *, chain: int, pour: bool) -> _Pieces:
    """Deal out groups so that no worker has more than the larger of an even share and ``chain`` rows.

    What remains of a group that takes whole workers is dealt out last, in as many pieces as there are gaps
    (``pour``), or before the groups that need not be cut.
    """
    pieces: _Pieces = [[] for _ in range(len(rows))]
    order, sizes = np.argsort(-rows, kind="stable").tolist(), rows.tolist()
    rest, worker, begun = int(rows.sum()), 0, 0
    remains: list[tuple[int, int]] = []
    for group in order:
        size, even = sizes[group], _even(rest, workers - worker)
        if size <= even:
            break
        begun += 1
        while size > even:
            part = min(size, max(even, chain))
            pieces[group].append((worker, part))
            size, rest, worker = size - part, rest - part, worker + 1
            even = _even(rest, workers - worker)
        if size:
            remains.append((size, group))
    fill, extra = divmod(rest, max(1, workers - worker))
    gaps = sorted((fill + (w - worker < extra), w) for w in range(worker, workers))
    gaps = [gap for gap in gaps if gap[0]]
    # A worker may have more than its even share where a config of the largest group takes longer than that anyway.
    slack = max(0, chain - fill - 1)
    small = [(sizes[group], group) for group in order[begun:] if sizes[group]]
    sand = [
        (size, group) for size, group in ([] if pour else remains) + small if not _fit(pieces[group], size, gaps, slack)
    ]
    for size, group in sand + (remains if pour else []):
        while not _fit(pieces[group], size, gaps, slack):
            gap, taker = gaps.pop()
            pieces[group].append((taker, gap))
            size -= gap
    return pieces


def _weigh(rows: Int64s, overhead: int) -> Int64s:
    if overhead < 0:
        raise UsageError("rows cannot be", option="overhead", value=overhead, fixes=["give at least 0"])
    return rows + np.where(rows > 0, overhead, 0)


def _rows_of(pieces: _Pieces, rows: Int64s, weight: Int64s) -> _Pieces:
    """Turn pieces of groups' weights into pieces of their rows, in proportion."""
    if rows.sum() == weight.sum():
        return pieces
    found: _Pieces = []
    for parts, size, whole in zip(pieces, rows.tolist(), weight.tolist(), strict=True):
        ends = [-(-end * size // whole) for end in itertools.accumulate(piece for _, piece in parts)]
        scaled = zip(parts, [0, *ends], ends)
        found.append([(worker, end - first) for (worker, _), first, end in scaled if end > first])
    return found


def _fit(pieces: list[tuple[int, int]], size: int, gaps: list[tuple[int, int]], slack: int) -> bool:
    """Put rows in one piece into the smallest gap that holds them, or at need beyond the largest; say if they fit."""
    at = bisect_left(gaps, (size, -1))
    if at == len(gaps):
        if not gaps or size > gaps[-1][0] + slack:
            return False
        at -= 1
    gap, worker = gaps.pop(at)
    pieces.append((worker, size))
    if gap > size:
        insort(gaps, (gap - size, worker))
    return True


def _even(rows: int, workers: int) -> int:
    return -(-rows // workers) if workers else rows


def _placement(pieces: _Pieces, workers: int, bound: int) -> Placement:
    shards: list[Shard] = []
    for group, parts in enumerate(pieces):
        first = 0
        for worker, rows in parts:
            shards.append(Shard(group, worker, first, rows))
            first += rows
    return Placement(tuple(shards), _load(shards, workers), bound)


def _load(shards: Sequence[Shard], workers: int) -> Int64s:
    load = [0] * workers
    for shard in shards:
        load[shard.worker] += shard.rows
    return np.array(load, np.int64)


def _sizes(sizes: ArrayLike) -> Int64s:
    rows = np.asarray(sizes)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu") or (rows < 0).any():
        raise UsageError(
            "are not counts of rows",
            option="sizes",
            value=sizes,
            fixes=["give one whole number, at least 0, for each group"],
        )
    return rows.astype(np.int64)


def _workers(workers: int) -> int:
    if workers < 1:
        raise UsageError("cannot work", option="workers", value=workers, fixes=["give at least 1"])
    return workers
