"""The table of a recipe's columns: kind, levels, what becomes of missing values, and what a model made of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.errors import some_of

_HEADINGS = {"levels": 14, "missing": 13, "mean": 13, "scale": 13, "weight": 13}
"""The columns of the table after name and kind, with their widths; one that is empty in all rows is not shown."""


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column of a recipe.

    Attributes
    ----------
    column, kind : str
        Its name, with the part of a date where that is the category, and its kind.
    levels : int or str or None
        Of a category how many there are; of hashed text how many features.
    missing : str
        What becomes of missing values: ``filled``, ``own feature``, ``no feature`` or ``refused``.
    mean, scale : float or None
        Of a number or date in the data trained on: the mean, of dates in days since 1970, and the standard deviation.
    weight : float or None
        The largest size of a standardized coefficient among its features.
    """

    column: str
    kind: str
    levels: int | str | None
    missing: str
    mean: float | None = None
    scale: float | None = None
    weight: float | None = None


def column_summaries(recipe: Recipe) -> list[ColumnSummary]:
    """Return a line for each column, in the recipe's order.

    Examples
    --------
    >>> from penstock.columns.category import Category
    >>> recipe = Recipe((Number("age", fill=40.0), Category("color", ("blue", "red"), missing=True)))
    >>> [(each.column, each.levels, each.missing, each.mean) for each in column_summaries(recipe)]
    [('age', None, 'filled', 40.0), ('color', 2, 'own feature', None)]
    """
    found = []
    for part in recipe.described_parts:
        facts, mean, scale = part.facts(), None, None
        name = part.name if isinstance(part, Category) else ", ".join(part.columns)
        if isinstance(part, (Number, Date)):
            mean = part.fill if isinstance(part, Number) else part.origin
            scale = 1 / part.scale if part.scale not in (0, 1) else None  # a recipe that scales by itself
        found.append(ColumnSummary(name, part.kind, facts.get("levels"), str(facts["missing"]), mean, scale))
    return found


def column_lines(
    columns: Sequence[ColumnSummary], left_out: Mapping[str, str], *, most: int | None = None, varied: bool = False
) -> list[str]:
    """Return the table of columns, ``most`` of them (``varied``: some of every kind), and a line about those that are left out.

    Examples
    --------
    >>> print(*column_lines([ColumnSummary("age", "number", None, "filled", 40.0)], {"id": "row numbers"}), sep=chr(10))
    <BLANKLINE>
    column  kind            missing         mean
    age     number           filled           40
    left out: id (row numbers)
    """
    shown = some_of_each_kind(columns, most) if varied and most is not None else list(columns)[:most]
    cells = [_cells(each) for each in shown]
    headings = [name for name in _HEADINGS if any(row[name] for row in cells)]
    wide = max(map(len, ["column", *(each.column for each in shown)]))
    heads = "".join(f"{name:>{_HEADINGS[name]}}" for name in headings)
    lines = ["", f"{'column':<{wide}}  {'kind':<10}{heads}"]
    for each, row in zip(shown, cells):
        values = "".join(f"{row[name]:>{_HEADINGS[name]}}" for name in headings)
        lines.append(f"{each.column:<{wide}}  {each.kind:<10}{values}".rstrip())
    if len(columns) > len(shown):
        lines.append(f"and {len(columns) - len(shown):,} more columns")
    if left_out:
        lines.append(f"left out: {some_of((f'{name} ({why})' for name, why in left_out.items()), 20)}")
    return lines


def some_of_each_kind(columns: Sequence[ColumnSummary], most: int) -> list[ColumnSummary]:
    """Return so many columns in their order: of each kind the first ones, as many of one kind as of another as far as there are.

    Examples
    --------
    >>> columns = [ColumnSummary(name, kind, None, "") for name, kind in zip("abcde", ["number"] * 4 + ["date"])]
    >>> [each.column for each in some_of_each_kind(columns, 3)]
    ['a', 'b', 'e']
    """
    turns: Counter[str] = Counter()
    ranked = []
    for place, each in enumerate(columns):
        ranked.append((turns[each.kind], place))
        turns[each.kind] += 1
    return [columns[place] for place in sorted(place for _, place in sorted(ranked)[:most])]


def _cells(summary: ColumnSummary) -> dict[str, str]:
    """Return the fields after name and kind as text; the mean of dates is a date."""
    numbers = {name: getattr(summary, name) for name in ("mean", "scale", "weight")}
    cells = {name: "" if value is None else f"{value:.5g}" for name, value in numbers.items()}
    if summary.kind == "date" and summary.mean is not None:
        cells["mean"] = _as_date(summary.mean)
    levels = f"{summary.levels:,}" if isinstance(summary.levels, int) else summary.levels or ""
    return {"levels": levels, "missing": summary.missing, **cells}


def _as_date(days: float) -> str:
    try:
        return str((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days)).date())
    except OverflowError:  # beyond the years that Python knows
        return f"{days:.5g}"
