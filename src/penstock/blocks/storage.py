"""Files as places to read from: so many bytes at such an offset, from many threads at once.

`LocalFile` reads with ``pread``, never by a memory map, so that resident memory does not grow with the file;
`remote.RemoteFile` does the same over the network. Both notice when the file is no longer the one opened.
"""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.errors import (
    CorruptFileError,
    DataChangedError,
    SchemaError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from penstock.messages import Convert
from penstock.outputs import read_at
from penstock.seeds import generator

PathLike = str | os.PathLike[str]
EDGE = 64 * 1024
WHOLE, PIECES, PIECE = 4 << 20, 64, 16 * 1024


class ReadAt(Protocol):
    """A file that can be read at any offset by any thread."""

    name: str
    size: int

    @property
    def fd(self) -> int | None:
        """The descriptor, where there is one."""
        ...

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes, or raise."""
        ...

    def check(self) -> None:
        """Raise `DataChangedError` if this is not the file that was opened."""
        ...

    def stamp(self) -> str:
        """Return what changes when the file is written, though its content may stay the same."""
        ...

    def tag(self) -> str | None:
        """Return what a server says to identify the content by, or None where only the content itself does."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """A file on this machine, read with ``pread``.

    Examples
    --------
    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "a.txt")
    ...     _ = Path(path).write_text("penstock")
    ...     file = LocalFile(path)
    ...     file.read_at(3, 5)
    ...     file.close()
    b'stock'
    """

    def __init__(self, path: PathLike, *, random: bool = False) -> None:
        self.path = os.fspath(path)
        self.name = self.path
        try:
            self._fd: int | None = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            raise SourceNotFoundError(f"there is no file {self.path}") from None
        except OSError as error:
            raise SourceError(f"{self.path} cannot be opened: {error.strerror}") from error
        stat = os.fstat(self._fd)
        self.size = stat.st_size
        self._identity = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if random and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def fd(self) -> int | None:
        return self._fd

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        if self._fd is None:
            raise SourceError(f"{self.name} is closed")
        data = read_at(self._fd, nbytes, offset)
        if len(data) < nbytes:
            self.check()
            raise CorruptFileError(f"{self.name} is truncated: it ends at byte {offset + len(data)}")
        return data

    def check(self) -> None:
        """Raise `DataChangedError` if another file, or other content, now stands at the path."""
        try:
            stat = os.stat(self.path)
        except OSError:
            raise DataChangedError(
                f"{self.name} was removed while it was in use; put it back and start again"
            ) from None
        if (stat.st_size, stat.st_mtime_ns, stat.st_ino) != self._identity:
            raise DataChangedError(
                f"{self.name} was changed while it was in use (it had {self._identity[0]} bytes, now {stat.st_size});"
                " open it again and start afresh"
            )

    def stamp(self) -> str:
        """Return size and time of the last change, as they were on opening."""
        return f"{self._identity[0]}:{self._identity[1]}"

    def tag(self) -> str | None:
        """Return None: size and time of a local file do not tell what is in it."""
        return None

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None and os is not None:  # at the interpreter's end modules are gone
            self.close()


class SeekableView(io.RawIOBase):
    """A `ReadAt` as a Python file with a position, for libraries that want one."""

    def __init__(self, file: ReadAt) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def read(self, nbytes: int | None = -1) -> bytes:
        left = max(self._file.size - self._at, 0)
        nbytes = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        data = self._file.read_at(self._at, nbytes) if nbytes else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def fingerprint(files: Iterable[ReadAt], known: Iterable[bytes | None] = ()) -> str:
    """Return a hash over the content of files; not over their paths or times, so that a restored file has its own again.

    A file of 4 MiB or less is read whole. Of a larger one both ends and 64 pieces drawn over all of it are; of a remote one
    both ends, beside what the server identifies it by. ``known`` stands for the content where it is not None: the checksums of
    a file that has them.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file, content in itertools.zip_longest(files, known):
        digest.update(f"{file.size}|".encode())
        if content is not None:
            digest.update(content)
            continue
        digest.update(f"{file.tag()}|".encode())
        for offset, nbytes in _looked_at(file):
            digest.update(file.read_at(offset, nbytes))
    return digest.hexdigest()


