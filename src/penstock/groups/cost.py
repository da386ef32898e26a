"""What learning over groups costs: the analytical models of sections 3 and 4.6, and a discrete-event simulator.

A `Pilot` has the seconds that single things take on this machine; `fit` gets it from timed tasks. A `Work` is what is
to be trained. `simulate` plays schedules of it: ``"grouped"`` runs the scheduler of a real run on the placement it would
have, the others are the paper's baselines (GTP, MTP, DP, SP). Time is counted in whole ticks, so that what ends together does
so exactly. Where so many models as tasks would take long to play, `price_model_tasks` adds up the cost.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UnknownOptionError, UsageError
from penstock.groups import place
from penstock.groups.place import Placement
from penstock.groups.schedule import Hopper, Passes, Scheduler, Turn, Wait

PATTERNS = ("algebraic", "sequential", "sampling")
APPROACHES = ("grouped", "group-task", "model-task", "data-parallel", "switching")
"""Ours; then the paper's GTP, MTP, DP and SP."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """Seconds that single things take, as a pilot run measures them.

    ``row_config`` is for one row and one config, data in memory; ``update`` for one change of one model; ``byte`` for reading
    one byte of the data; ``message`` for one message between workers, whatever it carries, and ``sent`` for each byte in it.
    """

    row_config: float
    update: float
    byte: float
    message: float
    sent: float = 0.0

    def __post_init__(self) -> None:
        row = self.row_config
        if not row > 0:
            raise UsageError("s for a row and a config", option="row_config", value=row, fixes=["it has to be above 0"])
        for name in ("update", "byte", "message", "sent"):
            value = getattr(self, name)
            if not value >= 0:
                raise UsageError("s cannot be", option=name, value=value, fixes=["it has to be at least 0"])


@dataclass(frozen=True, slots=True)
class Timed:
    """What a task of the pilot run did, and the seconds it took."""

    seconds: float
    row_configs: float
    updates: float = 0.0
    read_bytes: float = 0.0
    messages: float = 0.0


def fit(tasks: Iterable[Timed]) -> Pilot:
    """Find the rates, none below 0, that explain the seconds of timed tasks best (relative to what each took).

    Examples
    --------
    >>> pilot = fit([Timed(1.1, 1e6, 100), Timed(2.1, 2e6, 100), Timed(0.6, 5e5, 100, 1e6)])
    >>> round(pilot.row_config * 1e6, 6), round(pilot.update * 1e3, 6)
    (1.0, 1.0)
    """
    from scipy.optimize import nnls  # slow to import, and prices need it not

    seen = list(tasks)
    if not seen or min(task.seconds for task in seen) <= 0:
        raise UsageError(f"{len(seen)} timed tasks, some of no length, calibrate nothing; time at least one task")
    did = np.array([[t.row_configs, t.updates, t.read_bytes, t.messages] for t in seen], np.float64)
    took = np.array([task.seconds for task in seen])
    scale = np.maximum(did.max(axis=0), 1e-300)
    rates = nnls(did / scale / took[:, None], np.ones(len(seen)))[0] / scale
    if not rates[0] > 0:
        raise UsageError(f"rows × configs explain none of the seconds of {len(seen)} tasks; time tasks of unlike sizes")
    return Pilot(*map(float, rates))


@dataclass(frozen=True, slots=True)
class Work:
    """What is trained: the access pattern, how many configs for how many epochs, and the sizes of things.

    ``batch`` is the rows of one update of SGD; ``model_bytes`` what a model, a gradient or the sampled statistics
    take in a message.
    """

    pattern: str
    configs: int
    epochs: int
    row_bytes: float
    model_bytes: float
    pilot: Pilot
    batch: int = 32

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise UnknownOptionError.of("pattern", self.pattern, PATTERNS)
        for name in ("configs", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise UsageError("trains nothing", option=name, value=getattr(self, name), fixes=["give at least 1"])

    def updates(self, rows: int, passes: int = 1) -> int:
        """Return how often one config is changed in passes over these rows."""
        return passes * (-(-rows // self.batch) if self.pattern == "sequential" else 1)

    @property
    def overhead(self) -> int:
        """What a group costs beyond its rows, in rows: the update that even the smallest has, for the placement."""
        rows = self.pilot.update / self.pilot.row_config
        return round(rows / (1 + rows / self.batch) if self.pattern == "sequential" else rows)


@dataclass(frozen=True, slots=True)
class Price:
    """What models as tasks cost: seconds in all, the share in which workers wait, and bytes that go over the network."""

    seconds: float
    idle: float
    moved: float


def price_model_tasks(sizes: ArrayLike, *, workers: int, work: Work) -> Price:
    """Price a task for each group and config by the paper's sums: what workers share, over their number, and what one waits.

    Where the paper's words and its formula disagree (data are loaded again for each config beyond the workers) this
    follows the words.

    Examples
    --------
    >>> work = Work("algebraic", 3, 2, 10, 100, Pilot(0.5, 2, 0.1, 7))
    >>> price_model_tasks([6, 4], workers=2, work=work).moved
    200.0
    """
    rows, pilot = np.asarray(sizes, np.float64), work.pilot
    total, largest, batch = float(rows.sum()), float(rows.max(initial=0)), work.batch
    sequential = work.pattern == "sequential"
    updates, largest_updates = (total / batch, largest / batch) if sequential else (len(rows), 1)
    byte = pilot.byte * work.row_bytes
    compute = work.configs * work.epochs * (pilot.row_config * total + pilot.update * updates)
    reading = byte * total * (max(0, work.configs - workers) + workers)
    last = byte * largest + work.epochs * (pilot.row_config * largest + pilot.update * largest_updates)
    seconds = (compute + reading) / workers + last
    idle = max(0.0, 1 - (compute + reading) / workers / seconds)
    return Price(seconds, idle, work.row_bytes * total * workers)


_TICKS = 1000
"""Ticks of a row and a config: the other times are rounded to one of them."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRun:
    """What a simulated run came to, in seconds and bytes.

    No schedule of the pattern takes less than ``bound``: the work of all workers shared evenly, or the longest chain in it.
    ``moved`` are bytes over the network: data to workers, models and gradients between them.
    """

    makespan: float
    bound: float
    busy: NDArray[np.float64]
    moved: float
    turns: int

    @property
    def utilization(self) -> float:
        """The share of all workers' time in which they worked."""
        return float(self.busy.sum() / (self.makespan * len(self.busy))) if self.makespan else 1.0


