"""What ``penstock groups train`` is to try: ``--try l2=1,0.1`` as often as there are parameters, or ``--grid FILE.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.messages import UNSET

if TYPE_CHECKING:
    from penstock.groups.search_space import Search


def search_of(grid: str | None, tries: Sequence[str], *, known: Mapping[str, Any]) -> Search:
    """Return what to try, held against what the model takes.

    Examples
    --------
    >>> from penstock.groups.search_space import LINEAR
    >>> len(search_of(None, ["l2=1,0.1", "epochs=5,10,20"], known=LINEAR).choices())
    6
    >>> search_of(None, ["l2=-1"], known=LINEAR)
    Traceback (most recent call last):
    penstock.errors.UsageError: --try l2=-1: l2 = -1 is out of range; choose a number of at least 0
    """
    from penstock.groups.search_space import Search

    if grid is not None and tries:
        raise UsageError("--grid and --try both say what to try; put all of it in the file, or leave --grid out")
    place = f"--grid {grid}" if grid is not None else " ".join(f"--try {text}" for text in tries)
    values = _values(tries)
    try:
        search = Search.from_toml(grid) if grid is not None else Search.grid(values)
        search.choices(known)
    except UsageError as error:
        error = error.replace(place=place)
        error.wording = _TableWording()
        raise error from None
    return search


@dataclass(frozen=True, slots=True)
class _TableWording:
    """Parameters as a search's file has them: the command has no options of these names."""

    def given(self, option: str, value: object) -> str:
        """Return ``name = value``."""
        if value is UNSET:
            return option
        return repr(value) if option == "search" else f"{option} = {value!r}"  # a search is the file itself

    use = given

    def name(self, option: str) -> str:
        """Return the name."""
        return option


def _values(tries: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in tries:
        name, equals, values = (part.strip() for part in text.partition("="))
        texts = [value.strip() for value in values.split(",")]
        if not equals or not name or not all(texts):
            raise UsageError(f"--try {text} is not a name with its values; write --try l2=1,0.1,0.01")
        if name in found:
            raise UsageError(f"--try {text}: {name} was given before; write all its values in one --try")
        found[name] = [_value(each) for each in texts]
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)
