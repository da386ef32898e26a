"""Workers as actors of a Ray cluster: one that runs already, or one started on this machine for as long as it is used.

Ray starts processes and carries bytes; what is done with them is as in `penstock.groups.local`. Actors are never restarted
by Ray, which would hide that tasks are lost, but by us: on another node where theirs is gone, and sharing cores where there
are too few left. Where a node does not see the folder that workers need, a copy is sent there, once.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.closing import Closing
from penstock.errors import UsageError, WorkerDiedError
from penstock.groups.cluster import Cluster, Copies, last_line, load_ray, look
from penstock.groups.executor import Deaths, Done, Lost, Make
from penstock.groups.local import pickled
from penstock.groups.worker_process import Raised, Served

MakeAt = Callable[[str], Any]
"""Makes a worker's object for a folder that is not where it was; must be picklable."""

_PATIENCE = 120.0
"""Seconds that workers may take to be there."""
_CHECK = 1.0
"""Seconds after which one that is being started is looked at again."""
_ROOM = 15.0
"""Seconds after which one that takes another's place shares a core, rather than wait for one of its own."""


class _Actor:
    """The other end: serves an object."""

    def __init__(self) -> None:
        self._served: Served | None = None

    def hello(self) -> tuple[str, str, int]:
        """Return on which node it is, that node's address, and its process."""
        ray = load_ray()
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), os.getpid()

    def look(self, folder: str) -> str:
        return look(folder)

    def settle(self, make: bytes) -> None:
        self._served = Served(make)

    def answer(self, task: int, method: str, arguments: bytes) -> bytes:
        if self._served is None:
            raise RuntimeError("a task came before the object that does it")
        return bytes(self._served.answer(task, method, arguments))


@dataclass(slots=True)
class _Slot:
    actor: Any
    hello: Any
    """Its first answer, until it is there."""
    cpus: int
    since: float
    node: str = ""
    where: str = "a node"
    pid: int = 0
    unsent: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    pending: deque[tuple[int, Any]] = field(default_factory=deque)


