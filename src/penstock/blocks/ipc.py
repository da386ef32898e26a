"""The few parts of the Arrow IPC file format that Penstock reads by hand.

The footer lists every record batch as a struct of three numbers, so that one NumPy view of it opens a file of
100,000 blocks in milliseconds; a batch's own header tells its rows, nulls and where its buffers lie. Both are
flatbuffers: a table is a list of offsets to its fields. Decoding proper is left to pyarrow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.block_sums import lost_sums, read_sums
from penstock.blocks.file_kinds import STREAM_MARK
from penstock.blocks.storage import ReadAt
from penstock.checksum import UNKNOWN
from penstock.columns.schema_notes import METADATA_KEY
from penstock.errors import CorruptFileError, SourceError
from penstock.messages import Convert, Text

MAGIC = b"ARROW1"
CHECKSUMS = "checksums"
"""What it says of itself where its blocks have checksums."""
_BLOCK = np.dtype([("offset", "<i8"), ("meta", "<i4"), ("pad", "<i4"), ("body", "<i8")])
_PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
_MESSAGES = {1: "schema", 2: "dictionary", 3: "batch"}


@dataclass(frozen=True, slots=True)
class Footer:
    """Where each record batch lies: ``offset``, then ``meta`` bytes of header, then ``body`` bytes.

    ``at`` is where the footer itself begins, ``sums`` the batches' checksums, zeros in files that have none.
    """

    schema: pa.Schema
    offset: NDArray[np.int64]
    meta: NDArray[np.int64]
    body: NDArray[np.int64]
    dictionaries: int
    at: int
    sums: NDArray[np.uint64]

    @property
    def summed(self) -> bool:
        """Whether the batches have checksums."""
        return bool(len(self.sums)) and bool(self.sums.all())


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a stream: what it is, and where; ``meta`` bytes of header, then ``body`` bytes."""

    kind: str
    offset: int
    meta: int
    body: int
    rows: int


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """A record batch's own header; buffer offsets count from the start of its body."""

    rows: int
    null_counts: NDArray[np.int64]
    buffer_at: NDArray[np.int64]
    buffer_bytes: NDArray[np.int64]
    compressed: bool


def read_footer(file: ReadAt) -> Footer:
    """Read a file's schema and the places of its record batches; verify them where the file has checksums."""
    if file.size == 0:
        raise CorruptFileError(f"{file.name} is empty (0 bytes); an Arrow file holds at least a schema")
    head = file.read_at(0, min(file.size, 16))
    if not head.startswith(MAGIC):
        if head.startswith(STREAM_MARK):
            raise SourceError(
                f"{file.name} is an Arrow stream, which has no index of its blocks",
                fixes=[Text("turn it into an Arrow file first: ", Convert(file.name))],
            )
        raise CorruptFileError(f"{file.name} is not an Arrow file: it does not begin with {MAGIC.decode()}")
    tail = file.read_at(max(file.size - 10, 0), min(file.size, 10))
    if file.size < 26 or not tail.endswith(MAGIC):
        raise CorruptFileError(
            f"{file.name} is truncated: it does not end with {MAGIC.decode()}; write or copy it again"
        )
    length = struct.unpack("<i", tail[:4])[0]
    if not 0 < length <= file.size - 18:
        raise CorruptFileError(f"{file.name} is damaged: its footer cannot be {length} bytes; write or copy it again")
    footer = file.read_at(file.size - 10 - length, length)
    try:
        root = _table(footer, 0)
        blocks = _vector(footer, root, 3, _BLOCK)
        dictionaries = len(_vector(footer, root, 2, _BLOCK))
        start = 8 if head[8:12] == STREAM_MARK else 4  # files older than Arrow 0.15 have no marker
        message = start + struct.unpack("<i", head[4 + start : 8 + start])[0]
        schema = pa.ipc.read_schema(pa.py_buffer(file.read_at(8, message)))
    except (struct.error, ValueError, IndexError, pa.ArrowException) as error:
        raise CorruptFileError(f"{file.name} is damaged: its footer cannot be read ({error})") from error
    offset, meta, body = (blocks[field].astype(np.int64) for field in ("offset", "meta", "body"))
    if len(offset) and int((offset + meta + body).max()) > file.size:
        raise CorruptFileError(f"{file.name} is damaged: its footer names blocks beyond its end")
    at = file.size - 10 - length
    sums = read_sums(file, offset + meta + body, int(offset[0]) if len(offset) else 0, (at, length))
    if sums is None:
        noted = (schema.metadata or {}).get(METADATA_KEY, b"")
        if CHECKSUMS.encode() in noted and lost_sums(file):  # one rewritten by another program says so, and has none
            raise CorruptFileError(
                f"{file.name} is damaged: its footer is not where it should be; write or copy it again"
            )
        sums = np.full(len(offset), UNKNOWN, np.uint64)
    return Footer(schema, offset, meta, body, dictionaries, at, sums)


