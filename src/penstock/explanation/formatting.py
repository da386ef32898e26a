"""Explanations as lines of text: sections with a heading, lines and perhaps a table; then warnings. The only formatter of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.budget import show_bytes
from penstock.messages import PYTHON, Text, TextPart, Wording

_BAR = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table: its name, cells, what stands behind them, and whether an arrow marks it."""

    name: str
    cells: tuple[str, ...]
    note: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, lines beneath it, and a table whose first column has names; without ``columns`` there is no table."""

    heading: TextPart
    lines: Sequence[TextPart] = ()
    columns: tuple[str, ...] = ()
    rows: Sequence[TableRow] = ()


def format_sections(sections: Sequence[Section], notices: Sequence[Text] = (), wording: Wording = PYTHON) -> list[str]:
    """Return the lines of sections, an empty one between any two, and the warnings behind them.

    Examples
    --------
    >>> table = Section("Predicted", columns=("strategy", "first"), rows=[TableRow("none", ("2 s",), "fast", marked=True)])
    >>> print(*format_sections([Section("clicks.parquet", ["20 rows"]), table], [Text("few rows")]), sep=chr(10))
    clicks.parquet
      20 rows
    <BLANKLINE>
    Predicted
      strategy             first
    → none                   2 s   fast
    <BLANKLINE>
    warning: few rows
    """
    parts = [_section(section, wording) for section in sections]
    parts.append([f"warning: {text.render(wording)}" for text in notices])
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ([""] if lines else []) + part
    return lines


def format_tree(nodes: Sequence[Section]) -> list[str]:
    """Return the lines of sections of which each is the input of the one before it, as a database shows a plan.

    Examples
    --------
    >>> print(*format_tree([Section("SGD logistic", ["20 epochs"]), Section("Scan", ["5 rows"])]), sep=chr(10))
    SGD logistic
      20 epochs
      ->  Scan
            5 rows
    """
    lines: list[str] = []
    for depth, node in enumerate(nodes):
        indent = "      " * depth
        lines.append(f"{indent[:-6]}  ->  {node.heading}" if depth else str(node.heading))
        lines += [f"{indent}  {line}" for line in node.lines]
    return lines


def _section(section: Section, wording: Wording) -> list[str]:
    lines = [Text(section.heading).render(wording), *(f"  {Text(line).render(wording)}" for line in section.lines)]
    if section.columns:
        name, *others = section.columns
        lines.append(f"  {name:<16}" + "".join(f"{other:>10}" for other in others))
    for row in section.rows:
        cells = "".join(f"{cell:>10}" for cell in row.cells)
        lines.append(f"{'→' if row.marked else ' '} {row.name:<16}{cells}   {row.note}".rstrip())
    return lines


def capitalized(text: str) -> str:
    """Return a text whose first letter is a capital."""
    return text[:1].upper() + text[1:]


def show_bar(share: float) -> str:
    """Draw a share of the bar's length in eighths of a character."""
    full, rest = divmod(round(8 * _BAR * max(0.0, min(1.0, share))), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)


def show_speed(bytes_per_second: float) -> str:
    """Write a bandwidth."""
    return f"{show_bytes(bytes_per_second)}/s"


def show_block_size(count: int) -> str:
    """Write the size of a block in binary units."""
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"


def show_seconds(value: float) -> str:
    """Write a time for people.

    Examples
    --------
    >>> show_seconds(0.0213), show_seconds(3.14), show_seconds(5400)
    ('21 ms', '3.1 s', '90 min')
    """
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value < 0.1:
        return f"{1000 * value:.2g} ms"
    return f"{value:.0f} s" if value >= 20 else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"
