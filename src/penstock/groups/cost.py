"""What learning over groups costs, by the analytical models of sections 3 and 4.6, and the pilot that sets their rates.

A `Pilot` has the seconds that single things take on this machine; `fit` gets it from timed tasks. A `Work` is what is
to be trained. `penstock.groups.simulation` plays schedules of it; of so many models as tasks that this would take long,
`price_model_tasks` adds up the cost.
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
