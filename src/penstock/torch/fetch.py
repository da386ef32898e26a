"""Samples of a batch fetched by threads in whatever order they arrive (RINAS, section 4.4).

A `Ticket` is one batch in the making. `Threads` cuts its indices into runs, any thread takes any run, and the
thread that brings the last sample collates the batch: reading, preprocessing and collating of different samples
and batches overlap. Runs are short where samples take long, and long where they are cheap.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from penstock.errors import UsageError, some_of
from penstock.messages import Text, Use
from penstock.torch.tune import Tuner

_TEAMS = "backend: OpenMP" in torch.__config__.parallel_info()
"""Whether each thread has its own team for torch's parallel loops; elsewhere they share one."""


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """How a batch is made of its samples."""

    dataset: Any
    collate: Callable[[Any], Any]
    batched: bool = True
    ordered: bool = False
    pin: bool = False

    @property
    def many(self) -> bool:
        """Whether the dataset takes several indices at once."""
        return self.batched and bool(getattr(self.dataset, "__getitems__", None))

    @property
    def name(self) -> str:
        """What messages call the dataset."""
        return type(self.dataset).__name__

    def one(self, index: Any) -> Any:
        """Fetch one sample; its failure names it."""
        try:
            return self.dataset[index]
        except BaseException as error:
            restate(error, f"while fetching sample {index!r} of {self.name}")

    def some(self, indices: Sequence[Any]) -> Sequence[Any]:
        """Fetch several samples by one call."""
        try:
            samples = self.dataset.__getitems__(list(indices))
        except BaseException as error:
            if isinstance(error, Exception) and len(indices) > 1:
                for index in indices:  # one at a time, to name the sample that fails
                    self.some([index])
            of = f"sample {indices[0]!r}" if len(indices) == 1 else f"samples {some_of(map(repr, indices))}"
            restate(error, f"while fetching {of} of {self.name} by __getitems__")
        if isinstance(samples, (Mapping, str, bytes)) or len(samples) != len(indices):
            advice = (
                "it must give a list with one sample for each index, since a batch is fetched in several calls. A"
                " dataset that makes whole batches is used with "
            )
            raise UsageError(
                f"{self.name}.__getitems__ was asked for {len(indices)} samples and gave a {type(samples).__name__} of"
                f" {len(samples)}",
                fixes=[Text(advice, Use("batch_size", None), " and sampler=BatchSampler(...)")],
            )
        return samples  # type: ignore[no-any-return]  # a dataset's own samples have no type

    def finish(self, samples: Any, indices: Sequence[Any]) -> Any:
        """Make the batch of the samples that arrived."""
        try:
            batch = self.collate(samples if self.batched else samples[0])
            return pin_memory(batch) if self.pin else batch  # type: ignore[no-untyped-call]  # torch gives it no types
        except BaseException as error:
            of = f"samples {some_of(map(repr, indices), 8)}" if self.batched else f"sample {indices[0]!r}"
            restate(error, f"while collating {of} of {self.name}")


def restate(error: BaseException, note: str) -> NoReturn:
    """Raise the error again, of the type it is, with a note of where it happened.

    A ``StopIteration`` becomes a ``RuntimeError``: raised by an iterator, it would end the user's loop in silence.
    """
    if isinstance(error, StopIteration):
        raise RuntimeError(f"StopIteration {note}") from error
    if note not in getattr(error, "__notes__", ()):  # the same error object may be raised for several samples
        error.add_note(note)
    raise error


