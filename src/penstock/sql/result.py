"""What a statement gave back: columns and rows, or a word on what was done; printable, and convertible to tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.linear import LinearModel

MOST_SHOWN = 40
"""Rows that are printed where nothing else is said."""
_WIDEST = 60
_PLANS = ("QUERY PLAN", "explain_value")
"""Columns that hold a plan, drawn in lines: PostgreSQL's and ours, and DuckDB's."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one statement gave back.

    Attributes
    ----------
    columns : tuple of str or None
        The names of the columns; None for a statement that has no rows.
    rows : sequence of tuples
        Plain Python values.
    status : str
        What was done, in a word or two.
    notes : tuple of str
        What a user should know beside the rows.
    model : LinearModel or None
        What a training learnt.
    useless : str or None
        Why that model is no better than a constant prediction, where it is not.

    Examples
    --------
    >>> result = Result(("epoch", "loss"), [(1, 0.5), (2, 0.25)])
    >>> print(result)
     epoch | loss
    -------+------
         1 |  0.5
         2 | 0.25
    (2 rows)
    >>> result.column("loss")
    [0.5, 0.25]
    """

    columns: tuple[str, ...] | None
    rows: Sequence[Sequence[Any]] = ()
    status: str = ""
    notes: tuple[str, ...] = ()
    model: LinearModel | None = None
    useless: str | None = None

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """Return one column's values."""
        from penstock.errors import ColumnError

        names = self.columns or ()
        if name not in names:
            raise ColumnError.missing(name, names, place="the result")
        place = names.index(name)
        return [row[place] for row in self.rows]

    def to_arrow(self) -> pa.Table:
        """Return the rows as a pyarrow Table; the names must differ from one another."""
        names = self.columns or ()
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(names)
        return pa.table({name: pa.array(list(column)) for name, column in zip(names, values, strict=True)})

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict."""
        return [dict(zip(self.columns or (), row, strict=True)) for row in self.rows]

    def lines(self, most: int | None = MOST_SHOWN) -> list[str]:
        """Return the result for people: a table of at most so many rows, or the status."""
        if self.columns is None:
            return [self.status] if self.status else []
        if self.columns[-1] in _PLANS:
            return [line for row in self.rows for line in str(row[-1]).split("\n")]
        shown = self.rows if most is None else self.rows[:most]
        cells = [[_written(value) for value in row] for row in shown]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        right = [all(_is_number(row[k]) for row in shown) and bool(shown) for k in range(len(self.columns))]
        out = [" " + " | ".join(name.ljust(width) for name, width in zip(self.columns, widths, strict=True)).rstrip()]
        out.append("-" + "-+-".join("-" * width for width in widths) + "-")
        for row in cells:
            padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
            out.append((" " + " | ".join(padded)).rstrip())
        count = len(self.rows)
        told = f"{count} row{'' if count == 1 else 's'}"
        out.append(f"({told})" if len(shown) == count else f"({told}, the first {len(shown)} shown)")
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())


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
