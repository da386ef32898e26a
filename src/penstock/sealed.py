"""Small files with a checksum over all their bytes: notes in JSON, and tables in Parquet or Arrow files.

A note has its checksum under the name ``checksum``. A table has it before the footer, where other readers do not look.
Files that another program or an earlier version wrote have none, and are read as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.checksum import checksum
from penstock.outputs import atomic_path, insert

_NAME = "checksum"
_MARK = b"PenSeal1"
_ENOUGH = 6
"""Bytes of a mark by which it is known, though some of it be damaged."""
_DAMAGED = "its checksum is not that of its content"


def write_note(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a note as JSON, with its checksum.

    Examples
    --------
    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "note.json")
    >>> write_note(path, {"rows": 3})
    >>> read_note(path)
    {'rows': 3}
    """
    told = {_NAME: _of_note(content), **content}
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_note(path: str | os.PathLike[str]) -> Any:
    """Return what a note says.

    Raises
    ------
    ValueError
        It is not JSON, or not what was written.
    """
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    if isinstance(told, dict) and _NAME in told and told.pop(_NAME) != _of_note(told):
        raise ValueError(_DAMAGED)
    return told


def seal(path: str | os.PathLike[str]) -> None:
    """Put a checksum into a complete Parquet or Arrow file."""
    with open(path, "r+b") as file:
        content = file.read()
        at = _footer(content)
        insert(file, at, _of_table(content[:at], content[at:]) + _MARK)


def read_sealed(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a Parquet or Arrow file.

    Raises
    ------
    ValueError
        It is not what was written.
    """
    content = Path(path).read_bytes()
    at = _footer(content)
    if sum(a == b for a, b in zip(content[at - 8 : at], _MARK)) >= _ENOUGH:
        noted = content[at - 16 : at - 8]
        if content[at - 8 : at] != _MARK or noted != _of_table(content[: at - 16], content[at:]):
            raise ValueError(_DAMAGED)
    elif _MARK in content:
        raise ValueError("its footer is not where it should be")
    return content


def read_sealed_parquet(path: str | os.PathLike[str]) -> pa.Table:
    """Return the table in a Parquet file.

    It is decoded in the calling thread: one of Arrow's own may outlive the interpreter, and then aborts the process when
    it drops the bytes, which are Python's.

    Raises
    ------
    ValueError
        It is not what was written.
    """
    with pq.ParquetFile(pa.BufferReader(read_sealed(path))) as file:
        return file.read(use_threads=False)


def _of_note(content: Mapping[str, Any]) -> str:
    return f"{checksum(json.dumps(content, sort_keys=True).encode()):016x}"


def _of_table(body: bytes, footer: bytes) -> bytes:
    return checksum(body, checksum(footer)).to_bytes(8, "little")


def _footer(content: bytes) -> int:
    """Return where the footer of a Parquet or Arrow file begins."""
    end = 8 if content.endswith(b"PAR1") else 10 if content.endswith(b"ARROW1") else 0
    at = len(content) - end - int.from_bytes(content[-end : len(content) - end + 4], "little")
    if not end or at < 0:
        raise ValueError("it does not end as it should")
    return at
