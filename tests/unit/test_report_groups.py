"""The page of a search over groups: what it says, that it is safe and small, and that its plots count right."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import WriteError
from penstock.report import write_report
from penstock.report.distributions import Bins, bars, histogram, scatter_plot
from penstock.report.drawing import Labels
from penstock.report.gantt import Spans, detailed, gantt
from penstock.report.group_data import GroupPage
from penstock.report.group_page import group_findings, render_groups
from penstock.report.style import style_of
from penstock.report.text import show_part, text_width

SVG = "{http://www.w3.org/2000/svg}"
LABELS = Labels("title", "across", "upward")
HOSTILE = "<script>alert('x')</script>\"&\x00"
GRID = ({"l2": 1.0}, {"l2": 0.1}, {"l2": 0.01})


def forest(
    groups: int = 12, configs: tuple[dict[str, Any], ...] = GRID, *, names: list[str] | None = None, **more: Any
) -> GroupPage:
    """Make results of groups of 100, 200, … rows, of which the last has the best model; config 1 is the best of all."""
    count, called = len(configs), names or [f"g{n}" for n in range(groups)]
    group, config = np.repeat(np.arange(groups), count), np.tile(np.arange(count), groups)
    rows = 100 * (group + 1)
    quality = group / max(1, groups - 1)
    held_out_loss = 1.0 - 0.5 * quality + 0.1 * np.abs(config - np.where(group % 3 == 0, 0, 1))
    chosen = np.arange(groups) * count + np.where(np.arange(groups) % 3 == 0, 0, min(1, count - 1))
    given: dict[str, Any] = {
        "title": "models",
        "by": ("country", "device"),
        "label": "clicked",
        "model": "logistic",
        "settings": {"solver": "lbfgs", "validation": 0.1},
        "configs": configs,
        "metric": "accuracy",
        "finished": True,
        "group": group,
        "text": [called[n] for n in group],
        "rows": rows,
        "held_out_rows": rows // 10,
        "config": config,
        "loss": held_out_loss - 0.05,
        "held_out_loss": held_out_loss,
        "score": 0.5 + 0.4 * quality - 0.01 * (config == 2),
        "seconds": np.full(len(group), 0.25),
        "epochs": np.full(len(group), 9),
        "planned": np.full(len(configs), 9),
        "status": np.full(len(group), "done", object),
        "reason": np.full(len(group), "", object),
        "chosen": chosen,
    }
    return GroupPage(**{**given, **more})


def failed(page: GroupPage, groups: set[int], reason: str = "only one class among its rows") -> GroupPage:
    """Let groups fail with all their configs."""
    bad = np.isin(page.group, list(groups))
    gone: dict[str, Any] = {n: np.where(bad, np.nan, getattr(page, n)) for n in ("loss", "held_out_loss", "score")}
    return replace(
        page,
        status=np.where(bad, "failed", page.status),
        reason=np.where(bad, reason, page.reason),
        chosen=page.chosen[~bad[page.chosen]],
        **gone,
    )


def spans(*each: tuple[int, int, float, float], group: int = 0, what: str = "solve") -> Spans:
    """Make spans from run, worker, begin and end."""
    columns = dict(zip(("run", "worker", "begin", "end"), zip(*each)))
    return Spans.of({**columns, "group": [group] * len(each), "groups": [1] * len(each), "what": [what] * len(each)})


class Balance(HTMLParser):
    """Checks that tags nest, and remembers them and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(page: GroupPage) -> str:
    """Render a page, and check what holds of all of them."""
    text = render_groups(page)
    seen = Balance()
    seen.feed(text)
    seen.close()
    assert seen.open == []
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & seen.tags
    assert not {"src", "href", "xlink:href"} & seen.attributes
    assert not any(name.startswith("on") for name in seen.attributes)
    assert set(re.findall(r"https?://[^\"' <]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", text.lower())
    for drawing in drawings(text):
        assert drawing.get("aria-label") or drawing.get("aria-hidden") == "true"
        lies_inside(drawing)
    return text


def drawings(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def drawing_of(text: str, says: str) -> ET.Element:
    """Return the drawing whose description begins so."""
    return next(each for each in drawings(text) if each.get("aria-label", "").startswith(says))


def lies_inside(drawing: ET.Element) -> None:
    width, height = (float(v) for v in drawing.attrib["viewBox"].split()[2:])
    for text in drawing.iter(f"{SVG}text"):
        words = text[0].tail if len(text) else text.text
        long = text_width(words or "", float(text.get("font-size", 12)))
        start = float(text.attrib["x"]) - {"end": long, "middle": long / 2}.get(text.get("text-anchor", ""), 0.0)
        assert start >= -3, words
        assert start + long <= width + 3, words
        assert 0 <= float(text.attrib["y"]) <= height
    for box in drawing.iter(f"{SVG}rect"):
        assert float(box.get("x", 0)) >= -0.01
        assert float(box.get("x", 0)) + float(box.attrib["width"]) <= width + 0.5
        assert 0 <= float(box.get("y", 0)) <= float(box.get("y", 0)) + float(box.attrib["height"]) <= height


def tips(drawing: ET.Element) -> list[str]:
    return [tip.text or "" for tip in drawing.iter(f"{SVG}title")]


def table(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table beneath a heading."""
    body = text.split(f"<h2>{heading}</h2>")[1].split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", body)]


def test_page_holds_the_facts() -> None:
    text = checked(replace(forest(), data="clicks/", date="2026-11-16"))
    for name, value in {"Groups": "12", "Configs for each": "3", "Rows": "7,800", "Models": "36", "Failed": "none",
                        "Grouped by": "country, device", "Label": "clicked", "Model": "logistic, lbfgs",
                        "Held out": "10\u202f%", "Work": "9.00\u202fs", "Data": "clicks/"}.items():  # fmt: skip
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text


@pytest.mark.parametrize(("pooled", "verdict"), [(0.6, "the groups' own models do better"), (0.9, "as well or better")])
def test_what_one_model_for_all_groups_gives(pooled: float, verdict: str) -> None:
    overall = {"held_out_rows": 1234, "held_out_accuracy": 0.8, "pooled_accuracy": pooled}
    page = forest(overall=overall, pooled=np.full(36, pooled))
    sentence = group_findings(page)[1]
    assert sentence.startswith(
        "Over the 1,234 held-out rows of all groups it is 80.00\u202f%; one model for all groups"
    )
    assert verdict in sentence
    assert "one model for all groups (outline)" in checked(page)


def test_no_model_for_all_groups() -> None:
    page = forest(overall={"held_out_rows": 12, "held_out_accuracy": 0.8}, pooled=np.full(36, np.nan))
    assert group_findings(page)[1] == "Over the 12 held-out rows of all groups it is 80.00\u202f%."
    assert "(outline)" not in checked(page)
    assert "(outline)" not in checked(forest())


def test_worst_and_largest_are_named_in_order() -> None:
    text = checked(forest(30))
    worst, largest = table(text, "The 20 worst groups"), table(text, "The 20 largest groups")
    assert [row[0] for row in worst] == [f"g{n}" for n in range(20)]
    assert [row[0] for row in largest] == [f"g{n}" for n in range(29, 9, -1)]
    assert worst[0] == ["g0", "100", "10", "50.00\u202f%", "1", "0.750\u202fs", "l2=1"]
    cloud = drawing_of(text, "Accuracy by size")
    assert any(tip == "g0: accuracy 50.00\u202f%, 100 rows, l2=1" for tip in tips(cloud))


def test_failures_are_told_with_their_reasons() -> None:
    page = failed(failed(forest(), {2, 5}), {7}, "too few rows: 1 to learn from")
    text = checked(page)
    assert table(text, "What failed") == [
        ["only one class among its rows", "2", "6", "g5"],
        ["too few rows: 1 to learn from", "1", "3", "g7"],
    ]
    assert "3 groups have no model, 2 of them: only one class among its rows." in " ".join(group_findings(page))
    assert "<p>3 groups without any model.</p>" in text
    assert table(text, "The groups, the largest first")[4][-1] == "too few rows: 1 to learn from"


def test_config_that_failed_alone_is_no_lack_of_a_model() -> None:
    status, reason = forest().status.copy(), forest().reason.copy()
    status[5], reason[5] = "failed", "training did not get anywhere"
    text = checked(replace(forest(), status=status, reason=reason))
    assert "Every group has a model all the same." in text


def test_all_groups_failed() -> None:
    text = checked(failed(forest(), set(range(12))))
    assert "None of the 12 groups has a model" in text
    assert "What was chosen" not in text
    assert "How well" not in text
    assert len(table(text, "The groups, the largest first")) == 12


def test_one_group_has_no_spread() -> None:
    text = checked(forest(1, ({},)))
    assert "The accuracy on held-out rows is 50.00\u202f%." in text
    assert "How well groups" not in text
    assert table(text, "The group")[0][-1] == "as given"


@pytest.mark.parametrize(
    ("share", "shown"), [(None, f"{show_part(0.1)}, learned from at the end"), (0.2, show_part(0.2)), (0, "nothing")]
)
def test_the_share_that_was_held_out(share: float | None, shown: str) -> None:
    assert f">{shown}<" in render_groups(forest(settings={"validation": share}))


def test_without_validation_the_training_loss_stands_in() -> None:
    page = forest(score=np.full(36, np.nan), held_out_loss=np.full(36, np.nan), settings={"validation": 0})
    text = checked(page)
    assert "<dd>nothing</dd>" in text
    assert "loss in training" in text
    assert table(text, "The groups, the worst first")[0][0] == "g0"  # the highest loss
    assert "held out" not in " ".join(group_findings(page))


def test_groups_of_one_size_have_no_plot_of_sizes() -> None:
    assert "Accuracy by size" in checked(forest())
    assert "Accuracy by size" not in checked(forest(rows=np.full(36, 60)))


def test_groups_without_held_out_rows_are_not_counted() -> None:
    page = forest()
    score = np.where(page.group < 2, np.nan, page.score)
    assert "2 groups had no rows held out, and are not counted." in checked(replace(page, score=score))


def test_regressions_are_drawn_down_to_a_floor() -> None:
    page = forest(metric="r2", score=np.where(forest().group == 0, -1e6, forest().score))
    text = checked(page)
    assert "1 group below −1 is counted there." in text
    assert "R² by size" in text
    assert table(text, "The groups, the worst first")[0][3] == "−1,000,000"


def test_names_are_escaped_everywhere() -> None:
    names = [HOSTILE, "日本/東京", "x" * 3000, *(f"g{n}" for n in range(9))]
    line = spans((0, 0, 0.0, 1.0))
    page = forest(names=names, timeline=line, label=HOSTILE, by=(HOSTILE,), title=HOSTILE, data=HOSTILE,
                  configs=({HOSTILE: HOSTILE}, {HOSTILE: "b"}, {HOSTILE: "c"}))  # fmt: skip
    text = checked(failed(page, {5}, HOSTILE))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 8
    assert "日本/東京" in text
    assert "x" * 3000 in text  # as the title of a cell that is cut


def test_ten_thousand_groups_fit_into_a_page() -> None:
    chance = np.random.default_rng(0)
    draws = tuple({"l2": float(10 ** chance.uniform(-5, 0)), "depth": int(n % 5)} for n in range(30))
    page = forest(10_000, draws)
    page = replace(
        page, score=chance.uniform(0.4, 1, 300_000), chosen=np.arange(10_000) * 30 + chance.integers(0, 30, 10_000)
    )
    long = Spans.of({
        "run": np.zeros(40_000), "worker": np.arange(40_000) % 64, "begin": np.arange(40_000) / 64,
        "end": np.arange(40_000) / 64 + 0.9, "group": np.full(40_000, -1), "groups": np.full(40_000, 7),
        "what": np.resize(["solve", "sum", "look"], 40_000),
    })  # fmt: skip
    text = checked(replace(page, timeline=long))
    assert len(text.encode()) < 1_000_000
    assert "<dd>10,000</dd>" in text


def test_few_values_have_bars_and_many_a_histogram() -> None:
    few = checked(forest(configs=({"l2": 1.0, "rule": "a"}, {"l2": 0.1, "rule": "b"}, {"l2": 0.01, "rule": "b"})))
    assert "l2: how many groups" in few
    chart = drawing_of(few, "l2")
    assert tips(chart) == ["0.1: 8 groups", "1: 4 groups"]  # in order, and none chose 0.01
    rule = drawing_of(few, "rule")
    assert tips(rule) == ["a: 4 groups", "b: 8 groups"]
    many = checked(forest(configs=tuple({"l2": 10.0**-n, "fixed": 1} for n in range(20))))
    assert "would have chosen by chance" in many
    assert "fixed: how many" not in many


def test_halving_is_told_of() -> None:
    page = forest()
    stopped = page.config == 2
    text = checked(
        replace(page, status=np.where(stopped, "stopped", page.status), epochs=np.where(stopped, 1, page.epochs))
    )
    assert "12 of 36 models were given up" in text
    assert "All together made 70\u202f% of the passes" in text  # (24 x 9 + 12 x 1) of 36 x 9
    chart = drawing_of(text, "Models stopped")
    assert tips(chart) == ["1 pass: 12 models"]


def test_workers_and_their_busy_time() -> None:
    line = spans((0, 0, 0.0, 4.0), (0, 1, 1.0, 3.0), (1, 0, 0.0, 2.0), group=3)
    page = forest(timeline=line)
    text = checked(page)
    assert line.busy().tolist() == [1.0, 0.5]  # the second worker was there for the first run alone
    assert line.seconds == 6.0
    assert "The 2 workers were busy 75\u202f% of the time, the least busy 50\u202f%." in text
    chart = drawing_of(text, "What 2 workers")
    assert tips(chart)[0] == "worker 0: solve g3, 4.00\u202fs from 0.00\u202fs"
    assert "Training was taken up again once" in text
    assert "<dt>On the clock</dt><dd>6.00\u202fs</dd>" in text


def test_many_spans_are_drawn_as_shares_of_the_same_area() -> None:
    chance = np.random.default_rng(0)
    begin = np.sort(chance.uniform(0, 99, 3_000))
    line = Spans.of({
        "run": np.zeros(3_000), "worker": np.arange(3_000) % 2, "begin": begin, "end": begin + 0.03,
        "group": np.zeros(3_000), "groups": np.ones(3_000), "what": np.resize(["solve", "sum"], 3_000),
    })  # fmt: skip
    assert not detailed(line)
    drawing = ET.fromstring(gantt(line, labels=LABELS))
    lies_inside(drawing)
    # Kinds are stacked: the outermost of a worker's areas is all of its busy time.
    areas = [path.attrib["d"] for path in drawing.iter(f"{SVG}path") if (path.get("class") or "").startswith("ps-f")]
    sizes = [_area(d) for d in areas]
    axis = next(p.attrib["d"] for p in drawing.iter(f"{SVG}path") if p.get("class") == "ps-axis")
    start, stop = (float(v) for v in re.match(r"M([\d.]+) [\d.]+H([\d.]+)", axis).groups())  # type: ignore[union-attr]  # it matches
    assert max(sizes) / (16 * (stop - start)) == pytest.approx(float(line.busy().mean()), rel=0.1)


def _area(d: str) -> float:
    x, base = (float(v) for v in re.match(r"M([\d.]+) ([\d.]+)", d).groups())  # type: ignore[union-attr]  # it matches
    total = 0.0
    for y, end in re.findall(r"V([\d.]+)H([\d.]+)", d):
        total += (base - float(y)) * (float(end) - x)
        x = float(end)
    return total


def test_more_workers_than_lines_share_them() -> None:
    line = spans(*((0, worker, 0.0, 1.0) for worker in range(500)))
    drawing = ET.fromstring(gantt(line, labels=LABELS))
    names = ["".join(text.itertext()) for text in drawing.iter(f"{SVG}text")]
    assert sum(name.startswith("workers ") for name in names) == 48
    assert "workers 0–10" in names


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 6)), min_size=1, max_size=50),
    st.booleans(),
    st.booleans(),
)
def test_histograms_lose_nothing(values: list[float], percent: bool, log: bool) -> None:
    known = np.clip(np.array(values), 0, 1) if percent else np.array(values)
    bins = Bins.of(known, percent=percent, log=log)
    assert bins.count(known).sum() == len(known)
    assert (np.diff(bins.edges) > 0).all()
    drawing = ET.fromstring(histogram(known, bins, labels=LABELS, look=style_of(0)))
    lies_inside(drawing)
    assert sum(int(re.findall(r": ([\d,]+) group", tip)[0].replace(",", "")) for tip in tips(drawing)) == len(known)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(-1, 1)), min_size=1, max_size=30))
def test_clouds_stay_inside(points: list[tuple[int, float]]) -> None:
    x, y = (np.array(each, np.float64) for each in zip(*points))
    lies_inside(ET.fromstring(scatter_plot(x, y, labels=LABELS, look=style_of(0), size=(360, 290))))


def test_bars_of_long_names_and_nothing_chosen() -> None:
    drawing = ET.fromstring(bars(["x" * 200, "b"], [0, 0], labels=LABELS, look=style_of(0), size=(360, 290)))
    lies_inside(drawing)
    assert tips(drawing) == ["x" * 200]  # of the name that is cut


def test_page_is_written_whole(tmp_path: Path) -> None:
    assert write_report(forest(), tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(WriteError, match="there is no folder"):
        write_report(forest(), tmp_path / "nowhere" / "report.html")
