"""The connection to a Ray cluster, and the copy of a folder on a machine that does not see it.

The cluster is the one this program is connected to, one that runs elsewhere, or one started for as long as it is used. The
one place that imports Ray. What is started here is ended here; what was there before stays. A cluster that does not answer,
and cores that it does not have, are reported at once: Ray itself would wait for both. A folder's copy is temporary: it is
removed on request, and also when the process that keeps it is killed, by a small process that waits for nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.closing import Closing
from penstock.errors import MissingExtraError, UsageError, WorkerDiedError, WriteError
from penstock.groups.local import ONE_THREAD
from penstock.messages import Command, Text
from penstock.parallel import cores

_REACH = 5.0
"""Seconds that a cluster has to answer."""
_SETTLE = 2.0
"""Seconds until what was just ended is all gone, and its cores are free again."""
_STORE = 64 << 20
"""Bytes of the object store for each worker: messages, not rows."""
_LONGEST = 19
"""Letters of a temporary folder's name that leave room for the sockets in it, whose names may have 107."""
# Ray prints these on standard output, whatever it was told; we say ourselves what was lost.
_KNOWN = "A worker died or was killed|Raylet is terminated|has been marked dead"


def load_ray() -> Any:
    """Return Ray."""
    with _environment(RAY_DEDUP_LOGS_SKIP_REGEX=os.environ.get("RAY_DEDUP_LOGS_SKIP_REGEX", _KNOWN)):
        try:
            import ray
            import ray.util.scheduling_strategies
        except ImportError:
            raise MissingExtraError.of("ray", "ray", "executor='ray'") from None
    return ray


