"""Files with the columns that stand in the names of their folders, such as ``country=FR/part-0.parquet``.

A file has one value of such a column, so nothing is stored: it is added to each block as it is read. A column that the files have
themselves is theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.blocks.base import BlockSource, PackedLayout, WrappedSource, require_columns
from penstock.blocks.folder_columns import folder_columns

if TYPE_CHECKING:
    from penstock.blocks.fields import Fields
    from penstock.blocks.row_layout import RowLayout

_ABILITIES = ("whole_units", "pieces")
"""What some sources can do beside the contract; each returns the same rows in other blocks."""


def with_folder_columns(source: BlockSource, data: Any, files: Sequence[str], suffixes: Sequence[str]) -> BlockSource:
    """Return a source of these files with the columns that the names of their folders give; itself where there are none."""
    found = folder_columns(data, suffixes=suffixes) if any("=" in file for file in files) else None
    added = {} if found is None else {n: found.column(n) for n in found.names if n not in source.schema.names}
    if found is None or not added:
        return source
    place = {file: at for at, file in enumerate(found.files)}
    return FolderSource(source, added, place)


class FolderSource(WrappedSource):
    """A source with columns more that have one value in each file.

    Parameters
    ----------
    source : BlockSource
        The files.
    added : dict of pyarrow.Array
        The columns, each with a value for every file.
    place : dict of int
        Which of the values is that of a file, by its name.
    """

    def __init__(self, source: BlockSource, added: Mapping[str, pa.Array], place: Mapping[str, int]) -> None:
        super().__init__(source)
        self._added, self._place = added, place
        for name, values in added.items():
            self.schema = self.schema.append(pa.field(name, values.type))

    @property
    def fingerprint(self) -> str:
        """A hash over the files' own and the values in the names of their folders."""
        digest = hashlib.blake2b(self.stored.fingerprint.encode(), digest_size=16)
        for name, values in self._added.items():
            digest.update(f"{name}={values.to_pylist()}|".encode())
        return digest.hexdigest()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        # Some column has to be asked for, to know how many rows there are.
        asked = [name for name in wanted if name not in self._added] or self.stored.schema.names[:1]
        rows = self.stored.read(block, asked)
        if len(asked) == len(wanted) and not any(name in self._added for name in wanted):
            return rows
        at = self._place[self.stored.file_of(block)[0]]
        arrays = [
            pa.repeat(self._added[name][at], len(rows)) if name in self._added else rows.column(name) for name in wanted
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in wanted]))

    def refine(self, rows: int, most: int) -> BlockSource | None:
        """Return the same rows in smaller blocks; see `BlockSource.refine`."""
        finer = self.stored.refine(rows, most)
        return None if finer is None else FolderSource(finer, self._added, self._place)

    def __getattr__(self, name: str) -> Callable[..., FolderSource]:
        """Return an ability that the files' source has and that a source need not have."""
        if name not in _ABILITIES:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        ability = getattr(self.stored, name)
        return lambda *args: FolderSource(ability(*args), self._added, self._place)

    def packed(self, features: str, label: str | None, weight: str | None) -> PackedLayout | None:
        """Return where rows of these columns lie, or None where one of them lies nowhere."""
        if any(name in self._added for name in (features, label, weight)):
            return None
        return self.stored.packed(features, label, weight)

    def row_layout(self, fields: Fields) -> RowLayout | None:
        """Return at which bytes single rows lie, or None where a column lies nowhere."""
        return None if any(name in self._added for name in fields.columns) else self.stored.row_layout(fields)

    def unit_bytes_of(self, columns: Sequence[str]) -> int:
        """Return what a piece that is half read keeps in memory, if these columns are read."""
        return self.stored.unit_bytes_of([name for name in columns if name not in self._added])
