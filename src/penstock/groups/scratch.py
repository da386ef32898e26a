"""The folder that grouped rows are made in, beside the one they will be: locked, kept if interrupted, gone when done."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.checksum import checksum
from penstock.errors import DataChangedError, DataError, SourceError, UsageError, WriteError
from penstock.groups.grouped import NOTE, Grouped, read_grouped_note
from penstock.lock import LOCK, acquired
from penstock.outputs import local_path, sync_folder, writing

_BUSY = "another process is grouping the same data; wait for it, or choose another folder"
_PLACED = "placed"


@dataclass(frozen=True, slots=True)
class Placed:
    """A stretch of blocks whose rows are in place, and the checksum of these rows, sorted by group."""

    first: int
    stop: int
    rows: int


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
        noted, wanted = read_grouped_note(folder).get("asked", {}), json.loads(json.dumps(asked))
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
    ``out`` there are runs, or a list of the blocks whose rows are in their place.

    Raises
    ------
    UsageError
        Another process is at work on the same.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any]) -> None:
        digest = hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=8).hexdigest()
        self.folder = Path(os.path.abspath(local_path(folder)))
        self.path = self.folder.with_name(f"{self.folder.name}.tmp-{digest}")
        self.out = self.path / "out"
        self._lock: int | None = None

    @property
    def placed(self) -> list[Placed]:
        """The stretches of blocks that have their rows in place, from the first block on."""
        found: list[Placed] = []
        try:
            lines = (self.path / _PLACED).read_bytes().splitlines()
        except OSError:
            return found
        for line in lines:
            told, _, noted = line.rpartition(b" ")
            if noted != _line_sum(told):  # damaged, or written while the process was killed
                break
            first, stop, rows = map(int, told.split())
            if first != (found[-1].stop if found else 0):
                break
            found.append(Placed(first, stop, rows))
        return found

    def note_placed(self, placed: Placed) -> None:
        """Note that a stretch of blocks, which follows those noted before, has its rows in place."""
        told = f"{placed.first} {placed.stop} {placed.rows}".encode()
        with writing(self.path / _PLACED), open(self.path / _PLACED, "ab") as file:
            file.write(told + b" " + _line_sum(told) + b"\n")

    def keep_placed(self, placed: Sequence[Placed]) -> None:
        """Forget all stretches but these."""
        with writing(self.path / _PLACED):
            (self.path / _PLACED).unlink(missing_ok=True)
        for each in placed:
            self.note_placed(each)

    def clear(self, *patterns: str) -> None:
        """Begin afresh, without files of these names from an earlier attempt."""
        with writing(self.path):
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
        sync_folder(self.folder.parent)

    def __enter__(self) -> Self:
        self._lock = acquired(self.path, _BUSY)
        self._remove_stale()
        with writing(self.out):
            self.out.mkdir(exist_ok=True)
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
        for stale in self.path.parent.glob(f"{glob.escape(self.folder.name)}.tmp-*"):
            if stale != self.path and (stale / LOCK).exists():
                with contextlib.suppress(OSError, UsageError):
                    lock = acquired(stale, _BUSY)
                    shutil.rmtree(stale, ignore_errors=True)
                    os.close(lock)


def boot() -> str:
    """Return what tells this boot of the machine from others, or nothing where that is not known."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _line_sum(line: bytes) -> bytes:
    return f"{checksum(line):016x}".encode()