def simulate(sizes: ArrayLike, workers: int, *, work: Work, approach: str = "grouped") -> SimulatedRun:
    """Simulate a run over groups of such sizes by one of `penstock.groups.cost.APPROACHES`.

    Examples
    --------
    >>> from penstock.groups.cost import Pilot
    >>> work = Work("algebraic", 12, 10, 160, 328, Pilot(3e-8, 1e-5, 5e-10, 1e-4))
    >>> sizes = [260_000] + [10_000] * 74
    >>> ours, theirs = (simulate(sizes, 16, work=work, approach=a) for a in ("grouped", "group-task"))
    >>> round(ours.makespan / ours.bound, 2), round(theirs.makespan / ours.makespan, 1)
    (1.03, 4.1)
    """
    if approach not in APPROACHES:
        raise UnknownOptionError.of("approach", approach, APPROACHES)
    place.bound_algebraic(sizes, workers)  # refuses what are not sizes, or no workers
    rows = np.asarray(sizes, np.int64)
    clock = _Clock(work, workers)
    overhead = work.overhead
    if approach == "grouped" and work.pattern == "algebraic":
        placed = place.spread(rows, workers, overhead=overhead)
        _play(Passes(placed, configs=work.configs, epochs=work.epochs, lanes=2), placed, clock)
    elif approach == "grouped" and work.pattern == "sequential":
        placed = place.sequential(rows, workers, work.configs, overhead=overhead)
        _play(Hopper(placed, configs=work.configs, epochs=work.epochs), placed, clock)
    elif approach == "grouped":
        _gangs(place.constrained(rows, workers, overhead=overhead), clock)
    else:
        _baseline(approach, rows, clock)
    second = work.pilot.row_config / _TICKS
    busy = np.array(clock.busy, np.float64) * second
    return SimulatedRun(
        max(clock.end, *clock.free) * second, bound(rows, workers, work=work), busy, clock.moved, clock.turns
    )


