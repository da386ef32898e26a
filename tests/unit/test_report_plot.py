"""The report's drawings: ticks, scales, labels kept apart, and SVG that is well formed whatever the numbers."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.picture import svg_file
from penstock.report import Axes, Labels, OrderPicture, Series, line_plot, order_plot
from penstock.report.drawing import keep_apart, log_ticks, nice_ticks, run_axis, value_axis
from penstock.report.text import escape, shorten, show_count, show_tick, text_width

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.one_of(st.none(), st.floats(), st.floats(-10, 10), st.sampled_from([0.0, 0.5, 1.0, 1e-300, 1e300]))


def draw(*series: Series, axes: Axes | None = None, size: tuple[int, int] = (560, 330)) -> ET.Element:
    return ET.fromstring(line_plot(series, labels=Labels("Loss", "epoch", "loss"), axes=axes, size=size))


def words(drawing: ET.Element) -> list[str]:
    return ["".join(t.itertext()) for t in drawing.iter(f"{SVG}text")]


def lies_inside(drawing: ET.Element) -> None:
    """Check that every text and every point lies within the view box."""
    width, height = (float(v) for v in drawing.attrib["viewBox"].split()[2:])
    for text in drawing.iter(f"{SVG}text"):
        long = text_width(text.text or "", float(text.get("font-size", 12)))
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        start = x - {"end": long, "middle": long / 2}.get(text.get("text-anchor", ""), 0.0)
        assert start >= -3, text.text
        assert start + long <= width + 3, text.text
        assert 0 <= y <= height
    for circle in drawing.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


def names_apart(drawing: ET.Element, names: list[str]) -> None:
    ys = sorted(float(t.attrib["y"]) for t in drawing.iter(f"{SVG}text") if "".join(t.itertext()) in names)
    assert len(ys) == len(names)
    assert all(b - a >= 12 for a, b in itertools.pairwise(ys))


def test_plot_has_axes_ticks_names_and_tooltips() -> None:
    drawing = draw(Series("none", [1, 2, 3], [0.7, 0.6, 0.5]), Series("once", [1, 2, 3], [0.7, 0.3, 0.2]))
    assert {"Loss", "loss", "epoch", "none", "once", "0.3", "0.6"} <= set(words(drawing))
    assert "none ends at 0.5" in drawing.attrib["aria-label"]
    assert drawing.attrib["role"] == "img"
    tips = [t.text for t in drawing.iter(f"{SVG}title")]
    assert len(tips) == 6
    assert tips[0] == "none: 1, 0.7"


def test_missing_values_break_the_line() -> None:
    drawing = draw(Series("none", [1, 2, 3, 4], [0.5, math.nan, 0.4, 0.3]))
    line = next(p for p in drawing.iter(f"{SVG}path") if p.get("stroke-width") == "2")
    assert line.attrib["d"].count("M") == 2
    assert len(list(drawing.iter(f"{SVG}circle"))) == 3


@pytest.mark.parametrize("size", [(560, 330), (360, 290)])
@pytest.mark.parametrize("count", [1, 2, 8, 12])
def test_names_at_line_ends_never_overlap(count: int, size: tuple[int, int]) -> None:
    names = [f"strategy {i}" for i in range(count)]
    drawing = draw(*(Series(name, [1, 2, 3], [0.5, 0.9, 0.9]) for name in names), size=size)
    names_apart(drawing, names)
    lies_inside(drawing)


def test_long_name_is_cut_and_told_in_full_by_its_tooltip() -> None:
    name = "a strategy with a name that goes on " * 5
    drawing = draw(Series(name, [1, 2], [0.5, 0.6]), size=(360, 290))
    lies_inside(drawing)
    label = next(t for t in drawing.iter(f"{SVG}text") if t.find(f"{SVG}title") is not None)
    assert label.find(f"{SVG}title").text == name  # type: ignore[union-attr]  # found just above
    assert "".join(label.itertext()).endswith("…")


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, -3.0, 1e12, 1e-12])
def test_flat_lines_and_single_points_have_ticks(value: float) -> None:
    for x in ([1.0], [1.0, 2.0, 3.0]):
        drawing = draw(Series("none", x, [value] * len(x)), axes=Axes(whole_x=True))
        lies_inside(drawing)
        assert len(words(drawing)) >= 6


def test_nothing_to_draw_says_so() -> None:
    assert "no values to draw" in words(draw())
    assert "no values to draw" in words(draw(Series("none", [1], [math.nan])))


def test_lead_in_is_a_thin_line_from_the_start_to_the_first_point() -> None:
    drawing = draw(Series("once", [12, 14], [0.5, 0.9], lead=(0, 10)))
    thin = [p for p in drawing.iter(f"{SVG}path") if p.get("stroke-width") == "0.9"]
    assert len(thin) == 1
    places = [float(v) for v in re.findall(r"[MH](\d+\.\d)", thin[0].attrib["d"])]
    assert places == sorted(places)
    assert places[-1] == pytest.approx(float(next(drawing.iter(f"{SVG}circle")).attrib["cx"]), abs=0.2)
    lies_inside(draw(Series("once", [12, 14], [0.5, 0.9], lead=(0, 10)), axes=Axes(log_x=True)))


def test_log_axes_space_decades_evenly() -> None:
    axis = value_axis([0.01, 100.0], pixels=(300, 0), log=True)
    assert axis.place(0.1) - axis.place(1.0) == pytest.approx(axis.place(1.0) - axis.place(10.0))
    assert not value_axis([0.0, 100.0], pixels=(300, 0), log=True).log


def test_many_points_are_thinned_but_the_last_is_kept() -> None:
    drawing = draw(Series("none", list(range(5000)), [i / 5000 for i in range(5000)]))
    tips = [t.text or "" for t in drawing.iter(f"{SVG}title")]
    assert len(tips) <= 401
    assert tips[-1] == "none: 4999, 0.9998"


@given(st.lists(st.lists(numbers, min_size=1, max_size=6), max_size=5), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_numbers_give_a_well_formed_drawing(
    lines: list[list[float | None]], percent: bool, log: bool, whole: bool
) -> None:
    series = [Series(f"s{i}", [float(k) for k in range(len(ys))], ys) for i, ys in enumerate(lines)]
    swapped = [Series(f"s{i}", ys, [float(k) for k in range(len(ys))]) for i, ys in enumerate(lines)]
    for chosen in (series, swapped):
        drawing = draw(*chosen, axes=Axes(whole_x=whole, log_x=log, percent_y=percent, log_y=log))
        assert not re.search(r"nan|inf", " ".join(p.attrib["d"] for p in drawing.iter(f"{SVG}path")))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_few_round_and_within(lo: float, span: float, count: int) -> None:
    ticks, step = nice_ticks(lo, lo + span, count=count)
    assert len(ticks) <= 2 * count + 1
    assert all(lo - 1e-6 * step - 1e-9 <= t <= lo + span + 1e-6 * step + 1e-9 for t in ticks)
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


@given(st.lists(st.floats(0, 200), max_size=12), st.floats(1, 15))
def test_spread_keeps_the_gap_the_order_and_the_bounds(wanted: list[float], gap: float) -> None:
    placed = keep_apart(wanted, gap=gap, lo=0, hi=200)
    assert all(-1e-6 <= p <= 200 + 1e-6 for p in placed)
    pairs = itertools.pairwise(sorted(zip(placed, wanted)))
    for (a, wanted_a), (b, wanted_b) in pairs:
        assert b - a >= gap - 1e-6
        assert wanted_a <= wanted_b


def test_labels_of_the_level_axis_never_touch() -> None:
    for end in (3.0, 20.0, 999.0, 123456.0, 0.004):
        axis = run_axis([0.0, end], pixels=(40, 240))
        assert len(axis.ticks) >= 2
        spots = [(axis.place(v), text_width(label, 12)) for v, label in axis.ticks]
        assert all(b - a > (wa + wb) / 2 for (a, wa), (b, wb) in itertools.pairwise(spots))


def test_whole_axis_names_the_first_epoch_and_no_halves() -> None:
    assert [label for _, label in run_axis([1, 20], pixels=(40, 400), whole=True).ticks] == ["1", "5", "10", "15", "20"]
    assert [label for _, label in run_axis([1, 3], pixels=(40, 400), whole=True).ticks] == ["1", "2", "3"]
    assert [label for _, label in run_axis([1], pixels=(40, 400), whole=True).ticks] == ["1"]


def test_log_ticks_are_one_two_five_or_decades() -> None:
    assert log_ticks(1, 60) == [1, 2, 5, 10, 20, 50]
    assert log_ticks(1e-6, 1e6) == pytest.approx([1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6])


def test_words() -> None:
    assert escape("<a>'\"&\x07") == "&lt;a&gt;&#x27;&quot;&amp;\ufffd"
    assert shorten("short", 100, 12) == "short"
    assert show_tick(-2, 1) == "\u22122"
    assert show_tick(1_500_000, 500_000) == "1.5M"
    assert show_tick(0, 0.2) == "0.0"
    assert show_count(None) == "–"


def test_svg_file_stands_alone_on_white() -> None:
    series = [Series("none", [1, 2], [0.5, 0.4]), Series("corgipile", [1, 2], [0.5, 0.2])]
    text = svg_file(series, labels=Labels("Loss", "seconds", "loss"), size=(720, 400))
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
    root = ET.fromstring(text.encode())
    assert root.attrib["viewBox"] == "-16 -16 720 400"
    assert next(iter(root)).attrib["fill"] == "#ffffff"
    assert "var(" not in text


def test_order_picture_has_a_dot_per_row_and_both_labels() -> None:
    picture = OrderPicture(tuple(range(0, 100, 2)), ((20, 0), (0, 10)), group=20)
    drawing = ET.fromstring(order_plot("<none>", picture))
    paths = {p.get("class"): p.attrib["d"] for p in drawing.iter(f"{SVG}path")}
    assert next(d for name, d in paths.items() if name and name.startswith("ps-s")).count("h0") == 50
    assert {"ps-l0", "ps-l1"} <= set(paths)
    assert "Order of <none>" in drawing.attrib["aria-label"]


def test_order_pictures_share_axes() -> None:
    small = ET.fromstring(order_plot("none", OrderPicture((0, 1)), visits=1000, rows=1000))
    large = ET.fromstring(order_plot("none", OrderPicture(tuple(range(1000))), visits=1000, rows=1000))
    assert words(small) == words(large) == ["0", "500", "1,000", "0", "500", "1,000"]


@pytest.mark.parametrize("picture", [OrderPicture(()), OrderPicture((0,)), OrderPicture((5,), ((0, 0),))])
def test_tiny_order_pictures(picture: OrderPicture) -> None:
    ET.fromstring(order_plot("none", picture))
