"""A folder of rows sorted by group: which groups there are, how many rows each has, and the rows themselves.

Every block is one record batch of one group. Blocks are read as views of a memory map, so that many processes on a machine
share one copy, the system's, and reading a block again costs nothing; each process verifies a block when it first reads
it. The folder is never changed once it is there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import sealed
from penstock.batch import Batch, Csr
from penstock.blocks.base import Int64s
from penstock.blocks.ipc import Footer, read_footer
from penstock.blocks.storage import LocalFile
from penstock.checksum import checksum
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.errors import CorruptFileError, DataError, SourceNotFoundError, UsageError, nearest, some_of
from penstock.groups import keys
from penstock.groups.keys import Key
from penstock.sealed import read_sealed_parquet

NOTE = "grouped.json"
BLOCKS = "blocks.parquet"
GROUPS = "groups.parquet"
VERSION = 1


def rows_name(number: int) -> str:
    """Return the name of a file of rows."""
    return f"rows-{number:05d}.arrow"


class Grouped(Closing):
    """Rows by group, as `penstock.groups.etl.group` wrote them.

    Attributes
    ----------
    folder : Path
        Where they are.
    by : tuple of str
        The grouping columns.
    keys : list of Key
        The groups' keys, by number.
    rows : int64 array
        The rows of each group.
    recipe : Recipe
        How columns became features, and labels targets.
    width : int
        The number of features.
    block_group, block_rows, block_first : int64 array
        Of each block: its group, its rows, and the number within the group of its first row.
    nbytes : int
        Bytes of all the rows.
    note : dict
        What the folder says of itself.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa
    >>> from penstock.groups.etl import group
    >>> folder = tempfile.TemporaryDirectory()
    >>> table = pa.table({"country": ["FR", "DE", "FR"], "x": [1.0, 2.0, 3.0], "y": [0, 1, 1]})
    >>> grouped = group(table, "country", os.path.join(folder.name, "g"), label="y", memory="100MB")
    >>> grouped.texts, grouped.rows.tolist()
    (['FR', 'DE'], [2, 1])
    >>> grouped.read(grouped.blocks(0)[0]).x.tolist()
    [[1.0], [3.0]]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.note = read_grouped_note(self.folder)
        try:
            self.by: tuple[str, ...] = tuple(self.note["by"])
            self.recipe = Recipe.from_dict(self.note["encoder"])
            self.width = int(self.note["width"])
            self.nbytes = int(self.note["bytes"])
            self.fingerprint = str(self.note["asked"]["fingerprint"])
            self._sizes: list[int] = [int(size) for size in self.note["files"]]
            self._sparse, self._weighted = self.recipe.sparse, self.recipe.weighted
            groups, blocks = (read_sealed_parquet(self.folder / name) for name in (GROUPS, BLOCKS))
            names = ("group", "rows", "first", "entries", "file", "at", "batch")
            columns = [blocks.column(name).to_numpy() for name in names]
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise self._damaged(error) from error
        self.block_group, self.block_rows, self.block_first, self._entries, self._file, self._at, self._batch = columns
        self._verified = np.zeros(len(self.block_rows), np.bool_)
        self.rows: Int64s = groups.column(2).to_numpy()
        self._groups = groups
        self._first = np.searchsorted(self.block_group, np.arange(len(self.rows) + 1))
        for number, size in enumerate(self._sizes):
            path = self.folder / rows_name(number)
            if not path.exists() or path.stat().st_size != size:
                raise self._damaged(f"{path.name} should have {size} bytes")
        self._maps: dict[int, mmap.mmap] = {}
        self._footers: dict[int, Footer] = {}

    @cached_property
    def keys(self) -> list[Key]:
        """The groups' keys, by number."""
        return keys.from_columns(self._groups.columns[3:]) if self.by else [()] * len(self)

    @cached_property
    def texts(self) -> list[str]:
        """The groups' keys as text, by number."""
        texts: list[str] = self._groups.column(1).to_pylist()
        return texts

    @property
    def kinds(self) -> list[pa.DataType]:
        """The types of the grouping columns."""
        return [field.type for field in list(self._groups.schema)[3:]]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<Grouped {str(self.folder)!r}: {len(self)} groups, {int(self.rows.sum())} rows>"

    def number(self, group: str | Key) -> int:
        """Return the number of the group with a key, given as text or as a tuple of values."""
        text = group if isinstance(group, str) else keys.to_text(tuple(group))
        if text not in self._numbers:
            raise UsageError(
                f"{self.folder} has no group {text!r} by {'/'.join(self.by)}; it has:"
                f" {some_of(self.texts, 10)}{nearest(text, self.texts[:10_000])}"
            )
        return self._numbers[text]

    def blocks(self, group: int) -> Int64s:
        """Return the numbers of a group's blocks, in the order of its rows."""
        if group == self.pooled:
            return np.arange(len(self.block_rows), dtype=np.int64)
        if not 0 <= group < len(self.rows):
            raise UsageError(f"{self.folder} has no group {group}; it has {len(self.rows)}, numbered from 0")
        return np.arange(self._first[group], self._first[group + 1], dtype=np.int64)

    @property
    def pooled(self) -> int:
        """The number that stands for a group of all rows, those of one group after those of another."""
        return len(self.rows)

    def size(self, group: int) -> int:
        """Return the number of a group's rows, the pooled one included."""
        return int(self.rows.sum() if group == self.pooled else self.rows[group])

    def within(self, group: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks that hold a range of a group's rows, each with the number of its first row there."""
        blocks = self.blocks(group)
        starts = self._starts if group == self.pooled else self.block_first[blocks]
        low = max(0, int(np.searchsorted(starts, first, side="right")) - 1)
        for place in range(low, int(np.searchsorted(starts, end))):
            yield int(blocks[place]), int(starts[place])

    def read(self, block: int) -> Batch:
        """Return a block's rows as views of the file; only the row borders of sparse ones are a copy."""
        number = int(block)
        if not 0 <= number < len(self.block_rows):
            raise UsageError(f"{self.folder} has no block {number}; it has {len(self.block_rows)}, numbered from 0")
        data = self._map(int(self._file[number]))
        if not self._verified[number]:
            self._verify(number, data)
        rows, entries, at = int(self.block_rows[number]), int(self._entries[number]), int(self._at[number])

        def column(kind: Any, count: int) -> Any:
            nonlocal at
            found = np.frombuffer(data, kind, count, at)
            at += padded(found.nbytes)
            return found

        x: Any
        if self._sparse:
            ends, indices = column(np.int32, rows + 1), column(np.uint32, entries)
            at += padded(ends.nbytes)  # the same borders again, of the values
            x = Csr(ends.astype(np.uint64), indices, column(np.float32, entries), self.width)
        else:
            x = column(np.float32, rows * self.width).reshape(rows, self.width)
        return Batch(x, column(np.float32, rows), column(np.float32, rows) if self._weighted else None)

    def batch(self, group: int, first_block: int = 0, last_block: int | None = None) -> list[Batch]:
        """Return some of a group's blocks, from its ``first_block`` up to, not including, its ``last_block``."""
        return [self.read(block) for block in self.blocks(group)[first_block:last_block]]

    def close(self) -> None:
        """Let go of the maps; rows that were read stay as long as they are used."""
        self._maps.clear()

    def __reduce__(self) -> tuple[Callable[..., Grouped], tuple[str]]:
        return Grouped, (str(self.folder),)

    @cached_property
    def _starts(self) -> Int64s:
        """Of each block, the number of its first row among all rows."""
        starts: Int64s = np.cumsum(self.block_rows) - self.block_rows
        return starts

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self.texts)}

    def _map(self, number: int) -> mmap.mmap:
        found = self._maps.get(number)
        if found is None:
            try:
                file = LocalFile(self.folder / rows_name(number))
                try:
                    self._footers[number] = read_footer(file)
                    found = mmap.mmap(file.fd or 0, 0, access=mmap.ACCESS_READ)
                finally:
                    file.close()
            except (OSError, ValueError) as error:
                raise self._damaged(error) from error
            found = self._maps.setdefault(number, found)
        return found

    def _verify(self, number: int, data: mmap.mmap) -> None:
        """Compare a block with its checksum, the first time that it is read by this process."""
        file, batch = int(self._file[number]), int(self._batch[number])
        footer = self._footers[file]
        offset, nbytes = int(footer.offset[batch]), int(footer.meta[batch] + footer.body[batch])
        expected = int(footer.sums[batch])
        if expected and checksum(np.frombuffer(data, np.uint8, nbytes, offset), offset) != expected:
            raise self._damaged(f"block {number}, in {rows_name(file)}, is not what was written: its checksum differs")
        self._verified[number] = True

    def _damaged(self, what: object) -> CorruptFileError:
        return CorruptFileError(f"{self.folder} is damaged ({what}); remove it and group the data again")


