"""Checksums of the record batches of Arrow files that Penstock writes, and of all else in such a file.

They stand in the file itself, between the last record batch and the footer, where other readers do not look:

    uint64 × blocks     of each record batch, its header included, seeded with its offset
    uint64              of what comes before the first record batch
    uint64              of what comes after the last one: the end mark and the footer
    uint64              of the numbers before this one
    uint64              how many blocks there are
    8 bytes             a mark

Every byte of the file is covered, so a changed bit is noticed either on opening or when its block is read.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.storage import ReadAt
from penstock.checksum import UNKNOWN, checksum
from penstock.errors import CorruptFileError
from penstock.outputs import insert, read_at

Sums = NDArray[np.uint64]
_MARK = b"PenSums1"
_ENOUGH = 6
"""Bytes of a mark by which it is known, though some of it be damaged."""
_SEARCHED = 1 << 20


def read_sums(file: ReadAt, ends: NDArray[np.int64], first: int, footer: tuple[int, int]) -> Sums | None:
    """Return the checksums of a file's blocks, having verified all of the file but the blocks; None where it has none.

    Parameters
    ----------
    file : ReadAt
        An Arrow file.
    ends : int64 array
        Where each block ends.
    first : int
        Where the first begins, if there are any.
    footer : (int, int)
        Where the footer begins, and how many bytes it has.

    Raises
    ------
    CorruptFileError
        The file is damaged.
    """
    at, count = footer[0], len(ends)
    mark = file.read_at(at - 16, 16) if at >= 16 else b""
    if sum(a == b for a, b in zip(mark[8:], _MARK)) < _ENOUGH:
        return None
    size = 8 * (count + 5)
    if mark[8:] != _MARK or int.from_bytes(mark[:8], "little") != count or size > at:
        raise damaged(file, "its list of checksums is not what was written")
    table = np.frombuffer(file.read_at(at - size, size), "<u8")
    if checksum(table[: count + 2].tobytes(), count) != int(table[count + 2]):
        raise damaged(file, "its list of checksums is not what was written")
    end = int(ends[-1]) if count else at - size
    head, tail = file.read_at(0, first if count else end), file.read_at(end, at - size - end)
    tail += file.read_at(at, file.size - at)
    if checksum(head) != int(table[count]) or checksum(tail, 1) != int(table[count + 1]):
        raise damaged(file, "its schema or footer is not what was written")
    return table[:count].astype(np.uint64)


def lost_sums(file: ReadAt) -> bool:
    """Whether a file has a list of checksums, though not where its footer says."""
    size = min(file.size, _SEARCHED)
    return _MARK in file.read_at(file.size - size, size)


def write_sums(path: str | os.PathLike[str], known: dict[tuple[int, int], int] | None = None) -> None:
    """Add checksums to a complete Arrow file; ``known`` are those of blocks, by offset and bytes, that need no reading."""
    from penstock.blocks.ipc import read_footer
    from penstock.blocks.storage import LocalFile

    read = LocalFile(path)
    try:
        footer = read_footer(read)
    finally:
        read.close()
    sizes = footer.meta + footer.body
    with open(path, "r+b") as file:
        places = list(zip(footer.offset.tolist(), sizes.tolist(), strict=True))
        sums = [(known or {}).get(place) or _sum(file, *place) for place in places]
        end = sum(places[-1]) if places else footer.at
        file.seek(0)
        head = checksum(file.read(places[0][0] if places else end))
        file.seek(end)
        table = np.array([*sums, head, checksum(file.read(), 1)], "<u8").tobytes()
        count = len(sums)
        table += checksum(table, count).to_bytes(8, "little") + count.to_bytes(8, "little")
        insert(file, footer.at, table + _MARK)


def verify_block(file: ReadAt, data: Any, *, offset: int, expected: int, block: int) -> None:
    """Raise `CorruptFileError` unless a block's bytes have the checksum expected; one that has none is not looked at."""
    if expected != UNKNOWN and checksum(data, offset) != expected:
        file.check()
        raise damaged_block(file.name, block)


def cut_short(name: str, block: int, *, fd: int, offset: int, nbytes: int) -> CorruptFileError:
    """Return the error for a block that a read found too short; raise what the system says where it cannot be read."""
    there = len(read_at(fd, nbytes, offset))
    return CorruptFileError(
        f"{name}: block {block} has {there} bytes where {nbytes} should be; the file was cut short while it was being read"
    )


def damaged_block(name: str, block: int) -> CorruptFileError:
    """Return the error for a block that is not what was written."""
    return CorruptFileError(
        f"{name} is damaged: block {block} is not what was written there (its checksum differs); restore the file from a"
        " copy, or convert the data again"
    )


def damaged(file: ReadAt, what: str) -> CorruptFileError:
    """Return the error for a file that is not what was written."""
    return CorruptFileError(f"{file.name} is damaged: {what}; restore it from a copy, or convert the data again")


def _sum(file: BinaryIO, offset: int, nbytes: int) -> int:
    file.seek(offset)
    return checksum(file.read(nbytes), offset)


def content_of(file: ReadAt, footer_at: int, count: int) -> bytes:
    """Return the list of checksums, which stands for the content of the file."""
    return file.read_at(footer_at - 8 * (count + 5), 8 * (count + 5))
