"""Models and checkpoints on disk: one safetensors file whose header carries JSON.

Any safetensors reader opens it; nothing is ever unpickled. Writing is atomic: a temporary file in the same
folder, flushed, then renamed, so a crash leaves either the old file or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFileError, PenstockError, UsageError, WriteError

FORMAT = "penstock"
VERSION = 1


def require_other(path: str | os.PathLike[str], read: str | os.PathLike[str]) -> None:
    """Raise where what is to be written is the very file being read, or one of the folder being read."""
    target, data = Path(path), Path(read)
    if target.exists() and data.exists() and (target.samefile(data) or target.parent.samefile(data)):
        raise UsageError(f"{target} is the file being read; write to another name")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name beside ``path`` and move what was written there into place on success.

    On any failure the temporary file is removed and what stood at ``path`` stays as it was.
    """
    target = Path(path)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent or ".")
        os.close(descriptor)
    except OSError as error:
        raise WriteError(
            f"cannot write {target}: {error.strerror or error}; choose a folder you can write to"
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner may read
        temporary.replace(target)
    except PenstockError:  # of what was being written, such as a source that cannot be read
        raise
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror or error}; nothing was left behind") from error
    finally:
        temporary.unlink(missing_ok=True)


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
    from safetensors.numpy import save_file

    metadata = {"format": FORMAT, "version": str(VERSION), "header": json.dumps(dict(header), allow_nan=True)}
    with atomic_path(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, temporary, metadata=metadata)


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of a file that `write_model` made.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged, of another program, or of a newer version.
    """
    from safetensors import SafetensorError, safe_open

    place = Path(path)
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
            header = json.loads(metadata["header"])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a dict
    except (SafetensorError, KeyError, json.JSONDecodeError, OSError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{place} is not a whole model file: {error}; it may be truncated or of another program"
        ) from error