class RayExecutor(Closing):
    """Actors of a Ray cluster, each with a core.

    Parameters
    ----------
    make : callable
        Makes the object whose methods workers call; picklable.
    workers : int, optional
        How many actors; as many as the cluster has free cores, unless said otherwise.
    address : str, optional
        The cluster: ``"auto"``, ``"host:port"`` or ``"ray://host:port"``. If not given, the one that this program is connected to,
        or that ``RAY_ADDRESS`` names, or else one that is started on this machine and ended by `close`.
    files : str, optional
        A folder that workers need.
    make_at : callable, optional
        Makes the object in the place of ``make``, from the path of a copy of that folder, on nodes that do not see it.

    Examples
    --------
    >>> from functools import partial
    >>> with RayExecutor(partial(dict, a=1), workers=2) as executor:  # doctest: +SKIP
    ...     executor.submit(1, 7, "get", "a")
    ...     executor.wait().value
    1
    """

    def __init__(
        self,
        make: Make,
        *,
        workers: int | None = None,
        address: str | None = None,
        files: str | None = None,
        make_at: MakeAt | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise UsageError("is not a number of actors", option="workers", value=workers, fixes=["choose 1 or more"])
        if (files is None) != (make_at is None):
            raise UsageError(
                "files and make_at go together: a folder, and what makes a worker's object from a copy of it"
            )
        self._make = bytes(pickled(make, "what makes a worker's object"))
        pickled(make_at, "what makes a worker's object from a copy")
        self._make_at = make_at
        self._copies: Copies | None = None
        self._shunned: set[str] = set()
        self._slots: list[_Slot] = []
        self._cluster = Cluster(address, workers)
        self._ray = self._cluster.ray
        try:
            if files is not None:
                self._copies = Copies(files, self._cluster)
            for _ in range(self._cluster.room(workers)):
                self._slots.append(self._started(cpus=1))
            self._deaths = Deaths(len(self._slots))
            self._await_all()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        return len(self._slots)

    @property
    def pids(self) -> list[int]:
        """The processes of the slots, on whichever machines they are; 0 for one that is only being started."""
        return [slot.pid for slot in self._slots]

    @property
    def nodes(self) -> list[str]:
        """The nodes of the slots; empty for one that is only being started."""
        return [slot.node if slot.hello is None else "" for slot in self._slots]

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        slot = self._slots[worker]
        slot.unsent.append((task, method, bytes(pickled(arguments, f"an argument of {method}"))))
        if slot.hello is None:
            self._send(slot)

    def wait(self) -> Done | Lost:
        if not any(slot.unsent or slot.pending for slot in self._slots):
            raise UsageError("no worker has anything to do, so there is nothing to wait for; submit a task first")
        while True:
            number = self._ready()
            if number is None:
                continue
            slot = self._slots[number]
            task, reference = slot.pending[0]
            try:
                task, value, seconds = ForkingPickler.loads(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                return self._replaced(number, error)
            slot.pending.popleft()
            if isinstance(value, Raised):
                raise value.error
            return Done(number, task, value, seconds)

    def close(self) -> None:
        slots, self._slots = self._slots, []
        if self._cluster.up:
            for slot in slots:
                self._cluster.end(slot.actor)
            if self._copies is not None:
                self._copies.close()
        self._cluster.close()

    def _started(self, *, cpus: int, node: str = "") -> _Slot:
        actor = self._cluster.actor(_Actor, cpus=cpus, node=node)
        return _Slot(actor, actor.hello.remote(), cpus, time.monotonic(), node)

    def _await_all(self) -> None:
        """Wait until all actors are there, and no longer than they may take."""
        hellos = [slot.hello for slot in self._slots]
        ready, missing = self._ray.wait(hellos, num_returns=len(hellos), timeout=_PATIENCE)
        try:
            self._ray.get(ready)
            if missing:
                raise WorkerDiedError(
                    f"only {len(ready)} of {len(hellos)} workers were there after {_PATIENCE:.0f} seconds:"
                    f" {self._cluster.told()}; use fewer workers, or wait until there is room"
                )
            self._settle(self._slots)
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(
                f"a worker could not be started on {self._cluster.name}: {last_line(error)}; see that Penstock and what it"
                " needs are installed on all nodes"
            ) from error

    def _settle(self, slots: Sequence[_Slot]) -> None:
        """Tell actors that have said hello what to serve, and send them what has waited for that."""
        for slot in slots:
            slot.node, slot.where, slot.pid = self._ray.get(slot.hello)
        if self._copies is not None:
            here = {slot.node: slot for slot in slots if slot.node not in self._copies.paths}
            self._copies.send([node for node, slot in here.items() if not self._sees(slot)])
        for slot in slots:
            make = self._make
            if self._copies is not None and self._make_at is not None and slot.node in self._copies.paths:
                make = bytes(ForkingPickler.dumps(partial(self._make_at, self._copies.paths[slot.node])))
            slot.actor.settle.remote(make)
            slot.hello = None
            self._send(slot)

    def _send(self, slot: _Slot) -> None:
        while slot.unsent:
            task, method, arguments = slot.unsent.popleft()
            slot.pending.append((task, slot.actor.answer.remote(task, method, arguments)))

    def _sees(self, slot: _Slot) -> bool:
        """Tell whether an actor finds the folder that is needed where we do."""
        copies = self._copies
        return copies is None or bool(self._ray.get(slot.actor.look.remote(copies.folder)) == copies.seen)

    def _ready(self) -> int | None:
        """Return the slot whose next answer is there; nothing where something else happened."""
        starting = [slot for slot in self._slots if slot.hello is not None]
        asked: dict[Any, int] = {}
        for number, slot in enumerate(self._slots):
            if slot.hello is not None:
                asked[slot.hello] = number
            elif slot.pending:
                asked[slot.pending[0][1]] = number
        ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=_CHECK if starting else None)
        for slot in starting:
            if slot.hello not in ready:
                self._hurry(self._slots.index(slot))
        if not ready:
            return None
        number = asked[ready[0]]
        slot = self._slots[number]
        if slot.hello is None:
            return number
        try:
            self._settle([slot])
        except self._ray.exceptions.RayError as error:  # it died before it was there
            self._deaths.add(self._reason(slot, error))
            self._refill(number)
        return None

    def _hurry(self, number: int) -> None:
        """Have a replacement that finds no room share a core; give up where even that takes too long."""
        slot = self._slots[number]
        waited = time.monotonic() - slot.since
        if waited > _PATIENCE:
            raise WorkerDiedError(
                f"worker {number} died, and another was not there after {_PATIENCE:.0f} seconds: {self._cluster.told()}; use fewer"
                " workers, or add nodes"
            )
        if slot.cpus and waited > _ROOM:
            self._cluster.end(slot.actor)
            self._refill(number, share=True)

    def _replaced(self, number: int, error: Exception) -> Lost:
        """Start another actor in a slot whose actor died, and tell which tasks are lost."""
        slot = self._slots[number]
        reason = self._reason(slot, error)
        self._cluster.end(slot.actor)  # it may only be out of reach
        self._deaths.add(reason)
        tasks = tuple(task for task, _ in slot.pending)
        self._refill(number)
        return Lost(number, tasks, reason)

    def _reason(self, slot: _Slot, error: Exception) -> str:
        """Say in a few words what became of an actor, and remember its node where that is gone."""
        told, died = str(error), isinstance(error, self._ray.exceptions.ActorDiedError)
        if slot.hello is None and ("node has died" in told or (not died and self._cluster.gone(slot.node))):
            self._shunned.add(slot.node)  # Ray would put actors there until it has noticed
            return f"lost with its node {slot.where}"
        short = "low on memory" in told or "OutOfMemory" in type(error).__name__
        return f"{'killed for want of memory' if short else 'ended unasked'} on {slot.where} (process {slot.pid})"

    def _refill(self, number: int, *, share: bool = False) -> None:
        """Start an actor for a slot on the node with the most room for it, with a core of its own if there is one."""
        old = self._slots[number]
        others = [slot.node for slot in self._slots if slot is not old]
        cores = {node: n for node, n in self._cluster.nodes().items() if n and node not in self._shunned}
        loads = {node: (others.count(node) + 1) / n for node, n in cores.items()}
        best = min(loads, key=lambda node: loads[node], default="")
        share = share or loads.get(best, 1) > 1
        new = self._slots[number] = self._started(cpus=0 if share else 1, node=best)
        new.unsent = old.unsent
        if old.hello is not None:
            new.since = old.since