def bound(sizes: ArrayLike, workers: int, *, work: Work) -> float:
    """Return seconds that no schedule of this work undercuts, whatever it places where.

    Every row is read once and seen by every config in every epoch, by one of p workers. Where the pattern is
    sequential, these change the models too (elsewhere that may be done by nobody's worker), and a config of the
    largest group has its epochs one after another.
    """
    rows, pilot = np.asarray(sizes, np.int64), work.pilot
    total = float(rows.sum()) * (work.configs * work.epochs * pilot.row_config + pilot.byte * work.row_bytes)
    if work.pattern != "sequential":
        return total / workers
    total += pilot.update * work.configs * sum(work.updates(size, work.epochs) for size in rows.tolist())
    largest = int(rows.max(initial=0))
    chain = work.epochs * largest * pilot.row_config + work.updates(largest, work.epochs) * pilot.update
    return max(total / workers, chain)


class _Clock:
    """How many ticks things take, and what workers have done so far."""

    def __init__(self, work: Work, workers: int) -> None:
        pilot = work.pilot
        tick = pilot.row_config / _TICKS
        self.work = work
        self.update = pilot.update / tick
        self.read = pilot.byte * work.row_bytes / tick
        self._message = pilot.message / tick
        self._model = pilot.sent * work.model_bytes / tick
        self.free = [0] * workers
        self.busy = [0] * workers
        self.end = 0
        """When the last thing that was under way arrived."""
        self.moved = 0.0
        self.turns = 0

    def turn(self, worker: int, ticks: float, start: int) -> int:
        """Let a worker be busy from a moment on, and return when it is free again."""
        spent = round(ticks)
        self.busy[worker] += spent
        self.turns += 1
        self.free[worker] = start + spent
        return start + spent

    def load(self, rows: int) -> float:
        """Let rows be read by a worker that has not got them."""
        self.moved += rows * self.work.row_bytes
        return rows * self.read

    def message(self, models: int) -> float:
        return self._message + models * self._model

    def together(self, workers: int, models: int = 1) -> float:
        """Return what workers take to add up what each has, by halves, and to send the outcome back the same way."""
        return 2 * self.message(models) * (workers - 1).bit_length()

    def send(self, messages: int) -> None:
        self.moved += messages * self.work.model_bytes


def _play(scheduler: Scheduler, placed: Placement, clock: _Clock) -> None:
    """Run a scheduler to its end: the loop that a driver has, with a heap for a clock."""
    work, shards = clock.work, placed.shards
    hops = isinstance(scheduler, Hopper)
    here = [False] * len(shards)
    events: list[tuple[int, int, Turn | Wait]] = []
    idle = [True] * placed.workers
    now = count = 0
    while True:
        for worker in scheduler.woken():
            turn = scheduler.next(worker) if idle[worker] else None
            if turn is None:
                continue
            ticks: float = turn.units * _TICKS
            rows = shards[turn.shard].rows
            if not here[turn.shard]:
                here[turn.shard] = True
                ticks += clock.load(rows)
            if turn.whole or hops:
                ticks += turn.configs * work.updates(rows, turn.epochs) * clock.update
            idle[worker] = False
            count += 1
            heapq.heappush(events, (clock.turn(worker, ticks, now), count, turn))
        if not events:
            break
        now = events[0][0]
        # All that ends at one moment is taken note of before anyone is given something new.
        while events and events[0][0] == now:
            event = heapq.heappop(events)[2]
            if isinstance(event, Wait):
                scheduler.ready(event)
                continue
            idle[event.worker] = True
            wait = scheduler.done(event)
            if wait is not None:
                count += 1
                heapq.heappush(events, (now + _travel(wait, clock), count, wait))
    clock.end = now
    if not scheduler.finished:
        raise RuntimeError(f"after {clock.turns} turns nothing can go on, and not all is trained; report this as a bug")


