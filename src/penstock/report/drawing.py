"""What all drawings are made of: the SVG element with its description, words, rules and ticks, and their colours.

A drawing carries light colours as attributes, so that it stands alone; a page restyles it by its ``ps-`` classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.report.scale import Axis
from penstock.report.style import PlotStyle
from penstock.report.text import escape, shorten

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
