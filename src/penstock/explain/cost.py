"""Seconds an epoch will take under each strategy, from what was measured: arithmetic alone, nothing is run.

A window is read and filled while the one before it is learned from, so an epoch takes the longer of the two,
plus the first window's filling and the last one's learning; together they cannot use more processors than there
are. Orders that mix do it between filling and learning, on the learner's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.explain.speed import Layout, Speeds, Work
from penstock.explain.storage import Curve
from penstock.loader.plan import Plan
from penstock.shuffle import ORDERS

STRATEGIES = ("none", "block-only", "corgipile", "sliding-window", "mrs", "once", "epoch", "global")
SINGLE_ROW_BYTES = 4096
# Orders that mix take in so many parts of what they hold, one after another.
_MIXED_PARTS = 8


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one strategy will cost.

    Attributes
    ----------
    strategy : str
        Its name.
    seconds : float
        An epoch, once the page cache holds what it can.
    first_seconds : float
        The first epoch, read from storage.
    prepare_seconds : float
        Before it: writing a shuffled copy.
    note : str
        What else there is to know.
    """

    strategy: str
    seconds: float
    first_seconds: float
    prepare_seconds: float = 0.0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the predictions rest on.

    Attributes
    ----------
    rows, blocks : int
        Of the data.
    row_bytes : float
        Decoded bytes of a row.
    units : int
        Row groups that are served in parts; 0 where blocks are read freely.
    plans : mapping
        By strategy, how the loader would divide the memory.
    curve : Curve or None
        Of the storage; without one reading is taken to cost nothing beyond the page cache.
    available : int
        Memory that can cache files.
    """

    rows: int
    blocks: int
    row_bytes: float
    units: int
    plans: Mapping[str, Plan]
    curve: Curve | None
    available: int

    def cached(self, nbytes: float) -> bool:
        """Whether the page cache keeps so many bytes from one epoch to the next."""
        return nbytes < self.available / 2


def predict(setting: Setting, speeds: Speeds) -> tuple[Prediction, ...]:
    """Predict every strategy's cost."""
    return tuple(_predict(name, setting, speeds) for name in STRATEGIES)


def _predict(name: str, setting: Setting, speeds: Speeds) -> Prediction:
    plan, rows = setting.plans[name], setting.rows
    if ORDERS[name].copy != "never":
        return _copying(name, setting, speeds)
    if name == "global" and not plan.resident:
        return _global(setting, speeds)
    stored = speeds.stored
    work = stored.shuffled if name == "corgipile" else stored.plain
    if setting.units:
        work = Work(speeds.decode / plan.threads, speeds.decode)  # a row group is decoded by one thread
    beside = {"sliding-window": speeds.slide, "mrs": speeds.reserve}.get(name, 0.0) * rows
    learn = speeds.sgd * rows * (2 if name == "mrs" else 1)  # mrs visits a kept row beside each one it reads
    windows = -(-rows // max(1, plan.held_rows)) * (_MIXED_PARTS if beside else 1)
    if plan.resident:
        steady = pipeline(speeds.resident.times(rows), learn + beside, read=0.0, windows=windows)
        decoding = speeds.decode * rows + read_seconds(setting, stored, random=False)
        fresh = 2 * stored.touch * plan.held_rows
        return Prediction(name, steady, steady + decoding + fresh, note="rows stay decoded in memory")
    random = name in ("block-only", "corgipile") and not setting.units
    read = read_seconds(setting, stored, random=random)
    run = _runner(work.times(rows), learn + beside, windows=windows)
    fresh = 2 * stored.touch * plan.held_rows  # both windows' memory is new
    note = "visits some rows twice and others not at all" if name == "mrs" else ""
    return Prediction(
        name, run(0.0 if setting.cached(stored.stored_bytes * rows) else read), run(read) + fresh, note=note
    )


def _copying(name: str, setting: Setting, speeds: Speeds) -> Prediction:
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
    if name == "epoch":
        return Prediction(
            name, copy + later + fresh, copy + later + fresh, note="writes a shuffled copy before every epoch"
        )
    return Prediction(name, later, later + fresh, copy, note="writes a shuffled copy first")


def _global(setting: Setting, speeds: Speeds) -> Prediction:
    """The data are passed over again and again, and each pass picks up the rows that are due before the next."""
    rows, plan, layout = setting.rows, setting.plans["global"], speeds.stored
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
    fill = Work(put.wall + moved.wall + beyond, put.cpu + moved.cpu + beyond)
    run = _runner(fill, speeds.sgd * rows, windows=max(1, round(passes)))
    return Prediction("global", run(0.0 if setting.cached(nbytes) else read), run(read), note="; ".join(notes))


def _runner(fill: Work, learn: float, *, windows: int) -> Callable[[float], float]:
    return lambda read: pipeline(fill, learn, read=read, windows=windows)


def pipeline(fill: Work, learn: float, *, read: float, windows: int, cores: int | None = None) -> float:
    """Return the seconds of an epoch whose windows are made while others are learned from.

    Parameters
    ----------
    fill : Work
        Making all windows.
    learn : float
        Seconds of learning, on one thread.
    read : float
        Seconds of waiting for storage.
    windows : int
        How many there are.
    cores : int, optional
        Processors; those of this process if not given.

    Examples
    --------
    >>> pipeline(Work(2.0, 2.0), 4.0, read=1.0, windows=100, cores=4)
    4.03
    """
    cores = cores or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores or os.cpu_count() or 1
    # Reading costs processor time too, so that even with many reads in flight it is hardly hidden.
    alone = fill.wall + read
    together = max(alone, learn, (fill.cpu + learn) / cores)
    return round((alone + (windows - 1) * together + learn) / max(windows, 1), 9) if windows > 1 else alone + learn


def read_seconds(setting: Setting, layout: Layout, *, random: bool) -> float:
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
