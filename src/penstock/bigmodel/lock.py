"""One training at a time in a model's directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import UsageError, WriteError


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Hold a model's directory, made if need be, for this process; the system lets go of it if the process dies.

    Raises
    ------
    UsageError
        Another process is training there.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise WriteError(
            f"cannot make the model's directory {place}: {error.strerror}; choose a folder you can write to"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"{place} is in use: another training is writing there; wait for it, or choose another model directory"
            ) from error
        yield place
    finally:
        os.close(descriptor)
