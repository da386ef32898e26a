"""What is expected of a plan before it runs, in one form for every door, and its text for people.

A door measures what it needs and hands over the costs of its strategies, its facts (which are the JSON), and sections of
text: a heading, lines and perhaps a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from penstock.budget import show_bytes
from penstock.measure_lines import strict_json
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


@dataclass(frozen=True, slots=True)
class StrategyCost:
    """What one strategy will cost.

    Attributes
    ----------
    strategy : str
        Its name.
    seconds, first_seconds : float
        A later epoch, once the page cache holds what it can, and the first one, read from storage; NaN where no time is
        predicted.
    prepare_seconds : float
        Before the first epoch: writing a shuffled copy, decoding row groups, converting, or sorting rows by group.
    memory_bytes, disk_bytes : int
        What it holds in memory, and what it writes to disk beside the data.
    quality : float or None
        How much labels of batches vary, as a multiple of a full shuffle's; None where that is not known.
    note : str
        What else there is to know.
    """

    strategy: str
    seconds: float
    first_seconds: float
    prepare_seconds: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    quality: float | None = None
    note: str = ""

    def total(self, epochs: int) -> float:
        """Return the seconds of a training: preparation, the first epoch and the later ones."""
        return self.prepare_seconds + self.first_seconds + max(0, epochs - 1) * self.seconds


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is expected of a plan: ``print`` it, or take its ``to_dict()``.

    Attributes
    ----------
    facts : mapping
        All that is known, by its name in the JSON; each is an attribute too, such as ``explanation.recommendation``.
    costs : tuple of StrategyCost
        What each strategy will cost.
    sections : tuple of Section
        The text for people.
    command : str
        The line to run, where there is one to recommend.
    notices : tuple of Text
        What to look out for.
    seconds : float
        How long the explanation took.
    """

    facts: Mapping[str, Any]
    costs: tuple[StrategyCost, ...]
    sections: tuple[Section, ...]
    command: str = ""
    notices: tuple[Text, ...] = ()
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        if name != "facts" and name in self.facts:
            return self.facts[name]
        raise AttributeError(f"this explanation has no {name!r}")

    def cost(self, strategy: str) -> StrategyCost:
        """Return what was predicted of one strategy."""
        return next(cost for cost in self.costs if cost.strategy == strategy)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notices in Python's words."""
        return tuple(map(str, self.notices))

    def to_dict(self, wording: Wording = PYTHON) -> dict[str, Any]:
        """Return plain JSON; numbers that are not finite are None."""
        notices = [text.render(wording) for text in self.notices]
        facts = {**self.facts, "command": self.command, "warnings": notices, "seconds": self.seconds}
        return {name: _plain(value, wording) for name, value in facts.items()}

    def lines(self, wording: Wording = PYTHON) -> list[str]:
        """Return the explanation for people; advice names options in the words of one face."""
        return format_sections(self.sections, self.notices, wording)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _plain(value: Any, wording: Wording) -> Any:
    """Return strict JSON of plain values, texts, and dataclasses, by their own ``to_dict`` where they have one."""
    if isinstance(value, Text):
        return value.render(wording)
    if isinstance(value, (list, tuple)):
        return [_plain(each, wording) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        own = getattr(value, "to_dict", None)
        value = asdict(value) if own is None else own()
    return strict_json(value)
