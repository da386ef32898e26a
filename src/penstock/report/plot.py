"""Line plots and pictures of row orders as SVG text, drawn without any plotting library.

Lines are named at their ends instead of in a box, and the names are kept apart; each point has a tooltip; values
that are missing or not finite break a line. Pictures of row orders follow the CorgiPile paper's section 3, figure 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.report.comparison_data import OrderPicture
from penstock.report.drawing import (
    AXIS,
    RULE,
    SIZE,
    Axis,
    Labels,
    grid,
    headings,
    keep_apart,
    nice_ticks,
    run_axis,
    svg,
    text_at,
    value_axis,
)
from penstock.report.style import LABEL_LIGHT, PlotStyle, mark, plot_styles
from penstock.report.text import escape, finite_or_none, shorten, show_number, show_tick, text_width

_GAP = 15
# More points than this add bytes to a line and nothing to see.
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, its points, a tooltip for each, and how long nothing happened before the first.

    ``lead`` is the stretch of x, from and to, that is drawn as a thin line ahead of the first point. ``look``
    is its colour, dash and mark where several drawings must agree; else it follows from the name.
    """

    name: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    notes: Sequence[str] = ()
    lead: tuple[float, float] | None = None
    look: PlotStyle | None = None

    def points(self) -> list[tuple[float, float, str] | None]:
        """Return the points that can be drawn, None where the line breaks, thinned evenly if there are many."""
        points: list[tuple[float, float, str] | None] = []
        for i, (a, b) in enumerate(zip(self.x, self.y, strict=True)):
            x, y = finite_or_none(a), finite_or_none(b)
            if x is None or y is None:
                points.append(None)
                continue
            note = self.notes[i] if i < len(self.notes) else f"{self.name}: {show_number(x)}, {show_number(y)}"
            points.append((x, y, note))
        every = -(-len(points) // _MOST_POINTS)
        return [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1] if every > 1 else points


@dataclass(frozen=True, slots=True)
class Axes:
    """What kind of numbers the axes carry: whole ones or logarithms across, percentages or logarithms upward."""

    whole_x: bool = False
    log_x: bool = False
    percent_y: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    series: Series
    look: PlotStyle
    points: list[tuple[float, float, str] | None]

    @property
    def known(self) -> list[tuple[float, float, str]]:
        return [p for p in self.points if p is not None]


def line_plot(
    series: Sequence[Series], *, labels: Labels, axes: Axes | None = None, size: tuple[int, int] = (560, 330)
) -> str:
    """Draw lines over one pair of axes and return the ``<svg>`` element.

    Lines without a point that can be drawn are left out. Text keeps its size whatever the size of the drawing.

    Examples
    --------
    >>> drawing = line_plot([Series("none", [1, 2], [0.5, 0.4])], labels=Labels("Loss", "epoch", "loss"))
    >>> drawing.startswith("<svg") and drawing.count("<title>") == 2
    True
    """
    axes = axes or Axes()
    styles = plot_styles(one.name for one in series)
    lines = [line for line in (_Line(s, s.look or styles[s.name], s.points()) for s in series) if line.known]
    width, height = size
    names = {line.series.name: shorten(line.series.name, 0.3 * width, SIZE) for line in lines}
    right = width - 20 - max((text_width(n, SIZE) for n in names.values()), default=0)
    top, bottom = 46.0, height - 44.0
    upward = value_axis(
        (y for line in lines for _, y, _ in line.known),
        pixels=(bottom, top),
        percent=axes.percent_y,
        log=axes.log_y and all(y > 0 for line in lines for _, y, _ in line.known),
    )
    left = 8 + max((text_width(label, SIZE) for _, label in upward.ticks), default=0)
    xs = [x for line in lines for x, _, _ in line.known]
    # Where a lead-in begins at nought a logarithmic axis has no place for it: it begins at the edge.
    xs += [x for line in lines if line.series.lead for x in line.series.lead if x > 0 or not axes.log_x]
    across = run_axis(xs, pixels=(left + 8, right - 4), whole=axes.whole_x, log=axes.log_x)
    parts = [
        *headings(labels, size=size, left=left, right=right),
        *grid(across, upward, left=left, right=right),
    ]
    if not lines:
        parts.append(text_at((left + right) / 2, (top + bottom) / 2, "no values to draw", soft=True, anchor="middle"))
    parts += [part for line in lines for part in _draw(line, across, upward)]
    parts += _names(lines, names, across, upward, right=right)
    # Tooltips last, so that no line covers them.
    parts += [
        f'<circle cx="{across.place(x):.1f}" cy="{upward.place(y):.1f}" r="6" fill="transparent">'
        f"<title>{escape(note)}</title></circle>"
        for line in lines
        for x, y, note in line.known
    ]
    return svg(parts, size=size, says=_describe(labels, lines))


def swatch(look: PlotStyle) -> str:
    """Return a strategy's line and mark as a small drawing for a table."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="swatch" viewBox="0 0 34 12" width="34" height="12"'
        f' aria-hidden="true">{stroke("M1 6H33", look, width=2)}{marks([(17, 6)], look)}</svg>'
    )


def _draw(line: _Line, across: Axis, upward: Axis) -> list[str]:
    steps: list[str] = []
    pen = "M"
    for point in line.points:
        if point is None:
            pen = "M"
            continue
        steps.append(f"{pen}{across.place(point[0]):.1f} {upward.place(point[1]):.1f}")
        pen = "L"
    parts = [stroke("".join(steps), line.look, width=2)]
    if line.series.lead:
        start, stop = (across.place(max(x, across.lo)) for x in line.series.lead)
        first = line.known[0]
        y, end = upward.place(first[1]), across.place(first[0])
        # A tick where the copy is done and the first epoch begins.
        path = f"M{start:.1f} {y:.1f}H{stop:.1f}M{stop:.1f} {y - 4:.1f}v8M{stop:.1f} {y:.1f}H{end:.1f}"
        parts.append(stroke(path, line.look, width=0.9, dashed=False))
    spots = [(across.place(x), upward.place(y)) for x, y, _ in line.known]
    parts.append(marks(_sparse(spots), line.look))
    return parts


def _sparse(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out marks that would crowd; the first and the last stay."""
    kept = spots[:1]
    for spot in spots[1:-1]:
        if min(math.dist(spot, kept[-1]), math.dist(spot, spots[-1])) > 24:
            kept.append(spot)
    return kept + spots[1:][-1:]


def _names(lines: list[_Line], names: dict[str, str], across: Axis, upward: Axis, *, right: float) -> list[str]:
    ends = [(across.place(line.known[-1][0]), upward.place(line.known[-1][1])) for line in lines]
    places = keep_apart([y for _, y in ends], gap=_GAP, lo=min(upward.start, upward.stop), hi=upward.start)
    parts: list[str] = []
    for line, (x, y), place in zip(lines, ends, places):
        if x < right - 12:
            parts.append(stroke(f"M{x + 5:.1f} {y:.1f}H{right:.1f}", line.look, width=0.8, dash="1 3"))
        parts.append(stroke(f"M{right:.1f} {y:.1f}L{right + 10:.1f} {place:.1f}", line.look, width=1, dashed=False))
        full = line.series.name
        parts.append(text_at(right + 14, place + 4, names[full], tip=full if names[full] != full else ""))
    return parts


def _describe(labels: Labels, lines: list[_Line]) -> str:
    ends = "; ".join(f"{line.series.name} ends at {show_number(line.known[-1][1])}" for line in lines)
    return f"{labels.title}, against {labels.x}. {ends or 'No values'}."


def stroke(d: str, look: PlotStyle, *, width: float, dash: str | None = None, dashed: bool = True) -> str:
    """Return a line in a look's colour and dash."""
    pattern = dash or (look.dash if dashed else "")
    style = f' stroke-dasharray="{pattern}"' if pattern else ""
    return (
        f'<path class="ps-s{look.slot}" d="{d}" stroke="{look.light}" stroke-width="{width}" fill="none"'
        f' stroke-linejoin="round"{style}/>'
    )


def marks(spots: Iterable[tuple[float, float]], look: PlotStyle) -> str:
    """Return a look's mark at every place, as one element."""
    d = "".join(mark(look, x, y) for x, y in spots)
    return f'<path class="ps-f{look.slot} ps-halo" d="{d}" fill="{look.light}" stroke="#ffffff" stroke-width="0.8"/>'


_WIDTH = 220
_TOP, _BOTTOM, _LABELS = 6.0, 156.0, 46.0


def order_plot(
    name: str,
    picture: OrderPicture,
    *,
    visits: int | None = None,
    rows: int | None = None,
    look: PlotStyle | None = None,
) -> str:
    """Draw one strategy's picture and return the ``<svg>`` element.

    ``visits`` and ``rows`` are where the axes end, so that several pictures share them; else the picture's own last values.

    Examples
    --------
    >>> order_plot("none", OrderPicture((0, 1, 2), ((2, 0), (0, 1)), group=2)).startswith("<svg")
    True
    """
    look = look or plot_styles([name])[name]
    visits = max(1, visits or len(picture.position))
    rows = max(1, rows or max(picture.position, default=0) + 1)
    upward = _axis(rows, (_BOTTOM, _TOP))
    left = 6 + max(text_width(label, SIZE) for _, label in upward.ticks)
    across = _axis(visits, (left, _WIDTH - 8.0))
    strip = _BOTTOM + 24.0
    height = strip + _LABELS + 6 if picture.labels else _BOTTOM + 20
    dots = "".join(f"M{across.place(i):.1f} {upward.place(row):.1f}h0" for i, row in enumerate(picture.position))
    rules = "".join(f"M{left:.1f} {upward.place(v):.1f}H{across.stop}" for v, _ in upward.ticks)
    parts = [
        f'<path class="ps-rule" d="{rules}" stroke="{RULE}" fill="none"/>',
        f'<path class="ps-axis" d="M{left:.1f} {_TOP}V{_BOTTOM}H{across.stop}" stroke="{AXIS}" fill="none"/>',
        # Dots as strokes of no length: one element for all of them.
        f'<path class="ps-s{look.slot}" d="{dots}" stroke="{look.light}" stroke-width="2" stroke-linecap="round"'
        ' fill="none"/>' if dots else "",
        *(_tick(left - 4, upward.place(v) + 4, label, "end") for v, label in upward.ticks),
        *(
            _tick(across.place(v), _BOTTOM + 14, label, "end" if across.place(v) > across.stop - 8 else "middle")
            for v, label in across.ticks
        ),
    ]  # fmt: skip
    if picture.labels:
        parts += _label_strip(picture, across, visits, strip)
    says = f"Order of {name}: row number against visiting position" + (", with label counts" if picture.labels else "")
    return svg(parts, size=(_WIDTH, round(height)), says=says)


def _label_strip(picture: OrderPicture, across: Axis, visits: int, top: float) -> list[str]:
    most = max((low + high for low, high in picture.labels), default=0) or 1
    base = top + _LABELS
    areas = []
    for which in (1, 0):
        # The upper kind first, at the height of both together; the lower is drawn over it.
        d = f"M{across.place(0):.1f} {base:.1f}"
        for i, (low, high) in enumerate(picture.labels):
            y = base - _LABELS * (low + which * high) / most
            d += f"V{y:.1f}H{across.place(min((i + 1) * picture.group, visits)):.1f}"
        areas.append(f'<path class="ps-l{which}" d="{d}V{base:.1f}z" fill="{LABEL_LIGHT[which]}"/>')
    areas.append(_tick(across.start - 4, base, "0", "end"))
    areas.append(_tick(across.start - 4, top + 8, show_tick(most, 1.0 if most == round(most) else 0.1), "end"))
    return areas


def _axis(end: int, pixels: tuple[float, float]) -> Axis:
    if end < 2:
        return Axis(0, end, *pixels, ((0.0, "0"),))
    ticks, step = nice_ticks(0, end, count=2, whole=True)
    return Axis(0, end, *pixels, tuple((t, show_tick(t, step)) for t in ticks))


def _tick(x: float, y: float, label: str, anchor: str) -> str:
    return text_at(x, y, label, soft=True, anchor=anchor)
