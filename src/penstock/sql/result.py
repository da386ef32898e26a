"""What a statement gave back: columns and rows, or a word on what was done; printable, and convertible to tables.

Tables have the engine's own types where the rows are the engine's; what it returns in a Python type that Arrow has no value
for, such as a UUID, is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ColumnError, MissingExtraError

if TYPE_CHECKING:
    from penstock.model import Model

MOST_SHOWN = 40
"""Rows that are printed where nothing else is said."""
_FIRST_STEPS = 3
"""Of steps that are not all printed, how many of the first are."""
_WIDEST = 60
_PLANS = ("QUERY PLAN", "explain_value")
"""Columns that hold a plan, drawn in lines: PostgreSQL's and ours, and DuckDB's."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one statement gave back.

    Attributes
    ----------
    columns : tuple of str
        The names of the columns; empty for a statement that has no rows.
    rows : sequence of tuples
        Plain Python values.
    status : str
        What was done, in a word or two.
    notes : tuple of str
        What a user should know beside the rows.
    model : Model or None
        What a training learnt.
    useless : str or None
        Why that model is no better than a constant prediction, where it is not.
    types : tuple of pyarrow.DataType
        The types of the columns where an engine says them; else they follow from the values.
    steps : bool
        Whether rows are steps, such as epochs, of which the last count most: of many the first few and the last are printed.

    Examples
    --------
    >>> result = Result(("epoch", "loss"), [(1, 0.5), (2, 0.25)])
    >>> print(result)
     epoch | loss
    -------+------
         1 |  0.5
         2 | 0.25
    (2 rows)
    >>> result.column("loss"), [loss for epoch, loss in result], result.df().shape
    ([0.5, 0.25], [0.5, 0.25], (2, 2))
    """

    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    status: str = ""
    notes: tuple[str, ...] = ()
    model: Model | None = None
    useless: str | None = None
    types: tuple[pa.DataType, ...] = ()
    steps: bool = False

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """Return one column's values."""
        if name not in self.columns:
            raise ColumnError.missing(name, self.columns, place="the result")
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def to_arrow(self) -> pa.Table:
        """Return the rows as a pyarrow Table."""
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        types = self.types or (None,) * len(self.columns)
        arrays = [_arrow_column(list(column), kind) for column, kind in zip(values, types, strict=True)]
        return pa.Table.from_arrays(arrays, names=list(self.columns))

    def to_df(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def df(self) -> Any:
        """Return the rows as a pandas DataFrame, as `to_df` does."""
        return self.to_df()

    def pl(self) -> Any:
        """Return the rows as a polars DataFrame; the names must differ from one another."""
        try:
            import polars
        except ImportError:
            raise MissingExtraError("polars is not installed; install it: pip install polars") from None
        return polars.from_arrow(self.to_arrow())

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def lines(self, most: int | None = MOST_SHOWN, *, expanded: bool = False) -> list[str]:
        """Return the result for people: a table of at most so many rows, or the status; ``expanded`` has a line for each value."""
        if not self.columns:
            return [self.status] if self.status else []
        if self.columns[-1] in _PLANS:
            return [line for row in self.rows for line in str(row[-1]).split("\n")]
        count = len(self.rows)
        told = f"{count} row{'' if count == 1 else 's'}"
        first, last = count, 0
        if most is not None and count > most:
            first = min(_FIRST_STEPS, most // 2) if self.steps else most
            last = most - first if self.steps else 0
            ends = (f"the first {first}" if first else "", f"the last {last}" if last else "")
            told += f", {' and '.join(filter(None, ends))} shown"
        numbers = [*range(first), *range(count - last, count)]
        lines = self._records(numbers) if expanded and numbers else self._table([self.rows[at] for at in numbers])
        if last:
            lines.insert(len(lines) - last * (1 + len(self.columns) if expanded else 1), " …")
        return [*lines, f"({told})"]

    def _records(self, numbers: Sequence[int]) -> list[str]:
        """Return rows one below another: a line for each value."""
        wide, out = max(map(len, self.columns)), []
        for number, row in ((at + 1, self.rows[at]) for at in numbers):
            out.append(f"-[ row {number} ]".ljust(wide + 2, "-"))
            out += [f"{name:<{wide}} | {_written(value)}" for name, value in zip(self.columns, row, strict=True)]
        return out

    def _table(self, shown: Sequence[Sequence[Any]]) -> list[str]:
        """Return rows as a table."""
        cells = [[_written(value) for value in row] for row in shown]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        right = [all(_is_number(row[k]) for row in shown) and bool(shown) for k in range(len(self.columns))]
        out = [" " + " | ".join(name.ljust(width) for name, width in zip(self.columns, widths, strict=True)).rstrip()]
        out.append("-" + "-+-".join("-" * width for width in widths) + "-")
        for row in cells:
            padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
            out.append((" " + " | ".join(padded)).rstrip())
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _arrow_column(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Return a column's values as Arrow: of a type, or of what they are; as text where they are neither."""
    ways: list[Callable[[], pa.Array]] = [lambda: pa.array(values, kind), lambda: pa.array(values)]
    if kind is not None:
        ways.insert(1, lambda: pa.array(values).cast(kind))
        if pa.types.is_string(kind):
            ways.insert(1, lambda: pa.array(_each(_as_text, values), kind))
        elif pa.types.is_floating(kind):  # of decimals, among which may be NaN
            ways.insert(1, lambda: pa.array(_each(float, values), kind))
    for way in ways:
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return way()
    return pa.array(_each(_as_text, values))


def _each(convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str) if isinstance(value, (dict, list, tuple, bool)) else str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _written(value: Any) -> str:
    """Write a value in one line of bounded width."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (bytes, memoryview)):
        value = f"\\x{bytes(value[:_WIDEST]).hex()}"
    if isinstance(value, (list, tuple)):
        items = [_written(item) for item in value[:8]] + (["…"] if len(value) > 8 else [])
        value = f"[{', '.join(items)}]"
    text = " ".join(str(value).split("\n"))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
