"""How much memory decoding a Parquet column takes, told by its first page headers.

A row group's metadata says nothing about its pages, and these differ by writer: most cut them at 1 MB, some write one
page for a whole column. A decoder that stands in the middle of a row group keeps, for every column, the dictionary with a
pointer to each entry, the page in use, and its compressed form. See "Data Pages" in the Parquet format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.blocks.storage import ReadAt
from penstock.errors import PenstockError

BUFFER = 64 * 1024
"""Bytes of a column that are read at a time, at most."""
_PAGE = 1 << 20
"""Bytes of a page or dictionary as most writers cut them."""
_POINTER = 16
"""Bytes that Arrow keeps for each dictionary entry of text beside its bytes."""
_HEADER = 64
"""Bytes that hold the fields of a page header that are read here."""
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BOOLEAN": 1}
_I32, _STRUCT = 5, 12


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The sizes of one page: its bytes as decoded and as stored, and its values."""

    uncompressed: int
    compressed: int
    values: int


@dataclass(frozen=True, slots=True)
class ColumnMemory:
    """What a column takes in memory: what its decoder keeps, and the bytes of a value (None if they are as stored)."""

    held: int
    value_bytes: float | None


def column_memory(file: ReadAt, column: Any) -> ColumnMemory:
    """Return what decoding a column chunk takes; ``column`` is its metadata as pyarrow gives it.

    Headers are read from local files only: over a wire each would cost a request. There, and where a header cannot be
    read, pages and dictionaries are taken to be as large as most writers cut them.
    """
    text = column.physical_type == "BYTE_ARRAY"
    stored, decoded = int(column.total_compressed_size), int(column.total_uncompressed_size)
    dictionary = PageHeader(0, 0, 0)
    if column.has_dictionary_page and column.dictionary_page_offset is not None:
        size = min(_PAGE, decoded)
        dictionary = _header(file, column.dictionary_page_offset) or PageHeader(size, size, size // 8)
    page = min(_PAGE, max(decoded - dictionary.uncompressed, 0))
    first = _header(file, column.data_page_offset)
    if first is not None:
        page = max(page, first.uncompressed)
    kept = dictionary.uncompressed + (_POINTER * dictionary.values if text else 0)
    # A compressed page is read whole, and decompressed into memory that stays as large as the largest page was.
    unpacked = page if column.compression == "UNCOMPRESSED" else max(page, dictionary.uncompressed) + min(page, stored)
    width: float | None = _WIDTHS.get(column.physical_type)
    if width is None and dictionary.values:
        width = dictionary.uncompressed / dictionary.values
    return ColumnMemory(kept + unpacked + min(BUFFER, stored), width)


def parse_header(data: bytes) -> PageHeader | None:
    """Read the start of a page header in Thrift's compact protocol, or return None if it is none.

    Examples
    --------
    >>> parse_header(bytes([0x15, 4, 0x15, 200, 1, 0x15, 120, 0x4C, 0x15, 20, 0x15, 0, 0, 0]))
    PageHeader(uncompressed=100, compressed=60, values=10)
    """
    at = field = 0
    found: dict[int, int] = {}
    try:
        while data[at]:
            field += data[at] >> 4
            kind, at = data[at] & 15, at + 1
            if kind == _STRUCT:  # of a data page or a dictionary: its first field is the number of values
                if data[at] != 1 << 4 | _I32:
                    return None
                values, at = _number(data, at + 1)
                return PageHeader(found[2], found[3], values)
            if kind != _I32:
                return None
            found[field], at = _number(data, at)
    except (IndexError, KeyError):
        pass
    return None


def _header(file: ReadAt, offset: int) -> PageHeader | None:
    if file.fd is None:
        return None
    try:
        found = parse_header(file.read_at(offset, min(_HEADER, file.size - offset)))
    except (PenstockError, OSError, ValueError):
        return None  # reading the page itself will say what is wrong
    return found if found is not None and min(found.uncompressed, found.compressed, found.values) >= 0 else None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and where the next byte stands."""
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
