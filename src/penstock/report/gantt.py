"""What workers did when, a line for each: spans where there are few, and the share of busy time where there are many.

A run that was taken up again goes on behind the one before it, with a rule between. More workers than can be told apart
share lines. Time is that of the clock, from the start of the run: whoever has no bar waits, or is starting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.measure_lines import show_items
from penstock.report.drawing import AXIS, SIZE, Labels, box, foot, level_axis, svg, text_at
from penstock.report.style import PlotStyle, style_of
from penstock.report.text import shorten, show_time, text_width

_MOST_SPANS = 1_200
"""Drawn one by one up to so many; each takes some 150 bytes, twice."""
_MOST_LINES = 48
_POINTS = 16_000
"""Of the shares of busy time, over all lines and kinds of work."""
_TOP, _STEP, _BAR = 40.0, 22.0, 16.0
# What is done most has the strongest colour; a run has the kinds of one pattern of work.
_SLOTS = {"solve": 0, "train": 0, "boost": 0, "sum": 4, "measure": 3, "look": 7}
_OTHER = 5


@dataclass(frozen=True)
class Spans:
    """What workers did: a value for each span of work, in seconds since the start of its run.

    Examples
    --------
    >>> spans = Spans.of({"run": [0, 0], "worker": [0, 1], "begin": [0.0, 1.0], "end": [4.0, 3.0], "group": [7, -1],
    ...                      "groups": [1, 9], "what": ["solve", "solve"]})
    >>> spans.seconds, spans.busy().tolist()
    (4.0, [1.0, 0.5])
    """

    run: NDArray[np.int64]
    worker: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    group: NDArray[np.int64]
    groups: NDArray[np.int64]
    what: NDArray[Any]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """Take the columns of a table."""
        arrays: dict[str, Any] = {
            name: np.asarray(columns[name], np.int64) for name in ("run", "worker", "group", "groups")
        }
        arrays |= {name: np.asarray(columns[name], np.float64) for name in ("begin", "end")}
        return cls(**arrays, what=np.asarray(columns["what"], object))

    def __len__(self) -> int:
        return len(self.run)

    @cached_property
    def starts(self) -> NDArray[np.float64]:
        """When each run began, one behind the other, and when the last one ended."""
        lengths = [
            float(self.end[self.run == run].max(initial=0.0)) for run in range(int(self.run.max(initial=-1)) + 1)
        ]
        return np.concatenate([[0.0], np.cumsum(lengths)])

    @property
    def seconds(self) -> float:
        """How long all runs took."""
        return float(self.starts[-1])

    @cached_property
    def workers(self) -> NDArray[np.int64]:
        """The workers that did anything."""
        return np.unique(self.worker)

    @property
    def kinds(self) -> list[str]:
        """The kinds of work, what took longest first."""
        took = {
            kind: float((self.end - self.begin)[self.what == kind].sum()) for kind in sorted(set(self.what.tolist()))
        }
        return sorted(took, key=lambda kind: -took[kind])

    def busy(self) -> NDArray[np.float64]:
        """Return the share of the time that each worker worked, of the runs that it was there for."""
        shares = []
        for worker in self.workers:
            mine = self.worker == worker
            there = np.diff(self.starts)[np.unique(self.run[mine])].sum()
            shares.append(min(1.0, float((self.end - self.begin)[mine].sum() / there)) if there > 0 else 0.0)
        return np.array(shares)


def work_style(kind: str) -> PlotStyle:
    """Return how a kind of work is drawn."""
    return style_of(_SLOTS.get(kind, _OTHER))


def detailed(spans: Spans) -> bool:
    """Say whether each span is drawn, with its tip; of more of them, shares of busy time are."""
    return len(spans) <= _MOST_SPANS and len(spans.workers) <= _MOST_LINES


def gantt(
    spans: Spans, *, labels: Labels, name: Callable[[int], str] = str, size: tuple[int, int] = (1090, 330)
) -> str:
    """Draw what each worker did when; as high as their number needs. ``name`` gives the name of a group from its number."""
    lanes = np.array_split(spans.workers, min(len(spans.workers), _MOST_LINES))
    titles = [f"worker {lane[0]}" if len(lane) == 1 else f"workers {lane[0]}–{lane[-1]}" for lane in lanes]
    share = dict(zip(spans.workers.tolist(), spans.busy().tolist()))
    shares = [f"{100 * np.mean([share[int(w)] for w in lane]):.0f} %" for lane in lanes]
    bottom = _TOP + _STEP * len(lanes) + 4
    size = (size[0], round(bottom + 44))
    left = 10 + max(text_width(title, SIZE) for title in titles)
    right = size[0] - 14 - max(text_width(each, SIZE) for each in shares)
    across = level_axis(0.0, spans.seconds or 1.0, pixels=(left, right))
    parts = [
        text_at(0, 14, shorten(labels.title, size[0], 14), bold=True),
        text_at(size[0], 32, "busy", soft=True, anchor="end"),
        text_at((left + right) / 2, size[1] - 6, shorten(labels.x, right - left, SIZE), soft=True, anchor="middle"),
        *foot(across, bottom, left=left, right=right),
    ]
    breaks = "".join(f"M{across.place(at):.1f} {_TOP - 4:.1f}V{bottom:.1f}" for at in spans.starts[1:-1])
    if breaks:
        parts.append(f'<path class="ps-axis" d="{breaks}" stroke="{AXIS}" stroke-dasharray="3 3" fill="none"/>')
    for place, (title, busy_share) in enumerate(zip(titles, shares)):
        y = _TOP + _STEP * place
        parts.append(text_at(left - 8, y + 12, title, soft=True, anchor="end"))
        parts.append(f'<path class="ps-rule" d="M{left:.1f} {y + _BAR:.1f}H{right:.1f}" stroke="#e4e7eb" fill="none"/>')
        parts.append(text_at(size[0], y + 12, busy_share, anchor="end"))
    if detailed(spans):
        parts += _spans(spans, across.place, name)
    else:
        parts += _shares(spans, lanes, (left, right))
    return svg(parts, size=size, says=labels.says or labels.title)


def _spans(spans: Spans, place: Callable[[float], float], name: Callable[[int], str]) -> list[str]:
    """Draw every span with what it was."""
    parts = []
    row = {int(worker): at for at, worker in enumerate(spans.workers)}
    for at in range(len(spans)):
        run, kind, worker = int(spans.run[at]), str(spans.what[at]), int(spans.worker[at])
        begin, end = float(spans.begin[at]), float(spans.end[at])
        a, b = (place(float(spans.starts[run]) + moment) for moment in (begin, end))
        group, groups = int(spans.group[at]), int(spans.groups[at])
        whose = name(group) if group >= 0 else show_items(groups, "group")
        tip = f"worker {worker}: {kind} {whose}, {show_time(end - begin)} from {show_time(begin)}"
        gap = 0.5 if b - a > 3 else 0.0  # so that neighbours are told apart
        parts.append(box(a, _TOP + _STEP * row[worker], b - a - gap, _BAR, work_style(kind), tip))
    return parts


def _shares(spans: Spans, lanes: Sequence[NDArray[np.int64]], pixels: tuple[float, float]) -> list[str]:
    """Draw, for every line and slice of time, how much of it was worked, the kinds of work one upon the other."""
    kinds, (left, right) = spans.kinds, pixels
    slices = int(np.clip(_POINTS // (len(lanes) * len(kinds)), 40, right - left))
    row = np.zeros(int(spans.worker.max()) + 1, np.int64)
    for at, lane in enumerate(lanes):
        row[lane] = at
    width = (spans.seconds or 1.0) / slices
    begin, end = ((spans.starts[spans.run] + moment) / width for moment in (spans.begin, spans.end))
    heads = np.array([len(lane) for lane in lanes], np.float64)[:, None]
    height, heights = np.zeros((len(lanes), slices)), []
    for kind in kinds:
        here = spans.what == kind
        height = height + _filled(row[spans.worker[here]], begin[here], end[here], (len(lanes), slices)) / heads
        heights.append(np.minimum(height, 1.0))
    parts = []
    # The highest first, down to the foot of its line: the others are drawn over it.
    for kind, height in reversed(list(zip(kinds, heights))):
        look = work_style(kind)
        for place, line in enumerate(height):
            d = _area(line, base=_TOP + _STEP * place + _BAR, left=left, step=(right - left) / slices)
            if d:
                parts.append(f'<path class="ps-f{look.slot}" d="{d}" fill="{look.light}"/>')
    return parts


def _filled(
    row: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Return how much of each slice of each line is covered by spans, whose ends are counted in slices."""
    rows, slices = shape
    # The covered length up to any point is a sum of ramps: its differences at whole points are what slices hold.
    total = np.zeros((rows, slices + 1))
    for ends, sign in ((begin, 1.0), (end, -1.0)):
        ends = np.clip(ends, 0, slices)
        whole = np.minimum(ends.astype(np.int64), slices - 1)
        rest = whole + 1 - ends
        np.add.at(total, (row, whole), sign * rest)
        np.add.at(total, (row, whole + 1), sign * (1 - rest))
    filled: NDArray[np.float64] = np.cumsum(total, axis=1)[:, :slices]
    return np.maximum(filled, 0.0)


def _area(shares: NDArray[np.float64], *, base: float, left: float, step: float) -> str:
    """Return the path of the area under a stepped line, which needs a corner only where it changes."""
    heights = np.round(_BAR * shares, 1)
    change = np.flatnonzero(np.diff(heights, prepend=-1.0))
    ends = [*(left + step * change[1:]).tolist(), left + step * len(heights)]
    d = "".join(f"V{base - heights[at]:g}H{end:.1f}" for at, end in zip(change, ends))
    return f"M{left:.1f} {base:g}{d}V{base:g}z" if heights.any() else ""
