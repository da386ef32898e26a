"""Tar archives read once from front to back, a member at a time, strictly: damage is an error, never an early end.

Plain (v7), ustar, GNU and pax headers are understood; only regular files have content, links and folders are passed
over. Nothing is ever written to disk, so a member's name can do no harm. Sparse members are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import CorruptFileError, SourceError

log = logging.getLogger("penstock")
_UNIT = 512
_WITHOUT_BODY = b"123456"
_NAMES_MOST = 1 << 20
_SKIP = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file in an archive; ``place`` is the byte at which its header stands."""

    name: str
    content: bytes
    place: int


def members(stream: Any, name: str) -> Iterator[Member]:
    """Yield an archive's files in order.

    Parameters
    ----------
    stream : file
        Anything with ``read``; it need not be able to seek.
    name : str
        What messages call it.

    Examples
    --------
    >>> import io, tarfile
    >>> made = io.BytesIO()
    >>> with tarfile.open(fileobj=made, mode="w") as archive:
    ...     info = tarfile.TarInfo("a.txt")
    ...     info.size = 5
    ...     archive.addfile(info, io.BytesIO(b"hello"))
    >>> _ = made.seek(0)
    >>> [(member.name, member.content) for member in members(made, "a.tar")]
    [('a.txt', b'hello')]
    """
    reader = _Reader(stream, name)
    said: dict[str, str] = {}  # by an extra header, of the member that follows
    while True:
        place = reader.at
        header = reader.read(_UNIT, "a header", may_end=True)
        if not header:
            if place == 0:
                raise CorruptFileError(f"{name} is empty (0 bytes); a tar holds at least an end mark")
            log.warning("%s has no end mark after its last member at byte %d; it may have been cut there", name, place)
            return
        if not any(header):
            return
        _check_sum(header, name, place)
        kind = header[156:157]
        size = int(said.pop("size", "") or _number(header[124:136], name, place))
        if kind in b"xgLK" and kind:
            if size > _NAMES_MOST:
                raise CorruptFileError(f"{name} is damaged: the header at byte {place} says it has {size} bytes more")
            extra = reader.body(size, "a long name")
            if kind == b"x":
                said.update(_pax(extra, name, place))
            elif kind == b"L":
                said["path"] = extra.rstrip(b"\0").decode("utf-8", "backslashreplace")
            continue
        own = _name(header)
        path = said.pop("path", "") or own
        said.clear()
        if kind == b"S":
            raise SourceError(f"{name}: {path!r} at byte {place} is a sparse member, which is not read; pack it anew")
        if kind in (b"0", b"\0", b"7") and not own.endswith("/"):
            yield Member(path, reader.body(size, repr(path)), place)
        elif kind not in _WITHOUT_BODY:
            reader.skip(size, repr(path))


class _Reader:
    """Reads a stream and knows how far it is."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name
        self.at = 0

    def read(self, nbytes: int, what: str, *, may_end: bool = False) -> bytes:
        pieces = []
        have = 0
        while have < nbytes:
            piece = self._stream.read(nbytes - have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        if have < nbytes and (have or not may_end):
            raise CorruptFileError(
                f"{self._name} is truncated: it ends at byte {self.at + have}, inside {what}; fetch or pack it again"
            )
        self.at += have
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def body(self, size: int, what: str) -> bytes:
        content = self.read(size, what)
        self.read(-size % _UNIT, what)
        return content

    def skip(self, size: int, what: str) -> None:
        left = size + -size % _UNIT
        while left:
            left -= len(self.read(min(left, _SKIP), what))


def _check_sum(header: bytes, name: str, place: int) -> None:
    own = sum(header) - sum(header[148:156]) + 8 * 32  # over the header with blanks in the sum's place
    try:
        right = int(header[148:156].strip(b" \0"), 8) == own
    except ValueError:
        right = False
    if not right:
        raise CorruptFileError(
            f"{name} is damaged or not a tar: what stands at byte {place} is no member's header; fetch or pack it again"
        )


def _number(field: bytes, name: str, place: int) -> int:
    if field[0] & 0x80:  # GNU's way to tell sizes over 8 GB
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise CorruptFileError(f"{name} is damaged: the header at byte {place} tells no size") from None


def _name(header: bytes) -> str:
    own = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + own if prefix else own).decode("utf-8", "backslashreplace")


def _pax(records: bytes, name: str, place: int) -> dict[str, str]:
    """Return the path and size that a pax header tells."""
    found = {}
    while records.strip(b"\0"):
        length, _, _ = records.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(records):
            raise CorruptFileError(f"{name} is damaged: the pax header at byte {place} cannot be read")
        key, _, value = records[len(length) + 1 : int(length) - 1].partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise SourceError(f"{name}: the member at byte {place} is sparse, which is not read; pack it anew")
        if key == b"path" or (key == b"size" and value.isdigit()):
            found[key.decode()] = value.decode("utf-8", "backslashreplace")
        records = records[int(length) :]
    return found
