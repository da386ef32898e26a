"""Seconds an epoch will take under each strategy, from what was measured: arithmetic alone, nothing is run.

A window is read and filled while the one before it is learned from, so an epoch takes the longer of the two,
plus the first window's filling and the last one's learning; together they cannot use more processors than there
are. Orders that mix do it between filling and learning, on the learner's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from penstock import parallel
from penstock.budget import show_bytes
from penstock.explanation.clustering import Clustering
from penstock.explanation.explanation import StrategyCost
from penstock.explanation.speed import LayoutSpeed, Speeds, WorkSeconds
from penstock.loader.plan import Plan
from penstock.shuffle import ORDERS
from penstock.storage_timer import StorageSpeeds

STRATEGIES = tuple(ORDERS)
SINGLE_ROW_BYTES = 4096
# Orders that mix take in so many parts of what they hold, one after another.
_MIXED_PARTS = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """What the predictions rest on: the data, by strategy how the loader would divide the memory, and the storage.

    ``row_bytes`` are decoded; ``units`` are row groups that are served in parts, 0 where blocks are read freely. Without a
    ``curve`` reading is taken to cost nothing beyond the page cache, for which ``available`` bytes of memory can be used.
    """

    rows: int
    blocks: int
    row_bytes: float
    units: int
    plans: Mapping[str, Plan]
    curve: StorageSpeeds | None
    available: int
    clustering: Clustering | None = None

    @property
    def base_plan(self) -> Plan:
        """How corgipile would divide the memory given."""
        return self.plans["corgipile"]

    def clustering_in(self, plan: Plan) -> Clustering | None:
        """Return how rows lie in the blocks that a plan cuts; row groups that are not kept decoded are read side by side."""
        if self.clustering is None or (self.units and not plan.kept_bytes) or plan.blocks <= self.blocks:
            return self.clustering
        return self.clustering.in_blocks(self.rows / plan.blocks)

    def cached(self, nbytes: float) -> bool:
        """Whether the page cache keeps so many bytes from one epoch to the next."""
        return nbytes < self.available / 2


def strategy_costs(setting: Setting, speeds: Speeds) -> tuple[StrategyCost, ...]:
    """Predict every strategy's cost."""
    return tuple(strategy_cost(name, setting, speeds) for name in STRATEGIES)


def strategy_cost(name: str, setting: Setting, speeds: Speeds) -> StrategyCost:
    """Predict a strategy's cost."""
    plan, copied = setting.plans[name], ORDERS[name].facts.copy != "never"
    disk = int((speeds.packed or speeds.stored).stored_bytes * setting.rows) if copied else plan.kept_bytes
    return replace(_cost(name, setting, speeds), memory_bytes=plan.memory, disk_bytes=disk)


