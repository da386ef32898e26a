"""The order in which a strategy visits rows, as a small picture.

Above, a dot for each row visited: across, when; upward, where the row is stored. A diagonal is the stored order, an
even cloud a full shuffle. Below, the labels among each few rows visited, stacked. After the CorgiPile paper's
section 3, figure 3.
"""

from __future__ import annotations

from penstock.report.comparison_data import OrderPicture
from penstock.report.drawing import AXIS, RULE, SIZE, svg, text_at
from penstock.report.scale import Axis, nice_ticks
from penstock.report.style import LABEL_LIGHT, PlotStyle, plot_styles
from penstock.report.text import show_tick, text_width

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