def read_header(file: ReadAt, offset: int, meta: int) -> BatchHeader:
    """Read one record batch's header."""
    data = file.read_at(offset, meta)
    try:
        data = data[8 if data[:4] == STREAM_MARK else 4 :]
        message = _table(data, 0)
        batch = _follow(data, _field(data, message, 2))
        at = _field(data, batch, 0)
        nodes = _vector(data, batch, 1, _PAIR)
        buffers = _vector(data, batch, 2, _PAIR)
        return BatchHeader(
            struct.unpack_from("<q", data, at)[0] if at else 0,
            nodes["second"].copy(),
            buffers["first"].copy(),
            buffers["second"].copy(),
            bool(_field(data, batch, 3)),
        )
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptFileError(f"{file.name} is damaged: no record batch at byte {offset} ({error})") from error


def read_message(file: ReadAt, offset: int) -> Message | None:
    """Read the head of a stream's message, or None at the stream's end."""
    if offset == file.size:
        return None  # the mark of the end is often left out
    head = file.read_at(offset, min(8, file.size - offset))
    if head == STREAM_MARK + bytes(4):
        return None
    marked = head[:4] == STREAM_MARK
    meta = int.from_bytes(head[4:] if marked else head[:4], "little") + (8 if marked else 4)
    if len(head) < 8 or not marked or offset + meta > file.size:
        raise CorruptFileError(f"{file.name} is a truncated or damaged Arrow stream: no whole message at byte {offset}")
    data = file.read_at(offset + 8, meta - 8)
    try:
        message = _table(data, 0)
        number, inner, length = (_field(data, message, place) for place in (1, 2, 3))
        kind = _MESSAGES.get(data[number] if number else 0, "other")
        rows = _field(data, _follow(data, inner), 0) if kind == "batch" else 0
        found = Message(
            kind,
            offset,
            meta,
            struct.unpack_from("<q", data, length)[0] if length else 0,
            struct.unpack_from("<q", data, rows)[0] if rows else 0,
        )
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptFileError(f"{file.name} is damaged: no message at byte {offset} ({error})") from error
    if found.body < 0 or offset + meta + found.body > file.size:
        raise CorruptFileError(
            f"{file.name} is a truncated Arrow stream: the message at byte {offset} should end at byte {offset + meta + found.body},"
            f" but the file ends at {file.size}; write or copy it again"
        )
    return found


def _table(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a table's field lies, or 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    relative = int(struct.unpack_from("<H", data, vtable + slot)[0])
    return table + relative if relative else 0


def _follow(data: bytes, at: int) -> int:
    if not at:
        raise ValueError("a field is missing")
    return _table(data, at)


def _vector(data: bytes, table: int, number: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
    at = _field(data, table, number)
    if not at:
        return np.empty(0, kind)
    start = _table(data, at)
    return np.frombuffer(data, kind, count=int(struct.unpack_from("<I", data, start)[0]), offset=start + 4)