def _looked_at(file: ReadAt) -> list[tuple[int, int]]:
    """Return the ranges of a file that stand for its content: offset and bytes of each."""
    if file.tag() is None and file.size <= WHOLE:
        return [(0, file.size)]
    edge = min(EDGE, file.size)
    ends = [(0, edge), (file.size - edge, edge)]
    if file.tag() is not None:
        return ends
    rng = generator(file.size, "fingerprint")
    return ends + [
        (int(rng.integers(low, high - PIECE)), PIECE)
        for low, high in itertools.pairwise(file.size * n // PIECES for n in range(PIECES + 1))
    ]


def is_remote(path: object) -> bool:
    """Whether a path is an address such as ``s3://bucket/key``."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def open_file(path: PathLike, *, random: bool = False) -> ReadAt:
    """Open a local path or a remote address."""
    if is_remote(path):
        from penstock.blocks.remote import open_remote

        return open_remote(str(path))
    return LocalFile(str(path).removeprefix("file://"), random=random)


def expand(paths: PathLike | Sequence[PathLike], *, suffixes: Sequence[str] = ()) -> list[str]:
    """Return the files meant by a path, a folder, a glob, or a list of these, in a fixed order.

    Of a folder, the visible files below it are taken (those with the given suffixes where there are any).
    """
    if not isinstance(paths, (str, os.PathLike)):
        if not len(paths):
            raise UsageError("no files were given; name at least one path")
        return [file for path in paths for file in expand(path, suffixes=suffixes)]
    path = os.fspath(paths)
    if is_remote(path):
        from penstock.blocks.remote import expand_remote

        return expand_remote(path, suffixes=suffixes)
    path = path.removeprefix("file://")
    if os.path.isdir(path):
        below = (p for p in Path(path).rglob("*") if p.is_file())
        found = sorted(
            str(p) for p in below if not any(part.startswith((".", "_")) for part in p.relative_to(path).parts)
        )
        chosen = [f for f in found if f.lower().endswith(tuple(suffixes))] if suffixes else found
        if not chosen:
            wanted = f" with a name ending in {', '.join(suffixes)}" if suffixes else ""
            raise SourceNotFoundError(
                f"the folder {path} holds no file{wanted}",
                fixes=["name the folder or the file that the rows are in"],
            )
        return chosen
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        found = sorted(f for f in glob.glob(path, recursive=True) if os.path.isfile(f))
        if found:
            return found
        raise SourceNotFoundError(f"no file matches {path}")
    raise SourceNotFoundError(f"there is no file {path}{_near(path)}")


def show_names(files: Sequence[str]) -> str:
    """Return what messages call a list of files."""
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def convert_line(name: str, **options: str) -> Convert:
    """Return the command that converts data, given what messages call them.

    Of several files the folder is named where they are all that is in it. ``SRC`` stands for what cannot be told.

    Examples
    --------
    >>> print(convert_line("s3://logs/a.parquet", block_size="64KB"))
    penstock convert s3://logs/a.parquet DST.arrow --block-size 64KB
    >>> print(convert_line("the array"))
    penstock convert SRC DST.arrow
    """
    first, several, count = name.rpartition(" and ")
    folder = os.path.dirname(first)
    if several and os.path.isfile(first) and len(os.listdir(folder or ".")) == 1 + int(count.split()[0]):
        name = folder or "."
    known = os.path.exists(name) or (is_remote(name) and " " not in name)
    return Convert(name if known else "SRC", options)


def require_equal(first: pa.Schema, other: pa.Schema, *, names: tuple[str, str]) -> None:
    """Raise `SchemaError` naming both files and the columns in which they differ."""
    if first.equals(other):
        return
    told = []
    for name in dict.fromkeys([*first.names, *other.names]):
        a = first.field(name).type if name in first.names else None
        b = other.field(name).type if name in other.names else None
        if a != b:
            told.append(f"{name!r} ({a or 'missing'} against {b or 'missing'})")
    if not told and first.names == other.names:
        return  # they differ in nullability or metadata only
    what = "column " + ", ".join(told[:10]) if told else f"the order of columns ({first.names} against {other.names})"
    raise SchemaError(f"{names[0]} and {names[1]} do not have the same columns; they differ in {what}")


def _near(path: str) -> str:
    from penstock.errors import nearest

    folder, name = os.path.split(path)
    try:
        return nearest(name, os.listdir(folder or "."))
    except OSError:
        return ""
