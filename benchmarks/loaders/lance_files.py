"""Lance: `take` of a random batch, one at a time and several at once by threads, which its calls do not block."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.hugging_face import tensors
from benchmarks.loaders.memory_mapped import RandomBatches
from benchmarks.loaders.samples import Data

FORMAT = "lance"


def write(folder: Path, data: Data) -> None:
    import lance

    lance.write_dataset(data.batches(), str(folder / "data.lance"))


def load(folder: Path, job: Job, *, threads: int) -> Epochs:
    import lance
    import pyarrow as pa

    dataset = lance.dataset(str(folder / "data.lance"))
    sampler = RandomBatches(job.data.rows, job)

    def take(numbers: Any) -> Batch:
        return tensors(dataset.take(pa.array(numbers), columns=["x", "label"]), job.data.width)

    def ahead() -> Iterator[Batch]:
        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for numbers in sampler:
                waiting.append(pool.submit(take, numbers))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def epoch(number: int) -> Iterator[Batch]:
        sampler.epoch = number
        return ahead() if threads > 1 else map(take, sampler)

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"lance take, {threads} at once" if threads > 1 else "lance take",
        FORMAT,
        write,
        partial(load, threads=threads),
        imports=("torch", "lance", "pyarrow"),
        globally=True,
    )
    for threads in (1, 4)
)
