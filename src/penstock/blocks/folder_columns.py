"""Columns that stand in the names of folders, as in ``country=FR/device=ios/part-0.parquet``, and files read with them.

A file has one value of such a column, so nothing is stored: it is added to rows as they are read. A column that the files have
themselves is theirs.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from penstock.blocks.base import BlockSource, PackedLayout, WrappedSource, require_columns
from penstock.blocks.storage import expand
from penstock.errors import DataError

if TYPE_CHECKING:
    from penstock.blocks.fields import Fields
    from penstock.blocks.row_layout import RowLayout

NULL = "__HIVE_DEFAULT_PARTITION__"
_ABILITIES = ("whole_units", "pieces")
"""What some sources can do beside the contract; each returns the same rows in other blocks."""


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


@dataclass(frozen=True, slots=True)
class AddedColumns:
    """Columns beside those that files have: the schema of all, the values of each, and which of these is that of a file."""

    schema: pa.Schema
    values: Mapping[str, pa.Array]
    place: Mapping[str, int]

    @classmethod
    def of(cls, data: Any, schema: pa.Schema, *, suffixes: Sequence[str]) -> AddedColumns | None:
        """Return the columns that the names of folders add to files with a schema; None where there are none."""
        found = folder_columns(data, suffixes=suffixes)
        added = {} if found is None else {n: found.column(n) for n in found.names if n not in schema.names}
        if found is None or not added:
            return None
        for name, values in added.items():
            schema = schema.append(pa.field(name, values.type))
        return cls(schema, added, {file: at for at, file in enumerate(found.files)})

    def stored(self, wanted: Sequence[str]) -> list[str]:
        """Return the columns to read for those wanted: one at least, to know how many rows there are."""
        return [name for name in wanted if name not in self.values] or self.schema.names[:1]

    def join(self, rows: pa.RecordBatch, wanted: Sequence[str], file: str) -> pa.RecordBatch:
        """Return rows of a file with the columns wanted, in that order."""
        at = self.place[file]
        arrays = [
            pa.repeat(self.values[name][at], len(rows)) if name in self.values else rows.column(name) for name in wanted
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in wanted]))


class FolderSource(WrappedSource):
    """A source with columns more that have one value in each file."""

    def __init__(self, source: BlockSource, added: AddedColumns) -> None:
        super().__init__(source)
        self._added = added
        self.schema = added.schema

    @property
    def fingerprint(self) -> str:
        """A hash over the files' own and the values in the names of their folders."""
        digest = hashlib.blake2b(self.stored.fingerprint.encode(), digest_size=16)
        for name, values in self._added.values.items():
            digest.update(f"{name}={values.to_pylist()}|".encode())
        return digest.hexdigest()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        rows = self.stored.read(block, self._added.stored(wanted))
        if rows.schema.names == wanted:
            return rows
        return self._added.join(rows, wanted, self.stored.file_of(block)[0])

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows in smaller blocks; see `BlockSource.refine`."""
        finer = self.stored.refine(rows, most)
        return None if finer is None else FolderSource(finer, self._added)

    def __getattr__(self, name: str) -> Callable[..., FolderSource]:
        """Return an ability that the files' source has and that a source need not have."""
        if name not in _ABILITIES:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        ability = getattr(self.stored, name)
        return lambda *args: FolderSource(ability(*args), self._added)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where rows of these columns lie, or None where one of them lies nowhere."""
        if any(name in self._added.values for name in (features, label, weight)):
            return None
        return self.stored.packed(features, label, weight)

    def row_layout(self, fields: Fields) -> RowLayout | None:
        """Return at which bytes single rows lie, or None where a column lies nowhere."""
        return None if any(name in self._added.values for name in fields.columns) else self.stored.row_layout(fields)

    def unit_bytes_of(self, columns: Sequence[str]) -> int:
        """Return what a piece that is half read keeps in memory, if these columns are read."""
        return self.stored.unit_bytes_of([name for name in columns if name not in self._added.values])
