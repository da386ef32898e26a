"""Versions of a model: their numbers, the names of their rows, and what a row's header says of how it came about.

A model's default version is the row of its own name; the row of another version is called ``m@2``. So a version that was replaced is
read like any model, by earlier versions of Penstock too, and no table has to change. A header without a number is of the time before
versions: of the model's name it is its first version, of a name such as ``m@2`` it is a model of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ModelFileError, UsageError

VERSION = "version"
"""The part of a header that has the number, and `ModelOrigin`."""
LAST = "last"
"""In it: the highest number that there was, where the version of that number was dropped."""

_FIRST = ("number", LAST)
_NUMBERS = re.compile(r'\s*\{\s*"version"\s*:\s*\{\s*"number"\s*:\s*(\d+)(?:\s*,\s*"last"\s*:\s*(\d+))?')
_VERSION_NAME = re.compile(r"(.+)@([1-9][0-9]{0,8})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """Where a version comes from: its statement, the user who ran it, and the snapshot of the rows, as far as that is known."""

    statement: str = ""
    owner: str | None = None
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model: its number, the name of its row, and when it was made, in microseconds.

    ``last`` is the highest number that it knows of; ``numbered`` says whether the row has its number.
    """

    number: int
    row: str
    made: int
    last: int
    numbered: bool = True
    is_default: bool = False


def split_version(name: str) -> tuple[str, int | None]:
    """Take a name apart: that of the model, and the number of a version or None.

    Examples
    --------
    >>> split_version("m@12"), split_version("m"), split_version("me@home")
    (('m', 12), ('m', None), ('me@home', None))
    """
    found = _VERSION_NAME.fullmatch(name)
    return (name, None) if found is None else (found[1], int(found[2]))


def version_name(name: str, number: int) -> str:
    """Return the name of a version."""
    return f"{name}@{number}"


def require_name(name: str) -> None:
    """Raise for what cannot be a model's name, or would be taken for a version's."""
    if not name or "\0" in name:
        raise UsageError(f"a model cannot be called {name!r}; give it a name of letters")
    base, number = split_version(name)
    if number is not None:
        raise UsageError(
            f"a model cannot be called {name!r}, which means version {number} of the model {base!r}; leave out @{number}"
        )


def header_of_version(content: Mapping[str, Any], version: Mapping[str, Any]) -> str:
    """Write a header with what is known of the version, the number first, so that it can be told by how the header begins."""
    rest = {key: value for key, value in content.items() if key != VERSION}
    return json.dumps(
        {VERSION: dict(sorted(version.items(), key=lambda item: item[0] not in _FIRST)), **rest}, allow_nan=False
    )


def number_of_header(start: str) -> int | None:
    """Return the number of a version by how its header begins; None where it has none.

    Examples
    --------
    >>> number_of_header(header_of_version({"kind": "svm"}, {"owner": "me", "number": 3})), number_of_header('{"kind": "svm"}')
    (3, None)
    """
    return _numbers(start)[0]


def _numbers(start: str) -> tuple[int | None, int | None]:
    found = _NUMBERS.match(start)
    return (None, None) if found is None else (int(found[1]), None if found[2] is None else int(found[2]))


def versions_of_rows(name: str, rows: Sequence[Sequence[Any]]) -> list[ModelVersion]:
    """Return a model's versions in the order of their numbers.

    ``rows`` are those called by the model's name, or by that with ``@`` after it: their names, how their headers begin, and when they
    were made.

    Examples
    --------
    >>> rows = [("m", "{}", 5), ("m@2", header_of_version({}, {"number": 2}), 7), ("m@home", "{}", 6)]
    >>> found = versions_of_rows("m", rows)
    >>> [(version.number, version.row, version.is_default) for version in found]
    [(1, 'm', True), (2, 'm@2', False)]
    """
    taken = {number for row, *_ in rows for base, number in [split_version(row)] if number is not None and base == name}
    own, found = split_version(name)[1], []
    for row, start, made in rows:
        number = number_of_header(start)
        numbered, is_default = number is not None, row == name
        if is_default and own is not None and own == number:
            continue  # the name is that of a version
        if is_default:
            number = number or (1 if 1 not in taken else max(taken) + 1)
        elif number is None or row != version_name(name, number):
            continue
        last = max(number, _numbers(start)[1] or 0)
        found.append(ModelVersion(number, row, int(made), last, numbered, is_default))
    return sorted(found, key=lambda version: version.number)


def next_number(versions: Sequence[ModelVersion], names: Sequence[str] = ()) -> int:
    """Return the number of a new version: one that no version has had, and by which no row in ``names`` is called."""
    return 1 + max([version.last for version in versions] + [split_version(name)[1] or 0 for name in names], default=0)


def origin_of_header(header: Mapping[str, Any]) -> ModelOrigin:
    """Return where a version comes from; its snapshot is the server's, or a fingerprint of the rows."""
    known = header.get(VERSION, {})
    index = header.get("groups", {}).get("index", {})
    read = header["metrics"].get("snapshots") or [header.get("fingerprint") or index.get("fingerprint")]
    snapshot = known.get("snapshot") or ", ".join(filter(None, read)) or None
    return ModelOrigin(known.get("statement") or "", known.get("owner"), snapshot)


def the_version(versions: Sequence[ModelVersion], name: str, number: int) -> ModelVersion:
    """Return the version of a number; raise where there is none."""
    for version in versions:
        if version.number == number:
            return version
    there = ", ".join(str(version.number) for version in versions)
    raise ModelFileError(f"model {name!r} has no version {number}; it has: {there}; SHOW VERSIONS {name} lists them")
