"""How numbers are spread over groups: histograms, clouds of points, and bars of how often each value came up.

As small for ten thousand groups as for ten: bars count, and of points that fall on the same pixel one is drawn.
Nothing is named by colour alone: what is drawn over the rest has a mark or an outline of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.measure_lines import show_items
from penstock.report.drawing import (
    AXIS,
    SIZE,
    Axis,
    Labels,
    box,
    count_axis,
    grid,
    headings,
    level_axis,
    nice_ticks,
    svg,
    text_at,
    value_axis,
)
from penstock.report.plot import stroke
from penstock.report.style import PlotStyle
from penstock.report.text import escape, score_text, shorten, show_count, show_number, text_width

_MOST_BINS = 40
_BAR, _STEP = 16.0, 24.0


@dataclass(frozen=True, slots=True)
class Bins:
    """Where a histogram's bars begin and end.

    Examples
    --------
    >>> bins = Bins.of(np.array([0.5, 0.52, 0.9]), percent=True)
    >>> int(bins.count(np.array([0.5, 0.52, 0.9])).sum())
    3
    """

    edges: NDArray[np.float64]
    percent: bool = False
    log: bool = False

    @classmethod
    def of(cls, values: NDArray[Any], *, percent: bool = False, log: bool = False) -> Bins:
        """Choose bars of round width, about as many as the number of values can fill."""
        lo, hi = float(values.min()), float(values.max())
        count = int(np.clip(1.5 * math.sqrt(len(values)), 5, _MOST_BINS))
        if log and lo > 0:
            lo, hi = (lo / 1.5, hi * 1.5) if hi <= lo * (1 + 1e-9) else (lo, hi)
            return cls(np.asarray(np.geomspace(lo, hi, count + 1), np.float64), percent, log=True)
        if hi - lo <= 1e-9 * max(abs(lo), abs(hi), 1e-9):
            margin = 0.05 if percent else 0.1 * (abs(lo) or 1.0)
            lo, hi, count = lo - margin, hi + margin, 5
        _, step = nice_ticks(lo, hi, count=count)
        first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
        if percent:  # no bar for what cannot be
            first, last = max(first, 0), min(last, round(1 / step))
        return cls(np.arange(first, max(last, first + 1) + 1, dtype=np.float64) * step, percent)

    def count(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return how many values fall between any two edges; those beyond the ends count there."""
        inside = np.clip(values, self.edges[0], self.edges[-1])
        counts: NDArray[np.int64] = np.histogram(inside, self.edges)[0]
        return counts

    def show(self, value: float) -> str:
        """Write an edge."""
        return score_text(value, "accuracy") if self.percent else show_number(value)


def histogram(
    values: NDArray[Any],
    bins: Bins,
    *,
    labels: Labels,
    look: PlotStyle,
    other: tuple[NDArray[Any], PlotStyle] | None = None,
    what: str = "group",
    size: tuple[int, int] = (540, 330),
) -> str:
    """Draw how many values fall into each bin, and over it, as an outline, other counts, which need not be whole.

    Examples
    --------
    >>> from penstock.report.style import plot_styles
    >>> values, look = np.array([0.5, 0.52, 0.9]), plot_styles(["a"])["a"]
    >>> histogram(values, Bins.of(values), labels=Labels("Accuracy", "accuracy", "groups"), look=look)[:4]
    '<svg'
    """
    counts = bins.count(values)
    outline = None if other is None else other[0]
    most = math.ceil(max(counts.max(), 0 if outline is None else outline.max()))
    top, bottom = 46.0, size[1] - 44.0
    upward = count_axis(most, pixels=(bottom, top))
    left, right = _left(upward), size[0] - 26.0
    across = level_axis(
        bins.edges[0], bins.edges[-1], pixels=(left + 2, right), percent=bins.percent, log=bins.log
    )  # fmt: skip
    places = [across.place(edge) for edge in bins.edges]
    gap = 1.0 if places[1] - places[0] > 4 else 0.0
    parts = [*headings(labels, size=size, left=left, right=right), *grid(across, upward, left=left, right=right)]
    for (a, b), (lo, hi), count in zip(itertools.pairwise(places), itertools.pairwise(bins.edges), counts.tolist()):
        if count:
            y = upward.place(count)
            tip = f"{bins.show(lo)} to {bins.show(hi)}: {show_items(count, what)}"
            parts.append(box(a, y, b - a - gap, bottom - y, look, tip))
    if outline is not None and other is not None:
        steps = "".join(f"V{upward.place(n):.1f}H{b:.1f}" for n, b in zip(outline.tolist(), places[1:]))
        parts.append(stroke(f"M{places[0]:.1f} {bottom:.1f}{steps}V{bottom:.1f}", other[1], width=1.8))
    return svg(parts, size=size, says=labels.says or labels.title)


@dataclass(frozen=True, slots=True)
class Named:
    """Points that are told apart from the others, with what pointing at each tells; ``look`` is None for no mark."""

    x: Sequence[float]
    y: Sequence[float]
    notes: Sequence[str]
    look: PlotStyle | None = None


