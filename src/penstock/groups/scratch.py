"""The folder that grouped rows are made in, beside the one they will be: locked, kept if interrupted, gone when done."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import DataChangedError, DataError, PenstockError, SourceError, UsageError, WriteError
from penstock.groups.grouped import NOTE, Grouped, read_note

_LOCK = "lock"
_PLACED = "placed"


def reusable(folder: Path, asked: Mapping[str, Any]) -> Grouped | None:
    """Return the grouped rows in a folder if they are those asked for; None where they are to be made, or made anew.

    Raises
    ------
    UsageError
        The folder holds rows by other columns, or something that is not grouped rows, and would be lost.
    """
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder for the grouped rows")
    if not any(folder.iterdir()):
        return None
    if not (folder / NOTE).exists():
        raise UsageError(
            f"{folder} holds something else than grouped rows; name a folder that is empty or not there yet"
        )
    try:
        noted, wanted = read_note(folder).get("asked", {}), json.loads(json.dumps(asked))
        if noted == wanted:
            return Grouped(folder)
    except (SourceError, DataError):  # damaged, or of another version
        return None
    if noted.get("version") != wanted["version"] or {**noted, "fingerprint": wanted["fingerprint"]} == wanted:
        return None  # the data have changed
    by, had = ", ".join(wanted["by"]), ", ".join(noted["by"])
    raise UsageError(
        f"{folder} holds rows by {had}, not by {by}; name another folder, or remove that one"
        if by != had
        else f"{folder} holds rows by {by} of other columns, or in other blocks; name another folder, or remove that one"
    )


class Scratch:
    """Where grouped rows are made: ``<folder>.tmp-…``, with ``out`` in it, which becomes the folder.

    The name tells what is asked for, so another attempt at the same finds it. One that cannot succeed takes it away. Beside
    ``out`` there are runs, or how many of the blocks are in their place.

    Raises
    ------
    UsageError
        Another process is at work on the same.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        digest = hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder.with_name(f"{self.folder.name}.tmp-{digest}")
        self.out = self.path / "out"
        self._lock: int | None = None

    @property
    def placed(self) -> int:
        """How many of the data's blocks have their rows in place."""
        try:
            return int((self.path / _PLACED).read_text())
        except (OSError, ValueError):  # written while the process was killed
            return 0

    @placed.setter
    def placed(self, blocks: int) -> None:
        with failing(self.path / _PLACED):
            (self.path / _PLACED).write_text(str(blocks))

    def clear(self, *patterns: str) -> None:
        """Begin afresh, without files of these names from an earlier attempt."""
        with failing(self.path):
            for path in (path for pattern in (*patterns, _PLACED) for path in self.path.glob(pattern)):
                path.unlink()
            shutil.rmtree(self.out, ignore_errors=True)
            self.out.mkdir()

    def finish(self) -> None:
        """Let what was made take its place; what stood there before goes."""
        old = self.path / "old"
        try:
            if self.folder.exists():
                os.rename(self.folder, old)
            os.rename(self.out, self.folder)
        except OSError as error:
            if old.exists() and not self.folder.exists():
                os.rename(old, self.folder)
            raise WriteError(f"{self.folder} cannot be written: {error.strerror or error}") from error
        with contextlib.suppress(OSError):
            handle = os.open(self.folder.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while self._lock is None:
                self.path.mkdir(exist_ok=True)
                self._lock = _locked(self.path)
            self._remove_stale()
            self.out.mkdir(exist_ok=True)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            raise WriteError(
                f"{self.path} cannot be made: {error.strerror or error}; choose a folder you can write to"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hopeless = isinstance(error, (DataError, UsageError, WriteError, DataChangedError))
        if error is None or hopeless or not (self.placed or any(self.path.glob("run-*.json"))):
            shutil.rmtree(self.path, ignore_errors=True)
        elif not self.placed:
            shutil.rmtree(self.out, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _remove_stale(self) -> None:
        """Remove what attempts at something else left for the same folder, unless they are still at work."""
        for stale in self.path.parent.glob(f"{_escaped(self.folder.name)}.tmp-*"):
            if stale != self.path and (stale / _LOCK).exists():
                with contextlib.suppress(OSError, UsageError):
                    lock = _locked(stale)
                    shutil.rmtree(stale, ignore_errors=True)
                    if lock is not None:
                        os.close(lock)


@contextlib.contextmanager
def failing(path: Path) -> Iterator[None]:
    """Tell a failure to write as such."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        why = "the disk is full; make room or choose another folder" if full else error.strerror or error
        raise WriteError(f"{path} cannot be written: {why}") from error


def boot() -> str:
    """Return what tells this boot of the machine from others, or nothing where that is not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _locked(path: Path) -> int | None:
    """Lock a folder for this process; None where it was removed meanwhile."""
    try:
        handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path / _LOCK).st_ino == os.fstat(handle).st_ino:
            return handle
    except BlockingIOError:
        os.close(handle)
        raise UsageError(
            f"{path} is in use: another process is grouping the same data; wait for it, or choose another folder"
        ) from None
    except FileNotFoundError:
        pass
    os.close(handle)
    return None


def _escaped(name: str) -> str:
    """Return a name so that a glob takes it as it is."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
