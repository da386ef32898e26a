"""Models and checkpoints on disk: one safetensors file whose header carries JSON and a checksum.

Any safetensors reader opens it; no file is ever unpickled. The checksum covers every byte of the file but its own digits, so
that a changed bit anywhere, or a missing end, is noticed when the file is read. Writing is atomic, as of every output: a
crash leaves either the old file or the new one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.checksum import checksum, checksum_file
from penstock.errors import ModelFileError
from penstock.events import log
from penstock.outputs import atomic_path

FORMAT = "penstock"
VERSION = 2
"""Files of version 1 have no checksum."""
_KINDS = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8"}
_KINDS |= {"u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL"}
_BLANK = b"0" * 16
_LONGEST_HEADER = 100_000_000
"""Bytes; readers of safetensors refuse longer ones."""
_DIGITS = re.compile(rb'"checksum":"([0-9a-f]{16})"')


def write_model(path: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> None:
    """Write arrays and a JSON header as one file.

    Examples
    --------
    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "m.penstock")
    >>> write_model(path, {"coef": np.zeros((1, 3), np.float32)}, {"kind": "linear"})
    >>> read_model(path)[1]["kind"]
    'linear'
    """
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "header": json.dumps(dict(header), allow_nan=True),
        "checksum": _BLANK.decode(),
    }
    # The widest numbers first, so that all are aligned.
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    with atomic_path(path) as temporary, temporary.open("r+b") as file:
        file.write(_head(metadata, [(name, arrays[name]) for name in names]))
        for name in names:
            file.write(arrays[name].reshape(-1).view(np.uint8).data)
        file.flush()
        found, at, _ = _checksum(file)
        file.seek(at)
        file.write(f"{found:016x}".encode())


def _head(metadata: Mapping[str, str], arrays: Sequence[tuple[str, NDArray[Any]]]) -> bytes:
    """Return the beginning of a safetensors file: how long its header is, and the header."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays:
        kind = _KINDS.get(array.dtype.newbyteorder("=").str[1:])
        if kind is None or not array.dtype.isnative:
            raise TypeError(f"{name!r} is {array.dtype}, which a model file cannot hold")
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [end, end := end + array.nbytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text


def is_group_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder of the models of groups, by the index that `penstock.groups.index` writes."""
    try:
        index = json.loads((Path(path) / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and index.get("format") == "penstock-groups"


def refuse_groups(path: str | os.PathLike[str]) -> None:
    """Raise `ModelFileError` where a single model is wanted and a path is a folder of the models of groups."""
    if is_group_folder(path):
        raise ModelFileError(
            f"{path} is a folder of models, one for each group, not a single model; predict with: penstock predict"
            f" {path} DATA; measure them with: penstock evaluate {path} DATA; see scores with: penstock show {path}; or take"
            f" the model of one group in Python: penstock.load({str(path)!r}).best(KEY).save(FILE)"
        )


def peek_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the header of a model file without reading its arrays or checking it; empty where it is no model file."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(os.fstat(file.fileno()).st_size - 8, _LONGEST_HEADER):
                return {}
            metadata = json.loads(file.read(length))["__metadata__"]
            header = json.loads(metadata["header"]) if metadata["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return header if isinstance(header, dict) else {}


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of a file that `write_model` made.

    A file of version 1, which has no checksum, is read with a warning in the log.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, of another program, or of a newer version.
    """
    from safetensors import SafetensorError, safe_open

    place = Path(path)
    refuse_groups(place)
    if not place.is_file():
        raise ModelFileError(f"there is no model file at {place}; check the path, or train a model: penstock train")
    try:
        with safe_open(place, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ModelFileError(
                    f"{place} is a safetensors file but not a Penstock model; train one with: penstock train"
                )
            if int(metadata["version"]) > VERSION:
                raise ModelFileError(
                    f"{place} was written by a newer Penstock (format {metadata['version']}, this one reads up to {VERSION});"
                    " upgrade with: pip install -U penstock"
                )
            if "checksum" in metadata or metadata["version"] != "1":
                verify(place)
            else:
                log.warning(
                    "%s was written before model files had checksums, so damage to it would not be noticed; save it again",
                    place,
                )
            header = json.loads(metadata["header"])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a dict
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{place} is not a whole model file: {error}; it may be truncated or of another program: restore it from a"
            " copy, or train again"
        ) from error


def verify(path: str | os.PathLike[str]) -> None:
    """Raise `ValueError` unless a file that `write_model` made is what was written, to the last bit."""
    with open(path, "rb") as file:
        found, _, noted = _checksum(file)
    if found != noted:
        raise ValueError(f"its checksum is {found:016x}, and should be {noted:016x}")


def _checksum(file: BinaryIO) -> tuple[int, int, int]:
    """Return the checksum of a model file, where in the file its digits are to stand, and what stands there."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= size - 8:
        raise ValueError(f"it has {size} bytes")
    head = bytearray(length.to_bytes(8, "little") + file.read(length))
    digits = _DIGITS.search(head)
    if digits is None:
        raise ValueError("it has lost its checksum")
    at, noted = digits.start(1), int(digits[1], 16)
    head[at : at + len(_BLANK)] = _BLANK
    return checksum_file(file, 8 + length, size, checksum(head)), at, noted