def _cost(name: str, setting: Setting, speeds: Speeds) -> StrategyCost:
    plan, rows, facts = setting.plans[name], setting.rows, ORDERS[name].facts
    if facts.copy != "never":
        return _copying(name, setting, speeds)
    if facts.by_row and not plan.resident:
        return _by_row(name, setting, speeds)
    if plan.kept_bytes and setting.units:
        return _keeping(name, setting, speeds)
    stored = speeds.stored
    work = stored.shuffled if facts.places_rows else stored.plain
    if setting.units:
        work = WorkSeconds(speeds.decode / plan.threads, speeds.decode)  # a row group is decoded by one thread
    beside = {"buffer": speeds.slide, "reservoir": speeds.reserve, "none": 0.0}[facts.mixing] * rows
    learn = speeds.sgd * rows * facts.visits
    windows = -(-rows // max(1, plan.held_rows)) * (_MIXED_PARTS if beside else 1)
    if plan.resident:
        steady = pipeline(speeds.resident.times(rows), learn + beside, read=0.0, windows=windows)
        decoding = speeds.decode * rows + read_seconds(setting, stored, random=False)
        fresh = 2 * stored.touch * plan.held_rows
        return StrategyCost(name, steady, steady + decoding + fresh, note="rows stay decoded in memory")
    random = facts.by_block and not setting.units
    read = read_seconds(setting, stored, random=random)
    run = _runner(work.times(rows), learn + beside, windows=windows)
    fresh = 2 * stored.touch * plan.held_rows  # both windows' memory is new
    later = run(0.0 if setting.cached(stored.stored_bytes * rows) else read)
    return StrategyCost(name, later, run(read) + fresh, note=facts.note)


def _keeping(name: str, setting: Setting, speeds: Speeds) -> StrategyCost:
    """Row groups are decoded once, and small blocks of them are read from disk; reading these costs no more than decoding."""
    rows, plan, stored = setting.rows, setting.plans[name], speeds.stored
    writing = reading = 0.0
    if setting.curve is not None and not setting.cached(2 * plan.kept_bytes):
        writing = plan.kept_bytes / setting.curve.sequential_many
        reading = plan.kept_bytes / setting.curve.random(plan.kept_bytes / max(1, plan.blocks), many=True)
    prepare = 2 * speeds.decode * rows + read_seconds(setting, stored, random=False) + writing
    work = WorkSeconds(speeds.decode / plan.threads, speeds.decode)
    windows = -(-rows // max(1, plan.held_rows))
    seconds = _runner(work.times(rows), speeds.sgd * rows, windows=windows)(reading)
    first = seconds + 2 * stored.touch * plan.held_rows
    return StrategyCost(
        name, seconds, first, prepare, note=f"decodes row groups once, to {show_bytes(plan.kept_bytes)} of disk"
    )


def _copying(name: str, setting: Setting, speeds: Speeds) -> StrategyCost:
    rows, plan = setting.rows, setting.plans[name]
    packed = speeds.packed or speeds.stored
    stored, written = speeds.stored, packed.stored_bytes * rows
    windows = -(-rows // max(1, plan.held_rows))
    run = _runner((speeds.copied or packed.plain).times(rows), speeds.sgd * rows, windows=windows)
    later = run(0.0 if setting.cached(written) else read_seconds(setting, packed, random=False))
    copy = (speeds.copy if speeds.copy is not None else 20 * packed.shuffled.wall) * rows
    if setting.curve is not None and not setting.cached(4 * written):
        # Buckets and copy are written, and the buckets read again; writes are taken to be as fast as reads.
        copy = max(copy, 3 * written / setting.curve.sequential_many)
    copy += max(stored.plain.wall - packed.plain.wall, 0.0) * rows + read_seconds(setting, stored, random=False)
    fresh = 2 * packed.touch * plan.held_rows
    facts = ORDERS[name].facts
    if facts.copy == "epoch":
        return StrategyCost(name, copy + later + fresh, copy + later + fresh, note=facts.note)
    return StrategyCost(name, later, later + fresh, copy, note=facts.note)


def _by_row(name: str, setting: Setting, speeds: Speeds) -> StrategyCost:
    """The data are passed over again and again, and each pass picks up the rows that are due before the next."""
    rows, plan, layout = setting.rows, setting.plans[name], speeds.stored
    notes = []
    if setting.units or not layout.waits:
        layout = speeds.packed or layout
        notes.append("after converting")
    if setting.row_bytes < SINGLE_ROW_BYTES:
        notes.append("worth it only for rows of about 4 KB and up")
    blocks = max(1.0, layout.stored_bytes * rows / max(layout.block_bytes, 1.0))
    hit = 1 - float(np.exp(-plan.held_rows / blocks))  # of the blocks, those that a pass picks anything up from
    passes = hit * (1 + rows / max(1, plan.held_rows))
    read = passes * read_seconds(setting, layout, random=hit < 0.5)
    # Of a block's other rows nothing is kept but what fetching them took; those kept are moved once more.
    nbytes = layout.stored_bytes * rows
    fetch = nbytes / setting.curve.cached if setting.curve is not None else 0.5 * layout.plain.wall * rows
    beyond = max(0.0, passes - 1) * fetch
    moved, put = speeds.resident.times(rows), layout.shuffled.times(rows)
    fill = WorkSeconds(put.wall + moved.wall + beyond, put.cpu + moved.cpu + beyond)
    run = _runner(fill, speeds.sgd * rows, windows=max(1, round(passes)))
    return StrategyCost(name, run(0.0 if setting.cached(nbytes) else read), run(read), note="; ".join(notes))


def _runner(fill: WorkSeconds, learn: float, *, windows: int) -> Callable[[float], float]:
    return lambda read: pipeline(fill, learn, read=read, windows=windows)


def pipeline(fill: WorkSeconds, learn: float, *, read: float, windows: int, cores: int | None = None) -> float:
    """Return the seconds of an epoch whose windows are made (``fill``) while others are learned from, on one thread.

    ``read`` are seconds of waiting for storage; ``cores`` are those of this process if not given.

    Examples
    --------
    >>> pipeline(WorkSeconds(2.0, 2.0), 4.0, read=1.0, windows=100, cores=4)
    4.03
    """
    cores = cores or parallel.cores()
    # Reading costs processor time too, so that even with many reads in flight it is hardly hidden.
    alone = fill.wall + read
    together = max(alone, learn, (fill.cpu + learn) / cores)
    return round((alone + (windows - 1) * together + learn) / max(windows, 1), 9) if windows > 1 else alone + learn


def read_seconds(setting: Setting, layout: LayoutSpeed, *, random: bool) -> float:
    """Return the seconds that storage needs for all blocks, with as many reads in flight as the loader keeps."""
    curve = setting.curve
    if curve is None:
        return 0.0
    if random:
        one, many = (curve.random(layout.block_bytes, many=m) for m in (False, True))
    else:
        one, many = curve.sequential, curve.sequential_many
    speed = max(many, one) if layout.threads >= 16 else min(max(many, one), one * layout.threads)
    return layout.stored_bytes * setting.rows / max(speed, 1.0)
