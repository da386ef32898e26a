"""What learning over groups costs, by the analytical models of sections 3 and 4.6, and the pilot that sets their rates.

A `Pilot` has the seconds that single things take on this machine; `fit` gets it from timed tasks. A `Work` is what is
to be trained, and `price` adds up what an approach would pay for it: computing, reading, network, waiting. These are
sums, not schedules: `penstock.groups.simulate` plays the schedule itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from penstock.errors import UnknownOptionError, UsageError

PATTERNS = ("algebraic", "sequential", "sampling")
APPROACHES = ("grouped", "group-task", "model-task", "data-parallel", "switching")
"""Ours; then the paper's GTP, MTP, DP and SP."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """Seconds that single things take, as a pilot run measures them.

    Parameters
    ----------
    row_config
        For one row and one config, data in memory, configs trained together where the approach does so.
    update
        For one change of one model.
    byte
        For reading one byte of the data.
    message
        For one message between workers, whatever it carries.
    sent
        For each byte in a message.
    memory
        For reading one row again from memory, where ``row_config`` has not got it in it.
    alone
        For one row and one config where configs are trained one at a time; None is ``row_config``.

    Examples
    --------
    >>> Pilot(row_config=2e-8, update=1e-5, byte=1e-10, message=1e-4).single
    2e-08
    """

    row_config: float
    update: float
    byte: float
    message: float
    sent: float = 0.0
    memory: float = 0.0
    alone: float | None = None

    def __post_init__(self) -> None:
        if not self.row_config > 0:
            raise UsageError(f"row_config={self.row_config!r} s for a row and a config; it has to be above 0")
        for name in ("update", "byte", "message", "sent", "memory"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name}={getattr(self, name)!r} s cannot be; it has to be at least 0")

    @property
    def single(self) -> float:
        """Seconds for a row and a config trained by itself."""
        return self.row_config if self.alone is None else self.alone


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
                raise UsageError(f"{name}={getattr(self, name)!r} trains nothing; give at least 1")

    def updates(self, rows: int, passes: int = 1) -> int:
        """Return how often one config is changed in passes over these rows."""
        return passes * (-(-rows // self.batch) if self.pattern == "sequential" else 1)

    @property
    def overhead(self) -> int:
        """What a group costs beyond its rows, in rows: the update that even the smallest has, for the placement."""
        rows = self.pilot.update / self.pilot.row_config
        return round(rows / (1 + rows / self.batch) if self.pattern == "sequential" else rows)


@dataclass(frozen=True, slots=True)
class Weights:
    """The paper's α, β, γ and δ: how much of each cost shows in the run time. All 1 where a pilot gives seconds."""

    compute: float = 1.0
    reading: float = 1.0
    network: float = 1.0
    idle: float = 1.0


@dataclass(frozen=True, slots=True)
class Price:
    """What an approach costs, unweighted, added up over workers (``idle`` is of one), and the run time from it."""

    compute: float
    reading: float
    network: float
    idle: float
    seconds: float
    moved: float
    """Bytes that go over the network: data, models and gradients."""


def price(approach: str, sizes: ArrayLike, *, workers: int, work: Work, weights: Weights | None = None) -> Price:
    """Price an approach by the paper's sums: costs that workers share, over their number, and what one waits.

    Where the paper's words and its formula for models as tasks disagree (data are loaded again for each config beyond
    the workers) this follows the words.

    Examples
    --------
    >>> work = Work("algebraic", 12, 10, 160, 328, Pilot(3e-8, 1e-5, 5e-10, 1e-3))
    >>> sizes = [26_000] + [1_000] * 74
    >>> seconds = {a: price(a, sizes, workers=16, work=work).seconds for a in APPROACHES}
    >>> min(seconds, key=seconds.get)
    'grouped'
    """
    if approach not in APPROACHES:
        raise UnknownOptionError.of("approach", approach, APPROACHES)
    if workers < 1:
        raise UsageError(f"workers={workers!r} cannot work; give at least 1")
    rows = np.asarray(sizes, np.float64)
    weights = weights or Weights()
    if approach != "switching":
        return _price(approach, rows, workers, work, weights)
    large = rows > np.median(rows)
    parts = [("data-parallel", rows[large]), ("group-task", rows[~large])]
    done = [_price(way, part, workers, work, weights) for way, part in parts if len(part)]
    return Price(*(sum(getattr(cost, name) for cost in done) for name in Price.__slots__))


def _price(approach: str, rows: np.ndarray, workers: int, work: Work, weights: Weights) -> Price:
    pilot, p, s, h = work.pilot, workers, work.configs, work.epochs
    n, largest, groups = float(rows.sum()), float(rows.max(initial=0)), len(rows)
    per_row = pilot.row_config if approach == "grouped" else pilot.single
    updates = n / work.batch if work.pattern == "sequential" else groups
    updates_of_largest = largest / work.batch if work.pattern == "sequential" else 1

    def read(count: float) -> float:
        return pilot.byte * work.row_bytes * count

    def train(count: float, changes: float, configs: int) -> float:
        return configs * h * (per_row * count + pilot.update * changes)

    compute, reading = train(n, updates, s), pilot.memory * s * h * n
    fetched, sent = n, 0.0
    if approach == "grouped":
        sent, idle = s * h * p, pilot.message * h
    elif approach == "group-task":
        idle = read(largest) + pilot.memory * s * h * largest + train(largest, updates_of_largest, s)
    elif approach == "model-task":
        fetched = n * p
        reading += read(max(0, s - p) * n)
        idle = read(largest) + pilot.memory * h * largest + train(largest, updates_of_largest, 1)
    else:
        sent = s * h * updates
        idle = pilot.message * s * h * updates
    network = read(fetched) + pilot.sent * work.model_bytes * sent
    shared = weights.compute * compute + weights.reading * reading + weights.network * network
    moved = work.row_bytes * fetched + work.model_bytes * sent
    return Price(compute, reading, network, idle, shared / p + weights.idle * idle, moved)


def paper_weights(approach: str, *, groups: int, workers: int) -> Weights:
    """Return the weights of appendix E, which go with rates of 1 and data and models in the paper's units."""
    found = {
        "grouped": Weights(idle=1e6),
        "group-task": Weights(idle=3),
        "model-task": Weights(network=50),
        "data-parallel": Weights(network=2, idle=2e6 / (groups * workers)),
    }
    if approach not in found:
        raise UnknownOptionError.of("approach", approach, found)
    return found[approach]


PAPER_WORK = Work("algebraic", 12, 10, row_bytes=1, model_bytes=1e6, pilot=Pilot(1, 1, 1, 1, sent=1, memory=1))
"""The basic setting of appendix E; it goes with 14 million rows in 18 groups, the largest a quarter of them."""
