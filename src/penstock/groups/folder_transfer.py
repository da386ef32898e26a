"""A folder's way to a machine that does not see it: what is in it, its files in pieces, and the copy at the other end.

A copy is temporary. It goes when it is told to, and also when the process that keeps it is killed: a small process beside it,
which nobody knows of, waits for nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.closing import Closing
from penstock.errors import WriteError
from penstock.groups.cluster import Cluster

PIECE = 16 << 20
"""Bytes that travel at once."""
_SMALL = 1 << 20
"""Bytes up to which a file is compared by what it says, not by its length alone."""
_FAREWELL = 5.0
"""Seconds that a node has to remove its copy."""
# It forks, so that it is no child of the keeper: Ray ends the children of what it ends.
_REMOVER = "import os, shutil, sys; os.fork() and os._exit(0); sys.stdin.read(); shutil.rmtree(sys.argv[1], True)"

Piece = tuple[str, int, NDArray[np.uint8]]
"""A file's name, a place in it, and the bytes from there on."""


def look(folder: str) -> str:
    """Return what tells a folder from others: a digest of names, lengths and small files; nothing where it is not there.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as one:
    ...     before = look(one)
    ...     _ = Path(one, "note").write_text("hello")
    ...     len(before), before == look(one), look(os.path.join(one, "elsewhere"))
    (64, False, '')
    """
    if not os.path.isdir(folder):
        return ""
    digest = hashlib.sha256()
    for name in _names(folder):
        path = os.path.join(folder, name)
        length = os.path.getsize(path)
        digest.update(f"{name}\0{length}\0".encode())
        if length <= _SMALL:
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()


def pieces(folder: str) -> Iterator[Piece]:
    """Yield the files of a folder and of those in it, a piece at a time."""
    for name in _names(folder):
        with open(os.path.join(folder, name), "rb") as file:
            at = 0
            while data := file.read(PIECE):
                yield name, at, np.frombuffer(data, np.uint8)
                at += len(data)
            if not at:
                yield name, 0, np.empty(0, np.uint8)


class Copy:
    """A temporary folder that is filled piece by piece.

    Examples
    --------
    >>> copy = Copy()
    >>> copy.write("a/b", 0, np.frombuffer(b"hello", np.uint8))
    >>> Path(copy.folder, "a/b").read_text()
    'hello'
    >>> copy.remove()
    >>> os.path.exists(copy.folder)
    False
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="penstock-rows-")
        remover = [sys.executable, "-c", _REMOVER, self.folder]
        self._remover = subprocess.Popen(
            remover, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._remover.wait()  # the one that it forked waits on

    def path(self) -> str:
        """Return where it is."""
        return self.folder

    def look(self) -> str:
        """Return what it holds, as `look` tells."""
        return look(self.folder)

    def write(self, name: str, at: int, data: NDArray[np.uint8]) -> None:
        """Write a piece to its place."""
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.seek(at)
            file.write(data.data)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._remover.stdin is not None:
            self._remover.stdin.close()


class Copies(Closing):
    """The copies of a folder on the nodes that do not see it, one on each.

    Attributes
    ----------
    paths : dict
        Where they are, by node.
    """

    def __init__(self, folder: str, cluster: Cluster) -> None:
        self.folder, self.seen = folder, look(folder)
        self.paths: dict[str, str] = {}
        self._cluster, self._ray = cluster, cluster.ray
        self._keepers: list[Any] = []

    def send(self, nodes: Collection[str]) -> None:
        """Send the folder to nodes, all of them at once."""
        keepers = {node: self._cluster.actor(Copy, cpus=0, node=node, only=True) for node in nodes}
        self._keepers += keepers.values()
        try:
            writing: list[Any] = []
            for name, at, data in pieces(self.folder) if nodes else ():
                self._ray.get(writing)
                piece = self._ray.put(data)
                writing = [keeper.write.remote(name, at, piece) for keeper in keepers.values()]
            self._ray.get(writing)
        except OSError as error:
            raise WriteError(
                f"{self.folder} cannot be copied to a node of {self._cluster.name} ({last_line(error)}); make room in its"
                " temporary folder, or have the rows where all nodes see them"
            ) from error
        for node, keeper in keepers.items():
            if self._ray.get(keeper.look.remote()) != self.seen:
                raise WriteError(f"{self.folder} changed while it was copied; let nothing write to it")
            self.paths[node] = self._ray.get(keeper.path.remote())

    def close(self) -> None:
        """Remove them."""
        keepers, self._keepers, self.paths = self._keepers, [], {}
        with suppress(Exception):  # its node is gone, and the copy with it
            self._ray.wait([keeper.remove.remote() for keeper in keepers], num_returns=len(keepers), timeout=_FAREWELL)
        for keeper in keepers:
            self._cluster.end(keeper)


def last_line(error: Exception) -> str:
    """Return what an error says after all that Ray says of where it was."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()


def _names(folder: str) -> list[str]:
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)
