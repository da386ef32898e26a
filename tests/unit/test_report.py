"""The comparison page: what it says, that it is safe, whole and self-contained."""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError, WriteError
from penstock.report import Comparison, OrderPicture, StrategyRun, render, write_report
from penstock.report.comparison_page import comparison_findings
from penstock.report.style import plot_styles

STRATEGIES = ["none", "once", "epoch", "sliding-window", "mrs", "block-only", "corgipile", "global"]
HOSTILE = "<script>alert('x')</script>\"&\x00"


def epochs(scores: list[float | None], *, metric: str = "accuracy", seconds: float = 2.0) -> list[dict[str, Any]]:
    return [
        {"epoch": i + 1, "progressive_loss": 0.7 / (i + 1), f"progressive_{metric}": 0.5, f"test_{metric}": s, "seconds": seconds, "rows": 9}
        for i, s in enumerate(scores)
    ]  # fmt: skip


def run(shuffle: str, scores: list[float | None], **more: Any) -> dict[str, Any]:
    given = {"shuffle": shuffle, "epochs": epochs(scores), "seconds": 2.0 * len(scores), "extra_disk_bytes": 0,
             "peak_memory_bytes": 10**8, "final": scores[-1] if scores else None}  # fmt: skip
    return {**given, **more}


def page(*runs: dict[str, Any], **facts: Any) -> Comparison:
    return Comparison.from_dict({"data": "clicks.arrow", **facts, "runs": runs})