def scatter_plot(
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    labels: Labels,
    look: PlotStyle,
    named: Sequence[Named] = (),
    middle: tuple[Sequence[float], Sequence[float], PlotStyle] | None = None,
    percent: bool = False,
    log_y: bool = False,
    size: tuple[int, int] = (540, 330),
) -> str:
    """Draw a point for each group over a logarithmic axis, and a line through the ``middle`` of them, if given."""
    top, bottom = 46.0, size[1] - 44.0
    upward = value_axis(y.tolist(), pixels=(bottom - 4, top), percent=percent, log=log_y)
    upward = Axis(upward.lo, upward.hi, bottom, top, upward.ticks, upward.log)
    left, right = _left(upward), size[0] - 26.0
    lo, hi = max(float(x.min()), 1.0), max(float(x.max()), 1.0)
    across = level_axis(lo / 1.3, hi * 1.3, pixels=(left + 6, right), log=True)
    spots = {(round(2 * across.place(max(a, 1.0))), round(2 * upward.place(b))) for a, b in zip(x.tolist(), y.tolist())}
    dots = "".join(f"M{a / 2:g} {b / 2:g}h0" for a, b in sorted(spots))
    wide, faint = (4.5, 0.75) if len(x) < 300 else (3.2, 0.5)
    parts = [
        *headings(labels, size=size, left=left, right=right),
        *grid(across, upward, left=left, right=right),
        f'<path class="ps-s{look.slot}" d="{dots}" stroke="{look.light}" stroke-width="{wide}" stroke-linecap="round"'
        f' stroke-opacity="{faint}" fill="none"/>',
    ]
    if middle is not None and len(middle[0]) > 1:
        path = "L".join(f"{across.place(a):.1f} {upward.place(b):.1f}" for a, b in zip(middle[0], middle[1]))
        parts.append(stroke(f"M{path}", middle[2], width=2))
    tips = []
    for some in named:
        places = [(across.place(max(a, 1.0)), upward.place(b)) for a, b in zip(some.x, some.y)]
        if some.look is not None and places:
            # Squares, as strokes of no length: marks with an edge of their own would cut into one another.
            d = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places)
            parts.append(
                f'<path class="ps-s{some.look.slot}" d="{d}" stroke="{some.look.light}" stroke-width="5.5"'
                ' stroke-linecap="square" fill="none"/>'
            )
        # Around every point something to hit that is larger than it.
        tips += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="transparent"><title>{escape(note)}</title></circle>'
            for (a, b), note in zip(places, some.notes, strict=True)
        ]
    return svg([*parts, *tips], size=size, says=labels.says or labels.title)


def bars(
    names: Sequence[str],
    counts: Sequence[int],
    *,
    labels: Labels,
    look: PlotStyle,
    what: str = "group",
    size: tuple[int, int] = (540, 330),
) -> str:
    """Draw a bar for each name, one beneath the other; as high as their number needs.

    Examples
    --------
    >>> from penstock.report.style import plot_styles
    >>> drawing = bars(["0.1", "0.01"], [30, 12], labels=Labels("l2", "groups", ""), look=plot_styles(["a"])["a"])
    >>> "0.01: 12 groups" in drawing
    True
    """
    top = 36.0
    size = (size[0], round(top + _STEP * len(names) + 10))
    width = 0.35 * size[0]
    shown = [shorten(name, width, SIZE) for name in names]
    left = 8 + max((text_width(name, SIZE) for name in shown), default=0)
    most = max([*counts, 1])
    right = size[0] - 12 - max((text_width(_ending(count, counts), SIZE) for count in counts), default=0)
    parts = [
        text_at(0, 14, shorten(labels.title, size[0], 14), bold=True),
        text_at(0, 31, shorten(labels.y, size[0], SIZE), soft=True),
        f'<path class="ps-axis" d="M{left:.1f} {top + 3:.1f}v{_STEP * len(names):.1f}" stroke="{AXIS}" fill="none"/>',
    ]
    for place, (name, short, count) in enumerate(zip(names, shown, counts, strict=True)):
        y = top + 7 + _STEP * place
        long = (right - left) * count / most
        parts.append(text_at(left - 6, y + 12, short, anchor="end", tip=name if short != name else ""))
        if count:
            parts.append(box(left, y, max(long, 1.0), _BAR, look, f"{name}: {show_items(count, what)}"))
        parts.append(text_at(left + long + 6, y + 12, _ending(count, counts), soft=True))
    return svg(parts, size=size, says=labels.says or labels.title)


def _ending(count: int, counts: Sequence[int]) -> str:
    total = sum(counts)
    return f"{show_count(count)} ({100 * count / total:.0f} %)" if total and len(counts) > 1 else show_count(count)


def _left(upward: Axis) -> float:
    """Return where a plot begins: right of its ticks, and with room for half of the first one below."""
    return max(26.0, 8 + max((text_width(label, SIZE) for _, label in upward.ticks), default=0))
