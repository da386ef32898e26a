"""Outputs: where they go, checked before the work begins, and how they are written.

Outputs are written on this machine. An address such as ``s3://bucket/model`` is refused everywhere by `local_path`:
as a path it would name a folder ``s3:`` beside the user's files.

An output is written whole or not at all, by one writer at a time. It lies under a temporary name (``.penstock.tmp``) in the
target's folder and is renamed when it is complete. Its writer holds a lock (`flock`) on the temporary file, which the system
releases when the process ends, however it ends; the next writer in the folder removes temporary files that nobody holds.

Raw reads and writes at a place of a file repeat system calls that do less than they were asked for: after a signal, on a
nearly full disk, or past 2 GB. They keep no position, so that several threads may use one file.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from penstock.budget import show_bytes
from penstock.errors import CorruptFileError, PenstockError, UsageError, WriteError
from penstock.messages import TextPart

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


class Replacement:
    """Whether a file that was there at a path has been replaced since.

    Examples
    --------
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     replacement = Replacement(file.name)
    ...     with atomic_path(file.name) as temporary:
    ...         _ = temporary.write_text("another")
    ...     replacement.done, Replacement(f"{file.name}.new").done
    (True, False)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._before = _identity(self.path)

    @property
    def done(self) -> bool:
        """Whether another file is there now."""
        return self._before is not None and _identity(self.path) not in (None, self._before)

    @property
    def note(self) -> str:
        """What to say where it was done."""
        return f"replaced {self.path}, which was there"


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from another of the same name; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


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


_ROOM = "make room or choose another folder"


def byte_view(array: NDArray[Any]) -> memoryview:
    """Return an array's memory as bytes; that of a copy where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_at(fd: int, view: memoryview, at: int) -> None:
    """Write all bytes of a view at a place."""
    while view:
        done = os.pwrite(fd, view, at)
        at, view = at + done, view[done:]


def read_at(fd: int, nbytes: int, at: int) -> bytes:
    """Return the bytes at a place; fewer only where the file ends.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile(buffering=0) as file:
    ...     write_at(file.fileno(), memoryview(b"penstock"), 2)
    ...     read_at(file.fileno(), 4, 0), read_at(file.fileno(), 100, 6)
    (b'\\x00\\x00pe', b'tock')
    """
    data = os.pread(fd, nbytes, at)
    while len(data) < nbytes:
        more = os.pread(fd, nbytes - len(data), at + len(data))
        if not more:
            break
        data += more
    return data


def read_into(fd: int, view: memoryview, at: int) -> int:
    """Fill a view with the bytes at a place; return how many there were, fewer only where the file ends."""
    begin = at
    while view:
        done = os.preadv(fd, [view], at)
        if not done:
            break
        at, view = at + done, view[done:]
    return at - begin


def read_array(fd: int, out: NDArray[Any], at: int, *, name: str) -> NDArray[Any]:
    """Fill a contiguous array with what this run wrote at a place of a file of that name, and return it."""
    count = read_into(fd, out.reshape(-1).view(np.uint8).data, at)
    if count < out.nbytes:
        raise CorruptFileError(f"{name} ends at byte {at + count}, before what was written there; start again")
    return out


def is_disk_full(error: BaseException) -> bool:
    """Say whether a write failed for want of room; some libraries tell it in words alone."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)


def write_error(path: str | os.PathLike[str], error: OSError, *, room: str = _ROOM) -> WriteError:
    """Return the error for a file that cannot be written; ``room`` says what to do where the disk is full."""
    why = f"the disk is full; {room}" if is_disk_full(error) else f"{error.strerror or error}; choose another folder"
    return WriteError(f"{os.fspath(path)} cannot be written: {why}")


@contextmanager
def writing(path: str | os.PathLike[str], *, room: str = _ROOM) -> Iterator[None]:
    """Raise `write_error` where the system fails to write a file."""
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        raise write_error(path, error, room=room) from error


def own_folder(prefix: str, folder: str | os.PathLike[str] | None, *, what: str, remedy: TextPart) -> Path:
    """Make a folder of our own, in the one given or the system's, and remove those of processes that were killed.

    It is removed when this process ends, if it is still there: Ctrl-C may come before anything else knows of it.

    Parameters
    ----------
    prefix : str
        How its name begins; the number of the process follows.
    folder : path, optional
        Where it is made.
    what, remedy : str
        What cannot be written, and what to do, for the error where it cannot be made.

    Examples
    --------
    >>> made = own_folder(".penstock-example-", None, what="an example", remedy="choose another folder")
    >>> made.is_dir(), made.name.startswith(f".penstock-example-{os.getpid()}-")
    (True, True)
    >>> made.rmdir()
    """
    parent = local_path(folder) if folder is not None else Path(tempfile.gettempdir())
    for stale in parent.glob(f"{prefix}*"):
        pid = stale.name[len(prefix) :].split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(stale, ignore_errors=True)
    try:
        made = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise WriteError(f"cannot write {what} in {parent}: {error.strerror}", fixes=[remedy]) from error
    atexit.register(_remove_made, made.absolute(), os.getpid())
    return made


def _remove_made(folder: Path, process: int) -> None:
    if process == os.getpid():  # not that of a process that was forked off
        shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
