"""Work on several items at once, with the results in the items' order and only a few of them ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def in_order(
    work: Callable[[int], _T], items: Iterable[int], *, threads: int | None = None
) -> Generator[_T, None, None]:
    """Yield ``work(item)`` for each item, several being worked on at a time.

    At most twice as many results as threads are held. A failure is raised where its result was due, and what
    was not begun is dropped; so is all that is left when the generator is closed. Close it where a failure elsewhere
    may leave it half used: collected as garbage, it would wait for its threads at a moment not chosen by anyone.

    Examples
    --------
    >>> list(in_order(lambda n: n * n, range(5)))
    [0, 1, 4, 9, 16]
    """
    count = threads or min(8, 2 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(count, thread_name_prefix="penstock-work") as pool:
        waiting: deque[Future[_T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
