"""Columns that stand in the names of folders, as in ``country=FR/device=ios/part-0.parquet``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.blocks.storage import expand
from penstock.errors import DataError

NULL = "__HIVE_DEFAULT_PARTITION__"


def path_values(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say.

    Examples
    --------
    >>> path_values("clicks/country=C%C3%B4te%2F1/day=__HIVE_DEFAULT_PARTITION__/part=0.parquet")
    {'country': 'Côte/1', 'day': None}
    """
    named = (part.split("=", 1) for part in path.replace(os.sep, "/").split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NULL else unquote(value) for name, value in named if name}


@dataclass(frozen=True, slots=True)
class FolderColumns:
    """The columns in the paths of files: their names, grouping columns first, and the values of each file."""

    files: list[str]
    names: list[str]
    values: list[list[str | None]]
    keys: int

    def column(self, name: str) -> pa.Array:
        """Return a column's value for each file."""
        place = self.names.index(name)
        return typed([each[place] for each in self.values])


def folder_columns(data: Any, by: Sequence[str] = (), *, suffixes: Sequence[str] = ()) -> FolderColumns | None:
    """Return the columns in the paths of files, or None where there are none.

    Grouping columns, ``by``, may stand anywhere in the paths; others below the folder that was named, or that all files
    have in common. Files with other suffixes are passed over, if there are any with these.

    Raises
    ------
    DataError
        The path of one file names a column that the path of another does not.
    """
    found = expand(data) if data else []
    files = [file for file in found if file.lower().endswith(tuple(suffixes))] or found
    values = [path_values(file) for file in files]
    keys = [name for name in by if values and all(name in each for each in values)]
    root = _root(data, files)
    below = [path_values(file[len(root) :]) for file in files]
    others = dict.fromkeys(name for each in below for name in each if name not in keys)
    for name in others:
        lacking = next((file for file, each in zip(files, values, strict=True) if name not in each), None)
        if lacking is not None:
            other = next(file for file, each in zip(files, values, strict=True) if name in each)
            raise DataError(
                f"{other} is of a folder {name}=…, and {lacking} is of none; name the files of one kind, or move them so that"
                f" all paths say what {name!r} is"
            )
    named = [*keys, *others]
    if not named:
        return None
    return FolderColumns(files, named, [[each[name] for name in named] for each in values], len(keys))


def _root(data: Any, files: Sequence[str]) -> str:
    """Return the beginning of all paths that was named by the user, or that they have in common."""
    given = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
    start = given.rstrip("/") + "/"
    if given and all(file.startswith(start) for file in files):
        return start
    folders = [file.replace(os.sep, "/").split("/")[:-1] for file in files]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    return "".join(f"{parts[0]}/" for parts in same)


def typed(values: Sequence[str | None]) -> pa.Array:
    """Return whole numbers as such, if all are, and text otherwise; ``007`` is text."""
    try:
        whole = all(value is None or (str(int(value)) == value and abs(int(value)) < 2**63) for value in values)
    except ValueError:
        whole = False
    if whole and any(value is not None for value in values):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    return pa.array(list(values), pa.string())