class Cluster(Closing):
    """A connection to Ray.

    Parameters
    ----------
    address : str, optional
        As for `penstock.groups.ray.RayExecutor`.
    workers : int, optional
        For how many it is to be, where it is started here.

    Attributes
    ----------
    ray : module
        Ray.
    name : str
        What to call it in messages.
    """

    def __init__(self, address: str | None, workers: int | None) -> None:
        self.ray = load_ray()
        self._ours = False
        self._folder: str | None = None
        self._handler: Any = None
        if self.ray.is_initialized():
            now = str(getattr(self.ray.get_runtime_context(), "gcs_address", "the end of a ray:// line"))
            if address not in (None, "auto") and not _same(str(address), now):
                raise UsageError(
                    f"is not the Ray cluster at {now}, which this program is connected to",
                    option="address",
                    value=address,
                    fixes=["leave the address out to use that one", "call ray.shutdown() first"],
                )
            self.name = f"the Ray cluster at {now}"
            return
        address = address or os.environ.get("RAY_ADDRESS")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if address and address != "local":
                self.name = f"the Ray cluster at {address}"
                self._connect(address)
            else:
                self.name = "the Ray of this machine"
                self._start(workers or cores())
            self._ours = True
        finally:
            # Ray turns SIGTERM into an orderly exit: welcome where it would have killed us, for as long as there is need.
            if self._ours and handler is signal.SIG_DFL:
                self._handler = handler
            else:
                _handle(handler)

    @property
    def up(self) -> bool:
        """Whether there is still a connection."""
        return bool(self.ray.is_initialized())

    def room(self, workers: int | None) -> int:
        """Return for how many workers there is room; as many as asked, or as there are free cores."""
        deadline = time.monotonic() + _SETTLE
        while True:
            total, free = self._cores()
            if (workers or total) <= free or (workers or 0) > total or time.monotonic() > deadline:
                break
            time.sleep(0.05)  # whoever used it before may be on the way out
        if workers is not None and workers > total:
            if not total:
                raise UsageError(f"{self.name} has no cores for workers; add nodes to it first")
            raise UsageError(
                f"are more than the {total} cores of {self.name}",
                option="workers",
                value=workers,
                fixes=[f"use at most {total}", "add nodes first"],
            )
        if workers is None and not free:
            raise UsageError(f"{self.told()}; wait until there is room, or say how many workers shall wait for it")
        return workers or free

    def actor(self, kind: type, *, cpus: int, node: str = "", only: bool = False) -> Any:
        """Start an actor that is not restarted, anywhere, near a node or only there; it has one thread for matrices."""
        where: Any = "SPREAD"
        if node:
            where = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=not only)
        options = {"num_cpus": cpus, "max_restarts": 0, "max_concurrency": 1, "scheduling_strategy": where}
        if not cpus:
            # One that asks for nothing is sent to any node, whatever was said, even to one that is gone.
            options["memory"] = 1 << 20
        if self._folder is None:  # what was started here has it from its environment, and processes at hand
            options["runtime_env"] = {"env_vars": ONE_THREAD}
        return self.ray.remote(**options)(kind).remote()

    def end(self, actor: Any) -> None:
        """End an actor, whatever it does."""
        with suppress(Exception):  # it is gone
            self.ray.kill(actor, no_restart=True)

    def nodes(self) -> dict[str, int]:
        """Return the cores of each node that Ray takes for alive."""
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive}

    def gone(self, node: str) -> bool:
        """Tell whether a node is not there any more, by asking it: Ray takes a while to notice."""
        for known in self.ray.nodes():
            if known["NodeID"] == node and known["Alive"]:
                try:
                    socket.create_connection((known["NodeManagerAddress"], known["NodeManagerPort"]), _REACH).close()
                except OSError:
                    return True
                return False
        return True

    def told(self) -> str:
        """Say how many cores there are."""
        total, free = self._cores()
        return f"{self.name} has {total} cores, {free} of them free"

    def close(self) -> None:
        """End what was started here, or only the connection where the cluster is another's."""
        if self._ours and self.up:
            self.ray.shutdown()
        if self._handler is not None:
            _handle(self._handler)
        if self._folder is not None:
            deadline = time.monotonic() + _SETTLE
            shutil.rmtree(self._folder, ignore_errors=True)
            while (
                os.path.exists(self._folder) and time.monotonic() < deadline
            ):  # the last of Ray still write their logs
                time.sleep(0.05)
                shutil.rmtree(self._folder, ignore_errors=True)
        self._ours, self._handler, self._folder = False, None, None

    def _cores(self) -> tuple[int, int]:
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        return int(total.get("CPU", 0)), int(free.get("CPU", 0))

    def _connect(self, address: str) -> None:
        try:
            _reach(address)
            self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises what it likes
            raise UsageError(
                f"leads to no Ray cluster ({error})",
                option="address",
                value=address,
                fixes=[
                    Text("start one there with: ", Command(("ray", "start"), {"head": True})),
                    "leave the address out to use this machine alone",
                ],
            ) from error

    def _start(self, workers: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="penstock-", dir=_base())
        try:
            with _environment(RAY_USAGE_STATS_ENABLED="0", **ONE_THREAD):
                self.ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_STORE * max(2, workers),
                    _temp_dir=os.path.join(self._folder, "r"),  # which Ray opens to everybody
                )
        except Exception as error:  # Ray raises what it likes
            self.close()
            raise WorkerDiedError(f"Ray could not be started on this machine: {error}") from error


def _reach(address: str) -> None:
    """Raise `OSError` where nobody listens at an address; Ray tries again for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _REACH).close()


def _handle(handler: Any) -> None:
    """Have SIGTERM handled as it was; only the main thread may say so, and there only Ray has changed it."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _same(address: str, other: str) -> bool:
    """Tell whether two addresses are one, the first one maybe by name."""
    (host, _, port), (known, _, number) = address.rpartition(":"), other.rpartition(":")
    if port != number:
        return False
    try:
        return socket.gethostbyname(host) in (known, "127.0.0.1")
    except OSError:
        return False


def _base() -> str:
    """Return where temporary folders are, if their names are short enough for Ray."""
    base = tempfile.gettempdir()
    return base if len(base) <= _LONGEST or sys.platform == "win32" else "/tmp"


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for a while, for whoever is started or imported meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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
