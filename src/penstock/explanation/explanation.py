"""What is expected of a plan before it runs, in one form for every door: training, models on disk, factorizations, groups.

A door measures what it needs and hands over the costs of its strategies, its facts (which are the JSON), and sections of
text; `penstock.explanation.formatting` is the one formatter for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from penstock.explanation.formatting import Section, format_sections
from penstock.measure_lines import strict_json
from penstock.messages import PYTHON, Text, Wording


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
