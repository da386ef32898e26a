"""The exact answer for small cases: section 4.3's mixed-integer program, solved by SciPy's HiGHS.

The variables are the rows of each group on each worker, the start of each (group, config) there, and which of two that
must not overlap comes first. The constraints are the paper's invariants in the usual form with one large constant.
It is here to hold the heuristics of `penstock.groups.place` against; anything but a few groups it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from penstock.errors import UnknownOptionError, UsageError

ISOLATION = ("none", "config", "group")
MOST_CHOICES = 2000
"""Yes-or-no variables beyond which the search would not end in sensible time."""

Job = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The best placement and schedule of one epoch.

    ``makespan`` is in rows × configs; ``rows[i, k]`` of group i lie on worker k; config j of it starts there at
    ``starts[i, j, k]``. ``proven`` says that nothing better exists; otherwise time ran out.
    """

    makespan: float
    rows: NDArray[np.float64]
    starts: NDArray[np.float64]
    proven: bool


def solve(
    sizes: ArrayLike,
    workers: int,
    *,
    configs: int = 1,
    isolation: str = "config",
    equal: bool = False,
    seconds: float = 60.0,
) -> Exact:
    """Find the placement and the schedule of one epoch that end soonest.

    Parameters
    ----------
    sizes, workers, configs
        Rows of each group, and how many workers and configs there are.
    isolation
        What must not run at the same time on two workers: one config (``"config"``: SGD), any configs of a group
        (``"group"``: the paper's), or nothing at all (``"none"``: sums that are added up).
    equal
        Split groups have shards of one size (section 4.7).
    seconds
        The time to search for.

    Examples
    --------
    >>> solve([4, 2], 2, configs=2).makespan, solve([4, 2], 2, configs=2, isolation="group").makespan
    (6.0, 8.0)
    """
    if isolation not in ISOLATION:
        raise UnknownOptionError.of("isolation", isolation, ISOLATION)
    rows = np.asarray(sizes, np.int64)
    program = _Program(rows, workers, configs)
    if isolation == "none":
        program.fill_workers()
    else:
        program.keep_apart(isolation)
    if equal:
        program.equal_shards()
    # The bounds of penstock.groups.place, without their rounding: the program may cut rows.
    chain = {"none": 0, "config": 1, "group": configs}[isolation] * int(rows.max(initial=0))
    return program.search(max(configs * int(rows.sum()) / workers, chain), seconds)


class _Program:
    """Rows of a matrix, and how to read its columns."""

    def __init__(self, sizes: NDArray[np.int64], workers: int, configs: int) -> None:
        self.sizes, self.workers, self.configs = sizes, workers, configs
        self.shape = (len(sizes), configs, workers)
        self.groups = len(sizes)
        self.columns = 1 + self.groups * workers + self.groups * configs * workers
        self.whole: list[int] = []
        self.lines: list[tuple[dict[int, float], float, float]] = []
        self.horizon = float(configs * int(sizes.sum()))
        for group, size in enumerate(sizes.tolist()):
            self.lines.append(({self.share(group, k): 1.0 for k in range(workers)}, size, size))
        if self.groups:
            # Workers are alike: of all ways to number them take one.
            largest = int(np.argmax(sizes))
            for k in range(workers - 1):
                self.lines.append(({self.share(largest, k): 1.0, self.share(largest, k + 1): -1.0}, 0, np.inf))

    def share(self, group: int, worker: int) -> int:
        return 1 + group * self.workers + worker

    def start(self, job: Job) -> int:
        return 1 + self.groups * self.workers + int(np.ravel_multi_index(job, self.shape))

    def choice(self) -> int:
        self.whole.append(self.columns)
        self.columns += 1
        if len(self.whole) > MOST_CHOICES:
            raise UsageError(
                f"{self.groups} groups × {self.configs} configs on {self.workers} workers are too many to solve exactly "
                f"(more than {MOST_CHOICES} choices); take fewer, or penstock.groups.place"
            )
        return self.columns - 1

    def fill_workers(self) -> None:
        for k in range(self.workers):
            line = {self.share(group, k): -float(self.configs) for group in range(self.groups)}
            self.lines.append((line | {0: 1.0}, 0, np.inf))

    def keep_apart(self, isolation: str) -> None:
        """Put in an order all that shares a worker, a config or a group; all of it ends before the makespan."""
        for job in self._jobs():
            self.lines.append(({0: 1.0, self.start(job): -1.0, self.share(job[0], job[2]): -1.0}, 0, np.inf))
        for one, other in self._rivals(isolation):
            first = self.choice()
            for before, after, sign in ((one, other, 1.0), (other, one, -1.0)):
                line = {self.start(after): 1.0, self.start(before): -1.0, self.share(before[0], before[2]): -1.0}
                line[first] = -sign * self.horizon
                self.lines.append((line, -self.horizon if sign > 0 else 0.0, np.inf))

    def _jobs(self) -> Iterator[Job]:
        return product(range(self.groups), range(self.configs), range(self.workers))

    def _rivals(self, isolation: str) -> Iterator[tuple[Job, Job]]:
        for one, other in combinations(self._jobs(), 2):
            same_worker, same_group, same_config = one[2] == other[2], one[0] == other[0], one[1] == other[1]
            if same_worker or (same_group and (same_config or isolation == "group")):
                yield one, other

    def equal_shards(self) -> None:
        for group, size in enumerate(self.sizes.tolist()):
            parts = {count: self.choice() for count in range(1, self.workers + 1)}
            self.lines.append((dict.fromkeys(parts.values(), 1.0), 1, 1))
            has = {(count, k): self.choice() for count in parts for k in range(self.workers)}
            for count, column in parts.items():
                line = {has[count, k]: 1.0 for k in range(self.workers)}
                self.lines.append((line | {column: -float(count)}, 0, 0))
            for k in range(self.workers):
                line = {has[count, k]: -size / count for count in parts}
                self.lines.append((line | {self.share(group, k): 1.0}, 0, 0))

    def search(self, below: float, seconds: float) -> Exact:
        entries = [(at, column, value) for at, (line, _, _) in enumerate(self.lines) for column, value in line.items()]
        at, column, value = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = csr_array((value, (at, column)), shape=(len(self.lines), self.columns))
        lowest, highest = np.zeros(self.columns), np.full(self.columns, self.horizon)
        lowest[0] = below
        highest[self.whole] = 1
        kinds = np.zeros(self.columns)
        kinds[self.whole] = 1
        aim = np.zeros(self.columns)
        aim[0] = 1
        limits = np.array([low for _, low, _ in self.lines]), np.array([high for _, _, high in self.lines])
        found = milp(
            aim,
            integrality=kinds,
            bounds=Bounds(lowest, highest),
            constraints=LinearConstraint(matrix, *limits),
            options={"time_limit": seconds},
        )
        if found.x is None:
            raise UsageError(f"no schedule found in {seconds!r} s ({found.message}); allow more time or fewer groups")
        shares = found.x[1 : 1 + self.groups * self.workers].reshape(self.groups, self.workers)
        starts = found.x[1 + shares.size : 1 + shares.size + int(np.prod(self.shape))].reshape(self.shape)
        return Exact(round(float(found.fun), 6), shares, starts, found.status == 0)
