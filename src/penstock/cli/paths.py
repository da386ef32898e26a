"""Places for output, looked at before the work begins: hours of training must not end at a missing folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from penstock.errors import UsageError, WriteError

_NOT_PARQUET = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".npy", ".arrow", ".feather")


def require_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that can be written, or say why it cannot.

    Examples
    --------
    >>> require_writable("nowhere/model.penstock")
    Traceback (most recent call last):
    penstock.errors.WriteError: cannot write nowhere/model.penstock: there is no folder nowhere; make it first
    """
    target = Path(path)
    if target.is_dir():
        raise WriteError(f"cannot write {target}: it is a folder; name the file to write, such as {target / 'out'}")
    if not target.parent.is_dir():
        raise WriteError(f"cannot write {target}: there is no folder {target.parent}; make it first")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise WriteError(
            f"cannot write {target}: {error.strerror or error}; choose a folder you can write to"
        ) from error
    return target


def require_parquet(path: str | os.PathLike[str]) -> Path:
    """Return the path of a Parquet file that can be written; a name of another format is refused."""
    target = require_writable(path)
    if target.suffix.lower() in _NOT_PARQUET:
        raise UsageError(f"--out {path}: predictions are written as Parquet; name it {target.with_suffix('.parquet')}")
    return target


def require_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that can be written to or made, or say why it cannot."""
    target = Path(path)
    there = next((each for each in (target, *target.absolute().parents) if each.exists()), Path("/"))
    if not there.is_dir():
        raise WriteError(f"cannot write to {target}: {there} is a file; name a folder")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise WriteError(
            f"cannot write to {target}: {error.strerror or error}; choose a folder you can write to"
        ) from error
    return target
