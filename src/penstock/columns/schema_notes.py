"""What a schema's metadata say of its columns: the layout that `penstock convert` noted, and the index of a pandas table.

pandas writes a table's index beside the columns, as ``__index_level_0__`` or under its own name, and lists it in the
metadata. Such columns are no features unless they are named: row numbers would tell a model in which order rows were stored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.budget import show_share
from penstock.columns.base import NULL_VALUES
from penstock.columns.category import Category
from penstock.columns.level_effects import LevelEffect
from penstock.columns.spelling import ALIKE, ODD_NUMBERS, SPELLED_NUMBERS, SpellingTally, names_help
from penstock.errors import some_of
from penstock.messages import Text, Use

METADATA_KEY = b"penstock"
"""Under this name the schema of a file that Penstock wrote says how it is laid out."""
_LEVELS = 20
"""Levels above which a category is looked at for numbers and dates."""
_NUMBER = re.compile(r"([^\d.,+-]*)[-+]?\d[\d.,]*(\D*)")
_UNNAMED = re.compile(r"__index_level_\d+__")


def layout_of(schema: pa.Schema) -> dict[str, Any]:
    """Return what the converter noted in a file's schema, or an empty dict for foreign files."""
    noted = (schema.metadata or {}).get(METADATA_KEY)
    try:
        read = json.loads(noted) if noted else {}
    except ValueError:
        return {}
    return read if isinstance(read, dict) and read.get("version") == 1 else {}


def index_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that hold the index of the pandas table that was stored.

    Examples
    --------
    >>> index_columns(pa.schema([("x", pa.float32()), ("__index_level_0__", pa.int64())]))
    ['__index_level_0__']
    """
    try:
        stored = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        noted = stored.get("index_columns", [])
    except (ValueError, AttributeError):  # of another program
        noted = []
    noted = [*(noted if isinstance(noted, list) else []), *layout_of(schema).get("index", [])]
    return [name for name in schema.names if name in noted or _UNNAMED.fullmatch(name)]


def index_notice(schema: pa.Schema, used: Collection[str], *, exclude: Sequence[str] = ()) -> str | None:
    """Return a sentence about index columns that are not used though nobody left them out; None where there are none."""
    names = [name for name in index_columns(schema) if name not in used and name not in exclude]
    if not names:
        return None
    shown = ", ".join(map(repr, names))
    verb = "is the index" if len(names) == 1 else "are the indices"
    return f"{shown} {verb} of the pandas table that was stored, and left out; name features to learn from it"


def left_out_notice(left_out: Mapping[str, str]) -> str | None:
    """Return a sentence about columns that are no features, and why; None where there are none.

    Examples
    --------
    >>> left_out_notice({"id": "row numbers"})
    "left out: 'id' (row numbers); name the features to learn from such columns"
    """
    named = {name: why for name, why in left_out.items() if names_help(why)}
    others = {name: why for name, why in left_out.items() if name not in named}
    groups = (named, "; name the features to learn from such columns"), (others, "")
    told = [some_of(f"{name!r} ({why})" for name, why in each.items()) + advice for each, advice in groups if each]
    return f"left out: {'; '.join(told)}" if told else None


def stray_notice(parts: Iterable[Any], named: Sequence[str]) -> Text | None:
    """Return a sentence about values of columns of text that are no numbers or dates though all others are; None without any.

    Parameters
    ----------
    parts : FeatureColumns
        Those of a recipe.
    named : list of str
        The values that a user has named as missing.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for part in parts:
        strays = [
            value for value in getattr(part, "null_values", ()) if value not in NULL_VALUES and value not in named
        ]
        if strays and part.kind in ("number", "date"):
            found.setdefault(part.columns[0], (part.kind, strays))
    if not found:
        return None
    shown = some_of(
        f"{', '.join(map(repr, strays))} in {name!r}, {kind}s but for that" for name, (kind, strays) in found.items()
    )
    first = next(iter(found))
    return Text(
        f"taken as missing: {shown}; say what is meant: ",
        Use("null_values", found[first][1]),
        " or ",
        Use("category", [first]),
    )


def spelling_notice(parts: Iterable[Any], named: Sequence[str] = ()) -> Text | None:
    """Return a sentence about categories whose levels are numbers, as with a unit, or dates in another order; None without any.

    Columns that a user has ``named`` as categories are none of them.

    Examples
    --------
    >>> print(spelling_notice([Category("way", tuple(f"{n} km" for n in range(30)))]))
    text taken as categories: 'way' (numbers with ' km', such as '0 km'); write plain numbers and ISO 8601 dates, or use exclude=['way'] or category=['way']
    """
    spelled = {
        part.column: spelling
        for part in parts
        if isinstance(part, Category)
        and not part.of
        and part.column not in named
        and (spelling := _spelling(part.levels))
    }
    if not spelled:
        return None
    shown = some_of(f"{name!r} ({spelling})" for name, spelling in spelled.items())
    return Text(
        f"text taken as categories: {shown}; write plain numbers and ISO 8601 dates, or use ",
        Use("exclude", list(spelled)),
        " or ",
        Use("category", list(spelled)),
    )


def date_numbers_notice(place: str, names: Sequence[str]) -> Text:
    """Return a sentence about columns of whole numbers that are dates.

    Examples
    --------
    >>> print(date_numbers_notice("a.csv", ["day"]))
    a.csv: dates written as numbers, such as 20220610, are learned from as quantities: 'day'; write them as 2022-06-10 into the data, or use exclude=['day']
    """
    return Text(
        f"{place}: dates written as numbers, such as 20220610, are learned from as quantities: {some_of(map(repr, names))}; write"
        " them as 2022-06-10 into the data, or use ",
        Use("exclude", names),
    )


def codes_notice(codes: Mapping[str, LevelEffect], label: str | None) -> Text:
    """Return a sentence about columns of whole numbers that are learned from as quantities and seem to be codes.

    Examples
    --------
    >>> print(codes_notice({"plan": LevelEffect(8, 0.21, 0.004)}, "churned"))
    whole numbers are learned from as quantities: 'plan' (its 8 values explain 21% of how 'churned' varies, a line through them 0.4%); if they are codes, use category=['plan']; if not, number=['plan']
    """
    shown = some_of(
        f"{name!r} (its {each.levels} values explain {show_share(each.by_level)} of how {label!r} varies, a line through them"
        f" {show_share(each.by_line)})"
        for name, each in codes.items()
    )
    return Text(
        f"whole numbers are learned from as quantities: {shown}; if they are codes, use ",
        Use("category", list(codes)),
        "; if not, ",
        Use("number", list(codes)),
    )


def _spelling(levels: Sequence[str]) -> str | None:
    """Return what texts are that are numbers or dates in another spelling, and one of them."""
    if len(levels) <= _LEVELS:
        return None
    numbers = SpellingTally.of(levels)
    if numbers.dates_spelling:
        return numbers.dates_spelling
    if numbers.spelled_reason:
        return f"{SPELLED_NUMBERS}, such as {numbers.example!r}"
    if numbers.plain >= ALIKE * len(levels) and not numbers.codes:
        return f"{ODD_NUMBERS} some values, such as {levels[0]!r}"
    least = ALIKE * len(levels)
    affixes = Counter(found.groups() for found in map(_NUMBER.fullmatch, levels) if found)
    (before, after), count = max(affixes.items(), key=lambda item: item[1], default=(("", ""), 0))
    if count < least or (before.isalpha() and not after):  # letters right before a number are those of a code
        return None
    shown = " and ".join(repr(affix) for affix in (before, after) if affix)
    return f"numbers with {shown}, such as {levels[0]!r}" if shown else None
