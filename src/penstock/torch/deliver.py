"""Batches delivered in the sampler's order while the next ones are made, by threads or by processes.

`Deliveries` and `ProcessDeliveries` are what iterating an `UnorderedDataLoader` gives. Threads: the sampler is asked in the
caller's thread, as in the stock loader; a few batches are kept in the making, and threads stop at the end, at a failure
and when the iterator is dropped. Processes, for datasets that threads may not share: they are those of torch's own loader,
which passes tensors through shared memory and notices workers that died. Each makes whole batches, since sending single
samples between processes would cost more than fetching most of them.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, get_worker_info

from penstock.errors import BatchTimeoutError, UsageError, WorkerDiedError, some_of
from penstock.messages import Given, Name, Text, Use
from penstock.torch.fetch import BatchMaker, Threads, Ticket
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


class RemoteTraceback(Exception):  # noqa: N818  (what it is, not an error of its own)
    """The traceback of a failure in another process, as the cause of the failure here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """An exception on its way between processes."""

    pickled: bytes | None
    kind: str
    trace: str
    notes: tuple[str, ...]

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        """Pack an exception; one that cannot be pickled, or not be unpickled, goes by its name and text."""
        packed = None
        with contextlib.suppress(Exception):
            packed = pickle.dumps(error)
            if type(pickle.loads(packed)) is not type(error):
                packed = None
        kind = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(traceback.format_exception(error))
        return cls(packed, kind, trace, tuple(getattr(error, "__notes__", ())))

    def unpack(self) -> BaseException:
        """Return the exception, caused by its own traceback."""
        error: BaseException
        if self.pickled is None:
            error = RuntimeError(self.kind)
        else:
            error = pickle.loads(self.pickled)
            for note in self.notes:
                if note not in getattr(error, "__notes__", ()):
                    error.add_note(note)
        error.__cause__ = RemoteTraceback(self.trace)
        return error


class WholeBatches(Dataset[Any]):
    """A dataset whose items are batches, looked up by their lists of indices; failures are items too."""

    def __init__(self, rule: BatchMaker) -> None:
        self.rule = rule
        self.broken: WorkerFailure | None = None
        """Why this worker cannot make any."""

    def __getitem__(self, indices: list[Any]) -> Any:
        rule = self.rule
        if self.broken is not None:
            return self.broken
        try:
            samples = rule.some(indices) if rule.many and indices else [rule.one(index) for index in indices]
            return rule.finish(samples, indices)
        except BaseException as error:
            return WorkerFailure.of(error)


def enter_process(init: Callable[[int], None] | None, number: int) -> None:
    """Let ``get_worker_info`` of a new worker tell of the user's dataset, then call the user's function."""
    info: Any = get_worker_info()
    batches: WholeBatches = info.dataset
    object.__setattr__(info, "dataset", batches.rule.dataset)
    try:
        if init is not None:
            init(number)
    except BaseException as error:
        error.add_note(f"in worker_init_fn of worker {number}")
        batches.broken = WorkerFailure.of(error)


class Wanted:
    """The sampler that the stock loader sees: what is wanted next, remembered until it has been delivered."""

    def __init__(self) -> None:
        self.batches: Iterator[list[Any]] = iter(())
        self.asked: deque[list[Any]] = deque()

    def __iter__(self) -> Iterator[list[Any]]:
        for indices in self.batches:
            self.asked.append(indices)
            yield indices

    def only(self, batches: Iterator[list[Any]]) -> None:
        """Want these, and nothing that was wanted before."""
        self.batches = batches
        self.asked.clear()

    def again(self) -> None:
        """Want anew what was asked for and not delivered."""
        self.batches = itertools.chain(list(self.asked), self.batches)
        self.asked.clear()


class ProcessDeliveries(Iterator[Any]):
    """The batches of one epoch, made by processes.

    ``start`` gives a stock loader over the batches wanted; ``forget`` is told when its workers are of no more use.
    """

    def __init__(
        self,
        wanted: Wanted,
        start: Callable[[], DataLoader[Any]],
        *,
        place: StreamPlace,
        keep: bool,
        forget: Callable[[], None],
    ) -> None:
        self._wanted: Wanted | None = wanted
        self._start = start
        self._place = place
        self._keep = keep
        self._forget = forget
        self._batches: Iterator[Any] | None = None
        self._superseded = False

    def __next__(self) -> Any:
        if self._superseded:
            raise UsageError(
                "another loop over this loader has begun, and persistent processes serve one at a time",
                fixes=[Text("use ", Use("persistent_workers", False), " for loops within or beside one another")],
            )
        if self._wanted is None:
            raise StopIteration
        try:
            if self._batches is None:
                self._wanted.again()
                self._batches = iter(self._start())
            batch = next(self._batches)
        except StopIteration:
            self._place.ended = True
            self.close()
            raise
        except BaseException as error:
            # What a sample raised comes as a batch: this is about the workers, or about the sampler.
            try:
                failure = self._end_after(error)
            except RuntimeError as repeated:  # torch's signal handler reports the same dead worker again, at any line
                failure = self._end_after(repeated)
            if failure is error:
                raise
            raise failure from error
        self._place.batches += 1
        self._wanted.asked.popleft()
        if isinstance(batch, WorkerFailure):
            if not self._keep:  # begun again should there be a next time
                self._rest()
            raise batch.unpack()
        return batch

    def close(self) -> None:
        """Stop for good; the processes end, unless they are kept for the next epoch."""
        self._wanted = None
        if self._keep:
            self._batches = None
        else:
            self._rest()

    def supersede(self) -> None:
        """Leave the workers to another loop."""
        self._superseded = self._wanted is not None
        self._wanted = self._batches = None

    def _rest(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            shut(batches)

    def _end_after(self, error: BaseException) -> BaseException:
        """End the processes after an error, and return the error to raise for it."""
        failure = self._translate(error)
        with contextlib.suppress(RuntimeError):
            self._rest()
        with contextlib.suppress(RuntimeError):
            self._forget()
        return failure

    def _translate(self, error: BaseException) -> BaseException:
        """Return the error as one of ours if torch's message shows that a worker is late or dead."""
        text, made = str(error), f"batch {self._place.batches}"
        if isinstance(error, RuntimeError) and "timed out" in text:
            return BatchTimeoutError(
                f"{made} was not ready within the timeout: a sample is slow or stuck; allow more time, or more num_workers"
            )
        died = isinstance(error, RuntimeError) and ("exited unexpectedly" in text or "is killed by signal" in text)
        if died or isinstance(error, (EOFError, ConnectionError)):  # its end of the line closed
            return WorkerDiedError(
                f"a worker process ended while {made} was made ({text or type(error).__name__}); it may have been killed"
                " for want of memory (try fewer num_workers) or have crashed in the dataset's own code"
            )
        return error


def shut(batches: object) -> None:
    """End the processes of a stock loader's iterator now rather than when it is collected."""
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
