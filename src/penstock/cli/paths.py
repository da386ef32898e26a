"""Places for output, looked at before the work begins: hours of training must not end at a missing folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from penstock.errors import WriteError


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
