"""One training at a time in a directory of models; one that fails leaves no trace of having begun."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from penstock.errors import UsageError, WriteError, some_of
from penstock.outputs import local_path

LOCK = "lock"


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str], *, marks: Collection[str] = ()) -> Iterator[Path]:
    """Hold a directory of models, made if need be, for this process; the system lets go of it if the process dies.

    ``marks`` are files by which a directory is known to be one. If the work fails, the lock goes, and with it the folders that were made for it, as far as they are empty.

    Raises
    ------
    UsageError
        Another process is training there, or the directory holds other things.
    """
    place = local_path(folder)
    _require_free(place, marks)
    made = [each for each in (place / LOCK, place, *place.parents) if not os.path.exists(each)]
    descriptor = acquired(place, "another training is writing there; wait for it, or choose another directory")
    try:
        yield place
    except BaseException:
        with contextlib.suppress(OSError):
            if os.listdir(place) == [LOCK]:  # else something of the work is there to go on with
                for each in made:
                    (each.rmdir if each.is_dir() else each.unlink)()
        raise
    finally:
        os.close(descriptor)


def acquired(place: Path, busy: str) -> int:
    """Lock a folder, made if need be, and return what holds the lock; ``busy`` says what to do where another process has it."""
    while True:
        try:
            place.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise WriteError(
                f"cannot make the directory {place}: {error.strerror}; choose a folder you can write to"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(place / LOCK)):
                return descriptor
        except FileNotFoundError:
            pass  # a training that failed has just taken the file away: a lock on it would keep nobody out
        except OSError as error:
            os.close(descriptor)
            raise UsageError(f"{place} is in use: {busy}") from error
        os.close(descriptor)


def strangers(place: Path, marks: Collection[str]) -> list[str]:
    """Return the files of a directory that holds no models; none where it does, or there is nothing."""
    try:
        names = sorted(os.listdir(place))
    except OSError:  # not there yet, or told by whoever makes it
        return []
    return [] if {LOCK, *marks} & set(names) else names


def _require_free(place: Path, marks: Collection[str]) -> None:
    """Raise where a directory holds files that are not a training's: training would write over those of the same names."""
    names = strangers(place, marks)
    if names:
        raise UsageError(
            f"{place} holds no model but other files ({some_of(names)}), which training might write over; choose a new or"
            " an empty directory"
        )
