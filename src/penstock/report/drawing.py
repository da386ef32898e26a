"""What all drawings are made of: axes with round ticks, the SVG element with its description, words, rules and boxes.

A drawing carries light colours as attributes, so that it stands alone; a page restyles it by its ``ps-`` classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.report.style import PlotStyle
from penstock.report.text import escape, shorten, show_tick, text_width


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


FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
INK, SOFT, RULE, AXIS = "#1b1f24", "#59636e", "#e4e7eb", "#8a949e"
SIZE = 12
"""Of letters, in pixels."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What stands above a plot, beside its axes, and in its description for those who cannot see it."""

    title: str
    x: str
    y: str
    says: str = ""


def svg(parts: Iterable[str], *, size: tuple[float, float], says: str) -> str:
    """Return a whole drawing, described in words."""
    width, height = (f"{side:g}" for side in size)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(says)}" font-family="{FONT}" font-size="{SIZE}">{"".join(parts)}</svg>'
    )


def text_at(
    x: float, y: float, text: str, *, soft: bool = False, bold: bool = False, anchor: str = "", tip: str = ""
) -> str:
    """Return words at a place; ``tip`` is what pointing at them tells."""
    style = f' text-anchor="{anchor}"' if anchor else ""
    style += ' font-size="14" font-weight="600"' if bold else ""
    name, colour = ("ps-soft", SOFT) if soft else ("ps-ink", INK)
    tooltip = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" fill="{colour}"{style}>{tooltip}{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, style: PlotStyle, tip: str) -> str:
    """Return a filled rectangle with what pointing at it tells."""
    return (
        f'<rect class="ps-f{style.slot}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
        f' fill="{style.light}"><title>{escape(tip)}</title></rect>'
    )


def headings(labels: Labels, *, size: tuple[float, float], left: float, right: float) -> list[str]:
    """Return the title, and the names of the axes: of the upright one beneath it, of the level one below the plot."""
    width, height = size
    return [
        text_at(0, 14, shorten(labels.title, width, 14), bold=True),
        text_at(0, 33, shorten(labels.y, width, SIZE), soft=True),
        text_at((left + right) / 2, height - 6, shorten(labels.x, right - left, SIZE), soft=True, anchor="middle"),
    ]


def grid(across: Axis, upward: Axis, *, left: float, right: float) -> list[str]:
    """Return the rules of the upright axis and the ticks of both."""
    bottom = upward.start
    rules = "".join(f"M{left:.1f} {upward.place(v):.1f}H{right:.1f}" for v, _ in upward.ticks)
    return [
        f'<path class="ps-rule" d="{rules}" stroke="{RULE}" fill="none"/>' if rules else "",
        *foot(across, bottom, left=left, right=right),
        *(text_at(left - 6, upward.place(v) + 4, label, soft=True, anchor="end") for v, label in upward.ticks),
    ]


def foot(across: Axis, bottom: float, *, left: float, right: float) -> list[str]:
    """Return the level axis with its ticks."""
    feet = "".join(f"M{across.place(v):.1f} {bottom:.1f}v4" for v, _ in across.ticks)
    return [
        f'<path class="ps-axis" d="M{left:.1f} {bottom:.1f}H{right:.1f}{feet}" stroke="{AXIS}" fill="none"/>',
        *(text_at(across.place(v), bottom + 18, label, soft=True, anchor="middle") for v, label in across.ticks),
    ]