def open_grouped(data: Any, by: Sequence[str], label: str | None) -> Grouped | None:
    """Open a folder of grouped rows, as it was asked for; None for data that are not grouped yet.

    Raises
    ------
    UsageError
        The rows are by other columns, or of another label.
    """
    if not (isinstance(data, str | os.PathLike) and (Path(data) / NOTE).is_file()):
        return None
    grouped = Grouped(data)
    if list(grouped.by) != list(by):
        raise UsageError(f"{data} holds rows by {', '.join(grouped.by)}, not by {', '.join(by)}")
    if label is not None and label != grouped.recipe.label:
        raise UsageError(f"{data} holds rows whose label is {grouped.recipe.label!r}, not {label!r}")
    return grouped


def padded(nbytes: Any) -> Any:
    """Return the room that so many bytes take in a record batch."""
    return -(-nbytes // 8) * 8


def read_grouped_note(folder: Path) -> dict[str, Any]:
    """Return what a folder of grouped rows says of itself."""
    try:
        note = sealed.read_note(folder / NOTE)
    except FileNotFoundError:
        raise SourceNotFoundError(
            f"{folder} is not a folder of grouped rows: it has no {NOTE}; make one with penstock.groups.etl.group"
        ) from None
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{folder / NOTE} cannot be read ({error}); remove {folder} and group again") from error
    if not isinstance(note, dict) or note.get("version") != VERSION:
        raise DataError(
            f"{folder} was written by another version of Penstock"
            f" ({note.get('version') if isinstance(note, dict) else note!r}, here {VERSION}); group the data again"
        )
    return note
