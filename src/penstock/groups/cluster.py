"""The way to a Ray cluster: the one this program is connected to, one that runs elsewhere, or one started for as long as it is used.

The one place that imports Ray. What is started here is ended here and leaves nothing behind; what was there before stays. A
cluster that does not answer, and cores that it does not have, are told at once: Ray itself would wait for both.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.closing import Closing
from penstock.errors import MissingExtraError, UsageError, WorkerDiedError
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
