"""How the report plot_styles: a colour-blind-safe palette (Okabe and Ito's), marks and dashes per strategy, and the CSS.

Drawings carry light colours as attributes, so that they stand alone; the page's CSS overrides them by class in the
dark. Colour is never the only sign: each strategy has its own mark and dash too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """How one strategy is drawn; ``slot`` numbers its CSS classes."""

    slot: int
    light: str
    dark: str
    dash: str
    mark: str


# Okabe-Ito's yellow cannot be read on white: a darker one stands in for it there, the true one in the dark.
_LOOKS = (
    PlotStyle(0, "#0072b2", "#5fb0f0", "", "circle"),
    PlotStyle(1, "#d55e00", "#ff8a4c", "", "square"),
    PlotStyle(2, "#2b2b2b", "#f2f2f2", "7 3", "diamond"),
    PlotStyle(3, "#e69f00", "#f5b83d", "", "up"),
    PlotStyle(4, "#009e73", "#2fd0a0", "3 2", "down"),
    PlotStyle(5, "#cc79a7", "#eda3cb", "", "star"),
    PlotStyle(6, "#8c7a00", "#f0e442", "10 2.5 2 2.5", "plus"),
    PlotStyle(7, "#56b4e9", "#a5dcff", "4 2", "right"),
)
_HOMES = {
    "corgipile": 0,
    "none": 1,
    "once": 2,
    "sliding-window": 3,
    "epoch": 4,
    "mrs": 5,
    "block-only": 6,
    "global": 7,
}
_SHAPES = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "diamond": [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
    "up": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
    "down": [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
    "right": [(1.2, 0), (-0.8, 1.1), (-0.8, -1.1)],
    "plus": [
        (-0.4, -1.3), (0.4, -1.3), (0.4, -0.4), (1.3, -0.4), (1.3, 0.4), (0.4, 0.4),
        (0.4, 1.3), (-0.4, 1.3), (-0.4, 0.4), (-1.3, 0.4), (-1.3, -0.4), (-0.4, -0.4),
    ],
    "star": [
        (r * math.sin(k * math.pi / 5), -r * math.cos(k * math.pi / 5)) for k in range(10) for r in [(1.6, 0.75)[k % 2]]
    ],
}  # fmt: skip
LABEL_LIGHT = ("#0072b2", "#f0c05a")
LABEL_DARK = ("#3f8fcf", "#d9a441")


def plot_styles(names: Iterable[str]) -> dict[str, PlotStyle]:
    """Give each strategy its look: a known one always the same, any other the next that is free.

    Examples
    --------
    >>> plot_styles(["mine", "corgipile"])["corgipile"].mark
    'circle'
    """
    wanted = list(dict.fromkeys(names))
    taken = {_HOMES[name] for name in wanted if name in _HOMES}
    free = [slot for slot in range(len(_LOOKS)) if slot not in taken] or list(range(len(_LOOKS)))
    others = [name for name in wanted if name not in _HOMES]
    given = {name: _LOOKS[free[i % len(free)]] for i, name in enumerate(others)}
    return {name: given.get(name) or _LOOKS[_HOMES[name]] for name in wanted}


def style_of(slot: int) -> PlotStyle:
    """Return one of the plot_styles by its number."""
    return _LOOKS[slot % len(_LOOKS)]


def mark(look: PlotStyle, x: float, y: float, size: float = 3.2) -> str:
    """Return the path of a strategy's mark around a point."""
    if look.mark == "circle":
        return f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z"
    corners = [f"{x + size * dx:.1f} {y + size * dy:.1f}" for dx, dy in _SHAPES[look.mark]]
    return "M" + "L".join(corners) + "z"


def _label_keys(colours: tuple[str, str]) -> str:
    return "".join(f".ps-l{i}{{fill:{colour}}}.k{i}{{background:{colour}}}" for i, colour in enumerate(colours))


def _dark_marks() -> str:
    rules = [f".ps-s{k.slot}{{stroke:{k.dark}}}.ps-f{k.slot}{{fill:{k.dark}}}" for k in _LOOKS]
    return "".join(rules) + _label_keys(LABEL_DARK)


