"""Work ahead of its use within so many bytes: files and pieces of very unequal size, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

LIMIT = 16 << 20
THREADS = 4
MOST = 256
"""Results held at once, however small."""


def ahead(
    work: Callable[[_T], _R], items: Iterable[_T], *, weigh: Callable[[_T], int], limit: int | None = None
) -> Generator[_R, None, None]:
    """Yield ``work(item)`` for each item in order, while the next are worked on.

    What is under way or waits comes to at most ``limit`` (16 MB if not given) by ``weigh``, or is a single item that weighs more. Close
    the generator where a failure elsewhere may leave it half used.

    Examples
    --------
    >>> list(ahead(lambda n: n * n, range(5), weigh=lambda n: n, limit=4))
    [0, 1, 4, 9, 16]
    """
    most = LIMIT if limit is None else limit
    with ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-ahead") as pool:
        waiting: deque[tuple[Future[_R], int]] = deque()
        held = 0
        try:
            for item in items:
                weight = weigh(item)
                while waiting and (held + weight > most or len(waiting) >= MOST):
                    held -= waiting[0][1]
                    yield waiting.popleft()[0].result()
                waiting.append((pool.submit(work, item), weight))
                held += weight
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            for future, _ in waiting:
                future.cancel()
