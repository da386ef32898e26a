"""Batches delivered in the sampler's order while the next ones are being made.

`Deliveries` is what iterating an `UnorderedDataLoader` gives. It asks the sampler in the caller's own thread, as
the stock loader does, keeps a few batches in the making, and stops its threads at the end, at a failure and when
it is dropped. Asked again after a failure, it goes on with the batch that follows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import BatchTimeoutError, some_of
from penstock.messages import Given, Name, Text
from penstock.torch.fetch import Threads, Ticket
from penstock.torch.tune import Tuner

_GRACE = 5.0
"""Seconds to wait for threads that are to end: those at a sample finish it first."""


@dataclass(slots=True)
class StreamPlace:
    """Where an epoch stands: enough to go on from there."""

    epoch: int
    told: int | None
    chance: dict[str, Any]
    batches: int = 0
    ended: bool = False


class Deliveries(Iterator[Any]):
    """The batches of one epoch, made by threads."""

    def __init__(
        self,
        wanted: Iterator[list[Any]],
        hire: Callable[[], Threads],
        *,
        tuner: Tuner,
        place: StreamPlace,
        ahead: int | None,
        timeout: float,
        keep: bool,
    ) -> None:
        self._wanted: Iterator[list[Any]] | None = wanted
        self._hire = hire
        self._tuner = tuner
        self._place = place
        self._ahead = ahead
        self._timeout = timeout
        self._keep = keep
        self._threads: Threads | None = None
        self._waiting: deque[Ticket] = deque()
        self._samples = 0
        self._sampler_error: BaseException | None = None

    def __next__(self) -> Any:
        try:
            self._begin(1)
            if not self._waiting:
                self._end()
            ticket = self._waiting[0]
            began = time.perf_counter()
            # Asked first: in a process forked while it was set, the event cannot be waited for.
            if not ticket.done.is_set() and not ticket.done.wait(self._timeout or None):
                raise BatchTimeoutError(
                    f"batch {self._place.batches} was not ready within ",
                    Given("timeout", self._timeout),
                    f" seconds: a sample is slow or stuck, one of {some_of(map(repr, ticket.indices), 8)}",
                    option="timeout",
                    value=self._timeout,
                    fixes=["allow more time", Text("more ", Name("num_workers"))],
                )
            self._waiting.popleft()
            self._samples -= max(1, len(ticket.indices))
            self._place.batches += 1
            now = time.perf_counter()
            batch = ticket.result()
            self._tuner.delivered(waited=now - began, now=now)
            self._begin(0)
        except StopIteration:
            raise
        except BaseException as error:
            # A sample that is stuck would be waited for in vain.
            self._rest(0.0 if isinstance(error, BatchTimeoutError) else _GRACE)
            raise
        return batch

    def close(self) -> None:
        """Stop for good."""
        self._wanted = None
        self._rest(_GRACE)
        self._waiting.clear()

    def __del__(self) -> None:
        # Garbage may be collected at any moment, in any thread: nothing here takes a lock or waits.
        self._rest(0.0)

    def _end(self) -> None:
        error, self._sampler_error = self._sampler_error, None
        if error is not None:
            raise error
        self._place.ended = True
        self.close()
        raise StopIteration

    def _rest(self, wait: float) -> None:
        """Give up what is in the making; it is begun anew should there be a next time."""
        for ticket in self._waiting:
            ticket.cancelled = True
        if self._threads is not None and not self._keep:
            self._threads.stop(wait)
        self._threads = None

    def _begin(self, due: int) -> None:
        """Begin as many batches as should be in the making: those ahead, and the one that is due now."""
        if self._wanted is None and not self._waiting:
            return
        threads = self._threads
        if threads is None or not threads.usable:
            threads = self._threads = self._hire()
            self._tuner.paused()
            self._waiting = deque(
                t if t.done.is_set() and not t.cancelled else Ticket(t.indices) for t in self._waiting
            )
            for ticket in self._waiting:
                if not ticket.done.is_set():
                    threads.submit(ticket)
        while self._wanted is not None and self._room(due, threads.tuner.most):
            try:
                indices = next(self._wanted)
            except StopIteration:
                self._wanted = None
                return
            except Exception as error:  # raised when the batches before it have been delivered
                self._wanted, self._sampler_error = None, error
                return
            ticket = Ticket(indices)
            self._waiting.append(ticket)
            self._samples += max(1, len(indices))
            threads.submit(ticket)

    def _room(self, due: int, threads: int) -> bool:
        if self._ahead is not None:
            return len(self._waiting) < self._ahead + due
        # By default two batches, and as many more as it takes for every thread to have a sample.
        return len(self._waiting) < 2 + due or self._samples < 2 * threads
