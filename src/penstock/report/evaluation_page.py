"""The page about one evaluation of a linear model: its measures, ROC curve, calibration and largest coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.metric_names import title
from penstock.report.drawing import SIZE, Labels, box, foot, run_axis, svg, text_at
from penstock.report.page import fact_list, figure, html_table, page_html
from penstock.report.plot import Series, line_plot
from penstock.report.style import style_of
from penstock.report.text import finite_or_none, score_text, shorten, show_count, show_number, text_width

_MOST_CLASSES = 20
"""Of a confusion matrix that is shown."""
_BAR = 22
_NOT_LISTED = ("rows", "confusion_matrix")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the page shows: a model's file, the rows it was measured on, and what was measured.

    ``measures`` are as `penstock.evaluation.evaluate` returns them; ``classes`` are in the order of the confusion matrix;
    ``roc`` has false and true positive rates, of two classes. ``calibration`` has, for rows with similar predictions, the mean
    probability predicted, the share of positive rows, and the weight. ``coefficients`` are the largest first.
    """

    model: str
    data: str
    kind: str
    label: str
    measures: Mapping[str, Any]
    classes: Sequence[Any] | None = None
    roc: tuple[Sequence[float], Sequence[float]] | None = None
    calibration: Sequence[tuple[float, float, float]] = ()
    coefficients: Sequence[tuple[str, float]] = field(default_factory=tuple)
    coefficient_note: str = ""


def render_evaluation(page: Evaluation) -> str:
    """Return the whole page as HTML.

    Examples
    --------
    >>> text = render_evaluation(Evaluation("m<1", "test.parquet", "linear", "y", {"r2": 0.5, "rows": 10}))
    >>> text.startswith("<!doctype html>"), "m&lt;1" in text
    (True, True)
    """
    about = [
        ("Model", page.kind),
        ("Label", page.label),
        ("Rows", show_count(page.measures.get("rows"))),
        ("Measured on", page.data),
    ]
    parts = [
        fact_list(about),
        "<h2>Measures</h2>",
        _measures(page),
        _curves(page),
        _coefficients(page),
        _confusion(page),
    ]
    title = f"{page.model} measured on {page.data}"
    return page_html(title, kind="penstock evaluate", heading=page.model, parts=parts)


def bar_plot(bars: Sequence[tuple[str, float]], *, size: tuple[int, int], heading: str) -> str:
    """Draw named values as bars to both sides of nought, in their order from the top, and return the ``<svg>`` element.

    Examples
    --------
    >>> bar_plot([("age", 2.0), ("height", -1.0)], size=(400, 300), heading="Coefficients").count("<rect")
    2
    """
    width, top = size[0], 30.0
    height = top + _BAR * len(bars) + 30
    names = [shorten(name, 0.4 * width, SIZE) for name, _ in bars]
    left = 12 + max(text_width(name, SIZE) for name in names)
    across = run_axis([0.0, *(value for _, value in bars)], pixels=(left, width - 60.0))
    parts = [text_at(0, 14, heading, bold=True), *foot(across, height - 26, left=left, right=width - 56.0)]
    zero = across.place(0.0)
    for row, (name, (full, value)) in enumerate(zip(names, bars)):
        look, y, end = style_of(0 if value >= 0 else 1), top + _BAR * row, across.place(value)
        parts += [
            text_at(left - 8, y + 14, name, anchor="end", tip=full),
            box(min(zero, end), y + 3, abs(end - zero), _BAR - 6, look, f"{full}: {show_number(value)}"),
            text_at(max(zero, end) + 5, y + 14, show_number(value), soft=True),
        ]
    says = "; ".join(f"{name} {show_number(value)}" for name, value in bars)
    return svg(parts, size=(width, height), says=f"{heading}. {says}.")


def _measures(page: Evaluation) -> str:
    pairs = [
        (title(name), score_text(value, name) if name == "accuracy" else show_number(value))
        for name, value in page.measures.items()
        if name not in _NOT_LISTED and finite_or_none(value) is not None
    ]
    return html_table((), pairs, narrow=True)


def _curves(page: Evaluation) -> str:
    figures = []
    if page.roc is not None:
        area = finite_or_none(page.measures.get("auc"))
        area_note = (
            ""
            if area is None
            else f" The area under it is {area:.4f}: the chance that a positive row scores higher than a negative one."
        )
        series = [Series("model", *page.roc), Series("chance", [0, 1], [0, 1], look=style_of(2))]
        labels = Labels("ROC curve", "false positive rate", "true positive rate")
        figures.append(figure(partial(_square, series, labels), f"Every point is a threshold on the score.{area_note}"))
    if page.calibration:
        predicted, observed, _ = zip(*page.calibration, strict=True)
        notes = [
            f"{weight:,.6g} rows: predicted {said:.3f}, observed {seen:.3f}" for said, seen, weight in page.calibration
        ]
        series = [Series("model", predicted, observed, notes), Series("ideal", [0, 1], [0, 1], look=style_of(2))]
        labels = Labels("Calibration", "mean predicted probability", "share of positive rows")
        text = "Rows in parts of equal weight by their predicted probability. On the ideal line predictions come true as often as they say."
        figures.append(figure(partial(_square, series, labels), text))
    return f'<h2>Curves</h2><div class="plots few">{"".join(figures)}</div>' if figures else ""


def _square(series: Sequence[Series], labels: Labels, *, size: tuple[int, int]) -> str:
    return line_plot(series, labels=labels, size=(size[0], round(0.82 * size[0])))


def _coefficients(page: Evaluation) -> str:
    if not page.coefficients:
        return ""
    draw = partial(bar_plot, page.coefficients, heading="Largest coefficients")
    return f"<h2>Coefficients</h2>{figure(draw, page.coefficient_note, desk=(900, 0))}"


def _confusion(page: Evaluation) -> str:
    matrix = page.measures.get("confusion_matrix")
    if matrix is None or page.classes is None or len(page.classes) > _MOST_CLASSES:
        return ""
    names = [str(name) for name in page.classes]
    lines = [
        [name, *(show_count(value) if value == int(value) else show_number(value) for value in row)]
        for name, row in zip(names, matrix)
    ]
    lead = '<p class="quiet">A row for each true class, a column for each predicted one.</p>'
    return f"<h2>Confusion matrix</h2>{lead}{html_table(['', *names], lines, narrow=True)}"