def _travel(wait: Wait, clock: _Clock) -> int:
    """Return the ticks until what is under way has arrived."""
    if len(wait.workers) == 1:
        clock.send(1)
        return round(clock.message(1))
    clock.send(2 * (len(wait.workers) - 1) * wait.configs)
    return round(clock.together(len(wait.workers), wait.configs) + wait.configs * clock.update)


def _gangs(placed: Placement, clock: _Clock) -> None:
    """Train split groups on all their workers at a time, as LightGBM does, the largest first; then the whole ones."""
    work, shards = clock.work, placed.shards
    passes = work.configs * work.epochs
    by_size = sorted(placed.held.items(), key=lambda item: (-len(item[1]), -sum(shards[n].rows for n in item[1])))
    for _, held in by_size:
        mine = [shards[number] for number in held]
        start = max(clock.free[shard.worker] for shard in mine)
        added = passes * clock.together(len(mine)) if len(mine) > 1 else 0.0
        clock.send(2 * (len(mine) - 1) * passes)
        ends = [
            clock.turn(s.worker, clock.load(s.rows) + passes * (s.rows * _TICKS + clock.update), start) for s in mine
        ]
        for shard in mine:
            clock.free[shard.worker] = max(ends) + round(added)


def _baseline(approach: str, rows: NDArray[np.int64], clock: _Clock) -> None:
    sizes = sorted((size for size in rows.tolist() if size), reverse=True)
    if approach == "group-task":
        _tasks(((group, size, clock.work.configs) for group, size in enumerate(sizes)), clock, again=False)
    elif approach == "model-task":
        every = ((group, size, 1) for _ in range(clock.work.configs) for group, size in enumerate(sizes))
        _tasks(every, clock, again=True)
    elif approach == "data-parallel":
        _all_on_one(sizes, clock)
    else:
        middle = float(np.median(sizes)) if sizes else 0.0
        _all_on_one([size for size in sizes if size > middle], clock)
        small = [size for size in sizes if size <= middle]
        _tasks(((group, size, clock.work.configs) for group, size in enumerate(small)), clock, again=False)


def _tasks(tasks: Iterable[tuple[int, int, int]], clock: _Clock, *, again: bool) -> None:
    """Give tasks, of a group and some of its configs, to whoever is free first.

    ``again``: a task reads its group's data, from storage the first time and from the worker's disk later on.
    """
    work = clock.work
    queue = [(free, worker) for worker, free in enumerate(clock.free)]
    heapq.heapify(queue)
    has: dict[int, int] = {}
    for group, size, configs in tasks:
        start, worker = queue[0]
        ticks = configs * (work.epochs * size * _TICKS + work.updates(size, work.epochs) * clock.update)
        if again and has.get(group, 0) >> worker & 1:
            ticks += size * clock.read
        else:
            has[group] = has.get(group, 0) | 1 << worker
            ticks += clock.load(size)
        heapq.heapreplace(queue, (clock.turn(worker, ticks, start), worker))


def _all_on_one(sizes: list[int], clock: _Clock) -> None:
    """Train one config of one group at a time, on all workers, who add up their gradients at every update."""
    work, p = clock.work, len(clock.free)
    added, now = clock.together(p), max(clock.free)
    steps = [0] * (p + 1)  # by how much more a worker is busy than the one before it
    for size in sizes:
        updates = work.configs * work.updates(size, work.epochs)
        most = -(-size // p)
        clock.send(2 * (p - 1) * updates)
        clock.moved += size * work.row_bytes
        clock.turns += 1
        spent = round(work.configs * work.epochs * most * _TICKS + updates * clock.update + most * clock.read)
        steps[0] += spent
        steps[min(p, size)] -= spent
        now += spent + round(updates * added)
    clock.free = [now] * p
    clock.busy = [had + more for had, more in zip(clock.busy, itertools.accumulate(steps[:p]), strict=True)]
