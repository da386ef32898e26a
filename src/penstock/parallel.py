"""Work ahead of its use in threads, with the results in the items' order and only a few of them held."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

LIMIT = 16 << 20
"""Bytes that are under way or wait, where items are weighed."""
MOST = 256
"""Results held where items are weighed, however small."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[_T], _R],
    items: Iterable[_T],
    *,
    threads: int | None = None,
    most: int | None = None,
    weigh: Callable[[_T], int] | None = None,
    name: str = "work",
    start: Callable[[], None] | None = None,
) -> Generator[_R, None, None]:
    """Yield ``work(item)`` for each item, while the next are worked on.

    A failure is raised where its result was due, and what was not begun is dropped; so is all that is left when the
    generator is closed. Close it where a failure elsewhere may leave it half used: collected as garbage, it would wait for
    its threads at a moment not chosen by anyone.

    Parameters
    ----------
    work, items
        What is done, and to what. With one thread, an item is worked on while the one before it is in use.
    threads : int, optional
        As many items are worked on at a time; twice the cores, and at most 8, if not given.
    most : int, optional
        Results that are held, the one in use among them; if not given, twice as many as threads, or `MOST` of items that
        are weighed.
    weigh : callable, optional
        The bytes of an item's result. What is under way or waits then comes to at most `LIMIT`, or is a single item that
        weighs more.
    name : str
        Of the threads.
    start : callable, optional
        Is called once in each thread.

    Examples
    --------
    >>> list(in_order(lambda n: n * n, range(5)))
    [0, 1, 4, 9, 16]
    """
    count = threads or min(8, 2 * cores())
    limit = most or (2 * count if weigh is None else MOST)
    waiting: deque[tuple[Future[_R], int]] = deque()
    held, begun = 0, False
    with ThreadPoolExecutor(count, thread_name_prefix=f"penstock-{name}", initializer=start) as pool:
        try:
            for item in items:
                weight = 0 if weigh is None else weigh(item)
                while waiting and held + weight > LIMIT:
                    held -= waiting[0][1]
                    yield waiting.popleft()[0].result()
                waiting.append((pool.submit(work, item), weight))
                held += weight
                # The first is given out as soon as it is done, and does not wait for the others to be begun.
                if len(waiting) >= limit or (not begun and len(waiting) > count and waiting[0][0].done()):
                    begun = True
                    held -= waiting[0][1]
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            for future, _ in waiting:
                future.cancel()