def drawings(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


class Balance(HTMLParser):
    """Checks that tags nest; remembers them and every attribute's name."""

    void = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(text: str) -> Balance:
    seen = Balance()
    seen.feed(text)
    seen.close()
    assert seen.open == []
    return seen


def cells(text: str, strategy: str) -> dict[str, tuple[str, bool]]:
    row = next(r for r in re.findall(r"<tr>.*?</tr>", text) if f"</svg>{strategy}</th>" in r)
    found = re.findall(r'<td data-name="(.*?)"( class="best")?><span>(.*?)<', row)
    return {name: (shown.replace("\u202f", " "), bool(best)) for name, best, shown in found}


def full_page() -> Comparison:
    picture = {"position": list(range(100)), "labels": [(20, 0), (10, 10), (0, 20), (5, 15), (7, 13)]}
    return page(
        run("none", [0.5, 0.52]),
        run("once", [0.9, 0.95], prepare_seconds=9.0, seconds=13.0, extra_disk_bytes=5_000_000, epochs_to_99=2,
            seconds_to_99=13.0),
        run("corgipile", [0.9, 0.949], epochs_to_99=2, seconds_to_99=4.0),
        run("mrs", [], failed="the disk is full"),
        rows=8_000_000, blocks=7412, bytes=960_000_000, label="clicked", model="logistic", memory=96_000_000, seed=7,
        date="2026-11-15", machine="2 cores", clustering="Rows are clustered by label (h_D = 9).",
        orders={"none": picture, "corgipile": picture}, orders_note="Drawn for 100 rows.",
    )  # fmt: skip


def test_page_holds_every_fact() -> None:
    text = render(full_page())
    for fact in ["clicks.arrow", "8,000,000", "7,412", "960 MB", "clicked", "logistic", "96.0 MB", "2026-11-15",
                 "2 cores", "Rows are clustered by label (h_D = 9).", "Drawn for 100 rows."]:  # fmt: skip
        assert fact in text
    assert "<dt>Seed</dt><dd>7</dd>" in text


def test_page_is_well_formed_and_so_is_each_drawing() -> None:
    text = render(full_page())
    balanced(text)
    # Four plots, each for a wide page and for a phone; two row-order pictures; a swatch for each strategy.
    assert len(drawings(text)) == 4 * 2 + 2 + 4
    for drawing in drawings(text):
        assert drawing.get("aria-label") or drawing.get("aria-hidden") == "true"


def test_page_needs_nothing_from_outside() -> None:
    text = render(full_page())
    seen = balanced(text)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(seen.tags)
    assert not {"src", "href", "xlink:href"} & set(seen.attributes)
    assert not re.search(r"url\(|@import", text)
    assert set(re.findall(r"https?://[^\"' <]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_page_has_dark_print_and_phone_styles() -> None:
    text = render(full_page())
    for rule in [
        "@media screen and (prefers-color-scheme:dark)",
        "@media print",
        "(max-width:760px)",
        'name="viewport"',
    ]:
        assert rule in text


def test_table_marks_the_best_of_each_column() -> None:
    text = render(full_page())
    none, once, corgipile = (cells(text, name) for name in ("none", "once", "corgipile"))
    assert once["final test accuracy"] == ("95.00 %", True)
    assert corgipile["final test accuracy"] == ("94.90 %", False)
    assert corgipile["time to 99 % of the best"] == ("4.00 s", True)
    assert once["time to 99 % of the best"] == ("13.0 s", False)
    assert none["time to 99 % of the best"] == ("–", False)
    assert none["time per epoch (median)"] == ("2.00 s", False)
    assert once["total time with shuffling"] == ("13.0 s", False)
    assert once["extra disk"] == ("5.0 MB", False)
    assert none["peak memory"] == ("100 MB", False)


def test_values_that_look_the_same_are_marked_the_same() -> None:
    text = render(page(run("a", [0.900001]), run("b", [0.9]), run("c", [0.5]), run("d", [0.4])))
    assert [cells(text, name)["final test accuracy"][1] for name in "abcd"] == [True, True, False, False]


def test_failed_run_shows_its_reason_and_no_figures() -> None:
    text = render(full_page())
    assert '<td colspan="7">failed: the disk is full</td>' in text
    only = render(page({"shuffle": "once", "failed": ""}))
    assert ">failed</td>" in only


def test_failed_run_keeps_others_colours() -> None:
    text = render(page({"shuffle": "mine", "failed": "x"}, run("yours", [0.5, 0.6])))
    look = plot_styles(["mine", "yours"])["yours"]
    plots = text[text.index('class="plots"') :]
    assert look.light in plots
    assert plot_styles(["mine"])["mine"].light not in plots


def test_findings_name_the_best_the_first_and_those_left_behind() -> None:
    said = " ".join(comparison_findings(full_page())).replace("\u202f", " ")
    assert "best final test accuracy is 95.00 %, by once" in said
    assert "First to 99 % of it was corgipile, after 4.00 s, which ended at 94.90 %" in said
    assert "once needed 13.0 s, 3.2 times as long" in said
    assert "Never that near: none." in said
    assert comparison_findings(page(run("none", [0.5]))) == []


def test_findings_when_the_best_is_also_the_first() -> None:
    said = comparison_findings(page(run("none", [0.5]), run("corgipile", [0.9], epochs_to_99=1, seconds_to_99=2.0)))
    assert "It was also the first" in said[1]


def test_all_text_from_outside_is_escaped() -> None:
    order = {"position": [0, 1], "labels": [(1, 1)]}
    text = render(
        page(
            run(HOSTILE, [0.5, 0.6]), run("b", [0.5], failed=HOSTILE), orders={HOSTILE: order}, orders_note=HOSTILE,
            data=HOSTILE, label=HOSTILE, model=HOSTILE, memory=HOSTILE, seed=HOSTILE, date=HOSTILE, machine=HOSTILE,
            clustering=HOSTILE,
        )
    )  # fmt: skip
    assert "script" not in balanced(text).tags
    assert "<script" not in text
    assert "\x00" not in text
    assert len(drawings(text)) == 4 * 2 + 1 + 2


def test_nothing_to_show() -> None:
    text = render(Comparison("empty.arrow"))
    balanced(text)
    assert "No strategy was run." in text
    assert drawings(text) == []
    balanced(render(page({"shuffle": "none"})))


@pytest.mark.parametrize(
    "scores",
    [
        [0.5],
        [0.5, 0.5, 0.5],
        [math.nan] * 3,
        [0.5, math.nan, 0.7],
        [None, None],
        [0.0, 0.0],
        [1.0, 1.0],
        [math.inf, 0.5],
    ],
)
def test_odd_scores_are_drawn_or_left_out(scores: list[float | None]) -> None:
    text = render(page(run("none", scores), run("corgipile", scores, final=math.nan, seconds=math.nan)))
    balanced(text)
    for drawing in drawings(text):
        for element in drawing.iter():
            assert not re.search(r"nan|inf\b", " ".join(element.get(k, "") for k in ("d", "x", "y", "cx", "cy")))


def test_eight_strategies_have_eight_looks() -> None:
    text = render(page(*(run(name, [0.5, 0.6]) for name in STRATEGIES)))
    balanced(text)
    assert len({(look.light, look.mark) for look in plot_styles(STRATEGIES).values()}) == 8
    assert all(f"{name}</text>" in text for name in STRATEGIES)


def test_two_runs_of_one_strategy_are_both_drawn() -> None:
    text = render(page(run("corgipile", [0.5, 0.61]), run("corgipile", [0.5, 0.72])))
    assert "61.00\u202f%" in text
    assert text.count("corgipile, epoch 2: 72.00") == 4


def test_progressive_curves_are_called_so_and_the_final_score_is_the_finished_models() -> None:
    tested = page(run("none", [0.5, 0.6]))
    untested = page(run("none", [None, None], final=0.5))
    assert (tested.score_name, untested.score_name) == ("Test accuracy", "Progressive accuracy")
    assert (tested.final_name, untested.final_name) == ("test accuracy", "training accuracy")
    assert "final training accuracy" in render(untested)


def test_r2_is_not_a_percentage_and_sinks_no_further_than_its_axis() -> None:
    rows = epochs([0.5, -4000.0], metric="r2")
    comparison = page({"shuffle": "none", "epochs": rows, "final": -4000.0})
    text = render(comparison)
    assert comparison.score_name == "Test R²"
    assert "Values below \u22121 are drawn there." in text
    assert "epoch 2: \u22121" not in text
    assert "R² by epoch" in text


def test_tooltips_tell_the_true_value_where_a_point_is_drawn_at_the_edge() -> None:
    text = render(page({"shuffle": "none", "epochs": epochs([0.5, -4000.0], metric="r2"), "final": -4000.0}))
    assert "none, epoch 2: \u22124,000" in text


def test_copy_made_first_delays_the_curve() -> None:
    once = StrategyRun.from_dict(run("once", [0.5, 0.6], prepare_seconds=9.0))
    assert once.clock() == [11.0, 13.0]
    text = render(page(run("once", [0.5, 0.6], prepare_seconds=9.0)))
    assert "once, epoch 1: 50.00\u202f% after 11.0\u202fs" in text
    assert "time spent on a shuffled copy" in text
    assert "time spent on a shuffled copy" not in render(page(run("none", [0.5, 0.6])))


def test_copy_made_before_each_epoch_counts_in_each() -> None:
    rows = [{**row, "prepare_seconds": 3.0} for row in epochs([0.5, 0.6])]
    each = StrategyRun("epoch", tuple(rows))
    assert each.clock() == [5.0, 10.0]
    assert each.epoch_seconds == 5.0


def test_one_slow_strategy_turns_the_clock_logarithmic() -> None:
    quick = [run(name, [0.5, 0.6]) for name in ("none", "corgipile", "once")]
    slow = {"shuffle": "global", "epochs": epochs([0.5, 0.6], seconds=300.0)}
    assert "seconds, logarithmic" in render(page(*quick, slow))
    assert "logarithmic" not in render(page(*quick))


def test_long_times_are_told_in_minutes_and_hours() -> None:
    for seconds, unit in [(600.0, "minutes"), (8000.0, "hours")]:
        assert f">{unit}</text>" in render(page({"shuffle": "none", "epochs": epochs([0.5, 0.6], seconds=seconds)}))


def test_from_dict_passes_over_what_it_does_not_know_and_asks_for_what_it_needs() -> None:
    assert StrategyRun.from_dict({"shuffle": "none", "out": "model.penstock"}).epochs == ()
    with pytest.raises(UsageError, match="no 'shuffle'"):
        StrategyRun.from_dict({"epochs": []})
    with pytest.raises(UsageError, match="no 'data'"):
        Comparison.from_dict({"runs": []})
    with pytest.raises(UsageError, match="negatives, positives"):
        OrderPicture.from_dict({"position": [0], "labels": [(1, 2, 3)]})


def test_write_report_writes_the_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    assert write_report(full_page(), target) == target
    assert target.read_text(encoding="utf-8") == render(full_page())
    assert os.listdir(tmp_path) == ["report.html"]


def test_write_report_takes_names_that_are_not_unicode(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.arrow")
    assert "caf" in write_report(Comparison(name), tmp_path / "r.html").read_text(encoding="utf-8")


def test_write_report_says_which_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"there is no folder .*nowhere"):
        write_report(full_page(), tmp_path / "nowhere" / "report.html")


def test_write_report_onto_a_folder_fails_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(WriteError, match="choose another place"):
        write_report(full_page(), tmp_path / "report.html")
    assert os.listdir(tmp_path) == ["report.html"]


def test_write_report_keeps_the_old_page_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WriteError, match="the disk is full"):
        write_report(full_page(), target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_write_report_into_a_folder_without_permission(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(WriteError, match="Permission denied"):
        write_report(full_page(), folder / "report.html")


def test_the_loss_drawn_is_that_of_held_out_rows_where_there_are_any():
    epochs = [
        {
            "epoch": 1,
            "progressive_loss": 0.1,
            "progressive_accuracy": 0.9,
            "held_out_accuracy": 0.5,
            "held_out_loss": 2.0,
            "seconds": 1.0,
        }
    ]
    assert "The mean held-out loss after each epoch." in render(Comparison("d", (StrategyRun("none", epochs),)))
    bare = [{k: v for k, v in row.items() if not k.startswith("held_out_")} for row in epochs]
    page = render(Comparison("d", (StrategyRun("none", bare),)))
    assert "The mean progressive loss after each epoch, each row scored just before its own update" in page