_BASE = """
:root{--paper:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#59636e;--rule:#d5dae0;--best:#e3f2e9;--bestink:#0b5f3a;
--bad:#b3261e;--note:#eef4fb;--noterule:#0072b2;color-scheme:light}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1160px;margin:0 auto;padding:32px 24px 56px}
.kind{margin:0;color:var(--soft);font-size:14px}
h1{margin:2px 0 18px;font-size:28px;line-height:1.2;overflow-wrap:anywhere}
h2{margin:44px 0 6px;font-size:20px;line-height:1.3}
p{margin:0 0 12px;max-width:840px;overflow-wrap:anywhere}
.lead{font-size:17px}
.quiet,figcaption{color:var(--soft);font-size:14px}
.facts{display:flex;flex-wrap:wrap;gap:12px 40px;margin:0 0 20px;padding:14px 0;
border-top:1px solid var(--rule);border-bottom:1px solid var(--rule)}
.facts div{min-width:0}
.facts .wide{flex-basis:100%}
.facts dt{color:var(--soft);font-size:13px}
.facts dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.note{background:var(--note);border-left:3px solid var(--noterule);padding:10px 14px;border-radius:0 4px 4px 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:15px}
th,td{padding:9px 12px;text-align:right;border-bottom:1px solid var(--rule);vertical-align:baseline}
thead th{color:var(--soft);font-weight:600;font-size:13px;line-height:1.3;vertical-align:bottom}
td{white-space:nowrap}tbody th{font-weight:600}
figcaption b{display:block;color:var(--ink)}
th:first-child{text-align:left;padding-left:0;overflow-wrap:anywhere}
.cards th:first-child{width:22%}
.best{background:var(--best);color:var(--bestink);font-weight:700}
.failed td{white-space:normal;text-align:left;color:var(--bad);overflow-wrap:anywhere}
.swatch{width:34px;height:12px;margin-right:8px;vertical-align:-1px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,470px),1fr));gap:28px 32px;margin-top:16px}
.few{grid-template-columns:repeat(auto-fill,minmax(min(100%,470px),1fr))}
.orders{display:grid;grid-template-columns:repeat(auto-fill,minmax(205px,1fr));gap:24px 22px;margin-top:16px}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto;overflow:visible}
.desk svg{max-width:680px}.phone{display:none}
.broad{margin-top:16px}.broad .desk svg{max-width:none}
.keys{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0;font-size:14px;color:var(--soft)}
.keys .box{display:inline-block;width:12px;height:12px;margin-right:6px;vertical-align:-1px}
.keys i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
details{margin-top:8px;border-top:1px solid var(--rule)}
summary{cursor:pointer;padding:8px 0}
.scroll{overflow-x:auto}
.scroll .told{text-align:left;padding-left:22px}
.plots+.scroll{margin-top:22px}
.scroll table{font-size:14px}.scroll th,.scroll td{padding:4px 10px;white-space:nowrap}
footer{margin-top:48px;color:var(--soft);font-size:13px}
@media screen and (prefers-color-scheme:dark){
:root{--paper:#14171b;--panel:#1c2026;--ink:#e8eaed;--soft:#a3adb8;--rule:#363d46;--best:#143626;--bestink:#8fe3b7;
--bad:#ff9a91;--note:#17232f;--noterule:#5fb0f0;color-scheme:dark}
.ps-ink{fill:var(--ink)}.ps-soft{fill:var(--soft)}.ps-rule{stroke:#2c333b}.ps-axis{stroke:#6c7681}
.ps-halo{stroke:var(--paper)}}
@media screen and (max-width:1000px){.cards th,.cards td{padding:8px 6px}.swatch{margin-right:5px}}
@media screen and (max-width:760px){
main{padding:20px 16px 40px}h1{font-size:23px}
.orders{grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:20px 14px}
.desk{display:none}.phone{display:block}
.cards,.cards tbody,.cards tr,.cards th,.cards td{display:block}
.cards thead{display:none}
.cards tr{border-bottom:1px solid var(--rule);padding:10px 0}
.cards th:first-child,.cards td{border:0;padding:3px 0;width:auto}
.cards td{display:flex;justify-content:space-between;gap:16px;text-align:right}
.cards td[data-name]::before{content:attr(data-name);color:var(--soft);font-weight:400;text-align:left}
.cards .best{padding:3px 6px;margin:0 -6px;border-radius:3px}
.cards .failed td{display:block;text-align:left}}
@media print{
body{font-size:11pt}main{max-width:none;padding:0}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
figure,tr,.note{break-inside:avoid}h2{break-after:avoid}
table{font-size:9.5pt}thead th{font-size:8.5pt}th,td{padding:5px 7px}h2{margin-top:26px}
.orders{grid-template-columns:repeat(4,1fr)}.plots{gap:16px 20px;grid-template-columns:repeat(2,minmax(0,1fr))}
.desk{display:none}.phone{display:block}.quiet,figcaption{font-size:9pt}
.screen{display:none}}
"""
CSS = f"{_BASE}{_label_keys(LABEL_LIGHT)}\n@media screen and (prefers-color-scheme:dark){{{_dark_marks()}}}\n"
