"""How workers that train one group together notice that one of them is gone: LightGBM alone would wait for it for ever.

Each has a door from when it is called: a port kept free for LightGBM, and one that is never answered, to which others hold
a line. Lines break when a process ends, however it does. Whoever holds one then ends as well, in the middle of LightGBM's
waiting, which nothing else breaks off; the executor puts others in their place, and the group is trained again.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from penstock.closing import Closing

FOLLOWED = 75
"""The status of a process that ends because another one did."""
_HERE = "127.0.0.1"
_ELSEWHERE = ("192.0.2.1", 9)
"""An address that no machine has: asking for the way there, which sends nothing, tells by which address we would leave."""
_PATIENCE = 10.0
"""Seconds that a line may take to be there; the other side has been listening for long."""
_SILENCE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""After a minute a machine that says nothing, not even that a line is broken, is taken for gone."""


class WorkerAddress(NamedTuple):
    """Where a worker is found: its machine, the port for LightGBM, and the port of its lines."""

    host: str
    port: int
    line: int


class Door(Closing):
    """The two ports of a worker, which nobody else can take while it is open.

    Examples
    --------
    >>> with Door() as one, Door() as two:
    ...     one.address.port != two.address.port
    True
    """

    def __init__(self) -> None:
        self._kept = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._kept.bind(("", 0))
        self._lines = socket.create_server(("", 0), backlog=1024)

    @property
    def address(self) -> WorkerAddress:
        return WorkerAddress(_outward(), self._kept.getsockname()[1], self._lines.getsockname()[1])

    def give(self) -> None:
        """Let go of the port that was kept for LightGBM, which takes it at once."""
        self._kept.close()

    def close(self) -> None:
        """Break all lines; whoever holds one ends."""
        self._kept.close()
        self._lines.close()


class Lines:
    """Lines to others; while it is entered, this process ends when one of them breaks.

    Parameters
    ----------
    others : sequence of WorkerAddress
        To whom. `OSError` is raised on entering if one of them is not there any more.
    leave : callable
        Ends the process.
    """

    def __init__(self, others: Sequence[WorkerAddress], *, leave: Callable[[int], object] = os._exit) -> None:
        self._others, self._leave = others, leave
        self._held: list[socket.socket] = []

    def __enter__(self) -> Lines:
        try:
            for other in self._others:
                line = socket.create_connection((other.host, other.line), _PATIENCE)
                self._held.append(line)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _SILENCE:
                    with suppress(AttributeError, OSError):  # not every system has them
                        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        except BaseException:
            self._drop()
            raise
        self._end, end = socket.socketpair()
        self._watch = threading.Thread(target=self._look, args=(end,), daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.close()
        self._watch.join()
        self._drop()

    def _look(self, end: socket.socket) -> None:
        watched = select.poll()
        for one in (end, *self._held):
            watched.register(one, select.POLLIN)
        with end:
            broken = {number for number, _ in watched.poll()}
            if end.fileno() not in broken:
                self._leave(FOLLOWED)

    def _drop(self) -> None:
        for line in self._held:
            line.close()
        self._held = []


def machines(addresses: Sequence[WorkerAddress]) -> list[WorkerAddress]:
    """Return addresses by which workers find one another: those of this machine where all are on one.

    Examples
    --------
    >>> machines([WorkerAddress("10.0.0.5", 4001, 4002), WorkerAddress("10.0.0.5", 4003, 4004)])[1]
    WorkerAddress(host='127.0.0.1', port=4003, line=4004)
    """
    if len({address.host for address in addresses}) > 1:
        return list(addresses)
    return [address._replace(host=_HERE) for address in addresses]


@contextmanager
def network(lightgbm: Any, door: Door, rank: int, members: Sequence[WorkerAddress]) -> Iterator[dict[str, Any]]:
    """Have LightGBM find the others, and yield what boosters that train with them are told."""
    told = {"tree_learner": "data", "num_machines": len(members), "pre_partition": True, "num_threads": 1}
    machines = ",".join(f"{member.host}:{member.port}" for member in members)
    # A network belongs to a booster. This one is never trained: what it is told would stand in the text of its model,
    # and ports are other ones each time.
    params = {**told, "objective": "regression", "machines": machines, "local_listen_port": members[rank].port}
    rows = np.arange(40.0 * len(members)).reshape(-1, len(members))
    door.give()
    carrier = lightgbm.Booster(params, lightgbm.Dataset(rows, rows[:, 0], params=params))
    try:
        yield told
    finally:
        carrier.free_network()


def _outward() -> str:
    """Return the address of this machine as others see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:  # it has no way to anywhere
            return _HERE
        host: str = probe.getsockname()[0]
        return host
