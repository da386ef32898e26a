"""Outputs: where they go, checked before the work begins, and how they are written.

Outputs are written on this machine. An address such as ``s3://bucket/model`` is refused everywhere by `local_path`:
as a path it would name a folder ``s3:`` beside the user's files.

An output is written whole or not at all, by one writer at a time. It lies under a temporary name (``.penstock.tmp``) in the
target's folder and is renamed when it is complete. Its writer holds a lock (`flock`) on the temporary file, which the system
releases when the process ends, however it ends; the next writer in the folder removes temporary files that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.budget import show_bytes
from penstock.errors import PenstockError, UsageError, WriteError
from penstock.rawfile import is_disk_full

_NOT_PARQUET = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".npy", ".arrow", ".feather")
# pathlib makes one slash of two. A single letter is a drive of Windows.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
SUFFIX = ".penstock.tmp"
_NAME = 100
"""Characters of the target's name that a temporary name repeats; file systems allow 255 in all."""
_TRIES, _PAUSE = 25, 0.02
"""A process that looks for what others left holds a lock for a moment: another one waits that out."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return an output's path, or raise where it is the address of another machine.

    Examples
    --------
    >>> local_path("s3://bucket/model.penstock")
    Traceback (most recent call last):
    penstock.errors.UsageError: cannot write s3://bucket/model.penstock: outputs are written on this machine only; give a
    local path, and copy the result there
    """
    text = os.fspath(path)
    if _ADDRESS.match(text):
        raise UsageError(
            f"cannot write {text}: outputs are written on this machine only; give a local path, and copy the result there"
        )
    return Path(text)


def require_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that can be written, or raise with the reason why it cannot.

    Examples
    --------
    >>> require_file("nowhere/model.penstock")
    Traceback (most recent call last):
    penstock.errors.WriteError: cannot write nowhere/model.penstock: there is no folder nowhere; make it first
    """
    target = local_path(path)
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


def require_scratch(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder for copies of the data, which has to be there, or raise with the reason why it cannot.

    Examples
    --------
    >>> require_scratch("nowhere")
    Traceback (most recent call last):
    penstock.errors.WriteError: cannot write copies of the data to nowhere: there is no such folder; make it first
    """
    target = local_path(path)
    if not target.is_dir():
        raise WriteError(f"cannot write copies of the data to {target}: there is no such folder; make it first")
    return require_folder(target)


def require_parquet(path: str | os.PathLike[str]) -> Path:
    """Return the path of a Parquet file that can be written; a name of another format is refused."""
    target = require_file(path)
    if target.suffix.lower() in _NOT_PARQUET:
        raise UsageError(
            ": predictions are written as Parquet",
            option="out",
            value=str(path),
            fixes=[f"name it {target.with_suffix('.parquet')}"],
        )
    return target


def require_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that can be written to or made, or raise with the reason why it cannot."""
    target = local_path(path)
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


def require_other(path: str | os.PathLike[str], read: str | os.PathLike[str]) -> None:
    """Raise where the file to be written is the very file being read, or one of the folder being read."""
    target, data = Path(path), Path(read)
    if target.exists() and data.exists() and (target.samefile(data) or target.parent.samefile(data)):
        raise UsageError(f"{target} is the file being read; write to another name")


def write_failure(path: str | os.PathLike[str], error: BaseException) -> WriteError:
    """Return the error for an output that cannot be written: the path, the reason and what to do about it."""
    folder = os.path.dirname(os.fspath(path)) or "."
    if not os.path.isdir(folder):
        return WriteError(f"cannot write {path}: there is no folder {folder}; make it first")
    if is_disk_full(error):
        free = show_bytes(shutil.disk_usage(folder).free)
        return WriteError(
            f"cannot write {path}: the disk is full ({free} free in {folder} with what was written so far); nothing was"
            " left behind: make room or choose another folder"
        )
    reason = getattr(error, "strerror", None) or error
    return WriteError(f"cannot write {path}: {reason}; nothing was left behind: choose another place for it")


class Draft:
    """A file that takes its name when it is complete.

    Parameters
    ----------
    target : path
        The name it will have.
    sweep : bool
        Whether to remove first what killed processes left in the folder.

    Attributes
    ----------
    path : Path
        Where to write until then.
    """

    def __init__(self, target: str | os.PathLike[str], *, sweep: bool = True) -> None:
        self.target = local_path(target)
        folder = self.target.parent
        if sweep:
            remove_stale(folder)
        while True:
            try:
                self._fd, name = tempfile.mkstemp(prefix=f".{self.target.name[:_NAME]}.", suffix=SUFFIX, dir=folder)
            except OSError as error:
                raise write_failure(self.target, error) from error
            self.path = Path(name)
            if _locked(self._fd, self.path):
                break
            os.close(self._fd)  # another process took it for one that was left
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(self._fd, 0o666 & ~umask)  # mkstemp makes files that only their owner may read

    def fileno(self) -> int:
        """Return a descriptor of the file, for reading and writing."""
        return self._fd

    def publish(self) -> None:
        """Bring the file to disk and give it its name."""
        try:
            os.fsync(self._fd)
            self.path.replace(self.target)
        except OSError as error:
            raise write_failure(self.target, error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the file, unless it has its name already; what stood at the target before still does."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, sweep: bool = True) -> Iterator[Path]:
    """Give a temporary name beside ``path`` and move what was written there into place on success.

    On any failure the temporary file is removed and what stood at ``path`` stays as it was.
    """
    draft = Draft(path, sweep=sweep)
    try:
        yield draft.path
        draft.publish()
    except PenstockError:  # of what was being written, such as a source that cannot be read
        raise
    except OSError as error:
        raise write_failure(path, error) from error
    finally:
        draft.discard()


@contextlib.contextmanager
def only_writer(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes from writing a file for as long as this one works on it.

    Raises
    ------
    UsageError
        Another process is working on it.
    """
    target = local_path(path)
    place = target.parent / f".{target.name[:_NAME]}.lock{SUFFIX}"
    fd = _only(target, place)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            place.unlink()
        os.close(fd)


def _only(target: Path, place: Path) -> int:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        try:
            fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_failure(target, error) from error
        if _locked(fd, place):
            return fd
        os.close(fd)
    raise UsageError(
        f"{target} is being written by another process; wait for it to end, or choose another name for the output"
    )


def remove_stale(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that processes which have ended left in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    fd = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.unlink(entry.path)
                    finally:
                        os.close(fd)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring a folder's list of files to disk, where the file system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def insert(file: BinaryIO, at: int, data: bytes) -> None:
    """Insert bytes into a file that is open for reading and writing, before those at a place near its end."""
    file.seek(at)
    rest = file.read()
    file.seek(at)
    file.write(data + rest)
    file.flush()


def _locked(fd: int, path: Path) -> bool:
    """Lock a file; say whether it is ours: held by nobody else, and still the one at its path."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody can hold one, and nobody removes what he cannot lock
        return True
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
