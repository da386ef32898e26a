"""Files behind addresses: ``s3://`` and ``gs://`` through pyarrow, ``https://`` by range requests.

A remote file answers the same reads as a local one. `AWS_ENDPOINT_URL`, or ``?endpoint_override=`` in the
address, points S3 at another server. Keys come from the environment, as the cloud's own tools find them.
"""

from __future__ import annotations

import fnmatch
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from penstock.blocks.storage import ReadAt
from penstock.errors import DataChangedError, SourceError, SourceNotFoundError, UsageError

SCHEMES = ("s3", "gs", "gcs", "http", "https")
_TRIES = 4
_TIMEOUT = 60


class RemoteFile:
    """A file of a pyarrow file system, read at any offset."""

    fd = None

    def __init__(self, address: str) -> None:
        self.name = address
        self._system, self._path = file_system(address)
        info = _guard(address, lambda: self._system.get_file_info(self._path))
        if info.type != fs.FileType.File:
            raise SourceNotFoundError(f"there is no file {address}")
        self.size = int(info.size)
        self._changed = info.mtime_ns
        self._file: Any = _guard(address, lambda: self._system.open_input_file(self._path))

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        if self._file is None:
            raise SourceError(f"{self.name} is closed")
        data: bytes = _guard(self.name, lambda: self._file.read_at(nbytes, offset))
        if len(data) != nbytes:
            raise DataChangedError(f"{self.name} gave {len(data)} bytes where {nbytes} were there on opening")
        return data

    def check(self) -> None:
        """Do nothing: asking the server before each read would double its cost; `stamp` tells on opening."""

    def stamp(self) -> str:
        """Return size and time of the last change."""
        return f"{self.size}:{self._changed}"

    def tag(self) -> str | None:
        """Return the store's tag of the object, which follows its content; the time of change where there is none."""
        try:
            told = self._file.metadata()
        except (OSError, pa.ArrowException, NotImplementedError):
            told = {}
        tag = {str(_text(name)).lower(): _text(value) for name, value in (told or {}).items()}.get("etag")
        return tag or str(self._changed)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class HttpFile:
    """A file on a web server that answers range requests."""

    fd = None

    def __init__(self, address: str) -> None:
        self.name = address
        headers, _ = self._request("bytes=0-0")
        total = (headers.get("Content-Range") or "").rpartition("/")[2]
        if not total.isdigit():
            raise SourceError(f"{address}: the server does not answer range requests; download the file first")
        self.size = int(total)
        self._tag = headers.get("ETag") or headers.get("Last-Modified") or ""

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        if nbytes == 0:
            return b""
        headers, data = self._request(f"bytes={offset}-{offset + nbytes - 1}")
        tag = headers.get("ETag") or headers.get("Last-Modified") or ""
        if tag != self._tag or len(data) != nbytes:
            raise DataChangedError(f"{self.name} was changed while it was in use; open it again and start afresh")
        return data

    def check(self) -> None:
        """Do nothing: every read compares the server's tag."""

    def stamp(self) -> str:
        """Return size and the server's tag."""
        return f"{self.size}:{self._tag}"

    def tag(self) -> str | None:
        """Return the server's tag, or the time of change."""
        return self._tag

    def close(self) -> None:
        """Do nothing: each read has its own connection."""

    def _request(self, span: str) -> tuple[Message, bytes]:
        request = urllib.request.Request(self.name, headers={"Range": span})
        for attempt in range(_TRIES):
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                    if answer.status != 206:
                        raise SourceError(f"{self.name}: the server does not answer range requests; download it first")
                    return answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    raise SourceNotFoundError(f"there is no file {self.name}") from None
                if error.code < 500 or attempt == _TRIES - 1:
                    raise SourceError(f"{self.name} cannot be read: {error.code} {error.reason}") from error
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                if attempt == _TRIES - 1:
                    raise SourceError(f"{self.name} cannot be read: {getattr(error, 'reason', error)}") from error
            time.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")


def open_remote(address: str) -> ReadAt:
    """Open the file at an address."""
    return HttpFile(address) if urlsplit(address).scheme in ("http", "https") else RemoteFile(address)


def file_system(address: str) -> tuple[Any, str]:
    """Return the pyarrow file system and the path within it."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES:
        raise UsageError(f"{address}: addresses begin with {', '.join(s + '://' for s in SCHEMES)}")
    query = dict(parse_qsl(parts.query))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if parts.scheme == "s3" and "endpoint_override" not in query and endpoint:
        query["endpoint_override"] = endpoint
    if "://" in query.get("endpoint_override", ""):
        query["scheme"], query["endpoint_override"] = query["endpoint_override"].split("://", 1)
    whole = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))
    system, path = _guard(address, lambda: fs.FileSystem.from_uri(whole))
    return system, path


def expand_remote(address: str, *, suffixes: Sequence[str] = ()) -> list[str]:
    """Return the files meant by an address: itself, those matching its ``*``, or those in its folder."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        return [address]
    magic = any(mark in parts.path for mark in "*[")
    if not magic and not parts.path.endswith("/"):
        return [address]
    folder = parts.path[: min(parts.path.find(m) for m in "*[" if m in parts.path)] if magic else parts.path
    folder = folder.rpartition("/")[0] + "/"
    system, path = file_system(urlunsplit(parts._replace(path=folder)))
    listing = _guard(address, lambda: system.get_file_info(fs.FileSelector(path.rstrip("/"), recursive=True)))
    files = sorted(item.path for item in listing if item.type == fs.FileType.File)
    wanted = (parts.netloc + parts.path).lstrip("/")
    chosen = [
        file
        for file in files
        if (fnmatch.fnmatch(file, wanted) if magic else not suffixes or file.lower().endswith(tuple(suffixes)))
    ]
    if not chosen:
        raise SourceNotFoundError(f"no file matches {address}")
    end = f"?{parts.query}" if parts.query else ""
    return [f"{parts.scheme}://{file}{end}" for file in chosen]


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _guard(address: str, act: Any) -> Any:
    """Run a call of pyarrow and tell its failure as ours."""
    try:
        return act()
    except FileNotFoundError:
        raise SourceNotFoundError(f"there is no file {address}") from None
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{address} cannot be read: {error}") from error
