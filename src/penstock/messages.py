"""Messages as data: text in parts, of which those that name options are put into words by the face that shows them.

Code below the faces never spells an option. It writes ``Given("epochs", 0)`` or ``Use("memory", "1GB")``, and a `Wording`
makes ``epochs=0`` of it in Python, ``--epochs 0`` on the command line and ``epochs = 0`` in a statement. Text is shown as
it is, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeAlias

from penstock.command_lines import shell_line


class _Unset(Enum):
    UNSET = "unset"


UNSET: Final = _Unset.UNSET
"""Stands for the value of an option of which only the name is told."""
Unset: TypeAlias = Literal[_Unset.UNSET]


class Wording(Protocol):
    """How one face writes options."""

    def given(self, option: str, value: object) -> str:
        """Write an option as it is set; its name alone where the value is `UNSET`."""

    def use(self, option: str, value: object) -> str:
        """Write an option as the user should set it."""

    def name(self, option: str) -> str:
        """Write an option's name as a word of a sentence."""


@dataclass(frozen=True, slots=True)
class PythonWording:
    """Options as arguments of Python: ``memory='1GB'``."""

    def given(self, option: str, value: object) -> str:
        """Return ``name=value``."""
        return f"{option}={'' if value is UNSET else repr(value)}"

    use = given

    def name(self, option: str) -> str:
        return option


PYTHON = PythonWording()


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it is set: ``memory='1kB'``, ``--memory 1kB``, ``memory = '1kB'``."""

    option: str
    value: object = UNSET

    def render(self, wording: Wording) -> str:
        return wording.given(self.option, self.value)


@dataclass(frozen=True, slots=True)
class Use:
    """An option to set: ``memory='1GB'``, ``--memory 1GB``, ``WITH (memory = '1GB')``."""

    option: str
    value: object = UNSET

    def render(self, wording: Wording) -> str:
        return wording.use(self.option, self.value)


@dataclass(frozen=True, slots=True)
class Name:
    """An option's name as a word of a sentence: ``memory``, ``--memory``, ``memory``."""

    option: str

    def render(self, wording: Wording) -> str:
        return wording.name(self.option)


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Advice to give an option no more: ``leave memory out``."""

    option: str

    def render(self, wording: Wording) -> str:
        return f"leave {wording.name(self.option)} out"


@dataclass(frozen=True, slots=True)
class Command:
    """A command for a shell, which is the same in every face.

    Examples
    --------
    >>> str(Text("run: ", Command(("ray", "start"), {"head": True})))
    'run: ray start --head'
    """

    words: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def render(self, wording: Wording = PYTHON) -> str:
        return shell_line(self.words, self.options)

    def __str__(self) -> str:
        return self.render()


@dataclass(frozen=True, slots=True)
class Convert:
    """The command that writes data in the fast layout; ``SRC`` stands for data that cannot be named in a shell."""

    data: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def render(self, wording: Wording = PYTHON) -> str:
        return shell_line(("penstock", "convert", self.data, "DST.arrow"), self.options)

    def __str__(self) -> str:
        return self.render()


@dataclass(frozen=True, slots=True)
class Location:
    """Where something stands: in a file, table or query, or in a script of SQL.

    Attributes
    ----------
    source : str
        What the file, table or query is called.
    line, character : int, optional
        In a text, both counted from 1.
    row : int, optional
        Counted from 0.
    column : str, optional
        Its name.
    excerpt : str
        The line of a script with a caret below the place, shown behind the message.

    Examples
    --------
    >>> print(Location("a.csv", line=3), Location("t", row=7, column="x"), Location(line=2, character=5), sep="; ")
    a.csv:3; t: row 7, column 'x'; line 2, column 5
    """

    source: str = ""
    line: int | None = None
    character: int | None = None
    row: int | None = None
    column: str | None = None
    excerpt: str = ""

    def render(self, wording: Wording = PYTHON) -> str:
        """Return the text, which is the same in every face."""
        if self.line is not None and self.source:
            start = f"{self.source}:{self.line}"
        elif self.line is not None:
            start = f"line {self.line}" + ("" if self.character is None else f", column {self.character}")
        else:
            start = self.source
        within = [] if self.row is None else [f"row {self.row}"]
        within += [] if self.column is None else [f"column {self.column!r}"]
        return ": ".join(part for part in (start, ", ".join(within)) if part)

    def __str__(self) -> str:
        return self.render()


Reference: TypeAlias = Given | Use | Name | LeaveOut | Command | Convert | Location
TextPart: TypeAlias = "str | Reference | Text"


class Text:
    """Text and references to options, one after another; ``str`` is Python's wording.

    Examples
    --------
    >>> text = Text("start anew without ", Use("resume", True))
    >>> str(text)
    'start anew without resume=True'
    """

    __slots__ = ("parts",)
    parts: tuple[str | Reference, ...]

    def __init__(self, *parts: TextPart) -> None:
        flat: list[str | Reference] = []
        for part in parts:
            flat += part.parts if isinstance(part, Text) else (part,)
        self.parts = tuple(part for part in flat if part != "")

    def render(self, wording: Wording = PYTHON) -> str:
        return "".join(part if isinstance(part, str) else part.render(wording) for part in self.parts)

    def to_list(self) -> list[Any]:
        """Return plain JSON, which `from_list` reads: text as it is, references by their class and fields."""
        return [_listed(part) for part in self.parts]

    @classmethod
    def from_list(cls, parts: Iterable[Any]) -> Text:
        """Read what `to_list` made; values that JSON does not have look as they did."""
        return cls(*map(_unlisted, parts))

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"Text({', '.join(map(repr, self.parts))})"

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Text], tuple[TextPart, ...]]:
        return Text, self.parts


@dataclass(frozen=True, slots=True)
class Shown:
    """Stands for a value that cannot be sent to another process, and looks like it."""

    text: str

    def __repr__(self) -> str:
        return self.text


_LISTED: dict[str, Any] = {kind.__name__: kind for kind in (Given, Use, Name, LeaveOut)}
_JSON = (str, int, float, bool, list, dict, type(None))


def _listed(part: str | Reference) -> Any:
    if not isinstance(part, Given | Use | Name | LeaveOut):
        return part if isinstance(part, str) else part.render(PYTHON)
    value = getattr(part, "value", UNSET)
    if value is UNSET:
        return [type(part).__name__, part.option]
    return [type(part).__name__, part.option, {"value": value} if type(value) in _JSON else {"shown": repr(value)}]


def _unlisted(part: Any) -> str | Reference:
    if isinstance(part, str):
        return part
    kind, option, *rest = part
    values = [each["value"] if "value" in each else Shown(each["shown"]) for each in rest]
    reference: Reference = _LISTED[kind](option, *values)
    return reference


START_ANEW = Text("start anew without ", Use("resume", True))
"""What to do where a checkpoint does not fit."""


def joined(parts: Iterable[TextPart], separator: str = ", ", last: str | None = None) -> Text:
    """Return texts with a separator between them, and another one before the last.

    Examples
    --------
    >>> str(joined(["a", Use("seed", 3), "c"], last=" or "))
    'a, seed=3 or c'
    """
    texts = list(parts)
    out: list[TextPart] = []
    for k, part in enumerate(texts):
        if k:
            out.append(last if last is not None and k == len(texts) - 1 else separator)
        out.append(part)
    return Text(*out)
