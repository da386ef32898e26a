"""The group of each row, found by reading the grouping columns alone: the first of two passes over data read cheaply.

Groups are numbered by first occurrence. The number of each row goes to a file, so that memory does not grow with the rows;
the keys go to a note beside it when all rows were seen. With both, an interrupted attempt is
resumed. Notes of another boot of the machine are not trusted, nor is a file whose checksum differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.memory import TableSource
from penstock.blocks.numpy import NpySource
from penstock.blocks.parquet import ParquetSource
from penstock.blocks.storage import is_remote
from penstock.checksum import checksum_path
from penstock.events import Advanced, Finished, Started, Stream
from penstock.groups.keys import Numbering, coded, from_text, to_text
from penstock.groups.scratch import boot
from penstock.outputs import writing
from penstock.parallel import in_order
from penstock.sealed import read_note, write_note


def stretches(sizes: Int64s, nbytes: int, begin: int = 0) -> Iterator[range]:
    """Yield blocks that follow one another, of so many bytes together, from a block on.

    Examples
    --------
    >>> list(stretches(np.array([3, 3, 9, 1]), 6))
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    ends = np.cumsum(sizes)
    while begin < len(ends):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + nbytes, side="right")), begin + 1)
        yield range(begin, end)
        begin = end


def cheap_twice(source: BlockSource) -> bool:
    """Whether reading some columns first costs little: tables and local files that need no parsing."""
    return isinstance(source, (ArrowSource, ParquetSource, NpySource, TableSource)) and not is_remote(source.name)


NUMBERS, COUNTED = "numbers.bin", "counted.json"
_ROW_BYTES = 40
"""What counting takes for each row beside its values."""
_STEP = 1 << 18
"""Rows whose numbers are looked at together."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the first pass found.

    Attributes
    ----------
    numbers : Path
        A file with the number of each row's group, as int32.
    numbering : Numbering
        The groups.
    rows : int64 array
        The rows of each group.
    resumed : bool
        Whether an earlier attempt found it.
    """

    numbers: Path
    numbering: Numbering
    rows: Int64s
    resumed: bool = False

    def read(self, first: int, last: int) -> Int64s:
        """Return the numbers of the groups of some rows."""
        return np.fromfile(self.numbers, np.int32, last - first, offset=4 * first).astype(np.int64)

    def before(self, row: int) -> Int64s:
        """Return how many rows of each group stand before a row."""
        return count_numbers(self.numbers, row, len(self.numbering))


def count(
    source: BlockSource,
    by: Sequence[str],
    kinds: Sequence[pa.DataType],
    folder: Path,
    *,
    together: int,
    threads: int,
    stream: Stream,
) -> Counted:
    """Number the groups of all rows, or find that it was done.

    ``kinds`` are the types of the keys; numbers and note are kept in ``folder``. As many tasks as ``threads`` go on at a time, each of
    which may take ``together`` bytes.
    """
    total = int(source.block_rows.sum())
    found = _resumed(folder, kinds, total)
    if found is not None:
        return found
    columns = list(by)
    tasks = list(stretches(_sizes(source, columns), together))

    def read(number: int) -> tuple[NDArray[np.int64], list[Any]]:
        parts = [source.read(block, columns) for block in tasks[number]]
        return coded([pa.chunked_array([rows.column(name) for rows in parts]) for name in by], kinds)

    numbering = Numbering()
    path = folder / NUMBERS
    stream.emit(Started("scan", total, "rows"))
    with path.open("wb") as file, closing(in_order(read, range(len(tasks)), threads=threads)) as results:
        for codes, keys in results:
            with writing(path):
                file.write(numbering.number(keys).astype(np.int32)[codes].data)
            stream.emit(Advanced("scan", len(codes)))
    note = {
        "boot": boot(),
        "pyarrow": pa.__version__,
        "keys": [to_text(key) for key in numbering.keys],
        "numbers": checksum_path(path),
    }
    write_note(folder / COUNTED, note)
    stream.emit(Finished("scan"))
    return Counted(path, numbering, count_numbers(path, total, len(numbering)))


def count_numbers(numbers: Path, rows: int, groups: int) -> Int64s:
    """Return how many of the first so many rows are of each group."""
    counts = np.zeros(groups, np.int64)
    for at in range(0, rows, _STEP):
        some = np.fromfile(numbers, np.int32, min(_STEP, rows - at), offset=4 * at)
        counts += np.bincount(some, minlength=groups)
    return counts


def _resumed(folder: Path, kinds: Sequence[pa.DataType], rows: int) -> Counted | None:
    """Return what an earlier attempt found, if it can be trusted: places in files may change with the version of Arrow."""
    path = folder / NUMBERS
    try:
        note = read_note(folder / COUNTED)
        if not boot() or (note["boot"], note["pyarrow"]) != (boot(), pa.__version__) or path.stat().st_size != 4 * rows:
            return None
        if note["numbers"] != checksum_path(path):
            return None
        numbering = Numbering(from_text(text, kinds) for text in note["keys"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Counted(path, numbering, count_numbers(path, rows, len(numbering)), resumed=True)


def _sizes(source: BlockSource, columns: Sequence[str]) -> Int64s:
    """Return what reading these columns of each block takes; of text it may be nearly all that is stored."""
    widths = [_width(source.schema.field(name).type) for name in columns]
    known = [width for width in widths if width is not None]
    sizes: Int64s = source.block_rows * (_ROW_BYTES + sum(known))
    return sizes if len(known) == len(widths) else sizes + source.block_bytes


def _width(kind: pa.DataType) -> int | None:
    """Return the bytes of a value, or None where they are not always the same."""
    try:
        return int(kind.bit_width) // 8 + 1
    except ValueError:
        return None
