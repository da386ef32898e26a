"""From values to places on a drawing: nice ticks, linear and logarithmic axes, labels kept apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.report.text import show_tick, text_width


def nice_ticks(lo: float, hi: float, *, count: int = 5, whole: bool = False) -> tuple[list[float], float]:
    """Return the round values between two others, about so many, and the step between them.

    Examples
    --------
    >>> nice_ticks(0.47, 1.02, count=5)[0]
    [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    >>> nice_ticks(1, 20, whole=True)[0]
    [5, 10, 15, 20]
    """
    raw = (hi - lo) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    # Some slack: a tick too many is better than half as many.
    step = power * next(m for m in (1, 2, 5, 10) if raw <= m * power * 1.3)
    if whole:
        step = max(1, round(step))
    first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
    return [round(k * step, 12) if abs(step) > 1e-6 else k * step for k in range(first, last + 1)], step


def log_ticks(lo: float, hi: float, *, count: int = 5) -> list[float]:
    """Return the round values between two positive ones for a logarithmic axis.

    Examples
    --------
    >>> log_ticks(0.05, 300)
    [0.1, 1.0, 10.0, 100.0]
    """
    first, last = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
    full = [m * 10.0**k for k in range(first, last + 1) for m in (1, 2, 5) if lo <= m * 10.0**k <= hi]
    if len(full) <= 1.6 * count:
        return full
    every = max(1, math.ceil((last - first) / (count + 1)))
    return [10.0**k for k in range(first, last + 1) if k % every == 0 and lo <= 10.0**k <= hi] or full


def keep_apart(wanted: Sequence[float], *, gap: float, lo: float, hi: float) -> list[float]:
    """Move places as little as may be so that any two are a gap apart, and all lie between two bounds.

    Examples
    --------
    >>> keep_apart([50.0, 50.0, 10.0], gap=12, lo=0, hi=100)
    [44.0, 56.0, 10.0]
    """
    if not wanted:
        return []
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, (hi - lo) / max(len(wanted) - 1, 1))
    # With i gaps taken off the i-th place, "a gap apart" becomes "in order": pool neighbours that are not.
    pools: list[tuple[float, int]] = []
    for i, index in enumerate(order):
        pool = (wanted[index] - i * gap, 1)
        while pools and pools[-1][0] > pool[0]:
            total = pools[-1][1] + pool[1]
            pool = ((pools[-1][0] * pools[-1][1] + pool[0] * pool[1]) / total, total)
            pools.pop()
        pools.append(pool)
    level = [value for value, size in pools for _ in range(size)]
    top = hi - (len(wanted) - 1) * gap
    placed = [0.0] * len(wanted)
    for i, index in enumerate(order):
        placed[index] = min(max(level[i], lo), top) + i * gap
    return placed


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``lo`` to ``hi`` laid out on pixels from ``start`` to ``stop``."""

    lo: float
    hi: float
    start: float
    stop: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        lo, hi = self.lo, self.hi
        if self.log:
            lo, hi, value = math.log10(lo), math.log10(hi), math.log10(value)
        return self.start + (value - lo) / (hi - lo) * (self.stop - self.start)


def value_axis(
    values: Iterable[float], *, pixels: tuple[float, float], percent: bool = False, log: bool = False
) -> Axis:
    """Fit the upright axis: room above and below the values, ticks about every 45 pixels."""
    known = list(values) or [0.0, 1.0]
    lo, hi = min(known), max(known)
    count = max(2, int(abs(pixels[1] - pixels[0]) / 45))
    if log and lo > 0:
        lo, hi = lo / 1.15, hi * 1.15
        marks = log_ticks(lo, hi, count=count)
        return Axis(lo, hi, *pixels, tuple((m, show_tick(m, m)) for m in marks), log=True)
    flat = hi - lo <= 1e-9 * max(abs(lo), abs(hi))
    margin = 0.05 * ((abs(hi) or 1.0) if flat else hi - lo)
    top = hi + margin
    if percent and hi <= 1.0:
        top = min(top, 1.0)
    lo = max(lo - margin, 0.0) if percent and lo >= 0 else lo - margin
    ticks, step = nice_ticks(lo, top, count=count)
    return Axis(lo, top, *pixels, tuple((t, show_tick(t, step, percent=percent)) for t in ticks))


def count_axis(most: int, *, pixels: tuple[float, float]) -> Axis:
    """Fit the upright axis of counts, which begins at nought."""
    top = max(1.05 * most, 1.0)
    ticks, step = nice_ticks(0, top, count=max(2, int(abs(pixels[1] - pixels[0]) / 45)), whole=True)
    return Axis(0.0, top, *pixels, tuple((t, show_tick(t, step)) for t in ticks))


def run_axis(values: Iterable[float], *, pixels: tuple[float, float], whole: bool = False, log: bool = False) -> Axis:
    """Fit the level axis: epochs from the first to the last, or time from nought; labels never touch."""
    known = list(values) or [0.0, 1.0]
    if log and min(known) > 0:
        return level_axis(min(known) / 1.3, max(known) * 1.05, pixels=pixels, log=True)
    lo, hi = (min(known), max(known)) if whole else (min(0.0, *known), max(0.0, *known))
    if hi - lo <= 1e-9 * max(abs(lo), abs(hi), 1e-9):
        lo, hi = (lo - 0.5, hi + 0.5) if whole else (lo, lo + (abs(lo) or 1.0))
    return level_axis(lo, hi, pixels=pixels, whole=whole)


def level_axis(
    lo: float, hi: float, *, pixels: tuple[float, float], whole: bool = False, percent: bool = False, log: bool = False
) -> Axis:
    """Fit the level axis between two given ends; labels never touch."""
    room = pixels[1] - pixels[0]
    if log:
        marks = [(m, show_tick(m, m)) for m in log_ticks(lo, hi, count=int(room / 60))]
        return Axis(lo, hi, *pixels, _apart(marks, lo, hi, pixels), log=True)
    for count in range(max(2, int(room / 60)), 0, -1):
        ticks, step = nice_ticks(lo, hi, count=count, whole=whole)
        # The first epoch is worth a tick of its own where the round numbers leave it room.
        if whole and ticks and lo == round(lo) and ticks[0] - lo >= 0.5 * step:
            ticks = [lo, *ticks]
        axis = Axis(lo, hi, *pixels, tuple((t, show_tick(t, step, percent=percent)) for t in ticks))
        if _clear(axis):
            break
    return axis


def _clear(axis: Axis) -> bool:
    ends = [(axis.place(t), text_width(label, 12) / 2) for t, label in axis.ticks]
    return all(b - wb - a - wa > 8 for (a, wa), (b, wb) in itertools.pairwise(ends))


def _apart(
    ticks: list[tuple[float, str]], lo: float, hi: float, pixels: tuple[float, float]
) -> tuple[tuple[float, str], ...]:
    """Keep each logarithmic tick whose label does not touch the one kept before it."""
    kept: list[tuple[float, str]] = []
    for tick in ticks:
        if not kept or _clear(Axis(lo, hi, *pixels, (kept[-1], tick), log=True)):
            kept.append(tick)
    return tuple(kept)