class Ticket:
    """One batch in the making: what is wanted, what has arrived, and what failed."""

    __slots__ = ("_batch", "_error", "_failed_at", "_left", "_lock", "cancelled", "done", "indices", "samples")

    def __init__(self, indices: Sequence[Any]) -> None:
        self.indices = indices
        self.samples: list[Any] = []
        self.done = threading.Event()
        self.cancelled = False
        self._lock = threading.Lock()
        self._left = 0
        self._failed_at = len(indices)
        self._error: BaseException | None = None
        self._batch: Any = None

    def expect(self, runs: int, *, ordered: bool) -> None:
        """Set how many runs will bring the samples."""
        self._left = runs
        if ordered:
            self.samples = [None] * len(self.indices)

    def wants(self, start: int) -> bool:
        """Whether a run is still of use: not given up, and nothing before it failed."""
        return not self.cancelled and start <= self._failed_at

    def fail(self, position: int, error: BaseException) -> None:
        """Keep the failure of the sample that comes first in the batch, whichever failed first."""
        with self._lock:
            if position < self._failed_at or self._error is None:
                self._failed_at, self._error = position, error

    def arrived(self) -> bool:
        """Count a run as over; whether it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def settle(self, rule: BatchMaker) -> None:
        """Make the batch, and wake up whoever waits for it."""
        try:
            if self._error is None and not self.cancelled:
                self._batch = rule.finish(self.samples, self.indices)
        except BaseException as error:
            self._error = error
        self.samples = []
        self.done.set()

    def result(self) -> Any:
        """Give the batch away, or raise what went wrong with it."""
        batch, error = self._batch, self._error
        self._batch = self._error = None
        if error is None:
            return batch
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


class Threads:
    """Worker threads that make batches; started as they are needed, never more than ``most``."""

    def __init__(self, rule: BatchMaker, *, tuner: Tuner, enter: Callable[[int], None] | None = None) -> None:
        self.tuner = tuner
        self._recipe = rule
        self._enter = enter
        self._process = os.getpid()
        self._runs: SimpleQueue[tuple[Ticket, int, int] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._hiring = threading.Lock()
        self._open = 0
        self._parked = 0
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        _ALIVE.add(self)
        _stop_at_exit()

    @property
    def usable(self) -> bool:
        """Whether they can be given work: not stopped, and of this process rather than one it was forked from."""
        return not self._stopped and self._process == os.getpid()

    def submit(self, ticket: Ticket) -> None:
        """Begin a batch."""
        count = len(ticket.indices)
        size = self.tuner.run(count) if count else 1
        starts = range(0, count, size) if count else range(1)
        ticket.expect(len(starts), ordered=self._recipe.ordered)
        with self._lock:
            self._open += len(starts)
        for start in starts:
            self._runs.put((ticket, start, min(start + size, count)))
        with self._hiring:
            with self._lock:
                wanted = min(self.tuner.limit, self._open) - (len(self._threads) - self._parked)
                called = max(0, min(wanted, self._parked))
                self._parked -= called
            for _ in range(called):
                self._calls.put(None)
            self._hire(wanted - called)

    def stop(self, wait: float = 0.0) -> None:
        """Let every thread end after the sample it is at, and wait up to so many seconds for that.

        Without a wait it takes no lock, so a finalizer may call it at any moment.
        """
        self._stopped = True
        if self._process != os.getpid():
            return
        self._runs.put(None)
        self._calls.put(None)
        until = time.monotonic() + wait
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, until - time.monotonic()))

    def _hire(self, count: int) -> None:
        if count <= 0:
            return
        # A thread that takes part in torch's parallel loops gets a team of its own, one thread for each core: as in
        # the stock loader's workers, one is enough. New threads inherit the setting made last by anyone, so it is
        # set back as soon as ours have made it.
        own, ready, started = torch.get_num_threads() if _TEAMS else 0, SimpleQueue[None](), 0
        for _ in range(count):
            number = len(self._threads)
            worker = threading.Thread(
                target=self._work, args=(number, ready), name=f"penstock-fetch-{number}", daemon=True
            )
            try:
                worker.start()
            except RuntimeError:  # the system gives no more threads
                if not self._threads:
                    raise
                break
            self._threads.append(worker)
            started += 1
        for _ in range(started):
            ready.get()
        if own:
            torch.set_num_threads(own)

    def _work(self, number: int, ready: SimpleQueue[None]) -> None:
        if _TEAMS:
            torch.get_num_threads()  # a thread takes over the common setting when it first looks, so it looks now
            torch.set_num_threads(1)
        ready.put(None)
        failure: BaseException | None = None
        try:
            if self._enter is not None:
                self._enter(number)
        except BaseException as error:
            failure = error
        while True:
            with self._lock:
                parks = len(self._threads) - self._parked > self.tuner.limit
                self._parked += parks
            if parks:
                self._calls.get()
            run = None if self._stopped else self._runs.get()
            if run is None or self._stopped:
                self._runs.put(None)  # for the next threads, at work or parked
                self._calls.put(None)
                return
            ticket, start, stop = run
            if failure is not None:
                ticket.fail(start, failure)
            elif start < stop and ticket.wants(start):
                self._fetch(ticket, start, stop)
            with self._lock:
                self._open -= 1
            if ticket.arrived():
                began = time.thread_time()
                ticket.settle(self._recipe)
                with self._lock:
                    self.tuner.collated(time.thread_time() - began)
            del run, ticket  # a batch is not kept until the next one comes

    def _fetch(self, ticket: Ticket, start: int, stop: int) -> None:
        rule, at, began, worked = self._recipe, start, time.perf_counter(), time.thread_time()
        try:
            if rule.many:
                samples = list(rule.some(ticket.indices[start:stop]))
                if rule.ordered:
                    ticket.samples[start : start + len(samples)] = samples
                else:
                    ticket.samples.extend(samples)
            else:
                for at in range(start, stop):
                    sample = rule.one(ticket.indices[at])
                    if rule.ordered:
                        ticket.samples[at] = sample
                    else:
                        ticket.samples.append(sample)
                    if ticket.cancelled:
                        return
        except BaseException as error:
            ticket.fail(at, error)
        else:
            wall, cpu = time.perf_counter() - began, time.thread_time() - worked
            with self._lock:
                self.tuner.fetched(stop - start, wall=wall, cpu=cpu)


_ALIVE: weakref.WeakSet[Threads] = weakref.WeakSet()


@functools.cache
def _stop_at_exit() -> None:
    """Register `_stop_all` with the first threads, and not by importing this module."""
    atexit.register(_stop_all)


def _stop_all() -> None:
    """Let no thread of ours run while the interpreter is taken apart."""
    for threads in list(_ALIVE):
        threads.stop(wait=1.0)
